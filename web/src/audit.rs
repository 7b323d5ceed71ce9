//! Writes down who has answered which question of an agent: a line of the log for each.
//!
//! A line names the kind of tool and the choice, and no text of the agent or of the user: those are in no log.

use std::borrow::Cow;
use std::collections::HashMap;

use log::info;
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::message::Message;

/// Questions beyond this are answered without details in the log.
const QUESTIONS_MAX: usize = 256;
/// Options beyond this are not named in the log.
const OPTIONS_MAX: usize = 32;
/// A longer id of a tool call is cut.
const TEXT_CHARS: usize = 64;

/// Who is at the other end of a connection, as the log names it.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) token: String,
    pub(crate) scope: crate::scope::Scope,
    pub(crate) from: String,
}

/// The questions that a connection has been asked and has not answered.
#[derive(Default)]
pub(crate) struct Questions {
    asked: HashMap<Box<str>, Question>,
}

struct Question {
    about: String,
    /// The id and the kind of each option.
    options: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked<'a> {
    #[serde(borrow)]
    tool_call: Option<ToolCall<'a>>,
    #[serde(borrow, default)]
    options: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolCall<'a> {
    #[serde(borrow)]
    tool_call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choice<'a> {
    #[serde(borrow)]
    option_id: Cow<'a, str>,
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    outcome: Option<&'a RawValue>,
    #[serde(borrow)]
    action: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow)]
    option_id: Option<Cow<'a, str>>,
}

impl Questions {
    /// Remembers a line for the client, if it is a question.
    pub(crate) fn note(&mut self, line: &str) {
        let is_question = |name: &str| memmem::find(line.as_bytes(), name.as_bytes()).is_some();
        if !is_question("/request_permission\"") && !is_question("elicitation/create\"") {
            return;
        }
        let Some(message) = Message::parse(line).filter(Message::is_request) else { return };
        let (Some(id), Some(method)) = (message.id, message.method.as_deref()) else { return };
        let is_one = method.ends_with("/request_permission") || method == "elicitation/create";
        if !is_one || self.asked.len() >= QUESTIONS_MAX {
            return;
        }
        let asked = message.params.and_then(|params| serde_json::from_str::<Asked<'_>>(params.get()).ok());
        let question = match asked {
            Some(Asked { tool_call, options }) => Question {
                about: describe(method, tool_call.as_ref()),
                options: options
                    .iter()
                    .take(OPTIONS_MAX)
                    .map(|one| (short(&one.option_id), short(one.kind.as_deref().unwrap_or("?"))))
                    .collect(),
            },
            None => Question { about: describe(method, None), options: Vec::new() },
        };
        self.asked.insert(id.get().into(), question);
    }

    /// Logs the answer of a client, if a question was asked under its id.
    pub(crate) fn log_answer(&mut self, message: &Message<'_>, who: &Who) {
        if let Some(line) = self.describe_answer(message) {
            let Who { token, scope, from } = who;
            info!(target: "audit", "token {token} ({scope}) from {from} answered {line}");
        }
    }

    fn describe_answer(&mut self, message: &Message<'_>) -> Option<String> {
        let question = self.asked.remove(message.id?.get())?;
        let answer = message.result.and_then(|result| serde_json::from_str::<Answer<'_>>(result.get()).ok());
        let choice = match answer {
            None => "an error".to_owned(),
            Some(Answer { action: Some(action), .. }) => short(&action),
            Some(Answer { outcome, .. }) => {
                match outcome.and_then(|outcome| serde_json::from_str::<Outcome<'_>>(outcome.get()).ok()) {
                    None => "something else".to_owned(),
                    Some(Outcome { option_id: Some(chosen), .. }) => {
                        let chosen = short(&chosen);
                        let kind =
                            question.options.iter().find(|(id, _)| *id == chosen).map(|(_, kind)| &**kind);
                        format!("{} (option {})", short(kind.unwrap_or("an unknown option")), short(&chosen))
                    }
                    Some(Outcome { outcome, .. }) => short(&outcome),
                }
            }
        };
        Some(format!("{}: {choice}", question.about))
    }
}

fn describe(method: &str, tool: Option<&ToolCall<'_>>) -> String {
    let id = tool.and_then(|tool| tool.tool_call_id.as_deref());
    match tool.and_then(|tool| tool.kind.as_deref()) {
        Some(kind) => format!("{method} for {} {}", short(kind), short(id.unwrap_or("?"))),
        None => format!("{method} for tool call {}", short(id.unwrap_or("?"))),
    }
}

/// Agents and clients choose these texts.
fn short(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: &str = r#"{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s",
        "toolCall":{"toolCallId":"call_1","kind":"execute","title":"rm -rf secret"},
        "options":[{"optionId":"a","name":"Yes","kind":"allow_once"},{"optionId":"b","name":"No"}]}}"#;

    fn answered(line: &str) -> Option<String> {
        let mut questions = Questions::default();
        questions.note(QUESTION);
        let answer = questions.describe_answer(&Message::parse(line).unwrap());
        if answer.is_some() {
            assert!(questions.describe_answer(&Message::parse(line).unwrap()).is_none(), "it is logged once");
        }
        answer
    }

    #[test]
    fn an_answer_is_described_without_a_word_of_what_was_said() {
        let selected = r#"{"id":7,"result":{"outcome":{"outcome":"selected","optionId":"a"}}}"#;
        let expected = "session/request_permission for execute call_1: allow_once (option a)";
        assert_eq!(answered(selected).as_deref(), Some(expected));
        let cancelled = answered(r#"{"id":7,"result":{"outcome":{"outcome":"cancelled"}}}"#).unwrap();
        assert!(cancelled.ends_with(": cancelled"), "{cancelled}");
        assert!(answered(r#"{"id":7,"error":{"code":1,"message":"x"}}"#).unwrap().ends_with(": an error"));
        assert!(answered(r#"{"id":7,"result":7}"#).unwrap().ends_with(": an error"));
        assert_eq!(answered(r#"{"id":8,"result":{}}"#), None);
    }

    #[test]
    fn other_messages_are_no_questions_and_their_number_has_a_bound() {
        let mut questions = Questions::default();
        questions.note(r#"{"id":1,"method":"fs/read_text_file","params":{"path":"elicitation/create\""}}"#);
        questions.note(r#"{"method":"elicitation/create","params":{}}"#);
        assert!(questions.asked.is_empty());
        for id in 0..2 * QUESTIONS_MAX {
            questions.note(&format!(r#"{{"id":{id},"method":"elicitation/create","params":{{}}}}"#));
        }
        assert_eq!(questions.asked.len(), QUESTIONS_MAX);
    }
}
