//! `idle`: what the bus costs before it is asked for anything, and how few system calls a message needs.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::address::Address;
use crate::args::Measured;
use crate::bus::{self, Bus, PATIENCE, echo};
use crate::client::Client;
use crate::procfs;
use crate::report::Report;
use crate::table::median;

const CONNECTIONS: usize = 5_000;
const CONNECTIONS_MAX: usize = 10_010;
const STARTS: usize = 15;
const ROUND_TRIPS: usize = 1_000;
/// Requests in one write, where they are pipelined.
const BATCH: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let mut report = Report::default();
    for figure in [starts, connects, waits, system_calls] {
        if let Err(error) = figure(&stdio_bus, &mut report) {
            report.check("idle", error, "it can be tried", false);
        }
    }
    report.finish(args.measured.json)
}

pub(crate) fn config() -> Value {
    let mut config = bus::config(&[echo("echo", 1, &[])]);
    config["limits"] = json!({ "max_clients": CONNECTIONS_MAX });
    config
}

fn starts(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let _bus = Bus::start(stdio_bus, &config())?;
        times.push(began.elapsed().as_secs_f64());
    }
    let time = Duration::from_secs_f64(median(times));
    report.time_at_most("start until it listens, median", time, Duration::from_millis(10));
    Ok(())
}

/// `connect`, from its start to the first answer that came through it.
fn connects(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let Address::Tcp { host, port } = bus.address() else {
        return Err(io::Error::other("it listens elsewhere"));
    };
    // The agent starts with the first request, and is not what is measured.
    bus.client()?.ask("hello", json!({}))?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let mut command = Command::new(stdio_bus);
        command.args(["connect", "--tcp", &format!("{host}:{port}")]);
        let mut connect = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut client = Client::of_child(&mut connect);
        client.ask("hello", json!({}))?;
        times.push(began.elapsed().as_secs_f64());
        drop(client);
        connect.wait()?;
    }
    let time = Duration::from_secs_f64(median(times));
    report.time_at_most("connect until the first byte, median", time, Duration::from_millis(20));
    Ok(())
}

fn waits(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let cost = IdleCost::measure(&bus, CONNECTIONS, Duration::from_secs(10))?;
    if cost.held < CONNECTIONS {
        return Err(io::Error::other("not all connections are there"));
    }
    let megabytes = format!("{:.2} MB", cost.bus_bytes as f64 / 1e6);
    report.check("idle bus: memory", megabytes, "<= 6 MB", cost.bus_bytes <= 6_000_000);
    let each = cost.bytes_each;
    report.check("idle connection: memory", format!("{each} B"), "<= 1500 B", each <= 1500);
    report.share_at_most(&format!("{CONNECTIONS} connections: processor time"), cost.cpu_share, 0.1);
    Ok(())
}

/// What connections cost that send nothing.
pub(crate) struct IdleCost {
    /// How many of them the bus has accepted: all or none.
    pub(crate) held: usize,
    /// The memory of the bus before they came.
    pub(crate) bus_bytes: u64,
    pub(crate) bytes_each: u64,
    /// The share of one processor.
    pub(crate) cpu_share: f64,
}

impl IdleCost {
    pub(crate) fn measure(bus: &Bus, count: usize, length: Duration) -> io::Result<IdleCost> {
        let mut watcher = bus.client()?;
        watcher.status()?;
        let bus_bytes = procfs::resident_bytes(bus.pid())?;
        let _connections = (0..count).map(|_| bus.connect()).collect::<io::Result<Vec<_>>>()?;
        let held = if bus.until_clients(&mut watcher, count + 1) { count } else { 0 };
        let bytes_each = procfs::resident_bytes(bus.pid())?.saturating_sub(bus_bytes) / count as u64;
        let cpu_before = procfs::cpu_time(bus.pid())?;
        thread::sleep(length);
        let cpu = procfs::cpu_time(bus.pid())?.saturating_sub(cpu_before);
        let cpu_share = cpu.as_secs_f64() / length.as_secs_f64();
        Ok(IdleCost { held, bus_bytes, bytes_each, cpu_share })
    }
}

/// Counts with strace. What starting and stopping need cancels out in the difference of two runs.
fn system_calls(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        report.note("calls of the system", "no strace: not counted");
        return Ok(());
    }
    let [none, one_by_one, pipelined] = [(0, 1), (ROUND_TRIPS, 1), (ROUND_TRIPS, BATCH)]
        .map(|(turns, batch)| traced(stdio_bus, turns, batch));
    let none = none?;
    let each = |calls: u64, messages: usize| calls.saturating_sub(none) as f64 / messages as f64;
    let one_by_one = each(one_by_one?, ROUND_TRIPS);
    let pipelined = each(pipelined?, 2 * ROUND_TRIPS * BATCH);
    // The system may wake the bus once more somewhere in a run.
    let text = format!("{one_by_one:.2}");
    report.check("calls of the system a round trip, 1x1", text, "<= 6", one_by_one <= 6.05);
    let text = format!("{pipelined:.3}");
    report.check(&format!("calls of the system a message, 1x{BATCH}"), text, "< 1", pipelined < 1.0);
    Ok(())
}

/// The system calls of a bus from start to exit, while `batch` requests at once are sent and answered `turns` times.
fn traced(stdio_bus: &Path, turns: usize, batch: usize) -> io::Result<u64> {
    let folder = TempDir::with_prefix("bus-bench-")?;
    let (wrapper, counts) = (folder.path().join("traced"), folder.path().join("counts"));
    // The tracer runs beside the bus (-D), so that the process we start is the bus. Only its event loop is traced.
    let script =
        format!("#!/bin/sh\nexec strace -D -c -o '{}' '{}' \"$@\"\n", counts.display(), stdio_bus.display());
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o700))?;
    let mut bus = Bus::start(&wrapper, &config())?;
    let mut client = bus.client()?;
    client.ask("hello", json!({}))?;
    let requests = rpc::write::request(2, "echo", "x".repeat(140)).repeat(batch);
    for _ in 0..turns {
        client.send(&requests)?;
        for _ in 0..batch {
            client.line()?;
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

/// The number of calls. The last line of a summary has share, seconds, microseconds a call, calls, errors and "total".
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
