//! Flow control: which peers are paused because a queue is full, and what happens to peers that take nothing.
//!
//! Messages are never dropped; a peer that stops taking them is. Every pause has a deadline.

use log::warn;

use super::{Bus, ReadMode};
use crate::id::{Link, WorkerId};
use crate::limit::{QUEUE_HARD_TIMES, STALL_TIMEOUT, UNFINISHED_LINE_TIMEOUT};
use crate::mutants::{Check, enabled};
use crate::state::leftovers::Leftover;
use crate::state::timers::Alarm;
use crate::wire::error::{Death, RpcError};

impl Bus {
    /// A line of `from` made the queue of `full` longer than its limit.
    pub(super) fn over_limit(&mut self, from: Link, full: Link) {
        // The answer of a worker may release lines that waited for a worker, even for itself. The worker must be read
        // on: a process that cannot write does not read either, and so its queue would never have room again.
        if self.links.worker_of(from).is_some() && self.links.worker_of(full).is_some() {
            return;
        }
        let feeds_others = self.feeds_others(from, full);
        let hard_limit = self.links.queue_limit.saturating_mul(QUEUE_HARD_TIMES);
        if feeds_others && self.links.queued_bytes(full) <= hard_limit {
            return;
        }
        self.links.pause(from, full);
        if feeds_others && let Some(peer) = self.links.peer(full) {
            self.alarms.set(self.now.max(peer.last_progress + STALL_TIMEOUT), Alarm::Stall(full));
        }
    }

    /// Whether `from` is a worker that serves other clients too, and so should not wait for this one.
    fn feeds_others(&self, from: Link, full: Link) -> bool {
        if self.links.worker_of(full).is_some() {
            return false;
        }
        let worker = self.links.worker_of(from).and_then(|worker| self.workers.get(worker));
        worker.is_some_and(|worker| worker.clients.iter().any(|client| *client != full))
    }

    /// Sets the stall alarms of peers whose queues have become full.
    pub(super) fn watch_full(&mut self) {
        while let Some(link) = self.links.next_full() {
            let Some(peer) = self.links.peer_mut(link) else { continue };
            if !std::mem::replace(&mut peer.stall_alarm, true) {
                let wait = self.limits.backpressure_timeout.min(STALL_TIMEOUT);
                self.alarms.set(self.now + wait, Alarm::Stall(link));
            }
        }
    }

    pub(super) fn stalled(&mut self, link: Link) {
        let Some(peer) = self.links.peer_mut(link) else { return };
        peer.stall_alarm = false;
        let (full_since, last_progress, is_client) =
            (peer.full_since, peer.last_progress, peer.worker.is_none());
        // What waits for a tracer has a limit of its own.
        let is_watched = is_client && self.links.is_watched(link) && !self.tracers.has(link);
        let timeout = self.limits.backpressure_timeout;
        let until = match full_since {
            Some(_) if self.links.pausing(link).iter().any(|from| self.feeds_others(*from, link)) => {
                last_progress + STALL_TIMEOUT
            }
            Some(since) => since + timeout,
            // Guests are let go before their queues are full. What waits for one that takes nothing is in the way of
            // others, the more so the more the bus holds.
            None if is_watched => {
                let is_short = self.held_bytes() > self.limits.max_held_bytes / 2;
                last_progress + if is_short { timeout.min(STALL_TIMEOUT) } else { timeout }
            }
            None => return,
        };
        if self.now >= until {
            if enabled(Check::StallTimeout) {
                self.close_stalled(link);
            }
            return;
        }
        if let Some(peer) = self.links.peer_mut(link) {
            peer.stall_alarm = true;
        }
        // Until then the bus may come to hold more.
        let look = self.now + timeout.min(STALL_TIMEOUT);
        self.alarms.set(if full_since.is_some() { until } else { until.min(look) }, Alarm::Stall(link));
    }

    /// A client has begun a line some time ago.
    pub(super) fn line_overdue(&mut self, link: Link) {
        let Some(due) = self.links.unfinished_line_due(link) else { return };
        if self.now < due {
            return self.alarms.set(due, Alarm::Line(link));
        }
        // An only client, such as the one on stdin and stdout, takes memory from nobody.
        if self.clients.len() == 1 || !enabled(Check::LineTimeout) {
            return self.alarms.set(self.now + UNFINISHED_LINE_TIMEOUT, Alarm::Line(link));
        }
        warn!("client {:?} ({}) left a line unfinished: closed", link.0, self.clients.name_of(link));
        self.counters.stalled_clients += 1;
        self.client_leaves(link);
    }

    /// Gives up a peer that takes nothing.
    fn close_stalled(&mut self, link: Link) {
        if let Some(worker) = self.links.worker_of(link) {
            return self.stop_stalled_worker(worker, link);
        }
        let (name, waiting) = (self.clients.name_of(link), self.links.queued_bytes(link));
        warn!("client {:?} ({name}) took nothing while {waiting} bytes waited for it: closed", link.0);
        self.counters.stalled_clients += 1;
        self.client_leaves(link);
    }

    /// Stops a worker that does not read. The calls that it cannot have seen are answered `busy`.
    fn stop_stalled_worker(&mut self, id: WorkerId, link: Link) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.unseen_error = Some(RpcError::busy(format!("the worker {worker} does not read")));
        self.stop_faulty(id, Death::Stuck);
        self.links.resume_all(link);
    }

    /// The client will send nothing more. Its calls are still answered, then it is closed.
    pub(super) fn client_ended(&mut self, link: Link) {
        let Some(peer) = self.links.peer_mut(link) else { return };
        peer.ended = true;
        self.clients.half_close(link);
        self.finish(link);
        // After a goodbye its turns are cancelled now, whether or not it still listens.
        if self.clients.get(link).is_some_and(|client| client.bye) {
            self.begin_work(Leftover::Ended(link, None));
        }
    }

    /// Closes a client that has ended, once nothing is left to read from it or to write to it.
    #[inline]
    pub(super) fn finish(&mut self, link: Link) {
        if self.links.peer(link).is_some_and(|peer| peer.ended) {
            self.finish_ended(link);
        }
    }

    #[cold]
    fn finish_ended(&mut self, link: Link) {
        let Some(peer) = self.links.peer(link) else { return };
        if peer.worker.is_some() || self.links.is_paused(link) {
            return;
        }
        let endpoint = peer.endpoint;
        self.read(link, &[], ReadMode::Last);
        if self.calls.incoming(endpoint) > 0 && !self.leftovers.has_ended(link) {
            self.begin_work(Leftover::Ended(link, None));
        }
        if self.calls.outgoing(endpoint) == 0 && self.links.to_send(link).is_empty() {
            self.client_leaves(link);
        }
    }
}
