//! One prompt's turn: the steps it has yet to take, and what it waits for.
//!
//! A turn takes steps until it must wait: for a moment, for an answer of the client, or because it has said
//! so much that others come first. It holds no clock and no table; `agent` calls it when what it waits for
//! has come.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Options;
use super::chunks::Chunks;
use super::command::{DOT_EVERY, in_mode, say, tool_update};
use super::record::{Mode, Split};
use super::writer::{Speaker, Writer};
use crate::acp::error::Caller;
use crate::acp::message::Outcome;

/// What one turn may say before it rests for others and for the next line. Shorter turns are done in one
/// go, however much is waiting to be written, so pipelined prompts of one session do not collide.
const TURN_BYTES: usize = 1 << 20;

pub(super) enum Step {
    Stream(Chunks),
    Think(String),
    Update(Value),
    /// Until `ends`, with a dot at `dot` and every second after it.
    Slow {
        ends: Instant,
        dot: Instant,
    },
    Ask(Question),
    Die(u8),
}

/// What the agent asks of the client, with all that is needed to go on from the answer.
pub(super) enum Question {
    Permission { call: String },
    File { path: String, mode: Mode, split: Split },
}

/// Why a turn rests.
pub(super) enum Pause {
    Done,
    Until(Instant),
    /// For the answer to the request with this id.
    Asked(u64),
    Die(u8),
}

pub(super) struct Turn {
    id: Box<RawValue>,
    top_session: Option<Box<RawValue>>,
    pub(super) session: String,
    steps: VecDeque<Step>,
    /// What was said as the agent's message, for the history.
    pub(super) said: String,
    /// Where `agent` put it to be woken, while it rests until a moment.
    pub(super) wake: Option<(Instant, u64)>,
    /// The request it waits for the answer of.
    asked: Option<(u64, Question)>,
}

impl Turn {
    pub(super) fn new(caller: Caller<'_>, session: String, steps: Vec<Step>) -> Turn {
        Turn {
            id: caller.id.to_owned(),
            top_session: caller.session.map(ToOwned::to_owned),
            session,
            steps: steps.into(),
            said: String::new(),
            wake: None,
            asked: None,
        }
    }

    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { id: &self.id, session: self.top_session.as_deref() }
    }

    /// The id of the request it waits for, if it waits for one.
    pub(super) fn asked(&self) -> Option<u64> {
        self.asked.as_ref().map(|(id, _)| *id)
    }

    pub(super) fn go(
        &mut self,
        writer: &mut Writer,
        next_id: &mut u64,
        delay: Duration,
        now: Instant,
    ) -> Pause {
        let enough = writer.bytes().len() + TURN_BYTES;
        while let Some(step) = self.steps.front_mut() {
            if writer.bytes().len() >= enough {
                return Pause::Until(now);
            }
            match step {
                Step::Stream(chunks) => {
                    if let Some(text) = chunks.next_chunk() {
                        writer.chunk(&self.session, Speaker::Agent, &text);
                        self.said.push_str(&text);
                    }
                    if !chunks.is_spent() {
                        if delay.is_zero() {
                            continue;
                        }
                        return Pause::Until(now + delay);
                    }
                }
                Step::Think(text) => writer.chunk(&self.session, Speaker::Thought, text),
                Step::Update(update) => writer.update(&self.session, update),
                Step::Slow { ends, .. } if *ends <= now => {}
                Step::Slow { ends, dot } => {
                    if *dot <= now {
                        writer.chunk(&self.session, Speaker::Agent, ".");
                        self.said.push('.');
                        *dot = now + DOT_EVERY;
                    }
                    return Pause::Until(*dot.min(ends));
                }
                Step::Ask(_) => return self.ask(writer, next_id),
                Step::Die(code) => return Pause::Die(*code),
            }
            self.steps.pop_front();
            if !delay.is_zero() && !self.steps.is_empty() {
                return Pause::Until(now + delay);
            }
        }
        Pause::Done
    }

    /// The client has answered what this turn waits for.
    pub(super) fn answered(&mut self, outcome: Outcome<'_>, options: &Options) {
        let (_, question) = self.asked.take().expect("only a turn that asked is told of an answer");
        let next = match question {
            Question::Permission { call } => chosen(&call, outcome),
            Question::File { path, mode, split } => vec![content(&path, outcome, mode, split, options)],
        };
        self.steps.extend(next);
    }

    fn ask(&mut self, writer: &mut Writer, next_id: &mut u64) -> Pause {
        let Some(Step::Ask(question)) = self.steps.pop_front() else {
            unreachable!("the step was just looked at");
        };
        let id = *next_id;
        *next_id += 1;
        match &question {
            Question::Permission { call } => {
                writer.request(id, "session/request_permission", &permission(&self.session, call));
            }
            Question::File { path, .. } => {
                writer.request(id, "fs/read_text_file", &json!({ "sessionId": self.session, "path": path }));
            }
        }
        self.asked = Some((id, question));
        Pause::Asked(id)
    }
}

fn permission(session: &str, call: &str) -> Value {
    let option = |kind: &str, name: &str| json!({ "optionId": kind, "name": name, "kind": kind });
    json!({
        "sessionId": session,
        "toolCall": { "toolCallId": call },
        "options": [
            option("allow_once", "Allow once"),
            option("allow_always", "Always allow"),
            option("reject_once", "Reject once"),
            option("reject_always", "Always reject"),
        ],
    })
}

#[derive(Deserialize)]
struct Permission {
    outcome: PermissionOutcome,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum PermissionOutcome {
    Cancelled,
    Selected { option_id: String },
}

fn chosen(call: &str, outcome: Outcome<'_>) -> Vec<Step> {
    let (status, text) = match outcome {
        Outcome::Error(error) => ("failed", format!("Nobody could be asked: {}\n", reason(error))),
        Outcome::Result(result) => match serde_json::from_str::<Permission>(result.get()) {
            Ok(Permission { outcome: PermissionOutcome::Selected { option_id } }) => {
                let status = if option_id.starts_with("allow") { "completed" } else { "failed" };
                (status, format!("You chose {option_id}.\n"))
            }
            Ok(Permission { outcome: PermissionOutcome::Cancelled }) => {
                ("failed", "You cancelled the question.\n".to_owned())
            }
            Err(error) => ("failed", format!("That was no answer to a permission request: {error}\n")),
        },
    };
    vec![tool_update(call, status, None), say(text)]
}

#[derive(Deserialize)]
struct FileContent {
    content: String,
}

fn content(path: &str, outcome: Outcome<'_>, mode: Mode, split: Split, options: &Options) -> Step {
    match outcome {
        Outcome::Error(error) => say(format!("{path} could not be read: {}\n", reason(error))),
        Outcome::Result(result) => match serde_json::from_str::<FileContent>(result.get()) {
            Ok(file) => Step::Stream(Chunks::new(in_mode(file.content, mode), options, split)),
            Err(error) => say(format!("That was no answer to fs/read_text_file: {error}\n")),
        },
    }
}

#[derive(Deserialize)]
struct ErrorMessage {
    message: String,
}

fn reason(error: &RawValue) -> String {
    serde_json::from_str(error.get())
        .map_or_else(|_| "the client gave no reason".to_owned(), |ErrorMessage { message }| message)
}
