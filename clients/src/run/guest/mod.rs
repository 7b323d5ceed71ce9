//! `run --attach`: joins a session of a running bus, to watch it or to take part in it.
//!
//! Unlike the driver of an own session it waits for nothing: turns of others, their prompts and questions of the agent
//! come at any time. At most one prompt of its own is under way.

mod hears;
mod questions;
mod says;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rpc::RpcError;
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::agent::Agent;
use super::completion::Commands;
use super::envelope::{ForProgram, Status};
use super::events::{Event, forward_signals};
use super::options::{Ended, Input, View};
use super::permission::Policy;
use super::renderer::Renderer;
use super::stop::{Stop, describe_error, rpc_error};
use super::tool_call::Titles;
use super::user_input::{Source, UserInput};
use crate::sessions;
use crate::status::{list, word};
use crate::{Fault, Signals, Target};

use questions::Question;
use says::OwnPrompt;

/// How long the bus may take to let us in.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Who has answered a question is told right after the question is withdrawn.
pub(super) const DECIDED_TIMEOUT: Duration = Duration::from_millis(100);
/// How many prompts of the user may wait here.
const MAX_SAID: usize = 1000;

pub struct AttachOptions {
    pub target: Target,
    /// The label or the id of the session.
    pub session: String,
    /// Takes part instead of only watching.
    pub control: bool,
    /// The first prompt.
    pub prompt: Option<String>,
    pub input: Input,
    /// Leaves after the first own turn.
    pub once: bool,
    pub policy: Policy,
    /// A user sits at the terminal, who can be asked.
    pub attended: bool,
    pub view: View,
    /// The file that keeps what was typed at the prompt.
    pub history: Option<PathBuf>,
}

struct Guest {
    options: AttachOptions,
    agent: Agent,
    events: Receiver<Event>,
    input: UserInput,
    /// What the agent offers behind a slash.
    commands: Commands,
    renderer: Box<dyn Renderer>,
    /// What this client calls itself on the bus.
    name: String,
    /// The id of the session. Empty until something was heard of it.
    session: String,
    /// Prompts that wait for the end of the own turn.
    said: VecDeque<Value>,
    /// How many prompts were sent.
    prompts: u64,
    own: Option<OwnPrompt>,
    /// A turn is shown.
    in_turn: bool,
    /// A prompt of somebody else that is not shown yet, and whose it is, once that is known.
    heard: String,
    by: Option<String>,
    titles: Titles,
    questions: VecDeque<Question>,
    last_question: u64,
    /// The title of a question that is withdrawn, until it is known who has answered it.
    withdrawn: Option<String>,
    /// The cursor stands behind a prompt sign or a question.
    invited: bool,
    lines_read: u64,
    failed: bool,
    refused: bool,
    interrupted: bool,
}

/// Returns when the user has left or the session is over.
pub fn attach(options: AttachOptions, signals: Signals) -> Result<Ended, Fault> {
    let renderer = super::renderer(options.view)
        .map_err(|error| Fault::Failed(format!("no random numbers: {error}")))?;
    let (events, received) = channel();
    forward_signals(signals, events.clone());
    let commands = Commands::default();
    let source = match (options.view, options.attended, options.input) {
        (View::Screen { colour }, true, _) => {
            let cwd = std::env::current_dir().unwrap_or_default();
            super::editor(colour, &options.history, &cwd, &commands)
        }
        (_, false, Input::Text) => Source::Whole,
        _ => Source::Lines,
    };
    let input = UserInput::new(events.clone(), source);
    let name = format!("stdio-bus run {}", std::process::id());
    let agent = Agent::join(&options.target, &name, events)?;
    let guest = Guest {
        options,
        agent,
        events: received,
        input,
        commands,
        renderer,
        name,
        session: String::new(),
        said: VecDeque::new(),
        prompts: 0,
        own: None,
        in_turn: false,
        heard: String::new(),
        by: None,
        titles: Titles::default(),
        questions: VecDeque::new(),
        last_question: 0,
        withdrawn: None,
        invited: false,
        lines_read: 0,
        failed: false,
        refused: false,
        interrupted: false,
    };
    guest.run()
}

impl Guest {
    fn run(mut self) -> Result<Ended, Fault> {
        let stop = self.join().and_then(|()| self.take_part());
        let result = self.agent.outcome(stop);
        // The turn goes on without this client, but who reads envelopes expects its end.
        if self.in_turn {
            let is_json = matches!(self.options.view, View::Json { .. });
            let status = if is_json { Status::Cancelled } else { Status::Completed };
            let _ = self.end_turn(status, None, &Value::Null);
        }
        let _ = self.take_back_invitation();
        if !self.session.is_empty() {
            self.agent.request("_bus/detach", json!({ "session": self.session }));
        }
        self.agent.close(true);
        result
    }

    /// What was said before comes first, then the answer.
    fn join(&mut self) -> Result<(), Stop> {
        let role = if self.options.control { "control" } else { "observe" };
        let id = self.agent.request("_bus/attach", json!({ "session": self.options.session, "role": role }));
        let until = Instant::now() + JOIN_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Message(message)) if message.get("method").is_none() && message["id"] == id => {
                    if message["error"].is_object() {
                        let error = rpc_error(&message["error"]);
                        return Err(Stop::Fault(self.why_not_joined(&error)));
                    }
                    return self.joined(&message["result"]);
                }
                Ok(event) => self.on_event(event)?,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Stop::Fault(Fault::TimedOut { at: "the bus".into(), waited: JOIN_TIMEOUT }));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Closed),
            }
        }
    }

    fn joined(&mut self, result: &Value) -> Result<(), Stop> {
        self.session = result["session"].as_str().unwrap_or_default().to_owned();
        let is_running = result["turn"] == "running";
        self.show_prompt()?;
        if self.in_turn && !is_running {
            self.end_turn(Status::Completed, None, &Value::Null)?;
        }
        let owner = match &result["owner"] {
            Value::Null => "whose owner has left".to_owned(),
            owner => format!("of {}", word(owner)),
        };
        let mut text = format!("attached to {} {owner}", word(&result["label"]));
        if result["truncated"] == true {
            text += ", whose beginning is no longer kept";
        }
        text += if is_running { "; a turn is running" } else { "" };
        text += if self.options.control { "" } else { "; you watch, Ctrl-C leaves" };
        self.note(&text)?;
        if self.options.input == Input::Json {
            self.renderer.for_program(ForProgram::Session {
                session_id: self.session.clone(),
                agent: Value::Null,
                model: None,
                models: Vec::new(),
                mode: None,
                modes: Vec::new(),
            })?;
        }
        // Who only watches is not asked, so it is told how much is.
        if !self.options.control
            && let Ok(sessions) = sessions::fetch(&self.options.target)
            && let Some(this) = list(&sessions).iter().find(|it| it["session"] == result["label"])
            && this["questions"].as_u64().is_some_and(|count| count > 0)
        {
            self.note(&format!("questions of the agent that are open: {}", this["questions"]))?;
        }
        Ok(())
    }

    fn why_not_joined(&self, error: &RpcError) -> Fault {
        let wanted = &self.options.session;
        let reason = error.data.as_ref().and_then(|data| data["reason"].as_str());
        if !reason.is_some_and(sessions::is_unknown) {
            return Fault::Failed(format!("cannot join {wanted}: {}", describe_error(error)));
        }
        let all = match sessions::fetch(&self.options.target) {
            Ok(all) => all,
            Err(fault) => return fault,
        };
        if list(&all).iter().any(|session| session["session"] == wanted.as_str()) {
            let why = "its pool does not share sessions (\"share\": false in bus.json)";
            return Fault::Failed(format!("{wanted} cannot be joined: {why}"));
        }
        sessions::no_such(&all, wanted)
    }

    fn take_part(&mut self) -> Result<Ended, Stop> {
        if let Some(prompt) = self.options.prompt.take() {
            self.take_typed(&prompt)?;
        }
        loop {
            self.say_next()?;
            if self.is_done() {
                return Ok(self.ended());
            }
            self.invite()?;
            if self.wants_line() {
                if self.may_edit() {
                    self.input.request_prompt()
                } else {
                    self.input.request_line()
                };
            }
            let event = match &self.withdrawn {
                None => self.events.recv().map_err(|_| Stop::Closed)?,
                Some(_) => match self.events.recv_timeout(DECIDED_TIMEOUT) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Disconnected) => return Err(Stop::Closed),
                    Err(RecvTimeoutError::Timeout) => {
                        self.tell_withdrawn(None)?;
                        continue;
                    }
                },
            };
            self.on_event(event)?;
        }
    }

    /// Whether nothing more can be said.
    fn is_done(&self) -> bool {
        let is_silent = self.options.once && self.prompts > 0 || self.input.is_over();
        self.options.control && self.own.is_none() && self.said.is_empty() && is_silent
            || self.interrupted && self.own.is_none() && !self.options.attended
    }

    fn ended(&self) -> Ended {
        if self.interrupted && !self.options.attended {
            Ended::Interrupted
        } else if self.failed {
            Ended::Failed
        } else if self.refused {
            Ended::Refused
        } else {
            Ended::Done
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), Stop> {
        match event {
            Event::Message(message) => self.on_message(message),
            Event::Closed => Err(Stop::Closed),
            Event::UserLine(line) => {
                self.input.on_line(line.as_ref());
                self.on_user_line(line)
            }
            Event::Signal(SIGINT) => self.interrupt(),
            Event::Signal(signal) => Err(Stop::Ended(Ended::Signalled(signal))),
            Event::CommandExited => Ok(()),
        }
    }

    fn notify(&self, method: &str, params: Value) {
        self.agent.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn note(&mut self, text: &str) -> Result<(), Stop> {
        self.take_back_invitation()?;
        Ok(self.renderer.note(text)?)
    }
}
