//! Errors of the bus itself: sent to a peer, or as the answer of a call that cannot be answered otherwise.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Bus;
use crate::id::{CallKey, Link};
use crate::state::calls::Endpoint;
use crate::state::leftovers::Leftover;
use crate::wire::error::RpcError;

impl Bus {
    /// Sends an error of the bus itself.
    pub(super) fn send_error(&mut self, link: Link, id: Option<&[u8]>, error: &RpcError) {
        self.counters.count_error(error);
        self.send_own(link, &error.line(id));
    }

    /// Ends a call with an error of the bus, if its caller is still there.
    pub(super) fn fail_call(&mut self, key: CallKey, error: &RpcError) {
        let Some(call) = self.calls.end(key) else { return };
        let to = match self.calls.endpoint(call.caller) {
            Endpoint::Client(link) => Some(link),
            Endpoint::Worker(worker) => self.workers.get(worker).and_then(|worker| worker.link),
            Endpoint::Bus => None,
        };
        if let Some(link) = to {
            self.counters.count_error(error);
            let line = error.line(Some(call.id.as_bytes()));
            self.trace_own(link, &line, Some((key, call.age_us(self.now))));
            self.links.send(link, &line, &[]);
        }
        self.todo.ended(&self.calls, key, call, error);
    }

    /// Fails every one of these calls.
    pub(super) fn fail_calls(&mut self, calls: Vec<CallKey>, error: &RpcError) {
        for call in calls {
            self.fail_call(call, error);
        }
    }

    /// Fails these calls, which may be many.
    pub(super) fn fail_many(&mut self, calls: VecDeque<CallKey>, error: &RpcError) {
        if !calls.is_empty() {
            self.begin_work(Leftover::Failed(calls, Arc::new(error.clone())));
        }
    }

    /// The error as a whole line for a connection that the bus does not know.
    pub(super) fn refusal_line(&mut self, error: &RpcError) -> Vec<u8> {
        self.counters.count_error(error);
        let mut line = error.line(None);
        line.push(b'\n');
        line
    }
}
