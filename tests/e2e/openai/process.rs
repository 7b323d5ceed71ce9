//! The agent's process without a bus: its start and its exit.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::KEY;
use super::server::{Exchange, Server};
use crate::harness::{BUS, PATIENCE, looks_again, request};

struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn new(url: &str, state: &std::path::Path) -> Running {
        let mut command = Command::new(BUS);
        command.args(["agent", "openai", "--state"]).arg(state).env_clear();
        command.env("OPENAI_BASE_URL", url).env("OPENAI_API_KEY", KEY).env("OPENAI_MAX_TOKENS", "many");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Running { child, stdin, stdout }
    }

    fn says(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it reads");
    }

    fn receives(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        serde_json::from_str(&line).expect("a message")
    }

    /// Opens a session and sends a prompt, which the server does not answer yet.
    fn prompts(&mut self, server: &Server) -> Exchange {
        self.says(&request(1, "session/new", json!({ "cwd": "/", "mcpServers": [] })));
        let session = self.receives()["result"]["sessionId"].clone();
        let prompt = json!([{ "type": "text", "text": "hi" }]);
        self.says(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
        server.is_asked()
    }

    /// Waits for the exit. Returns the last line of stdout, stderr, and whether the exit code is 0.
    fn ends(self) -> (Value, String, bool) {
        let Running { mut child, stdin, mut stdout } = self;
        let began = Instant::now();
        let mut rest = String::new();
        let mut errors = String::new();
        stdout.read_to_string(&mut rest).expect("UTF-8");
        child.stderr.take().unwrap().read_to_string(&mut errors).expect("UTF-8");
        let status = child.wait().expect("it is our child");
        drop(stdin);
        // The agent's own limit is half a second, but the machine may be busy.
        assert!(began.elapsed() < PATIENCE, "it took {:?}", began.elapsed());
        let last = rest.lines().last().map(|line| serde_json::from_str(line).expect("a message"));
        (last.unwrap_or_default(), errors, status.success())
    }
}

#[test]
fn at_sigterm_and_at_the_end_of_stdin_it_answers_the_turn_and_exits() {
    for signal in [Some(Signal::SIGTERM), Some(Signal::SIGINT), None] {
        let server = Server::start();
        let folder = tempfile::tempdir().unwrap();
        let mut agent = Running::new(&server.url, folder.path());
        let exchange = agent.prompts(&server);
        let (last, errors, is_clean) = match signal {
            Some(signal) => {
                kill(Pid::from_raw(agent.child.id() as i32), signal).expect("it runs");
                agent.ends()
            }
            None => {
                let Running { child, stdin, stdout } = agent;
                drop(stdin);
                // `Running` needs some pipe in place of the closed one.
                let other = Command::new("true").stdin(Stdio::piped()).spawn().unwrap().stdin.unwrap();
                Running { child, stdin: other, stdout }.ends()
            }
        };
        assert_eq!(
            (&last["id"], &last["result"]["stopReason"]),
            (&json!(2), &json!("cancelled")),
            "{signal:?}"
        );
        assert!(is_clean, "{signal:?}");
        exchange.sees_the_end();
        assert!(
            errors.contains("[openai-agent] Warning: OPENAI_MAX_TOKENS is not a whole number"),
            "{errors}"
        );
        assert!(!errors.contains(KEY));
    }
}

#[test]
fn a_client_that_does_not_read_does_not_delay_the_exit() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Running::new(&server.url, folder.path());
    let exchange = agent.prompts(&server);
    exchange.begins();
    let flood = std::thread::spawn(move || {
        let text = "x".repeat(60_000);
        // This is more than all pipes and sockets on the way can hold.
        (0..400).for_each(|_| exchange.delta(&json!({ "content": text })));
    });
    agent.receives();
    kill(Pid::from_raw(agent.child.id() as i32), Signal::SIGTERM).expect("it runs");
    let deadline = Instant::now() + PATIENCE;
    while agent.child.try_wait().expect("it is our child").is_none() {
        assert!(Instant::now() < deadline, "it stays");
        looks_again();
    }
    flood.join().unwrap();
}

#[test]
fn it_always_answers_with_protocol_version_one() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Running::new(&server.url, folder.path());
    for version in [0, 1, 2, 99, 65535] {
        agent.says(&request(version, "initialize", json!({ "protocolVersion": version })));
        let result = agent.receives()["result"].clone();
        assert_eq!((&result["protocolVersion"], &result["authMethods"]), (&json!(1), &json!([])));
        assert_eq!(result["agentInfo"]["name"], "openai-agent");
        let prompts = json!({ "image": true, "audio": false, "embeddedContext": true });
        assert_eq!(result["agentCapabilities"]["promptCapabilities"], prompts);
        assert_eq!(result["agentCapabilities"]["mcpCapabilities"], json!({ "http": true, "sse": true }));
    }
    agent.says(&request(1, "authenticate", json!({ "methodId": "anything" })));
    assert_eq!(agent.receives()["result"], json!({}));
    let _ = agent.child.kill();
    let _ = agent.child.wait();
}

#[test]
fn it_works_without_initialize_and_reports_malformed_lines() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Running::new(&server.url, folder.path());
    agent.says("this is no JSON");
    assert_eq!(agent.receives()["error"]["code"], -32700);
    agent.says(&request("\"a\"", "session/prompt", json!({ "sessionId": "none", "prompt": [] })));
    let answer = agent.receives();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("a"), &json!(-32002)));
    assert_eq!(answer["error"]["message"], "Session not found: none");
    agent.prompts(&server).streams(&[json!({ "content": "x" })], "stop");
    let kinds: Vec<_> =
        (0..2).map(|_| agent.receives()["params"]["update"]["sessionUpdate"].clone()).collect();
    assert_eq!(kinds, ["session_info_update", "agent_message_chunk"]);
    assert_eq!(agent.receives()["result"]["stopReason"], "end_turn");
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1);
    let _ = agent.child.kill();
    let _ = agent.child.wait();
}
