//! Tests `agent cli` with shell scripts in place of the CLIs. The scripts print what those print, and misbehave.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, Bus, Client, PATIENCE, is_gone, notification, request, session_of, write_script};

const ID: &str = "0a0a0a0a-59e7-4350-8eaf-4835821efe65";

/// The script of a qwen whose turns succeed.
pub(crate) const TURN: &str = r#"cat >> $HOME/stdin; echo "$@" >> $HOME/args
echo '{"type":"system","subtype":"init","session_id":"0a0a0a0a-59e7-4350-8eaf-4835821efe65"}'
echo '{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"Hello."}]}}'
echo '{"type":"result","subtype":"success","session_id":"0a0a0a0a-59e7-4350-8eaf-4835821efe65","usage":{}}'"#;

/// Prints a tool call without a result.
const CALL: &str = concat!(
    r#"echo '{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"t","name":"Bash","#,
    r#""input":{"command":"wait"}}]}}'"#
);

fn path_of(folder: &Path) -> String {
    format!("{}:/usr/bin:/bin", folder.display())
}

/// An agent that runs without a bus.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    next_id: u32,
}

impl Agent {
    /// In a sandbox, so that root has all modes, too.
    pub(crate) fn start(folder: &Path, args: &[&str]) -> Agent {
        Agent::start_with(folder, args, &[("IS_SANDBOX", "1")])
    }

    pub(crate) fn start_with(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Agent {
        let mut command = Command::new(BUS);
        command.args(["agent", "cli", "--runtime"]).args(args).arg("--state").arg(folder.join("state"));
        command.env_clear().env("PATH", path_of(folder)).env("HOME", folder);
        command.envs(env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Agent { child, stdin, stdout, next_id: 1 }
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open"), "{line}").expect("it reads");
    }

    pub(crate) fn read(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"))
    }

    pub(crate) fn send_request(&mut self, method: &str, params: Value) -> u32 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&request(id, method, params));
        id
    }

    /// Returns the updates before the response, and the response.
    pub(crate) fn read_response(&mut self, id: u32) -> (Vec<Value>, Value) {
        let mut updates = Vec::new();
        loop {
            let message = self.read();
            if message["id"] == id {
                return (updates, message);
            }
            updates.push(message["params"]["update"].clone());
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        self.read_response(id).1
    }

    pub(crate) fn new_session(&mut self, cwd: &Path) -> String {
        session_of(&self.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }))["result"])
    }

    pub(crate) fn send_prompt(&mut self, session: &str, text: &str) -> u32 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.send_request("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    pub(crate) fn turn(&mut self, session: &str, text: &str) -> (Vec<Value>, Value) {
        let id = self.send_prompt(session, text);
        self.read_response(id)
    }

    /// Waits for an update of this kind.
    pub(crate) fn wait_for(&mut self, kind: &str) -> Value {
        loop {
            let update = self.read()["params"]["update"].clone();
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

/// Returns the text up to the response to a prompt, and the stop reason.
fn read_turn(client: &mut Client, id: u32) -> (String, Value) {
    let mut text = String::new();
    loop {
        let message = client.receives();
        if message["id"] == id {
            return (text, message["result"]["stopReason"].clone());
        }
        text += message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
    }
}

pub(crate) fn pid_in(path: &Path) -> u32 {
    let began = Instant::now();
    loop {
        if let Some(pid) = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()) {
            return pid;
        }
        assert!(began.elapsed() < PATIENCE, "no pid in {}", path.display());
        std::thread::yield_now();
    }
}

pub(crate) fn wait_until_gone(pid: u32) {
    let began = Instant::now();
    while !is_gone(pid) {
        assert!(began.elapsed() < PATIENCE, "{pid} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn the_second_turn_through_the_bus_resumes_the_session() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "qwen", TURN);
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
        assert_eq!(read_turn(&mut client, id), ("Hello.".to_owned(), json!("end_turn")));
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
fn a_pool_can_name_its_own_table_of_runtimes() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "mine", "echo \"$1 $2\"");
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
    assert_eq!(read_turn(&mut client, 3), ("say hi\n".to_owned(), json!("end_turn")));
}

#[test]
fn codex_can_run_one_process_for_each_prompt() {
    let folder = TempDir::new().expect("a folder");
    let script = r#"[ "$1" = exec ] || exit 0
        echo "$@" >> $HOME/args; cat > /dev/null
        echo '{"type":"thread.started","thread_id":"t1"}'
        echo '{"type":"item.completed","item":{"id":"0","type":"agent_message","text":"Hello."}}'
        echo '{"type":"turn.completed","usage":{}}'"#;
    write_script(folder.path(), "codex", script);
    let mut agent = Agent::start(folder.path(), &["codex-exec"]);
    let session = agent.new_session(folder.path());
    for _ in 0..2 {
        let (updates, answer) = agent.turn(&session, "go");
        assert_eq!(
            (texts(&updates).as_str(), &answer["result"]["stopReason"]),
            ("Hello.", &json!("end_turn"))
        );
    }
    let args = fs::read_to_string(folder.path().join("args")).expect("it ran");
    let [first, second] = args.lines().collect::<Vec<_>>()[..] else { panic!("two turns: {args}") };
    assert!(first.starts_with("exec --json") && first.ends_with(" -"), "{first}");
    assert!(second.ends_with(" resume t1 -"), "{second}");
}

#[test]
fn run_starts_the_adapter_for_a_cli_without_acp() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "codebuddy", TURN);
    let mut command = Command::new(BUS);
    command.args(["run", "--once", "codebuddy", "hi"]).stdin(Stdio::null());
    command.env_clear().env("PATH", path_of(folder.path())).env("HOME", folder.path());
    let out = command.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "Hello.\n", "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success());
}

#[test]
fn a_cancel_kills_a_cli_and_its_tools_that_ignore_signals() {
    let folder = TempDir::new().expect("a folder");
    let script = format!(
        "trap '' INT TERM\nsetsid sh -c \"trap '' INT TERM; echo \\$\\$ > $HOME/tool; while :; do sleep 60; done\" &\n\
         echo $$ > $HOME/leader\nwhile [ ! -s $HOME/tool ]; do :; done\n{CALL}\nwhile :; do sleep 60; done"
    );
    write_script(folder.path(), "qwen", &script);
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let session = agent.new_session(folder.path());
    let id = agent.send_prompt(&session, "go");
    agent.wait_for("tool_call");
    agent.send(&notification("session/cancel", json!({ "sessionId": session })));
    let (updates, answer) = agent.read_response(id);
    assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
    assert_eq!(updates.last().map(|last| &last["status"]), Some(&json!("failed")), "{updates:?}");
    for name in ["leader", "tool"] {
        assert!(is_gone(pid_in(&folder.path().join(name))), "the {name} still runs");
    }
    write_script(folder.path(), "qwen", TURN);
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
}

#[test]
fn a_cli_that_obeys_the_interrupt_ends_its_turn_itself() {
    let folder = TempDir::new().expect("a folder");
    let end =
        r#"echo '{"type":"result","subtype":"error_during_execution","terminal_reason":"aborted_tools"}'"#;
    write_script(
        folder.path(),
        "qwen",
        &format!("trap \"{}; exit 0\" INT\n{CALL}\nwhile :; do sleep 0.1; done", end.replace('"', "\\\"")),
    );
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let session = agent.new_session(folder.path());
    let id = agent.send_prompt(&session, "go");
    agent.wait_for("tool_call");
    agent.send(&notification("session/cancel", json!({ "sessionId": session })));
    assert_eq!(agent.read_response(id).1["result"]["stopReason"], "cancelled");
}

#[test]
fn an_agent_that_exits_takes_its_clis_along() {
    for signal in [Some(Signal::SIGTERM), None] {
        let folder = TempDir::new().expect("a folder");
        write_script(
            folder.path(),
            "qwen",
            &format!("trap '' INT TERM\necho $$ > $HOME/leader\n{CALL}\nwhile :; do sleep 60; done"),
        );
        let mut agent = Agent::start(folder.path(), &["qwen"]);
        let session = agent.new_session(folder.path());
        let id = agent.send_prompt(&session, "go");
        agent.wait_for("tool_call");
        match signal {
            Some(signal) => kill(Pid::from_raw(agent.child.id() as i32), signal).expect("it runs"),
            None => drop(agent.stdin.take()),
        }
        assert_eq!(agent.read_response(id).1["result"]["stopReason"], "cancelled");
        assert!(agent.child.wait().expect("ours").success());
        wait_until_gone(pid_in(&folder.path().join("leader")));
    }
}

#[test]
fn an_exit_without_a_result_is_an_error_whatever_the_exit_code() {
    let folder = TempDir::new().expect("a folder");
    for (script, expected) in [
        ("exit 0", "without a result"),
        ("echo garbage; echo '{'; echo 'what went wrong' >&2; exit 3", "what went wrong"),
        ("exec >&-; sleep 1000", "without a result"),
        ("kill -9 $$", "signal: 9"),
    ] {
        write_script(folder.path(), "qwen", script);
        let mut agent = Agent::start(folder.path(), &["qwen"]);
        let session = agent.new_session(folder.path());
        let (_, answer) = agent.turn(&session, "go");
        assert_eq!(answer["error"]["code"], -32603, "{script}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(expected)), "{answer}");
    }
}

#[test]
fn a_missing_logged_out_or_silent_cli_is_reported() {
    let folder = TempDir::new().expect("a folder");
    let mut agent = Agent::start(folder.path(), &["kimi", "--first-output-sec", "1"]);
    let session = agent.new_session(folder.path());
    let (_, missing) = agent.turn(&session, "go");
    let text = missing["error"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("npm install") && text.matches("Kimi Code").count() == 1, "{missing}");
    write_script(folder.path(), "kimi", "echo 'provider.auth_error: 401' >&2; exit 1");
    let (_, out) = agent.turn(&session, "go");
    assert_eq!(out["error"]["code"], -32000, "{out}");
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("kimi login")), "{out}");
    write_script(folder.path(), "kimi", "sleep 1000");
    let (_, silent) = agent.turn(&session, "go");
    assert!(
        silent["error"]["message"].as_str().is_some_and(|text| text.contains("said nothing")),
        "{silent}"
    );
}

#[test]
fn a_gemini_that_exits_with_41_is_logged_out_whatever_it_says() {
    let folder = TempDir::new().expect("a folder");
    let failed = r#"echo '{"type":"result","status":"error","error":{"message":"it hurts"}}'; exit 41"#;
    for (script, is_logged_out) in [
        ("echo 'Please set an Auth method' >&2; exit 41", true),
        ("echo 'Manual authorization is required' >&2; exit 41", true),
        ("exit 41", true),
        (failed, true),
        ("exit 42", false),
        (&failed.replace("41", "1"), false),
    ] {
        write_script(folder.path(), "gemini", script);
        let mut agent = Agent::start(folder.path(), &["gemini"]);
        let session = agent.new_session(folder.path());
        let (_, answer) = agent.turn(&session, "go");
        let (code, kind) = if is_logged_out { (-32000, "authentication") } else { (-32603, "runtime") };
        assert_eq!(answer["error"]["code"], code, "{script}: {answer}");
        assert_eq!(answer["error"]["data"]["errorKind"], kind, "{script}: {answer}");
    }
}

#[test]
fn the_next_agent_loads_a_session_and_resumes_it_in_the_cli() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "qwen", TURN);
    let session = {
        let mut agent = Agent::start(folder.path(), &["qwen"]);
        let session = agent.new_session(folder.path());
        agent.turn(&session, "remember me");
        let option = json!({ "sessionId": session, "configId": "mode", "type": "select", "value": "plan" });
        assert!(agent.call("session/set_config_option", option)["result"].is_object());
        session
    };
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let params = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    let id = agent.send_request("session/load", params);
    let (updates, answer) = agent.read_response(id);
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
fn bad_folders_and_bad_settings_are_refused() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "qwen", TURN);
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    for cwd in ["relative", "/no/such/folder", ""] {
        let refused = agent.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let session = agent.new_session(folder.path());
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
    write_script(folder.path(), "opencode", script);
    let mut agent = Agent::start(folder.path(), &["opencode"]);
    agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let busy = folder.path().join("busy");
    let began = Instant::now();
    while !busy.exists() {
        assert!(began.elapsed() < PATIENCE, "the models were not listed");
    }
    let session = agent.new_session(folder.path());
    assert_eq!(agent.turn(&session, "go").1["result"]["stopReason"], "end_turn");
}

#[test]
fn the_models_that_a_cli_lists_are_offered() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "opencode", "[ \"$1\" = models ] && printf 'a/one\\na/two\\n'");
    let mut agent = Agent::start(folder.path(), &["opencode", "--model", "a/two"]);
    let session = agent.new_session(folder.path());
    agent.send(&request(900, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })));
    let update = agent.wait_for("config_option_update");
    let model = &update["configOptions"][0];
    let options = model["options"].as_array().expect("options");
    let values: Vec<Value> = options.iter().map(|option| option["value"].clone()).collect();
    assert_eq!(json!(values), json!(["default", "a/one", "a/two"]));
    assert_eq!(model["currentValue"], "a/two");
    let option = json!({ "sessionId": session, "configId": "model", "type": "select", "value": "a/one" });
    let set = agent.call("session/set_config_option", option);
    assert_eq!(set["result"]["configOptions"][0]["currentValue"], "a/one");
}
