//! What a user sees while the agent starts: its name and how long it has taken so far.

use std::time::{Duration, Instant};

use super::agent::Agent;

/// An agent that starts faster needs no word.
const FIRST_TICK: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_secs(1);

pub(super) struct Starting {
    what: String,
    since: Instant,
    next_tick: Instant,
}

impl Starting {
    pub(super) fn new(agent: &Agent) -> Starting {
        let name = &agent.name;
        let what = match agent.is_behind_bus() {
            true => format!("waiting for {name}"),
            // A command may be a path.
            false => format!("starting {}", name.rsplit('/').next().unwrap_or(name)),
        };
        let since = Instant::now();
        Starting { what, since, next_tick: since + FIRST_TICK }
    }

    pub(super) fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// The words for now.
    pub(super) fn tick(&mut self) -> String {
        let elapsed = self.since.elapsed();
        self.next_tick = self.since + TICK * (u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX - 1) + 1);
        match elapsed.as_secs() {
            0 => format!("{}...", self.what),
            seconds => format!("{}... {seconds} s", self.what),
        }
    }
}
