//! Properties that must hold for any bytes, without a fuzzer: for the inputs of `fuzz/corpus`, for mutations of them,
//! and for generated lines. The inputs are the same in every run; `BUS_INPUTS=N` tries N times as many.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use kernel_core::fuzz::{self, TARGETS};

/// How many mutations of each input are tried, and how many generated lines on each of two threads.
const MUTATIONS: usize = 40;
const LINES: usize = 20_000;

fn times() -> usize {
    std::env::var("BUS_INPUTS").map_or(1, |times| times.parse().expect("BUS_INPUTS is a number"))
}

#[test]
fn inputs_of_the_corpus_and_mutations_of_them_break_nothing() {
    let others: [(&str, fuzz::Target); 4] = [
        ("config", kernel_shell::fuzz::config),
        ("frame", cluster::fuzz::frame),
        ("pipe", cluster::fuzz::pipe),
        ("transcript", history::fuzz::transcript),
    ];
    for (name, target) in TARGETS.into_iter().chain(others) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let mut kept: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|fault| panic!("{}: {fault}", folder.display()))
            .map(|entry| entry.expect("a file").path())
            .collect();
        kept.sort();
        assert!(kept.len() > 4, "{name} has {} kept inputs", kept.len());
        for path in kept {
            let input = fs::read(&path).expect("a file");
            holds(name, target, &input);
            for seed in 0..(MUTATIONS * times()) as u64 {
                holds(name, target, &mutated(&input, seed));
            }
        }
    }
}

/// Compares the scanner with serde_json.
#[test]
fn generated_lines_are_read_as_serde_json_reads_them() {
    std::thread::scope(|scope| {
        for seed in [0x1234_5678_9abc, 0xdef0_1234_5678] {
            scope.spawn(move || {
                for line in fuzz::generated_lines(seed).take(LINES * times()) {
                    holds("scanner", fuzz::scanner, &line);
                    holds("splicer", fuzz::splicer, &line);
                }
            });
        }
    });
}

fn holds(name: &str, target: fn(&[u8]), input: &[u8]) {
    if let Err(fault) = panic::catch_unwind(AssertUnwindSafe(|| target(input))) {
        println!("{name} with \"{}\"", input.escape_ascii());
        panic::resume_unwind(fault);
    }
}

/// The input with a few bytes changed, doubled, removed or inserted.
fn mutated(input: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ input.len() as u64;
    let mut below = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as usize % end.max(1)
    };
    let mut bytes = input.to_vec();
    for _ in 0..=below(4) {
        let at = below(bytes.len() + 1);
        let to = (at + below(16)).min(bytes.len());
        match below(5) {
            0 => bytes.insert(at, below(256) as u8),
            1 => bytes.extend_from_within(at..to),
            2 => drop(bytes.drain(at..to)),
            _ if at == bytes.len() => {}
            3 => bytes[at] ^= 1 << below(8),
            _ => bytes[at] = b"\"\\{}[]:,\n\r0\xff"[below(12)],
        }
    }
    bytes
}
