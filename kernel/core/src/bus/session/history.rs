//! What the clients of a session hear beside its owner: what the agent says now, what it has said, and the prompts.

use crate::bus::Bus;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::LONG_LINE_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::calls::Written;
use crate::state::session_id::Token;
use crate::state::session_log::{Logged, Unlogged};
use crate::state::sessions::LogLimits;
use crate::wire::message::Message;
use crate::wire::nested;
use crate::wire::scan::Envelope;
use crate::wire::splice::{Edit, Edits, splice};

/// How much of `max_output_queue` may wait for a guest, as a part: it is let go before the agent has to wait for it.
const GUEST_QUEUE_PART: usize = 2;

impl Bus {
    #[inline]
    fn log_limits(&self) -> LogLimits {
        let of_all = self.limits.max_log_bytes.min(self.limits.max_held_bytes / 4);
        LogLimits { of_one: self.limits.session_log_bytes, of_all }
    }

    /// A notification was given to the owner of its session: it is logged, and the guests hear it.
    pub(in crate::bus) fn share(
        &mut self,
        id: WorkerId,
        key: SessionKey,
        owner: Link,
        written: Option<Written>,
        message: Message<'_>,
    ) {
        let Some(session) = self.sessions.get(key).filter(|session| session.is_logged()) else { return };
        let has_guests = !session.guests.is_empty();
        self.log_written(key, owner, written);
        if has_guests {
            self.tell_guests(id, key, message);
        }
    }

    /// A line that was just given to the owner of a session belongs into its log.
    #[inline]
    pub(in crate::bus) fn log_written(&mut self, key: SessionKey, owner: Link, written: Option<Written>) {
        if let Some(Written::At { position, length }) = written {
            let end = position + u64::from(length);
            // The names in a line change its length somewhat.
            if length as usize >= LONG_LINE_BYTES / 2 {
                return self.log_long(key, owner, position, length);
            }
            if !self.links.extend_unlogged(owner, key, position, end) {
                self.begin_unlogged(key, owner, position, end);
            }
        }
    }

    #[inline(never)]
    fn begin_unlogged(&mut self, session: SessionKey, owner: Link, start: u64, end: u64) {
        self.log_kept(owner);
        let (log, kind) = self.sessions.log_place(session);
        self.complete_log(log);
        if self.limits.session_log_bytes > 0 {
            self.links.keep_unlogged(owner, Unlogged { session, start, end, log, kind });
            self.sessions.set_unlogged(log, Some(owner));
        }
    }

    /// A long line may not stand in one piece in the queue, so it is not kept there for the log.
    #[cold]
    fn log_long(&mut self, session: SessionKey, owner: Link, position: u64, length: u32) {
        let (log, kind) = self.sessions.log_place(session);
        self.complete_log(log);
        if self.limits.session_log_bytes > 0
            && let Some(line) = self.links.queued_line(owner, position, length)
        {
            let limits = self.log_limits();
            self.sessions.log(log, kind, &line, limits);
        }
    }

    /// Copies into its log what this peer was sent last.
    #[inline]
    pub(in crate::bus) fn log_kept(&mut self, link: Link) {
        let limits = self.log_limits();
        let Some((run, lines)) = self.links.unlogged(link) else { return };
        self.sessions.log(run.log, run.kind, lines, limits);
        self.sessions.set_unlogged(run.log, None);
        self.links.release_unlogged(link);
    }

    /// Copies into the log of a session what it lacks.
    pub(in crate::bus) fn complete_log(&mut self, key: SessionKey) {
        if let Some(link) = self.sessions.unlogged(key) {
            self.log_kept(link);
        }
    }

    /// The same for a session whose owner is away.
    pub(in crate::bus) fn share_unowned(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        let Some(session) = self.sessions.get(key).filter(|session| session.is_logged()) else { return };
        if self.limits.session_log_bytes > 0 {
            let mut line = Vec::new();
            let mut edits = Edits::none();
            edits.add_at(message.envelope.session.or(message.envelope.top_session), &session.bus_token);
            if let Some(span) = message.envelope.child
                && let Some(child) = self.index().at(id, message, span)
            {
                edits.add(span, &child.bus_token);
            }
            splice(&mut line, message.line, &edits);
            line.push(b'\n');
            let (log, kind) = self.sessions.log_place(key);
            self.complete_log(log);
            self.sessions.log(log, kind, &line, self.log_limits());
        }
        if !self.sessions.get(key).is_some_and(|session| session.guests.is_empty()) {
            self.tell_guests(id, key, message);
        }
    }

    /// Gives a notification of the agent to the guests of its session.
    #[cold]
    fn tell_guests(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        let Message { line, envelope } = message;
        let Some(session) = self.sessions.get_mut(key) else { return };
        let guests = std::mem::take(&mut session.guests);
        let nests = self.workers.get(id).is_some_and(|worker| worker.capabilities.nests);
        let spans = if nests { nested::in_update(line, envelope) } else { Vec::new() };
        let child = envelope.child.and_then(|span| self.index().at(id, message, span));
        let child = child.map(|child| child.bus_token.clone());
        let mut behind = Vec::new();
        for (link, guest) in guests.iter() {
            if !self.keeps_up(link, line.len()) {
                behind.push(link);
                continue;
            }
            let mut edits = Edits::none();
            edits.add_at(envelope.session.or(envelope.top_session), &guest.token);
            if let (Some(span), Some(child)) = (envelope.child, &child) {
                edits.add(span, child);
            }
            let nested = self.index().names_for(link, id, message, &spans);
            self.links.send_nested(link, line, &edits, &nested);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.guests = guests;
        }
        for link in behind {
            self.let_behind_go(link, key);
        }
    }

    /// Whether a guest has room for one more line.
    pub(in crate::bus) fn keeps_up(&self, guest: Link, length: usize) -> bool {
        let limit = self.links.queue_limit / GUEST_QUEUE_PART;
        self.links.queued_bytes(guest) + length <= limit || !enabled(Check::GuestBehind)
    }

    /// A guest does not keep up. It is let go and told so, if it can hear that.
    pub(in crate::bus) fn let_behind_go(&mut self, link: Link, key: SessionKey) {
        let root = self.sessions.root(key);
        let guest = self.sessions.get(root).and_then(|session| session.guests.get(link)).cloned();
        if let Some(guest) = guest
            && self.clients.hears_events(link)
        {
            self.send_event(link, &guest.token, "behind", "");
        }
        self.detach_guest(root, link);
    }

    /// Whether the agent of a session tells prompts itself, as those of ACP's second version do.
    fn says_prompts(&self, key: SessionKey) -> bool {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        worker.is_some_and(|worker| worker.capabilities.reports_turn_state)
    }

    /// A prompt is given to the agent.
    #[inline]
    pub(in crate::bus) fn log_prompt(&mut self, key: SessionKey, message: Message<'_>) {
        let limits = self.log_limits();
        if limits.of_one > 0 {
            self.complete_log(key);
            let line = if self.says_prompts(key) { &b""[..] } else { message.line };
            self.sessions.log_prompt(key, line, limits);
        } else {
            self.sessions.log_is_partial(key);
        }
    }

    /// The others in a session are told a prompt.
    #[cold]
    pub(in crate::bus) fn tell_prompt(&mut self, from: Link, key: SessionKey, message: Message<'_>) {
        if !self.says_prompts(key) {
            let owner = self.sessions.get(key).and_then(|session| session.owner);
            for (link, token) in self.others(key, from) {
                if owner == Some(link) || self.keeps_up(link, message.line.len()) {
                    self.send_prompt(link, &token, message);
                } else {
                    self.let_behind_go(link, key);
                }
            }
            if !self.is_owner_speaking(key) {
                self.keep_prompt(key, message);
            }
        }
        let by = self.quoted_name(from);
        self.tell_event(key, "turn", &format!(r#","turn":"running","by":{by}"#));
    }

    /// The next owner of a session hears the prompts of its guests together with what the agent said to them.
    fn keep_prompt(&mut self, key: SessionKey, prompt: Message<'_>) {
        let Some(agent) = self.sessions.get(key).map(|session| session.agent_token.clone()) else { return };
        for line in told_prompt(&agent, prompt) {
            if let Ok(envelope) = Envelope::scan(&line) {
                self.buffer_offline(key, Message::new(&line, &envelope));
            }
        }
    }

    /// The clients of a session but one, and their names for it.
    fn others(&self, key: SessionKey, but: Link) -> Vec<(Link, Token)> {
        let Some(session) = self.sessions.get(key) else { return Vec::new() };
        let owner = session.owner.map(|owner| (owner, session.bus_token.clone()));
        let guests = session.guests.iter().map(|(link, guest)| (link, guest.token.clone()));
        owner.into_iter().chain(guests).filter(|(link, _)| *link != but).collect()
    }

    /// Tells a client a prompt of another one, as agents do it when they load a session.
    fn send_prompt(&mut self, link: Link, token: &[u8], prompt: Message<'_>) {
        for line in told_prompt(token, prompt) {
            self.links.send(link, &line, &[]);
        }
    }

    /// Tells a client what was said in a session. Returns whether that is all.
    pub(in crate::bus) fn send_history(&mut self, link: Link, key: SessionKey, token: &Token) -> bool {
        self.complete_log(key);
        let room = (self.links.queue_limit / GUEST_QUEUE_PART).saturating_sub(self.links.queued_bytes(link));
        let (entries, is_whole) = self.sessions.newest_turns(key, room);
        for (kind, line) in entries {
            let Ok(envelope) = Envelope::scan(&line) else { continue };
            match (kind, envelope.session.or(envelope.top_session)) {
                (Logged::Prompt, _) => self.send_prompt(link, token, Message::new(&line, &envelope)),
                (Logged::Said, Some(span)) => _ = self.links.send(link, &line, &[Edit::new(span, token)]),
                (Logged::Said, None) | (Logged::SaidOfChild, _) => _ = self.links.send(link, &line, &[]),
            }
        }
        is_whole
    }
}

/// A prompt as agents tell it when they load a session: an update for each of its parts.
fn told_prompt(token: &[u8], prompt: Message<'_>) -> impl Iterator<Item = Vec<u8>> {
    let start = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#;
    let update = br#","update":{"sessionUpdate":"user_message_chunk","content":"#;
    let blocks = nested::elements(prompt.line, prompt.envelope.params, b"prompt").into_iter();
    blocks.map(move |block| [&start[..], token, update, block.of(prompt.line), b"}}}"].concat())
}
