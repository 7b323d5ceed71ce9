//! One prompt's turn: the steps that are left, and what it waits for.
//!
//! A turn takes steps until it has to wait: for a time, for a response of the client, or for other turns because it
//! has said much. It has no clock and no table; the agent calls it when the wait is over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpc::{OwnedReplyTo, ReplyTo};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::chunks::Chunks;
use super::options::Options;
use super::record::{Mode, Split};
use super::step::{DOT_INTERVAL, Question, Step, in_mode, say, tool_update};
use super::writer::{Speaker, Writer};

/// A turn writes this much before it lets other turns and the next line go first. Shorter turns finish at once, even
/// if much waits to be flushed, so that pipelined prompts of one session do not collide.
const BYTES_PER_RUN: usize = 1 << 20;

/// Why a turn stops running.
pub(super) enum Pause {
    Done,
    Until(Instant),
    /// It waits for the response to the request with this id.
    Asked(u64),
    Exit(u8),
}

pub(super) struct Turn {
    pub(super) reply_to: OwnedReplyTo,
    pub(super) session_id: String,
    steps: VecDeque<Step>,
    /// The agent's message so far, for the history.
    pub(super) said: String,
    /// The key of this turn in the agent's `wakes`, while it waits for a time.
    pub(super) wake: Option<(Instant, u64)>,
    /// The request whose response it waits for.
    asked: Option<(u64, Question)>,
}

impl Turn {
    pub(super) fn new(to: ReplyTo<'_>, session_id: String, steps: Vec<Step>) -> Turn {
        Turn {
            reply_to: to.to_owned(),
            session_id,
            steps: steps.into(),
            said: String::new(),
            wake: None,
            asked: None,
        }
    }

    /// The id of the request whose response it waits for.
    pub(super) fn asked(&self) -> Option<u64> {
        self.asked.as_ref().map(|(id, _)| *id)
    }

    pub(super) fn run(
        &mut self,
        writer: &mut Writer,
        next_request_id: &mut u64,
        delay: Duration,
        now: Instant,
    ) -> Pause {
        let bytes_max = writer.bytes().len() + BYTES_PER_RUN;
        while let Some(step) = self.steps.front_mut() {
            if writer.bytes().len() >= bytes_max {
                return Pause::Until(now);
            }
            match step {
                Step::Stream(chunks) => {
                    if let Some(text) = chunks.next_chunk() {
                        writer.chunk(&self.session_id, Speaker::Agent, &text);
                        self.said.push_str(&text);
                    }
                    if !chunks.is_finished() {
                        if delay.is_zero() {
                            continue;
                        }
                        return Pause::Until(now + delay);
                    }
                }
                Step::Think(text) => writer.chunk(&self.session_id, Speaker::Thought, text),
                Step::Update(update) => writer.update(&self.session_id, update),
                Step::Slow { ends, .. } if *ends <= now => {}
                Step::Slow { ends, dot } => {
                    if *dot <= now {
                        writer.chunk(&self.session_id, Speaker::Agent, ".");
                        self.said.push('.');
                        *dot = now + DOT_INTERVAL;
                    }
                    return Pause::Until(*dot.min(ends));
                }
                Step::Ask(_) => return self.ask(writer, next_request_id),
                Step::Exit(code) => return Pause::Exit(*code),
            }
            self.steps.pop_front();
            if !delay.is_zero() && !self.steps.is_empty() {
                return Pause::Until(now + delay);
            }
        }
        Pause::Done
    }

    /// Adds the steps that follow from the response of the client.
    pub(super) fn take_response(&mut self, outcome: Result<&RawValue, &RawValue>, options: &Options) {
        match self.asked.take().expect("the turn waits for a response").1 {
            Question::Permission { call_id } => self.steps.extend(after_permission(&call_id, outcome)),
            Question::File { path, mode, split } => {
                self.steps.push_back(after_file(&path, outcome, mode, split, options));
            }
        }
    }

    fn ask(&mut self, writer: &mut Writer, next_request_id: &mut u64) -> Pause {
        let Some(Step::Ask(question)) = self.steps.pop_front() else {
            unreachable!("the caller has seen this step");
        };
        let id = *next_request_id;
        *next_request_id += 1;
        match &question {
            Question::Permission { call_id } => {
                writer.request(id, "session/request_permission", &permission(&self.session_id, call_id));
            }
            Question::File { path, .. } => {
                let params = json!({ "sessionId": self.session_id, "path": path });
                writer.request(id, "fs/read_text_file", &params);
            }
        }
        self.asked = Some((id, question));
        Pause::Asked(id)
    }
}

fn permission(session_id: &str, call_id: &str) -> Value {
    let option = |kind: &str, name: &str| json!({ "optionId": kind, "name": name, "kind": kind });
    json!({
        "sessionId": session_id,
        "toolCall": { "toolCallId": call_id },
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

fn after_permission(call_id: &str, outcome: Result<&RawValue, &RawValue>) -> [Step; 2] {
    let (status, text) = match outcome {
        Err(error) => ("failed", format!("Nobody could be asked: {}\n", message_of(error))),
        Ok(result) => match serde_json::from_str::<Permission>(result.get()) {
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
    [tool_update(call_id, status, None), say(text)]
}

#[derive(Deserialize)]
struct FileContent {
    content: String,
}

fn after_file(
    path: &str,
    outcome: Result<&RawValue, &RawValue>,
    mode: Mode,
    split: Split,
    options: &Options,
) -> Step {
    match outcome {
        Err(error) => say(format!("{path} could not be read: {}\n", message_of(error))),
        Ok(result) => match serde_json::from_str::<FileContent>(result.get()) {
            Ok(file) => Step::Stream(Chunks::new(in_mode(file.content, mode), options, split)),
            Err(error) => say(format!("That was no answer to fs/read_text_file: {error}\n")),
        },
    }
}

#[derive(Deserialize)]
struct ErrorMessage {
    message: String,
}

fn message_of(error: &RawValue) -> String {
    serde_json::from_str(error.get())
        .map_or_else(|_| "the client gave no reason".to_owned(), |ErrorMessage { message }| message)
}
