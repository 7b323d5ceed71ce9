//! Foreground work, which ACP's second version tells of: a prompt is answered once it is taken in, and the turn goes
//! on until the agent says that the session is idle.
//!
//! The bus follows what the agent says, so that a stop waits for turns that no call is in flight for, and so that a
//! client hears the end of a turn whose agent has died.

use memchr::memmem;
use serde::Deserialize;

use crate::bus::Bus;
use crate::id::{Link, SessionKey, WorkerId};
use crate::state::sessions::TurnState;
use crate::wire::error::RpcError;

impl Bus {
    /// The worker speaks of a session: if it tells its state, that is kept.
    pub(in crate::bus) fn note_turn_state(&mut self, id: WorkerId, key: SessionKey, line: &[u8]) {
        if self.workers.get(id.0).is_some_and(|worker| worker.capabilities.reports_turn_state)
            && let Some(turn_state) = told(line)
            && let Some(session) = self.session_mut(key)
        {
            session.turn_state = Some(turn_state);
        }
    }

    pub(in crate::bus) fn is_turn_running(&self, key: SessionKey) -> bool {
        let turn_state = self.session(key).and_then(|session| session.turn_state);
        turn_state.is_some_and(|turn_state| turn_state != TurnState::Idle)
    }

    /// A turn goes on that somebody follows.
    pub(in crate::bus) fn is_any_turn_followed(&self) -> bool {
        self.sessions.iter().any(|(key, session)| {
            let key = SessionKey(key);
            session.worker.is_some() && self.is_turn_running(key) && self.is_owned(key)
        })
    }

    /// The agent will not say how its turn ended: the bus does.
    pub(in crate::bus) fn end_turn(&mut self, key: SessionKey, error: &RpcError) {
        if !self.is_turn_running(key) {
            return;
        }
        let Some(session) = self.session_mut(key) else { return };
        session.turn_state = Some(TurnState::Idle);
        if let Some(owner) = session.owner {
            let error = error.error();
            self.send_turn_state(owner, key, &format!(r#","stopReason":"error","error":{error}"#));
        }
    }

    /// Whoever takes up a session hears how it stands.
    pub(in crate::bus) fn report_turn_state(&mut self, link: Link, key: SessionKey) {
        self.send_turn_state(link, key, "");
    }

    fn send_turn_state(&mut self, link: Link, key: SessionKey, more: &str) {
        let Some(session) = self.session(key) else { return };
        let Some(turn_state) = session.turn_state else { return };
        let (name, state) = (String::from_utf8_lossy(&session.bus_token), turn_state.name());
        let update = format!(r#"{{"sessionUpdate":"state_update","state":"{state}"{more}}}"#);
        let params = format!(r#"{{"sessionId":{name},"update":{update}}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#);
        self.trace_own(link, line.as_bytes(), None);
        self.links.send(link, line.as_bytes(), &[]);
    }
}

/// The state in this line, if it is an update that tells one.
fn told(line: &[u8]) -> Option<TurnState> {
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

    // Most updates are pieces of text, and looking for the word is all they cost.
    memmem::find(line, br#""state_update""#)?;
    let Line { params: Params { update } } = serde_json::from_slice(line).ok()?;
    match (update.session_update, update.state) {
        ("state_update", "idle") => Some(TurnState::Idle),
        ("state_update", "requires_action") => Some(TurnState::RequiresAction),
        // A state that is not known is not idle.
        ("state_update", _) => Some(TurnState::Running),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_update_of_the_state_tells_a_state() {
        let of = |update: &str| {
            told(
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
