//! What a prompt asks for: a command, or its text back.
//!
//! A prompt becomes the steps of its turn; this file makes them and `turn` takes them.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Options;
use super::chunks::Chunks;
use super::record::{Mode, Split};
use super::turn::{Question, Step};

/// A turn that is to take longer is taken for a typing error.
const SLOW_MOST: Duration = Duration::from_secs(24 * 60 * 60);
pub(super) const DOT_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Help {
    pub(super) name: &'static str,
    pub(super) input: Option<&'static str>,
    pub(super) does: &'static str,
}

pub(super) const COMMANDS: &[Help] = &[
    Help { name: "ask", input: None, does: "asks you for a permission and says what you chose" },
    Help { name: "read", input: Some("PATH"), does: "asks your editor for a file and says what is in it" },
    Help { name: "think", input: Some("[TEXT]"), does: "thinks before it speaks" },
    Help { name: "tool", input: None, does: "makes a tool call: pending, in progress, completed" },
    Help { name: "slow", input: Some("SECONDS"), does: "takes that long, with a dot every second" },
    Help { name: "die", input: Some("[CODE]"), does: "exits at once, without an answer" },
    Help { name: "help", input: None, does: "lists these" },
];

/// What a turn must know of its session and of the world.
pub(super) struct Scene<'a> {
    pub(super) options: &'a Options,
    pub(super) cwd: &'a str,
    pub(super) mode: Mode,
    pub(super) split: Split,
    /// Whether the client lets its files be read.
    pub(super) reads_files: bool,
    /// The number of the turn, and the time it begins.
    pub(super) turn: u64,
    pub(super) now_ms: u64,
    pub(super) now: Instant,
}

impl Scene<'_> {
    /// A name for a tool call that the session has not had, not even with another process.
    fn call(&self) -> String {
        format!("call-{:x}-{}", self.now_ms, self.turn)
    }
}

/// `text` is all of the prompt; `command` is the part of it that begins with a slash.
pub(super) fn steps(text: String, command: Option<&str>, scene: Scene<'_>) -> Vec<Step> {
    let Some(command) = command.and_then(|command| command.trim().strip_prefix('/')) else {
        return vec![stream(text, &scene)];
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    match name {
        "ask" => ask(scene.call()),
        "read" => read(rest, scene),
        "think" => think(rest),
        "tool" => tool(&scene.call()),
        "slow" => slow(rest, scene.now),
        "die" => die(rest),
        "help" => vec![say(help())],
        _ => vec![stream(text, &scene)],
    }
}

pub(super) fn say(text: impl Into<String>) -> Step {
    Step::Stream(Chunks::whole(text))
}

pub(super) fn tool_update(call: &str, status: &str, text: Option<&str>) -> Step {
    let mut update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": call, "status": status });
    if let Some(text) = text {
        update["content"] = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
    }
    Step::Update(update)
}

pub(super) fn in_mode(text: String, mode: Mode) -> String {
    match mode {
        Mode::Plain => text,
        Mode::Shout => text.to_uppercase(),
    }
}

fn stream(text: String, scene: &Scene<'_>) -> Step {
    Step::Stream(Chunks::new(in_mode(text, scene.mode), scene.options, scene.split))
}

fn ask(call: String) -> Vec<Step> {
    let begun = tool_call(&call, "Something that needs your permission", "execute");
    vec![Step::Update(begun), Step::Ask(Question::Permission { call })]
}

fn read(path: &str, scene: Scene<'_>) -> Vec<Step> {
    if path.is_empty() {
        return vec![say("Usage: /read PATH\n")];
    }
    if !scene.reads_files {
        return vec![say("Your client does not offer fs/read_text_file, so there is nobody to ask.\n")];
    }
    // ACP knows only absolute paths; `join` leaves those as they are.
    let path = Path::new(scene.cwd).join(path).to_string_lossy().into_owned();
    vec![Step::Ask(Question::File { path, mode: scene.mode, split: scene.split })]
}

fn think(about: &str) -> Vec<Step> {
    let thought = if about.is_empty() { "What was I asked? To think." } else { about };
    vec![Step::Think(thought.to_owned()), say("I have thought about it.\n")]
}

fn tool(call: &str) -> Vec<Step> {
    vec![
        Step::Update(tool_call(call, "A tool call that does nothing", "other")),
        tool_update(call, "in_progress", None),
        tool_update(call, "completed", Some("Nothing was done.")),
        say("The tool has run.\n"),
    ]
}

fn slow(seconds: &str, now: Instant) -> Vec<Step> {
    let length = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match length {
        Some(length) if length <= SLOW_MOST => vec![
            Step::Slow { ends: now + length, dot: now + DOT_EVERY },
            say(format!("That took {} s.\n", length.as_secs_f64())),
        ],
        _ => vec![say("Usage: /slow SECONDS, up to a day\n")],
    }
}

fn die(code: &str) -> Vec<Step> {
    match code.parse() {
        Ok(code) => vec![Step::Die(code)],
        Err(_) if code.is_empty() => vec![Step::Die(1)],
        Err(_) => vec![say("Usage: /die [CODE], from 0 to 255\n")],
    }
}

fn help() -> String {
    let mut text = String::from("I say what you say. And:\n");
    for Help { name, input, does } in COMMANDS {
        let space = if input.is_some() { " " } else { "" };
        text += &format!("- `/{name}{space}{}` {does}\n", input.unwrap_or_default());
    }
    text
}

fn tool_call(call: &str, title: &str, kind: &str) -> Value {
    json!({
        "sessionUpdate": "tool_call",
        "toolCallId": call,
        "title": title,
        "kind": kind,
        "status": "pending",
    })
}
