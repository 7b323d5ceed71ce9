//! What a scripted process writes: answers, updates, requests, and lines that no agent should write.

use serde_json::Value as Json;

use crate::line::{self, Slot, Value, mark, marked, noise, object, quoted, slot, text};
use crate::pipe::Mark;
use crate::record::{About, Life, Peer, What, behind_tag};
use crate::worker::{Asked, InitAnswer};
use crate::world::World;

impl World {
    pub(crate) fn worker_reads_line(&mut self, life: Life, line: &[u8]) {
        let Ok(value) = serde_json::from_slice::<Json>(line) else { return };
        let Some(method) = value["method"].as_str() else {
            let id = value["id"].to_string();
            return self.workers[life].asks.retain(|ask| *ask != id);
        };
        let worker = &mut self.workers[life];
        let name = |value: &Json| value.as_str().map(str::to_owned);
        let (session, top) = (name(&value["params"]["sessionId"]), name(&value["sessionId"]));
        worker.labels.extend(top.clone());
        let Some(call_id) = value["id"].as_u64() else { return };
        self.leaked.call_ids.push(call_id);
        if matches!(method, "session/load" | "session/resume") {
            worker.sessions.extend(session.clone());
        }
        if method == "initialize" && worker.init_answer == InitAnswer::Never {
            self.oracle.causes.failed_handshakes += 1;
            return;
        }
        if worker.never_closes && method == "session/close" && marked(line).is_none() {
            return;
        }
        let of_client = matches!(method, "work/do" | "work/labelled" | "session/prompt" | "session/new");
        worker.todo.push(Asked { call_id, method: method.to_owned(), session, top, of_client, opens: None });
    }

    pub(crate) fn answers(&mut self, life: Life, at: usize) {
        let asked = self.workers[life].todo.swap_remove(at);
        if !self.quiet && self.rng.percent(self.plan.too_long_chance) && asked.method != "initialize" {
            return self.answers_too_long(life, &asked);
        }
        let call_id = asked.call_id;
        let serial = self.oracle.next_serial();
        let marked = text(quoted(&mark(serial)));
        let opens = match &*asked.method {
            "session/new" | "session/fork" | "nes/start" => {
                Some(asked.opens.clone().unwrap_or_else(|| self.opened_name(life)))
            }
            _ => None,
        };
        let fails_init = asked.method == "initialize" && self.workers[life].init_answer == InitAnswer::Error;
        let good = !fails_init && (self.quiet || asked.method == "initialize" || self.rng.percent(88));
        let rng = &mut self.rng;
        let mut result = vec![("m", marked.clone())];
        if rng.percent(30) {
            result.push(("n", noise(rng)));
        }
        match &*asked.method {
            "initialize" => {
                result.push(("agentCapabilities", text(self.workers[life].capabilities)));
                if let Some(name) = self.plan.agent(&self.oracle.lives[life].pool) {
                    result.push(("agentInfo", text(format!(r#"{{"name":"{name}"}}"#))));
                }
                self.oracle.lives[life].loads = self.workers[life].capabilities.contains("loadSession");
                self.oracle.causes.failed_handshakes += usize::from(!good);
            }
            "session/list" => result.push(("sessions", self.listing(life))),
            // Every second one passes messages on to another bus, where the turn of the session still runs.
            "session/load" | "session/resume" if good && self.plan.plain && life % 2 == 1 => {
                result.push(("_meta", text(r#"{"bus/turn":"running"}"#)));
                self.oracle.lives[life].far_turns.insert(call_id);
            }
            _ => {}
        }
        if let Some(name) = &opens {
            result.push(("sessionId", slot(Slot::Opened, quoted(name).into_bytes())));
        }
        let rng = &mut self.rng;
        let outcome = if good {
            ("result", object(rng, result))
        } else {
            ("error", object(rng, vec![("code", text("-32000")), ("message", marked)]))
        };
        let id = slot(Slot::Id, call_id.to_string().into_bytes());
        let mut members = vec![("jsonrpc", text(r#""2.0""#)), ("id", id), outcome];
        let repeats_top = rng.percent(70);
        if let Some(top) = &asked.top
            && repeats_top
        {
            members.push(("sessionId", slot(Slot::Top, quoted(top).into_bytes())));
        }
        let opens = if good { opens } else { None };
        self.workers[life].sessions.extend(opens.clone());
        if good && matches!(&*asked.method, "session/close" | "session/delete") {
            let closed = asked.session.clone().unwrap_or_default();
            self.workers[life].sessions.retain(|name| *name != closed);
        }
        let line = line::line(object(&mut self.rng, members));
        self.workers[life].history.push(line.bytes());
        self.send_worker_line(life, line, What::Answer { call_id: Some(call_id), good, opens });
    }

    fn answers_too_long(&mut self, life: Life, asked: &Asked) {
        self.oracle.lives[life].answers_badly(asked.call_id);
        let pad = "p".repeat(self.config.limits.max_input_buffer);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"pad":"{pad}"}}}}"#, asked.call_id);
        self.workers[life].pipe.write(line.as_bytes(), None);
        self.workers[life].pipe.write(b"\n", None);
    }

    /// The result of `session/list`: its sessions, and one that it may have had once.
    fn listing(&mut self, life: Life) -> Value {
        let mut names = self.workers[life].sessions.clone();
        names.push(format!("old-{}", self.rng.below(4)));
        names.dedup();
        let mut entries = Vec::new();
        for name in names {
            let id = quoted(&name);
            entries.push(
                self.rng
                    .one(&["{\"sessionId\":@,\"cwd\":\"/\"}", "{ \"cwd\":\"/\", \"sessionId\" : @ }"])
                    .replace('@', &id),
            );
        }
        let comma = self.rng.one(&[",", " , "]);
        text(format!("[{}]", entries.join(comma)))
    }

    /// Names a new session, uniquely in the whole world or only in this process.
    fn new_name(&mut self, life: Life) -> String {
        let worker = &mut self.workers[life];
        worker.next += 1;
        if self.plan.unique_names {
            format!("s{life}-{}", worker.next)
        } else {
            self.rng.one(&["s@", "é@", "a\"@"]).replace('@', &worker.next.to_string())
        }
    }

    /// Chooses a session of its own, or, if it misbehaves, one that may be another's.
    fn own_or_leaked_session(&mut self, life: Life, misbehaves: bool) -> Option<String> {
        if misbehaves {
            self.rng.pick(&self.leaked.sessions).map(|name| behind_tag(name).to_owned())
        } else {
            self.rng.pick(&self.workers[life].sessions).cloned()
        }
    }

    /// Chooses a session of this process that a client owns.
    fn some_open_session(&mut self, life: Life) -> Option<String> {
        let owned = self.oracle.sessions.iter().filter(|s| s.life == life && s.open && s.owner.is_some());
        let names: Vec<String> = owned.map(|session| session.agent.clone()).collect();
        self.rng.pick(&names).cloned()
    }

    /// Names a session that a client asks for: as a new one, or, if it misbehaves, like one that another process of its
    /// store has.
    fn opened_name(&mut self, life: Life) -> String {
        if !self.quiet && self.plan.taken_id_chance > 0 && self.rng.percent(self.plan.taken_id_chance) {
            let taken = self.oracle.sessions.iter().filter(|s| self.oracle.is_taken(life, &s.agent));
            let names: Vec<String> = taken.map(|session| session.agent.clone()).collect();
            if let Some(name) = self.rng.pick(&names) {
                return name.clone();
            }
        }
        self.new_name(life)
    }

    /// Sends an update, mostly about a session of its own, and now and then announces a child session.
    pub(crate) fn updates(&mut self, life: Life) {
        let odd = !self.quiet && self.rng.percent(self.plan.misbehave_weight);
        let Some(name) = self.own_or_leaked_session(life, odd) else { return };
        let child = (!odd && self.rng.percent(5)).then(|| self.new_name(life));
        self.workers[life].sessions.extend(child.clone());
        // It may speak of a session of its own that belongs to another client.
        let is_odd = self.plan.mention_chance > 0 && child.is_none() && !self.quiet;
        let is_odd = is_odd && self.rng.percent(self.plan.mention_chance);
        let mentioned = if is_odd { self.some_open_session(life) } else { None };
        let update = match child.as_ref().or(mentioned.as_ref()) {
            None => {
                let content = noise(&mut self.rng);
                object(&mut self.rng, vec![("content", content)])
            }
            Some(child) => {
                let id = slot(Slot::Child, quoted(child).into_bytes());
                object(&mut self.rng, vec![("sessionId", id), ("kind", text("1"))])
            }
        };
        self.tell_client(
            life,
            "session/update",
            About::Session(name),
            child,
            false,
            vec![("update", update)],
        );
    }

    /// Sends an update about a session that it is about to open.
    pub(crate) fn early_update(&mut self, life: Life) {
        let opening = |asked: &Asked| matches!(&*asked.method, "session/new" | "session/fork" | "nes/start");
        let Some(at) = self.workers[life].todo.iter().position(opening) else { return };
        let name = match self.workers[life].todo[at].opens.clone() {
            Some(name) => name,
            None => self.new_name(life),
        };
        self.workers[life].todo[at].opens = Some(name.clone());
        self.tell_client(life, "session/update", About::Session(name), None, true, Vec::new());
    }

    pub(crate) fn notifies(&mut self, life: Life) {
        let method = self.rng.one(&["_auth/status_update", "_info/other"]);
        self.tell_client(life, method, About::Nothing, None, false, Vec::new());
    }

    pub(crate) fn label_message(&mut self, life: Life) {
        let Some(label) = self.rng.pick(&self.workers[life].labels).cloned() else { return };
        if self.rng.percent(60) {
            self.tell_client(life, "work/progress", About::Label(label), None, false, Vec::new());
        } else {
            self.ask_client(life, "work/confirm", About::Label(label), Vec::new());
        }
    }

    /// Asks a client something: about a session, in the scope of a request, or about nothing.
    pub(crate) fn asks_client(&mut self, life: Life) {
        match self.rng.below(10) {
            0..7 => {
                let odd = self.rng.percent(self.plan.misbehave_weight);
                let Some(name) = self.own_or_leaked_session(life, odd) else { return };
                let options =
                    r#"[{"optionId":"no","kind":"reject_once"},{"optionId":"yes","kind":"allow_once"}]"#;
                let offered = self.rng.percent(50);
                let more = if offered { vec![("options", text(options))] } else { Vec::new() };
                self.ask_client(life, "session/request_permission", About::Session(name), more);
            }
            7 | 8 => {
                let Some(call_id) = self.rng.pick(&self.workers[life].todo).map(|asked| asked.call_id) else {
                    return;
                };
                let name = format!("e{life}-{}", self.workers[life].next);
                let more = vec![("elicitationId", text(quoted(&name)))];
                let about = About::Request(call_id.to_string().into_bytes());
                let begun = self.ask_client(life, "elicitation/create", about, more);
                self.workers[life].elicited.push((name, begun));
            }
            // Some agents use ids of their own for what they ask about.
            _ if self.plan.plain && self.workers[life].next.is_multiple_of(2) => {
                let own = vec![("requestId", text(r#""of its own""#))];
                self.ask_client(life, "elicitation/create", About::Nothing, own);
            }
            _ => drop(self.ask_client(life, "_ask/any", About::Nothing, Vec::new())),
        }
    }

    /// Completes an elicitation or cancels a request of its own.
    pub(crate) fn retract(&mut self, life: Life) {
        let elicited = self.workers[life].elicited.pop();
        let completes = self.rng.percent(70);
        if let Some((name, begun)) = elicited
            && completes
        {
            let more = vec![("elicitationId", text(quoted(&name)))];
            return self.tell_client(life, "elicitation/complete", About::Elicited(begun), None, false, more);
        }
        let Some(id) = self.rng.pick(&self.workers[life].asks).cloned() else { return };
        self.tell_client(life, "$/cancel_request", About::Request(id.into_bytes()), None, false, Vec::new());
    }

    /// Writes something that no agent should write.
    pub(crate) fn misbehave(&mut self, life: Life) {
        let kinds = if self.plan.plain { 11 } else { 9 };
        match self.rng.below(kinds) {
            0 => {
                let print = self.rng.one(&[
                    "debug: hello",
                    "[1,2]",
                    "{\"id\":",
                    "",
                    "42",
                    "\u{fffd}{",
                    "npm WARN {\"id\":1}",
                ]);
                self.raw(life, print.as_bytes());
            }
            1 | 2 => {
                let Some(old) = self.rng.pick(&self.workers[life].history).cloned() else { return };
                self.repeats(life, &old);
            }
            3 => {
                let others = self.rng.pick(&self.leaked.call_ids).copied();
                self.answers_nothing(life, others.unwrap_or(5));
            }
            4 | 5 => {
                let guess = self.guess();
                self.answers_nothing(life, guess);
            }
            6 => {
                let call_id = self.rng.next() % (1 << 53);
                self.answers_nothing(life, call_id);
            }
            7 => self.answers_badly(life),
            9 => {
                let Some(call_id) = self.rng.pick(&self.leaked.call_ids).copied() else { return };
                self.answers_badly_under(life, call_id);
            }
            10 => {
                let Some(call_id) = self.rng.pick(&self.leaked.call_ids).copied() else { return };
                let about = About::Request(call_id.to_string().into_bytes());
                self.ask_client(life, "elicitation/create", about, Vec::new());
            }
            _ => self.raw(life, br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#),
        }
    }

    /// Repeats an answer that it has given before, with a new mark or as it was.
    fn repeats(&mut self, life: Life, old: &[u8]) {
        let Ok(value) = serde_json::from_slice::<Json>(old) else { return };
        let Some(call_id) = value["id"].as_u64() else { return };
        if self.rng.percent(50) {
            self.answers_nothing(life, call_id);
        } else if marked(old).is_some() {
            self.raw(life, old);
        }
    }

    /// Guesses a call id that may be in use: a neighbour of the ids seen last.
    fn guess(&mut self) -> u64 {
        let last = self.leaked.call_ids.iter().rev().take(6).copied().max().unwrap_or(1 << 20);
        let generation = (last >> 20) + self.rng.below(6) as u64;
        let index = self.rng.below(6) as u64;
        generation.saturating_sub(1) << 20 | index
    }

    fn answers_nothing(&mut self, life: Life, call_id: u64) {
        let serial = self.oracle.next_serial();
        let marked = text(quoted(&mark(serial)));
        let id = slot(Slot::Id, call_id.to_string().into_bytes());
        let result = object(&mut self.rng, vec![("m", marked)]);
        let members = vec![("jsonrpc", text(r#""2.0""#)), ("id", id), ("result", result)];
        let line = line::line(object(&mut self.rng, members));
        self.send_worker_line(life, line, What::Answer { call_id: Some(call_id), good: true, opens: None });
    }

    fn answers_badly(&mut self, life: Life) {
        let Some(call_id) = self.rng.pick(&self.workers[life].todo).map(|asked| asked.call_id) else {
            return;
        };
        self.answers_badly_under(life, call_id);
    }

    fn answers_badly_under(&mut self, life: Life, call_id: u64) {
        self.oracle.lives[life].answers_badly(call_id);
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{call_id},"result":{{}},"error":{{"code":1,"message":""}}}}"#);
        self.raw(life, text.as_bytes());
    }

    fn tell_client(
        &mut self,
        life: Life,
        method: &str,
        about: About,
        child: Option<String>,
        early: bool,
        params: Vec<(&str, Value)>,
    ) {
        let line = self.agent_draft(method, None, &about, params);
        self.send_worker_line(life, line, What::AgentTell { about, child, early });
    }

    fn ask_client(&mut self, life: Life, method: &str, about: About, params: Vec<(&str, Value)>) -> usize {
        let worker = &mut self.workers[life];
        worker.next += 1;
        let number = worker.next;
        let id = self.rng.one(&["@", "\"q@\"", "@.0"]).replace('@', &number.to_string());
        self.workers[life].asks.push(id.clone());
        let line = self.agent_draft(method, Some(&id), &about, params);
        let serial = self.oracle.next_serial();
        self.send_worker_line(life, line, What::AgentAsk { about, id: id.into_bytes(), done: false });
        serial
    }

    fn agent_draft(
        &mut self,
        method: &str,
        id: Option<&str>,
        about: &About,
        more: Vec<(&str, Value)>,
    ) -> line::Line {
        let serial = self.oracle.next_serial();
        let rng = &mut self.rng;
        let mut top = vec![("jsonrpc", text(r#""2.0""#)), ("method", text(quoted(method)))];
        let mut params = more;
        params.push(("m", text(quoted(&mark(serial)))));
        if rng.percent(30) {
            params.push(("n", noise(rng)));
        }
        let pad = rng.below(self.plan.pad_bytes + 1);
        if pad > 0 {
            params.push(("pad", text(format!("\"{}\"", "p".repeat(pad)))));
        }
        match about {
            About::Session(name) => {
                params.push(("sessionId", slot(Slot::Session, quoted(name).into_bytes())));
            }
            About::Label(name) => top.push(("sessionId", slot(Slot::Top, quoted(name).into_bytes()))),
            About::Request(id) => params.push(("requestId", slot(Slot::Request, id.clone()))),
            About::Nothing | About::Elicited(_) => {}
        }
        if let Some(id) = id {
            top.push(("id", slot(Slot::Id, id.as_bytes())));
        }
        top.push(("params", object(rng, params)));
        line::line(object(&mut self.rng, top))
    }

    fn send_worker_line(&mut self, life: Life, line: line::Line, what: What) {
        let bytes = line.bytes();
        self.note(format_args!("life {life} writes"), &bytes);
        let serial = self.oracle.writes(Peer::Worker(life), line, what);
        if let What::Answer { call_id: Some(call_id), .. } = &self.oracle.sent[serial].what
            && bytes.len() > self.config.limits.max_input_buffer
        {
            let call_id = *call_id;
            self.oracle.lives[life].answers_badly(call_id);
        }
        let pipe = &mut self.workers[life].pipe;
        // The mark stands before the line end, because the last line of a stream needs none.
        pipe.write(&bytes, Some(Mark::Line(serial)));
        pipe.write(b"\n", None);
    }

    fn raw(&mut self, life: Life, bytes: &[u8]) {
        self.workers[life].pipe.write(bytes, None);
        self.workers[life].pipe.write(b"\n", None);
    }
}
