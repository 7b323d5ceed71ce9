//! The deterministic simulation of the core: one seed is one world of clients, workers and faults, and an oracle
//! that knows only what peers sent and saw.
//!
//! `BUS_SIM_SEED=0x..` replays one seed with its trace, `BUS_SIM_SEEDS=N` runs that many, from 0.

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
mod to_client;
mod to_worker;
mod waiting;
mod wire;
mod worker;
mod world;

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

use kernel::bus::mutant::{Guard, with_guard_off};

/// Seeds that have found something once.
const KEPT_SEEDS: &[u64] = &[0x1810, 0x1c89, 0x2c70, 0x9d49, 0x9ff5, 0xe435, 0xec7a, 0x124ac, 0x1305e];
const SEEDS: u64 = 256;
/// In so many seeds a mutant must be caught.
const MUTANT_SEEDS: u64 = 256;

thread_local! {
    /// Panics of this thread are expected, and told by whoever catches them.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn every_request_is_answered_once_in_every_world() {
    if let Some(seed) = number_in("BUS_SIM_SEED") {
        println!("seed {seed:#x}, hash {:#x}", storm::run(seed, true));
        return;
    }
    let count = number_in("BUS_SIM_SEEDS").unwrap_or(SEEDS);
    let mut failed = Vec::new();
    for seed in KEPT_SEEDS.iter().copied().chain(0..count) {
        if let Err(why) = outcome(seed) {
            let replay = format!("BUS_SIM_SEED={seed:#x} cargo test --test sim every_request -- --nocapture");
            failed.push(format!("seed {seed:#x}: {why}\n  replay: {replay}"));
        }
    }
    for failure in failed.iter().take(8) {
        println!("{failure}");
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed", failed.len());
}

/// Each guard of the core is switched off in turn: some world must show that it is missing.
#[test]
fn every_guard_that_is_switched_off_is_missed() {
    let mut survivors = Vec::new();
    for guard in Guard::ALL {
        let caught =
            (0..MUTANT_SEEDS).find_map(|seed| Some((seed, with_guard_off(guard, || outcome(seed)).err()?)));
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
    for seed in 0..SEEDS / 16 {
        assert_eq!(outcome(seed), outcome(seed), "seed {seed:#x}");
    }
}

/// The hash of what happened, or what went wrong.
fn outcome(seed: u64) -> Result<u64, String> {
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
