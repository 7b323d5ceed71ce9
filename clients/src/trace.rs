//! `trace`: follows the live traffic of a bus, as JSON lines, as lines for people, or as a file for the trace viewer of
//! ACP's conductor.
//!
//! As JSON, events are printed verbatim after the time of day. The bus counts time from its own start, which its first
//! answer reveals. `trace` ends with the bus, with its reader, or by a signal.

mod events;
mod readable;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use rpc::Stream;
use rpc::text::{escape_control, rfc3339};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub use events::{Events, Told, Woken};
pub use readable::ReadableLines;

use crate::Signals;
use crate::{Fault, Target};

/// Bounds the requests that wait for an answer in the trace file. Some answers never come: the bus drops
/// events under load.
const MAX_OPEN_REQUESTS: usize = 1 << 16;

/// The params of `_bus/trace`.
#[derive(Default, Serialize)]
pub struct Filter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub payloads: bool,
}

/// How events are written.
pub trait Format {
    /// `event` is the params of a `_bus/event`.
    fn event(&mut self, out: &mut dyn Write, time: SystemTime, event: &RawValue) -> io::Result<()>;
    fn dropped(&mut self, out: &mut dyn Write, time: SystemTime, count: u64) -> io::Result<()>;
}

/// Runs until a signal comes or the reader of `out` is gone.
pub fn follow(
    target: &Target,
    filter: &Filter,
    format: &mut dyn Format,
    out: File,
    signals: &Signals,
) -> Result<(), Fault> {
    let mut events = signals.with_default_action(|| Events::open(target, "stdio-bus trace", filter))?;
    // Signals may interrupt a write to a pipe, which can block for ever. A file never blocks, and must not lose events.
    let is_file = is_file(out.as_fd());
    let write = |work: &mut dyn FnMut() -> io::Result<()>| {
        if is_file { work() } else { signals.with_default_action(work) }
    };
    // Events that come together are written together.
    let mut out = BufWriter::new(out);
    loop {
        let written = write(&mut || {
            events.hear(|told| match told {
                Told::Event(time, event) => format.event(&mut out, time, event),
                Told::Dropped(count) => format.dropped(&mut out, SystemTime::now(), count),
            })?;
            out.flush()
        });
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Fault::Failed(format!("cannot write: {error}"))),
            Ok(()) => {}
        }
        if !wait_for_bus(&events.stream, out.get_ref(), signals)? {
            return Ok(());
        }
        events.read()?;
    }
}

fn is_file(fd: BorrowedFd<'_>) -> bool {
    let kind = |mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
    fstat(fd).is_ok_and(|stat| kind(stat.st_mode) == SFlag::S_IFREG)
}

/// Returns false if a signal came first, or if the reader of the output is gone.
fn wait_for_bus(bus: &Stream, out: &File, signals: &Signals) -> Result<bool, Fault> {
    loop {
        if signals.take().is_some() {
            return Ok(false);
        }
        let mut fds = [
            PollFd::new(bus.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            // poll reports a closed reader without being asked.
            PollFd::new(out.as_fd(), PollFlags::empty()),
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

/// One event per line.
pub struct JsonLines {
    /// The lines go to a terminal, which must not obey what peers say.
    to_terminal: bool,
    /// When the prompt was sent that waits for its first update, by session.
    prompted_us: HashMap<String, u64>,
}

impl JsonLines {
    pub fn new(to_terminal: bool) -> JsonLines {
        JsonLines { to_terminal, prompted_us: HashMap::new() }
    }

    /// How long the agent took to begin, if this is the first update of a turn.
    fn first_update_us(&mut self, event: &Value) -> Option<u64> {
        let session = event["session"].as_str()?;
        let at = event["at_us"].as_u64()?;
        match event["method"].as_str()? {
            "session/prompt" if event["direction"] == "client->worker" => {
                if self.prompted_us.len() >= MAX_OPEN_REQUESTS {
                    self.prompted_us.clear();
                }
                self.prompted_us.insert(session.to_owned(), at);
                None
            }
            "session/update" => Some(at.saturating_sub(self.prompted_us.remove(session)?)),
            _ => None,
        }
    }
}

impl Format for JsonLines {
    fn event(&mut self, out: &mut dyn Write, time: SystemTime, event: &RawValue) -> io::Result<()> {
        let first = self.first_update_us(&serde_json::from_str(event.get()).unwrap_or_default());
        let first = first.map_or(String::new(), |micros| format!(r#""ttft_us":{micros},"#));
        let event = if self.to_terminal { escape_control(event.get()) } else { event.get().into() };
        let fields = event.trim_start().strip_prefix('{').unwrap_or("}");
        writeln!(out, r#"{{"time":"{}",{first}{fields}"#, rfc3339(time))
    }

    fn dropped(&mut self, out: &mut dyn Write, time: SystemTime, count: u64) -> io::Result<()> {
        writeln!(out, r#"{{"time":"{}","dropped":{count}}}"#, rfc3339(time))
    }
}

/// The trace file (`.jsons`) of ACP's conductor, for its viewer.
#[derive(Default)]
pub struct TraceFile {
    /// The time of the first event, which is zero in the viewer.
    start: Option<SystemTime>,
    /// The swimlanes of each open request, by its id.
    open_requests: HashMap<String, Lanes>,
}

/// The two swimlanes between which a message passes.
struct Lanes {
    from: String,
    to: String,
}

impl TraceFile {
    /// The record of an event. `None`: the event is not understood.
    fn record(&mut self, time: SystemTime, event: &Value) -> Option<Value> {
        let ts = self.seconds_since_start(time);
        let (from, to) = event["direction"].as_str()?.split_once("->")?;
        let lanes = Lanes { from: swimlane(from, event), to: swimlane(to, event) };
        Some(match event["kind"].as_str()? {
            kind @ ("request" | "notification") => self.request(ts, kind, lanes, event),
            kind => self.response(ts, kind, lanes, event),
        })
    }

    fn request(&mut self, ts: f64, kind: &str, lanes: Lanes, event: &Value) -> Value {
        let mut record = json!({
            "type": kind, "ts": ts, "protocol": "acp", "from": lanes.from, "to": lanes.to,
            "method": event["method"], "params": payload(event, "params"),
        });
        if let Some(session) = event.get("session") {
            record["session"] = session.clone();
        }
        if kind == "request" {
            let id = call_id(event);
            if self.open_requests.len() >= MAX_OPEN_REQUESTS {
                self.open_requests.clear();
            }
            self.open_requests.insert(id.to_string(), lanes);
            record["id"] = id;
        }
        record
    }

    fn response(&mut self, ts: f64, kind: &str, lanes: Lanes, event: &Value) -> Value {
        let id = call_id(event);
        // The viewer expects the answer on the swimlanes of its request.
        let lanes = match self.open_requests.remove(&id.to_string()) {
            Some(request) => Lanes { from: request.to, to: request.from },
            None => lanes,
        };
        let is_error = kind == "error";
        let mut payload = payload(event, kind);
        if is_error && event.get("payload").is_none() {
            payload["code"] = event["code"].clone();
        }
        json!({
            "type": "response", "ts": ts, "from": lanes.from, "to": lanes.to, "id": id, "is_error": is_error,
            "payload": payload,
        })
    }

    fn seconds_since_start(&mut self, time: SystemTime) -> f64 {
        let start = *self.start.get_or_insert(time);
        time.duration_since(start).unwrap_or_default().as_secs_f64()
    }
}

impl Format for TraceFile {
    fn event(&mut self, out: &mut dyn Write, time: SystemTime, event: &RawValue) -> io::Result<()> {
        let event = serde_json::from_str::<Value>(event.get()).unwrap_or_default();
        match self.record(time, &event) {
            Some(record) => writeln!(out, "{record}"),
            None => Ok(()),
        }
    }

    fn dropped(&mut self, out: &mut dyn Write, time: SystemTime, count: u64) -> io::Result<()> {
        let ts = self.seconds_since_start(time);
        let record = json!({
            "type": "notification", "ts": ts, "protocol": "acp", "from": "bus", "to": "bus",
            "method": "_bus/dropped", "params": { "count": count },
        });
        writeln!(out, "{record}")
    }
}

/// The bus's call number, which is unique: two clients may use the same request id.
fn call_id(event: &Value) -> Value {
    match &event["call"] {
        Value::Null => Value::from(format!("{} {}", event["client"].as_str().unwrap_or("?"), event["id"])),
        call => call.clone(),
    }
}

/// This member of the payload. Without payloads, the size of the message stands for it.
fn payload(event: &Value, key: &str) -> Value {
    match event.get("payload") {
        Some(payload) => payload.get(key).cloned().unwrap_or_default(),
        None => json!({ "bytes": event["bytes"] }),
    }
}

/// The row of the diagram for one end of an event.
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
    use std::io::{Read, Seek};
    use std::time::Duration;

    use serde_json::value::to_raw_value;

    use super::*;
    use crate::fake_bus::FakeBus;

    const STARTED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"at_us":5000000,"payloads":false}}"#;

    fn written(mut file: File) -> Vec<Value> {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).unwrap();
        parsed(&text)
    }

    fn parsed(text: &str) -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn events_are_printed_verbatim_after_the_time_of_day() {
        let event = r#"{"at_us":5000000,"direction":"client->worker","kind":"notification","bytes":1.50}"#;
        let fields = format!(r#"{{"jsonrpc":"2.0","method":"_bus/event","params":{event}}}"#);
        let dropped = r#"{"jsonrpc":"2.0","method":"_bus/dropped","params":{"count":3}}"#;
        let bus = FakeBus::answering(&[&[STARTED, &fields, "nonsense", dropped]]);
        let filter = Filter { pool: Some("p".to_owned()), payloads: true, ..Filter::default() };
        let file = tempfile::tempfile().unwrap();
        let out = file.try_clone().unwrap();
        let before = rfc3339(SystemTime::now());
        let signals = Signals::none().unwrap();
        let fault = follow(&bus.target(), &filter, &mut JsonLines::new(false), out, &signals).unwrap_err();
        assert_eq!(
            (fault.exit_code(), fault.to_string().as_str()),
            (69, "the bus has closed the connection")
        );
        let lines = written(file);
        let (time, after) = (lines[0]["time"].as_str().unwrap(), rfc3339(SystemTime::now()));
        assert!(before.as_str() <= time && time <= after.as_str(), "{before} {time} {after}");
        assert_eq!((&lines[0]["bytes"], &lines[1]["dropped"]), (&json!(1.5), &json!(3)));
        let received: Vec<Value> =
            bus.received().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let params = json!({ "payloads": true, "pool": "p" });
        assert_eq!(
            received,
            [json!({ "jsonrpc": "2.0", "id": 1, "method": "_bus/trace", "params": params })]
        );
    }

    #[test]
    fn the_first_update_of_a_turn_says_how_long_it_took() {
        let mut format = JsonLines::new(false);
        let mut out = Vec::new();
        let event = |at: u64, direction: &str, method: &str, session: &str| {
            let mut event = json!({ "at_us": at, "direction": direction, "method": method });
            event["session"] = session.into();
            event
        };
        let events = [
            event(5, "worker->client", "session/update", "s1"),
            event(10, "client->worker", "session/prompt", "s1"),
            event(20, "worker->client", "session/update", "s2"),
            event(35, "worker->client", "session/update", "s1"),
            event(40, "worker->client", "session/update", "s1"),
        ];
        for event in &events {
            format.event(&mut out, SystemTime::UNIX_EPOCH, &to_raw_value(event).unwrap()).unwrap();
        }
        let lines = parsed(&String::from_utf8(out).unwrap());
        let first: Vec<_> = lines.iter().map(|line| line["ttft_us"].as_u64()).collect();
        assert_eq!(first, [None, None, None, Some(25), None]);
    }

    #[test]
    fn the_trace_file_has_the_format_of_the_viewer() {
        let mut format = TraceFile::default();
        let mut out = Vec::new();
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
            format.event(&mut out, at(500 * ms as u64), &to_raw_value(event).unwrap()).unwrap();
        }
        format.dropped(&mut out, at(5000), 3).unwrap();
        let expected = [
            json!({ "type": "request", "ts": 0.0, "protocol": "acp", "from": "zed", "to": "p/0", "id": 77,
                    "method": "m", "session": "s1", "params": [1] }),
            // The answer comes from where the request went.
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
        assert!(format.open_requests.is_empty(), "what is answered is forgotten");
        assert_eq!(parsed(&String::from_utf8(out).unwrap()), expected);
    }
}
