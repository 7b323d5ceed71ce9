//! The bus as a process: what the shell knows of it, and the requests that wait for the shell.

use std::collections::{BTreeMap, VecDeque};

use crate::api::{Moment, Usage};
use crate::id::{Link, WorkerId};
use crate::limit::USAGE_EVERY;

#[derive(Default)]
pub(crate) struct Operation {
    pub(crate) pid: Option<u32>,
    /// The file of the configuration.
    pub(crate) config: Option<String>,
    /// The commit that the program was built from.
    pub(crate) commit: Option<&'static str>,
    /// What the processes of workers use, by their ids.
    usage: BTreeMap<u32, Usage>,
    measured_at: Option<Moment>,
    pub(crate) waits_for_status: Vec<Request>,
    pub(crate) waits_for_reload: Vec<Request>,
    /// The workers that are to be restarted, one after the other, and the process that each had.
    pub(crate) to_restart: VecDeque<(WorkerId, Option<u32>)>,
    /// The one of them that is on its way out.
    pub(crate) restarting: Option<WorkerId>,
}

/// A request that will be answered.
pub(crate) struct Request {
    pub(crate) link: Link,
    /// The id as it is spelled.
    pub(crate) id: Box<[u8]>,
}

impl Operation {
    /// Whether what was measured last still holds.
    pub(crate) fn is_measured(&self, now: Moment) -> bool {
        self.measured_at.is_some_and(|at| now.saturating_sub(at) < USAGE_EVERY)
    }

    pub(crate) fn set_usage(&mut self, usage: impl IntoIterator<Item = (u32, Usage)>, now: Moment) {
        self.usage = usage.into_iter().collect();
        self.measured_at = Some(now);
    }

    pub(crate) fn usage_of(&self, pid: Option<u32>) -> Option<Usage> {
        self.usage.get(&pid?).copied()
    }
}
