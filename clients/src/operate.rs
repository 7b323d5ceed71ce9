//! `stop` and `reload`: what SIGTERM and SIGHUP do, for a bus that is found by its address.

use std::io::Write;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use rpc::Stream;
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use crate::connection::Connection;
use crate::status::list;
use crate::{Ended, Fault, Signals, Target};

/// A running bus answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A bus that has closed its last connection is gone in a moment.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const EXIT_POLL: Duration = Duration::from_millis(10);
/// For a bus that stops already, and takes no new connections.
const STOP_NOW: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":\"now\",\"method\":\"_bus/stop\",\"params\":{\"now\":true}}\n";

/// What a bus that stops has told.
pub struct Stopping {
    connection: Connection,
    answer: Value,
}

/// Asks a bus to stop: to finish its calls first, or `now`.
pub fn stop(target: &Target, now: bool) -> Result<Stopping, Fault> {
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    let greeted = connection.hello("stdio-bus stop", None);
    let answer = greeted.and_then(|()| connection.request("_bus/stop", json!({ "now": now })));
    let answer = answer.map_err(Fault::timeout_as_unreachable)?;
    Ok(Stopping { connection, answer: serde_json::from_str(answer.get()).unwrap_or_default() })
}

impl Stopping {
    /// The process of the bus, if it says so.
    pub fn pid(&self) -> Option<i32> {
        self.answer["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0)
    }

    /// How many calls are in flight.
    pub fn calls(&self) -> u64 {
        self.answer["calls"].as_u64().unwrap_or_default()
    }

    /// Waits until the bus is gone. The first interrupt has it stop at once, any other signal ends the wait.
    pub fn wait(self, signals: &Signals) -> Result<Ended, Fault> {
        let pid = self.pid();
        let (mut stream, mut lines) = self.connection.into_parts()?;
        let mut is_told = false;
        loop {
            match signals.take() {
                Some(SIGINT) if !is_told => {
                    is_told = true;
                    // If the bus does not take it, it is about to be gone.
                    let _ = stream.write_all(STOP_NOW);
                }
                Some(signal) => return Ok(Ended::Signalled(signal)),
                None => {}
            }
            if !has_more(&stream, signals) {
                continue;
            }
            if !lines.fill(&mut stream).is_ok_and(|count| count > 0) {
                break;
            }
            while lines.next_line().is_some() {}
        }
        // Its process ends a moment after its connections. One of another machine or container is not seen.
        let until = Instant::now() + EXIT_TIMEOUT;
        while pid.is_some_and(|pid| kill(Pid::from_raw(pid), None).is_ok()) && Instant::now() < until {
            thread::sleep(EXIT_POLL);
        }
        Ok(Ended::Done)
    }
}

/// Waits for the bus. False: a signal came first.
fn has_more(bus: &Stream, signals: &Signals) -> bool {
    let wanted = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = [wanted(bus.as_fd()), wanted(signals.as_fd())];
    let is_seen = |fd: &PollFd<'_>| fd.revents().is_some_and(|seen| !seen.is_empty());
    poll(&mut fds, PollTimeout::NONE).is_ok() && is_seen(&fds[0])
}

/// What came of a reload.
pub enum Reloaded {
    /// What has changed, one line each.
    Changed(Vec<String>),
    /// The errors of the configuration, one line each. The old one goes on.
    Refused(Vec<String>),
}

/// Asks a bus to read its configuration again.
pub fn reload(target: &Target) -> Result<Reloaded, Fault> {
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    let greeted = connection.hello("stdio-bus reload", None);
    match greeted.and_then(|()| connection.request("_bus/reload", ())) {
        Ok(answer) => {
            let answer: Value = serde_json::from_str(answer.get()).unwrap_or_default();
            Ok(Reloaded::Changed(texts(&answer["changed"])))
        }
        Err(Fault::Refused(error)) => {
            let told: Value = serde_json::from_str(error.get()).unwrap_or_default();
            let errors = texts(&told["data"]["errors"]);
            if errors.is_empty() { Err(Fault::Refused(error)) } else { Ok(Reloaded::Refused(errors)) }
        }
        Err(fault) => Err(fault.timeout_as_unreachable()),
    }
}

fn texts(all: &Value) -> Vec<String> {
    list(all).iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_bus::FakeBus;

    #[test]
    fn a_reload_tells_what_has_changed_or_what_is_wrong() {
        let bus =
            FakeBus::answering(&[&[r#"{"jsonrpc":"2.0","id":1,"result":{"changed":["pool a: args"]}}"#]]);
        let Reloaded::Changed(changed) = reload(&bus.target()).unwrap() else { panic!("it was read") };
        assert_eq!(changed, ["pool a: args"]);
        let error =
            r#"{"code":-32602,"message":"no","data":{"reason":"invalid","errors":["bus.json:3:3: x"]}}"#;
        let bus = FakeBus::answering(&[&[&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)]]);
        let Reloaded::Refused(errors) = reload(&bus.target()).unwrap() else { panic!("it has errors") };
        assert_eq!(errors, ["bus.json:3:3: x"]);
    }
}
