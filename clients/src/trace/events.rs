//! A connection to a bus that follows its traffic: what `_bus/trace` tells, with the time of day.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rpc::{LineReader, Parts, Stream};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Filter;
use crate::connection::Connection;
use crate::{Fault, Signals, Target};

/// A running bus answers at once. Afterwards it may be silent for as long as it likes.
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct Events {
    pub(super) stream: Stream,
    lines: LineReader,
    /// When the bus began: it counts time from there.
    started: SystemTime,
}

/// What a wait has ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// More has come from the bus.
    Bus,
    /// There is something else to read.
    Other,
    /// It is that late, or the wait was interrupted.
    Time,
}

/// What a bus tells who follows its traffic.
pub enum Told<'a> {
    /// The params of a `_bus/event`, and when it happened.
    Event(SystemTime, &'a RawValue),
    /// So many events were left out.
    Dropped(u64),
}

impl Events {
    /// `name`: what the bus hears of who follows.
    pub fn open(target: &Target, name: &str, filter: &Filter) -> Result<Events, Fault> {
        let mut connection = Connection::connect(target, Some(TIMEOUT))?;
        let greeted = connection.hello(name, None);
        let answer = greeted.and_then(|()| connection.request("_bus/trace", filter));
        let answer = answer.map_err(Fault::timeout_as_unreachable)?;
        let answer = serde_json::from_str::<Value>(answer.get()).unwrap_or_default();
        let at = Duration::from_micros(answer["at_us"].as_u64().unwrap_or_default());
        let started = SystemTime::now().checked_sub(at).unwrap_or(SystemTime::UNIX_EPOCH);
        let (stream, lines) = connection.into_parts()?;
        Ok(Events { stream, lines, started })
    }

    /// Hands over what has come, one after the other.
    pub fn hear<E>(&mut self, mut each: impl FnMut(Told<'_>) -> Result<(), E>) -> Result<(), E> {
        while let Some(line) = self.lines.next_line() {
            if let Some(told) = told(line, self.started) {
                each(told)?;
            }
        }
        Ok(())
    }

    /// Waits until more has come. False: a signal came first.
    pub fn wait(&mut self, signals: &Signals) -> Result<bool, Fault> {
        loop {
            if signals.take().is_some() {
                return Ok(false);
            }
            if self.wait_until(signals.as_fd(), None)? == Woken::Bus {
                return Ok(true);
            }
        }
    }

    /// Waits until more has come, something else can be read, or it is that late.
    pub fn wait_until(&mut self, other: BorrowedFd<'_>, late: Option<Instant>) -> Result<Woken, Fault> {
        let mut fds =
            [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN), PollFd::new(other, PollFlags::POLLIN)];
        let left = late.map(|late| late.saturating_duration_since(Instant::now()));
        // The timeout is in whole milliseconds: one that is cut would be over too early.
        let left = left.map(|left| left + Duration::from_millis(1));
        let left = left.map(|left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        match poll(&mut fds, left.unwrap_or(PollTimeout::NONE)) {
            Err(Errno::EINTR) => return Ok(Woken::Time),
            Err(errno) => return Err(Fault::Failed(format!("cannot wait for the bus: {errno}"))),
            Ok(_) => {}
        }
        let [bus, other] = fds.map(|fd| fd.revents().is_some_and(|seen| !seen.is_empty()));
        if bus {
            self.read()?;
            return Ok(Woken::Bus);
        }
        Ok(if other { Woken::Other } else { Woken::Time })
    }

    pub(super) fn read(&mut self) -> Result<(), Fault> {
        match self.lines.fill(&mut self.stream) {
            Ok(0) => Err(Fault::Unreachable("the bus has closed the connection".to_owned())),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(Fault::Unreachable(format!("the connection to the bus broke: {error}"))),
        }
    }
}

fn told(line: &[u8], started: SystemTime) -> Option<Told<'_>> {
    let Parts { method, params, .. } = Parts::parse(line)?;
    let params = params?;
    let number = |key: &str| {
        let params = serde_json::from_str::<Value>(params.get()).unwrap_or_default();
        params[key].as_u64().unwrap_or_default()
    };
    match method?.get() {
        r#""_bus/event""# => {
            let at = Duration::from_micros(number("at_us"));
            Some(Told::Event(started.checked_add(at).unwrap_or(started), params))
        }
        r#""_bus/dropped""# => Some(Told::Dropped(number("count"))),
        _ => None,
    }
}
