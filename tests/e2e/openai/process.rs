//! The agent's process without a bus: how it begins and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::KEY;
use super::server::{Exchange, Server};
use crate::harness::{BUS, PATIENCE, request};

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
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Running { child, stdin, stdout: BufReader::new(stdout) }
    }

    fn says(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it reads");
    }

    fn hears(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        serde_json::from_str(&line).expect("a message")
    }

    /// A session with a prompt that the server has and does not answer.
    fn prompts(&mut self, server: &Server) -> Exchange {
        self.says(&request(1, "session/new", json!({ "cwd": "/", "mcpServers": [] })));
        let session = self.hears()["result"]["sessionId"].clone();
        let prompt = json!([{ "type": "text", "text": "hi" }]);
        self.says(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
        server.is_asked()
    }

    /// Waits for its end: the last line of stdout, stderr, and whether the exit was clean.
    fn ends(self) -> (Value, String, bool) {
        let Running { mut child, stdin, mut stdout } = self;
        let began = Instant::now();
        let (mut rest, mut errors) = (String::new(), String::new());
        stdout.read_to_string(&mut rest).expect("UTF-8");
        child.stderr.take().unwrap().read_to_string(&mut errors).expect("UTF-8");
        let status = child.wait().expect("it is our child");
        drop(stdin);
        // Its own limit is half a second; the rest is for a busy machine.
        assert!(began.elapsed() < PATIENCE.min(Duration::from_secs(10)), "it took {:?}", began.elapsed());
        let last = rest.lines().last().map(|line| serde_json::from_str(line).expect("a message"));
        (last.unwrap_or_default(), errors, status.success())
    }
}

#[test]
fn sigterm_and_the_end_of_stdin_end_it_with_the_turn_answered() {
    for signal in [Some(Signal::SIGTERM), Some(Signal::SIGINT), None] {
        let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
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
                // A pipe of our own in its place, since the real one is closed.
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
fn a_client_that_does_not_read_does_not_keep_it() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut agent = Running::new(&server.url, folder.path());
    let exchange = agent.prompts(&server);
    exchange.begins();
    let flood = std::thread::spawn(move || {
        let text = "x".repeat(60_000);
        // More than all pipes and sockets between here and the client hold.
        (0..400).for_each(|_| exchange.delta(&json!({ "content": text })));
    });
    agent.hears();
    kill(Pid::from_raw(agent.child.id() as i32), Signal::SIGTERM).expect("it runs");
    let deadline = Instant::now() + PATIENCE;
    while agent.child.try_wait().expect("it is our child").is_none() {
        assert!(Instant::now() < deadline, "it stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    flood.join().unwrap();
}

#[test]
fn it_speaks_version_one_whatever_it_is_offered() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut agent = Running::new(&server.url, folder.path());
    for version in [0, 1, 2, 99, 65535] {
        agent.says(&request(version, "initialize", json!({ "protocolVersion": version })));
        let result = agent.hears()["result"].clone();
        assert_eq!((&result["protocolVersion"], &result["authMethods"]), (&json!(1), &json!([])));
        assert_eq!(result["agentInfo"]["name"], "openai-agent");
        let prompts = json!({ "image": true, "audio": false, "embeddedContext": true });
        assert_eq!(result["agentCapabilities"]["promptCapabilities"], prompts);
        assert_eq!(result["agentCapabilities"]["mcpCapabilities"], json!({ "http": false, "sse": false }));
    }
    agent.says(&request(1, "authenticate", json!({ "methodId": "anything" })));
    assert_eq!(agent.hears()["result"], json!({}));
    let _ = agent.child.kill();
    let _ = agent.child.wait();
}

#[test]
fn it_talks_without_initialize_and_says_what_is_no_message() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut agent = Running::new(&server.url, folder.path());
    agent.says("this is no JSON");
    assert_eq!(agent.hears()["error"]["code"], -32700);
    agent.says(&request("\"a\"", "session/prompt", json!({ "sessionId": "none", "prompt": [] })));
    let answer = agent.hears();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("a"), &json!(-32002)));
    assert_eq!(answer["error"]["message"], "Session not found: none");
    agent.prompts(&server).streams(&[json!({ "content": "x" })], "stop");
    let kinds: Vec<_> = (0..2).map(|_| agent.hears()["params"]["update"]["sessionUpdate"].clone()).collect();
    assert_eq!(kinds, ["session_info_update", "agent_message_chunk"]);
    assert_eq!(agent.hears()["result"]["stopReason"], "end_turn");
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1);
    let _ = agent.child.kill();
    let _ = agent.child.wait();
}
