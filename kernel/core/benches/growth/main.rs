//! Shows that the work of the core for one event does not grow with what else is open, or grows only as it must.
//!
//! Each case builds a bus of some size and lets one thing happen. The benchmark runs itself under `valgrind
//! --tool=callgrind`, which counts the instructions of that one thing, at one size and at four times that size, and
//! compares the growth with what the case allows. Unlike a clock, the count does not depend on the load.
//!
//!     cargo bench -p kernel-core --bench growth                     # check; needs valgrind
//!     cargo bench -p kernel-core --bench growth -- --time [CASE]    # processor time at the full size

mod cases;
mod world;

use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs, process};

use cases::{CASES, Case, Growth};

/// How much the larger size is.
const TIMES: usize = 4;

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--drive", name, size] => {
            (find(name).run)(size.parse().expect("a size"), &mut measured);
            ExitCode::SUCCESS
        }
        [] => check(&CASES.iter().collect::<Vec<_>>()),
        ["--time"] => time(&CASES.iter().collect::<Vec<_>>()),
        ["--time", name] => time(&[find(name)]),
        [name] => check(&[find(name)]),
        _ => {
            eprintln!("growth: --time, the name of a case, both, or nothing");
            ExitCode::from(2)
        }
    }
}

fn find(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("a case of this benchmark")
}

/// Only what happens in here is counted.
#[inline(never)]
fn measured(act: &mut dyn FnMut()) {
    act();
}

fn check(cases: &[&Case]) -> ExitCode {
    let mut failed = false;
    println!("{:<20}{:>8}{:>14}{:>14}{:>9}  allowed", "case", "size", "instructions", "at 4 x", "growth");
    for case in cases {
        let (Some(small), Some(large)) =
            (instructions(case, case.size), instructions(case, case.size * TIMES))
        else {
            println!("no valgrind: instructions are not counted");
            return ExitCode::SUCCESS;
        };
        let growth = large as f64 / small as f64;
        let allowed = match case.growth {
            // A tree is a little deeper, and the allocator has more to look through.
            Growth::None => 2.0,
            Growth::Linear => 1.25 * TIMES as f64,
        };
        let verdict = if growth <= allowed { "" } else { "  FAILED" };
        failed |= growth > allowed;
        println!(
            "{:<20}{:>8}{small:>14}{large:>14}{growth:>8.2}x  {allowed:.1}x{verdict}",
            case.name, case.size
        );
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The processor time of each case at the size that docs/RELIABILITY.md names, the least of three.
fn time(cases: &[&Case]) -> ExitCode {
    println!("{:<20}{:>8}{:>12}", "case", "size", "time");
    for case in cases {
        let mut least = f64::MAX;
        for _ in 0..3 {
            (case.run)(case.full, &mut |act| {
                let start = Instant::now();
                act();
                least = least.min(start.elapsed().as_secs_f64());
            });
        }
        println!("{:<20}{:>8}{:>9.3} ms", case.name, case.full, least * 1e3);
    }
    ExitCode::SUCCESS
}

/// `None`: there is no valgrind.
fn instructions(case: &Case, size: usize) -> Option<u64> {
    let path = env::temp_dir().join(format!("growth-{}-{}", process::id(), case.name));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--toggle-collect=*growth*measured*"]);
    valgrind.arg(format!("--callgrind-out-file={}", path.display()));
    valgrind.arg(env::current_exe().expect("a path")).args(["--drive", case.name, &size.to_string()]);
    let output = valgrind.output().ok()?;
    let _ = fs::remove_file(path);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let count = stderr.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    Some(count.expect("valgrind prints the count"))
}
