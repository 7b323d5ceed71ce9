//! `chaos`: does every request get its one right answer while everything around it goes wrong?
//!
//! A real bus with four echo agents and sixty-four clients that judge every line. First nothing is wrong, which is what
//! the rest is held against; then workers are killed; then other clients misbehave; then the configuration is read
//! again and again. In the end the bus must hold no more than in the beginning.

mod client;
mod phase;
mod trick;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use self::client::{CHUNKS, Tally};
use self::phase::{Rest, calm, kills, reloads, tricks};
use crate::args::Measured;
use crate::goal::{Sheet, mebibytes, time};
use crate::print::{Progress, complain};
use crate::run::parse_seconds;
use crate::stage::{self, Bus};
use crate::talk::Talk;

pub(super) const WORKERS: usize = 4;
pub(super) const CLIENTS: u32 = 64;
pub(super) const KILL_EVERY: Duration = Duration::from_millis(50);
/// A small limit, so that it is passed.
const LINE_BYTES_MOST: usize = 256 << 10;
/// Room for what all clients ask at once, should there be only one worker left.
const QUEUE_BYTES: usize = 4 << 20;
/// More than a queue.
const STALL_BYTES: usize = 6 << 20;
/// Until the workers are up, and until all is quiet again.
const PATIENCE: Duration = Duration::from_secs(30);
/// An error must reach whoever waits within this time of the death.
const MOURNING: Duration = Duration::from_millis(50);
/// Of a soak.
const ROUND: Duration = Duration::from_secs(8);
/// What the allocator may keep for later: less than what waited for all who stalled.
/// That it does not grow further is for `soak` to show.
const KEPT_BYTES: u64 = 64 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long all of it takes, more or less: half of it workers are killed, a quarter each is for the rest
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = parse_seconds)]
    seconds: Duration,
    /// What is killed and which trick is played follows from this [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = args.seed.unwrap_or(since_1970.as_secs());
    let mut sheet = Sheet::default();
    sheet.tell("seed", seed);
    match play(&stdio_bus, args.seconds, seed, &mut sheet) {
        Ok(()) => sheet.finish(args.measured.json),
        Err(error) => complain(format_args!("chaos with seed {seed}: {error}"), 1),
    }
}

fn play(stdio_bus: &Path, seconds: Duration, seed: u64, sheet: &mut Sheet) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config(None))?;
    bus.until_up(WORKERS, PATIENCE)?;
    let progress = |label: &str| Progress::on_stderr(label.to_owned());
    let calm = calm(&bus, seconds / 20 + Duration::from_secs(1), progress("calm"))?;
    told(sheet, "calm", &calm);
    nothing_refused(sheet, "calm", &calm);
    let base = calm.latency_us.at(0.99);
    sheet.tell("calm: p99 of an answer", time(base));
    let mut watcher = bus.client()?;
    bus.until(PATIENCE, |_| watcher.status().is_ok_and(|status| status["clients"] == 1));
    let rest = Rest::of(&bus, &mut watcher)?;

    let killed = kills(&bus, seconds / 2, seed, progress("workers are killed"))?;
    told(sheet, "kills", &killed.tally);
    sheet.tell("kills: workers killed", killed.kills);
    only(sheet, "kills", &killed.tally, "worker_lost");
    sheet.tell("kills: sessions that went on after a death", killed.tally.survived);
    let mourning = &killed.tally.mourning_us;
    sheet.tell("kills: p50 from a death to its error", time(mourning.at(0.5)));
    sheet.time_at_most("kills: p99 from a death to its error", mourning.at(0.99), MOURNING);

    let tricked = tricks(&bus, seconds / 4, seed, progress("others misbehave"))?;
    told(sheet, "tricks", &tricked.tally);
    sheet.tell("tricks: played", tricked.played);
    sheet.judge("tricks: not met as they should be", tricked.faults.len(), 0, tricked.faults.is_empty());
    if let Some(first) = tricked.faults.first() {
        sheet.tell("tricks: first of these", first);
    }
    nothing_refused(sheet, "tricks", &tricked.tally);
    sheet.times_at_most("tricks: p99 of the others", tricked.tally.latency_us.at(0.99), base, 2.0);

    let reloaded = reloads(&bus, seconds / 4, progress("the configuration is read again"))?;
    told(sheet, "reloads", &reloaded.tally);
    sheet.tell("reloads", reloaded.reloads);
    sheet.judge("reloads: not taken as they should be", reloaded.faults.len(), 0, reloaded.faults.is_empty());
    if let Some(first) = reloaded.faults.first() {
        sheet.tell("reloads: first of these", first);
    }
    nothing_refused(sheet, "reloads", &reloaded.tally);
    ended(sheet, &bus, &mut watcher, &rest)
}

/// Rounds of all of it on one bus.
pub(crate) struct Soaked {
    bus: Bus,
    watcher: Talk,
    seed: u64,
    tally: Tally,
    kills: usize,
    faults: Vec<String>,
}

/// What the bus held after a round, when all was quiet again.
pub(crate) struct Round {
    pub(crate) at: Duration,
    pub(crate) bytes: u64,
    pub(crate) fds: usize,
}

impl Soaked {
    pub(crate) fn start(stdio_bus: &Path, seed: u64) -> io::Result<Soaked> {
        let bus = Bus::start(stdio_bus, &config(None))?;
        bus.until_up(WORKERS, PATIENCE)?;
        let watcher = bus.client()?;
        Ok(Soaked { bus, watcher, seed, tally: Tally::default(), kills: 0, faults: Vec::new() })
    }

    pub(crate) fn round(&mut self, begun: Instant) -> io::Result<Round> {
        let progress = || Progress::on_stderr(format!("soak, {:.0} s", begun.elapsed().as_secs_f64()));
        self.seed = self.seed.wrapping_add(1);
        let killed = kills(&self.bus, ROUND / 2, self.seed, progress())?;
        let tricked = tricks(&self.bus, ROUND / 4, self.seed, progress())?;
        let reloaded = reloads(&self.bus, ROUND / 4, progress())?;
        self.kills += killed.kills;
        self.faults.extend(tricked.faults.into_iter().chain(reloaded.faults));
        for tally in [killed.tally, tricked.tally, reloaded.tally] {
            self.tally.add(tally);
        }
        let watcher = &mut self.watcher;
        self.bus.until(PATIENCE, |bus| Rest::of(bus, watcher).is_ok_and(|rest| rest.is_quiet(WORKERS)));
        let rest = Rest::of(&self.bus, watcher)?;
        Ok(Round { at: begun.elapsed(), bytes: rest.resident_bytes, fds: rest.fds })
    }

    pub(crate) fn tell(&self, sheet: &mut Sheet) {
        told(sheet, "soak", &self.tally);
        sheet.tell("soak: workers killed", self.kills);
        only(sheet, "soak", &self.tally, "worker_lost");
        sheet.judge("soak: tricks and reloads gone wrong", self.faults.len(), 0, self.faults.is_empty());
        if let Some(first) = self.faults.first() {
            sheet.tell("soak: first of these", first);
        }
    }
}

fn ended(sheet: &mut Sheet, bus: &Bus, watcher: &mut Talk, before: &Rest) -> io::Result<()> {
    bus.until(PATIENCE, |bus| Rest::of(bus, watcher).is_ok_and(|rest| rest.is_back_at(before)));
    let after = Rest::of(bus, watcher)?;
    let same = |sheet: &mut Sheet, what: &str, was: usize, is: usize| sheet.judge(what, is, was, is == was);
    same(sheet, "after: open files", before.fds, after.fds);
    same(sheet, "after: processes", before.processes, after.processes);
    same(sheet, "after: zombies", 0, after.zombies);
    same(sheet, "after: calls", 0, after.calls);
    same(sheet, "after: sessions", 0, after.sessions);
    same(sheet, "after: bytes held", 0, after.held_bytes);
    sheet.tell("after: memory in the beginning", mebibytes(before.resident_bytes));
    let most = before.resident_bytes + KEPT_BYTES;
    sheet.bytes_at_most("after: memory", Some(after.resident_bytes), most);
    Ok(())
}

/// What holds in every phase: each request is answered once, and rightly or with a reason.
fn told(sheet: &mut Sheet, phase: &str, tally: &Tally) {
    let answered = tally.right + tally.refused();
    let share = 100.0 * answered as f64 / tally.asked.max(1) as f64;
    let got = format!("{share:.3} % of {}", tally.asked);
    let exact = answered == tally.asked && tally.asked > 0 && tally.lost == 0;
    sheet.judge(&format!("{phase}: requests answered once"), got, "100.000 %", exact);
    sheet.at_most(&format!("{phase}: lines that are wrong"), tally.wrong, 0);
    if let Some(first) = &tally.first {
        sheet.tell(&format!("{phase}: first of these"), first);
    }
    if let Some(refusal) = &tally.refusal {
        sheet.tell(&format!("{phase}: first error that is not for a death"), refusal);
    }
}

fn nothing_refused(sheet: &mut Sheet, phase: &str, tally: &Tally) {
    let reasons = format!("{:?}", tally.refused);
    let got = if tally.refused.is_empty() { "0".to_owned() } else { reasons };
    sheet.judge(&format!("{phase}: errors"), got, "0", tally.refused.is_empty());
}

/// Errors for this reason are what is to be expected, others are not.
fn only(sheet: &mut Sheet, phase: &str, tally: &Tally, reason: &str) {
    let mut others = tally.refused.clone();
    let expected = others.remove(reason).unwrap_or(0);
    sheet.tell(&format!("{phase}: errors, {reason}"), expected);
    let got = if others.is_empty() { "0".to_owned() } else { format!("{others:?}") };
    sheet.judge(&format!("{phase}: errors for other reasons"), got, "0", others.is_empty());
}

/// `extra` is a second pool, which nobody uses, with this argument.
fn config(extra: Option<usize>) -> Value {
    let echo = stage::echo("echo", WORKERS, &["--chunks", &CHUNKS.to_string(), "--state", "@dir/sessions"]);
    let mut pools = vec![echo];
    pools.extend(extra.map(|chunks| stage::echo("extra", 1, &["--chunks", &chunks.to_string()])));
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
