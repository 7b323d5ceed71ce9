//! The deterministic simulation of the core. One seed is one world of clients, workers and faults, and an oracle that
//! knows only what peers sent and received judges it.
//!
//! A world is plain or ambiguous. In a plain one every name and id is unique, and the oracle checks every rule. In an
//! ambiguous one agents and clients reuse names and ids, and the oracle may suspend a check by an excuse (see
//! `excuse`), which is counted and bounded. Half of the seeds of a run are plain. Of these, one in four is a greedy
//! world (see `greedy`), one in four has guests (see `guests`), and one in four has guests and long lines. One world in
//! sixteen has nodes (see `nodes`), and in one of sixteen processes are restarted and drained (see `replace`).
//!
//! `BUS_SIM_SEED=0x..` replays one seed with its trace. `BUS_SIM_SEEDS=N` runs N seeds, half of each kind, from
//! `BUS_SIM_FIRST` or 0 on; with `BUS_SIM_KIND=0x..`, the bits of a kind of world, all are of that kind.
//! `BUS_SIM_CHECK=Name,..` switches off only these checks. Seeds run on every core; since each
//! is a world of its own, that changes only the time.

mod agent;
mod auth;
mod cause;
mod client;
mod draft;
mod excuse;
mod greedy;
mod guests;
mod heard;
mod line;
mod list;
mod nodes;
mod oracle;
mod parse;
mod pending;
mod pipe;
mod plan;
mod process;
mod record;
mod reopen;
mod replace;
mod rng;
mod run;
mod seeds;
mod store;
mod to_client;
mod to_worker;
mod upgrade;
mod worker;
mod worker_message;
mod world;

use std::collections::BTreeSet;

use kernel_core::mutants::{Check, with_check_off};

use self::excuse::{Count, Excuse, Excuses};
use self::greedy::GREEDY;
use self::guests::{GUESTS, LONG};
use self::nodes::NODES;
use self::plan::{PLAIN, is_plain};
use self::replace::REPLACE;
use self::run::Run;
use self::seeds::{check_all, check_caught, number_in, on_all_cores};
use upgrade::with_upgrades;

/// Seeds that have found a fault before, or that show what few others do.
const KEPT_SEEDS: &[u64] = &[
    0x13a4,
    0xc2,
    0x1810,
    0x1c89,
    0x2176,
    0x2c70,
    0x30d0,
    0x15c,
    0x3fd6,
    0x50f5,
    0x9d49,
    0x9ff5,
    0xe435,
    0xec7a,
    0x124ac,
    0x1305e,
    0x1018c3,
    0x102246,
    0x103f01,
    0x1067ff,
    0x107a83,
    0x108785,
    0x10d64b,
    0x113da8,
    0x116d7c,
    0x100000038,
    0x100000055,
    0x100000076,
    0x1000000b2,
    0x1000000ea,
    0x100000138,
    0x100000162,
    0x100000192,
    0x1000001a9,
    0x1000002b9,
    0x1000002cc,
    0x1000004c0,
    0x100000506,
    0x10000057c,
    0x1000005bc,
    0x100000968,
    0x100002219,
    0x100002f48,
    0x10000307c,
    0x100003118,
    0x100005ee7,
    0x1000061c1,
    0x10000124c,
    0x500000065,
    0x10000028c,
    0x1000002bc,
    0x100000236,
    0x110000002f,
    0x1100000037,
    0x11000000df,
    0x1100000d67,
    0x10000184e,
    0x100001aca,
    0x100002078,
    0x100002248,
    0x1000024c4,
    0x2d9aa,
    0x1000073fe,
    0x900003bab,
    0x250000002c,
    0x2500000041,
    0x2500000001,
    0x2500000027,
    0x2500000003,
    0x2500000089,
];
const SEEDS: u64 = 256;
/// A mutant must be caught within this many seeds.
const MUTANT_SEEDS: u64 = 1024;
/// So many of them come before the kept seeds.
const MUTANT_SEEDS_FIRST: usize = 64;
/// This many seeds are run twice, and one of `TWICE_PART` where `BUS_SIM_SEEDS` asks for more.
const TWICE_SEEDS: u64 = 32;
const TWICE_PART: u64 = 50;
/// The average number of calls of the bus in a world must be at least this, since a world without events shows nothing.
const CALLS_EACH: usize = 500;
/// An excuse that was used no more often than this is not judged, because there were too few checks.
const FEW_EXCUSES: usize = 8;

#[test]
fn every_request_is_answered_once_in_every_world() {
    if let Some(seed) = number_in("BUS_SIM_SEED") {
        println!("seed {seed:#x}, {:x?}", run::run(seed, true));
        return;
    }
    let count = number_in("BUS_SIM_SEEDS").unwrap_or(SEEDS);
    let first = number_in("BUS_SIM_FIRST").unwrap_or(0);
    // A world that fails by itself would seem to show every mutant.
    let kept: BTreeSet<u64> =
        KEPT_SEEDS.iter().copied().chain(mutant_seeds().map(|(_, seed)| seed)).collect();
    let kept: Vec<u64> = kept.into_iter().collect();
    let kept = outcomes(kept.len() as u64, |at| kept[at as usize]);
    let new = outcomes(count, |at| nth_seed(first, at));
    check_all(kept.iter().chain(&new), "BUS_SIM_SEED", "cargo sim every_request");
    let mut calls = 0;
    let mut excuses = Excuses::default();
    for (seed, outcome) in &new {
        let Ok(run) = outcome else { continue };
        calls += run.calls;
        if !is_plain(*seed) {
            excuses.add(&run.excuses);
        }
    }
    println!("{count} seeds from {first:#x}, every other one plain, {calls} calls of the bus");
    assert!(calls >= new.len() * CALLS_EACH, "{calls} calls of the bus are few for {count} seeds");
    check_excuses(&excuses);
}

/// Prints how often each excuse was used, and fails where one was used too often.
fn check_excuses(excuses: &Excuses) {
    for excuse in Excuse::ALL {
        let Count { checks, used } = excuses.of(excuse);
        let at_most = checks * excuse.at_most_per_mille() / 1000;
        println!("excuse {excuse:?}: used in {used} of {checks} checks, at most {at_most}");
        assert!(used <= at_most.max(FEW_EXCUSES), "{excuse:?} suspends {used} of {checks} checks");
    }
}

/// Switches off each check of the core in turn. Some world must show that it is missing. The worlds that did so last
/// are in `mutants.txt`. What this test prints are its lines: a seed that no longer shows it only costs time.
#[test]
fn every_check_that_is_switched_off_is_noticed() {
    let only = std::env::var("BUS_SIM_CHECK").ok();
    let is_wanted = |check: &Check| {
        only.as_ref().is_none_or(|only| only.split(',').any(|name| name == format!("{check:?}")))
    };
    let count = number_in("BUS_SIM_SEEDS").unwrap_or(MUTANT_SEEDS);
    let first = number_in("BUS_SIM_FIRST").unwrap_or(0);
    let checks: Vec<_> = Check::ALL.iter().copied().filter(is_wanted).collect();
    // Kept seeds come early, because some of them show what few others do.
    let seeds = |check: Check| {
        let usual = (0..count).map(|at| nth_seed(first, at));
        let early = usual.clone().take(MUTANT_SEEDS_FIRST).chain(KEPT_SEEDS.iter().copied());
        let name = format!("{check:?}");
        let last = mutant_seeds().filter(move |(check, _)| *check == name).map(|(_, seed)| seed);
        last.chain(early).chain(usual.skip(MUTANT_SEEDS_FIRST))
    };
    let caught = on_all_cores(checks.len() as u64, |at| {
        let check = checks[at as usize];
        let fault = |seed| match Check::OF_UPGRADES.contains(&check) {
            true => with_check_off(check, || goes_on_as_before(seed)).err(),
            false => with_check_off(check, || outcome(seed)).err(),
        };
        seeds(check).find_map(|seed| Some((seed, fault(seed)?)))
    });
    check_caught(checks.iter().zip(caught), only.is_some());
}

/// The checks, and the seed that showed last that each of them was switched off.
fn mutant_seeds() -> impl Iterator<Item = (&'static str, u64)> {
    include_str!("mutants.txt").lines().map(|line| {
        let (check, seed) = line.split_once(" 0x").expect("a check and a seed");
        (check, u64::from_str_radix(seed, 16).expect("a seed"))
    })
}

/// The seed of the nth world of a run: an ambiguous world and a plain one in turn. Each fourth plain one is greedy,
/// each fourth has guests, and each fourth has guests and long lines. One of sixteen worlds has nodes, and in one of
/// sixteen processes are replaced.
fn nth_seed(first: u64, at: u64) -> u64 {
    if let Some(kind) = number_in("BUS_SIM_KIND") {
        return (first + at) | kind;
    }
    let kind = match at % 8 {
        7 => PLAIN | GREEDY,
        3 => PLAIN | GUESTS,
        5 => PLAIN | GUESTS | LONG,
        6 if at % 16 == 6 => PLAIN | NODES,
        6 => PLAIN | REPLACE,
        odd if odd % 2 == 1 => PLAIN,
        _ => 0,
    };
    (first + at / 2) | kind
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let count = TWICE_SEEDS.max(number_in("BUS_SIM_SEEDS").unwrap_or(0) / TWICE_PART);
    let once = outcomes(count, |at| nth_seed(0, at));
    for (again, before) in outcomes(count, |at| nth_seed(0, count - 1 - at)).iter().zip(once.iter().rev()) {
        assert_eq!(again, before);
    }
}

/// The whole state of the bus can be written down and read back, at any moment.
#[test]
fn a_bus_that_is_saved_and_restored_goes_on_as_before() {
    let count = TWICE_SEEDS.max(number_in("BUS_SIM_SEEDS").unwrap_or(0) / TWICE_PART);
    if let Some(seed) = number_in("BUS_SIM_SEED") {
        println!("seed {seed:#x}, {:x?}", with_upgrades(seed | 1, || run::run(seed, true)));
        return;
    }
    let first = number_in("BUS_SIM_FIRST").unwrap_or(0);
    // A world that fails by itself would seem to show every mutant.
    let of_upgrades = |name: &str| Check::OF_UPGRADES.iter().any(|check| format!("{check:?}") == name);
    let kept = mutant_seeds().filter(|(name, _)| of_upgrades(name)).map(|(_, seed)| seed);
    let seeds: Vec<u64> = kept.chain((0..count).map(|at| nth_seed(first, at))).collect();
    let outcomes =
        on_all_cores(seeds.len() as u64, |at| (seeds[at as usize], goes_on_as_before(seeds[at as usize])));
    check_all(&outcomes, "BUS_SIM_SEED", "cargo sim a_bus_that_is_saved");
}

/// Whether the same history follows in a world whose bus is saved and restored again and again.
fn goes_on_as_before(seed: u64) -> Result<(), String> {
    let before = outcome(seed)?;
    let upgraded = seeds::outcome(|| with_upgrades(seed | 1, || run::run(seed, false)))?;
    // Where lines are long, the sizes of buffers decide how many bytes are read and written at once.
    if upgraded == before || seed & guests::LONG != 0 {
        return Ok(());
    }
    Err(format!("another history follows: {upgraded:x?} instead of {before:x?}"))
}

/// Runs many seeds on all cores, and returns their outcomes in order.
fn outcomes(count: u64, seed: impl Fn(u64) -> u64 + Sync) -> Vec<(u64, Result<Run, String>)> {
    on_all_cores(count, |at| (seed(at), outcome(seed(at))))
}

/// Runs one seed. The error is the message of its panic.
fn outcome(seed: u64) -> Result<Run, String> {
    seeds::outcome(|| with_upgrades(0, || run::run(seed, false)))
}
