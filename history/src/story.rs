//! What people read of a transcript: turns, words, tools, questions and notes, taken out of its messages.

#[cfg(test)]
mod tests;
mod told;

use std::collections::HashMap;

use serde_json::Value;

use crate::entry::{AGENT, Entry, Event, What};

/// Who says what an agent tells of its user.
const USER: &str = "user";
/// Who says what agents say to each other.
const BETWEEN: &str = "agent to agent";

/// One thing that was said or done, for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Somebody said this.
    Words {
        /// When.
        at: String,
        /// Who.
        by: String,
        /// The text.
        text: String,
    },
    /// The agent thought this.
    Thought {
        /// When.
        at: String,
        /// The text.
        text: String,
    },
    /// The agent used a tool.
    Tool {
        /// When it began.
        at: String,
        /// The id of the call.
        id: String,
        /// What it is called.
        title: String,
        /// How it ended, or how far it is.
        status: String,
        /// What was given to it.
        input: Option<String>,
        /// What it said.
        output: String,
        /// The files that it changed: path, old and new text.
        diffs: Vec<(String, String, String)>,
        /// The files that it works with, beside those of `diffs`.
        paths: Vec<String>,
    },
    /// The agent asked, and was answered so.
    Question {
        /// When.
        at: String,
        /// The id of the request.
        id: String,
        /// What it asked.
        title: String,
        /// What was chosen, and by whom.
        answer: Option<(String, String)>,
    },
    /// A line of this program: a gap, the end, an error.
    Note {
        /// When.
        at: String,
        /// The text.
        text: String,
    },
    /// The agent told this beside what it said: a plan, a notice, a summary.
    Aside {
        /// When it was told first.
        at: String,
        /// The text.
        text: String,
    },
}

impl Part {
    /// When it was said.
    pub fn at(&self) -> &str {
        match self {
            Part::Words { at, .. }
            | Part::Thought { at, .. }
            | Part::Tool { at, .. }
            | Part::Question { at, .. }
            | Part::Note { at, .. }
            | Part::Aside { at, .. } => at,
        }
    }

    /// The words that are searched for: what was said, and of tools their title, their input and the files, but not
    /// their output.
    pub fn words(&self) -> String {
        match self {
            Part::Words { text, .. } | Part::Aside { text, .. } => text.clone(),
            Part::Thought { .. } | Part::Note { .. } => String::new(),
            Part::Tool { title, input, diffs, paths, .. } => {
                let of_diffs = diffs.iter().map(|(path, ..)| path.as_str());
                let about = [title.as_str(), input.as_deref().unwrap_or_default()].into_iter();
                about.chain(of_diffs).chain(paths.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
            }
            Part::Question { title, .. } => title.clone(),
        }
    }
}

/// The parts of a transcript, and what is known of it as a whole.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// In the order in which they began.
    pub parts: Vec<Part>,
    /// What the agent calls the session.
    pub title: Option<String>,
    /// The first words of a person.
    pub first_words: Option<String>,
    /// When the last entry was written.
    pub last: Option<String>,
    /// How many prompts there are.
    pub prompts: u64,
    /// It was closed, and not opened again.
    pub is_closed: bool,
    /// Where the parts stand that later messages change, by their kind and id.
    places: HashMap<String, usize>,
}

/// Whose text it is.
#[derive(Clone, Copy)]
enum Voice<'a> {
    Says(&'a str),
    /// The agent thinks it.
    Thinks,
}

impl Voice<'_> {
    /// The text of a part, if it is of this voice.
    fn text_of(self, part: &mut Part) -> Option<&mut String> {
        match part {
            Part::Words { by, text, .. } => matches!(self, Voice::Says(own) if own == by).then_some(text),
            Part::Thought { text, .. } => matches!(self, Voice::Thinks).then_some(text),
            _ => None,
        }
    }

    fn place(self, id: &str) -> String {
        match self {
            Voice::Says(by) => format!("said {by} {id}"),
            Voice::Thinks => format!("thought {id}"),
        }
    }
}

impl Story {
    /// Adds an entry.
    pub fn tell(&mut self, entry: &Entry) {
        self.last = Some(entry.at.clone());
        let note = |text: String| Part::Note { at: entry.at.clone(), text };
        match &entry.what {
            What::Gap(gap) => {
                let lines =
                    gap.lines.map_or_else(|| "something".to_owned(), |lines| format!("{lines} lines"));
                self.parts.push(note(format!("{lines} missing here: {}", gap.why)));
            }
            What::Event(event) => self.is_closed = matches!(event, Event::Closed),
            What::Message(message) => {
                if let Ok(message) = serde_json::from_str::<Value>(message.get()) {
                    self.message(entry, &message);
                }
            }
        }
    }

    fn message(&mut self, entry: &Entry, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("session/prompt") => {
                self.prompts += 1;
                self.say(entry, Voice::Says(&entry.by), None, joined(&params["prompt"], "\n"));
            }
            // What is said to an agent while it works.
            Some("_session/steering" | "session/inject") => {
                let said = [&params["prompt"], &params["content"], &params["message"]];
                let said = said.into_iter().find(|said| !said.is_null()).unwrap_or(&Value::Null);
                self.say(entry, Voice::Says(&entry.by), None, joined(said, "\n"));
            }
            Some("session/set_mode") => self.setting(entry, message, "the mode", &params["modeId"]),
            Some("session/set_model") => self.setting(entry, message, "the model", &params["modelId"]),
            Some("session/set_config_option") => {
                let option = params["configId"].as_str().unwrap_or("an option");
                self.setting(entry, message, option, &params["value"]);
            }
            Some("session/update") => self.update(entry, &params["update"]),
            Some("session/request_permission" | "elicitation/create") => {
                let title = params["toolCall"]["title"].as_str().or(params["message"].as_str());
                let title = title.unwrap_or("a question").to_owned();
                let (at, id) = (entry.at.clone(), message["id"].to_string());
                let place = format!("question {id}");
                self.push_at(place, Part::Question { at, id, title, answer: None });
            }
            Some(_) => {}
            None => self.answer(entry, message),
        }
    }

    /// A client has set something.
    fn setting(&mut self, entry: &Entry, message: &Value, what: &str, value: &Value) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text = format!("{} set {what} to {value}", entry.by);
        self.push_at(format!("setting {}", message["id"]), Part::Note { at: entry.at.clone(), text });
    }

    fn answer(&mut self, entry: &Entry, message: &Value) {
        let id = message["id"].to_string();
        if entry.by != AGENT
            && let Some(Part::Question { answer: answer @ None, .. }) = self.at(&format!("question {id}"))
        {
            let outcome = &message["result"]["outcome"];
            let chosen = outcome["optionId"].as_str().or(outcome["outcome"].as_str());
            let chosen = chosen.or(message["result"]["action"].as_str()).unwrap_or("an error");
            *answer = Some((chosen.to_owned(), entry.by.clone()));
            return;
        }
        let error = message["error"]["message"].as_str();
        let setting = format!("setting {id}");
        if let Some(Part::Note { text, .. }) = self.at(&setting) {
            if let Some(error) = error {
                text.push_str(&format!(", which was refused: {error}"));
            }
            self.places.remove(&setting);
        } else if let Some(error) = error {
            self.note(entry, format!("the turn failed: {error}"));
        } else if let Some(reason) = message["result"]["stopReason"].as_str()
            && reason != "end_turn"
        {
            self.note(entry, format!("the turn ended: {reason}"));
        }
    }

    fn note(&mut self, entry: &Entry, text: String) {
        self.parts.push(Part::Note { at: entry.at.clone(), text });
    }

    /// The part that stands at this place.
    fn at(&mut self, place: &str) -> Option<&mut Part> {
        let at = *self.places.get(place)?;
        self.parts.get_mut(at)
    }

    fn push_at(&mut self, place: String, part: Part) {
        self.places.insert(place, self.parts.len());
        self.parts.push(part);
    }

    /// Somebody says a text of its own.
    fn say(&mut self, entry: &Entry, voice: Voice<'_>, id: Option<&str>, text: String) {
        let at = entry.at.clone();
        let part = match voice {
            Voice::Says(by) => {
                if by != AGENT && self.first_words.is_none() && !text.trim().is_empty() {
                    self.first_words = Some(text.clone());
                }
                Part::Words { at, by: by.to_owned(), text }
            }
            Voice::Thinks => Part::Thought { at, text },
        };
        match id {
            Some(id) => self.push_at(voice.place(id), part),
            None => self.parts.push(part),
        }
    }

    /// A piece of a text. Without an id it continues what the same voice said last.
    fn chunk(&mut self, entry: &Entry, voice: Voice<'_>, update: &Value) {
        let (id, more) = (update["messageId"].as_str(), block_text(&update["content"]));
        let before = match id {
            Some(id) => self.at(&voice.place(id)),
            None => self.parts.last_mut(),
        };
        match before.and_then(|part| voice.text_of(part)) {
            Some(text) => text.push_str(&more),
            None => self.say(entry, voice, id, more),
        }
    }

    /// A whole text, which replaces what was told of it before. Returns whether it is new.
    fn whole(&mut self, entry: &Entry, voice: Voice<'_>, update: &Value) -> bool {
        let id = update["messageId"].as_str();
        let text = update.get("content").map(|content| joined(content, ""));
        let before = id.and_then(|id| self.at(&voice.place(id))).and_then(|part| voice.text_of(part));
        match (before, text) {
            (Some(before), text) => {
                *before = text.unwrap_or_else(|| std::mem::take(before));
                false
            }
            (None, text) => {
                self.say(entry, voice, id, text.unwrap_or_default());
                true
            }
        }
    }

    fn update(&mut self, entry: &Entry, update: &Value) {
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "agent_message_chunk" => self.chunk(entry, Voice::Says(AGENT), update),
            "user_message_chunk" => self.chunk(entry, Voice::Says(USER), update),
            "agent_thought_chunk" => self.chunk(entry, Voice::Thinks, update),
            "agent_message" => _ = self.whole(entry, Voice::Says(AGENT), update),
            // Agents that tell it tell prompts themselves, and nothing else says that there was one.
            "user_message" => self.prompts += u64::from(self.whole(entry, Voice::Says(USER), update)),
            "agent_thought" => _ = self.whole(entry, Voice::Thinks, update),
            "session_message" => _ = self.whole(entry, Voice::Says(BETWEEN), update),
            "session_message_chunk" => self.chunk(entry, Voice::Says(BETWEEN), update),
            "tool_call" | "tool_call_update" | "tool_call_content_chunk" => self.tool(entry, update),
            "terminal_update" | "terminal_output_chunk" => self.terminal(entry, update),
            "session_info_update" => {
                if let Some(title) = update["title"].as_str() {
                    self.title = Some(title.to_owned());
                }
            }
            "state_update" => self.state(entry, update),
            other => self.aside(entry, other, update),
        }
    }
}

/// The text of a block of content.
fn block_text(block: &Value) -> String {
    match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        Some("resource_link") => format!("[{}]", block["uri"].as_str().unwrap_or_default()),
        Some("resource") => match block["resource"]["text"].as_str() {
            Some(text) => format!("[{}]\n{text}", block["resource"]["uri"].as_str().unwrap_or_default()),
            None => format!("[{}]", block["resource"]["uri"].as_str().unwrap_or_default()),
        },
        Some(kind @ ("image" | "audio")) => format!("[{kind}]"),
        _ => String::new(),
    }
}

/// The text of several blocks, or of one.
fn joined(content: &Value, between: &str) -> String {
    match content {
        Value::Array(blocks) => {
            let texts = blocks.iter().map(block_text).filter(|text| !text.is_empty());
            texts.collect::<Vec<_>>().join(between)
        }
        Value::String(text) => text.clone(),
        block => block_text(block),
    }
}
