//! Shutdown: calls in flight finish, workers stop, clients read their last answers.

use log::info;

use super::{Bus, Stopping};
use crate::api::Action;
use crate::id::{Link, SessionKey};
use crate::limit::FLUSH_ON_CLOSE;
use crate::state::backlog::Queued;
use crate::state::calls::BUS;
use crate::state::lifecycle::Input;
use crate::state::sessions::Session;
use crate::state::timers::Alarm;
use crate::state::workers::Recycled;
use crate::wire::error::RpcError;

impl Bus {
    /// The first time, calls in flight may finish. The second time, everything ends at once.
    pub(super) fn stop(&mut self) {
        match self.stopping {
            None => {
                info!("stopping: {} calls in flight may finish", self.calls_of_clients());
                let until = self.now + self.limits.drain_timeout;
                self.stopping = Some(Stopping::Draining { until });
                self.alarms.set(until, Alarm::Stop);
                // A worker that is not up will not be started any more.
                for id in self.workers.ids() {
                    if self.workers.get(id).is_some_and(|worker| !worker.life.is_up()) {
                        self.remove(id, Recycled::Stop);
                    }
                }
            }
            Some(Stopping::Draining { .. } | Stopping::Workers) => {
                info!("stopping at once");
                self.stopping = Some(Stopping::Workers);
                self.fail_all_calls();
                for id in self.workers.ids() {
                    self.step_worker(id, Input::StopNow);
                }
            }
            Some(Stopping::Clients { .. }) => self.stopping = Some(Stopping::Clients { until: self.now }),
            Some(Stopping::Done) => {}
        }
    }

    /// Goes on with the shutdown as far as it can. True: something has happened from which more may follow.
    pub(super) fn stop_further(&mut self) -> bool {
        let before = (self.stopping, self.clients.len());
        // A stop waits for the clients that wait for an answer or follow a turn.
        let is_followed = |(key, session): (SessionKey, &Session)| {
            session.worker.is_some() && session.is_turn_running() && self.is_owned(key)
        };
        if let Some(Stopping::Draining { until }) = self.stopping
            && (until <= self.now || self.calls_of_clients() == 0 && !self.sessions.iter().any(is_followed))
        {
            self.stopping = Some(Stopping::Workers);
            self.fail_all_calls();
            for id in self.workers.ids() {
                self.remove(id, Recycled::Stop);
            }
        }
        if self.stopping == Some(Stopping::Workers) && self.workers.is_empty() && self.leftovers.is_empty() {
            let until = self.now + FLUSH_ON_CLOSE;
            self.stopping = Some(Stopping::Clients { until });
            self.alarms.set(until, Alarm::Stop);
            self.clients.links().into_iter().for_each(|link| self.stop_client(link));
        }
        if let Some(Stopping::Clients { until }) = self.stopping {
            if until <= self.now {
                self.clients.links().into_iter().for_each(|link| self.client_leaves(link));
            }
            if self.clients.is_empty() && self.leftovers.is_empty() {
                self.stopping = Some(Stopping::Done);
                self.links.act(Action::Exit);
            }
        }
        before != (self.stopping, self.clients.len())
    }

    /// Closes a client that has read its last answers, if the workers are stopped.
    pub(super) fn stop_client(&mut self, link: Link) {
        if matches!(self.stopping, Some(Stopping::Clients { .. })) && self.links.to_send(link).is_empty() {
            self.client_leaves(link);
        }
    }

    /// How many calls of clients wait for their answer. A stop waits for these alone.
    pub(super) fn calls_of_clients(&self) -> usize {
        let of_workers: usize =
            self.workers.iter().map(|(_, worker)| self.calls.outgoing(worker.endpoint)).sum();
        self.calls.in_flight() - of_workers - self.calls.outgoing(BUS)
    }

    fn fail_all_calls(&mut self) {
        for key in self.sessions.ids() {
            self.end_turn(key, &RpcError::stopping());
        }
        let endpoints: Vec<_> = self.clients.iter().map(|(_, client)| client.endpoint).collect();
        for endpoint in endpoints {
            self.fail_calls(self.calls.outgoing_keys(endpoint), &RpcError::stopping());
        }
        // What is left waits for workers that know nothing of it.
        for id in self.workers.ids() {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            for queued in worker.take_backlog(&mut self.held) {
                match queued {
                    Queued::Line(None, _) => self.counters.dropped_notifications += 1,
                    Queued::Initialize(call) | Queued::Line(Some(call), _) => {
                        self.fail_call(call, &RpcError::stopping());
                    }
                }
            }
        }
    }
}
