//! Turn states, which ACP's second version reports: a prompt is answered when it is accepted, and the turn goes on
//! until the agent says that the session is idle.
//!
//! The bus follows these reports, so that a shutdown waits for turns without a call in flight, and so that a client
//! hears the end of a turn whose agent was lost.

use memchr::memmem;
use serde::Deserialize;

use crate::bus::Bus;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::NESTED_BYTES;
use crate::state::sessions::TurnState;
use crate::wire::error::RpcError;
use crate::wire::message::Message;

impl Bus {
    /// Keeps the state that a message of the worker reports, if it does.
    pub(in crate::bus) fn note_turn_state(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        if self.workers.get(id).is_some_and(|worker| worker.capabilities.reports_turn_state)
            && let Some(state) = reported_state(message.line)
        {
            self.sessions.set_turn_state(key, state);
            if state == TurnState::Idle {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.prompts.note_turn_end();
                }
                self.next_prompt(key);
            }
        }
    }

    /// The agent will not report the end of its turn, so the bus does.
    pub(in crate::bus) fn end_turn(&mut self, key: SessionKey, error: &RpcError) {
        let Some(session) = self.sessions.get(key).filter(|session| session.is_turn_running()) else {
            return;
        };
        let hearers: Vec<Link> = session.owner.into_iter().chain(session.guests.links()).collect();
        self.sessions.set_turn_state(key, TurnState::Idle);
        let error = error.error();
        for link in hearers {
            self.send_turn_state(link, key, &format!(r#","stopReason":"error","error":{error}"#));
        }
    }

    /// Tells a client the state of a session. `more`: further members of the update.
    pub(in crate::bus) fn send_turn_state(&mut self, link: Link, key: SessionKey, more: &str) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(state) = session.turn_state else { return };
        let token = session.token_of(link).unwrap_or(&session.bus_token);
        let (name, state) = (String::from_utf8_lossy(token), state.name());
        let update = format!(r#"{{"sessionUpdate":"state_update","state":"{state}"{more}}}"#);
        let params = format!(r#"{{"sessionId":{name},"update":{update}}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#);
        self.send_own(link, line.as_bytes());
    }
}

/// The state in this line, if it is an update that reports one.
fn reported_state(line: &[u8]) -> Option<TurnState> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        update: Update<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Update<'a> {
        session_update: &'a str,
        state: &'a str,
    }

    if line.len() > NESTED_BYTES {
        return None;
    }
    // Most updates are pieces of text, and the search for the word is all that they cost.
    memmem::find(line, br#""state_update""#)?;
    let Line { params: Params { update } } = serde_json::from_slice(line).ok()?;
    match (update.session_update, update.state) {
        ("state_update", "idle") => Some(TurnState::Idle),
        ("state_update", "requires_action") => Some(TurnState::RequiresAction),
        // An unknown state is not idle.
        ("state_update", _) => Some(TurnState::Running),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_state_update_reports_a_state() {
        let of = |update: &str| {
            reported_state(
                format!(r#"{{"method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#)
                    .as_bytes(),
            )
        };
        assert_eq!(of(r#"{"sessionUpdate":"state_update","state":"running"}"#), Some(TurnState::Running));
        assert_eq!(
            of(r#"{"state":"idle","stopReason":"end_turn","sessionUpdate":"state_update"}"#),
            Some(TurnState::Idle)
        );
        let backlog = r#"{"sessionUpdate":"state_update","state":"requires_action"}"#;
        assert_eq!(of(backlog), Some(TurnState::RequiresAction));
        assert_eq!(of(r#"{"sessionUpdate":"state_update","state":"_compacting"}"#), Some(TurnState::Running));
        assert_eq!(of(r#"{"sessionUpdate":"subagent_update","sessionId":"c","state":"idle"}"#), None);
        assert_eq!(of(r#"{"sessionUpdate":"note","state":"idle","text":"\"state_update\""}"#), None);
        assert_eq!(of(r#"{"sessionUpdate":"state_update","state":{"a":1}}"#), None);
    }
}
