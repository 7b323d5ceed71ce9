//! Owners in worlds with guests: clients that take up a session which nobody owns, and what agents ask of owners alone.

use kernel_core::id::Link;
use serde_json::{Value, json};

use super::{Asked, Part, Question, World};
use crate::oracle::broken;

impl World {
    pub(super) fn has_owner(&self, session: usize) -> bool {
        self.clients.iter().any(|it| matches!(it.sessions.get(&session), Some((Part::Owner, _))))
    }

    /// A client loads or resumes a session that nobody owns, and becomes its owner. It hears what was said since the
    /// last one left. An agent at rest would be asked to tell it all again.
    pub(super) fn takes_up(&mut self, at: usize, session: usize, id: &str) {
        let it = &self.sessions[session];
        if it.is_other != self.clients[at].is_other || self.agent_of(session).is_none() {
            return;
        }
        let is_loaded = !it.running.is_empty() && self.rng.percent(50);
        let method = if is_loaded { "session/load" } else { "session/resume" };
        let asked = Asked::Join { session, part: Part::Owner, full: true };
        self.asks(at, method, json!({ "sessionId": id, "cwd": "/" }), asked);
    }

    /// The agent asks somebody who may answer, or the owner alone.
    pub(super) fn agent_asks(&mut self) {
        let Some((session, _)) = self.some_session() else { return };
        let Some(link) = self.agent_of(session) else { return };
        let life = self.process_of(link).unwrap_or(0);
        let is_of_owner = self.rng.percent(40);
        let at = self.questions.len();
        self.questions.push(Question { life, session, is_of_owner, chosen: false, answered: false });
        let method = if is_of_owner { "fs/read_text_file" } else { "session/request_permission" };
        let params = json!({ "sessionId": format!("a{session}"), "question": at, "options": [] });
        self.gives(link, &json!({ "id": format!("q{at}"), "method": method, "params": params }));
    }

    /// What a client answers to this question.
    pub(super) fn answer_to(&mut self, question: usize) -> Value {
        if self.questions[question].is_of_owner {
            return json!({ "result": { "content": "" } });
        }
        match self.rng.below(if self.is_ending { 1 } else { 4 }) {
            0 | 1 => json!({ "result": { "outcome": { "outcome": "selected", "optionId": "yes" } } }),
            2 => json!({ "result": { "outcome": { "outcome": "cancelled" } } }),
            _ => json!({ "error": { "code": -32601, "message": "no" } }),
        }
    }

    /// Whoever may answer has answered all that it was asked, so nothing is open that somebody could have answered.
    pub(super) fn check_all_asked(&self) {
        for (at, question) in self.questions.iter().enumerate() {
            let can = |part: Part| part == Part::Owner || part == Part::Control && !question.is_of_owner;
            let could = |client: &super::Client| {
                client.reads && client.sessions.get(&question.session).is_some_and(|(part, _)| can(*part))
            };
            let is_open = !question.answered && self.is_up(question.life);
            if is_open && !self.sessions[question.session].is_over && self.clients.iter().any(could) {
                broken!("(2) exactly one answer", "question {at} is asked of nobody");
            }
        }
    }

    /// Everybody has left, and nobody came back in time.
    pub(super) fn check_all_answered(&self) {
        let mut questions = self.questions.iter();
        if let Some(at) = questions.position(|question| !question.answered && self.is_up(question.life)) {
            broken!("(2) exactly one answer", "question {at} is never answered");
        }
    }

    fn is_up(&self, life: usize) -> bool {
        self.shell.processes[life].stdin_open
    }

    pub(super) fn process_of(&self, link: Link) -> Option<usize> {
        self.shell.processes.iter().position(|process| process.link == link)
    }
}
