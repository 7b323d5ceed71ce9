//! The deterministic simulation of the pipe. One seed is one world: two ends, and a carrier that loses, repeats,
//! reorders, delays, changes, cuts, restarts and says that nobody is there; or one end, and a peer that lies (`liar`).
//!
//! The oracle: bytes come in order and once, in both directions, or both ends are dead within 30 s and say why; nobody
//! is dead while frames come; memory stays within two windows; the latest control message arrives; every check that is
//! switched off is missed.
//!
//! `BUS_PIPE_SEED=0x..` replays one seed with its trace. `BUS_PIPE_SEEDS=N` runs N seeds, from `BUS_PIPE_FIRST` or 0
//! on. `BUS_PIPE_CHECK=Name` switches off only that check.

mod carrier;
mod end;
mod liar;
mod probes;
#[allow(dead_code, reason = "it is the one of the simulation of the core")]
#[path = "../../../tests/sim/rng.rs"]
mod rng;
mod run;
mod world;

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cluster::mutants::{Check, with_check_off};

use self::run::{LIAR, Run};

/// Seeds that have found a fault before.
const KEPT_SEEDS: &[u64] = &[];
const SEEDS: u64 = 1000;
/// A mutant must be caught within this many seeds.
const MUTANT_SEEDS: u64 = 2000;
/// This many seeds are run twice.
const TWICE_SEEDS: u64 = 50;

thread_local! {
    /// Panics of this thread are expected: the code that catches them reports them.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn bytes_arrive_once_and_in_order_in_every_world() {
    if let Some(seed) = number_in("BUS_PIPE_SEED") {
        println!("seed {seed:#x}, {:x?}", run::run(seed, true));
        return;
    }
    let count = number_in("BUS_PIPE_SEEDS").unwrap_or(SEEDS);
    let first = number_in("BUS_PIPE_FIRST").unwrap_or(0);
    let kept = outcomes(KEPT_SEEDS.len() as u64, |at| KEPT_SEEDS[at as usize]);
    let new = outcomes(count, |at| nth_seed(first, at));
    let mut failed = 0;
    for (seed, outcome) in kept.iter().chain(&new) {
        let Err(why) = outcome else { continue };
        failed += 1;
        if failed <= 8 {
            let replay = format!(
                "BUS_PIPE_SEED={seed:#x} cargo test -p cluster --features mutants --test sim bytes -- --nocapture"
            );
            println!("seed {seed:#x}: {why}\n  replay: {replay}");
        }
    }
    assert_eq!(failed, 0, "seeds failed, of {} kept and {count} from {first:#x}", kept.len());
    let good = || new.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
    let (steps, survived) =
        (good().map(|run| run.steps).sum::<usize>(), good().filter(|run| run.survived).count());
    println!("{count} seeds from {first:#x}, {steps} steps, {survived} pipes have survived the faults");
    assert!(
        survived * 3 > new.len() && survived * 20 < new.len() * 19,
        "{survived} of {count} have survived"
    );
}

/// Switches off each check of the pipe in turn. Some world must show that it is missing.
#[test]
fn every_check_that_is_switched_off_is_missed() {
    let only = std::env::var("BUS_PIPE_CHECK").ok();
    let is_wanted = |check: &Check| only.as_ref().is_none_or(|only| *only == format!("{check:?}"));
    let checks: Vec<_> = Check::ALL.iter().copied().filter(is_wanted).collect();
    let caught = on_all_cores(checks.len() as u64, |at| {
        let mut seeds = (0..MUTANT_SEEDS).map(|at| nth_seed(0, at));
        seeds.find_map(|seed| Some((seed, with_check_off(checks[at as usize], || outcome(seed)).err()?)))
    });
    let mut survivors = Vec::new();
    for (check, caught) in checks.iter().zip(caught) {
        match caught {
            Some((seed, why)) => {
                println!("{check:?}: seed {seed:#x}: {}", why.chars().take(120).collect::<String>());
            }
            None => survivors.push(check),
        }
    }
    assert!(
        survivors.is_empty(),
        "these were switched off, and {MUTANT_SEEDS} seeds did not show it: {survivors:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let once = outcomes(TWICE_SEEDS, |at| nth_seed(0, at));
    assert_eq!(outcomes(TWICE_SEEDS, |at| nth_seed(0, at)), once);
}

/// The seed of the nth world of a run. Each fourth has a liar.
fn nth_seed(first: u64, at: u64) -> u64 {
    (first + at) | if at % 4 == 3 { LIAR } else { 0 }
}

/// Runs many seeds on all cores, and returns their outcomes in order.
fn outcomes(count: u64, seed: impl Fn(u64) -> u64 + Sync) -> Vec<(u64, Result<Run, String>)> {
    on_all_cores(count, |at| (seed(at), outcome(seed(at))))
}

/// Does the same for each number below `count`, on all cores, and returns the results in order.
fn on_all_cores<T: Send>(count: u64, each: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let take_turns = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return done;
            }
            done.push((at, each(at)));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(take_turns)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("faults of a world are caught")).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs one seed. The error is the message of its panic.
fn outcome(seed: u64) -> Result<Run, String> {
    quiet_panics();
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| run::run(seed, false)));
    QUIET.set(false);
    outcome.map_err(|fault| match (fault.downcast_ref::<String>(), fault.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "a panic without a message".to_owned(),
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
