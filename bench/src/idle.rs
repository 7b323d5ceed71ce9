//! `idle`: what the bus costs before anybody asks it for anything, and how few calls of the system it needs then.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::Measured;
use crate::bounds::raise_open_files;
use crate::cost;
use crate::goal::Sheet;
use crate::print::complain;
use crate::stage::{Bus, echo};
use crate::table::median;
use crate::wire::Target;

const CONNECTIONS: usize = 5_000;
const STARTS: usize = 15;
const ROUND_TRIPS: usize = 1_000;
/// Requests in one write, where they are pipelined.
const BATCH: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let mut sheet = Sheet::default();
    if let Err(error) = raise_open_files() {
        return complain(format_args!("cannot open as many files as are needed: {error}"), 1);
    }
    for figure in [starts, connects, waits, calls_of_the_system] {
        if let Err(error) = figure(&stdio_bus, &mut sheet) {
            sheet.judge("idle", error, "it can be tried", false);
        }
    }
    sheet.finish(args.measured.json)
}

fn config() -> Value {
    json!({
        "listen": ["tcp://127.0.0.1:0"],
        "pools": [echo("echo", 1, &[])],
        "limits": { "max_clients": CONNECTIONS + 10 },
    })
}

fn starts(stdio_bus: &Path, sheet: &mut Sheet) -> io::Result<()> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let _bus = Bus::start(stdio_bus, &config())?;
        times.push(began.elapsed().as_secs_f64());
    }
    let time = Duration::from_secs_f64(median(times));
    sheet.time_at_most("start until it listens, median", time, Duration::from_millis(10));
    Ok(())
}

/// `connect`, from its start to the first byte of an answer that came through it.
fn connects(stdio_bus: &Path, sheet: &mut Sheet) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let Target::Tcp(place) = bus.door() else { return Err(io::Error::other("it listens elsewhere")) };
    // The agent starts when first asked, and is not what is measured.
    bus.client()?.ask("1", "hello", json!({}))?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let mut command = Command::new(stdio_bus);
        command.args(["connect", "--tcp", place]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut connect = command.spawn()?;
        if let Some(stdin) = &mut connect.stdin {
            stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\",\"params\":{}}\n")?;
        }
        if let Some(stdout) = &mut connect.stdout {
            stdout.read_exact(&mut [0])?;
        }
        times.push(began.elapsed().as_secs_f64());
        drop(connect.stdin.take());
        connect.wait()?;
    }
    let time = Duration::from_secs_f64(median(times));
    sheet.time_at_most("connect until the first byte, median", time, Duration::from_millis(20));
    Ok(())
}

fn waits(stdio_bus: &Path, sheet: &mut Sheet) -> io::Result<()> {
    let unseen = || io::Error::other("the bus cannot be seen in /proc");
    let bus = Bus::start(stdio_bus, &config())?;
    let mut watcher = bus.client()?;
    watcher.status()?;
    let before = cost::resident_bytes(bus.pid()).ok_or_else(unseen)?;
    let megabytes = |bytes: u64| format!("{:.2} MB", bytes as f64 / 1e6);
    sheet.judge("idle bus: memory", megabytes(before), "<= 6 MB", before <= 6_000_000);
    let idle = (0..CONNECTIONS).map(|_| bus.door().open()).collect::<io::Result<Vec<_>>>()?;
    let all = |status: Value| status["clients"].as_u64() > Some(CONNECTIONS as u64);
    if !bus.until(PATIENCE, |_| watcher.status().is_ok_and(all)) {
        return Err(io::Error::other("not all connections are there"));
    }
    let grown = cost::resident_bytes(bus.pid()).ok_or_else(unseen)?.saturating_sub(before);
    let each = grown / CONNECTIONS as u64;
    sheet.judge("idle connection: memory", format!("{each} B"), "<= 1500 B", each <= 1500);
    let length = Duration::from_secs(10);
    let spent = cost::cpu_time(bus.pid()).ok_or_else(unseen)?;
    thread::sleep(length);
    let spent = cost::cpu_time(bus.pid()).ok_or_else(unseen)?.saturating_sub(spent);
    let share = spent.as_secs_f64() / length.as_secs_f64();
    sheet.share_at_most(&format!("{} connections: processor time", idle.len()), share, 0.1);
    Ok(())
}

/// Counted by strace; what starting and stopping need falls out of the difference of two runs.
fn calls_of_the_system(stdio_bus: &Path, sheet: &mut Sheet) -> io::Result<()> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        sheet.tell("calls of the system", "no strace: not counted");
        return Ok(());
    }
    let [none, one_by_one, pipelined] = [(0, 1), (ROUND_TRIPS, 1), (ROUND_TRIPS, BATCH)]
        .map(|(turns, batch)| traced(stdio_bus, turns, batch));
    let none = none?;
    let each = |calls: u64, messages: usize| calls.saturating_sub(none) as f64 / messages as f64;
    let one_by_one = each(one_by_one?, ROUND_TRIPS);
    let pipelined = each(pipelined?, 2 * ROUND_TRIPS * BATCH);
    // Somewhere in a run the system may wake it once more.
    let text = format!("{one_by_one:.2}");
    sheet.judge("calls of the system a round trip, 1x1", text, "<= 6", one_by_one <= 6.05);
    let text = format!("{pipelined:.3}");
    sheet.judge(&format!("calls of the system a message, 1x{BATCH}"), text, "< 1", pipelined < 1.0);
    Ok(())
}

/// The calls of a bus in its life, of which so many times so many requests were sent at once and answered.
fn traced(stdio_bus: &Path, turns: usize, batch: usize) -> io::Result<u64> {
    let folder = TempDir::with_prefix("bus-bench-")?;
    let (wrapper, counts) = (folder.path().join("traced"), folder.path().join("counts"));
    // The tracer runs beside the bus (-D), so that the process we start is the bus; only its loop is traced.
    let script =
        format!("#!/bin/sh\nexec strace -D -c -o '{}' '{}' \"$@\"\n", counts.display(), stdio_bus.display());
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o700))?;
    let mut bus = Bus::start(&wrapper, &config())?;
    let mut client = bus.client()?;
    client.ask("1", "hello", json!({}))?;
    let request =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"echo\",\"params\":\"{}\"}}\n", "x".repeat(140));
    let requests = request.repeat(batch);
    for _ in 0..turns {
        client.send(requests.as_bytes())?;
        for _ in 0..batch {
            client.line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        }
    }
    drop(client);
    bus.signal(Signal::SIGTERM)?;
    bus.exit_within(PATIENCE).ok_or_else(|| io::Error::other("the traced bus does not stop"))?;
    let mut text = String::new();
    bus.until(PATIENCE, |_| {
        text = fs::read_to_string(&counts).unwrap_or_default();
        total(&text).is_some()
    });
    total(&text).ok_or_else(|| io::Error::other(format!("strace has not counted: {}", bus.log())))
}

/// The last line of a summary: share, seconds, microseconds a call, calls, errors if any, "total".
fn total(summary: &str) -> Option<u64> {
    let line = summary.lines().find(|line| line.trim_end().ends_with(" total"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_a_summary_is_found_with_and_without_errors() {
        let summary = "% time seconds usecs/call calls errors syscall\n 99.0 0.1 2 28 1 read\n";
        assert_eq!(
            total(&format!("{summary}100.00    0.000000           0        29         1 total\n")),
            Some(29)
        );
        assert_eq!(
            total(&format!("{summary}100.00    0.000000           0        29           total\n")),
            Some(29)
        );
        assert_eq!(total(summary), None);
    }
}
