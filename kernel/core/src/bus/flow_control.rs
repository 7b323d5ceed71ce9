//! Flow control: who is not read because somebody's queue is full, and what becomes of those who take nothing.
//!
//! Messages are never dropped; a peer that stops taking them is. Every pause has a deadline.

use log::warn;

use crate::bus::{Bus, ReadMode};
use crate::id::{Link, WorkerId};
use crate::limit::{LINE_BYTES_WHEN_FULL, QUEUE_HARD_TIMES, STALL_TIMEOUT, UNFINISHED_LINE_TIMEOUT};
use crate::mutants::{Check, enabled};
use crate::state::calls::{CallKey, Endpoint, EndpointId, Written};
use crate::state::timers::Alarm;
use crate::wire::error::{Death, RpcError};

impl Bus {
    /// What `from` sent made the queue of `full` longer than its limit.
    pub(super) fn on_over_limit(&mut self, from: Link, full: Link) {
        // A worker's answer lets go of what waited for a worker, even for itself. It must be read on: who cannot
        // write does not read either, and so would never have room again.
        if self.worker_of(from).is_some() && self.worker_of(full).is_some() {
            return;
        }
        let feeds_others = self.feeds_others(from, full);
        if feeds_others && self.links.queued_bytes(full) <= self.hard_limit() {
            return;
        }
        self.links.pause(from, full);
        if let Some(peer) = self.links.peer(full).filter(|_| feeds_others) {
            self.alarms.set(self.now.max(peer.last_progress + STALL_TIMEOUT), Alarm::Stall(full));
        }
    }

    /// A worker that serves other clients too is not to wait for this one.
    fn feeds_others(&self, from: Link, full: Link) -> bool {
        if self.worker_of(full).is_some() {
            return false;
        }
        let worker = self.worker_of(from).and_then(|worker| self.workers.get(worker.0));
        worker.is_some_and(|worker| worker.clients.iter().any(|client| *client != full))
    }

    /// What may wait for one peer before those who feed it are not read. The fuller the house the less, so that
    /// peers who take nothing do not fill it, however many they are.
    pub(super) fn queue_limit(&self) -> usize {
        let room = self.limits.max_held_bytes.saturating_sub(self.held_bytes());
        self.limits.max_output_queue.min(room / QUEUE_HARD_TIMES)
    }

    /// The line of this call has begun to be written to the one asked, who can know of it then. Ids can be guessed.
    pub(super) fn callee_has_seen(&self, by: EndpointId, key: CallKey) -> bool {
        let link = match self.calls.endpoint(by) {
            Endpoint::Client(link) => Some(link),
            Endpoint::Worker(id) => self.workers.get(id.0).and_then(|worker| worker.link),
            Endpoint::Bus => None,
        };
        let call = self.calls.get(key).filter(|_| enabled(Check::Written));
        link.zip(call).is_none_or(|(link, call)| self.links.unwritten(link, call.written).is_none())
    }

    fn hard_limit(&self) -> usize {
        self.links.queue_limit.saturating_mul(QUEUE_HARD_TIMES)
    }

    /// The longest line that is kept. Of clients, only short ones while the house is full.
    pub(super) fn line_limit(&self, of_client: bool) -> usize {
        if !enabled(Check::LineLimit) {
            return usize::MAX - 1;
        }
        let limit = self.limits.max_input_buffer;
        if of_client && self.is_full() { limit.min(LINE_BYTES_WHEN_FULL) } else { limit }
    }

    pub(super) fn is_full(&self) -> bool {
        self.held_bytes() > self.limits.max_held_bytes
    }

    /// Sets the alarms of those whose queues have become full.
    pub(super) fn watch_full(&mut self) {
        while let Some(link) = self.links.next_full() {
            let Some(peer) = self.links.peer_mut(link) else { continue };
            if !std::mem::replace(&mut peer.stall_alarm, true) {
                self.alarms.set(self.now + self.limits.backpressure_timeout, Alarm::Stall(link));
            }
        }
    }

    pub(super) fn stalled(&mut self, link: Link) {
        let Some(peer) = self.links.peer_mut(link) else { return };
        peer.stall_alarm = false;
        let Some(since) = peer.full_since else { return };
        let in_the_way = self.links.pausing(link).iter().any(|from| self.feeds_others(*from, link));
        let Some(peer) = self.links.peer_mut(link) else { return };
        let until = match in_the_way {
            true => peer.last_progress + STALL_TIMEOUT,
            false => since + self.limits.backpressure_timeout,
        };
        if self.now >= until {
            return self.give_up_on(link);
        }
        peer.stall_alarm = true;
        self.alarms.set(until, Alarm::Stall(link));
    }

    /// A client has begun a line: has it gone on with it?
    pub(super) fn line_overdue(&mut self, link: Link) {
        let Some(since) = self.links.waits_for_line(link) else { return };
        if self.now < since + UNFINISHED_LINE_TIMEOUT {
            return self.alarms.set(since + UNFINISHED_LINE_TIMEOUT, Alarm::Line(link));
        }
        // An only client, such as the one on stdin and stdout, is in nobody's way.
        if self.clients.len() == 1 {
            return self.alarms.set(self.now + UNFINISHED_LINE_TIMEOUT, Alarm::Line(link));
        }
        warn!("client {:?} ({}) left a line unfinished: closed", link.0, self.name_of(link));
        self.counters.stalled_clients += 1;
        self.client_leaves(link);
    }

    fn name_of(&self, link: Link) -> &str {
        self.clients.get(link.0).and_then(|client| client.name.as_deref()).unwrap_or("unnamed")
    }

    fn give_up_on(&mut self, link: Link) {
        let waiting = self.links.queued_bytes(link);
        if let Some(worker) = self.worker_of(link) {
            return self.give_up_on_worker(worker, link);
        }
        let name = self.name_of(link);
        warn!("client {:?} ({name}) took nothing while {waiting} bytes waited for it: closed", link.0);
        self.counters.stalled_clients += 1;
        self.client_leaves(link);
    }

    /// It does not read: what it has not begun to read is answered `busy`, then it is stopped.
    fn give_up_on_worker(&mut self, id: WorkerId, link: Link) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let untouched: Vec<_> = self
            .calls
            .incoming_calls(worker.endpoint)
            .filter(|(_, call)| {
                call.written == Written::NotYet || self.links.unwritten(link, call.written).is_some()
            })
            .map(|(key, _)| key)
            .collect();
        let error = RpcError::busy(format!("the worker {}/{} does not read", worker.config.id, worker.index));
        for call in untouched {
            self.fail_call(call, &error);
        }
        self.stop_faulty(id, Death::Stuck);
        self.links.resume_all(link);
    }

    /// The client will send nothing more. What it has asked is still answered, then it is let go.
    pub(super) fn client_ended(&mut self, link: Link) {
        let Some(peer) = self.links.peer_mut(link) else { return };
        peer.ended = true;
        self.finish(link);
        if self.clients.get(link.0).is_some_and(|client| client.bye) {
            self.end_sessions_of(link);
        }
    }

    /// Lets a client go that has ended, once nothing is left to be read from or written to it.
    pub(super) fn finish(&mut self, link: Link) {
        let Some(peer) = self.links.peer(link) else { return };
        if !peer.ended || peer.worker.is_some() || self.links.is_paused(link) {
            return;
        }
        let endpoint = peer.endpoint;
        self.read(link, &[], ReadMode::Last);
        self.release_incoming(link);
        if self.calls.outgoing(endpoint) == 0 && self.links.to_send(link).is_empty() {
            self.client_leaves(link);
        }
    }
}
