//! What an IDE and the bus say to each other, over as many connections as it takes.
//!
//! Each request of the IDE gets exactly one answer: that of the bus, or an error if the connection broke before it
//! came. Each question of an agent is put to the IDE once, even if a later connection asks it again. Lines go in,
//! lines come out; knows no sockets and no time.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::lines::Outbox;
use super::session::{Opening, Session, named_in};
use crate::message::{Message, parts, present, reason};

const BYE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"_bus/bye\"}\n";

pub(super) struct Talk {
    /// Whole lines for the one and for the other.
    pub(super) to_bus: Outbox,
    pub(super) to_ide: Outbox,
    awaits: Awaits,
    /// Counts what was awaited, so that it can be seen whether it is still the same.
    turns: u64,
    /// The bus has been here before, so whatever it does now the IDE is not to notice.
    settled: bool,
    /// Requests of the IDE, by their ids.
    flights: BTreeMap<Box<str>, Flight>,
    /// Errors of the bus about no id: so many of `flights` may already be answered.
    unplaced: usize,
    /// What the IDE is asked, by the ids that it knows.
    questions: BTreeMap<Box<str>, Question>,
    /// The IDE's `initialize`, once it was answered well.
    initialize: Option<Box<[u8]>>,
    can_load: bool,
    /// The IDE's login, once it was answered well and until its logout is.
    login: Option<Box<[u8]>>,
    /// In the order in which they were opened.
    sessions: Vec<Session>,
    /// The IDE says nothing more.
    left: bool,
    own_ids: OwnIds,
}

/// A state is named by what is awaited; ids are our own.
enum Awaits {
    Connection,
    Hello(String),
    Initialize(String),
    Login(String),
    /// The session at this place is taken up, by `session/load` or by `session/resume`.
    Session {
        at: usize,
        id: String,
        by_load: bool,
    },
    /// Nothing: lines pass.
    Nothing,
    /// Nothing any more: the bus does not want us. This is the error it gave.
    Refused(Box<str>),
}

enum Flight {
    Initialize(Box<[u8]>),
    Login(Box<[u8]>),
    Logout,
    Open(Opening),
    Other,
}

struct Question {
    /// None: asked over a connection that is gone, and not asked again so far.
    bus_id: Option<Box<str>>,
    /// Equal for equal questions.
    mark: u64,
}

/// What became of a connection by a line of the bus.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// The bus does not take us now; another connection may fare better.
    NotNow(String),
    /// The bus does not take us at all.
    Refused(String),
    /// For want of the right token.
    Unauthorized,
}

impl Talk {
    pub(super) fn new() -> Talk {
        Talk {
            to_bus: Outbox::default(),
            to_ide: Outbox::default(),
            awaits: Awaits::Connection,
            turns: 0,
            settled: false,
            flights: BTreeMap::new(),
            unplaced: 0,
            questions: BTreeMap::new(),
            initialize: None,
            can_load: false,
            login: None,
            sessions: Vec::new(),
            left: false,
            own_ids: OwnIds::new(),
        }
    }

    /// Whether lines of the IDE may come.
    pub(super) fn takes_lines(&self) -> bool {
        matches!(self.awaits, Awaits::Nothing | Awaits::Refused(_))
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.awaits, Awaits::Nothing)
    }

    /// The bus has been reached and has let us in, at least once.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// The number of what is awaited.
    pub(super) fn turn(&self) -> u64 {
        self.turns
    }

    /// A connection stands. `params`: of the `_bus/hello` to say.
    pub(super) fn connected(&mut self, params: &str) {
        let id = self.own_ids.next();
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"_bus/hello","params":{params}}}{}"#, '\n');
        self.to_bus.push(line.as_bytes());
        self.await_next(Awaits::Hello(id));
    }

    /// The connection is gone. Whether what was asked has been done, nobody here can know.
    pub(super) fn dropped(&mut self) {
        self.to_bus.clear();
        self.unplaced = 0;
        let message = "the connection to the bus was lost, the request may have been executed";
        for (id, _) in std::mem::take(&mut self.flights) {
            self.to_ide.push(error(&id, -32050, "worker_lost", message).as_bytes());
        }
        for question in self.questions.values_mut() {
            question.bus_id = None;
        }
        self.await_next(Awaits::Connection);
    }

    /// There will be no connection: this line of the IDE goes nowhere.
    pub(super) fn turn_away(&mut self, line: &[u8], why: &str) {
        let Some(message) = Message::scan(line) else { return };
        if let (Some(id), Some(_)) = (message.id, message.method) {
            self.to_ide.push(error(id.get(), -32053, "pool_down", why).as_bytes());
        }
    }

    /// A whole line of the IDE, with its newline. Only while `takes_lines`.
    pub(super) fn ide_says(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let message = Message::scan(line).unwrap_or_default();
        if let Awaits::Refused(error) = &self.awaits {
            if let (Some(id), Some(_)) = (message.id, message.method) {
                let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}{}"#, '\n');
                self.to_ide.push(answer.as_bytes());
            }
            return;
        }
        match message {
            Message { id: Some(id), method: Some(method), .. } if is_request(id, method) => {
                let flight = self.flight(line, &message);
                self.flights.insert(id.get().into(), flight);
            }
            Message { id: Some(id), method: None, .. } => return self.answer_question(line, id),
            // What is no message at all is for the bus to refuse.
            _ => {}
        }
        self.to_bus.push(line);
    }

    /// The IDE says nothing more: whatever agents ask, nobody will answer.
    pub(super) fn ide_left(&mut self) {
        self.left = true;
        for (_, question) in std::mem::take(&mut self.questions) {
            if let Some(id) = question.bus_id {
                self.to_bus.push(client_gone(&id).as_bytes());
            }
        }
    }

    /// All that the IDE has asked is answered, as far as can be known here.
    pub(super) fn is_answered(&self) -> bool {
        self.flights.len() <= self.unplaced
    }

    pub(super) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The bus need not keep the sessions.
    pub(super) fn say_bye(&mut self) {
        self.to_bus.push(BYE);
    }

    /// A whole line of the bus, with its newline.
    pub(super) fn bus_says(&mut self, line: &[u8]) -> News {
        // Only messages reach the IDE, whatever stands at the other end.
        let Some(message) = Message::scan(line) else { return News::None };
        match message {
            Message { id: Some(id), method: Some(_), .. } => self.ask_ide(line, id, &message),
            Message { method: Some(_), .. } => self.tell_ide(line, &message),
            Message { id: Some(id), .. } if self.own_ids.has(id.get()) => return self.go_on(id, &message),
            Message { error: Some(_), id, .. } if id.is_none_or(|id| id.get() == "null") => {
                if matches!(self.awaits, Awaits::Hello(_)) {
                    return self.turned_away(message.error);
                }
                self.unplaced += 1;
                self.to_ide.push(line);
            }
            Message { id: Some(id), .. } => {
                let flight = self.flights.remove(id.get());
                self.learn(flight, message.result);
                self.to_ide.push(line);
            }
            _ => {}
        }
        News::None
    }

    /// What is awaited fails or takes too long: the session is given up, the others go on. A login that fails is the
    /// agent's to tell, when it is needed. False: there is no going on without what is awaited.
    pub(super) fn skip(&mut self) -> bool {
        match self.awaits {
            Awaits::Session { at, .. } => {
                self.sessions.remove(at);
                self.take_up(at);
            }
            Awaits::Login(_) => self.take_up(0),
            _ => return false,
        }
        true
    }

    fn flight(&mut self, line: &[u8], message: &Message<'_>) -> Flight {
        let method = message.method.map_or("", RawValue::get);
        match method {
            r#""initialize""# => return Flight::Initialize(line.into()),
            r#""authenticate""# | r#""auth/login""# => return Flight::Login(line.into()),
            r#""logout""# | r#""auth/logout""# => return Flight::Logout,
            _ => {}
        }
        if matches!(method, r#""session/close""# | r#""session/delete""#)
            && let Some(id) = message.params.and_then(named_in)
        {
            self.sessions.retain(|session| *session.id != *id.get());
        }
        Opening::of(message).map_or(Flight::Other, Flight::Open)
    }

    /// What an answer that came in says about the times to come.
    fn learn(&mut self, flight: Option<Flight>, result: Option<&RawValue>) {
        match (flight, result) {
            (Some(Flight::Initialize(line)), Some(result)) => {
                self.initialize = Some(line);
                self.can_load = can_load(result);
            }
            (Some(Flight::Login(line)), Some(_)) => self.login = Some(line),
            (Some(Flight::Logout), Some(_)) => self.login = None,
            (Some(Flight::Open(opening)), Some(result)) => {
                let Some(session) = opening.opened(result) else { return };
                self.sessions.retain(|other| other.id != session.id);
                self.sessions.push(session);
            }
            _ => {}
        }
    }

    /// To the agent under the id that it awaits now, if it still does.
    fn answer_question(&mut self, line: &[u8], id: &RawValue) {
        let Some(question) = self.questions.remove(id.get()) else { return };
        match question.bus_id {
            Some(bus_id) if *bus_id == *id.get() => self.to_bus.push(line),
            Some(bus_id) => self.to_bus.push(&respelled(line, id, &bus_id)),
            // Asked before the connection broke, and not asked again.
            None => {}
        }
    }

    fn ask_ide(&mut self, line: &[u8], id: &RawValue, message: &Message<'_>) {
        let bus_id: Box<str> = id.get().into();
        if self.left {
            return self.to_bus.push(client_gone(&bus_id).as_bytes());
        }
        let mark = self.own_ids.mark(message);
        let again = |question: &&mut Question| question.bus_id.is_none() && question.mark == mark;
        if let Some(question) = self.questions.values_mut().find(again) {
            question.bus_id = Some(bus_id);
            return;
        }
        let mut ide_id = bus_id.clone();
        if self.questions.contains_key(&bus_id) {
            // Two connections count from the same number, and the IDE has not answered the older question.
            ide_id = self.own_ids.next().into();
            self.to_ide.push(&respelled(line, id, &ide_id));
        } else {
            self.to_ide.push(line);
        }
        self.questions.insert(ide_id, Question { bus_id: Some(bus_id), mark });
    }

    fn tell_ide(&mut self, line: &[u8], message: &Message<'_>) {
        let method = message.method.map_or("", RawValue::get);
        if let Awaits::Session { at, by_load: true, .. } = self.awaits
            && method == r#""session/update""#
            && let Some(id) = message.params.and_then(named_in)
            && *id.get() == *self.sessions[at].id
        {
            // The IDE has heard all this before.
            return;
        }
        if method == r#""$/cancel_request""#
            && let Some(id) = message.params.and_then(cancelled)
            && let Some(ide_id) = self.ide_id(id.get())
        {
            return self.to_ide.push(&respelled(line, id, &ide_id));
        }
        self.to_ide.push(line);
    }

    /// The IDE's id of what the bus asks under this one, where it is another.
    fn ide_id(&self, bus_id: &str) -> Option<Box<str>> {
        let asked = |question: &Question| question.bus_id.as_deref() == Some(bus_id);
        let same = self.questions.get(bus_id).is_some_and(asked);
        if same {
            return None;
        }
        self.questions.iter().find(|(_, question)| asked(question)).map(|(ide_id, _)| ide_id.clone())
    }

    /// An answer to something of our own.
    fn go_on(&mut self, id: &RawValue, message: &Message<'_>) -> News {
        let good = message.result.is_some();
        match &self.awaits {
            Awaits::Hello(awaited) if awaited == id.get() => {
                if !good {
                    return self.turned_away(message.error);
                }
                self.initialize_again();
            }
            Awaits::Initialize(awaited) if awaited == id.get() => {
                let Some(result) = message.result else { return News::NotNow(words(message.error)) };
                self.can_load = can_load(result);
                self.log_in_again();
            }
            Awaits::Login(awaited) if awaited == id.get() => self.take_up(0),
            &Awaits::Session { at, id: ref awaited, by_load } if awaited == id.get() => {
                if good {
                    self.take_up(at + 1);
                } else if !by_load && self.can_load {
                    self.take_up_by(at, "session/load");
                } else {
                    // Its next message will be answered with the reason.
                    self.skip();
                }
            }
            // Too late: it was given up.
            _ => {}
        }
        News::None
    }

    fn turned_away(&mut self, error: Option<&RawValue>) -> News {
        let (words, reason) = (words(error), error.map(reason).unwrap_or_default());
        if self.settled && matches!(reason.as_str(), "busy" | "stopping") {
            return News::NotNow(words);
        }
        self.await_next(Awaits::Refused(error.map_or("null", RawValue::get).into()));
        if reason == "unauthorized" { News::Unauthorized } else { News::Refused(words) }
    }

    /// The bus knows the new connection as little as it knew the first one.
    fn initialize_again(&mut self) {
        let Some(line) = self.initialize.clone() else { return self.take_up(0) };
        let id = self.say_again(&line);
        self.await_next(Awaits::Initialize(id));
    }

    /// The agents of a bus that was restarted know nothing of it.
    fn log_in_again(&mut self) {
        let Some(line) = self.login.clone() else { return self.take_up(0) };
        let id = self.say_again(&line);
        self.await_next(Awaits::Login(id));
    }

    /// A request that the IDE has made before, under an id of our own.
    fn say_again(&mut self, line: &[u8]) -> String {
        let id = self.own_ids.next();
        let old = Message::scan(line).and_then(|message| message.id);
        self.to_bus.push(&old.map_or_else(Vec::new, |old| respelled(line, old, &id)));
        id
    }

    /// The sessions from this one on. A bus that kept a session takes `session/resume`, whatever the agent can,
    /// and tells what was missed. Only where that fails, the agent has to tell it all again.
    fn take_up(&mut self, at: usize) {
        if at < self.sessions.len() {
            return self.take_up_by(at, "session/resume");
        }
        self.settled = true;
        self.await_next(Awaits::Nothing);
    }

    fn take_up_by(&mut self, at: usize, method: &str) {
        let id = self.own_ids.next();
        self.to_bus.push(self.sessions[at].take_up(method, &id).as_bytes());
        self.await_next(Awaits::Session { at, id, by_load: method == "session/load" });
    }

    fn await_next(&mut self, awaits: Awaits) {
        self.turns += 1;
        self.awaits = awaits;
    }
}

/// Ids that no IDE and no bus will think of.
struct OwnIds {
    prefix: String,
    last: u64,
    seed: RandomState,
}

impl OwnIds {
    fn new() -> OwnIds {
        let seed = RandomState::new();
        OwnIds { prefix: format!("\"stdio-bus connect {:016x} ", seed.hash_one(0)), last: 0, seed }
    }

    /// With its quotes.
    fn next(&mut self) -> String {
        self.last += 1;
        format!("{}{}\"", self.prefix, self.last)
    }

    fn has(&self, id: &str) -> bool {
        id.starts_with(&self.prefix)
    }

    fn mark(&self, message: &Message<'_>) -> u64 {
        self.seed.hash_one((message.method.map(RawValue::get), message.params.map(RawValue::get)))
    }
}

/// Else the bus has nothing to answer, or refuses it under no id.
fn is_request(id: &RawValue, method: &RawValue) -> bool {
    let id = id.get().starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
    id && method.get().starts_with('"')
}

/// The line with another text in the place of this part of it.
fn respelled(line: &[u8], part: &RawValue, with: &str) -> Vec<u8> {
    let start = part.get().as_ptr() as usize - line.as_ptr() as usize;
    let end = start + part.get().len();
    [&line[..start], with.as_bytes(), &line[end..]].concat()
}

fn can_load(result: &RawValue) -> bool {
    let result = serde_json::from_str::<Value>(result.get()).unwrap_or_default();
    result["agentCapabilities"]["loadSession"] == true
}

fn cancelled(params: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, default, rename = "requestId", deserialize_with = "present")]
        id: Option<&'a RawValue>,
    }

    parts::<Params<'_>>(params.get().as_bytes())?.id
}

fn error(id: &str, code: i32, reason: &str, message: &str) -> String {
    let message = Value::from(message);
    let error = format!(r#"{{"code":{code},"message":{message},"data":{{"reason":"{reason}"}}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}{}"#, '\n')
}

fn client_gone(id: &str) -> String {
    error(id, -32057, "client_gone", "the client of this session has left")
}

/// An error of the bus, for people.
fn words(error: Option<&RawValue>) -> String {
    let error = error.and_then(|error| serde_json::from_str::<Value>(error.get()).ok()).unwrap_or_default();
    let message = error["message"].as_str().unwrap_or("an error without a message").to_owned();
    let pools = error["data"]["pools"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let pools = pools.collect::<Vec<_>>().join(", ");
    if pools.is_empty() { message } else { format!("{message} (it has {pools})") }
}
