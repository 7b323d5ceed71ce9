//! What the simulations have in common: they run many seeds on all cores, catch what a world says, and read numbers
//! from the environment.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// So many seeds that failed are printed.
const PRINTED: usize = 8;

thread_local! {
    /// Panics of this thread are expected: the code that catches them reports them.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Does the same for each number below `count`, on all cores, and returns the results in order.
pub(crate) fn on_all_cores<T: Send>(count: u64, each: impl Fn(u64) -> T + Sync) -> Vec<T> {
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

/// Runs one world. The error is the message of its panic.
pub(crate) fn outcome<T>(world: impl FnOnce() -> T) -> Result<T, String> {
    quiet_panics();
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(world));
    QUIET.set(false);
    outcome.map_err(|fault| match (fault.downcast_ref::<String>(), fault.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "a panic without a message".to_owned(),
    })
}

fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
}

/// Fails if a seed did, and prints why and how to run it again: the command with the seed in a variable.
pub(crate) fn check_all<'a, T: 'a>(
    outcomes: impl IntoIterator<Item = &'a (u64, Result<T, String>)>,
    variable: &str,
    command: &str,
) {
    let (mut count, mut failed) = (0, 0);
    for (seed, outcome) in outcomes {
        count += 1;
        let Err(why) = outcome else { continue };
        failed += 1;
        if failed <= PRINTED {
            println!("seed {seed:#x}: {why}\n  replay: {variable}={seed:#x} {command} -- --nocapture");
        }
    }
    assert_eq!(failed, 0, "seeds failed, of {count}");
}

/// Fails if a check that was switched off was not noticed. `caught` are the checks with the seed that showed it and
/// what that said, which is printed only on request: a log of many of them would look like one of
/// faults. The other lines are those of the file of kept seeds.
pub(crate) fn check_caught<C: Debug>(
    caught: impl IntoIterator<Item = (C, Option<(u64, String)>)>,
    is_asked_for: bool,
) {
    let mut survivors = Vec::new();
    for (check, caught) in caught {
        match caught {
            Some((seed, why)) if is_asked_for => println!("{check:?} {seed:#x}: {why}"),
            Some((seed, _)) => println!("{check:?} {seed:#x}"),
            None => survivors.push(check),
        }
    }
    assert!(survivors.is_empty(), "these were switched off, and no seed has shown it: {survivors:?}");
}

/// The number in a variable of the environment, if there is one.
pub(crate) fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
