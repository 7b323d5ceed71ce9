//! The loads that peers are compared by, and the goal of each.

use std::time::Duration;

use crate::acp::Turns;
use crate::load::Load;

/// Updates per turn, where they are counted.
const UPDATES: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The median time of the bus must be at most so many times that of socat.
    Time(f64),
    /// The rate of the bus must be at least so many times that of socat.
    Rate(f64),
    /// No goal: the load is only measured.
    None,
}

#[derive(Clone, Copy)]
pub(crate) enum Stream {
    /// Plain requests, each with one answer.
    No,
    /// Turns whose updates the agent writes in batches.
    Batched,
    /// Turns whose updates the agent writes one by one.
    Flushed,
}

#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) connections: u32,
    pub(crate) window: usize,
    pub(crate) line_bytes: usize,
    pub(crate) stream: Stream,
    pub(crate) goal: Goal,
}

/// The loads with a goal, and two more sizes for the plot.
pub(crate) const CASES: [Case; 11] = [
    plain(1, 1, 200, Goal::Time(1.10)),
    plain(1, 64, 200, Goal::Rate(0.80)),
    plain(16, 16, 200, Goal::Rate(0.80)),
    plain(256, 4, 200, Goal::Rate(1.00)),
    plain(1, 64, 1 << 10, Goal::None),
    plain(1, 64, 4 << 10, Goal::Rate(0.95)),
    plain(1, 64, 16 << 10, Goal::None),
    plain(1, 64, 64 << 10, Goal::Rate(0.90)),
    plain(1, 8, 1 << 20, Goal::Rate(0.90)),
    turns(1, Stream::Flushed, Goal::Time(1.50)),
    turns(16, Stream::Batched, Goal::Rate(0.50)),
];

const fn plain(connections: u32, window: usize, line_bytes: usize, goal: Goal) -> Case {
    Case { connections, window, line_bytes, stream: Stream::No, goal }
}

const fn turns(connections: u32, stream: Stream, goal: Goal) -> Case {
    Case { connections, window: 1, line_bytes: 200, stream, goal }
}

impl Case {
    pub(crate) fn name(&self) -> String {
        let Case { connections, window, .. } = self;
        match self.stream {
            Stream::No => format!("{connections}x{window} at {}", self.size()),
            Stream::Batched => format!("{connections} x {UPDATES} updates"),
            Stream::Flushed => format!("{connections} x {UPDATES} flushed"),
        }
    }

    /// For the documentation.
    pub(crate) fn describe(&self) -> String {
        let clients = if self.connections == 1 {
            "1 client".to_owned()
        } else {
            format!("{} clients", self.connections)
        };
        match self.stream {
            Stream::No => format!("{clients}, {} in flight, {}", self.window, self.size()),
            Stream::Batched => format!("{clients}, turns of {UPDATES} updates"),
            Stream::Flushed => format!("{clients}, turns of {UPDATES} updates, each flushed"),
        }
    }

    fn size(&self) -> String {
        let bytes = self.line_bytes;
        match bytes {
            0..1024 => format!("{bytes} B"),
            1024..0x10_0000 => format!("{} KB", bytes >> 10),
            _ => format!("{} MB", bytes >> 20),
        }
    }

    /// The arguments of the agent.
    pub(crate) fn agent(&self) -> &'static [&'static str] {
        match self.stream {
            Stream::No => &["agent"],
            Stream::Batched => &["agent", "--updates", "1000"],
            Stream::Flushed => &["agent", "--updates", "1000", "--flush-each"],
        }
    }

    pub(crate) fn load(&self, measured: Duration) -> Load {
        let turns = match self.stream {
            Stream::No => None,
            _ => Some(Turns { sessions: 1, updates: Some(UPDATES), ask_every: None }),
        };
        let &Case { window, line_bytes, .. } = self;
        Load { turns, rate: None, window, line_bytes, warmup: measured / 2, measured }
    }
}

impl Goal {
    /// Whether the goal is about the time, not the rate.
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Goal::Time(_))
    }

    pub(crate) fn describe(self) -> String {
        match self {
            Goal::Time(most) => format!("<= {most:.2} (p50)"),
            Goal::Rate(least) => format!(">= {least:.2}"),
            Goal::None => "-".to_owned(),
        }
    }

    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Goal::Time(most) => ratio <= most,
            Goal::Rate(least) => ratio >= least,
            Goal::None => true,
        }
    }
}
