//! Guests: clients that join a session which another one owns, watch it, take part in it, and take it over.
//!
//! They join by `_bus/attach`, or by `session/load` and `session/resume` like any editor. The owner is the client whose
//! capabilities the agent was given; only it is asked to read files and to run commands.

use serde::Deserialize;

use crate::bus::Bus;
use crate::bus::admin::params_of;
use crate::bus::from_client::Routed;
use crate::bus::past::{self, Told};
use crate::bus::pipe_role::Rights;
use crate::bus::placement::Need;
use crate::bus::session::leave::keep_time;
use crate::bus::session::load::Wants;
use crate::bus::status::{Report, session_label};
use crate::id::{Link, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::calls::Endpoint;
use crate::state::guests::{Guest, Role};
use crate::state::session_id::{Token, agent_name};
use crate::state::sessions::Session;
use crate::state::timers::Alarm;
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested::{member, whole, with_member};
use crate::wire::splice::Edit;

/// The params of `_bus/attach`, and of `session/attach` as it is proposed for ACP.
#[derive(Default, Deserialize)]
struct Attach {
    #[serde(alias = "sessionId")]
    session: Box<str>,
    role: Option<Box<str>>,
    #[serde(alias = "historyPolicy")]
    history: Option<Box<str>>,
}

/// The params of `_bus/detach`, `_bus/take` and `_bus/close`.
#[derive(Default, Deserialize)]
struct Named {
    #[serde(alias = "sessionId")]
    session: Box<str>,
}

/// How much a client that joins is told first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum History {
    /// All that the log has, and what the agent asks now.
    Full,
    /// The open questions of the agent.
    Pending,
    Nothing,
}

impl Bus {
    /// `_bus/attach`: the client joins a session. `told` is what it has heard of it by now.
    pub(in crate::bus) fn attach_guest(
        &mut self,
        link: Link,
        message: Message<'_>,
        told: Option<Told>,
    ) -> Routed {
        let params: Attach = params_of(message)?;
        let role = match params.role.as_deref() {
            None | Some("control" | "controller") => Role::Control,
            Some("observe" | "observer") => Role::Observe,
            Some(other) => {
                return Err(RpcError::invalid(format!("role is control or observe, not {other:?}")));
            }
        };
        let history = match params.history.as_deref() {
            None | Some("full") => History::Full,
            Some("pending" | "pending_only") => History::Pending,
            Some("none") => History::Nothing,
            Some(other) => {
                return Err(RpcError::invalid(format!("history is full, pending or none, not {other:?}")));
            }
        };
        let key = self.find_shared(link, params.session.as_bytes(), message)?;
        if history == History::Full && told.is_none() && past::begins(self, link, key, message) {
            return Ok(());
        }
        // What others are asked is theirs to answer. What nobody is asked would wait for ever.
        let asked_from = if history == History::Nothing { self.sessions.next_order() } else { 0 };
        let token = self.join(link, key, None, Guest { role, asked_from, ..Guest::controlling() })?;
        self.clients.set_hears_events(link);
        let is_whole = history != History::Full || self.send_history(link, key, &token, told);
        let Some(session) = self.sessions.get(key) else { return Err(RpcError::unknown_session()) };
        let owner = session.owner.map_or("null".to_owned(), |owner| self.quoted_name(owner));
        let role = if session.owner == Some(link) { Role::Control } else { role };
        let turn = if session.has_turn() { "running" } else { "idle" };
        let id = String::from_utf8_lossy(&token);
        let names = format!(r#""session":{id},"sessionId":{id},"label":"{}""#, session_label(key));
        let part = format!(r#""role":"{}","owner":{owner},"truncated":{}"#, role.name(), !is_whole);
        let more = self.told_of(key);
        let result = format!(r#"{{{names},{part},"turn":"{turn}"{more}}}"#);
        if let Some(id) = message.id() {
            self.links.send(link, &spelled_result_line(id, result.as_bytes()), &[]);
        }
        self.settle_joined(key, link);
        self.tell_attached(key, link, role);
        Ok(())
    }

    /// Further members of the answer to a client that joins, which it cannot know otherwise: the session's pool, its
    /// folder and title, how the last turn failed if it did, and the modes, models and options as they are now.
    fn told_of(&self, key: SessionKey) -> String {
        let Some(session) = self.sessions.get(key) else { return String::new() };
        let quoted = |text: Option<&str>| serde_json::Value::from(text).to_string();
        let (folder, title) = (quoted(session.shown.folder()), quoted(session.shown.title()));
        let pool = quoted(Report::new(self).pool_of(session));
        let mut told = format!(r#","pool":{pool},"folder":{folder},"title":{title}"#);
        if let Some(error) = session.prompts.failed.as_deref().filter(|_| !session.has_turn()) {
            told += &format!(r#","lastTurn":{{"stopReason":"error","error":{error}}}"#);
        }
        let opening = session.opening.as_ref().map_or(&b"{}"[..], |opening| opening.result());
        for name in ["modes", "models", "configOptions"] {
            if let Some(value) = member(opening, whole(opening), name.as_bytes()) {
                told += &format!(r#","{name}":{}"#, String::from_utf8_lossy(value.of(opening)));
            }
        }
        told
    }

    /// `_bus/detach`: the client leaves a session. An owner leaves it to whoever comes.
    pub(in crate::bus) fn detach_named(&mut self, link: Link, message: Message<'_>) -> Routed {
        let params: Named = params_of(message)?;
        let key = self.find_shared(link, params.session.as_bytes(), message)?;
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        if session.owner == Some(link) {
            let name = session.bus_token.clone();
            self.leave_session(key, link, false);
            if let Some(client) = self.clients.get_mut(link) {
                client.sessions.remove(name.name(), key);
            }
            return Ok(());
        }
        session.guests.get(link).ok_or_else(RpcError::unknown_session)?;
        self.detach_guest(key, link);
        Ok(())
    }

    /// `_bus/take`: the client becomes the owner. Who was it stays as a guest.
    pub(in crate::bus) fn take_session(&mut self, link: Link, message: Message<'_>) -> Routed {
        let params: Named = params_of(message)?;
        let key = self.find_shared(link, params.session.as_bytes(), message)?;
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        if session.owner == Some(link) {
            self.answer_done(link, message);
            return Ok(());
        }
        let Some(id) = session.worker else { return self.take_lost(link, key, message) };
        let handshake = self.clients.find(link)?.handshake.clone();
        if !self.workers.get(id).is_some_and(|worker| worker.is_compatible(&handshake)) {
            self.move_session(key, id, link)?;
            self.answer_done(link, message);
            self.tell_owner(key, link);
            return Ok(());
        }
        if session.guests.get(link).is_none() {
            self.join(link, key, None, Guest::controlling())?;
        }
        self.answer_done(link, message);
        self.hand_over(key, id, link);
        Ok(())
    }

    /// A client becomes the owner of a session that has left its process. The next message opens it again.
    fn take_lost(&mut self, link: Link, key: SessionKey, message: Message<'_>) -> Routed {
        let session = self.sessions.get(key).filter(|session| session.reopen.is_some());
        session.ok_or_else(RpcError::lost_session)?;
        self.join(link, key, None, Guest::controlling())?;
        self.answer_done(link, message);
        self.make_owner(key, link);
        self.tell_owner(key, link);
        Ok(())
    }

    /// A client whose capabilities do not fit becomes the owner of a session that nobody owns: the session goes on in
    /// another process. Nothing may go on in it.
    fn move_session(&mut self, key: SessionKey, from: WorkerId, link: Link) -> Routed {
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        let pool = session.reopen.as_ref().map(|reopen| reopen.pool);
        let is_asked = session.questions.iter().any(|(_, question)| question.is_asked());
        let is_quiet = !session.has_turn() && !is_asked && !session.is_recovering();
        let (Some(pool), None, true) = (pool, session.owner, is_quiet) else {
            return Err(RpcError::busy(
                "the process of this session was initialized for a client with other capabilities; it can be joined, \
                 and taken over once nobody owns it and no turn runs",
            ));
        };
        let agent = session.agent_token.clone();
        self.choose_worker(link, pool, Need::Session)?;
        self.join(link, key, None, Guest::controlling())?;
        for child in self.sessions.descendants(key) {
            self.end_session(child);
        }
        self.refuse_unasked(key);
        if let Some(worker) = self.workers.get_mut(from) {
            worker.sessions.remove(agent.name(), key);
        }
        self.sessions.set_worker(key, None);
        self.close_at_agent(from, &agent);
        self.make_owner(key, link);
        self.recover(link, key).map(drop)
    }

    /// The owner has left. A guest that expects to own the session, and can, becomes the owner.
    pub(in crate::bus) fn hand_to_guest(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let Some(id) = session.worker.filter(|_| self.sessions.root(key) == key) else { return false };
        let expects = |link: &Link, guest: &Guest| {
            guest.joined_by_load && self.links.may_send(*link) && self.is_compatible_with(*link, key)
        };
        let guests = session.guests.iter().filter(|(link, guest)| expects(link, guest));
        let Some(newest) = guests.map(|(link, _)| link).max_by_key(|link| link.number()) else {
            return false;
        };
        self.hand_over(key, id, newest);
        true
    }

    /// A session that nobody owns is lost with its process. It can be opened again with the capabilities of a guest,
    /// who becomes the owner. False: there is none.
    pub(in crate::bus) fn hand_lost_to_guest(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let is_initialized =
            |link: Link| self.clients.get(link).is_some_and(|client| client.handshake.version().is_some());
        let may = |(link, guest): &(Link, &Guest)| guest.role == Role::Control && is_initialized(*link);
        let guests = session.guests.iter().filter(may);
        let best = guests.max_by_key(|(link, guest)| (guest.joined_by_load, link.number()));
        let Some(link) = best.map(|(link, _)| link) else { return false };
        self.make_owner(key, link);
        self.tell_owner(key, link);
        true
    }

    pub(in crate::bus) fn tell_owner(&mut self, key: SessionKey, link: Link) {
        let by = self.quoted_name(link);
        self.tell_event(key, "owner", &format!(r#","owner":{by}"#));
    }

    /// A guest becomes the owner of a session and of those of its subagents.
    fn hand_over(&mut self, key: SessionKey, id: WorkerId, link: Link) {
        self.make_owner(key, link);
        for child in self.sessions.descendants(key) {
            self.make_owner(child, link);
        }
        self.serve(id, link);
        if let Some(worker) = self.workers.get_mut(id)
            && worker.dedicated_to.is_some()
        {
            worker.dedicated_to = Some(link);
        }
        self.tell_owner(key, link);
    }

    pub(in crate::bus) fn answer_done(&mut self, link: Link, message: Message<'_>) {
        if let Some(id) = message.id() {
            self.links.send(link, &spelled_result_line(id, b"{}"), &[]);
        }
    }

    /// A guest becomes the owner.
    fn make_owner(&mut self, key: SessionKey, link: Link) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(guest) = session.guests.remove(link) else { return };
        let before = std::mem::replace(&mut session.bus_token, guest.token);
        let old = session.owner;
        session.is_renamed = false;
        // The guest has heard what was kept for the next owner, but for what the agent asks.
        session.offline.take(&mut self.held);
        session.offline_overflow = false;
        if let Some(old) = old.filter(|old| self.clients.get(*old).is_some()) {
            let guest = Guest { token: before, joined_by_load: true, ..Guest::controlling() };
            session.guests.insert(old, guest);
        }
        self.sessions.set_owner(key, Some(link));
        if let Some(session) = self.sessions.get_mut(key) {
            session.count(&mut self.held);
        }
        self.settle_client(key, link);
    }

    /// `session/load` or `session/resume` of a session that another client has open.
    pub(in crate::bus) fn join_by_load(
        &mut self,
        link: Link,
        key: SessionKey,
        message: Message<'_>,
        name: &[u8],
    ) -> Routed {
        let root = self.sessions.root(key);
        let worker = self.sessions.worker_of(root).and_then(|id| self.workers.get(id));
        let wants = Wants::of(message, worker.map(|worker| worker.capabilities).unwrap_or_default());
        let asked_from = if wants == Wants::Replay { 0 } else { self.sessions.next_order() };
        let guest = Guest { joined_by_load: true, asked_from, ..Guest::controlling() };
        let token = self.join(link, root, Some(name), guest)?;
        if wants == Wants::Replay {
            self.send_history(link, root, &token, None);
        }
        self.trace_line(Endpoint::Client(link), Endpoint::Bus, Some(root), None, message);
        let renamed = if token.name() == name { None } else { Some(token) };
        self.answer_guest(link, root, message.id().unwrap_or_default(), renamed);
        self.settle_joined(root, link);
        self.tell_attached(root, link, Role::Control);
        Ok(())
    }

    /// Answers the load of a guest with the result that opened the session.
    fn answer_guest(&mut self, link: Link, key: SessionKey, id: &[u8], renamed: Option<Token>) {
        let Some(session) = self.sessions.get(key) else { return };
        let opening = session.opening.as_ref().map_or(&b"{}"[..], |opening| opening.result());
        let named = renamed.and_then(|token| with_member(opening, b"sessionId", &token));
        let answer = spelled_result_line(id, named.as_deref().unwrap_or(opening));
        self.send_turn_state(link, key, "");
        self.send_own(link, &answer);
        self.tell_commands(link, key);
    }

    /// Whether a client may join a session of another, or has: its pool shared it when it was opened, and does still.
    pub(in crate::bus) fn may_join(&self, link: Link, session: &Session) -> bool {
        let home = self.index().home(session).and_then(|(pool, _)| self.pools.get(pool));
        let is_still = home.is_none_or(|pool| pool.config.share) || session.guests.get(link).is_some();
        session.is_shared && is_still
    }

    /// The session that a client means by a label such as `s12`, or by an id, if it may join it.
    fn find_shared(&mut self, link: Link, name: &[u8], message: Message<'_>) -> Result<SessionKey, RpcError> {
        let key = self.find_meant(link, name, message)?;
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        let is_others = session.owner != Some(link) && !self.may_join(link, session);
        if session.is_label || is_others && enabled(Check::Share) {
            return Err(RpcError::unknown_session());
        }
        Ok(key)
    }

    /// Finds the session that a client names, whether or not the client may join it. The id of a subagent's session
    /// resolves to its root session.
    fn find_meant(&mut self, link: Link, name: &[u8], message: Message<'_>) -> Result<SessionKey, RpcError> {
        let client = self.clients.find(link)?;
        let own = client.sessions.get(name).copied();
        let number = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix('s')?.parse().ok());
        let mut found = own.or_else(|| number.and_then(|number| self.sessions.numbered(number)));
        if found.is_none() {
            let tagged = |(key, session): (SessionKey, &Session)| (session.bus_name() == name).then_some(key);
            found = self.sessions.named_by_agent(agent_name(name)).find_map(tagged);
        }
        if found.is_none() {
            let pool = Rights::of(self).pool(link, message)?;
            found = self.index().find(pool, name, self.agent_name(pool, name).0);
        }
        let key = found.map(|key| self.sessions.root(key)).ok_or_else(RpcError::unknown_session)?;
        Rights::of(self).check_session(link, key, name)?;
        self.worker_of(key);
        self.let_go_if_due(key);
        self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        Ok(key)
    }

    /// An owner that has left, and whose sessions are let go in pieces, lets this one go before others join it.
    fn let_go_if_due(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(owner) = session.owner.filter(|owner| self.links.peer(*owner).is_none()) else { return };
        if let Some(bye) = self.leftovers.take_departed(owner, session.bus_name(), key) {
            self.leave_session(key, owner, bye);
        }
    }

    /// `_bus/close`: a session ends, whoever owns it. Its turn is cancelled, and its questions are withdrawn.
    pub(in crate::bus) fn close_named(&mut self, link: Link, message: Message<'_>) -> Routed {
        let params: Named = params_of(message)?;
        let key = self.find_meant(link, params.session.as_bytes(), message)?;
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        if session.loads > 0 {
            return Err(RpcError::busy("this session is being loaded; close it when that is done"));
        }
        if session.is_label {
            self.drop_session(key);
            return Ok(());
        }
        let mut all = self.sessions.descendants(key);
        all.push(key);
        for key in all {
            self.end_turn(key, &RpcError::closed_session());
            self.end_session(key);
        }
        Ok(())
    }

    /// Adds a guest to a session and those of its subagents. Returns its name for the session: the one that it asks by,
    /// or that of the owner.
    fn join(
        &mut self,
        link: Link,
        key: SessionKey,
        name: Option<&[u8]>,
        guest: Guest,
    ) -> Result<Token, RpcError> {
        self.check_held()?;
        let client = self.clients.find(link)?;
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        if session.owner == Some(link) {
            return Ok(session.bus_token.clone());
        }
        let worker = session.worker.and_then(|id| self.workers.get(id));
        let handshake = match worker {
            Some(worker) => worker.handshake(),
            None => session.owner.and_then(|owner| Some(&self.clients.get(owner)?.handshake)),
        };
        if let Some(version) = handshake.and_then(|handshake| handshake.version())
            && let Some(own) = client.handshake.version()
            && own != version
            && enabled(Check::GuestVersion)
        {
            return Err(RpcError::busy(format!(
                "this session speaks version {version} of the protocol, and this client was initialized with {own}"
            )));
        }
        let token = match session.guests.get(link) {
            Some(guest) => guest.token.clone(),
            None => {
                let (bus, agent) = (session.bus_name().to_owned(), session.agent_name().to_owned());
                self.name_for(link, name.unwrap_or(&bus), &agent).0
            }
        };
        self.add_guest(key, link, Guest { token: token.clone(), ..guest.clone() });
        let children = self.sessions.descendants(key);
        self.leftovers.spend(children.len());
        for child in children {
            if let Some(session) = self.sessions.get(child) {
                let token = session.bus_token.clone();
                self.add_guest(child, link, Guest { token, ..guest.clone() });
            }
        }
        Ok(token)
    }

    /// Who has joined a session and those of its subagents, or has another role there, is asked what it may answer.
    fn settle_joined(&mut self, key: SessionKey, link: Link) {
        for joined in self.sessions.descendants(key).into_iter().chain([key]) {
            self.settle_client(joined, link);
        }
    }

    fn add_guest(&mut self, key: SessionKey, link: Link, guest: Guest) {
        let (Some(session), Some(client)) = (self.sessions.get_mut(key), self.clients.get_mut(link)) else {
            return;
        };
        if session.owner == Some(link) {
            return;
        }
        client.sessions.insert(guest.token.clone(), key);
        session.guests.insert(link, guest);
        session.count(&mut self.held);
    }

    /// The guests of a session are guests of a session that it announces as well.
    pub(in crate::bus) fn add_guests_of_parent(&mut self, key: SessionKey, parent: SessionKey) {
        let Some(guests) = self.sessions.get(parent).map(|parent| &parent.guests) else { return };
        if guests.is_empty() {
            return;
        }
        let Some(token) = self.sessions.get(key).map(|session| session.bus_token.clone()) else { return };
        let guests: Vec<(Link, Guest)> = guests.iter().map(|(link, guest)| (link, guest.clone())).collect();
        for (link, guest) in guests {
            self.add_guest(key, link, Guest { token: token.clone(), ..guest });
        }
    }

    /// A guest leaves a session and those of its subagents. What nobody else has is kept for a while.
    pub(in crate::bus) fn detach_guest(&mut self, key: SessionKey, link: Link) {
        self.cancel_waiting_prompts(link, key);
        let children = self.sessions.descendants(key);
        self.leftovers.spend(children.len());
        for child in children {
            self.remove_guest(child, link);
        }
        if !self.remove_guest(key, link) {
            return;
        }
        let by = self.quoted_name(link);
        self.tell_event(key, "detached", &format!(r#","client":{by}"#));
        let keep = keep_time(self, key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.owner.is_none() && session.guests.is_empty() {
            if keep.is_zero() {
                return self.end_session(key);
            }
            session.keep_until = self.now + keep;
            self.alarms.set(self.now + keep, Alarm::Keep(key));
        }
    }

    /// Removes a guest from the tables. False: it is none.
    pub(in crate::bus) fn remove_guest(&mut self, key: SessionKey, link: Link) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let Some(guest) = session.guests.remove(link) else { return false };
        session.count(&mut self.held);
        if let Some(client) = self.clients.get_mut(link) {
            client.sessions.remove(guest.token.name(), key);
        }
        self.settle_client(key, link);
        true
    }

    /// Checks whether this client may send this message about a session that it does not own. Returns whether the
    /// message is answered.
    pub(in crate::bus) fn guest_line(
        &mut self,
        link: Link,
        key: SessionKey,
        message: Message<'_>,
    ) -> Result<bool, RpcError> {
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        let Some(role) = session.guests.get(link).map(|guest| guest.role) else { return Ok(false) };
        match message.method() {
            b"session/close" => {
                let root = self.sessions.root(key);
                self.detach_guest(root, link);
                self.answer_done(link, message);
                Ok(true)
            }
            _ if role == Role::Observe && enabled(Check::Observer) => Err(RpcError::read_only()),
            b"session/delete" | b"session/archive" | b"_session/archive" | b"nes/close" => {
                Err(RpcError::not_owner())
            }
            b"session/fork" if !self.is_compatible_with(link, key) => Err(RpcError::not_owner()),
            _ => Ok(false),
        }
    }

    fn tell_attached(&mut self, key: SessionKey, link: Link, role: Role) {
        let by = self.quoted_name(link);
        self.tell_event(key, "attached", &format!(r#","client":{by},"role":"{}""#, role.name()));
    }

    /// Tells those who want to know what becomes of a session. `more`: further members.
    pub(in crate::bus) fn tell_event(&mut self, key: SessionKey, event: &str, more: &str) {
        let Some(session) = self.sessions.get(key) else { return };
        let owner = session.owner.map(|owner| (owner, session.bus_token.clone()));
        let guests = session.guests.iter().map(|(link, guest)| (link, guest.token.clone()));
        let all = owner.into_iter().chain(guests);
        let hearers: Vec<(Link, Token)> = all.filter(|(link, _)| self.clients.hears_events(*link)).collect();
        let (line, span) = event_line(event, more);
        // An event is not worth a pause of anybody, but for the last one of a session: a client that missed it would
        // believe that it is still in the session.
        let is_last = event == "ended" && enabled(Check::EndTold);
        for (link, token) in hearers {
            if is_last || self.keeps_up(link, line.len()) {
                self.send_own_to(link, &line, Edit::new(span, &token));
            }
        }
    }

    /// The name of a client as a JSON string.
    pub(in crate::bus) fn quoted_name(&self, link: Link) -> String {
        serde_json::Value::from(&*Report::new(self).client_label(link)).to_string()
    }
}

/// A `_bus/session` event, and where the name of the session goes, which each client has its own of.
pub(super) fn event_line(event: &str, more: &str) -> (Vec<u8>, Span) {
    let start = r#"{"jsonrpc":"2.0","method":"_bus/session","params":{"session":"#;
    let line = format!(r#"{start},"event":"{event}"{more}}}}}"#);
    (line.into_bytes(), Span::new(start.len(), start.len()))
}
