//! A client takes up a session that was left, and hears what it missed.

use crate::bus::Bus;
use crate::bus::forward::SessionRef;
use crate::bus::from_client::Routed;
use crate::bus::session::leave::keep_time;
use crate::bus::session::load::Wants;
use crate::id::{Link, SessionKey, WorkerId};
use crate::state::calls::Endpoint;
use crate::state::sessions::IfRefused;
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;
use crate::wire::message::Message;

/// How a client hears what it missed of a session that it takes up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CatchUp {
    /// The bus kept it.
    Kept,
    /// The session went on with its guests, and its log has what was said.
    Logged,
    /// The agent tells the whole session, once it has answered that it is closed.
    CloseAndLoad,
    /// The agent is asked, and what was kept waits for its answer.
    Load,
    /// More was missed than was kept, so only the agent can tell it.
    Overflow,
}

impl Bus {
    /// A session that was left goes on with this client. The client gets what it missed, then the answer.
    pub(in crate::bus) fn take_up(
        &mut self,
        link: Link,
        key: SessionKey,
        message: Message<'_>,
        name: &[u8],
    ) -> Routed {
        let Some(to) = self.sessions.worker_of(key) else { return Err(RpcError::lost_session()) };
        let capabilities = self.workers.get(to).map(|worker| worker.capabilities).unwrap_or_default();
        let wants = Wants::of(message, capabilities);
        if wants == Wants::Unknown {
            let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
            let agent = session.agent_token.clone();
            return self.pass_unknown_load(link, to, message, SessionRef::Token(agent));
        }
        let was_guest = self.sessions.get(key).is_some_and(|session| session.guests.get(link).is_some());
        for joined in self.sessions.descendants(key).into_iter().chain([key]) {
            self.remove_guest(joined, link);
        }
        let agent = self.sessions.get(key).map(|session| session.agent_name().to_owned()).unwrap_or_default();
        let (bus_token, is_renamed) = self.name_for(link, name, &agent);
        let catch_up = self.catch_up(key, to, wants);
        self.detach(key);
        self.attach_children(key, link);
        let mut missed = self.take_offline(key);
        // Who was a guest has heard it, and the log or the agent tells it again.
        if was_guest || matches!(catch_up, CatchUp::Logged | CatchUp::CloseAndLoad | CatchUp::Overflow) {
            missed.clear();
        }
        self.serve(to, link);
        self.sessions.set_owner(key, Some(link));
        let Some(session) = self.sessions.get_mut(key) else { return Err(RpcError::unknown_session()) };
        (session.bus_token, session.is_renamed) = (bus_token.clone(), is_renamed);
        session.offline_overflow = false;
        session.count(&mut self.held);
        if let Some(client) = self.clients.get_mut(link) {
            client.sessions.insert(bus_token, key);
        }
        let has_guests = !session.guests.is_empty();
        for numbered in missed {
            session.offline.push_back(numbered, &mut self.held);
        }
        match catch_up {
            CatchUp::Kept | CatchUp::Logged => {
                if catch_up == CatchUp::Logged {
                    let token = session.bus_token.clone();
                    self.send_history(link, key, &token, None);
                }
                self.deliver_missed(key);
                self.trace_line(Endpoint::Client(link), Endpoint::Bus, Some(key), None, message);
                self.answer_with_opening(link, key, message.id().unwrap_or_default());
                if has_guests {
                    self.tell_owner(key, link);
                }
                return Ok(());
            }
            CatchUp::Load => {}
            CatchUp::Overflow => session.if_refused = IfRefused::Ends,
            // An agent that loads a session that it has open may end up with two processes for it.
            CatchUp::CloseAndLoad => {
                session.if_refused = IfRefused::IsForgotten;
                let agent = session.agent_token.clone();
                self.ask_to_close(to, &agent);
            }
        }
        let passed = self.pass_load(link, key, to, message);
        match &passed {
            Err(_) => self.release(key, catch_up),
            Ok(()) if has_guests => self.tell_owner(key, link),
            Ok(()) => {}
        }
        passed
    }

    fn catch_up(&self, key: SessionKey, to: WorkerId, wants: Wants) -> CatchUp {
        let (Some(session), Some(worker)) = (self.sessions.get(key), self.workers.get(to)) else {
            return CatchUp::Kept;
        };
        // What is not open yet cannot be answered for. The request goes behind the one that opens it.
        if session.is_recovering() || session.if_refused != IfRefused::GoesOn {
            return CatchUp::Load;
        }
        let replays = wants == Wants::Replay && self.can_replay(key);
        let has_log = self.limits.session_log_bytes > 0 && !session.guests.is_empty();
        let is_logged = wants == Wants::Replay && has_log;
        match (replays, session.offline_overflow) {
            (true, _) if worker.capabilities.close => CatchUp::CloseAndLoad,
            (_, true) => CatchUp::Overflow,
            (true, false) => CatchUp::Load,
            (false, false) if is_logged => CatchUp::Logged,
            (false, false) => CatchUp::Kept,
        }
    }

    /// The request of a client that takes up a session is refused, so the session is left as it was.
    fn release(&mut self, key: SessionKey, catch_up: CatchUp) {
        if catch_up == CatchUp::CloseAndLoad {
            return self.drop_session(key);
        }
        for child in self.sessions.descendants(key) {
            self.detach(child);
        }
        self.detach(key);
        let keep = keep_time(self, key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        if catch_up == CatchUp::Overflow {
            (session.offline_overflow, session.if_refused) = (true, IfRefused::GoesOn);
        }
        session.keep_until = self.now + keep;
        self.alarms.set(session.keep_until, Alarm::Keep(key));
    }

    /// Detaches the session from its owner.
    pub(in crate::bus) fn detach(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(owner) = session.owner else { return };
        if let Some(client) = self.clients.get_mut(owner) {
            client.sessions.remove(session.bus_name(), key);
        }
        self.sessions.set_owner(key, None);
        self.release_client(key, owner);
    }
}
