//! Bounds on processes: workers that are killed or exit at once, and what is left when the bus itself ends.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Trial;
use crate::bus::{Bus, PATIENCE, config, echo, up};
use crate::client::Client;
use crate::procfs;

pub(super) const KILLED: usize = 8;
const RESTARTS: usize = 1000;
const ZOMBIE_LOOKS_APART: Duration = Duration::from_millis(100);

const FAILING_WORKERS: usize = 8;
const FAILING_TIME: Duration = Duration::from_secs(30);
/// `max_restarts`, and the first start.
const STARTS_EACH: usize = 6;

pub(super) const PARENTS: usize = 3;
const SIGTERM_RUNS: usize = 100;
const SIGKILL_RUNS: usize = 50;
const BUSY_CLIENTS: usize = 8;
/// One second for calls in flight, two for a worker to exit at the end of its stdin, three after SIGTERM, one spare.
const STOP: Duration = Duration::from_secs(7);
/// What a killed bus leaves behind must be gone by then.
const GONE: Duration = Duration::from_secs(1);

pub(super) fn quick_restarts() -> Value {
    let mut config = config(&[echo("echo", KILLED, &[])]);
    config["limits"] = json!({ "max_restarts": 1_000_000, "max_restart_delay_sec": 0.01 });
    config
}

/// Workers are killed as soon as they are up, and the bus must reap each of them.
pub(super) fn killed_when_up(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut watcher = bus.client()?;
    // Once it is answered, its connection is accepted.
    watcher.status()?;
    let fds = procfs::open_fds(bus.pid())?;
    let wanted = trial.count(RESTARTS);
    let mut killed = BTreeSet::new();
    let mut next_look = Instant::now();
    let mut looks = 0;
    let mut seen_last = BTreeSet::new();
    let mut zombies_left = 0;
    while killed.len() < wanted {
        for (_, pid) in up(&watcher.status()?) {
            if killed.insert(pid) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if Instant::now() >= next_look {
            // A zombie that is seen once has just ended; one that is seen twice was not reaped.
            let zombies = procfs::zombies_of(bus.pid()).into_iter().collect::<BTreeSet<_>>();
            zombies_left += zombies.intersection(&seen_last).count();
            seen_last = zombies;
            looks += 1;
            next_look = Instant::now() + ZOMBIE_LOOKS_APART;
        }
        trial.progress.show(Instant::now(), || format!("{} of {wanted}", killed.len()));
        thread::sleep(Duration::from_millis(2));
    }
    bus.until_up(KILLED, PATIENCE)?;
    trial.report.note("restarts: workers killed", killed.len());
    trial.report.check(&format!("restarts: zombies in {looks} looks"), zombies_left, 0, zombies_left == 0);
    let is_settled = bus.until(PATIENCE, |bus| procfs::open_fds(bus.pid()).is_ok_and(|now| now == fds));
    let fds_after = procfs::open_fds(bus.pid())?;
    trial.report.check("restarts: files open after them", fds_after, fds, is_settled);
    Ok(())
}

pub(super) fn programs_that_fail() -> Value {
    config(&[json!({ "id": "false", "command": "/bin/false", "instances": FAILING_WORKERS })])
}

/// A program that exits at once is given up for a while, and requests for it are answered with `pool_down`.
pub(super) fn exit_at_once(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let cpu_before = procfs::cpu_time(bus.pid())?;
    let began = Instant::now();
    let mut client = bus.client()?;
    let is_down = |status: &Value| {
        let workers = status["pools"][0]["workers"].as_array().into_iter().flatten();
        workers.filter(|worker| worker["state"] == "broken").count() == FAILING_WORKERS
    };
    let down = bus.until(PATIENCE, |_| {
        thread::sleep(Duration::from_millis(100));
        client.status().is_ok_and(|status| is_down(&status))
    });
    trial.report.holds("crashes: all eight are given up", down);
    let asked = Instant::now();
    let answer = client.ask_or_reason("any/thing", json!({}))?;
    let took = asked.elapsed();
    let reason = answer.err().unwrap_or("none".to_owned());
    trial.report.check("crashes: the answer", &reason, "pool_down", reason == "pool_down");
    trial.report.time_at_most("crashes: it takes", took, Duration::from_millis(10));
    thread::sleep(FAILING_TIME.saturating_sub(began.elapsed()));
    let starts = bus.log().matches("started, pid").count();
    let limit = FAILING_WORKERS * STARTS_EACH;
    trial.report.at_most("crashes: starts in 30 s", starts as u64, limit as u64);
    let cpu = procfs::cpu_time(bus.pid())?.saturating_sub(cpu_before);
    let share = cpu.as_secs_f64() / began.elapsed().as_secs_f64();
    trial.report.share_at_most("crashes: processor time", share, 2.0);
    Ok(())
}

/// Each worker has a child in its process group and one that has left it.
pub(super) fn with_children(stdio_bus: &Path) -> Value {
    let bus = stdio_bus.display();
    let aside = "</dev/null >/dev/null 2>&1 &";
    let script =
        format!("sleep 1000 {aside} setsid sleep 1000 {aside} exec '{bus}' agent echo --delay-ms 20");
    let pool = json!({ "id": "family", "command": "sh", "args": ["-c", script], "instances": PARENTS });
    let mut config = config(&[pool]);
    config["limits"] = json!({ "drain_timeout_sec": 1 });
    config
}

pub(super) fn stopped_by_sigterm(trial: &mut Trial<'_>) -> io::Result<()> {
    stop(trial, Signal::SIGTERM, SIGTERM_RUNS)
}

pub(super) fn stopped_by_sigkill(trial: &mut Trial<'_>) -> io::Result<()> {
    stop(trial, Signal::SIGKILL, SIGKILL_RUNS)
}

/// The bus is stopped under load. No process that it started may be left, not even one that has left its worker's
/// group and session.
fn stop(trial: &mut Trial<'_>, signal: Signal, whole: usize) -> io::Result<()> {
    let name = trial.bound.name;
    let runs = trial.count(whole);
    let mut left = Vec::new();
    let mut unclean = 0;
    let mut late = 0;
    let mut slowest = Duration::ZERO;
    for run in 0..runs {
        let mut bus = trial.start()?;
        let _busy = (0..BUSY_CLIENTS).map(|_| in_a_long_turn(&bus)).collect::<io::Result<Vec<_>>>()?;
        let signalled = Instant::now();
        bus.signal(signal)?;
        match bus.exit_within(STOP + PATIENCE) {
            Some(status) => unclean += usize::from(signal == Signal::SIGTERM && !status.success()),
            None => unclean += 1,
        }
        slowest = slowest.max(signalled.elapsed());
        late += usize::from(signalled.elapsed() > STOP);
        let patience = if signal == Signal::SIGKILL { GONE } else { Duration::from_millis(100) };
        if !bus.until(patience, |bus| bus.survivors().is_empty()) {
            left.extend(bus.kill_survivors());
        }
        trial.progress.show(Instant::now(), || format!("{run} of {runs}"));
    }
    let report = &mut trial.report;
    report.check(&format!("{name}: processes left after {runs} runs"), left.len(), 0, left.is_empty());
    if let Some(first) = left.first() {
        report.note(&format!("{name}: first of these"), first);
    }
    if signal == Signal::SIGTERM {
        report.check(&format!("{name}: exits that are not clean"), unclean, 0, unclean == 0);
        report.check(&format!("{name}: later than {STOP:?}"), late, 0, late == 0);
        report.time_at_most(&format!("{name}: the slowest"), slowest, STOP);
    }
    Ok(())
}

fn in_a_long_turn(bus: &Bus) -> io::Result<Client> {
    let mut client = bus.client()?;
    let session = client.open_session()?;
    client.prompt(&session, &"word ".repeat(200))?;
    client.message()?;
    Ok(client)
}
