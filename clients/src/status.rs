//! `status`: one look at a bus, as JSON or as a table.
//!
//! A field that the bus does not give is a dash, so an older or newer bus can be looked at too.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::wire::Wire;
use crate::{Fault, Way};

/// A bus answers this at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the bus says of itself, as it came.
pub fn ask(way: &Way) -> Result<Box<RawValue>, Fault> {
    let mut wire = Wire::connect(way, Some(TIMEOUT))?;
    let greeted = wire.greet("stdio-bus status", None);
    greeted.and_then(|()| wire.ask("_bus/status", None)).map_err(|fault| match fault {
        Fault::Silent { .. } => Fault::Unreachable(fault.to_string()),
        fault => fault,
    })
}

/// For a person: a line about the bus, one a worker, and the counters that are not zero.
pub fn describe(status: &RawValue) -> String {
    let status = serde_json::from_str::<Value>(status.get()).unwrap_or_default();
    let mut text = headline(&status);
    let heads = ["POOL", "MODE", "WORKER", "STATE", "PID", "SESSIONS", "CALLS", "RESTARTS"];
    let mut rows = vec![heads.map(str::to_owned)];
    for pool in list(&status["pools"]) {
        let workers = list(&pool["workers"]);
        if workers.is_empty() {
            rows.push(row(pool, &Value::Null));
        }
        rows.extend(workers.iter().map(|worker| row(pool, worker)));
    }
    text.push_str(&table(&rows));
    let counters = status["counters"].as_object().into_iter().flatten();
    let counted =
        counters.filter(|(_, count)| **count != 0).map(|(name, count)| format!("{name} {}", word(count)));
    let counted = counted.collect::<Vec<_>>().join(", ");
    if !counted.is_empty() {
        let _ = writeln!(text, "{}", printable(&counted));
    }
    text
}

fn headline(status: &Value) -> String {
    let name = status["bus"].as_str().unwrap_or("stdio-bus");
    let mut line = format!("{} {}", printable(name), word(&status["version"]));
    if let Some(seconds) = status["uptime_sec"].as_f64() {
        let _ = write!(line, ", up {}", span(seconds as u64));
    }
    if status["stopping"] == true {
        line.push_str(", stopping");
    }
    for name in ["clients", "sessions", "calls"] {
        let name_of_one = name.strip_suffix('s').filter(|_| status[name] == 1);
        let _ = write!(line, ", {} {}", word(&status[name]), name_of_one.unwrap_or(name));
    }
    if let Some(bytes) = status["held_bytes"].as_u64() {
        let _ = write!(line, ", {} held", size(bytes));
    }
    line.push('\n');
    line
}

fn row(pool: &Value, worker: &Value) -> [String; 8] {
    let of_worker = ["worker", "state", "pid", "sessions", "calls", "restarts"].map(|key| word(&worker[key]));
    let [number, state, pid, sessions, calls, restarts] = of_worker;
    [word(&pool["id"]), word(&pool["mode"]), number, state, pid, sessions, calls, restarts]
}

/// Columns as wide as their widest word; numbers to the right, words to the left.
fn table(rows: &[[String; 8]]) -> String {
    let mut text = String::new();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = std::array::from_fn::<usize, 8, _>(width);
    for row in rows {
        let mut line = String::new();
        for (column, (word, width)) in row.iter().zip(widths).enumerate() {
            let is_number = !matches!(column, 0 | 1 | 3);
            let _ =
                if is_number { write!(line, "{word:>width$}  ") } else { write!(line, "{word:<width$}  ") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}

/// What answers may be anything; it must not steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(crate) fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBus;

    fn described(status: &str) -> String {
        describe(&RawValue::from_string(status.to_owned()).unwrap())
    }

    #[test]
    fn a_status_is_asked_for_and_kept_as_it_came() {
        let bus = FakeBus::answering(&[&[r#"{"jsonrpc":"2.0","id":1,"result":{"clients": 1}}"#]]);
        assert_eq!(ask(&bus.way()).unwrap().get(), r#"{"clients": 1}"#);
        assert_eq!(bus.heard(), [r#"{"jsonrpc":"2.0","id":1,"method":"_bus/status"}"#]);
    }

    #[test]
    fn a_person_sees_a_line_a_worker() {
        let text = described(
            r#"{"bus":"stdio-bus","version":"0.1.0","uptime_sec":3723.5,"stopping":false,"clients":1,"calls":2,
                "sessions":5,"held_bytes":1572864,"pools":[
                {"id":"echo","mode":"shared","instances":2,"max_instances":4,"workers":[
                  {"worker":0,"state":"up","pid":4242,"sessions":5,"calls":2,"restarts":0,"handshake":true},
                  {"worker":1,"state":"resting","pid":null,"sessions":0,"calls":0,"restarts":12}]},
                {"id":"solo","mode":"dedicated","workers":[]}],
                "counters":{"stray_lines":7,"lines":0}}"#,
        );
        let expected = "
stdio-bus 0.1.0, up 1h 2m, 1 client, 5 sessions, 2 calls, 1.5 MiB held
POOL  MODE       WORKER  STATE     PID  SESSIONS  CALLS  RESTARTS
echo  shared          0  up       4242         5      2         0
echo  shared          1  resting     -         0      0        12
solo  dedicated       -  -           -         -      -         -
stray_lines 7
";
        assert_eq!(text, expected.trim_start());
    }

    #[test]
    fn what_is_missing_or_odd_does_no_harm() {
        let heads = "POOL  MODE  WORKER  STATE  PID  SESSIONS  CALLS  RESTARTS\n";
        for odd in ["null", "7", "[]", "{}", r#"{"pools":{},"counters":[],"uptime_sec":"x"}"#] {
            assert_eq!(
                described(odd),
                format!("stdio-bus -, - clients, - sessions, - calls\n{heads}"),
                "{odd}"
            );
        }
        let text = described("{\"bus\":\"\\u001b[2J\",\"pools\":[7,{\"id\":\"a\\nb\",\"workers\":[null]}]}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn spans_and_sizes_read_well() {
        let spans = [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h 0m"), (90_061, "1d 1h")];
        assert!(spans.into_iter().all(|(seconds, text)| span(seconds) == text));
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB")];
        assert!(sizes.into_iter().all(|(bytes, text)| size(bytes) == text));
    }
}
