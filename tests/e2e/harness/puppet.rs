//! The test's end of a puppet, which is a worker process that does what the test tells it.

use std::fmt::Display;
use std::time::Instant;

use rpc::LineReader;
use serde_json::{Value, json};

use super::connection::{Connection, short};
use super::messages::{request, result, update_of};
use super::waiting::{PATIENCE, looks_again};

pub(crate) struct Puppet {
    connection: Connection,
    /// How the bus has started it, as it reports itself.
    pub(crate) about: Value,
    pub(crate) pid: u32,
    /// What it has read from its stdin.
    stdin: LineReader,
    stdin_ended: bool,
    /// Bytes of a flood that were sent.
    flooded: usize,
}

impl Puppet {
    /// `None`: it was killed before it could report how it started.
    pub(super) fn new(mut connection: Connection) -> Option<Puppet> {
        let about: Value =
            serde_json::from_slice(&connection.line_or_end()?).expect("a puppet reports how it started");
        let pid = about["pid"].as_u64().expect("a pid") as u32;
        Some(Puppet { connection, about, pid, stdin: LineReader::default(), stdin_ended: false, flooded: 0 })
    }

    /// The pool that it belongs to.
    pub(crate) fn pool(&self) -> &str {
        self.about["args"][1].as_str().unwrap_or_default()
    }

    /// The next line on its stdin, byte for byte.
    pub(crate) fn reads(&mut self) -> String {
        match self.line_or_end() {
            Some(line) => String::from_utf8(line).expect("UTF-8"),
            None => {
                self.connection.fail(&format!("(puppet {}) waited for a line, but stdin ended", self.pid))
            }
        }
    }

    /// The next line as a message.
    pub(crate) fn receives(&mut self) -> Value {
        let line = self.reads();
        serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("a puppet read no JSON: {}", short(line.as_bytes())))
    }

    /// The next message, which must be a request or notification of this method.
    pub(crate) fn is_asked(&mut self, method: &str) -> Value {
        let message = self.receives();
        if message["method"] != method {
            self.connection.fail(&format!("waited for {method}, not {message}"));
        }
        message
    }

    /// The next message, which must be the response to its request of this id.
    pub(crate) fn gets(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        let message = self.receives();
        if message["id"] != id || message.get("method").is_some() {
            self.connection.fail(&format!("waited for the answer to {id}, not {message}"));
        }
        message
    }

    /// The `data` of the next message, which must be this error of the bus.
    pub(crate) fn sees_error(&mut self, id: impl Into<Value>, code: i32) -> Value {
        let message = self.gets(id);
        if message["error"]["code"] != code {
            self.connection.fail(&format!("waited for the error {code}, not {message}"));
        }
        message["error"]["data"].clone()
    }

    /// Whether something can be read now.
    pub(crate) fn has_more(&self) -> bool {
        !self.stdin.unread().is_empty() || self.connection.has_more()
    }

    /// Waits until the bus closes its stdin. No line may come before.
    pub(crate) fn stdin_ends(&mut self) {
        if let Some(line) = self.line_or_end() {
            self.connection.fail(&format!("waited for the end of stdin, not {}", short(&line)));
        }
    }

    pub(crate) fn sends(&mut self, line: &str) {
        self.sends_bytes(format!("{line}\n").as_bytes());
    }

    pub(crate) fn sends_bytes(&mut self, bytes: &[u8]) {
        self.commands(b'o', bytes);
    }

    /// Writes the same line again and again, as long as it is read. Returns whether it was. The puppet can do nothing
    /// else afterwards, because the last line may be incomplete.
    pub(crate) fn floods(&mut self, line: &str) -> bool {
        let frame = frame(b'o', format!("{line}\n").as_bytes());
        let mut was_read = false;
        loop {
            let rest = &frame[self.flooded % frame.len()..];
            match self.connection.send_some(rest) {
                Ok(0) | Err(_) => return was_read,
                Ok(count) => self.flooded += count,
            }
            was_read = true;
        }
    }

    pub(crate) fn answers(&mut self, question: &Value, with: Value) {
        self.sends(&result(&question["id"], with));
    }

    /// Answers a request with an error.
    pub(crate) fn refuses(&mut self, question: &Value, error: &Value) {
        self.sends(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, question["id"]));
    }

    /// Plays an agent up to its first prompt, which it returns. Its session id is `s`.
    pub(crate) fn is_prompted(&mut self) -> Value {
        let initialize = self.is_asked("initialize");
        assert_eq!(initialize["params"]["protocolVersion"], 1);
        self.answers(&initialize, json!({ "protocolVersion": 1, "agentCapabilities": {} }));
        let new = self.is_asked("session/new");
        self.answers(&new, json!({ "sessionId": "s" }));
        self.is_asked("session/prompt")
    }

    pub(crate) fn updates(&mut self, update: Value) {
        self.sends(&update_of("s", update));
    }

    pub(crate) fn speaks(&mut self, text: &str) {
        let content = json!({ "type": "text", "text": text });
        self.updates(json!({ "sessionUpdate": "agent_message_chunk", "content": content }));
    }

    pub(crate) fn ends_turn(&mut self, prompt: &Value, stop_reason: &str) {
        self.sends(&result(&prompt["id"], json!({ "stopReason": stop_reason })));
    }

    /// Asks the owner of one of its sessions for a permission.
    pub(crate) fn asks_permission(&mut self, id: impl Display, session: &str) {
        self.sends(&request(
            id,
            "session/request_permission",
            json!({ "sessionId": session, "options": [] }),
        ));
    }

    /// Waits until the bus has read all that the puppet has written: the bus answers in order.
    pub(crate) fn is_read(&mut self) {
        self.asks_permission(r#""fence""#, "unknown");
        self.sees_error("fence", -32051);
    }

    pub(crate) fn writes_stderr(&mut self, text: &str) {
        self.commands(b'e', text.as_bytes());
    }

    pub(crate) fn exits(&mut self, code: i32) {
        self.commands(b'x', code.to_string().as_bytes());
        self.is_gone();
    }

    pub(crate) fn dies_by(&mut self, signal: i32) {
        self.commands(b'k', signal.to_string().as_bytes());
        self.is_gone();
    }

    pub(crate) fn closes_stdout(&mut self) {
        self.does(b'c');
    }

    pub(crate) fn closes_stdin(&mut self) {
        self.does(b'z');
    }

    pub(crate) fn stops_reading(&mut self) {
        self.does(b'p');
    }

    pub(crate) fn reads_again(&mut self) {
        self.does(b'r');
    }

    /// Makes its stdin and stdout hold no more than a page.
    pub(crate) fn has_small_pipes(&mut self) {
        self.does(b'P');
    }

    /// Keeps running when its stdin ends.
    pub(crate) fn stays(&mut self) {
        self.does(b's');
    }

    pub(crate) fn ignores_sigterm(&mut self) {
        self.does(b't');
    }

    /// Starts a child that shares its process group and its stdout and never exits. Returns its pid.
    pub(crate) fn has_a_child(&mut self) -> u32 {
        self.starts_child(b'g')
    }

    /// The same, but the child leads a session of its own.
    pub(crate) fn has_a_detached_child(&mut self) -> u32 {
        self.starts_child(b'd')
    }

    fn starts_child(&mut self, child: u8) -> u32 {
        self.commands(child, &[]);
        let pid = self
            .until(b'g')
            .unwrap_or_else(|| self.connection.fail("waited for a child, but the puppet is gone"));
        String::from_utf8_lossy(&pid).parse().expect("a pid")
    }

    /// Waits until the process has exited.
    pub(crate) fn is_gone(&mut self) {
        while self.frame().is_some() {}
    }

    fn does(&mut self, what: u8) {
        self.commands(what, &[]);
        if self.until(b'a').is_none() {
            self.connection.fail("exited before it was done");
        }
    }

    fn commands(&mut self, what: u8, bytes: &[u8]) {
        self.connection.send(&frame(what, bytes));
    }

    fn line_or_end(&mut self) -> Option<Vec<u8>> {
        while !self.stdin.has_line() && !self.stdin_ended {
            if self.frame().is_none() {
                break;
            }
        }
        self.stdin.next_line().map(<[u8]>::to_vec)
    }

    /// Its next report of this kind. `None`: it has exited.
    fn until(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            let (what, bytes) = self.frame()?;
            if what == kind {
                return Some(bytes);
            }
        }
    }

    /// Its next report. What it has read from stdin goes to `stdin`.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.connection.exactly(5)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let bytes = self.connection.exactly(length as usize)?;
        match head[0] {
            b'i' => self.stdin.push(&bytes),
            b'E' => self.stdin_ended = true,
            _ => {}
        }
        Some((head[0], bytes))
    }
}

fn frame(what: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a frame is small").to_be_bytes();
    [&[what], &length[..], bytes].concat()
}

/// The first of them that has something to read.
pub(crate) fn first_asked(puppets: &mut [Puppet]) -> &mut Puppet {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(at) = puppets.iter().position(Puppet::has_more) {
            return &mut puppets[at];
        }
        if Instant::now() >= deadline {
            puppets[0].connection.fail("and the other puppets waited for a line");
        }
        looks_again();
    }
}
