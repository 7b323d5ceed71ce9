//! Errors of the bus itself: sent to a peer, or as the answer of a call that cannot be answered otherwise.

use super::Bus;
use crate::id::{CallKey, Link};
use crate::state::calls::{Endpoint, Purpose};
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
        match call.purpose {
            Purpose::Reopen { session, .. } => self.load_failed(session),
            Purpose::Open => self.opening_ended(call.callee),
            Purpose::Recover(session) => self.recovery_call_failed(session, key, error),
            Purpose::EndSession => {
                if let Endpoint::Worker(id) = self.calls.endpoint(call.callee) {
                    self.closed_at_agent(id, key, &call);
                }
            }
            Purpose::Prompt => self.prompt_ended(call.session, key, None),
            _ => {}
        }
    }

    /// Fails every one of these calls.
    pub(super) fn fail_calls(&mut self, calls: Vec<CallKey>, error: &RpcError) {
        for call in calls {
            self.fail_call(call, error);
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
