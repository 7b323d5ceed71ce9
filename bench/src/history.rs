//! `history`: what it costs that everything said is kept, and how fast it is found again.
//!
//! The first part measures the CPU time of the bus for a line with and without a writer of transcripts, in turns. The
//! second compares the length of a transcript with what its client sent and was sent. The third makes a folder with
//! many transcripts and a gigabyte of words, and times the commands that look into it.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rpc::write;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::{Measured, Turns};
use crate::bus::{self, Bus, PATIENCE, echo};
use crate::client::{Client, prompt};
use crate::print::complain;
use crate::procfs::cpu_time;
use crate::report::Report;
use crate::transcript;

/// The updates of a turn, and their lengths.
const UPDATES: usize = 2_000;
const LENGTHS: [usize; 2] = [100, 8 << 10];
/// What one more hearer of a line may cost, and what would be a failure: machines are noisy, and a line is copied.
const COST_MOST: Duration = Duration::from_nanos(300);
const COST_GROSS: Duration = Duration::from_micros(3);
const COST_GROSS_A_BYTE: Duration = Duration::from_nanos(1);
/// The lengths of the texts whose transcripts are compared with what was sent.
const TEXTS: [usize; 3] = [20, 100, 8 << 10];
const LIST_MOST: Duration = Duration::from_millis(100);
const SEARCH_MOST: Duration = Duration::from_millis(200);
const WORDS: [&str; 16] = [
    "build", "linker", "error", "the", "tests", "server", "module", "function", "returns", "value", "please",
    "fix", "file", "line", "config", "agent",
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many transcripts there are
    #[arg(long, default_value_t = 10_000)]
    sessions: usize,
    /// How many megabytes they have together
    #[arg(long, default_value_t = 1024)]
    megabytes: usize,
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let mut report = Report::default();
    let done = costs(&stdio_bus, args.turns.rounds as usize, &mut report)
        .and_then(|()| lengths(&stdio_bus, &mut report))
        .and_then(|()| finds(&stdio_bus, args, &mut report));
    match done {
        Ok(()) => report.finish(args.measured.json),
        Err(error) => complain(format_args!("{}: {error}", stdio_bus.display()), 1),
    }
}

fn costs(stdio_bus: &Path, rounds: usize, report: &mut Report) -> io::Result<()> {
    for length in LENGTHS {
        let pool = || echo("echo", 1, &["--chunks", &UPDATES.to_string()]);
        let mut sides =
            [open(stdio_bus, pool(), json!(false))?, open(stdio_bus, pool(), transcript::in_folder())?];
        let mut least = [f64::INFINITY; 2];
        for _ in 0..=rounds {
            for ((bus, owner, session), least) in sides.iter_mut().zip(&mut least) {
                *least = least.min(turn(bus, owner, session, length)?);
            }
        }
        let [without, with] = least;
        let subject = format!("a line of {length} bytes that is kept, beside one that is not");
        let more = Duration::from_secs_f64((with - without).max(0.0) / 1e6);
        let gross = COST_GROSS + COST_GROSS_A_BYTE * length as u32;
        report.time_within(&subject, more, COST_MOST, gross);
        report.note(&format!("{subject}, each"), format!("{with:.3} us, {without:.3} us"));
    }
    Ok(())
}

fn open(stdio_bus: &Path, pool: Value, history: Value) -> io::Result<(Bus, Client, String)> {
    let is_kept = history != false;
    let mut config = bus::config(&[pool]);
    config["history"] = history;
    let bus = Bus::start(stdio_bus, &config)?;
    let mut owner = bus.client()?;
    owner.initialize()?.map_err(io::Error::other)?;
    let began = Instant::now();
    while is_kept && owner.ask("_bus/status", json!({}))?["history"]["state"] != "up" {
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("nobody writes"));
        }
    }
    let session = owner.open_session()?;
    Ok((bus, owner, session))
}

/// The CPU time of the bus for a line of a turn.
fn turn(bus: &Bus, owner: &mut Client, session: &str, length: usize) -> io::Result<f64> {
    let before = cpu_time(bus.pid())?;
    owner.prompt(session, &"x".repeat(UPDATES * length))?;
    while !owner.line()?.windows(10).any(|part| part == b"stopReason") {}
    Ok((cpu_time(bus.pid())? - before).as_secs_f64() * 1e6 / UPDATES as f64)
}

/// How long a transcript is beside the lines that the client of its session sent and was sent.
fn lengths(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    for length in TEXTS {
        let puppet = json!({ "id": "puppet", "command": env::current_exe()?, "args": ["puppet"] });
        let (bus, mut owner, session) = open(stdio_bus, puppet, transcript::in_folder())?;
        let content = json!({ "type": "text", "text": "x".repeat(length) });
        let mut said = update(json!({ "sessionUpdate": "agent_message_chunk", "content": content }));
        said["params"]["sessionId"] = "@session".into();
        let script = json!({ "say": [{ "text": format!("{said}\n"), "times": UPDATES }] });
        let asks = write::request("prompt", "session/prompt", prompt(&session, &script.to_string()));
        owner.send(&asks)?;
        let mut wire = asks.len();
        loop {
            let line = owner.line()?;
            wire += line.len() + 1;
            if line.windows(10).any(|part| part == b"stopReason") {
                break;
            }
        }
        transcript::until_it_ends_with(&bus, "stopReason")?;
        let disk = fs::metadata(transcript::path(&bus)?)?.len();
        let share = 100.0 * disk as f64 / wire as f64;
        let got = format!("{share:.0} % ({disk} of {wire} bytes)");
        report.note(&format!("a transcript beside the wire, {UPDATES} texts of {length} bytes"), got);
    }
    Ok(())
}

fn finds(stdio_bus: &Path, args: &Args, report: &mut Report) -> io::Result<()> {
    let dir = TempDir::with_prefix("bus-bench-")?;
    let folder = dir.path().join("history");
    fs::create_dir(&folder)?;
    let bytes = (args.megabytes << 20) / args.sessions.max(1);
    for number in 0..args.sessions {
        transcript(&folder, number, bytes)?;
    }
    let config = dir.path().join("bus.json");
    let text = json!({ "history": { "folder": folder }, "pools": [{ "id": "p", "command": "true" }] });
    fs::write(&config, text.to_string())?;
    let timed = |words: &[&str]| -> io::Result<Duration> {
        let began = Instant::now();
        let mut command = Command::new(stdio_bus);
        command.args(["sessions"]).args(words).args(["--json", "--config"]).arg(&config);
        command.env("XDG_STATE_HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path()).stdin(Stdio::null());
        let output = command.output()?;
        let is_there = output.status.success() && output.stdout.len() > 2;
        is_there.then(|| began.elapsed()).ok_or_else(|| {
            io::Error::other(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)))
        })
    };
    let least = |words: &[&str]| (0..5).map(|_| timed(words)).reduce(|one, other| Ok(one?.min(other?)));
    let first = timed(&["--all"])?;
    report.note(&format!("the first look at {} MB", args.megabytes), format!("{:.1} s", first.as_secs_f64()));
    let listed = least(&["--all"]).unwrap_or(Ok(Duration::MAX))?;
    let subject = format!("sessions --all with {} past ones", args.sessions);
    report.time_at_most(&subject, listed, LIST_MOST);
    let rare = format!("rare{}", args.sessions / 2);
    for (kind, words) in [
        ("a rare word", &["search", rare.as_str()][..]),
        ("a word that is everywhere", &["search", "linker"]),
        ("two words", &["search", "linker", "agent"]),
        ("a phrase", &["search", "linker error"]),
    ] {
        let took = least(words).unwrap_or(Ok(Duration::MAX))?;
        let subject = format!("search in {} MB, {kind}", args.megabytes);
        report.time_at_most(&subject, took, SEARCH_MOST);
    }
    Ok(())
}

/// A transcript of about this many bytes, in the format of the files.
fn transcript(folder: &Path, number: usize, bytes: usize) -> io::Result<()> {
    let file = File::create(folder.join(format!("{number:016x}.ndjson")))?;
    let mut file = BufWriter::new(file);
    let opened = "2026-11-01T08:00:00.000Z";
    let header = json!({ "v": 1, "session": format!("t.{number}"), "agent_session": number.to_string(), "pool": "p",
        "agent": "bench", "cwd": "/srv", "node": null, "opened": opened });
    writeln!(file, "{header}")?;
    let (mut written, mut n) = (0, 0);
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut words = |count: usize| {
        let mut text = format!("rare{number}");
        for _ in 0..count {
            text.push(' ');
            text.push_str(WORDS[random.usize(..WORDS.len())]);
        }
        text
    };
    while written < bytes {
        n += 1;
        // As in real ones: a prompt, an answer, and tools that say most of it.
        let message = match n % 4 {
            1 => json!({ "jsonrpc": "2.0", "id": n, "method": "session/prompt", "params": { "sessionId": "x",
                "prompt": [{ "type": "text", "text": words(40) }] } }),
            2 => update(json!({ "sessionUpdate": "agent_message_chunk",
                "content": { "type": "text", "text": words(200) } })),
            _ => {
                let content =
                    json!([{ "type": "content", "content": { "type": "text", "text": words(1500) } }]);
                let (title, raw_input) = (words(5), json!({ "path": "/srv/a.rs" }));
                update(json!({ "sessionUpdate": "tool_call", "toolCallId": n.to_string(), "title": title,
                    "rawInput": raw_input, "content": content }))
            }
        };
        let line = json!({ "at": opened, "by": if n % 4 == 1 { "zed" } else { "agent" }, "n": n, "message": message });
        let line = line.to_string();
        written += line.len() + 1;
        writeln!(file, "{line}")?;
    }
    file.flush()
}

fn update(update: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "x", "update": update } })
}
