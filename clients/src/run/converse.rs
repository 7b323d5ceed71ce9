//! The conversation: initialize, a session, and turn after turn.
//!
//! Waits for one thing at a time and heeds everything else that happens meanwhile. Nothing that the agent says makes
//! it panic, and everything that the agent asks is answered.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::call::{Titles, ToolCall};
use super::envelope::Status;
use super::hands::{Deed, Hands};
use super::link::{Event, Input};
use super::peer::Peer;
use super::show::Show;
use super::{Ended, Options};
use crate::Fault;

/// Some errors of an agent that has just started pass.
const TRY_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Updates may still come after the answer: as long as each comes within `QUIET` of the last, they belong to the turn.
const QUIET: Duration = Duration::from_millis(100);
const DRAIN_MOST: Duration = Duration::from_secs(1);
/// How long an agent may take to end a turn that has taken too long.
const CANCEL: Duration = Duration::from_secs(5);

/// Why the conversation is over.
pub(super) enum Stop {
    Ended(Ended),
    Fault(Fault),
    /// The agent will say nothing more.
    Closed,
    /// Not in time.
    Late,
}

/// Nobody sees what is shown.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            // Whoever read it has seen enough.
            io::ErrorKind::BrokenPipe => Stop::Ended(Ended::Done),
            _ => Stop::Fault(Fault::Failed(format!("cannot write to stdout: {error}"))),
        }
    }
}

pub(super) struct Runner {
    pub(super) options: Options,
    pub(super) peer: Peer,
    events: Receiver<Event>,
    /// What came while something else had to be done first.
    pub(super) set_aside: VecDeque<Event>,
    pub(super) input: Input,
    /// Lines that were typed when nobody waited for one.
    typed: VecDeque<String>,
    pub(super) show: Box<dyn Show>,
    pub(super) hands: Option<Hands>,
    /// What the user has allowed for good.
    pub(super) allowed: BTreeSet<Deed>,
    last_id: u64,
    session: String,
    /// A turn is on its way.
    in_turn: bool,
    /// The user has cancelled it.
    cancelled: bool,
    /// What the calls of this turn are about.
    pub(super) titles: Titles,
    /// How long this turn has waited for the user.
    pub(super) asked_for: Duration,
    /// A permission was refused without asking anybody.
    pub(super) refused: bool,
}

impl Runner {
    pub(super) fn new(
        options: Options,
        peer: Peer,
        events: Receiver<Event>,
        input: Input,
        show: Box<dyn Show>,
        hands: Option<Hands>,
    ) -> Runner {
        Runner {
            options,
            peer,
            events,
            set_aside: VecDeque::new(),
            input,
            typed: VecDeque::new(),
            show,
            hands,
            allowed: BTreeSet::new(),
            last_id: 0,
            session: String::new(),
            in_turn: false,
            cancelled: false,
            titles: Titles::default(),
            asked_for: Duration::ZERO,
            refused: false,
        }
    }

    pub(super) fn run(mut self) -> Result<Ended, Fault> {
        let stop = self.converse();
        let result = match stop {
            Ok(ended) | Err(Stop::Ended(ended)) => Ok(ended),
            Err(Stop::Fault(fault)) => Err(fault),
            Err(Stop::Closed) => Err(Fault::Failed(self.peer.why_closed())),
            Err(Stop::Late) => Ok(Ended::TimedOut),
        };
        if let Some(hands) = &mut self.hands {
            hands.let_go();
        }
        let at_once = matches!(result, Ok(Ended::Interrupted | Ended::Signalled(_) | Ended::TimedOut));
        self.peer.leave(at_once);
        result
    }

    fn converse(&mut self) -> Result<Ended, Stop> {
        self.initialize()?;
        self.open_session()?;
        let mut failed = false;
        let mut turns = 0;
        while let Some(prompt) = self.next_prompt(turns)? {
            turns += 1;
            match self.turn(&prompt)? {
                Status::Completed => {}
                Status::Failed => failed = true,
                Status::Cancelled if self.cancelled && !self.options.attended => {
                    return Ok(Ended::Interrupted);
                }
                Status::Cancelled => {}
            }
        }
        Ok(match () {
            () if turns == 0 => Ended::NoPrompt,
            () if failed => Ended::Failed,
            () if self.refused => Ended::Refused,
            () if self.cancelled => Ended::Interrupted,
            () => Ended::Done,
        })
    }

    fn initialize(&mut self) -> Result<(), Stop> {
        let hands = self.hands.is_some();
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "fs": { "readTextFile": hands, "writeTextFile": hands }, "terminal": hands },
            "clientInfo": { "name": "stdio-bus", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") },
        });
        let waited = self.options.init_timeout;
        let until = Instant::now() + waited;
        let mut rests = TRY_AGAIN_AFTER.into_iter();
        loop {
            let id = self.ask("initialize", params.clone());
            let answer = self.answer_to(id, Some(until)).map_err(|stop| match stop {
                Stop::Late => Stop::Fault(Fault::Silent { at: self.peer.name.clone(), waited }),
                stop => stop,
            })?;
            let error = match answer {
                Ok(result) if result["protocolVersion"] == 1 => return Ok(()),
                Ok(result) => {
                    let version = &result["protocolVersion"];
                    let words = format!("{} speaks ACP {version}, and not 1", self.peer.name);
                    return Err(Stop::Fault(Fault::Failed(words)));
                }
                Err(error) => error,
            };
            match rests.next().filter(|_| may_pass(&error)) {
                Some(rest) => self.rest(Instant::now() + rest)?,
                None => {
                    let words = format!("{} refuses initialize: {}", self.peer.name, words_of(&error));
                    return Err(Stop::Fault(Fault::Failed(words)));
                }
            }
        }
    }

    fn open_session(&mut self) -> Result<(), Stop> {
        let cwd = self.options.cwd.to_string_lossy().into_owned();
        let id = self.ask("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
        let failed = |words: String| Err(Stop::Fault(Fault::Failed(words)));
        match self.answer_to(id, None)? {
            Ok(result) => match result["sessionId"].as_str() {
                Some(session) => self.session = session.to_owned(),
                None => return failed(format!("{} opens a session without a name", self.peer.name)),
            },
            Err(error) if error["code"] == -32000 => {
                let said = words_of(&error);
                return failed(format!(
                    "{} wants you to log in first, with its own command: {said}",
                    self.peer.name
                ));
            }
            Err(error) => {
                return failed(format!("{} opens no session: {}", self.peer.name, words_of(&error)));
            }
        }
        Ok(())
    }

    fn next_prompt(&mut self, turns: u32) -> Result<Option<String>, Stop> {
        if let Some(prompt) = self.options.prompt.take() {
            return Ok(Some(prompt));
        }
        if self.options.once && turns > 0 {
            return Ok(None);
        }
        let mut invited = false;
        loop {
            if let Some(line) = self.typed.pop_front() {
                if !line.trim().is_empty() {
                    return Ok(Some(line));
                }
                invited = false;
            }
            if !std::mem::replace(&mut invited, true) && self.options.attended {
                self.show.invites()?;
            }
            if !self.input.wants_line() {
                self.leave_invitation()?;
                return Ok(None);
            }
            let event = self.next_event(None)?;
            if let Err(stop) = self.heed(event, None) {
                self.leave_invitation()?;
                return Err(stop);
            }
        }
    }

    /// What is shown next begins on a line of its own.
    fn leave_invitation(&mut self) -> Result<(), Stop> {
        if self.options.attended {
            self.show.asks("\n")?;
        }
        Ok(())
    }

    fn turn(&mut self, prompt: &str) -> Result<Status, Stop> {
        self.show.begins()?;
        self.titles.clear();
        (self.in_turn, self.cancelled, self.asked_for) = (true, false, Duration::ZERO);
        let blocks = json!([{ "type": "text", "text": prompt }]);
        let id = self.ask("session/prompt", json!({ "sessionId": self.session, "prompt": blocks }));
        let until = self.options.timeout.map(|timeout| Instant::now() + timeout);
        let answer = self.answer_to(id, until);
        if answer.is_ok() {
            self.drain()?;
        }
        self.in_turn = false;
        let mut usage = Value::Null;
        let (status, remark) = match &answer {
            Ok(Ok(result)) => {
                usage = result["usage"].clone();
                ended_by(result["stopReason"].as_str().unwrap_or_default())
            }
            // Some agents answer a prompt that is cancelled with an error.
            Ok(Err(_)) if self.cancelled => (Status::Cancelled, None),
            Ok(Err(error)) => (Status::Failed, Some(format!("the agent failed: {}", words_of(error)))),
            Err(Stop::Closed) => (Status::Failed, Some(self.peer.why_closed())),
            Err(Stop::Late) => (Status::Failed, Some("the turn took too long".to_owned())),
            Err(_) => (Status::Cancelled, None),
        };
        if let Some(remark) = remark {
            self.show.service(&remark)?;
        }
        self.show.ends(status, &usage)?;
        match answer {
            // The user was told.
            Err(Stop::Closed) => Err(Stop::Ended(Ended::Failed)),
            Err(Stop::Late) => {
                // The agent may end what it has begun.
                self.cancel();
                let _ = self.answer_to(id, Some(Instant::now() + CANCEL));
                Err(Stop::Late)
            }
            Err(stop) => Err(stop),
            Ok(_) => Ok(status),
        }
    }

    /// Waits for it, however much else comes first.
    fn answer_to(&mut self, id: u64, until: Option<Instant>) -> Result<Result<Value, Value>, Stop> {
        loop {
            let event = self.next_event(until.map(|until| until + self.asked_for))?;
            if let Some(answer) = self.heed(event, Some(id))? {
                return Ok(answer);
            }
        }
    }

    /// Heeds what comes until then.
    fn rest(&mut self, until: Instant) -> Result<(), Stop> {
        loop {
            match self.next_event(Some(until)) {
                Ok(event) => drop(self.heed(event, None)?),
                Err(Stop::Late) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    fn drain(&mut self) -> Result<(), Stop> {
        let end = Instant::now() + DRAIN_MOST;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            match self.next_event(Some(end.min(now + QUIET))) {
                // The turn is over; that the agent is gone too matters to the next one.
                Ok(Event::Closed) => {
                    self.set_aside.push_front(Event::Closed);
                    return Ok(());
                }
                Ok(event) => drop(self.heed(event, None)?),
                Err(Stop::Late) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    pub(super) fn next_event(&mut self, until: Option<Instant>) -> Result<Event, Stop> {
        if let Some(event) = self.set_aside.pop_front() {
            return Ok(event);
        }
        let Some(until) = until else { return self.events.recv().map_err(|_| Stop::Closed) };
        let left = until.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Stop::Late,
            RecvTimeoutError::Disconnected => Stop::Closed,
        })
    }

    /// Does what is to be done about it. `Some` if it answers what was asked under this id.
    fn heed(&mut self, event: Event, id: Option<u64>) -> Result<Option<Result<Value, Value>>, Stop> {
        match event {
            Event::Message(mut message) => {
                let Some(method) = message["method"].as_str() else {
                    let answers = id.is_some_and(|id| message["id"] == id);
                    return Ok(answers.then(|| {
                        match message.get("error").filter(|error| !error.is_null()) {
                            Some(error) => Err(error.clone()),
                            None => Ok(message["result"].take()),
                        }
                    }));
                };
                if message.get("id").is_some() {
                    self.is_asked(&message)?;
                } else if method == "session/update"
                    && message["params"]["sessionId"] == self.session.as_str()
                {
                    let update = &message["params"]["update"];
                    if ToolCall(update).id().is_some() {
                        self.titles.learn(&ToolCall(update));
                    }
                    self.show.update(update)?;
                }
            }
            Event::Closed => return Err(Stop::Closed),
            Event::Typed(line) => {
                self.input.has_line(line.as_ref());
                self.typed.extend(line);
            }
            Event::Signal(SIGINT) if self.in_turn && !self.cancelled => self.cancel(),
            Event::Signal(SIGINT) => return Err(Stop::Ended(Ended::Interrupted)),
            Event::Signal(signal) => return Err(Stop::Ended(Ended::Signalled(signal))),
            Event::Ended => self.answer_late(),
        }
        Ok(None)
    }

    /// The user wants no more of this turn.
    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
        let params = json!({ "sessionId": self.session });
        self.peer.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }));
    }

    /// Whether what the agent asks now is asked in vain.
    pub(super) fn is_over(&self) -> bool {
        self.cancelled || !self.in_turn
    }

    fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.peer.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }
}

/// What a stop reason means, and what is to be said about it.
fn ended_by(stop_reason: &str) -> (Status, Option<String>) {
    let remark = match stop_reason {
        "cancelled" => return (Status::Cancelled, None),
        "refusal" => "the agent refuses to go on",
        "max_tokens" => "the answer has reached the limit of tokens",
        "max_turn_requests" => "the turn has reached the limit of requests",
        _ => return (Status::Completed, None),
    };
    (Status::Completed, Some(remark.to_owned()))
}

/// An agent that has not found itself yet, or a bus whose worker has not.
fn may_pass(error: &Value) -> bool {
    let of_bus =
        matches!(error["data"]["reason"].as_str(), Some("worker_lost" | "pool_down" | "busy" | "no_start"));
    of_bus || error["code"] == -32603
}

fn words_of(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("an error without words");
    let data = &error["data"];
    match data["details"].as_str().or(data["message"].as_str()).or(data.as_str()) {
        Some(details) => format!("{message} ({details})"),
        None => message.to_owned(),
    }
}
