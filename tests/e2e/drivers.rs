//! Programs that have agents as a part of them, as others have written them: one in the manner of Happy, which embeds
//! `run --json --input json`, and one in the manner of Open Design, which embeds `run` or has `connect` as its agent.

use std::collections::{BTreeMap, BTreeSet};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bus, Program, one_pool, request};

/// The kinds of envelope that Happy's session protocol has.
const SESSION_KINDS: [&str; 8] =
    ["turn-start", "turn-end", "text", "service", "tool-call-start", "tool-call-end", "start", "stop"];

/// A runner in the manner of Happy: envelopes become messages of a session, which a phone shows, and what the user does
/// there becomes commands.
struct HappyLike {
    run: Program,
    /// The messages of the session, in the form that is sent.
    sent: Vec<Value>,
    /// What the agent said in the last turn.
    said: String,
}

impl HappyLike {
    fn start(args: &[&str]) -> HappyLike {
        let run = Program::plan(&[&["--json", "--input", "json"][..], args].concat()).with_pipes();
        HappyLike { run, sent: Vec::new(), said: String::new() }
    }

    fn writes(&mut self, command: Value) {
        self.run.types(&format!("{command}\n"));
    }

    /// A message of the user; returns how its turn ended. `decides` is the phone, which is shown a question and its
    /// options.
    fn user_says(&mut self, text: &str, decides: impl Fn(&Value) -> Value) -> String {
        self.writes(json!({ "type": "prompt", "text": text }));
        self.said.clear();
        loop {
            let envelope = self.run.envelope();
            let event = envelope["ev"].clone();
            match event["t"].as_str().expect("a kind") {
                "permission" => self.writes(decides(&event)),
                "permission-end" | "session" => {}
                kind => {
                    assert!(SESSION_KINDS.contains(&kind), "{envelope}");
                    if kind == "text" && event.get("thinking").is_none() {
                        self.said += event["text"].as_str().expect("a text");
                    }
                    self.sent.push(json!({ "role": "session", "content": envelope }));
                    if kind == "turn-end" {
                        return event["status"].as_str().expect("a status").to_owned();
                    }
                }
            }
        }
    }

    /// What every reader of the session relies on.
    fn checks_session(&self) {
        let mut ids = BTreeSet::new();
        let mut open_calls = BTreeMap::new();
        let (mut turn, mut last_time) = (None, 0);
        for message in &self.sent {
            let envelope = &message["content"];
            assert!(ids.insert(envelope["id"].to_string()), "an id twice: {envelope}");
            let time = envelope["time"].as_u64().expect("a time");
            assert!(time > last_time, "{envelope}");
            last_time = time;
            let event = &envelope["ev"];
            match event["t"].as_str().expect("a kind") {
                "turn-start" => assert_eq!(turn.replace(envelope["turn"].clone()), None, "a turn in a turn"),
                "turn-end" => {
                    assert_eq!(turn.take().as_ref(), Some(&envelope["turn"]));
                    assert!(open_calls.is_empty(), "calls that never end: {open_calls:?}");
                }
                "tool-call-start" => _ = open_calls.insert(event["call"].to_string(), event["title"].clone()),
                "tool-call-end" => assert!(open_calls.remove(&event["call"].to_string()).is_some()),
                _ => {}
            }
            assert!(turn.is_none() || turn.as_ref() == Some(&envelope["turn"]), "{envelope}");
        }
    }
}

/// The first option of this kind.
fn choose(question: &Value, kind: &str) -> Value {
    let options = question["options"].as_array().expect("options");
    let option = options.iter().find(|option| option["kind"] == kind).expect("an option of that kind");
    json!({ "type": "permission", "id": question["id"], "optionId": option["optionId"] })
}

fn never_asked(question: &Value) -> Value {
    panic!("nothing is asked here: {question}")
}

#[test]
fn a_runner_like_happys_has_a_whole_conversation() {
    let mut happy = HappyLike::start(&["echo"]);
    assert_eq!(happy.user_says("first line\nsecond line", never_asked), "completed");
    assert_eq!(happy.said, "first line\nsecond line");
    assert_eq!(happy.user_says("/think Let me see", never_asked), "completed");
    assert_eq!(happy.user_says("/tool", never_asked), "completed");
    assert_eq!(happy.user_says("/ask", |question| choose(question, "allow_once")), "completed");
    assert_eq!(happy.said, "You chose allow_once.");
    assert_eq!(happy.user_says("/ask", |question| choose(question, "reject_once")), "completed");
    assert_eq!(happy.said, "You chose reject_once.");
    // The user leaves the question open and stops the turn instead.
    assert_eq!(happy.user_says("/ask", |_| json!({ "type": "cancel" })), "cancelled");
    assert_eq!(happy.user_says("and on", never_asked), "completed");
    happy.checks_session();
    happy.run.hangs_up();
    assert_eq!(happy.run.ends(), 0);
}

#[test]
fn a_runner_like_happys_is_told_when_the_agent_dies() {
    let mut happy = HappyLike::start(&["echo"]);
    assert_eq!(happy.user_says("hello", never_asked), "completed");
    assert_eq!(happy.user_says("/die 7", never_asked), "failed");
    let why = &happy.sent[happy.sent.len() - 2]["content"]["ev"];
    assert_eq!(why["t"], "service");
    assert!(why["text"].as_str().unwrap().contains("exit status: 7"), "{why}");
    happy.checks_session();
    assert_eq!(happy.run.ends(), 1);
}

/// What Open Design's daemon shows of a run: one process a run, which it ends when the turn is over.
#[derive(Default)]
struct OpenDesignEvents {
    mode: Option<String>,
    ttft_ms: Option<u64>,
    text: String,
    thinking: String,
    tools: Vec<String>,
    status: String,
}

/// Runs one prompt as the daemon does, and approves whatever is asked.
fn open_design_run(args: &[&str], content: Value) -> (OpenDesignEvents, i32) {
    let mut run = Program::plan(&[&["--json", "--input", "json", "--stream", "--once"][..], args].concat())
        .with_pipes();
    run.types(&format!("{}\n", json!({ "type": "prompt", "content": content })));
    let mut events = OpenDesignEvents::default();
    while events.status.is_empty() {
        let envelope = run.envelope();
        let event = &envelope["ev"];
        let text = event["text"].as_str().unwrap_or_default();
        match event["t"].as_str().expect("a kind") {
            "session" => events.mode = event["mode"].as_str().map(str::to_owned),
            "text" if event["thinking"] == true => events.thinking += text,
            "text" => events.text += text,
            "tool-call-start" => events.tools.push(event["title"].as_str().expect("a title").to_owned()),
            "permission" => run.types(&format!("{}\n", choose(event, "allow_always"))),
            "turn-end" => {
                events.ttft_ms = envelope["ttft_ms"].as_u64();
                events.status = event["status"].as_str().expect("a status").to_owned();
            }
            _ => {}
        }
    }
    (events, run.ends())
}

#[test]
fn a_daemon_like_open_designs_runs_one_prompt_a_process() {
    let prompt = json!([{ "type": "text", "text": "# System\n\nBe brief.\n\n---\n\nMake a page." }]);
    let (events, code) = open_design_run(&["--mode", "shout", "echo"], prompt);
    assert_eq!((code, events.status.as_str(), events.mode.as_deref()), (0, "completed", Some("shout")));
    assert_eq!(events.text, "# SYSTEM\n\nBE BRIEF.\n\n---\n\nMAKE A PAGE.");
    assert!(events.ttft_ms.is_some());
    let (events, code) = open_design_run(&["echo"], json!([{ "type": "text", "text": "/ask" }]));
    assert_eq!((code, events.text.trim_end()), (0, "You chose allow_always."));
    assert_eq!(events.tools, ["Something that needs your permission"]);
    let (events, _) = open_design_run(&["echo"], json!([{ "type": "text", "text": "/think hm" }]));
    assert_eq!(events.thinking, "hm");
}

#[test]
fn a_daemon_like_open_designs_ends_a_run_by_a_signal_and_nothing_is_left() {
    let mut run = Program::plan(&["--json", "--input", "json", "--", "@puppet"]).with_pipes();
    run.types("{\"type\":\"prompt\",\"text\":\"hi\"}\n");
    let mut agent = run.puppet();
    agent.is_prompted();
    agent.has_a_child();
    run.signal(Signal::SIGTERM);
    assert_eq!(run.ends(), 128 + 15, "and `ends` looks for what is left");
}

/// The daemon speaks ACP itself, and `connect` is the agent that it starts.
#[test]
fn a_daemon_like_open_designs_cancels_by_a_request_through_connect_and_is_not_kept_waiting() {
    let bus = Bus::start(one_pool(1));
    let mut daemon = Program::plan(&["--tcp", bus.tcp(), "--pool", "p"]).command_is("connect").with_pipes();
    let mut agent = bus.puppet();
    let asks = |daemon: &mut Program, id: u32, method: &str, params: Value| {
        daemon.types(&format!("{}\n", request(id, method, params)));
    };
    asks(&mut daemon, 1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let asked = agent.is_asked("initialize");
    agent.answers(&asked, json!({ "protocolVersion": 1 }));
    assert_eq!(daemon.envelope()["id"], 1);
    asks(&mut daemon, 2, "session/new", json!({ "cwd": "/", "mcpServers": [] }));
    let asked = agent.is_asked("session/new");
    agent.answers(&asked, json!({ "sessionId": "s" }));
    let session = daemon.envelope()["result"]["sessionId"].clone();
    asks(&mut daemon, 3, "session/prompt", json!({ "sessionId": session, "prompt": [] }));
    let prompt = agent.is_asked("session/prompt");
    asks(&mut daemon, 4, "session/cancel", json!({ "sessionId": session }));
    daemon.hangs_up();
    assert!(agent.is_asked("session/cancel").get("id").is_none(), "agents know only the notification");
    assert_eq!(daemon.envelope()["id"], 4);
    agent.ends_turn(&prompt, "cancelled");
    assert_eq!(daemon.envelope()["result"]["stopReason"], "cancelled");
    assert_eq!(daemon.ends(), 0);
}
