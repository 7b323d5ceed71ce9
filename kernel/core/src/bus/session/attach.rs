//! A client takes up a session that was left, and hears what it missed.

use serde_json::{Value, json};

use crate::bus::Bus;
use crate::bus::forward::{Forward, SessionRef};
use crate::bus::from_client::Routed;
use crate::id::{Link, SessionKey};
use crate::state::calls::{Endpoint, Purpose};
use crate::state::sessions::token;
use crate::wire::error::{RpcError, result_line};
use crate::wire::message::Message;

impl Bus {
    /// A session that was left goes on with this client. The client gets what it missed, then the answer.
    pub(in crate::bus) fn attach(
        &mut self,
        link: Link,
        key: SessionKey,
        message: Message<'_>,
        name: &[u8],
    ) -> Routed {
        self.detach(key);
        self.attach_children(key, link);
        let loads = wants_replay(message) && self.can_load_anew(key);
        let missed = self.take_offline(key);
        let Some(session) = self.sessions.get_mut(key) else { return Err(RpcError::unknown_session()) };
        session.owner = Some(link);
        session.bus_token = token(name);
        let overflow = std::mem::take(&mut session.offline_overflow);
        let worker = session.worker;
        let agent_token = session.agent_token.clone();
        if let Some(client) = self.clients.get_mut(link) {
            client.sessions.insert(name.into(), key);
        }
        let Some(to) = worker else { return Err(RpcError::lost_session()) };
        if let Some(worker) = self.workers.get_mut(to) {
            worker.serve(link);
        }
        if loads || overflow {
            // Only the agent can tell the whole history. It closes the session first: an agent that loads a session
            // that it has open may end up with two processes for it.
            if loads {
                let params = [b"{\"sessionId\":", &*agent_token, b"}"].concat();
                self.call_worker(to, Purpose::Ignore, b"session/close", &params);
            }
            self.forward_to_worker(&Forward {
                from: link,
                to,
                message,
                purpose: Purpose::Reopen { session: key, was_open: !loads },
                session: SessionRef::Known(key),
            })?;
            return Ok(());
        }
        for held in missed {
            self.route_worker_message(to, held.message());
        }
        self.answer_with_opening(link, key, message);
        Ok(())
    }

    /// The session is open, so the bus itself answers with the result that opened it.
    pub(in crate::bus) fn answer_with_opening(&mut self, link: Link, key: SessionKey, message: Message<'_>) {
        let (Some(id), Some(session)) = (message.id(), self.sessions.get(key)) else { return };
        let opening = session.opening.as_deref().and_then(|opening| serde_json::from_slice(opening).ok());
        let mut result = opening.unwrap_or_else(|| json!({}));
        if let Some(members) = result.as_object_mut() {
            members.remove("sessionId");
        }
        let answer = result_line(id, &result);
        self.trace_line(Endpoint::Client(link), Endpoint::Bus, Some(key), None, message);
        self.send_turn_state(link, key, "");
        self.send_own(link, &answer);
    }

    /// Whether nothing goes on in the session and its agent can close it and load it, so that a client that loads it
    /// gets all of it.
    fn can_load_anew(&self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let Some(worker) = session.worker.and_then(|id| self.workers.get(id)) else { return false };
        let mut calls = self.calls.incoming_calls(worker.endpoint);
        let is_in_use = calls.any(|(_, call)| call.session == Some(key));
        let root = self.sessions.get(self.sessions.root(key));
        let is_asking = root.is_some_and(|root| root.offline.iter().any(|held| held.message().is_request()));
        let capabilities = worker.capabilities;
        let can_replay = capabilities.loads || capabilities.reports_turn_state;
        capabilities.close && can_replay && !is_in_use && !is_asking && !session.is_turn_running()
    }

    /// Detaches the session from its owner.
    pub(in crate::bus) fn detach(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(owner) = session.owner.take() else { return };
        if let Some(client) = self.clients.get_mut(owner) {
            client.sessions.remove(session.bus_name());
        }
        self.buffer_pending(key);
    }
}

/// Whether this is a `session/load`, or a `session/resume` that says from where to replay.
fn wants_replay(message: Message<'_>) -> bool {
    if message.method() == b"session/load" {
        return true;
    }
    let params = message.params().and_then(|params| serde_json::from_slice::<Value>(params).ok());
    params.is_some_and(|params| !params["replayFrom"].is_null())
}
