//! Drives the agent: initialize, one session, and turn after turn.
//!
//! It waits for one answer at a time and handles every other event meanwhile. Nothing that the agent sends
//! makes it panic, and every request of the agent is answered.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::agent::Agent;
use super::client_tools::{ClientTools, ToolKind};
use super::envelope::Status;
use super::events::{Event, UserInput};
use super::renderer::Renderer;
use super::tool_call::{Titles, ToolCall};
use super::{Ended, Options};
use crate::Fault;

/// Pauses before initialize is tried again: some errors of a starting agent are transient.
const INITIALIZE_BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Updates that come within this time after the answer, or after each other, still belong to the turn.
const DRAIN_QUIET: Duration = Duration::from_millis(100);
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long an agent may take to end a turn that has timed out.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no more turns are run.
pub(super) enum Stop {
    Ended(Ended),
    Fault(Fault),
    /// The agent has closed its output.
    Closed,
    TimedOut,
}

/// Writing for the user failed.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            // A reader that closes its end is no failure.
            io::ErrorKind::BrokenPipe => Stop::Ended(Ended::Done),
            _ => Stop::Fault(Fault::Failed(format!("cannot write to stdout: {error}"))),
        }
    }
}

pub(super) struct Driver {
    pub(super) options: Options,
    pub(super) agent: Agent,
    events: Receiver<Event>,
    /// Events that came while the user was asked.
    pub(super) deferred: VecDeque<Event>,
    pub(super) input: UserInput,
    /// Lines that the user typed before one was needed.
    user_lines: VecDeque<String>,
    pub(super) renderer: Box<dyn Renderer>,
    pub(super) client_tools: Option<ClientTools>,
    /// The kinds of tools that the user has allowed for good.
    pub(super) allowed: BTreeSet<ToolKind>,
    last_id: u64,
    session: String,
    /// A prompt is sent and not yet answered.
    in_turn: bool,
    /// The user has cancelled the turn.
    cancelled: bool,
    /// The titles of this turn's tool calls.
    pub(super) titles: Titles,
    /// How long this turn has waited for the user; its timeout is extended by it.
    pub(super) user_wait: Duration,
    /// A permission was refused without asking the user.
    pub(super) refused: bool,
}

impl Driver {
    pub(super) fn new(
        options: Options,
        agent: Agent,
        events: Receiver<Event>,
        input: UserInput,
        renderer: Box<dyn Renderer>,
        client_tools: Option<ClientTools>,
    ) -> Driver {
        Driver {
            options,
            agent,
            events,
            deferred: VecDeque::new(),
            input,
            user_lines: VecDeque::new(),
            renderer,
            client_tools,
            allowed: BTreeSet::new(),
            last_id: 0,
            session: String::new(),
            in_turn: false,
            cancelled: false,
            titles: Titles::default(),
            user_wait: Duration::ZERO,
            refused: false,
        }
    }

    pub(super) fn run(mut self) -> Result<Ended, Fault> {
        let stop = self.run_turns();
        let result = match stop {
            Ok(ended) | Err(Stop::Ended(ended)) => Ok(ended),
            Err(Stop::Fault(fault)) => Err(fault),
            Err(Stop::Closed) => Err(Fault::Failed(self.agent.why_closed())),
            Err(Stop::TimedOut) => Ok(Ended::TimedOut),
        };
        if let Some(client_tools) = &mut self.client_tools {
            client_tools.release_all();
        }
        let at_once = matches!(result, Ok(Ended::Interrupted | Ended::Signalled(_) | Ended::TimedOut));
        self.agent.close(at_once);
        result
    }

    fn run_turns(&mut self) -> Result<Ended, Stop> {
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
        let offered = self.client_tools.is_some();
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "fs": { "readTextFile": offered, "writeTextFile": offered }, "terminal": offered },
            "clientInfo": { "name": "stdio-bus", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") },
        });
        let waited = self.options.init_timeout;
        let until = Instant::now() + waited;
        let mut backoff = INITIALIZE_BACKOFF.into_iter();
        loop {
            let id = self.request("initialize", params.clone());
            let answer = self.await_answer(id, Some(until)).map_err(|stop| match stop {
                Stop::TimedOut => Stop::Fault(Fault::TimedOut { at: self.agent.name.clone(), waited }),
                stop => stop,
            })?;
            let error = match answer {
                Ok(result) if result["protocolVersion"] == 1 => return Ok(()),
                Ok(result) => {
                    let version = &result["protocolVersion"];
                    let words = format!("{} speaks ACP {version}, and not 1", self.agent.name);
                    return Err(Stop::Fault(Fault::Failed(words)));
                }
                Err(error) => error,
            };
            match backoff.next().filter(|_| is_transient(&error)) {
                Some(wait_until) => self.wait_until(Instant::now() + wait_until)?,
                None => {
                    let words = format!("{} refuses initialize: {}", self.agent.name, describe_error(&error));
                    return Err(Stop::Fault(Fault::Failed(words)));
                }
            }
        }
    }

    fn open_session(&mut self) -> Result<(), Stop> {
        let cwd = self.options.cwd.to_string_lossy().into_owned();
        let id = self.request("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
        let failed = |words: String| Err(Stop::Fault(Fault::Failed(words)));
        match self.await_answer(id, None)? {
            Ok(result) => match result["sessionId"].as_str() {
                Some(session) => self.session = session.to_owned(),
                None => return failed(format!("{} opens a session without a name", self.agent.name)),
            },
            Err(error) if error["code"] == -32000 => {
                let said = describe_error(&error);
                return failed(format!(
                    "{} wants you to log in first, with its own command: {said}",
                    self.agent.name
                ));
            }
            Err(error) => {
                return failed(format!("{} opens no session: {}", self.agent.name, describe_error(&error)));
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
            if let Some(line) = self.user_lines.pop_front() {
                if !line.trim().is_empty() {
                    return Ok(Some(line));
                }
                invited = false;
            }
            if !std::mem::replace(&mut invited, true) && self.options.attended {
                self.renderer.invite()?;
            }
            if !self.input.request_line() {
                self.end_prompt_line()?;
                return Ok(None);
            }
            let event = self.next_event(None)?;
            if let Err(stop) = self.on_event(event, None) {
                self.end_prompt_line()?;
                return Err(stop);
            }
        }
    }

    /// Ends the line of the prompt sign, so that the next output begins on its own line.
    fn end_prompt_line(&mut self) -> Result<(), Stop> {
        if self.options.attended {
            self.renderer.ask("\n")?;
        }
        Ok(())
    }

    fn turn(&mut self, prompt: &str) -> Result<Status, Stop> {
        self.renderer.turn_started()?;
        self.titles.clear();
        (self.in_turn, self.cancelled, self.user_wait) = (true, false, Duration::ZERO);
        let blocks = json!([{ "type": "text", "text": prompt }]);
        let id = self.request("session/prompt", json!({ "sessionId": self.session, "prompt": blocks }));
        let until = self.options.timeout.map(|timeout| Instant::now() + timeout);
        let answer = self.await_answer(id, until);
        if answer.is_ok() {
            self.drain_updates()?;
        }
        self.in_turn = false;
        let mut usage = Value::Null;
        let (status, remark) = match &answer {
            Ok(Ok(result)) => {
                usage = result["usage"].clone();
                meaning_of(result["stopReason"].as_str().unwrap_or_default())
            }
            // Some agents answer a cancelled prompt with an error.
            Ok(Err(_)) if self.cancelled => (Status::Cancelled, None),
            Ok(Err(error)) => (Status::Failed, Some(format!("the agent failed: {}", describe_error(error)))),
            Err(Stop::Closed) => (Status::Failed, Some(self.agent.why_closed())),
            Err(Stop::TimedOut) => (Status::Failed, Some("the turn took too long".to_owned())),
            Err(_) => (Status::Cancelled, None),
        };
        if let Some(remark) = remark {
            self.renderer.service(&remark)?;
        }
        self.renderer.turn_ended(status, &usage)?;
        match answer {
            // The renderer has already shown the reason.
            Err(Stop::Closed) => Err(Stop::Ended(Ended::Failed)),
            Err(Stop::TimedOut) => {
                // Lets the agent end what it has begun.
                self.cancel();
                let _ = self.await_answer(id, Some(Instant::now() + CANCEL_TIMEOUT));
                Err(Stop::TimedOut)
            }
            Err(stop) => Err(stop),
            Ok(_) => Ok(status),
        }
    }

    /// Handles events until the answer to the request `id` comes.
    fn await_answer(&mut self, id: u64, until: Option<Instant>) -> Result<Result<Value, Value>, Stop> {
        loop {
            let event = self.next_event(until.map(|until| until + self.user_wait))?;
            if let Some(answer) = self.on_event(event, Some(id))? {
                return Ok(answer);
            }
        }
    }

    /// Handles events until this time.
    fn wait_until(&mut self, until: Instant) -> Result<(), Stop> {
        loop {
            match self.next_event(Some(until)) {
                Ok(event) => drop(self.on_event(event, None)?),
                Err(Stop::TimedOut) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    fn drain_updates(&mut self) -> Result<(), Stop> {
        let end = Instant::now() + DRAIN_MAX;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            match self.next_event(Some(end.min(now + DRAIN_QUIET))) {
                // This turn is complete; only the next one needs the agent.
                Ok(Event::Closed) => {
                    self.deferred.push_front(Event::Closed);
                    return Ok(());
                }
                Ok(event) => drop(self.on_event(event, None)?),
                Err(Stop::TimedOut) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    pub(super) fn next_event(&mut self, until: Option<Instant>) -> Result<Event, Stop> {
        if let Some(event) = self.deferred.pop_front() {
            return Ok(event);
        }
        let Some(until) = until else { return self.events.recv().map_err(|_| Stop::Closed) };
        let left = until.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Stop::TimedOut,
            RecvTimeoutError::Disconnected => Stop::Closed,
        })
    }

    /// Handles one event. Returns `Some` if it is the answer to the request `id`.
    fn on_event(&mut self, event: Event, id: Option<u64>) -> Result<Option<Result<Value, Value>>, Stop> {
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
                    self.on_request(&message)?;
                } else if method == "session/update"
                    && message["params"]["sessionId"] == self.session.as_str()
                {
                    let update = &message["params"]["update"];
                    if ToolCall(update).id().is_some() {
                        self.titles.learn(&ToolCall(update));
                    }
                    self.renderer.update(update)?;
                }
            }
            Event::Closed => return Err(Stop::Closed),
            Event::UserLine(line) => {
                self.input.on_line(line.as_ref());
                self.user_lines.extend(line);
            }
            Event::Signal(SIGINT) if self.in_turn && !self.cancelled => self.cancel(),
            Event::Signal(SIGINT) => return Err(Stop::Ended(Ended::Interrupted)),
            Event::Signal(signal) => return Err(Stop::Ended(Ended::Signalled(signal))),
            Event::CommandExited => self.answer_finished_waits(),
        }
        Ok(None)
    }

    /// Asks the agent to end the turn.
    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
        let params = json!({ "sessionId": self.session });
        self.agent.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }));
    }

    /// Whether a request of the agent comes too late to bother the user with it.
    pub(super) fn is_turn_over(&self) -> bool {
        self.cancelled || !self.in_turn
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.agent.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }
}

/// The status that a stop reason stands for, and a remark for the user.
fn meaning_of(stop_reason: &str) -> (Status, Option<String>) {
    let remark = match stop_reason {
        "cancelled" => return (Status::Cancelled, None),
        "refusal" => "the agent refuses to go on",
        "max_tokens" => "the answer has reached the limit of tokens",
        "max_turn_requests" => "the turn has reached the limit of requests",
        _ => return (Status::Completed, None),
    };
    (Status::Completed, Some(remark.to_owned()))
}

/// Whether a later initialize may succeed: the agent, or the bus's worker, is not ready yet.
fn is_transient(error: &Value) -> bool {
    let of_bus =
        matches!(error["data"]["reason"].as_str(), Some("worker_lost" | "pool_down" | "busy" | "no_start"));
    of_bus || error["code"] == -32603
}

fn describe_error(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("an error without words");
    let data = &error["data"];
    match data["details"].as_str().or(data["message"].as_str()).or(data.as_str()) {
        Some(details) => format!("{message} ({details})"),
        None => message.to_owned(),
    }
}
