//! The trace as people read it: one line per message, with the time, who spoke to whom, and what came of it.
//!
//! A run of updates of one session is one line, and how many followed it is said when something else comes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::time::SystemTime;

use anstyle::{AnsiColor, Style};
use rpc::text::{escape_control, rfc3339};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Format, MAX_OPEN_REQUESTS};
use crate::status::byte_size;

const WAY_WIDTHS: Range<usize> = 14..28;

const DIM: Style = Style::new().dimmed();
const GREEN: Style = AnsiColor::Green.on_default();
const RED: Style = AnsiColor::Red.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

pub struct ReadableLines {
    colour: bool,
    /// The methods of requests that are not answered, by call.
    methods: HashMap<u64, String>,
    run: Option<Run>,
    /// The width of the column that says who speaks to whom. It grows with the names, so that a line fits a narrow
    /// terminal where they are short.
    way_width: usize,
}

/// Updates of one session, of which the first was printed.
struct Run {
    session: String,
    more: u64,
    bytes: u64,
}

impl ReadableLines {
    pub fn new(colour: bool) -> ReadableLines {
        ReadableLines { colour, methods: HashMap::new(), run: None, way_width: WAY_WIDTHS.start }
    }

    fn styled(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    fn end_run(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let Some(Run { more: count @ 1.., bytes, .. }) = self.run.take() else { return Ok(()) };
        let updates = if count == 1 { "update" } else { "updates" };
        let line = format!("{:14}and {count} more {updates}, {}", "", byte_size(bytes));
        writeln!(out, "{}", self.styled(DIM, &line))
    }

    /// Whether this is one more update of the same session.
    fn goes_on(&mut self, event: &Value) -> bool {
        let session = event["session"].as_str().unwrap_or_default();
        let is_update = event["method"] == "session/update" && !session.is_empty();
        match &mut self.run {
            Some(run) if is_update && run.session == session => {
                run.more += 1;
                run.bytes += event["bytes"].as_u64().unwrap_or_default();
                true
            }
            _ => false,
        }
    }

    fn what(&mut self, event: &Value) -> String {
        let word = |key: &str| event[key].as_str().unwrap_or_default();
        let call = event["call"].as_u64();
        let took = event["latency_us"].as_u64().map(|us| format!(" in {}", time(us))).unwrap_or_default();
        match word("kind") {
            kind @ ("result" | "error") => {
                let method = call.and_then(|call| self.methods.remove(&call));
                let method = method.unwrap_or_else(|| "an earlier request".to_owned());
                let outcome = match (kind, event["reason"].as_str()) {
                    ("result", _) => self.styled(GREEN, "done"),
                    (_, Some(reason)) => self.styled(RED, &format!("error {reason}")),
                    _ => self.styled(RED, &format!("error {}", event["code"])),
                };
                format!("{method} {outcome}{took}")
            }
            kind => {
                let method = word("method").to_owned();
                if let ("request", Some(call)) = (kind, call) {
                    if self.methods.len() >= MAX_OPEN_REQUESTS {
                        self.methods.clear();
                    }
                    self.methods.insert(call, method.clone());
                }
                let title = event["title"].as_str().map(|title| format!(" {title:?}")).unwrap_or_default();
                let shown = if kind == "request" { self.styled(CYAN, &method) } else { method };
                format!("{shown}{title}")
            }
        }
    }
}

impl Format for ReadableLines {
    fn event(&mut self, out: &mut dyn Write, at: SystemTime, event: &RawValue) -> io::Result<()> {
        let mut event: Value = serde_json::from_str(event.get()).unwrap_or_default();
        // What peers say must not steer the terminal.
        for value in event.as_object_mut().into_iter().flat_map(|members| members.values_mut()) {
            if let Value::String(text) = value {
                *text = escape_control(text).replace(['\n', '\t'], " ");
            }
        }
        if self.goes_on(&event) {
            return Ok(());
        }
        self.end_run(out)?;
        let session = event["session"].as_str().unwrap_or_default();
        if event["method"] == "session/update" {
            self.run = Some(Run { session: session.to_owned(), more: 0, bytes: 0 });
        }
        let (from, to) =
            event["direction"].as_str().and_then(|way| way.split_once("->")).unwrap_or(("?", "?"));
        let way = format!("{} > {}", side(from, &event), side(to, &event));
        self.way_width = self.way_width.max(way.chars().count().min(WAY_WIDTHS.end));
        let width = self.way_width;
        let what = self.what(&event);
        let bytes = byte_size(event["bytes"].as_u64().unwrap_or_default());
        let clock = rfc3339(at);
        let clock = self.styled(DIM, clock.get(11..23).unwrap_or_default());
        let line = format!("{clock}  {way:<width$}  {session:<5}  {what} {}", self.styled(DIM, &bytes));
        writeln!(out, "{line}")?;
        match event["payload"] {
            Value::Null => Ok(()),
            ref payload => writeln!(out, "{:14}{}", "", escape_control(&payload.to_string())),
        }
    }

    fn dropped(&mut self, out: &mut dyn Write, _: SystemTime, count: u64) -> io::Result<()> {
        self.end_run(out)?;
        writeln!(
            out,
            "{}",
            self.styled(RED, &format!("{count} messages are missing here: too many came at once"))
        )
    }
}

/// One side of a message by its name.
fn side(side: &str, event: &Value) -> String {
    match (side, &event["client"], &event["pool"], &event["worker"]) {
        ("client", Value::String(name), ..) => name.clone(),
        ("worker", _, Value::String(pool), worker) if worker.is_number() => format!("{pool}/{worker}"),
        _ => side.to_owned(),
    }
}

fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn shown(events: &[&str]) -> String {
        let mut lines = ReadableLines::new(false);
        let mut out = Vec::new();
        for event in events {
            let event = RawValue::from_string((*event).to_owned()).unwrap();
            let at = UNIX_EPOCH + Duration::from_millis(45_296_123);
            lines.event(&mut out, at, &event).unwrap();
        }
        lines.dropped(&mut out, UNIX_EPOCH, 3).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_answers_and_runs_of_updates_are_short_lines() {
        let about = r#""client":"zed","session":"s1","pool":"claude","worker":0,"bytes":100"#;
        let event = |way: &str, rest: &str| format!(r#"{{"direction":"{way}",{rest},{about}}}"#);
        let update = event("worker->client", r#""kind":"notification","method":"session/update""#);
        let events = [
            event("client->worker", r#""kind":"request","method":"session/prompt","call":7"#),
            update.clone(),
            update.clone(),
            update,
            event("worker->client", r#""kind":"result","call":7,"latency_us":1234567"#),
            event("bus->client", r#""kind":"error","call":9,"code":-32054,"reason":"busy","latency_us":90"#),
            event(
                "worker->client",
                r#""kind":"request","method":"session/request_permission","title":"rm \u001b[2J""#,
            ),
        ];
        let text = shown(&events.iter().map(String::as_str).collect::<Vec<_>>());
        let expected = [
            "12:34:56.123  zed > claude/0  s1     session/prompt 100 B",
            "12:34:56.123  claude/0 > zed  s1     session/update 100 B",
            "              and 2 more updates, 200 B",
            "12:34:56.123  claude/0 > zed  s1     session/prompt done in 1.2 s 100 B",
            "12:34:56.123  bus > zed       s1     an earlier request error busy in 90 us 100 B",
        ];
        assert!(text.starts_with(&expected.join("\n")), "{text}");
        assert!(text.contains("session/request_permission \"rm ") && !text.contains('\u{1b}'), "{text:?}");
        assert!(text.ends_with("3 messages are missing here: too many came at once\n"), "{text}");
    }

    #[test]
    fn any_event_is_shown() {
        let text = shown(&["{}", r#"{"direction":7}"#, "[]", r#"{"payload":{"a":1}}"#]);
        assert!(text.contains("? > ?") && text.contains(r#"{"a":1}"#), "{text}");
    }
}
