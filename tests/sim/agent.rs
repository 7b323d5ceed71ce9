//! What a scripted process says: answers, updates and questions, and all that it should not say.

use serde_json::Value as Json;

use crate::ledger::{About, Life, Peer, What};
use crate::line::{self, Hole, Value, hole, mark, marked, noise, object, quoted, text};
use crate::wire::Mark;
use crate::worker::{Asked, Greets};
use crate::world::World;

impl World {
    pub(crate) fn worker_hears(&mut self, life: Life, line: &[u8]) {
        let Ok(value) = serde_json::from_slice::<Json>(line) else { return };
        let Some(method) = value["method"].as_str() else {
            let id = value["id"].to_string();
            return self.workers[life].asks.retain(|ask| *ask != id);
        };
        let worker = &mut self.workers[life];
        let name = |value: &Json| value.as_str().map(str::to_owned);
        let (session, top) = (name(&value["params"]["sessionId"]), name(&value["sessionId"]));
        worker.labels.extend(top.clone());
        let Some(wire) = value["id"].as_u64() else { return };
        self.gossip.wires.push(wire);
        if matches!(method, "session/load" | "session/resume") {
            worker.sessions.extend(session.clone());
        }
        if method == "initialize" && worker.greets == Greets::Never {
            self.oracle.causes.failed_handshakes += 1;
            return;
        }
        worker.todo.push(Asked { wire, method: method.to_owned(), session, top, opens: None });
    }

    pub(crate) fn answers(&mut self, life: Life, at: usize) {
        let asked = self.workers[life].todo.swap_remove(at);
        if !self.calm && self.rng.percent(self.plan.too_long_chance) && asked.method != "initialize" {
            return self.answers_too_long(life, &asked);
        }
        let wire = asked.wire;
        let serial = self.oracle.next_serial();
        let marked = text(quoted(&mark(serial)));
        let opens = match &*asked.method {
            "session/new" | "session/fork" | "nes/start" => {
                Some(asked.opens.clone().unwrap_or_else(|| self.new_name(life)))
            }
            _ => None,
        };
        let greets_badly = asked.method == "initialize" && self.workers[life].greets == Greets::WithError;
        let good = !greets_badly && (self.calm || asked.method == "initialize" || self.rng.percent(88));
        let rng = &mut self.rng;
        let mut result = vec![("m", marked.clone())];
        if rng.percent(30) {
            result.push(("n", noise(rng)));
        }
        match &*asked.method {
            "initialize" => {
                result.push(("agentCapabilities", text(self.workers[life].offers)));
                self.oracle.causes.failed_handshakes += usize::from(!good);
            }
            "session/list" => result.push(("sessions", self.listing(life))),
            _ => {}
        }
        if let Some(name) = &opens {
            result.push(("sessionId", hole(Hole::Opened, quoted(name).into_bytes())));
        }
        let rng = &mut self.rng;
        let outcome = match good {
            true => ("result", object(rng, result)),
            false => ("error", object(rng, vec![("code", text("-32000")), ("message", marked)])),
        };
        let id = hole(Hole::Id, wire.to_string().into_bytes());
        let mut members = vec![("jsonrpc", text(r#""2.0""#)), ("id", id), outcome];
        if let (Some(top), true) = (&asked.top, rng.percent(70)) {
            members.push(("sessionId", hole(Hole::Top, quoted(top).into_bytes())));
        }
        let opens = opens.filter(|_| good);
        self.workers[life].sessions.extend(opens.clone());
        if good && matches!(&*asked.method, "session/close" | "session/delete") {
            let closed = asked.session.clone().unwrap_or_default();
            self.workers[life].sessions.retain(|name| *name != closed);
        }
        let line = line::line(object(&mut self.rng, members));
        self.workers[life].history.push(line.bytes());
        self.utter(life, line, What::Answer { wire: Some(wire), good, opens });
    }

    fn answers_too_long(&mut self, life: Life, asked: &Asked) {
        self.oracle.causes.long_answers += 1;
        let pad = "p".repeat(self.config.limits.max_input_buffer);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"pad":"{pad}"}}}}"#, asked.wire);
        self.workers[life].wire.write(line.as_bytes(), None);
        self.workers[life].wire.write(b"\n", None);
    }

    /// Its sessions, and some that it may have had.
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

    /// A name for a session, unique in the world or only here.
    fn new_name(&mut self, life: Life) -> String {
        let worker = &mut self.workers[life];
        worker.next += 1;
        match self.plan.unique_names {
            true => format!("s{life}-{}", worker.next),
            false => self.rng.one(&["s@", "é@", "a\"@"]).replace('@', &worker.next.to_string()),
        }
    }

    /// Of a session of its own, mostly; now and then with a child.
    pub(crate) fn updates(&mut self, life: Life) {
        let odd = !self.calm && self.rng.percent(self.plan.stray_weight);
        let name = match odd {
            true => self.rng.pick(&self.gossip.names).map(|name| crate::ledger::behind_tag(name).to_owned()),
            false => self.rng.pick(&self.workers[life].sessions).cloned(),
        };
        let Some(name) = name else { return };
        let child = (!odd && self.rng.percent(5)).then(|| self.new_name(life));
        self.workers[life].sessions.extend(child.clone());
        let update = match &child {
            None => {
                let content = noise(&mut self.rng);
                object(&mut self.rng, vec![("content", content)])
            }
            Some(child) => {
                let id = hole(Hole::Child, quoted(child).into_bytes());
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

    /// Of a session that it is about to open.
    pub(crate) fn speaks_early(&mut self, life: Life) {
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

    pub(crate) fn speaks_of_label(&mut self, life: Life) {
        let Some(label) = self.rng.pick(&self.workers[life].labels).cloned() else { return };
        match self.rng.percent(60) {
            true => self.tell_client(life, "work/progress", About::Label(label), None, false, Vec::new()),
            false => drop(self.ask_client(life, "work/confirm", About::Label(label), Vec::new())),
        }
    }

    /// Asks a client something: about a session, in the scope of a request, or about nothing.
    pub(crate) fn asks_client(&mut self, life: Life) {
        match self.rng.below(10) {
            0..7 => {
                let odd = self.rng.percent(self.plan.stray_weight);
                let name = match odd {
                    true => self
                        .rng
                        .pick(&self.gossip.names)
                        .map(|name| crate::ledger::behind_tag(name).to_owned()),
                    false => self.rng.pick(&self.workers[life].sessions).cloned(),
                };
                let Some(name) = name else { return };
                let options =
                    r#"[{"optionId":"no","kind":"reject_once"},{"optionId":"yes","kind":"allow_once"}]"#;
                let offered = self.rng.percent(50);
                let more = if offered { vec![("options", text(options))] } else { Vec::new() };
                self.ask_client(life, "session/request_permission", About::Session(name), more);
            }
            7 | 8 => {
                let Some(wire) = self.rng.pick(&self.workers[life].todo).map(|asked| asked.wire) else {
                    return;
                };
                let name = format!("e{life}-{}", self.workers[life].next);
                let more = vec![("elicitationId", text(quoted(&name)))];
                let about = About::Request(wire.to_string().into_bytes());
                let begun = self.ask_client(life, "elicitation/create", about, more);
                self.workers[life].elicited.push((name, begun));
            }
            _ => drop(self.ask_client(life, "_ask/any", About::Nothing, Vec::new())),
        }
    }

    /// An elicitation is over, or a question no longer matters.
    pub(crate) fn takes_back(&mut self, life: Life) {
        if let (Some((name, begun)), true) = (self.workers[life].elicited.pop(), self.rng.percent(70)) {
            let more = vec![("elicitationId", text(quoted(&name)))];
            return self.tell_client(life, "elicitation/complete", About::Elicited(begun), None, false, more);
        }
        let Some(id) = self.rng.pick(&self.workers[life].asks).cloned() else { return };
        self.tell_client(life, "$/cancel_request", About::Request(id.into_bytes()), None, false, Vec::new());
    }

    /// What nobody should say.
    pub(crate) fn strays(&mut self, life: Life) {
        match self.rng.below(9) {
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
                let others = self.rng.pick(&self.gossip.wires).copied();
                self.answers_nothing(life, others.unwrap_or(5));
            }
            4 | 5 => {
                let guess = self.guess();
                self.answers_nothing(life, guess);
            }
            6 => {
                let wire = self.rng.next() % (1 << 53);
                self.answers_nothing(life, wire);
            }
            7 => self.answers_badly(life),
            _ => self.raw(life, br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#),
        }
    }

    /// An answer it has given before, under a mark of its own or as it was.
    fn repeats(&mut self, life: Life, old: &[u8]) {
        let Ok(value) = serde_json::from_slice::<Json>(old) else { return };
        let Some(wire) = value["id"].as_u64() else { return };
        match self.rng.percent(50) {
            true => self.answers_nothing(life, wire),
            // The mark says that it was said before.
            false if marked(old).is_some() => self.raw(life, old),
            false => {}
        }
    }

    /// An id that may be in use just now: a neighbour of those seen last.
    fn guess(&mut self) -> u64 {
        let last = self.gossip.wires.iter().rev().take(6).copied().max().unwrap_or(1 << 20);
        let generation = (last >> 20) + self.rng.below(6) as u64;
        let index = self.rng.below(6) as u64;
        generation.saturating_sub(1) << 20 | index
    }

    fn answers_nothing(&mut self, life: Life, wire: u64) {
        let serial = self.oracle.next_serial();
        let marked = text(quoted(&mark(serial)));
        let id = hole(Hole::Id, wire.to_string().into_bytes());
        let result = object(&mut self.rng, vec![("m", marked)]);
        let members = vec![("jsonrpc", text(r#""2.0""#)), ("id", id), ("result", result)];
        let line = line::line(object(&mut self.rng, members));
        self.utter(life, line, What::Answer { wire: Some(wire), good: true, opens: None });
    }

    fn answers_badly(&mut self, life: Life) {
        let Some(wire) = self.rng.pick(&self.workers[life].todo).map(|asked| asked.wire) else { return };
        self.oracle.causes.broken_answers += 1;
        self.oracle.causes.failed_handshakes += 1;
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{wire},"result":{{}},"error":{{"code":1,"message":""}}}}"#);
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
        self.utter(life, line, What::AgentTell { about, child, early });
    }

    fn ask_client(&mut self, life: Life, method: &str, about: About, params: Vec<(&str, Value)>) -> usize {
        let worker = &mut self.workers[life];
        worker.next += 1;
        let number = worker.next;
        let id = self.rng.one(&["@", "\"q@\"", "@.0"]).replace('@', &number.to_string());
        self.workers[life].asks.push(id.clone());
        let line = self.agent_draft(method, Some(&id), &about, params);
        let serial = self.oracle.next_serial();
        self.utter(life, line, What::AgentAsk { about, id: id.into_bytes(), done: false });
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
                params.push(("sessionId", hole(Hole::Session, quoted(name).into_bytes())));
            }
            About::Label(name) => top.push(("sessionId", hole(Hole::Top, quoted(name).into_bytes()))),
            About::Request(id) => params.push(("requestId", hole(Hole::Request, id.clone()))),
            About::Nothing | About::Elicited(_) => {}
        }
        if let Some(id) = id {
            top.push(("id", hole(Hole::Id, id.as_bytes())));
        }
        top.push(("params", object(rng, params)));
        line::line(object(&mut self.rng, top))
    }

    fn utter(&mut self, life: Life, line: line::Line, what: What) {
        let bytes = line.bytes();
        self.note(format_args!("life {life} writes"), &bytes);
        let serial = self.oracle.writes(Peer::Worker(life), line, what);
        let long = bytes.len() > self.config.limits.max_input_buffer;
        self.oracle.causes.long_answers += usize::from(long);
        let wire = &mut self.workers[life].wire;
        // At the end of its stdout a line needs no line end.
        wire.write(&bytes, Some(Mark::Line(serial)));
        wire.write(b"\n", None);
    }

    fn raw(&mut self, life: Life, bytes: &[u8]) {
        self.workers[life].wire.write(bytes, None);
        self.workers[life].wire.write(b"\n", None);
    }
}
