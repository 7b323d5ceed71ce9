//! `trace`: follows the live traffic of a bus, as lines of JSON or as a file for the trace viewer of ACP's conductor.
//!
//! What a bus tells is printed as it came, after the time of day: the bus counts from its own start, and this clock
//! is set by its first answer. Ends when the bus does, when nobody reads any more, or at a signal.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime};

use kernel::shell::timestamp;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::connect::Bell;
use crate::message::Message;
use crate::stream::Stream;
use crate::wire::Wire;
use crate::{Fault, Way};

/// A bus answers at once or not at all; then it may be silent for as long as it likes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Requests whose answers the file still awaits. Some never come: the bus did not tell of all.
const AWAITED: usize = 1 << 16;

#[derive(Default)]
pub struct Filter {
    pub pool: Option<String>,
    pub session: Option<String>,
    pub client: Option<String>,
    pub payloads: bool,
}

/// Where events go.
pub trait Sink {
    /// `time`: when, for people. `event`: the params of the event.
    fn event(&mut self, time: SystemTime, event: &RawValue) -> io::Result<()>;
    fn dropped(&mut self, time: SystemTime, count: u64) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
    /// What is of no use any more once nobody reads it.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Until a signal comes or nobody reads any more.
pub fn follow(way: &Way, filter: &Filter, sink: &mut dyn Sink, bell: &Bell) -> Result<(), Fault> {
    let mut wire = bell.while_away(|| Wire::connect(way, Some(TIMEOUT)))?;
    let Filter { pool, session, client, payloads } = filter;
    let texts = [("pool", pool), ("session", session), ("client", client)];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text.clone()?.into())));
    let mut params = texts.collect::<Map<String, Value>>();
    if *payloads {
        params.insert("payloads".to_owned(), true.into());
    }
    let params = to_raw_value(&params).expect("plain JSON becomes text");
    let answer = bell.while_away(|| {
        wire.greet("stdio-bus trace", None)?;
        wire.ask("_bus/trace", Some(&params))
    });
    let answer = answer.map_err(|fault| match fault {
        Fault::Silent { .. } => Fault::Unreachable(fault.to_string()),
        fault => fault,
    })?;
    let answer = serde_json::from_str::<Value>(answer.get()).unwrap_or_default();
    let at = Duration::from_micros(answer["at_us"].as_u64().unwrap_or_default());
    let started = SystemTime::now().checked_sub(at).unwrap_or(SystemTime::UNIX_EPOCH);
    let (reader, _writer) = wire.into_halves()?;
    Follower { reader, line: Vec::new(), started }.run(sink, bell)
}

struct Follower {
    reader: BufReader<Stream>,
    /// The line that has begun.
    line: Vec<u8>,
    /// When the bus did.
    started: SystemTime,
}

impl Follower {
    fn run(mut self, sink: &mut dyn Sink, bell: &Bell) -> Result<(), Fault> {
        // Whoever holds us up by not reading can still end us. A file does not, and is to hold what was heard.
        let file = is_file(sink.fd());
        let write = |work: &mut dyn FnMut() -> io::Result<()>| match file {
            true => work(),
            false => bell.while_away(work),
        };
        loop {
            if self.reader.buffer().is_empty() {
                match write(&mut || sink.flush()) {
                    Ok(()) if is_awaited(&self.reader, sink, bell)? => {}
                    Ok(()) => return Ok(()),
                    Err(error) => return ended(&error),
                }
            }
            let chunk = match self.reader.fill_buf() {
                Ok([]) => return Err(Fault::Unreachable("the bus has closed the connection".to_owned())),
                Ok(chunk) => chunk,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Fault::Unreachable(format!("the connection to the bus broke: {error}")));
                }
            };
            let end = memchr::memchr(b'\n', chunk);
            self.line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.reader.consume(taken);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                if let Err(error) = write(&mut || self.heard(&line, sink)) {
                    return ended(&error);
                }
            }
        }
    }

    fn heard(&self, line: &[u8], sink: &mut dyn Sink) -> io::Result<()> {
        let Some(Message { method: Some(method), params: Some(params), .. }) = Message::scan(line) else {
            return Ok(());
        };
        let told = || serde_json::from_str::<Value>(params.get()).unwrap_or_default();
        match method.get() {
            r#""_bus/event""# => {
                let at = Duration::from_micros(told()["at_us"].as_u64().unwrap_or_default());
                sink.event(self.started.checked_add(at).unwrap_or(self.started), params)
            }
            r#""_bus/dropped""# => {
                sink.dropped(SystemTime::now(), told()["count"].as_u64().unwrap_or_default())
            }
            _ => Ok(()),
        }
    }
}

fn is_file(fd: BorrowedFd<'_>) -> bool {
    let kind = |mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
    fstat(fd).is_ok_and(|stat| kind(stat.st_mode) == SFlag::S_IFREG)
}

/// Waits for the bus. False: a signal came first, or nobody reads what we write.
fn is_awaited(reader: &BufReader<Stream>, sink: &dyn Sink, bell: &Bell) -> Result<bool, Fault> {
    loop {
        if bell.heard().is_some() {
            return Ok(false);
        }
        let mut fds = [
            PollFd::new(reader.get_ref().as_fd(), PollFlags::POLLIN),
            PollFd::new(bell.as_fd(), PollFlags::POLLIN),
            // It tells by itself when its reader has gone.
            PollFd::new(sink.fd(), PollFlags::empty()),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(Fault::Failed(format!("cannot wait for the bus: {errno}"))),
            Ok(_) => {}
        }
        let [bus, _, out] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        if out.intersects(PollFlags::POLLERR | PollFlags::POLLHUP) {
            return Ok(false);
        }
        if !bus.is_empty() {
            return Ok(true);
        }
    }
}

/// A reader that has seen enough is no failure.
fn ended(error: &io::Error) -> Result<(), Fault> {
    match error.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Fault::Failed(format!("cannot write: {error}"))),
    }
}

/// One event a line.
pub struct Lines<W>(pub W);

impl<W: Write + AsFd> Sink for Lines<W> {
    fn event(&mut self, time: SystemTime, event: &RawValue) -> io::Result<()> {
        let fields = event.get().trim_start().strip_prefix('{').unwrap_or("}");
        writeln!(self.0, r#"{{"time":"{}",{fields}"#, timestamp(time))
    }

    fn dropped(&mut self, time: SystemTime, count: u64) -> io::Result<()> {
        writeln!(self.0, r#"{{"time":"{}","dropped":{count}}}"#, timestamp(time))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The trace file (`.jsons`) of ACP's conductor, for its viewer.
pub struct Viewable<W> {
    out: W,
    /// When the first event was, which is the viewer's zero.
    start: Option<SystemTime>,
    /// Who asked whom, by the call.
    awaited: HashMap<String, (String, String)>,
}

impl<W: Write> Viewable<W> {
    pub fn new(out: W) -> Viewable<W> {
        Viewable { out, start: None, awaited: HashMap::new() }
    }

    fn describe(&mut self, time: SystemTime, event: &Value) -> Option<Value> {
        let start = *self.start.get_or_insert(time);
        let ts = time.duration_since(start).unwrap_or_default().as_secs_f64();
        let (from, to) = event["direction"].as_str()?.split_once("->")?;
        let (from, to) = (swimlane(from, event), swimlane(to, event));
        // One number for both, where the bus has one: two clients may use the same id.
        let id = match &event["call"] {
            Value::Null => {
                Value::from(format!("{} {}", event["client"].as_str().unwrap_or("?"), event["id"]))
            }
            call => call.clone(),
        };
        let payload = |key: &str| match event.get("payload") {
            Some(payload) => payload.get(key).cloned().unwrap_or_default(),
            None => json!({ "bytes": event["bytes"] }),
        };
        let mut told = match event["kind"].as_str()? {
            kind @ ("request" | "notification") => json!({
                "type": kind, "ts": ts, "protocol": "acp", "from": from, "to": to,
                "method": event["method"], "params": payload("params"),
            }),
            kind => {
                // The viewer looks for the answer where the question went.
                let asked = self.awaited.remove(&id.to_string());
                let (to, from) = asked.unwrap_or((to, from));
                let is_error = kind == "error";
                let payload = match payload(kind) {
                    Value::Object(mut about) if is_error && event.get("payload").is_none() => {
                        about.insert("code".to_owned(), event["code"].clone());
                        about.into()
                    }
                    payload => payload,
                };
                return Some(json!({
                    "type": "response", "ts": ts, "from": from, "to": to, "id": id, "is_error": is_error,
                    "payload": payload,
                }));
            }
        };
        if let Some(session) = event.get("session") {
            told["session"] = session.clone();
        }
        if event["kind"] == "request" {
            told["id"] = id.clone();
            if self.awaited.len() >= AWAITED {
                self.awaited.clear();
            }
            self.awaited.insert(id.to_string(), (from, to));
        }
        Some(told)
    }
}

impl<W: Write + AsFd> Sink for Viewable<W> {
    fn event(&mut self, time: SystemTime, event: &RawValue) -> io::Result<()> {
        let event = serde_json::from_str::<Value>(event.get()).unwrap_or_default();
        match self.describe(time, &event) {
            Some(told) => writeln!(self.out, "{told}"),
            None => Ok(()),
        }
    }

    fn dropped(&mut self, time: SystemTime, count: u64) -> io::Result<()> {
        let start = *self.start.get_or_insert(time);
        let ts = time.duration_since(start).unwrap_or_default().as_secs_f64();
        let told = json!({
            "type": "notification", "ts": ts, "protocol": "acp", "from": "bus", "to": "bus",
            "method": "_bus/dropped", "params": { "count": count },
        });
        writeln!(self.out, "{told}")
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }
}

/// Whose line of the diagram it is.
fn swimlane(end: &str, event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or("?").to_owned();
    match end {
        "client" => text("client"),
        "worker" => format!("{}/{}", text("pool"), event["worker"]),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek};

    use super::*;
    use crate::fake::FakeBus;

    const BEGUN: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"at_us":5000000,"payloads":false}}"#;

    fn written(mut file: File) -> Vec<Value> {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn events_are_printed_as_they_came_after_the_time_of_day() {
        let event = r#"{"at_us":5000000,"direction":"client->worker","kind":"notification","bytes":1.50}"#;
        let told = format!(r#"{{"jsonrpc":"2.0","method":"_bus/event","params":{event}}}"#);
        let dropped = r#"{"jsonrpc":"2.0","method":"_bus/dropped","params":{"count":3}}"#;
        let bus = FakeBus::answering(&[&[BEGUN, &told, "nonsense", dropped]]);
        let filter = Filter { pool: Some("p".to_owned()), payloads: true, ..Filter::default() };
        let mut lines = Lines(tempfile::tempfile().unwrap());
        let before = timestamp(SystemTime::now());
        let fault = follow(&bus.way(), &filter, &mut lines, &Bell::deaf().unwrap()).unwrap_err();
        assert_eq!(
            (fault.exit_code(), fault.to_string().as_str()),
            (69, "the bus has closed the connection")
        );
        let lines = written(lines.0);
        let (time, after) = (lines[0]["time"].as_str().unwrap(), timestamp(SystemTime::now()));
        assert!(before.as_str() <= time && time <= after.as_str(), "{before} {time} {after}");
        assert_eq!((&lines[0]["bytes"], &lines[1]["dropped"]), (&json!(1.5), &json!(3)));
        let heard: Vec<Value> = bus.heard().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let params = json!({ "payloads": true, "pool": "p" });
        assert_eq!(heard, [json!({ "jsonrpc": "2.0", "id": 1, "method": "_bus/trace", "params": params })]);
    }

    #[test]
    fn the_file_has_the_form_that_the_viewer_knows() {
        let mut file = Viewable::new(tempfile::tempfile().unwrap());
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + ms);
        let events = [
            json!({ "direction": "client->worker", "kind": "request", "method": "m", "id": 1, "call": 77,
                    "client": "zed", "session": "s1", "pool": "p", "worker": 0, "bytes": 9,
                    "payload": { "params": [1] } }),
            json!({ "direction": "bus->client", "kind": "error", "code": -32050, "id": 1, "call": 77, "client": "zed",
                    "pool": "p", "bytes": 9 }),
            json!({ "direction": "client->bus", "kind": "request", "method": "n", "id": 1, "client": "zed",
                    "bytes": 5 }),
            json!({ "direction": "bus->client", "kind": "result", "id": 1, "client": "zed", "bytes": 9,
                    "payload": { "result": null } }),
            json!({ "direction": "worker->client", "kind": "notification", "method": "u", "client": "zed", "pool": "p",
                    "worker": 0, "bytes": 9, "payload": { "method": "u" } }),
            json!({ "odd": true }),
        ];
        for (ms, event) in events.iter().enumerate() {
            file.event(at(500 * ms as u64), &to_raw_value(event).unwrap()).unwrap();
        }
        file.dropped(at(5000), 3).unwrap();
        let expected = [
            json!({ "type": "request", "ts": 0.0, "protocol": "acp", "from": "zed", "to": "p/0", "id": 77,
                    "method": "m", "session": "s1", "params": [1] }),
            // From where it was asked, which is where the viewer looks for it.
            json!({ "type": "response", "ts": 0.5, "from": "p/0", "to": "zed", "id": 77, "is_error": true,
                    "payload": { "bytes": 9, "code": -32050 } }),
            json!({ "type": "request", "ts": 1.0, "protocol": "acp", "from": "zed", "to": "bus", "id": "zed 1",
                    "method": "n", "params": { "bytes": 5 } }),
            json!({ "type": "response", "ts": 1.5, "from": "bus", "to": "zed", "id": "zed 1", "is_error": false,
                    "payload": null }),
            json!({ "type": "notification", "ts": 2.0, "protocol": "acp", "from": "p/0", "to": "zed", "method": "u",
                    "params": null }),
            json!({ "type": "notification", "ts": 5.0, "protocol": "acp", "from": "bus", "to": "bus",
                    "method": "_bus/dropped", "params": { "count": 3 } }),
        ];
        assert!(file.awaited.is_empty(), "what is answered is forgotten");
        assert_eq!(written(file.out), expected);
    }
}
