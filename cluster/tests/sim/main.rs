//! The deterministic simulation of the pipe. One seed is one world: two ends, and a carrier that loses, repeats,
//! reorders, delays, changes, cuts, restarts and says that nobody is there; or one end, and a peer that lies (`liar`).
//!
//! The oracle: bytes come in order and once, in both directions, or both ends are dead within 30 s and say why; nobody
//! is dead while frames come; memory stays within two windows; the latest control message arrives; every check that is
//! switched off is noticed.
//!
//! `BUS_PIPE_SEED=0x..` replays one seed with its trace. `BUS_PIPE_SEEDS=N` runs N seeds, from `BUS_PIPE_FIRST` or 0
//! on. `BUS_PIPE_CHECK=Name` switches off only that check.

mod carrier;
mod end;
mod liar;
mod probes;
#[allow(dead_code, reason = "it is the one of the simulation of the core")]
#[path = "../../../kernel/core/tests/sim/rng.rs"]
mod rng;
mod run;
#[path = "../../../kernel/core/tests/sim/seeds.rs"]
mod seeds;
mod world;

use cluster::mutants::{Check, with_check_off};

use self::run::{LIAR, Run};
use self::seeds::{check_all, check_caught, number_in, on_all_cores};

/// Seeds that have found a fault before.
const KEPT_SEEDS: &[u64] = &[];
const SEEDS: u64 = 1000;
/// A mutant must be caught within this many seeds.
const MUTANT_SEEDS: u64 = 2000;
/// This many seeds are run twice.
const TWICE_SEEDS: u64 = 50;

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
    let command = "cargo test -p cluster --features mutants --test sim bytes";
    check_all(kept.iter().chain(&new), "BUS_PIPE_SEED", command);
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
fn every_check_that_is_switched_off_is_noticed() {
    let only = std::env::var("BUS_PIPE_CHECK").ok();
    let is_wanted = |check: &Check| only.as_ref().is_none_or(|only| *only == format!("{check:?}"));
    let checks: Vec<_> = Check::ALL.iter().copied().filter(is_wanted).collect();
    let caught = on_all_cores(checks.len() as u64, |at| {
        let mut seeds = (0..MUTANT_SEEDS).map(|at| nth_seed(0, at));
        seeds.find_map(|seed| Some((seed, with_check_off(checks[at as usize], || outcome(seed)).err()?)))
    });
    check_caught(checks.iter().zip(caught), only.is_some());
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

/// Runs one seed. The error is the message of its panic.
fn outcome(seed: u64) -> Result<Run, String> {
    seeds::outcome(|| run::run(seed, false))
}
