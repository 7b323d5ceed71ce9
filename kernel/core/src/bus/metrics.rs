//! Counting what happens, for `status`.

use serde_json::{Map, Value, json};

use crate::bus::Bus;
use crate::id::SessionKey;
use crate::state::calls::{BUS, Call};
use crate::state::metrics::{FLOW, Latency};
use crate::state::pools::PoolId;
use crate::wire::error::RpcError;

impl Bus {
    /// Puts away what happened until now, if a new second has begun.
    #[inline]
    pub(super) fn rotate_metrics(&mut self) {
        if self.now.as_secs() > self.metrics.second {
            self.begin_second();
        }
    }

    #[cold]
    fn begin_second(&mut self) {
        let (from, to) = (self.metrics.second, self.now.as_secs());
        let flow = self.flow();
        self.metrics.flow.rotate(from, to, flow);
        let ids: Vec<PoolId> = self.pools.iter().map(|(id, _)| id).collect();
        for id in ids {
            let requests = self.requests_of(id);
            let Some(pool) = self.pools.get_mut(id) else { continue };
            pool.metrics.requests.rotate(from, to, [requests]);
            pool.metrics.latency.begin(from, to);
        }
        self.metrics.second = to;
    }

    /// A worker has answered a call.
    pub(super) fn count_answer(&mut self, pool: PoolId, call: &Call, failed: bool) {
        self.counters.answers += 1;
        self.counters.errors += u64::from(failed);
        if call.caller == BUS {
            return;
        }
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.metrics.latency.add(call.age_us(self.now));
        }
        self.touch(call.session);
    }

    pub(super) fn count_error(&mut self, error: &RpcError) {
        *self.counters.refused.entry(error.reason()).or_default() += 1;
    }

    /// Something was said about this session.
    #[inline]
    pub(super) fn touch(&mut self, session: Option<SessionKey>) {
        if let Some(session) = session.and_then(|key| self.sessions.get_mut(key.0)) {
            session.touched = self.now;
        }
    }

    /// Each second of late.
    pub(super) fn rates(&self) -> Value {
        let rates = self.metrics.flow.each_second(self.flow(), self.now);
        FLOW.iter().zip(rates).map(|(name, rate)| ((*name).to_owned(), rate)).collect::<Map<_, _>>().into()
    }

    pub(super) fn pool_rates(&self, id: PoolId) -> Value {
        let Some(pool) = self.pools.get(id) else { return Value::Null };
        let [requests] = pool.metrics.requests.each_second([self.requests_of(id)], self.now);
        json!({ "requests": requests })
    }

    /// How long clients waited for their answers of late. Of all pools, or of this one.
    pub(super) fn latency(&self, of: Option<PoolId>) -> Value {
        let pools = self.pools.iter().filter(|(id, _)| of.is_none_or(|of| of == *id));
        Latency::describe(pools.map(|(_, pool)| &pool.metrics.latency))
    }

    fn flow(&self) -> [u64; FLOW.len()] {
        let (lines_out, bytes_out) = self.links.written();
        [self.counters.lines_in, lines_out, self.counters.bytes_in, bytes_out, self.counters.requests]
    }

    fn requests_of(&self, id: PoolId) -> u64 {
        let Some(pool) = self.pools.get(id) else { return 0 };
        let workers = pool.workers.iter().filter_map(|id| self.workers.get(id.0));
        pool.metrics.past_requests + workers.map(|worker| worker.requests).sum::<u64>()
    }
}
