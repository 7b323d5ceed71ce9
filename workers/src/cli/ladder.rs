//! How a CLI is ended: asked, then by signals, then with everything that it started.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::process::Process;

/// How long it may take to end after an interrupt, and then after SIGTERM.
pub(super) const INTERRUPTED: Duration = Duration::from_secs(2);
const TERMINATED: Duration = Duration::from_secs(3);
/// Each of them when the worker itself must leave.
const HURRIED: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(5);

#[derive(PartialEq)]
pub(super) enum Ladder {
    Running,
    Interrupted(Instant),
    Terminated(Instant),
}

impl Ladder {
    /// One look. `interrupt` is how this CLI is asked to stop what it does.
    pub(super) fn step(
        self,
        hurry: bool,
        is_over: bool,
        process: &mut Process,
        interrupt: impl FnOnce(&mut Process),
    ) -> Ladder {
        let now = Instant::now();
        let wait = |usual: Duration| now + if hurry { HURRIED } else { usual };
        match self {
            Ladder::Running if is_over => {
                interrupt(process);
                Ladder::Interrupted(wait(INTERRUPTED))
            }
            Ladder::Interrupted(until) if now > until.min(wait(INTERRUPTED)) => {
                process.signal(Signal::SIGTERM);
                Ladder::Terminated(wait(TERMINATED))
            }
            Ladder::Terminated(until) if now > until.min(wait(TERMINATED)) => {
                process.kill_all();
                Ladder::Terminated(until)
            }
            ladder => ladder,
        }
    }
}

/// Ends one that waits for its next prompt: the end of its stdin is enough for most.
pub(super) fn close(mut process: Process, is_hurried: impl Fn() -> bool) {
    process.hang_up();
    let mut ladder = Ladder::Running;
    while process.exited().is_none() {
        ladder = ladder.step(is_hurried(), true, &mut process, |_| {});
        thread::sleep(LOOK);
    }
    process.kill_all();
}
