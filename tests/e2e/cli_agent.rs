//! `agent cli` with stand-ins for the CLIs: shell scripts that print what those print, and misbehave.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, Bus, Client, PATIENCE, is_gone, notification, request, session_of, stands_in};

const ID: &str = "0a0a0a0a-59e7-4350-8eaf-4835821efe65";

/// What the stand-in for qwen prints for a good turn.
const TURN: &str = r#"cat >> $HOME/stdin; echo "$@" >> $HOME/args
echo '{"type":"system","subtype":"init","session_id":"0a0a0a0a-59e7-4350-8eaf-4835821efe65"}'
echo '{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"Hello."}]}}'
echo '{"type":"result","subtype":"success","session_id":"0a0a0a0a-59e7-4350-8eaf-4835821efe65","usage":{}}'"#;

/// A tool call that has begun.
const CALL: &str = concat!(
    r#"echo '{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"t","name":"Bash","#,
    r#""input":{"command":"wait"}}]}}'"#
);

fn path_of(folder: &Path) -> String {
    format!("{}:/usr/bin:/bin", folder.display())
}

/// The agent without a bus.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    next_id: u32,
}

impl Agent {
    pub(crate) fn start(folder: &Path, args: &[&str]) -> Agent {
        let mut command = Command::new(BUS);
        command.args(["agent", "cli", "--runtime"]).args(args).arg("--state").arg(folder.join("state"));
        command.env_clear().env("PATH", path_of(folder)).env("HOME", folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Agent { child, stdin, stdout, next_id: 1 }
    }

    pub(crate) fn says(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open"), "{line}").expect("it reads");
    }

    pub(crate) fn hears(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"))
    }

    pub(crate) fn asks(&mut self, method: &str, params: Value) -> u32 {
        self.next_id += 1;
        let id = self.next_id;
        self.says(&request(id, method, params));
        id
    }

    /// The updates up to the answer, and the answer.
    pub(crate) fn answer(&mut self, id: u32) -> (Vec<Value>, Value) {
        let mut updates = Vec::new();
        loop {
            let message = self.hears();
            if message["id"] == id {
                return (updates, message);
            }
            updates.push(message["params"]["update"].clone());
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.asks(method, params);
        self.answer(id).1
    }

    pub(crate) fn session(&mut self, cwd: &Path) -> String {
        session_of(&self.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }))["result"])
    }

    pub(crate) fn prompts(&mut self, session: &str, text: &str) -> u32 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.asks("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    pub(crate) fn turn(&mut self, session: &str, text: &str) -> (Vec<Value>, Value) {
        let id = self.prompts(session, text);
        self.answer(id)
    }

    /// Waits for an update of this kind.
    pub(crate) fn sees(&mut self, kind: &str) -> Value {
        loop {
            let update = self.hears()["params"]["update"].clone();
            if update["sessionUpdate"] == kind {
                return update;
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

pub(crate) fn texts(updates: &[Value]) -> String {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// What is said up to the answer of a prompt, and how it stopped.
fn heard(client: &mut Client, id: u32) -> (String, Value) {
    let mut said = String::new();
    loop {
        let message = client.hears();
        if message["id"] == id {
            return (said, message["result"]["stopReason"].clone());
        }
        said += message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
    }
}

pub(crate) fn pid_in(path: &Path) -> u32 {
    let began = Instant::now();
    loop {
        if let Some(pid) = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()) {
            return pid;
        }
        assert!(began.elapsed() < PATIENCE, "nobody wrote {}", path.display());
        std::thread::yield_now();
    }
}

pub(crate) fn goes_away(pid: u32) {
    let began = Instant::now();
    while !is_gone(pid) {
        assert!(began.elapsed() < PATIENCE, "{pid} lives on");
        std::thread::yield_now();
    }
}

#[test]
fn a_turn_through_the_bus_and_the_next_one_continues_it() {
    let folder = TempDir::new().expect("a folder");
    stands_in(folder.path(), "qwen", TURN);
    let env = json!({ "PATH": path_of(folder.path()), "HOME": folder.path() });
    let args = json!(["agent", "cli", "--runtime", "qwen", "--model", "big"]);
    let bus =
        Bus::start(json!({ "pools": [{ "id": "c", "command": "stdio-bus", "args": args, "env": env }] }));
    let mut client = bus.client();
    client.sends(&request(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })));
    assert_eq!(client.gets(1)["agentInfo"]["title"], "Qwen Code");
    client.sends(&request(2, "session/new", json!({ "cwd": folder.path(), "mcpServers": [] })));
    let session = session_of(&client.gets(2));
    for id in [3, 4] {
        let prompt = json!([{ "type": "text", "text": format!("prompt {id}\n--resume") }]);
        client.sends(&request(id, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
        assert_eq!(heard(&mut client, id), ("Hello.".to_owned(), json!("end_turn")));
    }
    let args = fs::read_to_string(folder.path().join("args")).expect("it ran");
    let [first, second] = args.lines().collect::<Vec<_>>()[..] else { panic!("two turns: {args}") };
    assert!(
        first.contains("--model big") && !first.contains("--resume") && !first.contains("prompt"),
        "{first}"
    );
    assert!(second.ends_with(&format!("--resume {ID}")), "{second}");
    let stdin = fs::read_to_string(folder.path().join("stdin")).expect("it read");
    assert_eq!(stdin, "prompt 3\n--resumeprompt 4\n--resume");
}

#[test]
fn a_pool_of_bus_json_can_name_rows_of_its_own() {
    let folder = TempDir::new().expect("a folder");
    stands_in(folder.path(), "mine", "echo \"$1 $2\"");
    let rows = json!([{ "id": "mine", "name": "Mine", "binaries": ["mine"],
        "turn": { "format": "plain", "prompt": "argument", "args": ["say", "{prompt}"] } }]);
    fs::write(folder.path().join("rows.json"), rows.to_string()).expect("a file");
    let env = json!({ "PATH": path_of(folder.path()), "HOME": folder.path(),
        "STDIO_BUS_RUNTIMES": folder.path().join("rows.json") });
    let args = ["agent", "cli", "--runtime", "mine"];
    let pool = json!({ "id": "mine", "command": "stdio-bus", "args": args, "env": env });
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut client = bus.client();
    client.sends(&request(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })));
    assert_eq!(client.gets(1)["agentInfo"]["title"], "Mine");
    client.sends(&request(2, "session/new", json!({ "cwd": folder.path(), "mcpServers": [] })));
    let session = session_of(&client.gets(2));
    let prompt = json!([{ "type": "text", "text": "hi" }]);
    client.sends(&request(3, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
    assert_eq!(heard(&mut client, 3), ("say hi\n".to_owned(), json!("end_turn")));
}

#[test]
fn a_cli_that_speaks_no_acp_is_talked_to_by_its_name() {
    let folder = TempDir::new().expect("a folder");
    stands_in(folder.path(), "codebuddy", TURN);
    let mut command = Command::new(BUS);
    command.args(["run", "--once", "codebuddy", "hi"]).stdin(Stdio::null());
    command.env_clear().env("PATH", path_of(folder.path())).env("HOME", folder.path());
    let out = command.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "Hello.\n", "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success());
}

#[test]
fn a_cancel_ends_everything_that_the_cli_started_whatever_it_ignores() {
    let folder = TempDir::new().expect("a folder");
    let script = format!(
        "trap '' INT TERM\nsetsid sh -c \"trap '' INT TERM; echo \\$\\$ > $HOME/tool; while :; do sleep 60; done\" &\n\
         echo $$ > $HOME/leader\nwhile [ ! -s $HOME/tool ]; do :; done\n{CALL}\nwhile :; do sleep 60; done"
    );
    stands_in(folder.path(), "qwen", &script);
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let session = agent.session(folder.path());
    let id = agent.prompts(&session, "go");
    agent.sees("tool_call");
    agent.says(&notification("session/cancel", json!({ "sessionId": session })));
    let (updates, answer) = agent.answer(id);
    assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
    assert_eq!(updates.last().map(|last| &last["status"]), Some(&json!("failed")), "{updates:?}");
    for name in ["leader", "tool"] {
        assert!(is_gone(pid_in(&folder.path().join(name))), "the {name} lives on");
    }
    stands_in(folder.path(), "qwen", TURN);
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
}

#[test]
fn an_interrupt_that_is_heeded_is_enough() {
    let folder = TempDir::new().expect("a folder");
    let end =
        r#"echo '{"type":"result","subtype":"error_during_execution","terminal_reason":"aborted_tools"}'"#;
    stands_in(
        folder.path(),
        "qwen",
        &format!("trap \"{}; exit 0\" INT\n{CALL}\nwhile :; do sleep 0.1; done", end.replace('"', "\\\"")),
    );
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let session = agent.session(folder.path());
    let id = agent.prompts(&session, "go");
    agent.sees("tool_call");
    agent.says(&notification("session/cancel", json!({ "sessionId": session })));
    assert_eq!(agent.answer(id).1["result"]["stopReason"], "cancelled");
}

#[test]
fn the_end_of_the_agent_is_the_end_of_its_clis() {
    for signal in [Some(Signal::SIGTERM), None] {
        let folder = TempDir::new().expect("a folder");
        stands_in(
            folder.path(),
            "qwen",
            &format!("trap '' INT TERM\necho $$ > $HOME/leader\n{CALL}\nwhile :; do sleep 60; done"),
        );
        let mut agent = Agent::start(folder.path(), &["qwen"]);
        let session = agent.session(folder.path());
        let id = agent.prompts(&session, "go");
        agent.sees("tool_call");
        match signal {
            Some(signal) => kill(Pid::from_raw(agent.child.id() as i32), signal).expect("it runs"),
            None => drop(agent.stdin.take()),
        }
        assert_eq!(agent.answer(id).1["result"]["stopReason"], "cancelled");
        assert!(agent.child.wait().expect("ours").success());
        goes_away(pid_in(&folder.path().join("leader")));
    }
}

#[test]
fn a_cli_that_ends_without_a_result_has_failed_whatever_its_exit_code() {
    let folder = TempDir::new().expect("a folder");
    for (script, expected) in [
        ("exit 0", "without a result"),
        ("echo garbage; echo '{'; echo 'what went wrong' >&2; exit 3", "what went wrong"),
        ("exec >&-; sleep 1000", "without a result"),
        ("kill -9 $$", "signal: 9"),
    ] {
        stands_in(folder.path(), "qwen", script);
        let mut agent = Agent::start(folder.path(), &["qwen"]);
        let session = agent.session(folder.path());
        let (_, answer) = agent.turn(&session, "go");
        assert_eq!(answer["error"]["code"], -32603, "{script}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(expected)), "{answer}");
    }
}

#[test]
fn one_that_is_missing_logged_out_or_silent_is_said_to_be() {
    let folder = TempDir::new().expect("a folder");
    let mut agent = Agent::start(folder.path(), &["kimi", "--first-output-sec", "1"]);
    let session = agent.session(folder.path());
    let (_, missing) = agent.turn(&session, "go");
    assert!(
        missing["error"]["message"].as_str().is_some_and(|text| text.contains("npm install")),
        "{missing}"
    );
    stands_in(folder.path(), "kimi", "echo 'provider.auth_error: 401' >&2; exit 1");
    let (_, out) = agent.turn(&session, "go");
    assert_eq!(out["error"]["code"], -32000, "{out}");
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("kimi login")), "{out}");
    stands_in(folder.path(), "kimi", "sleep 1000");
    let (_, silent) = agent.turn(&session, "go");
    assert!(
        silent["error"]["message"].as_str().is_some_and(|text| text.contains("said nothing")),
        "{silent}"
    );
}

#[test]
fn a_session_is_loaded_by_the_next_agent_and_goes_on_where_the_cli_was() {
    let folder = TempDir::new().expect("a folder");
    stands_in(folder.path(), "qwen", TURN);
    let session = {
        let mut agent = Agent::start(folder.path(), &["qwen"]);
        let session = agent.session(folder.path());
        agent.turn(&session, "remember me");
        let option = json!({ "sessionId": session, "configId": "mode", "type": "select", "value": "plan" });
        assert!(agent.call("session/set_config_option", option)["result"].is_object());
        session
    };
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let params = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    let id = agent.asks("session/load", params);
    let (updates, answer) = agent.answer(id);
    assert_eq!(updates[0]["content"]["text"], "remember me");
    assert_eq!(texts(&updates), "Hello.");
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan");
    agent.turn(&session, "go on");
    let args = fs::read_to_string(folder.path().join("args")).expect("it ran");
    assert!(args.lines().last().is_some_and(|line| line.contains("--approval-mode plan --resume")), "{args}");
    let listed = agent.call("session/list", json!({}));
    assert_eq!(listed["result"]["sessions"][0]["title"], "remember me");
}

#[test]
fn what_a_client_says_never_becomes_an_option_or_another_folder() {
    let folder = TempDir::new().expect("a folder");
    stands_in(folder.path(), "qwen", TURN);
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    for cwd in ["relative", "/no/such/folder", ""] {
        let refused = agent.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let session = agent.session(folder.path());
    for (option, value) in
        [("model", "--dangerously"), ("mode", "anything"), ("effort", "-c"), ("other", "x")]
    {
        let option = json!({ "sessionId": session, "configId": option, "type": "select", "value": value });
        assert_eq!(agent.call("session/set_config_option", option)["error"]["code"], -32602);
    }
}

#[test]
fn a_turn_does_not_start_beside_the_process_that_lists_the_models() {
    let folder = TempDir::new().expect("a folder");
    let script = r#"if [ "$1" = models ]; then touch $HOME/busy; sleep 1; rm $HOME/busy; exit 0; fi
        [ -e $HOME/busy ] && exit 1
        echo '{"type":"step_finish","sessionID":"ses_1","part":{"reason":"stop"}}'"#;
    stands_in(folder.path(), "opencode", script);
    let mut agent = Agent::start(folder.path(), &["opencode"]);
    agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let busy = folder.path().join("busy");
    let began = Instant::now();
    while !busy.exists() {
        assert!(began.elapsed() < PATIENCE, "it was not asked for its models");
    }
    let session = agent.session(folder.path());
    assert_eq!(agent.turn(&session, "go").1["result"]["stopReason"], "end_turn");
}

#[test]
fn the_models_that_a_cli_lists_are_offered() {
    let folder = TempDir::new().expect("a folder");
    stands_in(folder.path(), "opencode", "[ \"$1\" = models ] && printf 'a/one\\na/two\\n'");
    let mut agent = Agent::start(folder.path(), &["opencode", "--model", "a/two"]);
    let session = agent.session(folder.path());
    agent.says(&request(900, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })));
    let told = agent.sees("config_option_update");
    let model = &told["configOptions"][0];
    let options = model["options"].as_array().expect("options");
    let values: Vec<Value> = options.iter().map(|option| option["value"].clone()).collect();
    assert_eq!(json!(values), json!(["default", "a/one", "a/two"]));
    assert_eq!(model["currentValue"], "a/two");
    let option = json!({ "sessionId": session, "configId": "model", "type": "select", "value": "a/one" });
    let set = agent.call("session/set_config_option", option);
    assert_eq!(set["result"]["configOptions"][0]["currentValue"], "a/one");
}
