//! An attack: what some clients or an agent do to the bus, and what a bystander may notice of it.
//!
//! The bystander has a connection and an agent of its own, and asks one thing after the other. First it asks while the
//! stage is set and nothing happens: its worst wait then is the machine's own. Then it asks while the attack is played.
//! Its worst wait may be a little longer than before; nothing of it may be refused, and the memory of the bus may grow
//! by no more than a small multiple of what the attack consists of.
//!
//! A machine that others use makes any round trip long now and then, whatever the bus does. So three things are done:
//! the wait of a round trip is no longer than the time that the bus has worked meanwhile (what else it took was the
//! queue for the processor); an attack is played again if a wait was too long, and the best of these rounds counts; and
//! where this user may say so, the bus, the bystander and its agent go before whatever else wants the processor.

use std::io;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::gettid;
use serde_json::{Value, json};

use super::Trial;
use super::scene::Scene;
use crate::bus::{Bus, config, echo, up};
use crate::client::Client;
use crate::procfs;
use crate::report::time;

/// What a round trip may take beyond the worst one without the attack, and for each MB of the longest line. Such a line
/// is scanned while it comes, but copied at once where it is kept, and its memory is given back at once. The second of
/// each, ten times the first, is what would be a failure: machines are noisy.
const STALL: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];
const STALL_A_MB: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(5)];
const ROUNDS_MAX: usize = 3;
/// The memory may grow by so many times the bytes of an attack, and by this: queues, tables, what the allocator keeps.
const GROWTH_TIMES: u64 = 3;
const GROWTH_BYTES: u64 = 32 << 20;
/// Processes that are being replaced, beyond those that the configuration allows.
const SPARE_WORKERS: u64 = 4;
/// The pool of the bystander.
const BESIDE: &str = "beside";
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Attack {
    /// What the report calls it, beside the name of its bound.
    pub(super) what: &'static str,
    /// The configuration but for the pool of the bystander.
    pub(super) config: fn() -> Value,
    /// The bytes of its longest line.
    pub(super) line: usize,
    pub(super) set: fn(&Stage<'_>) -> io::Result<Scene>,
    /// Plays it once, to its last answer. Returns the bytes that it consists of: those that are sent to the bus and
    /// those that others are owed.
    pub(super) play: fn(&Stage<'_>, &mut Scene) -> io::Result<u64>,
    /// What must hold afterwards, while the scene is still there.
    pub(super) after: Option<fn(&mut Trial<'_>, &Bus) -> io::Result<()>>,
}

/// What most attacks have in common.
pub(super) const OF_PUPPETS: Attack = Attack {
    what: "",
    config: with_puppets,
    line: 0,
    set: |stage| Scene::of_owner(stage.bus),
    play: |_, _| Ok(0),
    after: None,
};

/// A bus while an attack is prepared and played.
pub(super) struct Stage<'a> {
    pub(super) bus: &'a Bus,
    quick: bool,
}

impl Stage<'_> {
    /// The whole number of something, or a tenth of it.
    pub(super) fn count(&self, whole: usize) -> usize {
        if self.quick { whole / 10 } else { whole }
    }
}

/// What one round has shown.
struct Round {
    /// What the bystander saw without the attack, and with it.
    base: Seen,
    with: Seen,
    due_bytes: u64,
}

impl Round {
    fn stall(&self) -> Duration {
        self.with.worst_wait.saturating_sub(self.base.worst_wait)
    }
}

/// Plays the attack and reports what the bystander noticed.
pub(super) fn play(trial: &mut Trial<'_>, attack: &Attack) -> io::Result<()> {
    let mut config = (attack.config)();
    let workers = most_workers(&config) + 1;
    if let Some(pools) = config["pools"].as_array_mut() {
        pools.push(echo(BESIDE, 1, &[]));
    }
    config["default_pool"] = json!(BESIDE);
    let bus = Bus::start(trial.stdio_bus, &config)?;
    bus.until_up(config["pools"].as_array().map_or(0, Vec::len), crate::bus::PATIENCE)?;
    let stage = Stage { bus: &bus, quick: trial.quick };
    let mut scene = (attack.set)(&stage)?;
    let mut bystander = bus.client()?;
    bystander.ask("any/thing", json!({}))?;
    let goes_first = goes_first(&bus)?;

    let before = procfs::resident_bytes(bus.pid())?;
    let most = Most::default();
    let line = stage.count(attack.line) as u32;
    let [stall, gross] = [0, 1].map(|at: usize| STALL[at] + STALL_A_MB[at] * line / 1_000_000);
    let mut best: Option<Round> = None;
    let (mut asked, mut refused) = (0, 0);
    for _ in 0..ROUNDS_MAX {
        let round = one_round(&stage, &mut bystander, &mut scene, attack, &most)?;
        asked += round.base.asked + round.with.asked;
        refused += round.base.refused + round.with.refused;
        if best.as_ref().is_none_or(|best| round.stall() < best.stall()) {
            best = Some(round);
        }
        if best.as_ref().is_some_and(|best| best.stall() <= stall) {
            break;
        }
    }
    let best = best.expect("there is a round");
    let form = if trial.quick { "in small, " } else { "" };
    let name = format!("{}: {form}{}", trial.bound.name, attack.what);
    trial.report.time_within(&format!("{name}, wait"), best.stall(), stall, gross);
    let (trip, base) = (time(best.with.worst_trip), time(best.base.worst_trip));
    let how = if goes_first { "" } else { "; without priority" };
    trial.report.note(&format!("{name}, worst round trip"), format!("{trip}, {base} without it{how}"));
    let growth = most.bytes().saturating_sub(before);
    let limit = GROWTH_BYTES + GROWTH_TIMES * best.due_bytes;
    trial.report.bytes_at_most(&format!("{name}, growth"), growth, limit);
    trial.report.at_most(&format!("{name}, refused of {asked} others"), refused, 0);
    let most_workers = most.workers.load(Ordering::Relaxed);
    if most_workers > workers {
        trial.report.at_most(&format!("{name}, workers"), most_workers, workers + SPARE_WORKERS);
    }
    if let Some(after) = attack.after {
        after(trial, &bus)?;
    }
    drop(scene);
    let is_served = bus.client().and_then(|mut new| new.open_session()).is_ok();
    if !is_served {
        trial.report.holds(&format!("{name}, the bus still serves"), false);
    }
    Ok(())
}

/// How many processes the configuration allows.
fn most_workers(config: &Value) -> u64 {
    let pools = config["pools"].as_array().into_iter().flatten();
    pools.map(|pool| pool["max_instances"].as_u64().unwrap_or(8)).sum()
}

/// Measures without the attack and then with it.
fn one_round(
    stage: &Stage<'_>,
    bystander: &mut Client,
    scene: &mut Scene,
    attack: &Attack,
    most: &Most,
) -> io::Result<Round> {
    let base_for = Duration::from_millis(if stage.quick { 150 } else { 500 });
    let (base, ()) = beside(stage.bus, bystander, most, || {
        thread::sleep(base_for);
        Ok(())
    })?;
    let (with, due_bytes) = beside(stage.bus, bystander, most, || (attack.play)(stage, scene))?;
    Ok(Round { base, with, due_bytes })
}

/// What the bystander has seen.
#[derive(Default)]
struct Seen {
    /// How long the bus has worked at most from a question to its answer.
    worst_wait: Duration,
    worst_trip: Duration,
    asked: u64,
    refused: u64,
}

/// The most memory and workers that the bus had.
#[derive(Default)]
struct Most {
    bytes: AtomicU64,
    workers: AtomicU64,
}

impl Most {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Looks again and again until it is told to stop.
    fn watch(&self, bus: &Bus, is_over: &AtomicBool) -> io::Result<()> {
        let peak_before = procfs::peak_bytes(bus.pid())?;
        let mut watcher = bus.client()?;
        let mut next_status = Instant::now();
        while !is_over.load(Ordering::Relaxed) {
            self.bytes.fetch_max(procfs::resident_bytes(bus.pid())?, Ordering::Relaxed);
            if Instant::now() >= next_status {
                let status = watcher.status()?;
                let pools = status["pools"].as_array().into_iter().flatten();
                let workers = pools.map(|pool| pool["workers"].as_array().map_or(0, Vec::len)).sum::<usize>();
                self.workers.fetch_max(workers as u64, Ordering::Relaxed);
                next_status = Instant::now() + 10 * LOOK_EVERY;
            }
            thread::sleep(LOOK_EVERY);
        }
        // What was taken and given back between two looks, unless it had once been as much before.
        let peak = procfs::peak_bytes(bus.pid())?;
        self.bytes.fetch_max(if peak > peak_before { peak } else { 0 }, Ordering::Relaxed);
        Ok(())
    }
}

/// The bystander asks until `meanwhile` is over.
fn beside<T>(
    bus: &Bus,
    bystander: &mut Client,
    most: &Most,
    meanwhile: impl FnOnce() -> io::Result<T>,
) -> io::Result<(Seen, T)> {
    let is_over = AtomicBool::new(false);
    // Whatever is done meanwhile, however short it is, begins with the first question.
    let begin = Barrier::new(2);
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            prioritize(&["chrt", "-f", "-p", "10", &gettid().to_string()]);
            let mut seen = Seen::default();
            begin.wait();
            while seen.asked == 0 || !is_over.load(Ordering::Relaxed) {
                let (began, worked) = (Instant::now(), procfs::main_thread_time(bus.pid())?);
                let answer = bystander.ask_or_reason("any/thing", json!({}))?;
                let trip = began.elapsed();
                let wait = procfs::main_thread_time(bus.pid())?.saturating_sub(worked).min(trip);
                seen.worst_trip = seen.worst_trip.max(trip);
                seen.worst_wait = seen.worst_wait.max(wait);
                seen.asked += 1;
                seen.refused += u64::from(answer.is_err());
            }
            Ok::<_, io::Error>(seen)
        });
        let watches = scope.spawn(|| most.watch(bus, &is_over));
        begin.wait();
        let done = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        let watched = watches.join().expect("the watch does not panic");
        let seen = asks.join().expect("the bystander does not panic")?;
        let done = done?;
        watched?;
        Ok((seen, done))
    })
}

/// The bus and the agent of the bystander go before what else wants the processor, if this user may say so.
fn goes_first(bus: &Bus) -> io::Result<bool> {
    let status = bus.status()?;
    let beside = up(&status).last().map_or(0, |(_, pid)| *pid).to_string();
    Ok(prioritize(&["renice", "-n", "-20", "-p", &bus.pid().to_string()])
        && prioritize(&["chrt", "-f", "-p", "10", &beside]))
}

fn prioritize(command: &[&str]) -> bool {
    let mut process = Command::new(command[0]);
    process.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    process.status().is_ok_and(|status| status.success())
}

/// A pool of puppets: one process, with room for as many sessions as anybody opens.
pub(super) fn puppets(id: &str) -> Value {
    let program = std::env::current_exe().unwrap_or_default();
    json!({ "id": id, "command": program, "args": ["puppet", "--name", id], "max_instances": 1,
        "max_sessions": 100_000 })
}

/// A bus with a pool of puppets beside that of the bystander.
pub(super) fn with_puppets() -> Value {
    config(&[puppets("puppet")])
}
