//! A scripted client: what it sends, and what it does with what it reads. It behaves well most of the time.

use serde_json::Value as Json;

use crate::auth::TokenChoice;
use crate::draft::Draft;
use crate::line::{self, Slot, mark, object, quoted, slot, text};
use crate::pipe::{Mark, Pipe};
use crate::plan::Plan;
use crate::record::{About, Conn, Kind, What, behind_tag};
use crate::rng::Rng;
use crate::world::World;

/// Sets of client capabilities, each in two spellings that mean the same.
const CAPABILITIES: [[&str; 2]; 3] = [
    [r#"{}"#, r#" { } "#],
    [r#"{"fs":{"a":true,"b":false}}"#, r#"{ "fs" : { "b":false, "a" : true } }"#],
    [r#"{"terminal":true}"#, r#"{"terminal": true}"#],
];

pub(crate) struct Client {
    pub(crate) pipe: Pipe,
    /// The capabilities that it sends in initialize. `None`: it never initializes.
    capabilities: Option<usize>,
    /// Its first bytes were none that a client may begin with.
    pub(crate) hostile: bool,
    /// It will begin with such bytes.
    will_be_hostile: bool,
    pub(crate) started: bool,
    /// `None`: it needs no token.
    pub(crate) token_choice: Option<TokenChoice>,
    pub(crate) not_reading: bool,
    /// It has written half a line.
    pub(crate) half: bool,
    /// It does not write the rest as long as it is not the only client.
    stuck: bool,
    pub(crate) sessions: Vec<String>,
    pub(crate) next_id: usize,
    /// Ids of its requests, which it may cancel.
    pub(crate) ids: Vec<Vec<u8>>,
    /// Ids of agents' requests that it has not answered, as they were spelled.
    asked: Vec<String>,
    answered: Vec<String>,
    /// Sessions that it is loading, closing or deleting, with the id of the request.
    pub(crate) under_way: Vec<(String, Vec<u8>)>,
}

impl Client {
    pub(crate) fn new(rng: &mut Rng, plan: &Plan, pipe: Pipe) -> Client {
        Client {
            pipe,
            capabilities: rng.percent(plan.acp_chance).then(|| rng.below(plan.handshakes)),
            hostile: false,
            will_be_hostile: rng.percent(plan.hostile_chance),
            started: false,
            token_choice: None,
            not_reading: false,
            half: false,
            stuck: false,
            sessions: Vec::new(),
            next_id: 0,
            ids: Vec::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            under_way: Vec::new(),
        }
    }
}

impl World {
    /// Sends something, or does nothing.
    pub(crate) fn client_acts(&mut self, conn: Conn) {
        let client = &self.clients[conn];
        if client.pipe.closed || client.pipe.ended || client.hostile || client.pipe.up.len() > 8192 {
            return;
        }
        if client.stuck {
            return;
        }
        if client.half {
            return self.end_half_line(conn);
        }
        if client.will_be_hostile && !client.started {
            return self.send_hostile_opening(conn);
        }
        let token_choice = if client.started { None } else { client.token_choice };
        match token_choice {
            Some(TokenChoice::Silence) => return,
            Some(TokenChoice::Wrong) => return self.send_hello(conn, false),
            Some(TokenChoice::Right) => {
                self.send_hello(conn, true);
                if let Some(set) = self.clients[conn].capabilities {
                    self.initialize(conn, set);
                }
                return;
            }
            Some(TokenChoice::Nothing) | None => {}
        }
        if !self.clients[conn].started
            && self.rng.percent(90)
            && let Some(set) = self.clients[conn].capabilities
        {
            return self.initialize(conn, set);
        }
        // A client that has no session loads one that another client has left.
        let has_left = !self.leaked.abandoned.is_empty() && self.clients[conn].sessions.is_empty();
        if has_left && self.plan.load_weight > 0 && self.rng.percent(40) {
            return self.load_session(conn);
        }
        let plan = &self.plan;
        let weights = [
            12,
            8,
            16,
            if self.clients[conn].asked.is_empty() { 0 } else { 16 },
            plan.load_weight,
            plan.label_weight,
            4,
            4,
            2,
            plan.bad_line_weight,
            if self.clients[conn].capabilities.is_some() { 2 } else { 0 },
            2,
            plan.bad_line_weight / 2,
        ];
        match self.rng.weighted(&weights) {
            0 => self.plain(conn),
            1 => self.new_session(conn),
            2 => self.about_session(conn),
            3 => self.replies(conn),
            4 => self.load_session(conn),
            5 => self.labelled(conn),
            6 => self.cancels(conn),
            7 => self.admin_request(conn),
            8 => self.broadcast(conn),
            9 => self.bad_line(conn),
            10 => self.initialize_again(conn),
            11 => self.ask(conn, "session/list", Kind::List, Draft::default()),
            _ => self.half_line(conn),
        }
    }

    /// Answers every request of an agent that it has not answered yet.
    pub(crate) fn client_replies_all(&mut self, conn: Conn) -> bool {
        if self.clients[conn].pipe.closed || self.clients[conn].pipe.ended {
            return false;
        }
        // An only client is not closed for a line that it does not finish.
        if self.clients[conn].stuck && self.open_clients().len() > 1 {
            return false;
        }
        if self.clients[conn].half {
            self.end_half_line(conn);
            return true;
        }
        let any = !self.clients[conn].asked.is_empty();
        while !self.clients[conn].asked.is_empty() {
            self.replies(conn);
        }
        any
    }

    pub(crate) fn client_reads_line(&mut self, conn: Conn, line: &[u8]) {
        let Ok(value) = serde_json::from_slice::<Json>(line) else { return };
        if value["method"].is_string() {
            if let Some(call_id) = value.get("id") {
                self.leaked.call_ids.extend(call_id.as_u64());
                self.clients[conn].asked.push(call_id.to_string());
            }
            return;
        }
        let id = crate::parse::id_token(line);
        self.clients[conn].under_way.retain(|(_, of)| *of != id);
        if let Some(name) = value["result"]["sessionId"].as_str() {
            self.leaked.sessions.push(name.to_owned());
            self.clients[conn].sessions.push(name.to_owned());
        }
    }

    fn plain(&mut self, conn: Conn) {
        let pool = self.rng.percent(15).then(|| self.some_pool());
        let draft = Draft { pool, ..Draft::default() };
        if self.rng.percent(75) {
            self.ask(conn, "work/do", Kind::Plain, draft);
        } else {
            self.tell(conn, "work/note", About::Nothing, draft);
        }
    }

    fn new_session(&mut self, conn: Conn) {
        let mut params = vec![("cwd", text(r#""/tmp""#)), ("mcpServers", text("[]"))];
        if self.rng.percent(15) {
            let pool = quoted(&self.some_pool());
            params.push(("_meta", text(format!(r#"{{"x":1,"bus/pool": {pool}}}"#))));
        }
        let method = self.rng.one(&["session/new", "session/new", "session/new", "nes/start"]);
        self.ask(conn, method, Kind::New, Draft { params, ..Draft::default() });
    }

    fn about_session(&mut self, conn: Conn) {
        let Some(name) = self.some_session(conn) else { return self.new_session(conn) };
        let session = Some(name.clone());
        let draft = Draft { session, ..Draft::default() };
        match self.rng.below(20) {
            0..12 => self.ask(conn, "session/prompt", Kind::Session(name), draft),
            // Some clients send it as a request.
            12 if self.plan.plain => self.ask(conn, "session/cancel", Kind::Cancel(name), draft),
            12..15 => self.tell(conn, "session/cancel", About::Session(name), draft),
            15..17 => self.ask(conn, "session/close", Kind::Close(name), draft),
            17 => self.ask(conn, "session/fork", Kind::Fork(name), draft),
            18 => self.ask(conn, "session/delete", Kind::Delete(name), draft),
            _ => self.ask(conn, "session/set_mode", Kind::Session(name), draft),
        }
    }

    fn load_session(&mut self, conn: Conn) {
        let names_pool = self.plan.other_pool_chance > 0 && self.rng.percent(self.plan.other_pool_chance);
        let leaked = &self.leaked.sessions;
        // Another pool is mostly asked for a session by a name that is not its owner's.
        let which = if names_pool { self.rng.one(&[6, 7, 8, 9, 9, 9]) } else { self.rng.below(10) };
        let name = match which {
            0..4 if !self.leaked.abandoned.is_empty() => self.rng.pick(&self.leaked.abandoned).cloned(),
            0..6 => self.rng.pick(leaked).cloned(),
            6 => self.rng.pick(&self.clients[conn].sessions).cloned(),
            7 => self.rng.pick(leaked).map(|name| behind_tag(name).to_owned()),
            8 => self.rng.pick(leaked).map(|name| format!("abcdefghijklm.{}", behind_tag(name))),
            _ => Some(format!("old-{}", self.rng.below(if names_pool { 2 } else { 4 }))),
        };
        let Some(name) = name else { return };
        self.clients[conn].sessions.push(name.clone());
        let method = self.rng.one(&["session/load", "session/resume"]);
        let known = self.rng.percent(50);
        let params = if known { vec![("_meta", text(r#"{"bus/replay":false}"#))] } else { Vec::new() };
        let pool = names_pool.then(|| self.some_pool());
        let draft = Draft { session: Some(name.clone()), pool, params, ..Draft::default() };
        self.ask(conn, method, Kind::Load(name), draft);
    }

    fn labelled(&mut self, conn: Conn) {
        let name = self.rng.one(&["main", "side", "s1", "x é"]).to_owned();
        let draft = Draft { top: Some(name.clone()), ..Draft::default() };
        if self.rng.percent(70) {
            self.ask(conn, "work/labelled", Kind::Label(name), draft);
        } else {
            self.tell(conn, "work/noted", About::Label(name), draft);
        }
    }

    fn cancels(&mut self, conn: Conn) {
        let foreign = self.rng.below(self.clients.len());
        let whose = if self.rng.percent(80) { conn } else { foreign };
        let Some(id) = self.rng.pick(&self.clients[whose].ids).cloned() else { return };
        let draft = Draft { request: Some(id.clone()), ..Draft::default() };
        self.tell(conn, "$/cancel_request", About::Request(id), draft);
    }

    fn admin_request(&mut self, conn: Conn) {
        let pool = quoted(&self.some_pool());
        let (method, params) = match self.rng.below(6) {
            0 | 1 => ("_bus/hello", vec![("client", text(r#""sim""#)), ("pool", text(pool))]),
            2 | 3 => {
                let method = self.observe_method(conn);
                let payloads = self.plan.plain && method == "_bus/trace" && self.rng.percent(30);
                (method, if payloads { vec![("payloads", text("true"))] } else { vec![] })
            }
            4 => ("_bus/bye", vec![]),
            // Not by chance, so that the worlds of kept seeds stay as they are.
            _ => match self.oracle.sent.len() % 8 {
                0 => ("_bus/logs", vec![]),
                1 => ("_bus/restart", vec![("pool", text(r#""no such pool""#))]),
                2 => ("_bus/reload", vec![]),
                3 => ("_bus/close", vec![("session", text(r#""s999999999""#))]),
                _ => ("_bus/nope", vec![]),
            },
        };
        let draft = Draft { params, ..Draft::default() };
        if method == "_bus/bye" && self.rng.percent(70) {
            self.tell(conn, method, About::Nothing, draft);
        } else {
            self.ask(conn, method, Kind::Admin, draft);
        }
    }

    /// Chooses how a client observes the bus. A trace does not fit through the narrowest pipes: it would take for ever.
    fn observe_method(&self, conn: Conn) -> &'static str {
        match self.clients[conn].next_id % 3 {
            1 if self.plan.pipe_bytes.min(self.plan.chunk_bytes) >= 256 => "_bus/trace",
            2 => "_bus/sessions",
            _ => "_bus/status",
        }
    }

    fn broadcast(&mut self, conn: Conn) {
        let method = self.rng.one(&["authenticate", "logout", "providers/set"]);
        self.ask(conn, method, Kind::Broadcast, Draft::default());
    }

    fn initialize(&mut self, conn: Conn, set: usize) {
        let spelled = CAPABILITIES[set][self.rng.below(2)];
        let params = vec![
            ("protocolVersion", text("1")),
            ("clientCapabilities", text(spelled)),
            ("clientInfo", text(r#"{"name":"sim"}"#)),
        ];
        self.ask(conn, "initialize", Kind::Initialize(set), Draft { params, ..Draft::default() });
    }

    fn initialize_again(&mut self, conn: Conn) {
        let set = match (self.clients[conn].capabilities, self.rng.percent(70)) {
            (Some(set), true) => set,
            _ => self.rng.below(self.plan.handshakes),
        };
        self.initialize(conn, set);
    }

    /// Answers a request of an agent, or, now and then, one that it has answered before or was never sent.
    fn replies(&mut self, conn: Conn) {
        let at = self.rng.below(self.clients[conn].asked.len());
        let odd = !self.quiet && self.rng.percent(15);
        let call_id = if !odd {
            Some(self.clients[conn].asked.swap_remove(at))
        } else if self.rng.percent(50) {
            self.rng.pick(&self.clients[conn].answered).cloned()
        } else {
            self.rng.pick(&self.leaked.call_ids).map(u64::to_string)
        };
        let call_id = call_id.unwrap_or_else(|| "77".to_owned());
        self.clients[conn].answered.push(call_id.clone());
        let serial = self.oracle.next_serial();
        let marked = text(quoted(&mark(serial)));
        let outcome = if self.rng.percent(80) {
            ("result", object(&mut self.rng, vec![("m", marked)]))
        } else {
            ("error", object(&mut self.rng, vec![("code", text("-1")), ("message", marked)]))
        };
        let id = slot(Slot::Id, call_id.clone().into_bytes());
        let mut members = vec![("jsonrpc", text(r#""2.0""#)), ("id", id), outcome];
        let long = self.pad(&mut members);
        let line = line::line(object(&mut self.rng, members));
        if long {
            self.oracle.conns[conn].bad_replies.extend(call_id.parse::<u64>());
            return self.send_bad(conn, &line.bytes(), Mark::Bad);
        }
        self.send(conn, line, What::Reply { call_id: call_id.parse().ok() });
    }

    /// Begins as a browser would, or with a line that is no JSON. What follows must have no effect either.
    fn send_hostile_opening(&mut self, conn: Conn) {
        let client = &mut self.clients[conn];
        (client.started, client.hostile) = (true, true);
        let opening = self.rng.one(&["GET / HTTP/1.1\r\n", "\r\n[", "{broken\n", "  x", "{\"a\":1,}\n"]);
        // The first byte is enough, unless the line begins like a JSON object.
        let enough = if opening.trim_start().starts_with('{') {
            opening.len()
        } else {
            opening.len() - opening.trim_start().len() + 1
        };
        let pipe = &mut self.clients[conn].pipe;
        pipe.write(&opening.as_bytes()[..enough], Some(Mark::Hostile));
        pipe.write(&opening.as_bytes()[enough..], None);
        self.ask(conn, "work/smuggled", Kind::Plain, Draft::default());
    }

    fn bad_line(&mut self, conn: Conn) {
        let started = self.clients[conn].started;
        let any: &[&str] = &[
            r#"{}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":1,"m\u0065thod":"x"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":[1],"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":5,"method":"x","params":{"sessionId":"a","sessionId":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":5,"result":1,"error":{}}"#,
            r#"{"jsonrpc":"2.0","method":7}"#,
            r#"{"jsonrpc":"2.0","id":5,"method":"x","params":{"sessionId":7}}"#,
        ];
        let later: &[&str] =
            &["[]", "42", r#""text""#, "nonsense", "{", r#"{"a":1,}"#, "[{\"jsonrpc\":\"2.0\"}]", "\u{1}"];
        if self.plan.plain
            && started
            && self.rng.percent(30)
            && let Some(call_id) = self.rng.pick(&self.leaked.call_ids).copied()
        {
            self.oracle.conns[conn].bad_replies.insert(call_id);
            let reply = format!(r#"{{"jsonrpc":"2.0","id":{call_id},"result":1,"error":{{}}}}"#);
            return self.send_bad(conn, reply.as_bytes(), Mark::Bad);
        }
        let choices = if started && self.rng.percent(50) { later } else { any };
        let text = self.rng.one(choices);
        self.send_bad(conn, text.as_bytes(), Mark::Bad);
    }

    fn half_line(&mut self, conn: Conn) {
        let half = self.rng.one(&[r#"{"jsonrpc":"2.0","id":1,"meth"#, "{", r#"{"jsonrpc":"2.0","id":9"#]);
        let client = &mut self.clients[conn];
        client.half = true;
        client.stuck = self.plan.plain && self.rng.percent(30);
        client.pipe.write(half.as_bytes(), None);
    }

    fn end_half_line(&mut self, conn: Conn) {
        let client = &mut self.clients[conn];
        (client.half, client.stuck) = (false, false);
        let mark = if client.started { Mark::Bad } else { Mark::Hostile };
        client.hostile |= !client.started;
        client.started = true;
        client.pipe.write(b"\n", Some(mark));
    }
}
