//! Drives the agent: initialize, one session, and turn after turn.
//!
//! It waits for one answer at a time and handles every other event meanwhile. Nothing that the agent sends
//! makes it panic, and every request of the agent is answered.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rpc::RpcError;
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::agent::Agent;
use super::bus_event::begins_turn_of_another;
use super::client_tools::{ClientTools, ToolKind};
use super::completion::Commands;
use super::envelope::{ForProgram, Status};
use super::events::Event;
use super::open_questions::Questions;
use super::options::{Ended, Input, Options};
use super::renderer::Renderer;
use super::starting::Starting;
use super::stop::{Stop, describe_error, last_words, meaning_of, rpc_error};
use super::tool_call::{Titles, ToolCall};
use super::user_input::UserInput;
use super::waiting::{Prompt, Said};
use crate::Fault;

/// Updates that come within this time after the answer, or after each other, still belong to the turn.
const DRAIN_QUIET: Duration = Duration::from_millis(100);
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long an agent may take to end a turn that has timed out.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long nothing may be shown until the prompt comes back.
const PROMPT_QUIET: Duration = Duration::from_secs(1);

/// The updates of a session that a terminal shows.
const SHOWN: [&str; 5] =
    ["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"];

/// How many prompts of a program may wait.
const MAX_SAID: usize = 1000;

/// What became of one event.
enum Step {
    /// It was the awaited answer.
    Answered(Result<Value, RpcError>),
    Continued,
}

pub(super) struct Driver {
    pub(super) options: Options,
    pub(super) agent: Agent,
    /// For the next connection to the bus.
    pub(super) sender: Sender<Event>,
    events: Receiver<Event>,
    /// Events that came while the user was asked.
    pub(super) deferred: VecDeque<Event>,
    pub(super) input: UserInput,
    /// What the agent offers behind a slash.
    pub(super) commands: Commands,
    /// A prompt is waited for.
    at_prompt: bool,
    /// When something was last shown while a prompt was waited for.
    disturbed: Option<Instant>,
    /// What the user or the program has said before it was needed.
    pub(super) said: VecDeque<Said>,
    /// How many lines of stdin were read.
    pub(super) lines_read: u64,
    /// The user sees that a prompt may be typed.
    pub(super) invited: bool,
    pub(super) renderer: Box<dyn Renderer>,
    pub(super) client_tools: Option<ClientTools>,
    /// The kinds of tools that the user has allowed for good.
    pub(super) allowed: BTreeSet<ToolKind>,
    /// The questions that the program has not answered.
    pub(super) questions: Questions,
    /// What the agent has said about itself in initialize.
    pub(super) agent_about: Value,
    /// The result of session/new.
    pub(super) opened: Value,
    pub(super) session: String,
    /// A prompt is sent and not yet answered.
    pub(super) in_turn: bool,
    /// The user has cancelled the turn.
    pub(super) cancelled: bool,
    /// A turn was cancelled by Ctrl-C.
    interrupted: bool,
    /// The titles of this turn's tool calls.
    pub(super) titles: Titles,
    /// How long this turn has waited for the user; its timeout is extended by it.
    pub(super) user_wait: Duration,
    /// A permission was refused without asking the user.
    pub(super) refused: bool,
    /// The agent has not opened the session yet, and somebody waits for it at a terminal.
    pub(super) starting: Option<Starting>,
    /// The agent tells what was said in the session before, and nobody wants to see it.
    pub(super) skips_history: bool,
    /// The prompt of somebody else whose author is not known yet.
    pub(super) heard: String,
}

impl Driver {
    pub(super) fn new(
        options: Options,
        agent: Agent,
        (sender, events): (Sender<Event>, Receiver<Event>),
        (input, commands): (UserInput, Commands),
        renderer: Box<dyn Renderer>,
        client_tools: Option<ClientTools>,
    ) -> Driver {
        Driver {
            options,
            agent,
            sender,
            events,
            deferred: VecDeque::new(),
            input,
            commands,
            at_prompt: false,
            disturbed: None,
            said: VecDeque::new(),
            lines_read: 0,
            invited: false,
            renderer,
            client_tools,
            allowed: BTreeSet::new(),
            questions: Questions::default(),
            agent_about: Value::Null,
            opened: Value::Null,
            session: String::new(),
            in_turn: false,
            cancelled: false,
            interrupted: false,
            titles: Titles::default(),
            user_wait: Duration::ZERO,
            refused: false,
            starting: None,
            skips_history: false,
            heard: String::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Ended, Fault> {
        let stop = self.run_turns();
        // The terminal is as it was when anything more is said.
        if self.input.is_editing() {
            self.input.withdraw();
            let _ = self.renderer.ask("\n");
        }
        let result = self.agent.outcome(stop);
        if let Some(client_tools) = &mut self.client_tools {
            client_tools.release_all();
        }
        let at_once = matches!(result, Ok(Ended::Interrupted | Ended::Signalled(_) | Ended::TimedOut));
        self.agent.close(at_once);
        result
    }

    fn run_turns(&mut self) -> Result<Ended, Stop> {
        if self.options.attended {
            self.starting = Some(Starting::new(&self.agent));
        }
        let opened = self.initialize().and_then(|()| self.open_session());
        if self.starting.take().is_some() {
            self.renderer.progress("")?;
        }
        opened?;
        if self.options.attended && !self.options.once {
            self.show_banner()?;
        }
        let mut failed = false;
        let mut turns = 0;
        while let Some(prompt) = self.next_prompt(turns)? {
            turns += 1;
            match self.turn(prompt)? {
                Status::Completed => {}
                Status::Failed => failed = true,
                Status::Cancelled if self.interrupted && !self.options.attended => {
                    return Ok(Ended::Interrupted);
                }
                Status::Cancelled => {}
            }
        }
        // Who opens a prompt at a terminal and leaves has done nothing wrong.
        Ok(if turns == 0 && !self.options.attended {
            Ended::NoPrompt
        } else if failed {
            Ended::Failed
        } else if self.refused {
            Ended::Refused
        } else if self.interrupted && self.options.once {
            Ended::Interrupted
        } else {
            Ended::Done
        })
    }

    pub(super) fn failed(&self, what: &str) -> Stop {
        Stop::Fault(Fault::Failed(format!("{} {what}", self.agent.name)))
    }

    fn next_prompt(&mut self, turns: u32) -> Result<Option<Prompt>, Stop> {
        if let Some(prompt) = self.options.prompt.take() {
            return self.first_prompt(&prompt).map(Some);
        }
        if self.options.once && turns > 0 {
            return Ok(None);
        }
        self.invited = false;
        self.at_prompt = true;
        let prompt = self.await_prompt();
        self.at_prompt = false;
        prompt
    }

    fn await_prompt(&mut self) -> Result<Option<Prompt>, Stop> {
        loop {
            // What is said now would be lost.
            if self.agent.is_behind_bus() && matches!(self.deferred.front(), Some(Event::Closed)) {
                self.deferred.pop_front();
                self.reconnect()?;
            }
            match self.said.pop_front() {
                Some(Said::Prompt(prompt)) => return Ok(Some(prompt)),
                Some(Said::Quit) => return Ok(None),
                Some(Said::Change { setting, wanted, line }) => {
                    match self.change_setting(setting, &wanted)? {
                        Err(why) if self.options.attended => self.renderer.note(&why)?,
                        Err(why) => self.renderer.for_program(ForProgram::Error { line, text: why })?,
                        Ok(_) if self.options.attended => {
                            self.renderer.note(&format!("{} {wanted}", setting.word()))?;
                        }
                        Ok(_) => {}
                    }
                    continue;
                }
                None => {}
            }
            // While somebody else's turn is shown, the sign of the prompt would stand in the middle of it.
            let quiet_at = self.disturbed.map(|at| at + PROMPT_QUIET).filter(|_| self.input.has_editor());
            let will_come = match quiet_at {
                Some(_) => self.input.request_line(),
                None => {
                    if !std::mem::replace(&mut self.invited, true) && self.options.attended {
                        self.renderer.invite()?;
                    }
                    self.input.request_prompt()
                }
            };
            if !will_come {
                return Ok(None);
            }
            match self.next_event(quiet_at) {
                Ok(Event::Closed) if self.agent.is_behind_bus() => self.reconnect()?,
                Ok(event) => self.on_other_event(event)?,
                Err(Stop::TimedOut) => self.disturbed = None,
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Makes room for something that is shown while a prompt is waited for.
    pub(super) fn make_room(&mut self) -> Result<(), Stop> {
        if !self.at_prompt {
            return Ok(());
        }
        if self.input.is_editing() {
            self.input.withdraw();
            self.renderer.take_back()?;
        }
        self.invited = false;
        self.disturbed = Some(Instant::now());
        Ok(())
    }

    fn turn(&mut self, prompt: Prompt) -> Result<Status, Stop> {
        self.renderer.turn_started()?;
        if prompt.cancelled {
            return self.end_turn(Status::Cancelled, None, &Value::Null);
        }
        self.titles.clear();
        self.in_turn = true;
        self.cancelled = false;
        self.user_wait = Duration::ZERO;
        let id = self
            .agent
            .request("session/prompt", json!({ "sessionId": self.session, "prompt": prompt.blocks }));
        let until = self.options.timeout.map(|timeout| Instant::now() + timeout);
        let answer = self.await_answer(id, until);
        if answer.is_ok() {
            self.drain_updates()?;
        }
        self.in_turn = false;
        self.withdraw_questions()?;
        match answer {
            Ok(Ok(result)) => {
                let (status, remark) = meaning_of(result["stopReason"].as_str().unwrap_or_default());
                self.end_turn(status, remark, &result["usage"])
            }
            // Some agents answer a cancelled prompt with an error.
            Ok(Err(_)) if self.cancelled => self.end_turn(Status::Cancelled, None, &Value::Null),
            Ok(Err(error)) => {
                self.renderer.service(&format!("the agent failed: {}", describe_error(&error)))?;
                for line in last_words(&error) {
                    self.renderer.service(&format!("| {line}"))?;
                }
                self.end_turn(Status::Failed, None, &Value::Null)
            }
            Err(Stop::Closed) => self.lose_turn(),
            Err(Stop::TimedOut) => {
                self.fail_turn("the turn took too long")?;
                // Lets the agent end what it has begun.
                self.cancel()?;
                let _ = self.await_answer(id, Some(Instant::now() + CANCEL_TIMEOUT));
                Err(Stop::TimedOut)
            }
            Err(stop) => {
                self.end_turn(Status::Cancelled, None, &Value::Null)?;
                Err(stop)
            }
        }
    }

    fn fail_turn(&mut self, why: &str) -> Result<Status, Stop> {
        self.end_turn(Status::Failed, Some(why), &Value::Null)
    }

    pub(super) fn end_turn(
        &mut self,
        status: Status,
        remark: Option<&str>,
        usage: &Value,
    ) -> Result<Status, Stop> {
        if let Some(remark) = remark {
            self.renderer.service(remark)?;
        }
        self.renderer.turn_ended(status, usage)?;
        Ok(status)
    }

    /// Handles events until the answer to the request `id` comes.
    pub(super) fn await_answer(
        &mut self,
        id: u64,
        until: Option<Instant>,
    ) -> Result<Result<Value, RpcError>, Stop> {
        loop {
            // Who waits for an answer to a question is not late.
            let until = until.filter(|_| self.questions.is_empty()).map(|until| until + self.user_wait);
            let event = self.next_event(until)?;
            if let Step::Answered(answer) = self.on_event(event, Some(id))? {
                return Ok(answer);
            }
        }
    }

    /// Handles events until this time.
    pub(super) fn wait_until(&mut self, until: Instant) -> Result<(), Stop> {
        loop {
            match self.next_event(Some(until)) {
                Ok(event) => {
                    self.on_event(event, None)?;
                }
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
                // What comes now is no longer said in this turn.
                Ok(Event::Message(message)) if begins_turn_of_another(&message) => {
                    self.deferred.push_front(Event::Message(message));
                    return Ok(());
                }
                Ok(event) => {
                    self.on_event(event, None)?;
                }
                Err(Stop::TimedOut) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    pub(super) fn next_event(&mut self, until: Option<Instant>) -> Result<Event, Stop> {
        if let Some(event) = self.deferred.pop_front() {
            return Ok(event);
        }
        // A program may cancel at any time. What it says beyond this many prompts waits in the pipe.
        if self.options.input == Input::Json && self.said.len() < MAX_SAID {
            self.input.request_line();
        }
        loop {
            let tick = self.starting.as_ref().map(Starting::next_tick);
            let Some(wake) = tick.into_iter().chain(until).min() else {
                return self.events.recv().map_err(|_| Stop::Closed);
            };
            match self.events.recv_timeout(wake.saturating_duration_since(Instant::now())) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Closed),
                Err(RecvTimeoutError::Timeout) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(Stop::TimedOut);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(starting) = &mut self.starting {
                        self.renderer.progress(&starting.tick())?;
                    }
                }
            }
        }
    }

    /// Handles one event while no answer is awaited.
    pub(super) fn on_other_event(&mut self, event: Event) -> Result<(), Stop> {
        self.on_event(event, None).map(|_| ())
    }

    /// Handles one event. `id` is the request whose answer is awaited.
    fn on_event(&mut self, event: Event, id: Option<u64>) -> Result<Step, Stop> {
        match event {
            Event::Message(message) => return self.on_message(message, id),
            Event::Closed => return Err(Stop::Closed),
            Event::UserLine(line) => {
                self.input.on_line(line.as_ref());
                self.on_user_line(line)?;
            }
            Event::Signal(SIGINT) if self.in_turn && !self.cancelled => self.interrupt()?,
            Event::Signal(SIGINT) => return Err(Stop::Ended(Ended::Interrupted)),
            Event::Signal(signal) => return Err(Stop::Ended(Ended::Signalled(signal))),
            Event::CommandExited => self.answer_finished_waits(),
        }
        Ok(Step::Continued)
    }

    fn on_message(&mut self, mut message: Value, id: Option<u64>) -> Result<Step, Stop> {
        let Some(method) = message["method"].as_str() else {
            if id.is_none_or(|id| message["id"] != id) {
                return Ok(Step::Continued);
            }
            return Ok(Step::Answered(match message["error"].take() {
                Value::Null => Ok(message["result"].take()),
                error => Err(rpc_error(&error)),
            }));
        };
        if message.get("id").is_some() {
            self.on_request(&message)?;
        } else if method == "session/update" && message["params"]["sessionId"] == self.session.as_str() {
            let update = message["params"]["update"].take();
            if self.skips_history && update["sessionUpdate"] != "available_commands_update" {
                return Ok(Step::Continued);
            }
            if ToolCall(&update).id().is_some() {
                self.titles.learn(&ToolCall(&update));
            }
            match update["sessionUpdate"].as_str() {
                Some("available_commands_update") => self.commands.learn(&update["availableCommands"]),
                Some("user_message_chunk") => self.hear_prompt(&update["content"])?,
                Some(kind) if SHOWN.contains(&kind) => {
                    self.show_heard(None)?;
                    self.make_room()?;
                }
                _ => {}
            }
            self.renderer.update(&update)?;
        } else if method == "_bus/session" {
            self.on_bus_event(&message)?;
        } else if method == "$/cancel_request" {
            self.withdraw_question(&message["params"]["requestId"])?;
        }
        Ok(Step::Continued)
    }

    /// Ctrl-C in a turn.
    pub(super) fn interrupt(&mut self) -> Result<(), Stop> {
        self.interrupted = true;
        self.cancel()
    }

    /// Asks the agent to end the turn.
    pub(super) fn cancel(&mut self) -> Result<(), Stop> {
        self.cancelled = true;
        let params = json!({ "sessionId": self.session });
        self.agent.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }));
        self.withdraw_questions()
    }

    /// Whether a request of the agent comes too late to bother the user with it.
    pub(super) fn is_turn_over(&self) -> bool {
        self.cancelled || !self.in_turn
    }
}
