//! The test's end of a puppet: a worker process that does what the test says.

use std::collections::VecDeque;
use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::wire::{Wire, short};
use super::{PATIENCE, request, result};

pub(crate) struct Puppet {
    wire: Wire,
    /// How it was started, in its own words.
    pub(crate) about: Value,
    pub(crate) pid: u32,
    /// Heard on stdin and not yet taken.
    lines: VecDeque<Vec<u8>>,
    unfinished: Vec<u8>,
    stdin_ended: bool,
    /// Bytes of a flood.
    flooded: usize,
}

impl Puppet {
    pub(super) fn meet(mut wire: Wire) -> Puppet {
        let about: Value = serde_json::from_slice(&wire.line()).expect("a puppet introduces itself");
        let pid = about["pid"].as_u64().expect("a pid") as u32;
        Puppet {
            wire,
            about,
            pid,
            lines: VecDeque::new(),
            unfinished: Vec::new(),
            stdin_ended: false,
            flooded: 0,
        }
    }

    /// The pool that it was started for.
    pub(crate) fn pool(&self) -> &str {
        self.about["args"][1].as_str().unwrap_or_default()
    }

    /// The next line on its stdin as it came.
    pub(crate) fn reads(&mut self) -> String {
        match self.line_or_end() {
            Some(line) => String::from_utf8(line).expect("UTF-8"),
            None => self.wire.fail(&format!("(puppet {}) waited for a line, but stdin ended", self.pid)),
        }
    }

    /// The next line as a message.
    pub(crate) fn hears(&mut self) -> Value {
        let line = self.reads();
        serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("a puppet read no JSON: {}", short(line.as_bytes())))
    }

    /// The next message, which is a request or notification of this method.
    pub(crate) fn is_asked(&mut self, method: &str) -> Value {
        let message = self.hears();
        if message["method"] != method {
            self.wire.fail(&format!("waited for {method}, not {message}"));
        }
        message
    }

    /// The next message, which answers what it asked under this id.
    pub(crate) fn gets(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        let message = self.hears();
        if message["id"] != id || message.get("method").is_some() {
            self.wire.fail(&format!("waited for the answer to {id}, not {message}"));
        }
        message
    }

    /// The next message, which is this error of the bus.
    pub(crate) fn sees_error(&mut self, id: impl Into<Value>, code: i32) -> Value {
        let message = self.gets(id);
        if message["error"]["code"] != code {
            self.wire.fail(&format!("waited for the error {code}, not {message}"));
        }
        message["error"]["data"].clone()
    }

    /// Whether a line has come so far.
    pub(crate) fn has_more(&self) -> bool {
        !self.lines.is_empty() || self.wire.has_more()
    }

    /// Waits for the end of its stdin. Lines before it are an error.
    pub(crate) fn hears_the_end(&mut self) {
        if let Some(line) = self.line_or_end() {
            self.wire.fail(&format!("waited for the end of stdin, not {}", short(&line)));
        }
    }

    pub(crate) fn says(&mut self, line: &str) {
        self.says_bytes(format!("{line}\n").as_bytes());
    }

    pub(crate) fn says_bytes(&mut self, bytes: &[u8]) {
        self.wishes(b'o', bytes);
    }

    /// Goes on to say the same line again and again, as long as it is listened to. Whether it was. It can do
    /// nothing else any more: it may have been left in the midst of it.
    pub(crate) fn floods(&mut self, line: &str) -> bool {
        let frame = frame(b'o', format!("{line}\n").as_bytes());
        let mut was_heard = false;
        loop {
            let rest = &frame[self.flooded % frame.len()..];
            match self.wire.send_some(rest) {
                Ok(0) | Err(_) => return was_heard,
                Ok(count) => self.flooded += count,
            }
            was_heard = true;
        }
    }

    pub(crate) fn answers(&mut self, question: &Value, with: Value) {
        self.says(&result(&question["id"], with));
    }

    /// Asks the owner of one of its sessions for a permission.
    pub(crate) fn asks_permission(&mut self, id: impl Display, session: &str) {
        self.says(&request(id, "session/request_permission", json!({ "sessionId": session, "options": [] })));
    }

    /// All that it has said so far has reached the bus, which answers it in order.
    pub(crate) fn is_heard(&mut self) {
        self.asks_permission(r#""fence""#, "of nobody");
        self.sees_error("fence", -32051);
    }

    pub(crate) fn mutters(&mut self, text: &str) {
        self.wishes(b'e', text.as_bytes());
    }

    pub(crate) fn exits(&mut self, code: i32) {
        self.wishes(b'x', code.to_string().as_bytes());
        self.is_gone();
    }

    pub(crate) fn dies_by(&mut self, signal: i32) {
        self.wishes(b'k', signal.to_string().as_bytes());
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

    /// Its stdin and stdout hold no more than a page.
    pub(crate) fn has_small_pipes(&mut self) {
        self.does(b'P');
    }

    /// It stays when its stdin ends.
    pub(crate) fn stays(&mut self) {
        self.does(b's');
    }

    pub(crate) fn ignores_sigterm(&mut self) {
        self.does(b't');
    }

    /// The pid of a child that shares its group and its stdout and never leaves.
    pub(crate) fn has_a_child(&mut self) -> u32 {
        self.has(b'g')
    }

    /// The same, but it leads a session of its own.
    pub(crate) fn has_a_child_that_left(&mut self) -> u32 {
        self.has(b'd')
    }

    fn has(&mut self, child: u8) -> u32 {
        self.wishes(child, &[]);
        let pid =
            self.until(b'g').unwrap_or_else(|| self.wire.fail("waited for a grandchild, but it is gone"));
        String::from_utf8_lossy(&pid).parse().expect("a pid")
    }

    /// Waits until the process no longer answers the test.
    pub(crate) fn is_gone(&mut self) {
        while self.frame().is_some() {}
    }

    fn does(&mut self, what: u8) {
        self.wishes(what, &[]);
        if self.until(b'a').is_none() {
            self.wire.fail("did not live to do it");
        }
    }

    fn wishes(&mut self, what: u8, bytes: &[u8]) {
        self.wire.send(&frame(what, bytes));
    }

    fn line_or_end(&mut self) -> Option<Vec<u8>> {
        while self.lines.is_empty() && !self.stdin_ended {
            if self.frame().is_none() {
                break;
            }
        }
        self.lines.pop_front()
    }

    /// Its report of this kind. None: it is gone.
    fn until(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            let (what, bytes) = self.frame()?;
            if what == kind {
                return Some(bytes);
            }
        }
    }

    /// Its next report. Lines are put where `reads` finds them.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.wire.exactly(5)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let bytes = self.wire.exactly(length as usize)?;
        match head[0] {
            b'i' => {
                for part in bytes.split_inclusive(|byte| *byte == b'\n') {
                    self.unfinished.extend_from_slice(part);
                    if self.unfinished.pop_if(|last| *last == b'\n').is_some() {
                        self.lines.push_back(std::mem::take(&mut self.unfinished));
                    }
                }
            }
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

/// The one of them that hears something first.
pub(crate) fn whoever_hears(puppets: &mut [Puppet]) -> &mut Puppet {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(at) = puppets.iter().position(Puppet::has_more) {
            return &mut puppets[at];
        }
        if Instant::now() >= deadline {
            puppets[0].wire.fail("and the others waited for a line");
        }
        thread::sleep(Duration::from_millis(1));
    }
}
