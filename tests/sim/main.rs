//! The deterministic simulation of the core: one seed is one world of clients, workers and faults, and an oracle
//! that knows only what peers sent and saw.
//!
//! `BUS_SIM_SEED=0x..` replays one seed with its trace. `BUS_SIM_SEEDS=N` runs that many, from `BUS_SIM_FIRST` or
//! 0, on every core: a seed is a world of its own, so the threads change nothing but the time it takes.

mod agent;
mod client;
mod draft;
mod hears;
mod ledger;
mod line;
mod oracle;
mod plan;
mod process;
mod rng;
mod said;
mod storm;
mod stranger;
mod to_client;
mod to_worker;
mod waiting;
mod wire;
mod worker;
mod world;

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kernel_core::mutants::{Check, with_check_off};

use self::storm::Run;

/// Seeds that have found something once.
const KEPT_SEEDS: &[u64] = &[
    0x1810, 0x1c89, 0x2176, 0x2c70, 0x9d49, 0x9ff5, 0xe435, 0xec7a, 0x124ac, 0x1305e, 0x1018c3, 0x102246,
    0x103f01, 0x1067ff, 0x107a83, 0x108785, 0x10d64b, 0x113da8, 0x116d7c,
];
const SEEDS: u64 = 256;
/// In so many seeds a mutant must be caught.
const MUTANT_SEEDS: u64 = 256;
/// So many seeds are run twice.
const TWICE_SEEDS: u64 = if cfg!(debug_assertions) { 32 } else { 200 };
/// A world in which less happens says little: what the bus is given, on average.
const CALLS_EACH: usize = 500;

thread_local! {
    /// Panics of this thread are expected, and told by whoever catches them.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn every_request_is_answered_once_in_every_world() {
    if let Some(seed) = number_in("BUS_SIM_SEED") {
        println!("seed {seed:#x}, {:x?}", storm::run(seed, true));
        return;
    }
    let count = number_in("BUS_SIM_SEEDS").unwrap_or(SEEDS);
    let first = number_in("BUS_SIM_FIRST").unwrap_or(0);
    let kept = outcomes(KEPT_SEEDS.len() as u64, |at| KEPT_SEEDS[at as usize]);
    let new = outcomes(count, |at| first + at);
    let mut failed = 0;
    for (seed, why) in kept.iter().chain(&new).filter_map(|(seed, run)| Some((seed, run.as_ref().err()?))) {
        failed += 1;
        if failed <= 8 {
            let replay = format!("BUS_SIM_SEED={seed:#x} cargo test --test sim every_request -- --nocapture");
            println!("seed {seed:#x}: {why}\n  replay: {replay}");
        }
    }
    assert_eq!(failed, 0, "seeds failed, of {} kept and {count} from {first:#x}", kept.len());
    let calls: usize = new.iter().flat_map(|(_, run)| run).map(|run| run.calls).sum();
    println!("{count} seeds from {first:#x}, {calls} calls of the bus");
    assert!(calls >= new.len() * CALLS_EACH, "{calls} calls of the bus are few for {count} seeds");
}

/// Each guard of the core is switched off in turn: some world must show that it is missing.
#[test]
fn every_guard_that_is_switched_off_is_missed() {
    let mut survivors = Vec::new();
    for guard in Check::ALL {
        let caught =
            (0..MUTANT_SEEDS).find_map(|seed| Some((seed, with_check_off(guard, || outcome(seed)).err()?)));
        match caught {
            Some((seed, why)) => {
                println!("{guard:?}: seed {seed:#x}: {}", why.chars().take(120).collect::<String>());
            }
            None => survivors.push(guard),
        }
    }
    assert!(survivors.is_empty(), "nobody notices in {MUTANT_SEEDS} seeds that these are off: {survivors:?}");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let once = outcomes(TWICE_SEEDS, |at| at);
    for (again, before) in outcomes(TWICE_SEEDS, |at| TWICE_SEEDS - 1 - at).iter().zip(once.iter().rev()) {
        assert_eq!(again, before);
    }
}

/// What became of many seeds, in their order, by as many threads as there are cores.
fn outcomes(count: u64, seed: impl Fn(u64) -> u64 + Sync) -> Vec<(u64, Result<Run, String>)> {
    let next = AtomicU64::new(0);
    let take_turns = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return done;
            }
            done.push((at, (seed(at), outcome(seed(at)))));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(take_turns)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("faults of a world are caught")).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// What happened, or what went wrong.
fn outcome(seed: u64) -> Result<Run, String> {
    quiet_panics();
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| storm::run(seed, false)));
    QUIET.set(false);
    outcome.map_err(|fault| match (fault.downcast_ref::<String>(), fault.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "a panic without words".to_owned(),
    })
}

fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
