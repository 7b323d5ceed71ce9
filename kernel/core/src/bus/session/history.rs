//! What the clients of a session hear beside its owner: what the agent says now, what it has said, and the prompts.

use super::guests::event_line;
use crate::bus::Bus;
use crate::bus::keep::{self, By};
use crate::bus::past::Told;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::{
    PROMPT_ADDED_BYTES, PROMPT_ADDED_TIMES, PROMPT_BLOCKS, PROMPT_BLOCKS_LEAST, PROMPT_SENDS,
};
use crate::mutants::{Check, enabled};
use crate::state::opening::{Opening, SettingKind};
use crate::state::session_id::Token;
use crate::state::session_log::Logged;
use crate::state::sessions::{LogLimits, Sessions};
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested;
use crate::wire::scan::Envelope;
use crate::wire::splice::{Edit, Edits, splice, with_nested};

/// A prompt as it is told, around the token of the session and its block.
const TOLD_START: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#;
const TOLD_UPDATE: &[u8] = br#","update":{"sessionUpdate":"user_message_chunk","content":"#;
/// Where the token goes.
const TOLD_TOKEN: Span = Span { start: TOLD_START.len() as u32, end: TOLD_START.len() as u32 };
/// Stands for the blocks of a prompt that are not told.
const MORE_BLOCKS: &[u8] = br#"{"type":"text","text":"[more of this prompt is not shown]"}"#;

/// How much of `max_output_queue` may wait for a guest, as a part: it is let go before the agent has to wait for it.
const GUEST_QUEUE_PART: usize = 2;

impl Bus {
    #[inline]
    pub(in crate::bus) fn log_limits(&self) -> LogLimits {
        let of_all = self.limits.max_log_bytes.min(self.limits.max_held_bytes / 4);
        LogLimits { of_one: self.limits.session_log_bytes, of_all }
    }

    /// A notification was given to the owner of its session with these edits: it is logged, and the guests hear it.
    pub(in crate::bus) fn share(
        &mut self,
        id: WorkerId,
        key: SessionKey,
        message: Message<'_>,
        edits: &[Edit<'_>],
    ) {
        let Some(session) = self.sessions.get(key) else { return };
        let (is_logged, has_guests) = (session.is_logged(), !session.guests.is_empty());
        if is_logged {
            self.sessions.log(key, message.line, edits, self.log_limits());
        }
        keep::line(self, key, By::Agent, message.line, edits, is_logged);
        if is_logged && has_guests {
            self.tell_guests(id, key, message);
        }
    }

    /// Like `share`, for a session whose owner is away.
    pub(in crate::bus) fn share_unowned(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        let Some(session) = self.sessions.get(key) else { return };
        let token = session.bus_token.clone();
        let child = message.envelope.child.and_then(|span| {
            let child = self.index().at(id, message, span)?;
            Some((span, child.bus_token.clone()))
        });
        let mut edits = Edits::none();
        edits.add_at(message.envelope.session.or(message.envelope.top_session), &token);
        if let Some((span, child)) = &child {
            edits.add(*span, child);
        }
        self.share(id, key, message, &edits);
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
        let shared = self.links.share(guests.len(), line);
        let line = shared.line(line);
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
            self.links.send(link, line, &with_nested(&edits, &nested));
        }
        self.links.end_share(shared);
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
            let (line, span) = event_line("behind", "");
            self.send_own_to(link, &line, Edit::new(span, &guest.token));
        }
        self.detach_guest(root, link);
    }

    /// Whether the agent of a session tells prompts itself, as those of ACP's second version do.
    pub(in crate::bus) fn says_prompts(&self, key: SessionKey) -> bool {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        worker.is_some_and(|worker| worker.capabilities.reports_turn_state)
    }

    /// A prompt is given to the agent.
    #[inline]
    pub(in crate::bus) fn log_prompt(&mut self, key: SessionKey, message: Message<'_>) {
        let limits = self.log_limits();
        if limits.of_one > 0 {
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
            let others = others(&self.sessions, key, from);
            let longest = others.iter().map(|(_, token)| token.len()).max().unwrap_or_default();
            let told = told_prompt(message, longest, others.len());
            let bytes = told.iter().map(|line| line.len() + longest).sum();
            let mut hearers = Vec::new();
            for (link, token) in others {
                if owner == Some(link) || self.keeps_up(link, bytes) {
                    hearers.push((link, token));
                } else {
                    self.let_behind_go(link, key);
                }
            }
            for line in &told {
                let shared = self.links.share(hearers.len(), line);
                let line = shared.line(line);
                for (link, token) in &hearers {
                    self.links.send(*link, line, &[Edit::new(TOLD_TOKEN, token)]);
                }
                self.links.end_share(shared);
            }
            if !self.is_owner_speaking(key) {
                self.keep_prompt(key, &told);
            }
        }
        let by = self.quoted_name(from);
        self.tell_event(key, "turn", &format!(r#","turn":"running","by":{by}"#));
    }

    /// A client has set a mode or an option. Many agents tell nobody but the client that asked, so the bus tells the
    /// others, unless the agent has.
    pub(in crate::bus) fn setting_made(
        &mut self,
        (key, by): (SessionKey, Option<Link>),
        kind: SettingKind,
        params: &[u8],
        result: Option<&[u8]>,
    ) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let is_new = session.save_setting(kind, params, result);
        session.count(&mut self.held);
        let Some(update) = kind.update(params, result).filter(|_| is_new && !session.guests.is_empty())
        else {
            return;
        };
        let line = [TOLD_START, br#","update":"#, &update, b"}}"].concat();
        let others = match by {
            Some(by) => others(&self.sessions, key, by),
            None => return,
        };
        for (link, token) in others {
            if self.keeps_up(link, line.len()) {
                self.links.send(link, &line, &[Edit::new(TOLD_TOKEN, &token)]);
            }
        }
    }

    /// A client that does not hear the session again is told the commands that its agent has now.
    pub(in crate::bus) fn tell_commands(&mut self, link: Link, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let commands = session.opening.as_ref().and_then(Opening::commands);
        if let (Some(commands), Some(token)) = (commands, session.token_of(link)) {
            let line = [TOLD_START, br#","update":"#, commands, b"}}"].concat();
            self.links.send(link, &line, &[Edit::new(TOLD_TOKEN, token)]);
        }
    }

    /// The next owner of a session hears the prompts of its guests together with what the agent said to them.
    fn keep_prompt(&mut self, key: SessionKey, told: &[Vec<u8>]) {
        let Some(agent) = self.sessions.get(key).map(|session| session.agent_token.clone()) else { return };
        for line in told {
            let mut named = Vec::with_capacity(line.len() + agent.len());
            splice(&mut named, line, &[Edit::new(TOLD_TOKEN, &agent)]);
            if let Ok(envelope) = Envelope::scan(&named) {
                self.buffer_offline(key, Message::new(&named, &envelope));
            }
        }
    }

    /// Tells a client what was said in a session, but for what it was told. Returns whether that is all.
    pub(in crate::bus) fn send_history(
        &mut self,
        link: Link,
        key: SessionKey,
        token: &Token,
        told: Option<Told>,
    ) -> bool {
        let said = self.sessions.get(key).map_or(0, |session| session.said);
        let (entries, is_whole) = self.sessions.newest_turns(key, room_for_history(self, link));
        let before = said.saturating_sub(entries.len() as u64);
        let known = told.map_or(0, |told| told.upto.saturating_sub(before));
        for (kind, line) in entries.into_iter().skip(known as usize) {
            tell_logged(self, link, token, kind, &line);
        }
        is_whole || told.is_some_and(|told| told.is_whole && told.upto >= before)
    }
}

/// How many bytes of what was said a client can be told now.
pub(in crate::bus) fn room_for_history(bus: &Bus, link: Link) -> usize {
    (bus.links.queue_limit / GUEST_QUEUE_PART).saturating_sub(bus.links.queued_bytes(link))
}

/// The clients of a session but one, and their names for it.
fn others(sessions: &Sessions, key: SessionKey, but: Link) -> Vec<(Link, Token)> {
    let Some(session) = sessions.get(key) else { return Vec::new() };
    let owner = session.owner.map(|owner| (owner, session.bus_token.clone()));
    let guests = session.guests.iter().map(|(link, guest)| (link, guest.token.clone()));
    owner.into_iter().chain(guests).filter(|(link, _)| *link != but).collect()
}

/// Tells a client a line of a log.
pub(in crate::bus) fn tell_logged(bus: &mut Bus, link: Link, token: &Token, kind: Logged, line: &[u8]) {
    let Ok(envelope) = Envelope::scan(line) else { return };
    match (kind, envelope.session.or(envelope.top_session)) {
        (Logged::Prompt, _) => {
            for told in told_prompt(Message::new(line, &envelope), token.len(), 1) {
                bus.links.send(link, &told, &[Edit::new(TOLD_TOKEN, token)]);
            }
        }
        (Logged::Said, Some(span)) => _ = bus.links.send(link, line, &[Edit::new(span, token)]),
        (Logged::Said, None) | (Logged::SaidOfChild, _) => _ = bus.links.send(link, line, &[]),
    }
}

/// A prompt as agents tell it when they load a session: an update for each of its blocks, with no session id at
/// `TOLD_TOKEN`.
///
/// A client chooses how many blocks a prompt has, and one takes two bytes. So only as many are told as the limits allow
/// for so many hearers, whose name for the session has at most `token_bytes`; a last update says that there are more.
fn told_prompt(prompt: Message<'_>, token_bytes: usize, hearers: usize) -> Vec<Vec<u8>> {
    let told = |block: &[u8]| [TOLD_START, TOLD_UPDATE, block, b"}}}"].concat();
    let most = (PROMPT_SENDS / hearers.max(1)).clamp(PROMPT_BLOCKS_LEAST, PROMPT_BLOCKS);
    let all_room = PROMPT_ADDED_TIMES * prompt.line.len() + PROMPT_ADDED_BYTES;
    let mut room = all_room;
    let added = TOLD_START.len() + TOLD_UPDATE.len() + token_bytes + b"}}}\n".len();
    let mut lines = Vec::new();
    nested::for_each_element_once(prompt.line, prompt.envelope.params, b"prompt", |block| {
        let Some(block) = block else {
            lines.clear();
            room = all_room;
            return Some(());
        };
        let fits = lines.len() < most && room >= added || !enabled(Check::PromptTold);
        lines.push(told(if fits { block.of(prompt.line) } else { MORE_BLOCKS }));
        room = room.saturating_sub(added);
        fits.then_some(())
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(prompt: &str, hearers: usize) -> Vec<String> {
        let line =
            format!(r#"{{"id":1,"method":"session/prompt","params":{{"sessionId":"s","prompt":{prompt}}}}}"#);
        let envelope = Envelope::scan(line.as_bytes()).unwrap();
        let lines = told_prompt(Message::new(line.as_bytes(), &envelope), 20, hearers);
        let bytes: usize = lines.iter().map(|line| line.len() + 21).sum();
        assert!(bytes <= 8 * line.len() + 2 * PROMPT_ADDED_BYTES, "{bytes} of {}", line.len());
        lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn every_block_of_a_prompt_is_told_in_its_order() {
        let block = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
        let blocks: Vec<String> = (0..1000).map(|number| block(&number.to_string())).collect();
        let lines = told(&format!("[{}]", blocks.join(" , ")), 20);
        assert_eq!(lines.len(), 1000);
        for (line, block) in lines.iter().zip(blocks) {
            let (start, rest) = line.split_at(TOLD_TOKEN.start as usize);
            let whole: serde_json::Value = serde_json::from_str(&format!("{start}\"s\"{rest}")).unwrap();
            let block: serde_json::Value = serde_json::from_str(&block).unwrap();
            assert_eq!(whole["params"]["update"]["content"], block);
        }
        assert!(told("[]", 1).is_empty() && told("7", 1).is_empty());
    }

    #[test]
    fn a_prompt_of_very_many_blocks_is_told_in_part() {
        for (blocks, hearers) in [(100, 1), (1_000_000, 1), (1_000_000, 400)] {
            let lines = told(&format!("[{}1]", "1,".repeat(blocks)), hearers);
            assert!(lines.len() <= PROMPT_BLOCKS + 1 && lines.len() * hearers <= PROMPT_SENDS + hearers);
            assert!(lines.last().unwrap().contains("more of this prompt is not shown"));
        }
    }
}
