//! Owners in worlds with guests: clients that take up a session which nobody owns, and what agents ask of owners alone.

use kernel_core::Event;
use kernel_core::id::Link;
use serde_json::{Value, json};

use super::wires::Mark;
use super::{Asked, Part, Question, World};
use crate::oracle::broken;

impl Question {
    /// The agent waits for its answer.
    fn is_open(&self) -> bool {
        !self.answered && !self.is_withdrawing
    }
}

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
        let link = self.clients[at].link;
        self.asks(at, method, json!({ "sessionId": id, "cwd": "/" }), asked);
        self.flushes(link);
    }

    /// The agent asks somebody who may answer, or the owner alone.
    pub(super) fn agent_asks(&mut self) {
        let Some((session, _)) = self.some_session() else { return };
        let is_of_owner = self.rng.percent(40);
        self.agent_asks_in(session, is_of_owner);
    }

    fn agent_asks_in(&mut self, session: usize, is_of_owner: bool) {
        let Some(link) = self.agent_of(session) else { return };
        let life = self.process_of(link).unwrap_or(0);
        let at = self.questions.len();
        let method = if is_of_owner { "fs/read_text_file" } else { "session/request_permission" };
        let params = json!({ "sessionId": format!("a{session}"), "question": at, "options": [] });
        let line = json!({ "id": format!("q{at}"), "method": method, "params": params });
        self.questions.push(Question {
            life,
            session,
            is_of_owner,
            line_bytes: line.to_string().len(),
            chosen: false,
            may_be_chosen: false,
            answered: false,
            is_withdrawing: false,
            withdrawn: None,
        });
        self.gives(link, &line, Mark::Line);
    }

    /// The agent needs no answer any more to one of its questions.
    pub(super) fn agent_withdraws(&mut self) {
        let is_open = |at: &usize| {
            let it = &self.questions[*at];
            !it.answered && !it.is_withdrawing && self.is_up(it.life) && !self.sessions[it.session].is_over
        };
        let open: Vec<usize> = (0..self.questions.len()).filter(is_open).collect();
        let Some(at) = self.rng.pick(&open).copied() else { return };
        self.questions[at].is_withdrawing = true;
        let link = self.shell.processes[self.questions[at].life].link;
        let params = json!({ "requestId": format!("q{at}") });
        self.gives(link, &json!({ "method": "$/cancel_request", "params": params }), Mark::Withdrawal(at));
    }

    /// A client sends nothing more, and still reads.
    pub(super) fn half_closes(&mut self) {
        // One that owns a session and waits for an answer stays for a while.
        let stays = |client: &super::Client| {
            let waits = client.asked.values().any(|asked| matches!(asked, Asked::Prompt { .. }));
            waits && client.sessions.values().any(|(part, _)| *part == Part::Owner)
        };
        let staying: Vec<usize> = (0..self.clients.len()).filter(|at| stays(&self.clients[*at])).collect();
        let any = self.rng.below(self.clients.len());
        let at = if self.rng.percent(70) { self.rng.pick(&staying).copied().unwrap_or(any) } else { any };
        let client = &self.clients[at];
        if client.ended || !client.reads {
            return;
        }
        let link = client.link;
        self.flushes(link);
        if self.has_written(link) {
            return;
        }
        if let Some(client) = self.clients.iter_mut().find(|client| client.link == link) {
            client.ended = true;
            self.note(format_args!("{link:?} sends nothing more"));
            self.shell.bus.handle(Event::Ended(link), self.shell.now);
            self.after();
        }
    }

    /// In a session whose owner sends nothing more, the agent asks for what only an owner can answer, or somebody
    /// takes over.
    pub(super) fn goes_on_without_owner(&mut self) {
        let is_left = |at: &usize| !self.sessions[*at].is_over && self.has_silent_owner(*at);
        let left: Vec<usize> = (0..self.sessions.len()).filter(is_left).collect();
        let Some(session) = self.rng.pick(&left).copied() else { return };
        if self.rng.percent(50) {
            return self.agent_asks_in(session, true);
        }
        let may_take = |at: &usize| {
            let client = &self.clients[*at];
            client.reads && !client.ended && client.sessions.contains_key(&session)
        };
        let others: Vec<usize> = (0..self.clients.len()).filter(may_take).collect();
        let Some(at) = self.rng.pick(&others).copied() else { return };
        let id = self.sessions[session].id.clone();
        self.asks(at, "_bus/take", json!({ "session": id }), Asked::Take(session));
    }

    /// The owner of this session sends nothing more.
    pub(super) fn has_silent_owner(&self, session: usize) -> bool {
        let owns = |it: &super::Client| matches!(it.sessions.get(&session), Some((Part::Owner, _)));
        self.clients.iter().any(|client| client.ended && owns(client))
    }

    /// The bus closes only clients that send nothing more, once everything is answered, and those that do not read.
    pub(super) fn sees_closed(&mut self) {
        if self.is_stopping {
            return;
        }
        for link in std::mem::take(&mut self.shell.closed) {
            let Some(at) = self.clients.iter().position(|client| client.link == link) else { continue };
            let client = self.clients.remove(at);
            self.wires.remove(&link);
            if client.reads && (!client.ended || !client.asked.is_empty()) {
                broken!("(2) exactly one answer", "{link:?} is closed and has asked {:?}", client.asked);
            }
        }
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
                client.reads
                    && !client.ended
                    && client.sessions.get(&question.session).is_some_and(|(part, _)| can(*part))
            };
            let is_open = question.is_open() && self.is_up(question.life);
            if is_open && !self.sessions[question.session].is_over && self.clients.iter().any(could) {
                broken!("(2) exactly one answer", "question {at} is asked of nobody");
            }
        }
    }

    /// Everybody has left, and nobody came back in time.
    pub(super) fn check_all_answered(&self) {
        let mut questions = self.questions.iter();
        if let Some(at) = questions.position(|question| question.is_open() && self.is_up(question.life)) {
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
