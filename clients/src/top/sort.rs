//! The orders of rows that the user can choose.

use std::cmp::Reverse;

use super::snapshot::{Pool, Session, Worker};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum PoolOrder {
    /// As in bus.json.
    #[default]
    Declared,
    Memory,
    Cpu,
    Sessions,
}

impl PoolOrder {
    pub(super) fn next(self) -> PoolOrder {
        match self {
            PoolOrder::Declared => PoolOrder::Memory,
            PoolOrder::Memory => PoolOrder::Cpu,
            PoolOrder::Cpu => PoolOrder::Sessions,
            PoolOrder::Sessions => PoolOrder::Declared,
        }
    }

    /// `None`: it goes without saying.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            PoolOrder::Declared => None,
            PoolOrder::Memory => Some("memory"),
            PoolOrder::Cpu => Some("CPU"),
            PoolOrder::Sessions => Some("sessions"),
        }
    }

    /// The most first.
    pub(super) fn sort(self, pools: &mut [Pool]) {
        let amount: fn(&Worker) -> u64 = match self {
            PoolOrder::Declared => return,
            PoolOrder::Memory => |worker| worker.rss_bytes.unwrap_or(0),
            PoolOrder::Cpu => |worker| (worker.cpu_percent.unwrap_or(0.0) * 10.0) as u64,
            PoolOrder::Sessions => |worker| worker.sessions.unwrap_or(0),
        };
        for pool in pools.iter_mut() {
            pool.workers.sort_by_key(|worker| Reverse(amount(worker)));
        }
        pools.sort_by_key(|pool| Reverse(pool.workers.iter().map(amount).sum::<u64>()));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum SessionOrder {
    /// The oldest first.
    #[default]
    Age,
    /// Those that ask something first, then those that work.
    Attention,
    /// The one that was heard last first.
    Idle,
    Worker,
}

impl SessionOrder {
    pub(super) fn next(self) -> SessionOrder {
        match self {
            SessionOrder::Age => SessionOrder::Attention,
            SessionOrder::Attention => SessionOrder::Idle,
            SessionOrder::Idle => SessionOrder::Worker,
            SessionOrder::Worker => SessionOrder::Age,
        }
    }

    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            SessionOrder::Age => None,
            SessionOrder::Attention => Some("attention"),
            SessionOrder::Idle => Some("last heard"),
            SessionOrder::Worker => Some("worker"),
        }
    }

    pub(super) fn sort(self, sessions: &mut [Session]) {
        match self {
            SessionOrder::Age => {}
            SessionOrder::Attention => {
                sessions.sort_by_key(|session| Reverse((session.questions, session.calls)));
            }
            SessionOrder::Idle => sessions.sort_by_key(|session| session.idle_sec),
            SessionOrder::Worker => sessions.sort_by_key(Session::worker_name),
        }
    }
}
