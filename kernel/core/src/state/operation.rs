//! The bus as a process: what the shell knows of it, and the requests that wait for the shell.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{Moment, Usage, Wish, micros};
use crate::id::{Link, PoolId, WorkerId};
use crate::limit::USAGE_EVERY;

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) pid: Option<u32>,
    /// The file of the configuration.
    pub(crate) config: Option<String>,
    /// The commit that the program was built from.
    #[serde(skip)]
    pub(crate) commit: Option<&'static str>,
    /// What the processes of workers use, by their ids.
    usage: BTreeMap<u32, Usage>,
    measured_at: Option<Moment>,
    pub(crate) waits_for_status: Vec<StatusRequest>,
    pub(crate) waits_for_reload: Vec<Request>,
    #[serde(default)]
    pub(crate) upgrade: Option<Asked>,
    #[serde(default)]
    pub(crate) upgraded: Option<Upgraded>,
    /// The workers that are to be restarted, one after the other, and the process that each had.
    pub(crate) to_restart: VecDeque<(WorkerId, Option<u32>)>,
    /// The one of them that is on its way out.
    pub(crate) restarting: Option<WorkerId>,
}

/// A request that will be answered.
#[derive(Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) link: Link,
    /// The id as it is spelled.
    pub(crate) id: Box<[u8]>,
}

/// A request for a status that is answered once the shell has measured.
#[derive(Serialize, Deserialize)]
pub(crate) struct StatusRequest {
    pub(crate) link: Link,
    /// The id as it is spelled.
    pub(crate) id: Box<[u8]>,
    /// The only pool that it is about.
    #[serde(default)]
    pub(crate) pool: Option<PoolId>,
}

/// A client that wants the bus to become another program.
#[derive(Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) wish: Wish,
}

/// The last time that another program took the place of this one's.
#[derive(Serialize, Deserialize)]
pub(crate) struct Upgraded {
    /// How often that has happened since the bus began.
    pub(crate) count: u64,
    /// The version of the program before.
    pub(crate) from: String,
    pub(crate) at: Moment,
    /// How long nobody was served.
    pub(crate) pause: Duration,
}

impl Upgraded {
    /// For `_bus/status`.
    pub(crate) fn describe(&self) -> Value {
        let Upgraded { count, from, at, pause } = self;
        json!({ "count": count, "from": from, "at_us": micros(*at), "pause_us": micros(*pause) })
    }
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
