//! `chaos`: does every request get its one right answer while everything around it goes wrong?
//!
//! A real bus with four echo agents and sixty-four clients that check every line. First nothing goes wrong, which is
//! the base of comparison; then workers are killed; then other clients misbehave; then the configuration is reloaded
//! again and again. In the end the bus must hold no more than in the beginning.

mod checking_client;
mod hostile;
mod phase;
mod trick;
mod upgrades;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rpc::text::unix_ms;
use serde_json::{Value, json};

use self::checking_client::{CHUNKS, Counts};
use self::phase::{Holdings, calm, kills, reloads, tricks};
use crate::args::Measured;
use crate::bus::{self, Bus, PATIENCE};
use crate::client::Client;
use crate::print::{Progress, complain};
use crate::report::{Report, mebibytes, time};
use crate::run::parse_seconds;

pub(super) const WORKERS: usize = 4;
pub(super) const CLIENTS: u32 = 64;
pub(super) const KILL_EVERY: Duration = Duration::from_millis(50);
/// A small limit, so that clients exceed it.
const LINE_BYTES_MOST: usize = 256 << 10;
/// Room for the requests of all clients at once, should there be only one worker left.
const QUEUE_BYTES: usize = 4 << 20;
/// More than a queue.
const STALL_BYTES: usize = 6 << 20;
/// An error must reach the waiting client within this time after the kill.
const LOSS_REPORTED: Duration = Duration::from_millis(50);
/// One round of a soak.
const ROUND: Duration = Duration::from_secs(8);
/// What the allocator may keep between what is used, although it gives back what is free at the end of the heap.
/// `soak` shows that it does not grow further.
const KEPT_BYTES: u64 = 32 << 20;

/// `--upgrade` without a program.
const ITSELF: &str = "itself";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long all of it takes, more or less: half of it workers are killed, a quarter each is for the rest
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = parse_seconds)]
    seconds: Duration,
    /// Clients that do anything, with lines of up to 2 MiB, until so many requests were asked or the time is over
    #[arg(long, value_name = "REQUESTS", num_args = 0..=1, default_missing_value = "200000")]
    hostile: Option<u64>,
    /// The longest text that they send or are sent
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20, requires = "hostile")]
    longest: usize,
    /// The bus becomes another program every second instead: this one and BINARY in turns, by default itself
    #[arg(long, value_name = "BINARY", num_args = 0..=1, default_missing_value = ITSELF, conflicts_with = "hostile")]
    upgrade: Option<PathBuf>,
    /// What is killed and which trick is played follows from this [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let seed = args.seed.unwrap_or_else(|| unix_ms() / 1000);
    let mut report = Report::default();
    report.note("seed", seed);
    let played = match args.hostile {
        Some(requests) => {
            let length = hostile::Length { requests, time: args.seconds, longest: args.longest };
            hostile::play(&stdio_bus, length, seed, &mut report)
        }
        None => match &args.upgrade {
            Some(other) => {
                let other = Some(other.as_path()).filter(|other| *other != ITSELF);
                upgrades::play(&stdio_bus, other, args.seconds, &mut report)
            }
            None => play(&stdio_bus, args.seconds, seed, &mut report),
        },
    };
    match played {
        Ok(()) => report.finish(args.measured.json),
        Err(error) => complain(format_args!("chaos with seed {seed}: {error}"), 1),
    }
}

fn play(stdio_bus: &Path, seconds: Duration, seed: u64, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start_lean(stdio_bus, &config(None))?;
    bus.until_up(WORKERS, PATIENCE)?;
    let progress = |label: &str| Progress::on_stderr(label.to_owned());
    let calm = calm(&bus, seconds / 20 + Duration::from_secs(1), progress("calm"))?;
    report_answers(report, "calm", &calm);
    no_errors(report, "calm", &calm);
    let base = calm.latency_us.at(0.99);
    report.note("calm: p99 of an answer", time(base));
    let mut watcher = bus.client()?;
    bus.until_clients(&mut watcher, 1);
    let before = Holdings::of(&bus, &mut watcher)?;

    let killed = kills(&bus, seconds / 2, seed, progress("workers are killed"))?;
    report_answers(report, "kills", &killed.counts);
    report.note("kills: workers killed", killed.kills);
    only_errors(report, "kills", &killed.counts, "worker_lost");
    report.note("kills: sessions that went on after a death", killed.counts.survived);
    let loss = &killed.counts.loss_us;
    report.note("kills: p50 from a death to its error", time(loss.at(0.5)));
    report.time_at_most("kills: p99 from a death to its error", loss.at(0.99), LOSS_REPORTED);

    let tricked = tricks(&bus, seconds / 4, seed, progress("others misbehave"))?;
    report_answers(report, "tricks", &tricked.counts);
    report.note("tricks: played", tricked.played);
    report.check("tricks: not met as they should be", tricked.faults.len(), 0, tricked.faults.is_empty());
    if let Some(first) = tricked.faults.first() {
        report.note("tricks: first of these", first);
    }
    no_errors(report, "tricks", &tricked.counts);
    report.times_at_most("tricks: p99 of the others", tricked.counts.latency_us.at(0.99), base, 2.0);

    let reloaded = reloads(&bus, seconds / 4, progress("the configuration is read again"))?;
    report_answers(report, "reloads", &reloaded.counts);
    report.note("reloads", reloaded.reloads);
    report.check(
        "reloads: not taken as they should be",
        reloaded.faults.len(),
        0,
        reloaded.faults.is_empty(),
    );
    if let Some(first) = reloaded.faults.first() {
        report.note("reloads: first of these", first);
    }
    no_errors(report, "reloads", &reloaded.counts);
    compare_holdings(report, &bus, &mut watcher, &before)
}

/// Chaos in rounds on one bus.
pub(crate) struct Soaked {
    bus: Bus,
    watcher: Client,
    seed: u64,
    counts: Counts,
    kills: usize,
    faults: Vec<String>,
}

/// What the bus held after a round, once no request was in flight.
pub(crate) struct Round {
    pub(crate) at: Duration,
    pub(crate) bytes: u64,
    pub(crate) fds: usize,
}

impl Soaked {
    pub(crate) fn start(stdio_bus: &Path, seed: u64) -> io::Result<Soaked> {
        let bus = Bus::start_lean(stdio_bus, &config(None))?;
        bus.until_up(WORKERS, PATIENCE)?;
        let watcher = bus.client()?;
        Ok(Soaked { bus, watcher, seed, counts: Counts::default(), kills: 0, faults: Vec::new() })
    }

    pub(crate) fn round(&mut self, began: Instant) -> io::Result<Round> {
        let progress = || Progress::on_stderr(format!("soak, {:.0} s", began.elapsed().as_secs_f64()));
        self.seed = self.seed.wrapping_add(1);
        let killed = kills(&self.bus, ROUND / 2, self.seed, progress())?;
        let tricked = tricks(&self.bus, ROUND / 4, self.seed, progress())?;
        let reloaded = reloads(&self.bus, ROUND / 4, progress())?;
        self.kills += killed.kills;
        self.faults.extend(tricked.faults.into_iter().chain(reloaded.faults));
        for counts in [killed.counts, tricked.counts, reloaded.counts] {
            self.counts.add(counts);
        }
        let watcher = &mut self.watcher;
        self.bus.until(PATIENCE, |bus| Holdings::of(bus, watcher).is_ok_and(|held| held.is_quiet(WORKERS)));
        let held = Holdings::of(&self.bus, watcher)?;
        Ok(Round { at: began.elapsed(), bytes: held.resident_bytes, fds: held.fds })
    }

    pub(crate) fn report(&self, report: &mut Report) {
        report_answers(report, "soak", &self.counts);
        report.note("soak: workers killed", self.kills);
        only_errors(report, "soak", &self.counts, "worker_lost");
        report.check("soak: tricks and reloads gone wrong", self.faults.len(), 0, self.faults.is_empty());
        if let Some(first) = self.faults.first() {
            report.note("soak: first of these", first);
        }
    }
}

fn compare_holdings(
    report: &mut Report,
    bus: &Bus,
    watcher: &mut Client,
    before: &Holdings,
) -> io::Result<()> {
    bus.until(PATIENCE, |bus| Holdings::of(bus, watcher).is_ok_and(|held| held.is_back_at(before)));
    let after = Holdings::of(bus, watcher)?;
    let same =
        |report: &mut Report, what: &str, was: usize, is: usize| report.check(what, is, was, is == was);
    same(report, "after: open files", before.fds, after.fds);
    same(report, "after: processes", before.processes, after.processes);
    same(report, "after: zombies", 0, after.zombies);
    same(report, "after: calls", 0, after.calls);
    same(report, "after: sessions", 0, after.sessions);
    same(report, "after: bytes held", 0, after.held_bytes);
    report.note("after: memory in the beginning", mebibytes(before.resident_bytes));
    let most = before.resident_bytes + KEPT_BYTES;
    report.bytes_at_most("after: memory", after.resident_bytes, most);
    Ok(())
}

/// In every phase each request must be answered once, correctly or with a reason.
fn report_answers(report: &mut Report, phase: &str, counts: &Counts) {
    let answered = counts.right + counts.refused();
    let share = 100.0 * answered as f64 / counts.asked.max(1) as f64;
    let got = format!("{share:.3} % of {}", counts.asked);
    let exact = answered == counts.asked && counts.asked > 0 && counts.lost == 0;
    report.check(&format!("{phase}: requests answered once"), got, "100.000 %", exact);
    report.at_most(&format!("{phase}: lines that are wrong"), counts.wrong, 0);
    if let Some(first) = &counts.first_fault {
        report.note(&format!("{phase}: first of these"), first);
    }
    if let Some(refusal) = &counts.first_refusal {
        report.note(&format!("{phase}: first error that is not for a death"), refusal);
    }
}

fn no_errors(report: &mut Report, phase: &str, counts: &Counts) {
    let reasons = format!("{:?}", counts.refused);
    let got = if counts.refused.is_empty() { "0".to_owned() } else { reasons };
    report.check(&format!("{phase}: errors"), got, "0", counts.refused.is_empty());
}

/// Errors with this reason are expected, others are not.
fn only_errors(report: &mut Report, phase: &str, counts: &Counts, reason: &str) {
    let mut others = counts.refused.clone();
    let expected = others.remove(reason).unwrap_or(0);
    report.note(&format!("{phase}: errors, {reason}"), expected);
    let got = if others.is_empty() { "0".to_owned() } else { format!("{others:?}") };
    report.check(&format!("{phase}: errors for other reasons"), got, "0", others.is_empty());
}

/// `extra` adds a second pool, which no client uses, with this argument.
fn config(extra: Option<usize>) -> Value {
    let echo = bus::echo("echo", WORKERS, &["--chunks", &CHUNKS.to_string(), "--state", "@dir/sessions"]);
    let mut pools = vec![echo];
    pools.extend(extra.map(|chunks| bus::echo("extra", 1, &["--chunks", &chunks.to_string()])));
    json!({
        "listen": ["tcp://127.0.0.1:0"],
        "default_pool": "echo",
        "pools": pools,
        "limits": {
            "max_input_buffer": LINE_BYTES_MOST,
            "max_output_queue": QUEUE_BYTES,
            "max_restarts": 1_000_000,
            "max_restart_delay_sec": 0.02,
            "session_keep_sec": 2,
        },
    })
}
