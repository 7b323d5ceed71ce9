//! The oracle of worlds with guests: what clients and agents read, and the rules that it must keep.

use kernel_core::id::Link;
use kernel_core::limit::WAITING_PROMPTS;
use serde_json::{Value, json};

use super::talk::parsed;
use super::wires::Mark;
use super::{Asked, Client, Part, Running, Session, World, number};
use crate::oracle::broken;

impl Session {
    /// Whether a client may not have heard what is between these two.
    fn skips(&self, from: usize, to: usize) -> bool {
        self.retold.iter().any(|it| it.start <= from && to <= it.end)
    }
}

impl World {
    /// The agent reads a line. Returns what it answers at once.
    pub(super) fn agent_reads(&mut self, link: Link, bytes: &[u8]) -> Option<Value> {
        let line = parsed(bytes);
        let home = self.process_of(link)?;
        let named = number(&line["params"]["sessionId"]);
        let result = match line["method"].as_str() {
            Some("initialize") => {
                let capabilities =
                    json!({ "loadSession": true, "sessionCapabilities": { "close": {}, "resume": {} } });
                json!({ "protocolVersion": 1, "agentCapabilities": capabilities })
            }
            Some("session/new") => {
                let worker = self.shell.processes[home].worker;
                let shares = self.shell.bus.command(worker).is_some_and(|pool| pool.share);
                self.sessions.push(Session { home, shares, ..Session::default() });
                json!({ "sessionId": format!("a{}", self.sessions.len() - 1) })
            }
            Some("session/resume" | "session/load") => {
                let session = &mut self.sessions[named?];
                session.home = home;
                session.retold.push(session.given_before..session.said);
                json!({})
            }
            Some("session/close") => {
                self.is_over(named?);
                // Who closes a session as its owner knows that its questions are over.
                for client in self.clients.iter_mut() {
                    if client
                        .asked
                        .values()
                        .any(|it| matches!(it, Asked::Leave(closed) if Some(*closed) == named))
                    {
                        client.questions.retain(|_, at| Some(self.questions[*at].session) != named);
                    }
                }
                json!({})
            }
            Some("session/prompt") => {
                let (session, by) = (&mut self.sessions[named?], line["params"]["by"].to_string());
                let other = session.running.values().find(|other| other.by != by);
                // Without sharing, who takes up a session goes on in it at once.
                if let Some(other) = other.filter(|_| session.shares && !session.is_over) {
                    broken!("(17) one turn", "{by} begins a turn in that of {}", other.by);
                }
                let prompt = line["params"]["number"].as_u64().map(|prompt| prompt as usize);
                session.running.insert(line["id"].as_u64()?, Running { by, prompt, home });
                if let Some(prompt) = prompt {
                    self.check_prompt(named?, prompt, bytes);
                }
                return None;
            }
            None => {
                self.question_answered(&line);
                return None;
            }
            _ => return None,
        };
        Some(json!({ "id": line["id"], "result": result }))
    }

    pub(super) fn question_answered(&mut self, answer: &Value) {
        let Some(at) = answer["id"].as_str().and_then(|id| id.strip_prefix('q')?.parse::<usize>().ok())
        else {
            return;
        };
        let question = &mut self.questions[at];
        if std::mem::replace(&mut question.answered, true) {
            broken!("(2) exactly one answer", "question {at} is answered again: {answer}");
        }
        if question.is_of_owner {
            return;
        }
        let is_choice = answer["result"]["outcome"]["outcome"] == "selected";
        if is_choice && !question.may_be_chosen || !is_choice && question.chosen {
            broken!(
                "(18) the first choice",
                "question {at} is answered {answer}, chosen: {}",
                question.chosen
            );
        }
        let mut clients = self.clients.iter().filter(|it| self.is_up_to_date(it));
        let is_open = clients.any(|it| it.questions.values().any(|open| *open == at));
        if answer["error"]["code"] == -32601 && is_open {
            broken!("(18) the first choice", "the error of one answers question {at}, and others are asked");
        }
    }

    /// This client has read all that it was sent, and can still say something.
    fn is_up_to_date(&self, client: &Client) -> bool {
        client.reads && !client.ended && !self.is_behind(client.link)
    }

    /// Nobody who reads is left with a question that is answered or withdrawn.
    pub(super) fn check_withdrawn(&self) {
        let is_over = |at: usize| self.questions[at].answered || self.questions[at].withdrawn.is_some();
        for client in self.clients.iter().filter(|client| self.is_up_to_date(client)) {
            if let Some(question) = client.questions.values().find(|at| is_over(**at)) {
                broken!(
                    "(18) the first choice",
                    "{:?} is not told that question {question} is answered",
                    client.link
                );
            }
        }
    }

    pub(super) fn client_reads(&mut self, link: Link, bytes: &[u8]) {
        let Some(at) = self.clients.iter().position(|client| client.link == link) else { return };
        let line = parsed(bytes);
        let named = number(&line["params"]["sessionId"]).or_else(|| number(&line["params"]["session"]));
        match (line["method"].as_str(), named) {
            (Some("session/update"), Some(session)) => self.hears(at, session, &line, bytes),
            (Some("session/request_permission" | "fs/read_text_file"), Some(session)) => {
                self.is_asked(at, session, &line);
            }
            (Some("$/cancel_request"), _) => self.need_not_answer(at, &line),
            (Some("_bus/session"), Some(session)) => match line["params"]["event"].as_str() {
                Some("queued") if line["params"]["place"].as_u64() > Some(WAITING_PROMPTS as u64) => {
                    broken!("(6) bounded memory", "too many prompts wait: {line}");
                }
                Some("behind") => self.clients[at].forgets(session),
                Some("ended") => self.is_told_over(at, session),
                _ => {}
            },
            (None, _) => self.is_answered(at, &line, bytes),
            _ => {}
        }
    }

    /// A client is told that a question needs no answer. If the agent has withdrawn it, it may say that it has heard.
    fn need_not_answer(&mut self, at: usize, line: &Value) {
        let Some(id) = line["params"]["requestId"].as_u64() else { return };
        if let Some(session) = self.clients[at].asked_in.remove(&id) {
            *self.clients[at].taken_back.entry(session).or_default() += 1;
        }
        let Some(question) = self.clients[at].questions.remove(&id) else {
            self.clients[at].late.insert(id);
            return;
        };
        if self.questions[question].withdrawn.is_some() && !self.clients[at].ended && self.rng.percent(70) {
            let error = json!({ "code": -32800, "message": "cancelled" });
            self.gives(self.clients[at].link, &json!({ "id": id, "error": error }), Mark::Line);
        }
    }

    pub(super) fn hears(&mut self, at: usize, session: usize, line: &Value, bytes: &[u8]) {
        let (params, update) = (&line["params"], &line["params"]["update"]);
        let said = update["said"].as_u64().or(params["said"].as_u64()).map(|said| said as usize);
        if let Some(said) = said {
            self.check_said(session, said, bytes);
        }
        // Who does not read may hear of it when it is over.
        if self.sessions[session].is_over {
            return;
        }
        if said.is_some() {
            self.prompt_is_whole(at, session);
        }
        if update["sessionUpdate"] == "agent_thought_chunk" {
            self.hears_choice(at, session, line);
        }
        let (client, it) = (&mut self.clients[at], &self.sessions[session]);
        let is_joining = client
            .asked
            .values()
            .any(|it| matches!(it, Asked::Join { session: other, full: true, .. } if *other == session));
        match (client.sessions.get_mut(&session), said) {
            (Some((_, next)), Some(said)) => {
                let is_skipped = |next| it.skips(next, said) && self.is_long;
                if next.is_some_and(|next| next != said && !is_skipped(next)) {
                    broken!(
                        "(19) one order",
                        "{:?} hears {said} of session {session}, not {next:?}",
                        client.link
                    );
                }
                *next = Some(said + 1);
            }
            (None, Some(said)) if is_joining => {
                let told = client.told.get(&session).copied();
                let (first, last) = told.map_or((said, None), |(first, last)| (first, Some(last)));
                client.told.insert(session, (first, said));
                let is_skipped = |last| it.skips(last + 1, said) && self.is_long;
                if last.is_some_and(|last| last + 1 != said && !is_skipped(last)) {
                    broken!(
                        "(19) one order",
                        "{:?} is told {said} of session {session} after {last:?}",
                        client.link
                    );
                }
            }
            (Some(_), None) => {}
            (None, None) if is_joining => {}
            (None, _) => {
                broken!("(3) no traffic of others", "{:?} is not in session {session}: {line}", client.link)
            }
        }
        if self.is_long && update["sessionUpdate"] == "user_message_chunk" {
            let next = match client.sessions.get(&session) {
                Some((_, next)) => *next,
                None => client.told.get(&session).map(|(_, last)| last + 1),
            };
            self.hears_prompt(at, session, is_joining, next, bytes);
        }
    }

    /// The bus tells in a session who chose what: to who was asked too, behind the line that takes it back, and to
    /// nobody who hears that by an event.
    fn hears_choice(&mut self, at: usize, session: usize, line: &Value) {
        let client = &mut self.clients[at];
        let text = line["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
        let before = client.taken_back.get_mut(&session).filter(|count| **count > 0);
        if client.hears_events || before.is_none() || !text.trim_end().ends_with(" chose yes") {
            broken!("(24) told of a choice", "{:?} was asked nothing that is decided: {line}", client.link);
        }
        before.into_iter().for_each(|count| *count -= 1);
    }

    /// Everybody who is in a session and reads has heard the last that was said.
    pub(super) fn check_heard(&self) {
        for client in self.clients.iter().filter(|client| self.is_up_to_date(client)) {
            if let Some(session) = client.over.first() {
                broken!("(22) told of its end", "{:?} does not know that {session} is over", client.link);
            }
            for (session, (part, next)) in &client.sessions {
                let (is_handled, it) = (self.is_handled(*session), &self.sessions[*session]);
                let is_missing = |next| next != it.given && !(self.is_long && it.skips(next, it.given));
                if is_handled && next.is_some_and(is_missing) {
                    broken!(
                        "(19) one order",
                        "{:?}, {part:?}, has not heard {next:?} of {session}",
                        client.link
                    );
                }
            }
        }
    }

    pub(super) fn is_asked(&mut self, at: usize, session: usize, line: &Value) {
        if self.sessions[session].is_over {
            return;
        }
        let client = &mut self.clients[at];
        // Who takes up a session is asked before its request is answered.
        let joins = |asked: &Asked| match asked {
            Asked::Join { session: joined, part: Part::Owner, .. } => *joined == session,
            _ => false,
        };
        let joins_as = client.asked.values().any(joins).then_some(Part::Owner);
        let part = client.sessions.get(&session).map(|(part, _)| *part).or(joins_as);
        let (Some(id), Some(question)) = (line["id"].as_u64(), line["params"]["question"].as_u64()) else {
            return;
        };
        if !matches!(part, Some(Part::Owner | Part::Control)) {
            broken!(
                "(3) no traffic of others",
                "{:?}, {part:?} of session {session}, is asked {line}",
                client.link
            );
        }
        let withdrawn = self.questions[question as usize].withdrawn.as_ref();
        if withdrawn.is_some_and(|ends| client.heard >= ends.get(&client.link).copied().unwrap_or(0)) {
            broken!("(22) withdrawn", "{:?} is asked what the agent has withdrawn: {line}", client.link);
        }
        client.asked_in.insert(id, session);
        // One that did not read may hear of a question that is answered; it is told that next.
        client.questions.insert(id, question as usize);
    }

    pub(super) fn is_answered(&mut self, at: usize, line: &Value, bytes: &[u8]) {
        let id = line["id"].as_u64().unwrap_or_default() as usize;
        let client = &mut self.clients[at];
        let Some(asked) = client.asked.remove(&id) else {
            broken!("(2) exactly one answer", "{:?} did not ask {line}", client.link);
        };
        let reason = line["error"]["data"]["reason"].as_str();
        let is_good = reason.is_none();
        match asked {
            Asked::Open if is_good => {
                let id = line["result"]["sessionId"].as_str().unwrap_or_default();
                let Some(session) = number(&line["result"]["sessionId"]) else { return };
                client.sessions.insert(session, (Part::Owner, Some(0)));
                (self.sessions[session].id, self.sessions[session].is_other) =
                    (id.to_owned(), client.is_other);
            }
            Asked::Join { session, part, full } => {
                client.hears_events |= line["result"]["label"].is_string();
                self.has_joined(at, session, part, full, reason);
                if is_good && self.is_long {
                    self.was_told(at, session, part, full && line["result"]["truncated"] == false);
                }
            }
            Asked::Take(session) if is_good => {
                for other in &mut self.clients {
                    if let Some((part @ Part::Owner, _)) = other.sessions.get_mut(&session) {
                        *part = Part::Control;
                    }
                }
                // Who was let go, and did not know it yet, joins again.
                self.clients[at].sessions.entry(session).or_insert((Part::Owner, None)).0 = Part::Owner;
            }
            Asked::Leave(session) if is_good => client.forgets(session),
            Asked::Prompt { session, part, prompt } => {
                if let Some(prompt) = prompt.filter(|_| is_good) {
                    self.check_answer(prompt, bytes);
                }
                let client = &self.clients[at];
                if part == Part::Observe && is_good {
                    broken!("(20) observers", "{:?} only observes session {session}: {line}", client.link);
                }
            }
            Asked::Close(session) if is_good => self.is_told_over(at, session),
            Asked::Open | Asked::Take(_) | Asked::Leave(_) | Asked::Close(_) | Asked::Other => {}
        }
    }

    pub(super) fn has_joined(
        &mut self,
        at: usize,
        session: usize,
        part: Part,
        full: bool,
        reason: Option<&str>,
    ) {
        // What nobody has may have made room for another.
        let is_used = self.clients.iter().any(|client| client.sessions.contains_key(&session));
        let (client, it) = (&mut self.clients[at], &self.sessions[session]);
        let told = if self.is_long { None } else { client.told.remove(&session) };
        let is_other = client.is_other != it.is_other;
        match reason {
            None if !it.shares && part != Part::Owner => {
                broken!("(3) no traffic of others", "session {session} is not shared")
            }
            None if is_other => broken!("(21) versions", "{:?} speaks another version", client.link),
            Some("busy") if !is_other => broken!("(9) reasons", "{:?} cannot join {session}", client.link),
            Some("unknown_session") if it.shares && !it.is_over && is_used => {
                broken!("(9) reasons", "{:?} cannot find {session}", client.link)
            }
            Some(_) => return client.forgets(session),
            None => {}
        }
        if let Some((_, last)) = told.filter(|(_, last)| full && last + 1 != it.said) {
            broken!(
                "(19) one order",
                "the history of session {session} ends with {last}, said are {}",
                it.said
            );
        }
        client.sessions.insert(session, (part, Some(it.said)));
    }

    /// A client has joined, and more may have been said since. What it was told goes on from there, and if it heard
    /// that this was all, it began with the first.
    fn was_told(&mut self, at: usize, session: usize, part: Part, is_whole: bool) {
        let told = self.clients[at].told.remove(&session);
        // Without a log nothing is told, and nobody can say whether that is all.
        let is_whole = is_whole && self.log_bytes > 0;
        let next = told.map(|(_, last)| last + 1).or(is_whole.then_some(0));
        let is_first = told.is_none_or(|(first, _)| first == 0) && self.begins_with_first(at, session, next);
        if is_whole && !is_first {
            broken!("(19) one order", "what {:?} is told of {session} is not all", self.clients[at].link);
        }
        self.clients[at].sessions.insert(session, (part, next));
    }
}
