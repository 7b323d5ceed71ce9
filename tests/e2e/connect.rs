//! `connect`: an IDE keeps working while the bus behind it is killed and restarted.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    BUS, Client, Connection, Log, MARK, PATIENCE, initialize, looks_again, marked, request, run, session_of,
    started_with, write_token,
};

/// A folder with a bus.json: the echo agent with stored sessions, on a Unix socket.
struct BusFolder(TempDir);

/// `connect` and the IDE that has started it.
struct Ide {
    client: Client,
    child: Child,
    stderr: ChildStderr,
}

impl BusFolder {
    fn new() -> BusFolder {
        let dir = TempDir::with_prefix("bus").expect("a temporary folder");
        let state = dir.path().join("echo");
        let socket = format!("unix://{}", dir.path().join("bus.sock").display());
        let echo =
            json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo", "--state", state] });
        let config = json!({ "listen": [socket], "pools": [echo] });
        fs::write(dir.path().join("bus.json"), config.to_string()).expect("a file");
        BusFolder(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BUS);
        command.args(args).current_dir(self.path()).env_remove("STDIO_BUS_CONFIG");
        command.env("XDG_CONFIG_HOME", self.path()).env("XDG_STATE_HOME", self.path()).env(MARK, self.path());
        command.env("XDG_RUNTIME_DIR", self.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a bus and waits until it listens.
    fn serve(&self) -> Child {
        let mut child = self
            .command(&["serve", "--config", &self.path().join("bus.json").to_string_lossy()])
            .spawn()
            .expect("the bus starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.contains("listening"), "{line}");
        child
    }

    fn ide(&self, args: &[&str]) -> Ide {
        let mut child = self.command(&[&["connect"], args].concat()).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let stderr = child.stderr.take().expect("piped");
        let client = Client::new(Connection::pipes("ide", stdout, stdin, &Log::default()));
        Ide { client, child, stderr }
    }

    /// All buses of this folder, found by their command line: only root may read the environment of a bus.
    fn buses(&self) -> Vec<u32> {
        let command_line = format!("stdio-bus serve --config {}/bus.json", self.path().display());
        started_with(&command_line)
    }
}

impl Drop for BusFolder {
    fn drop(&mut self) {
        for pid in self.buses() {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        let deadline = Instant::now() + PATIENCE;
        let left = || marked(self.path());
        while !thread::panicking() && !left().is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:?}", left());
            looks_again();
        }
    }
}

impl Ide {
    fn opens_session(&mut self) -> String {
        self.client.sends(&initialize(0, json!({})));
        assert_eq!(self.client.gets(0)["protocolVersion"], 1);
        self.client.sends(&request(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
        let session = session_of(&self.client.gets(1));
        self.client.is_asked("session/update");
        session
    }

    fn prompts(&mut self, id: u32, session: &str, text: &str) {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        self.client.sends(&request(id, "session/prompt", prompt));
    }

    /// The text of the agent until it answers this request, or the error.
    fn hears_turn(&mut self, id: u32) -> Result<String, Value> {
        let mut text = String::new();
        loop {
            let message = self.client.receives();
            if message["id"] == id {
                let done = message["result"]["stopReason"] == "end_turn";
                return if done { Ok(text) } else { Err(message["error"].clone()) };
            }
            if message["params"]["update"]["sessionUpdate"] == "agent_message_chunk" {
                text += message["params"]["update"]["content"]["text"].as_str().expect("text");
            }
        }
    }

    /// Closes the IDE's side. Returns the exit status and stderr of `connect`.
    fn closes(mut self) -> (ExitStatus, String) {
        self.client.half_closes();
        self.client.is_closed();
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).expect("stderr");
        (self.child.wait().expect("it is our child"), text)
    }
}

fn kill_and_wait(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
}

#[test]
fn ten_clients_at_once_start_one_bus() {
    let folder = BusFolder::new();
    let mut ides: Vec<_> = (0..10).map(|_| folder.ide(&["--start"])).collect();
    for ide in &mut ides {
        let answer = ide.client.asks(7, "any/method", json!({ "a": 1 }));
        assert_eq!(answer["echo"], json!({ "a": 1 }));
    }
    assert_eq!(folder.buses().len(), 1);
    let log = fs::read_to_string(folder.path().join("stdio-bus/bus.log")).expect("its log");
    assert_eq!(log.matches(r#"{"listening":"#).count(), 1, "{log}");
    for ide in ides {
        let (status, text) = ide.closes();
        assert_eq!((status.code(), text.as_str()), (Some(0), ""));
    }
    assert_eq!(folder.buses().len(), 1, "it stays when they leave");
}

#[test]
fn a_killed_bus_is_started_again_and_the_session_goes_on() {
    let folder = BusFolder::new();
    let mut ide = folder.ide(&["--start"]);
    let session = ide.opens_session();
    ide.prompts(2, &session, "one");
    assert_eq!(ide.hears_turn(2), Ok("one".to_owned()));
    let before = folder.buses();
    kill(Pid::from_raw(before[0] as i32), Signal::SIGKILL).expect("it runs");
    ide.prompts(3, &session, "two");
    // If the prompt was on its way when the bus was killed, its fate is unknown.
    match ide.hears_turn(3) {
        Ok(text) => assert_eq!(text, "two"),
        Err(error) => assert_eq!(error["data"]["reason"], "worker_lost"),
    }
    ide.prompts(4, &session, "three");
    assert_eq!(ide.hears_turn(4), Ok("three".to_owned()));
    assert_ne!(folder.buses(), before);
    let (status, text) = ide.closes();
    assert_eq!((status.code(), text.as_str()), (Some(0), ""));
}

#[test]
fn a_session_that_is_lost_with_the_bus_is_told_as_lost() {
    let folder = BusFolder::new();
    // The agent keeps its sessions in memory only.
    let path = folder.path().join("bus.json");
    let config = fs::read_to_string(&path).expect("bus.json");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["pools"][0]["args"] = json!(["agent", "echo"]);
    fs::write(&path, config.to_string()).expect("a file");
    let bus = folder.serve();
    let mut ide = folder.ide(&[]);
    let session = ide.opens_session();
    kill_and_wait(bus);
    let bus = folder.serve();
    for id in [2, 3] {
        ide.prompts(id, &session, "one");
        let error = match ide.hears_turn(id).expect_err("the session is gone") {
            // The prompt may have been on its way when the bus was killed.
            error if error["data"]["reason"] == "worker_lost" => continue,
            error => error,
        };
        assert_eq!((&error["code"], &error["data"]["lost"]), (&json!(-32051), &json!(true)));
    }
    ide.client.sends("no message");
    assert_eq!(ide.client.receives()["error"]["code"], -32700);
    ide.client.sends(r#"{"id":1}"#);
    assert_eq!(ide.client.receives()["error"]["code"], -32600);
    assert_eq!(ide.closes().0.code(), Some(0));
    kill_and_wait(bus);
}

#[test]
fn the_ide_goes_on_when_the_bus_is_killed_and_comes_back() {
    let folder = BusFolder::new();
    let bus = folder.serve();
    let mut ide = folder.ide(&[]);
    let session = ide.opens_session();
    ide.prompts(2, &session, "one");
    assert_eq!(ide.hears_turn(2), Ok("one".to_owned()));
    ide.prompts(3, &session, "/slow 600");
    ide.client.is_asked("session/update");
    kill_and_wait(bus);
    let error = ide.hears_turn(3).expect_err("nobody ends this turn");
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32050), &json!("worker_lost")));
    // Sent while there is no bus and answered by the next one; no text comes twice.
    ide.prompts(4, &session, "two");
    let bus = folder.serve();
    assert_eq!(ide.hears_turn(4), Ok("two".to_owned()));
    let (status, text) = ide.closes();
    assert_eq!((status.code(), text.as_str()), (Some(0), ""));
    kill_and_wait(bus);
}

#[test]
fn a_bus_that_comes_back_gets_the_new_token() {
    let folder = BusFolder::new();
    let file = folder.path().join("bus.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
    config["auth"] = json!({ "token_file": "token" });
    fs::write(&file, config.to_string()).expect("a file");
    write_token(&folder.path().join("token"), "the-first-token-of-two");
    let bus = folder.serve();
    let mut ide = folder.ide(&[]);
    let session = ide.opens_session();
    kill_and_wait(bus);
    write_token(&folder.path().join("token"), "the-second-token-of-two");
    ide.prompts(4, &session, "two");
    let bus = folder.serve();
    assert_eq!(ide.hears_turn(4), Ok("two".to_owned()));
    let (status, text) = ide.closes();
    assert_eq!((status.code(), text.as_str()), (Some(0), ""));
    kill_and_wait(bus);
}

#[test]
fn run_goes_on_with_its_session_when_the_bus_comes_back() {
    let folder = BusFolder::new();
    let mut bus = folder.serve();
    let mut talk = folder.command(&["run", "--pool", "echo", "--input", "lines"]).spawn().expect("it starts");
    let log = Log::of(talk.stderr.take().expect("piped"));
    let mut stdin = talk.stdin.take().expect("piped");
    let mut stdout = BufReader::new(talk.stdout.take().expect("piped"));
    let mut says = |text: &str| stdin.write_all(format!("{text}\n").as_bytes()).expect("it reads");
    let mut hears = |text: &str| {
        let mut line = String::new();
        while line.trim_end() != text {
            line.clear();
            assert!(stdout.read_line(&mut line).expect("UTF-8") > 0, "it never said {text:?}");
        }
    };
    says("one");
    hears("one");
    kill_and_wait(bus);
    log.has("the bus has gone away");
    says("typed meanwhile");
    bus = folder.serve();
    log.has("the bus is back");
    hears("typed meanwhile");
    // The answer of a turn that the bus has taken with it is lost, and the next prompt has its turn.
    says("/slow 600");
    let calls = || {
        let out = run(folder.path(), &["status", "--json"], "");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")["calls"].as_u64()
    };
    let deadline = Instant::now() + PATIENCE;
    while calls() != Some(1) {
        assert!(Instant::now() < deadline, "the turn does not begin\n{}", log.text());
    }
    kill_and_wait(bus);
    log.has("in the middle of the turn, so its answer is lost");
    bus = folder.serve();
    says("three");
    hears("three");
    drop(stdin);
    assert_eq!(talk.wait().expect("it is our child").code(), Some(1), "a turn was lost\n{}", log.text());
    kill_and_wait(bus);
}

#[test]
fn a_killed_connect_that_said_bye_ends_its_turn_at_once() {
    let folder = BusFolder::new();
    let bus = folder.serve();
    let status = |key: &str| {
        let out = run(folder.path(), &["status", "--json"], "");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")[key].as_u64()
    };
    let becomes = |key: &str, count: u64| {
        let deadline = Instant::now() + PATIENCE;
        while status(key) != Some(count) {
            assert!(Instant::now() < deadline, "not {count} {key}, but {:?}", status(key));
            looks_again();
        }
    };
    // Without the option the session is kept for five minutes, so one that is gone was ended.
    for (args, goes_on) in [(&["--bye"][..], false), (&[], true)] {
        let mut ide = folder.ide(args);
        let session = ide.opens_session();
        ide.prompts(2, &session, "/slow 80000");
        becomes("calls", 1);
        kill_and_wait(ide.child);
        becomes("sessions", u64::from(goes_on));
    }
    kill_and_wait(bus);
}

#[test]
fn a_missing_bus_is_reported_in_one_line() {
    let folder = BusFolder::new();
    let at = folder.path().join("bus.sock");
    let at = at.to_str().expect("UTF-8");
    for args in [&["connect"][..], &["connect", "--unix", at]] {
        let out = run(folder.path(), args, "");
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), text.lines().count()), (Some(69), 1), "{text}");
        assert!(text.contains(&format!("no bus answers at unix://{at}")) && out.stdout.is_empty(), "{text}");
    }
}

#[test]
fn an_unknown_pool_is_reported_to_the_ide() {
    let folder = BusFolder::new();
    let bus = folder.serve();
    let ide = &initialize(1, json!({}));
    let out = run(folder.path(), &["connect", "--pool", "none"], &format!("{ide}\n"));
    let answer: Value = serde_json::from_slice(&out.stdout).expect("one answer");
    assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!(1), &json!("unknown_pool")));
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.contains(r#"there is no pool "none" (it has echo)"#), "{text}");
    kill_and_wait(bus);
}

#[test]
fn a_signal_ends_it_at_once_and_the_bus_closes_the_session() {
    let folder = BusFolder::new();
    let bus = folder.serve();
    let mut ide = folder.ide(&[]);
    let session = ide.opens_session();
    ide.prompts(2, &session, "/slow 600");
    ide.client.is_asked("session/update");
    kill(Pid::from_raw(ide.child.id() as i32), Signal::SIGTERM).expect("it runs");
    assert_eq!(ide.child.wait().expect("it is our child").code(), Some(128 + 15));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let out = run(folder.path(), &["status", "--json"], "");
        let status: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        if status["sessions"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
    }
    kill_and_wait(bus);
}
