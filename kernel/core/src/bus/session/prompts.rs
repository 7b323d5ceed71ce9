//! Prompts of several clients in one session: a prompt waits while a turn runs that another client began.
//!
//! Each is told to the others when the agent gets it, so that everybody sees what the agent answers.

use serde_json::json;

use crate::bus::keep::{self, By};
use crate::bus::{Bus, Stopping};
use crate::id::{CallKey, Link, SessionKey};
use crate::limit::{CLIENT_NAME_BYTES, NESTED_BYTES, TURN_ERROR_BYTES, WAITING_PROMPTS};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::Written;
use crate::state::prompts::WaitingPrompt;
use crate::state::sessions::Session;
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;
use crate::wire::nested::{self, within};
use crate::wire::scan::Envelope;

/// The answer to a prompt that the agent never got.
const CANCELLED: &[u8] = br#"{"stopReason":"cancelled"}"#;

/// Whether a prompt of this client must wait. An error: too many do.
#[inline]
pub(in crate::bus) fn prompt_waits(from: Link, session: &Session) -> Result<bool, RpcError> {
    match session.prompts.by() {
        // What the agent says to it could not be told from what it tells again, and the others would not hear it.
        _ if session.is_retold => {}
        Some(by) if by != from && session.is_shared && session.has_turn() => {}
        _ => return Ok(false),
    }
    if !enabled(Check::OneTurn) {
        return Ok(false);
    }
    if session.prompts.waiting() >= WAITING_PROMPTS && enabled(Check::PromptBound) {
        return Err(RpcError::busy(format!(
            "{WAITING_PROMPTS} prompts wait for the end of the turn in this session"
        )));
    }
    Ok(true)
}

/// How a turn ends.
#[derive(Clone, Copy)]
pub(in crate::bus) enum TurnEnd<'a> {
    /// The agent has answered the prompt.
    Answered(Message<'a>),
    /// The bus has answered in its place.
    Failed(&'a RpcError),
    /// Nobody waits for the answer any more.
    Forgotten,
}

impl TurnEnd<'_> {
    /// The error with which it ends, as far as it is short enough to be told to others.
    #[inline]
    pub(in crate::bus) fn error(self) -> Option<Box<str>> {
        match self {
            TurnEnd::Answered(answer) if answer.is_error() => {
                Some(told_error(answer.outcome().unwrap_or(b"{}")))
            }
            TurnEnd::Failed(error) => Some(told_error(error.error().as_bytes())),
            TurnEnd::Answered(_) | TurnEnd::Forgotten => None,
        }
    }
}

/// An error as the others in a session are told it: the whole of it, or what is most important in a long one.
#[cold]
fn told_error(error: &[u8]) -> Box<str> {
    if error.len() <= TURN_ERROR_BYTES {
        return String::from_utf8_lossy(error).into();
    }
    let whole = within(nested::whole(error), NESTED_BYTES);
    let [code, message] = nested::members_of(error, whole, [b"code", b"message"]);
    let code = code.and_then(|code| std::str::from_utf8(code.of(error)).ok()?.parse::<i64>().ok());
    let message = nested::string(error, message)
        .and_then(|text| nested::beginning(text.of(error), TURN_ERROR_BYTES / 4));
    json!({ "code": code.unwrap_or(-32603), "message": message.unwrap_or_default() }).to_string().into()
}

impl Bus {
    /// The prompt waits for the end of another client's turn.
    pub(in crate::bus) fn hold_prompt(
        &mut self,
        from: Link,
        key: SessionKey,
        call: CallKey,
        (line, envelope): (Box<[u8]>, Envelope),
    ) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let prompt = WaitingPrompt { from, call, line, envelope: Some(Box::new(envelope)) };
        session.prompts.wait(prompt, &mut self.held);
        let place = session.prompts.waiting();
        self.tell_event(key, "queued", &format!(r#","by":{},"place":{place}"#, self.quoted_name(from)));
    }

    /// A prompt of this client is given to the agent. It is logged, and the others in the session are told.
    #[inline]
    pub(in crate::bus) fn begin_prompt(
        &mut self,
        from: Link,
        key: SessionKey,
        call: CallKey,
        message: Message<'_>,
    ) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.prompts.begin(from, call, self.now);
        if session.prompts.failed.take().is_some() {
            session.count(&mut self.held);
        }
        if session.is_shared {
            let is_alone = session.guests.is_empty() && session.owner == Some(from);
            if session.has_own_log() {
                self.log_prompt(key, message);
            }
            if !is_alone || self.clients.hears_events(from) {
                self.tell_prompt(from, key, message);
            }
        }
        // Where the agent tells prompts itself, they are kept as it tells them.
        if self.keeper.link().is_some() && !self.says_prompts(key) {
            keep::request(self, key, By::Client(from), message, call.spelled(&mut itoa::Buffer::new()));
        }
    }

    /// The agent has answered a prompt, or never will.
    #[inline]
    pub(in crate::bus) fn prompt_ended(&mut self, key: Option<SessionKey>, call: CallKey, end: TurnEnd<'_>) {
        let Some((key, session)) = key.and_then(|key| Some((key, self.sessions.get_mut(key)?))) else {
            return;
        };
        if !session.prompts.end(call) {
            session.prompts.withdraw(call, &mut self.held);
            return;
        }
        // In ACP's second version the answer is not the end.
        let worker = session.worker.and_then(|id| self.workers.get(id));
        let reports = worker.is_some_and(|worker| worker.capabilities.reports_turn_state);
        if !reports && !matches!(end, TurnEnd::Forgotten) {
            session.prompts.note_turn_end();
        }
        session.note_turn_end(end.error(), &mut self.held);
        let has_others = !session.guests.is_empty() || session.prompts.waiting() > 0;
        let is_told = has_others || session.owner.is_some_and(|owner| self.clients.hears_events(owner));
        let is_over = is_told && !session.has_turn();
        if let TurnEnd::Failed(error) = end {
            keep::failed(self, key, call, error);
        }
        if is_over {
            self.turn_ended(key, end);
        }
    }

    /// Tells everybody in a session that its turn is over, and how it failed if it did. The next prompt can begin.
    #[cold]
    pub(in crate::bus) fn turn_ended(&mut self, key: SessionKey, end: TurnEnd<'_>) {
        let reason = match end {
            TurnEnd::Answered(answer) if !answer.is_error() => {
                // Each of the others gets a copy of it.
                nested::text(answer.line, within(answer.envelope.outcome, NESTED_BYTES), b"stopReason")
                    .map(|span| span.of(answer.line))
                    .filter(|reason| reason.len() <= CLIENT_NAME_BYTES)
            }
            _ => None,
        };
        let reason = reason.map(|reason| format!(r#","stopReason":{}"#, String::from_utf8_lossy(reason)));
        let failed = self.sessions.get(key).and_then(|session| session.prompts.failed.as_deref());
        let failed = failed.map(|error| format!(r#","stopReason":"error","error":{error}"#));
        let reason = failed.or(reason).unwrap_or_default();
        self.tell_event(key, "turn", &format!(r#","turn":"idle"{reason}"#));
        self.next_prompt(key);
    }

    /// A turn may be over: the prompt that has waited longest can begin.
    #[inline]
    pub(in crate::bus) fn next_prompt(&mut self, key: SessionKey) {
        if self.is_prompt_due(key) {
            self.todo.prompt(key);
        }
    }

    /// Whether a prompt waits, no turn runs and the session is not told again.
    #[inline]
    fn is_prompt_due(&self, key: SessionKey) -> bool {
        // Once the bus waits for turns no longer, what waits is refused, and an agent may still work.
        let may_begin = matches!(self.stopping, None | Some(Stopping::Draining { .. }));
        may_begin && self.sessions.get(key).is_some_and(Session::may_begin_prompt)
    }

    /// Gives the agent the prompt that has waited longest, and the next one if nobody waits for that one any more.
    #[cold]
    pub(in crate::bus) fn send_waiting_prompts(&mut self, key: SessionKey) {
        while self.is_prompt_due(key) {
            let worker = self.worker_of(key);
            let Some(session) = self.sessions.get_mut(key) else { return };
            let Some(prompt) = session.prompts.next(&mut self.held) else { return };
            let (Some(id), true) = (worker, self.calls.get(prompt.call).is_some()) else { continue };
            if let Some(envelope) = prompt.envelope() {
                self.begin_prompt(prompt.from, key, prompt.call, Message::new(&prompt.line, &envelope));
            }
            let reopened = self.sessions.get_mut(key).and_then(|session| session.recovering.as_mut());
            match reopened {
                Some(backlog) => backlog.push(Queued::Line(Some(prompt.call), prompt.line), &mut self.held),
                None => self.send_or_queue(id, prompt.call, prompt.line),
            }
        }
    }

    /// The client cancels this call. True: it was a prompt that waited, and is answered.
    pub(in crate::bus) fn cancel_waiting_prompt(&mut self, link: Link, key: CallKey) -> bool {
        let Some(call) = self.calls.get(key).filter(|call| call.written == Written::NotYet) else {
            return false;
        };
        let session = call.session.and_then(|session| self.sessions.get_mut(session));
        if !session.is_some_and(|session| session.prompts.withdraw(key, &mut self.held)) {
            return false;
        }
        self.answer_cancelled(link, key);
        true
    }

    /// The client cancels the turn of this session, and with it its prompts that wait.
    pub(in crate::bus) fn cancel_waiting_prompts(&mut self, link: Link, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.prompts.waiting() == 0 {
            return;
        }
        for call in session.prompts.withdraw_all(link, &mut self.held) {
            self.answer_cancelled(link, call);
        }
    }

    fn answer_cancelled(&mut self, link: Link, key: CallKey) {
        if let Some(call) = self.calls.end(key) {
            self.send_own(link, &spelled_result_line(call.id.as_bytes(), CANCELLED));
        }
    }
}
