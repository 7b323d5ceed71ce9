//! `_bus/logs`: what workers wrote to their stderr.

use serde::{Deserialize, Serialize};

use super::Bus;
use super::admin::params_of;
use crate::api::micros;
use crate::limit::STDERR_ANSWER_LINES;
use crate::state::stderr_logs::{Told, Wanted};
use crate::wire::error::RpcError;
use crate::wire::message::Message;

/// So many lines are told to somebody who does not say how many.
const LINES: usize = 200;

#[derive(Default, Deserialize)]
struct Params {
    pool: Option<Box<str>>,
    worker: Option<u32>,
    lines: Option<usize>,
    from: Option<u64>,
}

#[derive(Serialize)]
struct Answer<'a> {
    lines: Vec<Told<'a>>,
    /// Ask for lines from here on to hear what comes later.
    next: u64,
    at_us: u64,
}

impl Bus {
    pub(super) fn logs_request(&self, message: Message<'_>) -> Result<String, RpcError> {
        let params: Params = params_of(message)?;
        if let Some(name) = &params.pool {
            let pool = self.pools.find(name)?;
            if let Some(index) = params.worker
                && !self.stderr_logs.has_worker(name, index)
                && !self.pools.get(pool).is_some_and(|pool| {
                    pool.workers.iter().filter_map(|id| self.workers.get(*id)).any(|it| it.index == index)
                })
            {
                return Err(RpcError::invalid(format!("the pool {name:?} has no worker {index}")));
            }
        } else if params.worker.is_some() {
            return Err(RpcError::invalid("of which pool is this worker?"));
        }
        let (lines, next) = self.stderr_logs.lines(&Wanted {
            pool: params.pool.as_deref(),
            worker: params.worker,
            from: params.from,
            at_most: params.lines.unwrap_or(LINES).min(STDERR_ANSWER_LINES),
        });
        let answer = Answer { lines, next, at_us: micros(self.now) };
        serde_json::to_string(&answer).map_err(|fault| RpcError::invalid(fault.to_string()))
    }
}
