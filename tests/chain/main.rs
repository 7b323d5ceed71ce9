//! The simulation of two machines: an edge, the bus that clients reach, and a node, the bus that has the agents. Each
//! worker of the edge is a pipe to a client connection of the node, over a carrier that loses, repeats, delays and
//! cuts.
//!
//! The oracle: every request of a client is answered exactly once, by the agent that has seen it or with an error; no
//! prompt is seen twice; what an agent says is heard in order, and by nobody else; in the end nothing is held.
//!
//! `BUS_CHAIN_SEED=0x..` replays one seed with its trace. `BUS_CHAIN_SEEDS=N` runs N seeds from `BUS_CHAIN_FIRST` or 0
//! on.

mod faults;
mod peers;
#[allow(dead_code, reason = "it is the one of the simulation of the core")]
#[path = "../sim/rng.rs"]
mod rng;
mod wire;
mod world;

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cluster::mutants::{Check, with_check_off};

use self::world::{Run, World};

/// Seeds that have found a fault before.
const KEPT_SEEDS: &[u64] = &[];
const SEEDS: u64 = 200;

#[test]
fn every_request_is_answered_once_over_two_machines() {
    if let Some(seed) = number_in("BUS_CHAIN_SEED") {
        println!("seed {seed:#x}, {:?}", World::run(seed, true));
        return;
    }
    let count = number_in("BUS_CHAIN_SEEDS").unwrap_or(SEEDS);
    let first = number_in("BUS_CHAIN_FIRST").unwrap_or(0);
    let seeds: Vec<u64> = KEPT_SEEDS.iter().copied().chain(first..first + count).collect();
    let outcomes = outcomes(&seeds);
    let mut failed = 0;
    for (seed, outcome) in seeds.iter().zip(&outcomes) {
        let Err(why) = outcome else { continue };
        failed += 1;
        if failed <= 8 {
            println!(
                "seed {seed:#x}: {why}\n  replay: BUS_CHAIN_SEED={seed:#x} cargo test --test chain -- --nocapture"
            );
        }
    }
    assert_eq!(failed, 0, "seeds failed, of {}", seeds.len());
    let mut all = Run::default();
    outcomes.iter().flatten().for_each(|run| all.add(run));
    println!("{} seeds: {all:?}", seeds.len());
    // A world in which nothing is asked or nothing dies shows nothing.
    let enough =
        all.results > 5 * seeds.len() && all.errors > seeds.len() && all.lost_pipes > seeds.len() / 2;
    assert!(enough || seeds.len() < 100, "{all:?} is little");
}

/// The oracle would notice a pipe that is not reliable.
#[test]
fn a_pipe_without_its_checks_is_noticed() {
    for check in [Check::Duplicate, Check::KeepUntilAcked] {
        let caught = (0..300).find_map(|seed| with_check_off(check, || outcome(seed)).err());
        println!(
            "{check:?}: {}",
            caught.as_deref().unwrap_or("nothing").chars().take(100).collect::<String>()
        );
        assert!(caught.is_some(), "{check:?} was switched off, and 300 seeds did not show it");
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let seeds: Vec<u64> = (0..10).collect();
    assert_eq!(outcomes(&seeds), outcomes(&seeds));
}

/// Runs many seeds on all cores, and returns their outcomes in order. An error is the message of a panic.
fn outcomes(seeds: &[u64]) -> Vec<Result<Run, String>> {
    let next = AtomicU64::new(0);
    let take_turns = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(seed) = seeds.get(at) else { return done };
            done.push((at, outcome(*seed)));
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

fn outcome(seed: u64) -> Result<Run, String> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| World::run(seed, false)));
    outcome.map_err(|fault| match (fault.downcast_ref::<String>(), fault.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "a panic without a message".to_owned(),
    })
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
