//! `status`: fetches the status of a bus and formats it as a table.
//!
//! A missing field becomes a dash, so that older and newer buses can be shown too.

use std::fmt::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use rpc::text::replace_control;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::connection::Connection;
use crate::table::{self, Cell};
use crate::{Fault, Target};

/// A running bus answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);

const HEADERS: [&str; 10] =
    ["WORKER", "STATE", "PID", "UP", "SESSIONS", "CALLS", "MEMORY", "CPU", "RESTARTS", "LAST EXIT"];

/// Returns the status verbatim.
pub fn fetch(target: &Target) -> Result<Box<RawValue>, Fault> {
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    let greeted = connection.hello("stdio-bus status", None);
    let status = greeted.and_then(|()| connection.request("_bus/status", ()));
    status.map_err(Fault::timeout_as_unreachable)
}

/// A summary, one line per worker, and what went wrong. Styled for a terminal.
pub fn describe(status: &RawValue) -> String {
    let status = serde_json::from_str::<Value>(status.get()).unwrap_or_default();
    let mut text = headline(&status);
    text.push_str(&traffic(&status));
    let mut rows = vec![row(HEADERS.map(str::to_owned))];
    let mut nodes = vec![&Value::Null];
    for pool in list(&status["pools"]) {
        let workers = list(&pool["workers"]);
        if workers.is_empty() {
            rows.push(worker_row(pool, &Value::Null));
            nodes.push(&Value::Null);
        }
        rows.extend(workers.iter().map(|worker| worker_row(pool, worker)));
        nodes.extend(workers.iter().map(|worker| &worker["node"]));
    }
    add_nodes(&mut rows, &nodes, 1);
    for line in table::lines(&rows) {
        let _ = writeln!(text, "{line}");
    }
    for (name, worker) in down(&status) {
        let _ = writeln!(text, "{name}: {}", why_down(worker));
    }
    for kind in ["refused", "skipped"] {
        let counts = counts(&status[kind], |_| true);
        if !counts.is_empty() {
            let _ = writeln!(text, "{kind} since the start: {counts}");
        }
    }
    // The text above already contains the other counters.
    let counts = counts(&status["counters"], |name| {
        matches!(name, "worker_deaths" | "recycled" | "stalled_clients" | "unauthorized")
    });
    if !counts.is_empty() {
        let _ = writeln!(text, "counted since the start: {counts}");
    }
    text
}

/// Puts a column with the nodes before this one, if there is a node. The first row has the headers.
pub(crate) fn add_nodes(rows: &mut [Vec<Cell>], nodes: &[&Value], at: usize) {
    if nodes.iter().all(|node| node.is_null()) {
        return;
    }
    for (index, (row, node)) in rows.iter_mut().zip(nodes).enumerate() {
        row.insert(at, Cell::new(if index == 0 { "NODE".to_owned() } else { word(node) }));
    }
}

/// Lists the counts that are not zero.
fn counts(all: &Value, wanted: impl Fn(&str) -> bool) -> String {
    let all = all.as_object().into_iter().flatten();
    let counted = all.filter(|(name, count)| **count != 0 && wanted(name));
    let spelled = |name: &str| replace_control(name, '?').replace('_', " ");
    let counted = counted.map(|(name, count)| format!("{} {}", word(count), spelled(name)));
    counted.collect::<Vec<_>>().join(", ")
}

fn headline(status: &Value) -> String {
    let name = status["bus"].as_str().unwrap_or("stdio-bus");
    let mut line = format!("{} {}", replace_control(name, '?'), word(&status["version"]));
    if let Some(name) = status["name"].as_str() {
        let _ = write!(line, ", {}", replace_control(name, '?'));
    }
    if let Some(seconds) = status["uptime_sec"].as_f64() {
        let _ = write!(line, ", up {}", duration(seconds as u64));
    }
    if let Some(pid) = status["pid"].as_u64() {
        let _ = write!(line, ", pid {pid}");
    }
    if status["stopping"] == true {
        line.push_str(", stopping");
    }
    // One of the clients is this one.
    let others = status["clients"].as_u64().map(|clients| clients.saturating_sub(1));
    let counted = [
        ("client", others.map_or(Value::Null, Value::from)),
        ("session", status["sessions"].clone()),
        ("call", status["calls"].clone()),
    ];
    for (noun, count) in counted {
        let _ = write!(line, ", {} {noun}{}", word(&count), plural(&count));
    }
    if let Some(bytes) = status["held_bytes"].as_u64() {
        let _ = write!(line, ", {} held", byte_size(bytes));
    }
    line.push('\n');
    if let Some(config) = status["config"].as_str() {
        let _ = writeln!(line, "config {}", replace_control(config, '?'));
    }
    if let Some(upgraded) = upgraded(&status["upgraded"], status["uptime_sec"].as_f64()) {
        line.push_str(&upgraded);
    }
    for address in list(&status["listening"]) {
        let _ = writeln!(line, "at {}", word(address));
    }
    let (web, link) = (companion("web", &status["web"]), companion("link", &status["link"]));
    let (history, notify) =
        (companion("history", &status["history"]), companion("notify", &status["notify"]));
    line + &web
        + &link
        + &history
        + &not_kept(&status["history"]["counted"])
        + &notify
        + &not_told(&status["notify"]["counted"])
}

/// When another program last took the place of the one before, and for how long nobody was served then.
fn upgraded(last: &Value, uptime_sec: Option<f64>) -> Option<String> {
    let (count, from) = (last["count"].as_u64()?, word(&last["from"]));
    let ago = uptime_sec? - last["at_us"].as_f64()? / 1e6;
    let (ago, pause) = (duration(ago.max(0.0) as u64), latency(last["pause_us"].as_u64()?));
    let times = if count == 1 { String::new() } else { format!(", {count} times in all") };
    Some(format!("upgraded from {from} {ago} ago, paused {pause}{times}\n"))
}

fn plural(count: &Value) -> &'static str {
    if *count == 1 { "" } else { "s" }
}

/// What is not kept of what was said, and why.
fn not_kept(counted: &Value) -> String {
    let missed = counted["missed"].as_u64().unwrap_or_default();
    let missed = if missed > 0 { format!("history lacks {missed} lines\n") } else { String::new() };
    match counted["failing"].as_str() {
        Some(why) => format!("history cannot be written: {}\n{missed}", replace_control(why, '?')),
        None => missed,
    }
}

/// Webhooks that do not take notices now, and why.
fn not_told(counted: &Value) -> String {
    let failing = list(&counted["targets"]).iter().filter(|target| target["failing"].is_string());
    failing
        .map(|target| format!("{} takes no notices: {}\n", word(&target["at"]), word(&target["failing"])))
        .collect()
}

/// The web door, the link to the cluster, the writer of transcripts or the notifier, if there is one.
fn companion(name: &str, it: &Value) -> String {
    match (&it["state"], &it["listening"]) {
        (Value::Null, _) => String::new(),
        (_, Value::String(at)) => {
            let pipes = &it["counted"]["pipes"];
            let pipes =
                pipes.as_u64().map_or_else(String::new, |count| format!(", {count} pipe{}", plural(pipes)));
            format!("{name} at {}{pipes}\n", replace_control(at, '?'))
        }
        (state, _) => {
            let why = if it["last_words"].is_null() { &it["last_exit"] } else { &it["last_words"] };
            format!("{name} {}, {} restarts: {}\n", word(state), word(&it["restarts"]), word(why))
        }
    }
}

/// Rates and latencies, if the bus reports them.
fn traffic(status: &Value) -> String {
    let mut text = String::new();
    let rate = |name: &str| status["rates"][name].as_f64();
    if let (Some(requests), Some(read), Some(written)) =
        (rate("requests"), rate("bytes_in"), rate("bytes_out"))
    {
        let (read, written) = (byte_size(read as u64), byte_size(written as u64));
        let _ = writeln!(text, "per second: {requests:.1} requests, {read} in, {written} out");
    }
    for (measured, what, whats) in [
        ("latency_us", "answer", "answers"),
        ("ttft_us", "turn to its first update", "turns to their first update"),
    ] {
        let measured = &status[measured];
        let percentiles = ["p50", "p90", "p99", "max"].map(|part| measured[part].as_u64());
        if let [Some(half), Some(most), Some(nearly_all), Some(longest)] =
            percentiles.map(|us| us.map(latency))
        {
            let what = if measured["count"] == 1 { what } else { whats };
            let count = word(&measured["count"]);
            let _ = writeln!(
                text,
                "last minute: {count} {what}, p50 {half}, p90 {most}, p99 {nearly_all}, at most {longest}"
            );
        }
    }
    text
}

fn worker_name(pool: &Value, worker: &Value) -> String {
    match &worker["worker"] {
        Value::Null => word(&pool["id"]),
        number => format!("{}/{}", word(&pool["id"]), word(number)),
    }
}

/// The workers that rest or are broken: their names, and what the bus says about them.
fn down(status: &Value) -> impl Iterator<Item = (String, &Value)> {
    list(&status["pools"]).iter().flat_map(|pool| {
        let workers = list(&pool["workers"]).iter().filter(|worker| is_down(worker));
        workers.map(|worker| (worker_name(pool, worker), worker))
    })
}

/// Whether a worker waits to be started again after a failure, or is not started any more.
pub fn is_down(worker: &Value) -> bool {
    matches!(worker["state"].as_str(), Some("resting" | "broken"))
}

/// Why a worker is down, on one line: its last words say more than how its process ended.
pub fn why_down(worker: &Value) -> String {
    let told = ["last_words", "last_exit"].into_iter().find_map(|key| worker[key].as_str());
    let why = told.map(str::trim).filter(|why| !why.is_empty()).unwrap_or("it does not start");
    replace_control(&why.replace(['\n', '\r'], " | "), '?')
}

fn worker_row(pool: &Value, worker: &Value) -> Vec<Cell> {
    let name = worker_name(pool, worker);
    let up = worker["up_sec"].as_u64().map_or_else(|| "-".to_owned(), duration);
    let field = |key: &str| word(&worker[key]);
    let [state, pid, sessions] = ["state", "pid", "sessions"].map(field);
    let [calls, restarts, mut last_exit] = ["calls", "restarts", "last_exit"].map(field);
    let memory = worker["rss_bytes"].as_u64().map_or_else(|| "-".to_owned(), short_size);
    let cpu =
        worker["cpu_percent"].as_f64().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}%"));
    if let Some(why) = worker["last_recycled"].as_str() {
        last_exit = format!("recycled: {}", replace_control(why, '?'));
    }
    row([name, state, pid, up, sessions, calls, memory, cpu, restarts, last_exit])
}

fn row(texts: [String; 10]) -> Vec<Cell> {
    let [name, state, pid, up, sessions, calls, memory, cpu, restarts, last_exit] = texts;
    let style = match state.as_str() {
        "broken" => AnsiColor::Red.on_default(),
        "resting" => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    };
    let mut cells = vec![Cell::new(name), Cell::new(state).styled(style)];
    cells.extend([pid, up, sessions, calls, memory, cpu, restarts].map(Cell::number));
    cells.push(Cell::new(last_exit));
    cells
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => replace_control(text, '?'),
        other => replace_control(&other.to_string(), '?'),
    }
}

pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Rounded for people.
fn latency(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ => duration(us / 1_000_000),
    }
}

pub(crate) fn byte_size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// The same in at most five characters.
pub(crate) fn short_size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) if bytes < 10 * unit => format!("{:.1}{name}", bytes as f64 / unit as f64),
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use anstream::adapter::strip_str;

    use super::*;
    use crate::fake_bus::FakeBus;
    use crate::picture;

    fn styled(status: &str) -> String {
        describe(&RawValue::from_string(status.to_owned()).unwrap())
    }

    fn described(status: &str) -> String {
        strip_str(&styled(status)).to_string()
    }

    #[test]
    fn the_status_is_fetched_verbatim() {
        let bus = FakeBus::answering(&[&[r#"{"jsonrpc":"2.0","id":1,"result":{"clients": 1}}"#]]);
        assert_eq!(fetch(&bus.target()).unwrap().get(), r#"{"clients": 1}"#);
        assert_eq!(bus.received(), [r#"{"jsonrpc":"2.0","id":1,"method":"_bus/status"}"#]);
    }

    const TWO_POOLS: &str = r#"{"bus":"stdio-bus","version":"0.1.0","uptime_sec":3723.5,"stopping":false,"clients":2,
        "pid":4711,"config":"/srv/bus.json",
        "calls":2,"sessions":5,"held_bytes":1572864,"listening":["tcp://127.0.0.1:9000"],
        "rates":{"requests":12.34,"bytes_in":2048.7,"bytes_out":100.0},
        "latency_us":{"p50":850,"p90":1500,"p99":2500000,"max":90000000,"count":740},
        "ttft_us":{"p50":9000,"p90":9000,"p99":9000,"max":9000,"count":1},
        "refused":{"busy":3},"skipped":{"stray_lines":7,"too_large":1},"pools":[
        {"id":"claude","mode":"shared","workers":[
          {"worker":0,"state":"up","pid":424242,"up_sec":3700,"sessions":5,"calls":2,"restarts":0,"last_exit":null,
           "rss_bytes":327155712,"cpu_percent":12.5,
           "last_recycled":"idle"},
          {"worker":1,"state":"resting","pid":null,"sessions":0,"calls":0,"restarts":12,"last_exit":"signal 9"},
          {"worker":2,"state":"broken","pid":null,"sessions":0,"calls":0,"restarts":5,"last_exit":"exit 1",
           "last_words":"exit 1; stderr: no key\nset KEY"}]},
        {"id":"solo","mode":"dedicated","workers":[]}],
        "counters":{"stray_lines":7,"requests":9000,"recycled":2,"worker_deaths":17,"unauthorized":0}}"#;

    #[test]
    fn the_text_has_a_summary_and_one_line_per_worker() {
        let text = described(TWO_POOLS);
        let expected = "
stdio-bus 0.1.0, up 1h 2m, pid 4711, 1 client, 5 sessions, 2 calls, 1.5 MiB held
config /srv/bus.json
at tcp://127.0.0.1:9000
per second: 12.3 requests, 2.0 KiB in, 100 B out
last minute: 740 answers, p50 850 us, p90 1.5 ms, p99 2.5 s, at most 1m 30s
last minute: 1 turn to its first update, p50 9.0 ms, p90 9.0 ms, p99 9.0 ms, at most 9.0 ms
WORKER    STATE       PID     UP  SESSIONS  CALLS  MEMORY  CPU  RESTARTS  LAST EXIT
claude/0  up       424242  1h 1m         5      2    312M  12%         0  recycled: idle
claude/1  resting       -      -         0      0       -    -        12  signal 9
claude/2  broken        -      -         0      0       -    -         5  exit 1
solo      -             -      -         -      -       -    -         -  -
claude/1: signal 9
claude/2: exit 1; stderr: no key | set KEY
refused since the start: 3 busy
skipped since the start: 7 stray lines, 1 too large
counted since the start: 2 recycled, 17 worker deaths
";
        assert_eq!(text, expected.trim_start());
        assert!(text.lines().all(|line| line.len() <= 96));
    }

    #[test]
    fn the_picture_of_the_status_in_the_docs_is_current() {
        let mut terminal = vt100::Parser::new(NonZero::new(30).unwrap(), NonZero::new(100).unwrap(), 0);
        let text = format!("$ stdio-bus status\n{}", styled(TWO_POOLS));
        terminal.process(text.replace('\n', "\r\n").as_bytes());
        picture::is_current("status.svg", &picture::of_terminal(terminal.screen()));
    }

    #[test]
    fn the_web_door_is_named_where_it_listens_or_why_it_does_not() {
        let counted = r#"{"missed":3,"failing":"disk full"}"#;
        let full =
            described(&format!(r#"{{"history":{{"state":"up","listening":"/h","counted":{counted}}}}}"#));
        assert!(
            full.contains("history at /h\nhistory cannot be written: disk full\nhistory lacks 3 lines\n"),
            "{full}"
        );
        let up = described(r#"{"web":{"state":"up","listening":"http://127.0.0.1:9001"}}"#);
        assert!(up.contains("\nweb at http://127.0.0.1:9001\n"), "{up}");
        let down = described(
            r#"{"web":{"state":"resting","restarts":2,"last_exit":"exit 1","last_words":"in use"}}"#,
        );
        assert!(down.contains("\nweb resting, 2 restarts: in use\n"), "{down}");
    }

    #[test]
    fn an_upgrade_is_shown_on_one_line() {
        let last = r#"{"count":3,"from":"0.1.0","at_us":60000000,"pause_us":12345}"#;
        let text = described(&format!(r#"{{"uptime_sec":180,"upgraded":{last}}}"#));
        assert!(text.contains("\nupgraded from 0.1.0 2m 0s ago, paused 12.3 ms, 3 times in all\n"), "{text}");
    }

    #[test]
    fn on_a_terminal_unhealthy_workers_are_coloured() {
        let text = styled(TWO_POOLS);
        assert!(
            text.contains("\x1b[33mresting\x1b[0m  ") && text.contains("\x1b[31mbroken \x1b[0m  "),
            "{text:?}"
        );
        assert_eq!(text.matches("\x1b[").count(), 4);
    }

    #[test]
    fn missing_and_unexpected_fields_are_harmless() {
        let headers = "WORKER  STATE  PID  UP  SESSIONS  CALLS  MEMORY  CPU  RESTARTS  LAST EXIT\n";
        for unusual in ["null", "7", "[]", "{}", r#"{"pools":{},"counters":[],"uptime_sec":"x","rates":7}"#] {
            assert_eq!(
                described(unusual),
                format!("stdio-bus -, - clients, - sessions, - calls\n{headers}"),
                "{unusual}"
            );
        }
        let text = described("{\"bus\":\"\\u001b[2J\",\"pools\":[7,{\"id\":\"a\\nb\",\"workers\":[null]}]}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn durations_and_sizes_are_readable() {
        let durations = [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h 0m"), (90_061, "1d 1h")];
        assert!(durations.into_iter().all(|(seconds, text)| duration(seconds) == text));
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB")];
        assert!(sizes.into_iter().all(|(bytes, text)| byte_size(bytes) == text));
        let short = [(0, "0B"), (2048, "2.0K"), (327_155_712, "312M"), (3 << 29, "1.5G")];
        assert!(short.into_iter().all(|(bytes, text)| short_size(bytes) == text));
    }
}
