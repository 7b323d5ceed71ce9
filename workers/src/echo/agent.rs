//! The state of the agent, and its turns.
//!
//! A value without I/O of its own, except for the session files with `--state`, so that tests need neither a process
//! nor a clock. A turn that waits costs an entry in a table and never a thread, and never delays another turn.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rpc::RpcError;
use rpc::error::CANCELLED;
use serde_json::json;
use serde_json::value::RawValue;

use super::options::Options;
use super::record::{Entry, Mode, Record, Split};
use super::store::Store;
use super::turn::{Pause, Turn};
use super::writer::Writer;
use crate::acp::dispatch::dispatch;

/// A longer delay between chunks is a mistake, and would overflow the clock in the end.
const DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct EchoAgent {
    pub(super) options: Options,
    pub(super) writer: Writer,
    pub(super) store: Store,
    pub(super) open: HashMap<String, OpenSession>,
    /// Whether the client offers `fs/read_text_file`. `None` until `initialize`.
    pub(super) reads_files: Option<bool>,
    /// The time of the current line or tick.
    pub(super) now: Instant,
    /// Turns that wait, by their number. Each is either in `wakes` or in `asked`.
    turns: HashMap<u64, Turn>,
    /// Turns that wait for a time. The second number keeps turns with the same time in order.
    wakes: BTreeMap<(Instant, u64), u64>,
    /// Requests to the client that wait for a response, and the turn of each.
    asked: HashMap<u64, u64>,
    next_turn: u64,
    next_wake: u64,
    next_request_id: u64,
    exit_code: Option<u8>,
    started: Instant,
    started_unix: Duration,
}

/// A session that takes prompts.
pub(super) struct OpenSession {
    pub(super) cwd: String,
    pub(super) mode: Mode,
    pub(super) split: Split,
    pub(super) has_title: bool,
    /// The number of its running turn.
    pub(super) turn: Option<u64>,
}

impl From<&Record> for OpenSession {
    fn from(record: &Record) -> OpenSession {
        OpenSession {
            cwd: record.cwd.clone(),
            mode: record.mode,
            split: record.split,
            has_title: record.title.is_some(),
            turn: None,
        }
    }
}

#[derive(Clone, Copy)]
enum TurnEnd {
    Stopped(&'static str),
    /// The client has cancelled the request itself, so the prompt is answered with an error.
    RequestCancelled,
}

impl EchoAgent {
    pub(super) fn new(mut options: Options, now: Instant, wall: SystemTime) -> io::Result<EchoAgent> {
        options.delay = options.delay.min(DELAY_MAX);
        let store = Store::new(options.state.as_deref())?;
        Ok(EchoAgent {
            options,
            writer: Writer::default(),
            store,
            open: HashMap::new(),
            reads_files: None,
            now,
            turns: HashMap::new(),
            wakes: BTreeMap::new(),
            asked: HashMap::new(),
            next_turn: 0,
            next_wake: 0,
            next_request_id: 0,
            exit_code: None,
            started: now,
            started_unix: wall.duration_since(UNIX_EPOCH).unwrap_or_default(),
        })
    }

    /// Takes one line of stdin, without its newline.
    pub(super) fn line(&mut self, line: &[u8], now: Instant) {
        self.now = now;
        dispatch(self, line);
    }

    /// Continues the turns whose time has come, until the buffer is full.
    pub(super) fn tick(&mut self, now: Instant) {
        self.now = now;
        while self.exit_code.is_none()
            && !self.writer.is_full()
            && let Some(entry) = self.wakes.first_entry()
            && entry.key().0 <= now
        {
            let number = entry.remove();
            let mut turn = self.turns.remove(&number).expect("a turn in `wakes` waits");
            turn.wake = None;
            self.run_turn(number, turn);
        }
    }

    /// When `tick` has something to do next.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.wakes.first_key_value().map(|((due, _), _)| *due)
    }

    /// The code to exit with, once a prompt has asked for the exit.
    pub(super) fn exit_code(&self) -> Option<u8> {
        self.exit_code
    }

    pub(super) fn unix_ms(&self) -> u64 {
        (self.started_unix + self.now.duration_since(self.started)).as_millis() as u64
    }

    pub(super) fn next_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// Runs the turn until it waits or ends.
    pub(super) fn run_turn(&mut self, number: u64, mut turn: Turn) {
        match turn.run(&mut self.writer, &mut self.next_request_id, self.options.delay, self.now) {
            Pause::Done => return self.end_turn(turn, TurnEnd::Stopped("end_turn")),
            Pause::Until(due) => {
                let wake = (due, self.next_wake);
                self.next_wake += 1;
                self.wakes.insert(wake, number);
                turn.wake = Some(wake);
            }
            Pause::Asked(id) => {
                self.asked.insert(id, number);
            }
            Pause::Exit(code) => self.exit_code = Some(code),
        }
        self.turns.insert(number, turn);
    }

    /// Ends the session's turn, if it has one.
    pub(super) fn cancel_turn(&mut self, session_id: &str) {
        if let Some(number) = self.open.get(session_id).and_then(|open| open.turn) {
            self.stop_turn(number, TurnEnd::Stopped("cancelled"));
        }
    }

    /// Ends the turn of this prompt. All other requests have their response before the client can cancel them.
    pub(super) fn cancel_prompt(&mut self, id: &RawValue) {
        let prompt = self.turns.iter().find(|(_, turn)| turn.reply_to.id.get() == id.get());
        if let Some((&number, _)) = prompt {
            self.stop_turn(number, TurnEnd::RequestCancelled);
        }
    }

    /// Continues the turn that waits for this response. An unknown id belongs to a cancelled turn.
    pub(super) fn take_response(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>) {
        let Ok(id) = id.get().parse::<u64>() else { return };
        let Some(number) = self.asked.remove(&id) else { return };
        let mut turn = self.turns.remove(&number).expect("a turn in `asked` waits");
        turn.take_response(outcome, &self.options);
        self.run_turn(number, turn);
    }

    fn stop_turn(&mut self, number: u64, end: TurnEnd) {
        let turn = self.turns.remove(&number).expect("a session's turn waits between lines");
        if let Some(wake) = &turn.wake {
            self.wakes.remove(wake);
        }
        if let Some(id) = turn.asked() {
            self.asked.remove(&id);
            self.writer.notify("$/cancel_request", &json!({ "requestId": id }));
        }
        self.end_turn(turn, end);
    }

    fn end_turn(&mut self, turn: Turn, end: TurnEnd) {
        if let Some(open) = self.open.get_mut(&turn.session_id) {
            open.turn = None;
        }
        if !turn.said.is_empty() {
            let now_ms = self.unix_ms();
            self.store.append(&turn.session_id, Entry::Agent(turn.said), now_ms);
        }
        let to = turn.reply_to.as_ref();
        match end {
            TurnEnd::Stopped(reason) => self.writer.stopped(to, reason),
            TurnEnd::RequestCancelled => {
                self.writer.respond(to, Err(RpcError::new(CANCELLED, "Request cancelled")));
            }
        }
    }
}
