//! The order in which a process is stopped: interrupt, SIGTERM, SIGKILL.
//!
//! This file is pure: the caller has the clock and the process.

use std::time::{Duration, Instant};

/// How long a process may take to end after an interrupt.
pub(super) const INTERRUPT_GRACE: Duration = Duration::from_secs(2);
/// How long it may take after SIGTERM.
const TERMINATE_GRACE: Duration = Duration::from_secs(3);
/// Replaces both when the agent itself exits.
const URGENT_GRACE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) enum StopSequence {
    #[default]
    NotStarted,
    Interrupted(Instant),
    Terminated(Instant),
}

/// What to do to the process now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StopStep {
    Wait,
    Interrupt,
    Terminate,
    /// Repeated until the process is gone.
    Kill,
}

impl StopSequence {
    pub(super) fn step(&mut self, now: Instant, is_urgent: bool) -> StopStep {
        let is_over = |since: Instant, grace: Duration| {
            now.saturating_duration_since(since) > if is_urgent { URGENT_GRACE } else { grace }
        };
        match *self {
            StopSequence::NotStarted => {
                *self = StopSequence::Interrupted(now);
                StopStep::Interrupt
            }
            StopSequence::Interrupted(since) if is_over(since, INTERRUPT_GRACE) => {
                *self = StopSequence::Terminated(now);
                StopStep::Terminate
            }
            StopSequence::Terminated(since) if is_over(since, TERMINATE_GRACE) => StopStep::Kill,
            StopSequence::Interrupted(_) | StopSequence::Terminated(_) => StopStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_urgent_stop_shortens_a_grace_that_has_begun() {
        let start = Instant::now();
        let mut sequence = StopSequence::default();
        assert_eq!(sequence.step(start, false), StopStep::Interrupt);
        let soon = start + URGENT_GRACE + Duration::from_millis(1);
        assert_eq!(sequence.step(soon, false), StopStep::Wait);
        assert_eq!(sequence.step(soon, true), StopStep::Terminate);
        assert_eq!(sequence.step(soon + URGENT_GRACE, true), StopStep::Wait);
        assert_eq!(sequence.step(soon + URGENT_GRACE * 2, true), StopStep::Kill);
    }
}
