//! Sessions whose client is away: what their agent says is kept, and its requests do not wait for ever.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::bus::Bus;
use crate::id::SessionKey;
use crate::mutants::{Check, enabled};
use crate::state::backlog::Backlog;
use crate::state::leftovers::Leftover;
use crate::state::offline::Numbered;
use crate::state::sessions::IfRefused;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};

impl Bus {
    /// Keeps a notification of a session whose owner is away.
    pub(in crate::bus) fn buffer_offline(&mut self, key: SessionKey, message: Message<'_>) {
        let (root, limit) = (self.sessions.root(key), self.queue_limit());
        let number = self.sessions.next_order();
        let Some(session) = self.sessions.get_mut(root) else { return };
        if session.loads > 0 {
            // It is told again to a client that has left, and will be told to the next one that asks.
            session.offline_overflow |= session.if_refused == IfRefused::Ends;
            return;
        }
        let fits = session.offline.bytes() + message.line.len() <= limit || !enabled(Check::OfflineBound);
        if session.offline_overflow || !fits {
            // The agent can tell its history again.
            session.offline_overflow = true;
            session.offline.take(&mut self.held);
        } else {
            session.offline.push(number, Held::new(message), &mut self.held);
        }
    }

    /// Nobody answers these requests of the agent. They are answered `client_gone`.
    pub(in crate::bus) fn refuse_unheard(&mut self, key: SessionKey, unheard: &[Arc<Held>]) {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        let link = worker.and_then(|worker| worker.link);
        let mut ids: VecDeque<Box<[u8]>> =
            unheard.iter().filter_map(|held| Some(held.message().id()?.into())).collect();
        // The agent hears these before whatever follows from them.
        while !self.leftovers.is_spent()
            && let Some(id) = ids.pop_front()
        {
            self.leftovers.spend(1);
            if let Some(link) = link {
                self.send_error(link, Some(&id), &RpcError::client_gone());
            }
        }
        if !ids.is_empty() {
            let ids = Backlog::of(ids, &mut self.held);
            self.begin_work(Leftover::Unheard(ids, link));
        }
    }

    /// Gives the owner, if it is there, what was said and asked in its session while it had none, in order.
    pub(in crate::bus) fn deliver_missed(&mut self, key: SessionKey) {
        // For an owner that says nothing more, what it has heard is kept as well.
        if !self.is_owner_speaking(key) {
            return;
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let (Some(id), Some(owner)) = (session.worker, session.owner) else { return };
        let said = session.offline.take(&mut self.held);
        let tree: Vec<SessionKey> = [key].into_iter().chain(self.sessions.descendants(key)).collect();
        let mut asked = Vec::new();
        for key in &tree {
            let questions = self.sessions.get(*key).map(|session| &session.questions);
            asked.extend(questions.into_iter().flat_map(|it| it.unasked().map(|(order, _)| (order, *key))));
        }
        asked.sort_unstable();
        let mut asked = asked.into_iter().peekable();
        for Numbered { number, held } in said {
            while let Some((order, key)) = asked.next_if(|(order, _)| *order < number) {
                self.ask_again(key, order);
            }
            let message = held.message();
            let name = message.session_name().or_else(|| message.label()).unwrap_or_default();
            match self.workers.get(id).and_then(|worker| worker.sessions.get(&name).copied()) {
                Some(about) => self.deliver_again(id, about, message),
                None => self.route_worker_message(id, message),
            }
        }
        for (order, key) in asked {
            self.ask_again(key, order);
        }
        for key in tree {
            self.settle_client(key, owner);
        }
    }
}
