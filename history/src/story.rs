//! What people read of a transcript: turns, words, tools, questions and usage, taken out of its messages.

use serde_json::Value;

use crate::entry::{AGENT, Entry, Event, What};

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
}

impl Part {
    /// When it was said.
    pub fn at(&self) -> &str {
        match self {
            Part::Words { at, .. }
            | Part::Thought { at, .. }
            | Part::Tool { at, .. }
            | Part::Question { at, .. }
            | Part::Note { at, .. } => at,
        }
    }

    /// The words that are searched for: what was said, and of tools their title, their input and the files, but not
    /// their output.
    pub fn words(&self) -> String {
        match self {
            Part::Words { text, .. } => text.clone(),
            Part::Thought { .. } | Part::Note { .. } => String::new(),
            Part::Tool { title, input, diffs, .. } => {
                let paths: Vec<&str> = diffs.iter().map(|(path, ..)| path.as_str()).collect();
                [title.as_str(), input.as_deref().unwrap_or_default(), &paths.join(" ")].join(" ")
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
                let blocks = params["prompt"].as_array().map_or(&[][..], Vec::as_slice);
                let text: Vec<String> =
                    blocks.iter().map(block_text).filter(|text| !text.is_empty()).collect();
                self.words(entry, &entry.by, text.join("\n"), false);
            }
            Some("session/update") => self.update(entry, &params["update"]),
            Some("session/request_permission" | "elicitation/create") => {
                let title = params["toolCall"]["title"].as_str().or(params["message"].as_str());
                let title = title.unwrap_or("a question").to_owned();
                let (at, id) = (entry.at.clone(), message["id"].to_string());
                self.parts.push(Part::Question { at, id, title, answer: None });
            }
            Some(_) => {}
            None => self.answer(entry, message),
        }
    }

    fn answer(&mut self, entry: &Entry, message: &Value) {
        let id = message["id"].to_string();
        let open = self.parts.iter_mut().rev().find_map(|part| match part {
            Part::Question { id: asked, answer, .. } if *asked == id && answer.is_none() => Some(answer),
            _ => None,
        });
        if let Some(answer) = open.filter(|_| entry.by != AGENT) {
            let outcome = &message["result"]["outcome"];
            let chosen = outcome["optionId"].as_str().or(outcome["outcome"].as_str());
            let chosen = chosen.or(message["result"]["action"].as_str()).unwrap_or("an error");
            *answer = Some((chosen.to_owned(), entry.by.clone()));
        } else if let Some(error) = message["error"]["message"].as_str() {
            self.parts.push(Part::Note { at: entry.at.clone(), text: format!("the turn failed: {error}") });
        } else if let Some(reason) = message["result"]["stopReason"].as_str()
            && reason != "end_turn"
        {
            self.parts.push(Part::Note { at: entry.at.clone(), text: format!("the turn ended: {reason}") });
        }
    }

    fn update(&mut self, entry: &Entry, update: &Value) {
        let text = || block_text(&update["content"]);
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "agent_message_chunk" => self.words(entry, AGENT, text(), true),
            "user_message_chunk" => self.words(entry, "user", text(), true),
            "agent_thought_chunk" => {
                if let Some(Part::Thought { text: before, .. }) = self.parts.last_mut() {
                    before.push_str(&text());
                } else {
                    self.parts.push(Part::Thought { at: entry.at.clone(), text: text() });
                }
            }
            "tool_call" | "tool_call_update" => self.tool(entry, update),
            "session_info_update" => {
                if let Some(title) = update["title"].as_str() {
                    self.title = Some(title.to_owned());
                }
            }
            _ => {}
        }
    }

    /// `goes_on`: what the same one said before and this are one text.
    fn words(&mut self, entry: &Entry, by: &str, text: String, goes_on: bool) {
        if by != AGENT && self.first_words.is_none() && !text.trim().is_empty() {
            self.first_words = Some(text.clone());
        }
        match self.parts.last_mut() {
            Some(Part::Words { by: before, text: said, .. }) if goes_on && *before == by => {
                said.push_str(&text);
            }
            _ => self.parts.push(Part::Words { at: entry.at.clone(), by: by.to_owned(), text }),
        }
    }

    fn tool(&mut self, entry: &Entry, update: &Value) {
        let id = update["toolCallId"].as_str().unwrap_or_default().to_owned();
        let known =
            self.parts.iter().rposition(|part| matches!(part, Part::Tool { id: known, .. } if *known == id));
        let at = known.unwrap_or_else(|| {
            let (at, title) = (entry.at.clone(), String::new());
            let (status, output) = (String::new(), String::new());
            self.parts.push(Part::Tool { at, id, title, status, input: None, output, diffs: Vec::new() });
            self.parts.len() - 1
        });
        let Part::Tool { title, status, input, output, diffs, .. } = &mut self.parts[at] else { return };
        if let Some(new) = update["title"].as_str() {
            *title = new.to_owned();
        }
        if let Some(new) = update["status"].as_str() {
            *status = new.to_owned();
        }
        match &update["rawInput"] {
            Value::Null => {}
            Value::String(text) => *input = Some(text.clone()),
            other => *input = Some(other.to_string()),
        }
        if let Some(content) = update["content"].as_array() {
            // What a tool says replaces what it said before.
            output.clear();
            diffs.clear();
            for item in content {
                if item["type"] == "diff" {
                    let field = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
                    diffs.push((field("path"), field("oldText"), field("newText")));
                } else {
                    output.push_str(&block_text(&item["content"]));
                }
            }
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
