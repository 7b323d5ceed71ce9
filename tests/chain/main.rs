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
#[path = "../../kernel/core/tests/sim/rng.rs"]
mod rng;
#[path = "../../kernel/core/tests/sim/seeds.rs"]
mod seeds;
mod wire;
mod world;

use cluster::mutants::{Check, with_check_off};

use self::seeds::{check_all, check_caught, number_in, on_all_cores};
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
    check_all(&outcomes, "BUS_CHAIN_SEED", "cargo test --test chain");
    let mut all = Run::default();
    outcomes.iter().flat_map(|(_, outcome)| outcome).for_each(|run| all.add(run));
    println!("{} seeds: {all:?}", seeds.len());
    // A world in which nothing is asked or nothing dies shows nothing.
    let enough =
        all.results > 5 * seeds.len() && all.errors > seeds.len() && all.lost_pipes > seeds.len() / 2;
    assert!(enough || seeds.len() < 100, "{all:?} is little");
}

/// The oracle would notice a pipe that is not reliable.
#[test]
fn a_pipe_without_its_checks_is_noticed() {
    let caught = [Check::Duplicate, Check::KeepUntilAcked].map(|check| {
        let noticed = |seed| Some((seed, with_check_off(check, || outcome(seed)).err()?));
        (check, (0..300).find_map(noticed))
    });
    check_caught(caught, false);
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let seeds: Vec<u64> = (0..10).collect();
    assert_eq!(outcomes(&seeds), outcomes(&seeds));
}

/// Runs many seeds on all cores, and returns their outcomes in order.
fn outcomes(seeds: &[u64]) -> Vec<(u64, Result<Run, String>)> {
    on_all_cores(seeds.len() as u64, |at| (seeds[at as usize], outcome(seeds[at as usize])))
}

/// Runs one seed. The error is the message of its panic.
fn outcome(seed: u64) -> Result<Run, String> {
    seeds::outcome(|| World::run(seed, false))
}
