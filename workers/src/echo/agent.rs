//! The agent: lines and the time in, bytes out.
//!
//! A value without I/O of its own (except the sessions' files, with `--state`), so that tests need neither
//! a process nor a clock. Holds the open sessions, the turns that rest and what wakes them. A turn that
//! rests costs an entry in a table, never a thread, and never delays another.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Options;
use super::record::{Entry, Mode, Split};
use super::store::Store;
use super::turn::{Pause, Turn};
use super::writer::Writer;
use crate::acp::error::{CANCELLED, RpcError};
use crate::acp::message::{Message, Outcome};

/// A longer delay between chunks is no delay but a mistake, and would overflow the clock in the end.
const DELAY_MOST: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct Agent {
    pub(super) options: Options,
    pub(super) writer: Writer,
    pub(super) store: Store,
    pub(super) open: HashMap<String, Open>,
    /// Whether the client lets its files be read. `None` until it has said so by `initialize`.
    pub(super) reads_files: Option<bool>,
    /// Turns that rest, by their number. Each is either in `wakes` or in `asked`.
    turns: HashMap<u64, Turn>,
    /// Turns that rest until a moment. The second number keeps those of the same moment in turn.
    wakes: BTreeMap<(Instant, u64), u64>,
    /// Requests to the client that are not yet answered, and the turn each belongs to.
    asked: HashMap<u64, u64>,
    next_turn: u64,
    next_wake: u64,
    next_id: u64,
    exit: Option<u8>,
    started: Instant,
    started_unix: Duration,
}

/// A session that takes prompts.
pub(super) struct Open {
    pub(super) cwd: String,
    pub(super) mode: Mode,
    pub(super) split: Split,
    pub(super) has_title: bool,
    /// The number of its running turn.
    pub(super) turn: Option<u64>,
}

#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// The prompt is answered with this stop reason.
    Stopped(&'static str),
    /// The prompt is answered with an error, because the request itself was taken back.
    TakenBack,
}

impl Agent {
    pub(super) fn new(mut options: Options, now: Instant, wall: SystemTime) -> io::Result<Agent> {
        options.delay = options.delay.min(DELAY_MOST);
        let store = Store::new(options.state.as_deref())?;
        Ok(Agent {
            options,
            writer: Writer::default(),
            store,
            open: HashMap::new(),
            reads_files: None,
            turns: HashMap::new(),
            wakes: BTreeMap::new(),
            asked: HashMap::new(),
            next_turn: 0,
            next_wake: 0,
            next_id: 0,
            exit: None,
            started: now,
            started_unix: wall.duration_since(UNIX_EPOCH).unwrap_or_default(),
        })
    }

    /// One line of stdin, without its newline.
    pub(super) fn line(&mut self, line: &[u8], now: Instant) {
        if line.trim_ascii().is_empty() {
            return;
        }
        match Message::parse(line) {
            Ok(Message::Request { caller, method, params }) => self.request(caller, &method, params, now),
            Ok(Message::Notification { method, params }) => self.notification(&method, params, now),
            Ok(Message::Response { id, outcome }) => self.answer(id, outcome, now),
            Err(malformed) => self.writer.respond_error(malformed.caller, &malformed.error),
        }
    }

    /// Lets turns go on whose moment has come, until all have or there is enough to write.
    pub(super) fn tick(&mut self, now: Instant) {
        while self.exit.is_none()
            && !self.writer.is_full()
            && let Some(entry) = self.wakes.first_entry()
            && entry.key().0 <= now
        {
            let number = entry.remove();
            let mut turn = self.turns.remove(&number).expect("a turn that is to be woken rests");
            turn.wake = None;
            self.carry_on(number, turn, now);
        }
    }

    /// When `tick` is next of use.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.wakes.first_key_value().map(|((due, _), _)| *due)
    }

    /// The code to exit with, once a prompt has asked for the end.
    pub(super) fn exit(&self) -> Option<u8> {
        self.exit
    }

    pub(super) fn unix_ms(&self, now: Instant) -> u64 {
        (self.started_unix + now.duration_since(self.started)).as_millis() as u64
    }

    pub(super) fn next_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    pub(super) fn notification(&mut self, method: &str, params: Option<&RawValue>, now: Instant) {
        match method {
            "session/cancel" => {
                if let Some(SessionOnly { session_id }) = read(params) {
                    self.cancel(&session_id, now);
                }
            }
            "$/cancel_request" => {
                if let Some(RequestOnly { request_id }) = read(params) {
                    self.take_back(request_id, now);
                }
            }
            _ => {}
        }
    }

    /// Takes the turn as far as it goes, and puts it where it is found when it can go on.
    pub(super) fn carry_on(&mut self, number: u64, mut turn: Turn, now: Instant) {
        match turn.go(&mut self.writer, &mut self.next_id, self.options.delay, now) {
            Pause::Done => return self.end(turn, Ending::Stopped("end_turn"), now),
            Pause::Until(due) => {
                let wake = (due, self.next_wake);
                self.next_wake += 1;
                self.wakes.insert(wake, number);
                turn.wake = Some(wake);
            }
            Pause::Asked(id) => {
                self.asked.insert(id, number);
            }
            Pause::Die(code) => self.exit = Some(code),
        }
        self.turns.insert(number, turn);
    }

    /// Ends the session's turn, if it has one.
    pub(super) fn cancel(&mut self, session: &str, now: Instant) {
        if let Some(number) = self.open.get(session).and_then(|open| open.turn) {
            self.stop(number, Ending::Stopped("cancelled"), now);
        }
    }

    /// The client takes a request back. All but prompts are answered by the time it can.
    fn take_back(&mut self, id: &RawValue, now: Instant) {
        let same = |(number, turn): (&u64, &Turn)| (turn.caller().id.get() == id.get()).then_some(*number);
        if let Some(number) = self.turns.iter().find_map(same) {
            self.stop(number, Ending::TakenBack, now);
        }
    }

    fn answer(&mut self, id: &RawValue, outcome: Outcome<'_>, now: Instant) {
        // An id that nobody waits for is that of a turn that was cancelled meanwhile.
        let Some(number) = id.get().parse().ok().and_then(|id: u64| self.asked.remove(&id)) else { return };
        let mut turn = self.turns.remove(&number).expect("a turn that asked rests");
        turn.answered(outcome, &self.options);
        self.carry_on(number, turn, now);
    }

    fn stop(&mut self, number: u64, ending: Ending, now: Instant) {
        let turn = self.turns.remove(&number).expect("a session's turn rests between lines");
        if let Some(wake) = &turn.wake {
            self.wakes.remove(wake);
        }
        if let Some(id) = turn.asked() {
            self.asked.remove(&id);
            self.writer.notify("$/cancel_request", &json!({ "requestId": id }));
        }
        self.end(turn, ending, now);
    }

    fn end(&mut self, mut turn: Turn, ending: Ending, now: Instant) {
        if let Some(open) = self.open.get_mut(&turn.session) {
            open.turn = None;
        }
        let said = std::mem::take(&mut turn.said);
        if !said.is_empty() {
            self.store.add(&turn.session, Entry::Agent(said), self.unix_ms(now));
        }
        match ending {
            Ending::Stopped(reason) => self.writer.stopped(turn.caller(), reason),
            Ending::TakenBack => {
                self.writer
                    .respond_error(Some(turn.caller()), &RpcError::new(CANCELLED, "Request cancelled"));
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionOnly {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestOnly<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

/// A notification that cannot be read is nobody's question, so nobody is told.
fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(params?.get()).ok()
}
