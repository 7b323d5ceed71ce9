//! Makes the steps of a turn from its prompt, which is a command or a text to echo.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::chunks::Chunks;
use super::options::Options;
use super::record::{Mode, Split};
use super::step::{DOT_INTERVAL, Question, Step, in_mode, say, tool_update};

/// A longer `/slow` is taken for a typing error.
const SLOW_MAX: Duration = Duration::from_secs(24 * 60 * 60);

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

/// What a turn needs to know of its session and of the agent.
pub(super) struct TurnContext<'a> {
    pub(super) options: &'a Options,
    pub(super) cwd: &'a str,
    pub(super) mode: Mode,
    pub(super) split: Split,
    /// Whether the client offers `fs/read_text_file`.
    pub(super) reads_files: bool,
    pub(super) turn: u64,
    pub(super) now_ms: u64,
    pub(super) now: Instant,
}

impl TurnContext<'_> {
    /// A tool call id that is new to the session, even if another process had it open before.
    fn call_id(&self) -> String {
        format!("call-{:x}-{}", self.now_ms, self.turn)
    }
}

/// `text` is all of the prompt; `command` is the part of it that begins with a slash.
pub(super) fn steps(text: String, command: Option<&str>, context: TurnContext<'_>) -> Vec<Step> {
    let Some(command) = command.and_then(|command| command.trim().strip_prefix('/')) else {
        return vec![stream(text, &context)];
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    match name {
        "ask" => ask(context.call_id()),
        "read" => read(rest, context),
        "think" => think(rest),
        "tool" => tool(&context.call_id()),
        "slow" => slow(rest, context.now),
        "die" => die(rest),
        "help" => vec![say(help())],
        _ => vec![stream(text, &context)],
    }
}

fn stream(text: String, context: &TurnContext<'_>) -> Step {
    Step::Stream(Chunks::new(in_mode(text, context.mode), context.options, context.split))
}

fn ask(call_id: String) -> Vec<Step> {
    let begun = tool_call(&call_id, "Something that needs your permission", "execute");
    vec![Step::Update(begun), Step::Ask(Question::Permission { call_id })]
}

fn read(path: &str, context: TurnContext<'_>) -> Vec<Step> {
    if path.is_empty() {
        return vec![say("Usage: /read PATH\n")];
    }
    if !context.reads_files {
        return vec![say("Your client does not offer fs/read_text_file, so there is nobody to ask.\n")];
    }
    // ACP has only absolute paths; `join` leaves those as they are.
    let path = Path::new(context.cwd).join(path).to_string_lossy().into_owned();
    vec![Step::Ask(Question::File { path, mode: context.mode, split: context.split })]
}

fn think(about: &str) -> Vec<Step> {
    let thought = if about.is_empty() { "What was I asked? To think." } else { about };
    vec![Step::Think(thought.to_owned()), say("I have thought about it.\n")]
}

fn tool(call_id: &str) -> Vec<Step> {
    vec![
        Step::Update(tool_call(call_id, "A tool call that does nothing", "other")),
        tool_update(call_id, "in_progress", None),
        tool_update(call_id, "completed", Some("Nothing was done.")),
        say("The tool has run.\n"),
    ]
}

fn slow(seconds: &str, now: Instant) -> Vec<Step> {
    let length = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match length {
        Some(length) if length <= SLOW_MAX => vec![
            Step::Slow { ends: now + length, dot: now + DOT_INTERVAL },
            say(format!("That took {} s.\n", length.as_secs_f64())),
        ],
        _ => vec![say("Usage: /slow SECONDS, up to a day\n")],
    }
}

fn die(code: &str) -> Vec<Step> {
    match code.parse() {
        Ok(code) => vec![Step::Exit(code)],
        Err(_) if code.is_empty() => vec![Step::Exit(1)],
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

fn tool_call(call_id: &str, title: &str, kind: &str) -> Value {
    json!({
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": title,
        "kind": kind,
        "status": "pending",
    })
}
