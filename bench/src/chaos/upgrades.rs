//! `chaos --upgrade`: the bus becomes another program again and again while all clients ask and check; then once more
//! with many clients, sessions and long logs, for the time in which nobody is served.

use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kernel_shell::raise_open_files;
use serde_json::{Value, json};

use super::checking_client::{Counts, Kills};
use super::phase::{Holdings, run_clients};
use super::{WORKERS, compare_holdings, config, no_errors, report_answers};
use crate::bus::{self, Bus, PATIENCE};
use crate::client::Client;
use crate::print::Progress;
use crate::report::{Report, mebibytes, time};

const UPGRADE_EVERY: Duration = Duration::from_secs(1);
/// For the pause of a bus with much to hand over.
const MANY_CLIENTS: usize = 1000;
const MAX_LOG_BYTES: usize = 128 << 20;
/// What the pause should be. It depends on what else the machine does, so it is only told that it is longer.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// Longer than that is a fault on any machine.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Of each prompt about twice its length is logged, itself and the answer, which makes more than 64 MiB of all of them.
const TEXT_BYTES: usize = 17 << 10;
const PROMPTS: usize = 2;

struct Upgraded {
    counts: Counts,
    times: u64,
    longest: Duration,
    faults: Vec<String>,
}

/// Plays it with two names of one program, or with another program.
pub(super) fn play(
    stdio_bus: &Path,
    other: Option<&Path>,
    seconds: Duration,
    report: &mut Report,
) -> io::Result<()> {
    let bus = Bus::start_lean(stdio_bus, &config(None))?;
    bus.until_up(WORKERS, PATIENCE)?;
    let there = fs::canonicalize(find(stdio_bus))?;
    let back = bus.folder().join("next");
    std::os::unix::fs::symlink(fs::canonicalize(find(other.unwrap_or(stdio_bus)))?, &back)?;
    let mut watcher = bus.client()?;
    bus.until_clients(&mut watcher, 1);
    let before = Holdings::of(&bus, &mut watcher)?;
    let progress = Progress::on_stderr("the bus becomes another program".to_owned());
    let upgraded = upgrades(&bus, [&back, &there], seconds, progress)?;
    report_answers(report, "upgrades", &upgraded.counts);
    no_errors(report, "upgrades", &upgraded.counts);
    report.note("upgrades", upgraded.times);
    report.note("upgrades: the longest pause", time(upgraded.longest));
    report.check("upgrades: gone wrong", upgraded.faults.len(), 0, upgraded.faults.is_empty());
    if let Some(first) = upgraded.faults.first() {
        report.note("upgrades: first of these", first);
    }
    compare_holdings(report, &bus, &mut watcher, &before)?;
    pause_with_much(stdio_bus, report)
}

/// A program in PATH has no folder.
fn find(program: &Path) -> std::path::PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| program.to_owned())
}

fn upgrades(bus: &Bus, programs: [&Path; 2], length: Duration, progress: Progress) -> io::Result<Upgraded> {
    let (counts, (times, longest, faults)) =
        run_clients(bus, length, &Kills::default(), progress, |until| {
            let (mut times, mut longest, mut faults) = (0, Duration::ZERO, Vec::new());
            let mut watcher = bus.client()?;
            let workers = processes(&watcher.status()?);
            let mut next = Instant::now();
            // In the end it is the program again that it was, so that what it holds can be compared.
            while Instant::now() < until || (times % 2 == 1 && faults.is_empty()) {
                let program = programs[times as usize % programs.len()];
                match watcher.ask_or_reason("_bus/upgrade", json!({ "binary": program }))? {
                    Ok(told) => {
                        times += 1;
                        longest = longest.max(pause_of(&told));
                        if told["pid"] != bus.pid() {
                            faults.push(format!("another process says {told}"));
                        }
                    }
                    Err(why) => faults.push(why),
                }
                let status = watcher.status()?;
                if processes(&status) != workers {
                    faults.push(format!("the workers were {workers:?} and are {:?}", processes(&status)));
                }
                if status["upgraded"]["count"] != times {
                    faults.push(format!("after {times} upgrades it says {}", status["upgraded"]));
                }
                next += UPGRADE_EVERY;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok((times, longest, faults))
        })?;
    Ok(Upgraded { counts, times, longest, faults })
}

/// The process of every worker, whatever it does.
fn processes(status: &Value) -> Vec<u64> {
    let pools = status["pools"].as_array().into_iter().flatten();
    let workers = pools.flat_map(|pool| pool["workers"].as_array().into_iter().flatten());
    workers.filter_map(|worker| worker["pid"].as_u64()).collect()
}

fn pause_of(told: &Value) -> Duration {
    Duration::from_micros(told["pause_us"].as_u64().unwrap_or(u64::MAX))
}

/// How long nobody is served if there is much to hand over.
fn pause_with_much(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    raise_open_files()?;
    let echo = bus::echo("echo", WORKERS, &["--chunks", "1"]);
    let mut config = bus::config(&[echo]);
    config["limits"] = json!({ "max_log_bytes": MAX_LOG_BYTES });
    let bus = Bus::start(stdio_bus, &config)?;
    bus.until_up(WORKERS, PATIENCE)?;
    let text = "x".repeat(TEXT_BYTES);
    let mut clients = Vec::new();
    for _ in 0..MANY_CLIENTS {
        let mut client = bus.client()?;
        client.initialize()?.map_err(io::Error::other)?;
        let session = client.open_session()?;
        for _ in 0..PROMPTS {
            client.prompt(&session, &text)?;
            until_answered(&mut client)?;
        }
        clients.push(client);
    }
    let mut watcher = bus.client()?;
    let status = watcher.status()?;
    report.note("much: sessions", &status["sessions"]);
    report.note("much: bytes held", mebibytes(status["held_bytes"].as_u64().unwrap_or_default()));
    let told = watcher.ask_or_reason("_bus/upgrade", json!({}))?.map_err(io::Error::other)?;
    report.time_within("much: the pause", pause_of(&told), SHORT_PAUSE, LONGEST_PAUSE);
    let alive = clients.iter_mut().filter_map(|client| client.status().ok()).count();
    report.check("much: clients that are still served", alive, MANY_CLIENTS, alive == MANY_CLIENTS);
    Ok(())
}

/// Reads what the agent says until the turn is over.
fn until_answered(client: &mut Client) -> io::Result<()> {
    while client.message()?["result"]["stopReason"].is_null() {}
    Ok(())
}
