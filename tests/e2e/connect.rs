//! `connect`: the front door for IDEs, which outlives the bus behind it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    BUS, Client, Log, PATIENCE, Wire, initialize, marked, request, run, session_of, started_with, write_token,
};

/// A folder with a bus.json: the echo agent, which keeps its sessions, behind a socket.
struct Place(TempDir);

/// `connect`, and the IDE that started it.
struct Ide {
    client: Client,
    child: Child,
    stderr: ChildStderr,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::with_prefix("bus").expect("a temporary folder");
        let state = dir.path().join("echo");
        let socket = format!("unix://{}", dir.path().join("bus.sock").display());
        let echo =
            json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo", "--state", state] });
        let config = json!({ "listen": [socket], "pools": [echo] });
        fs::write(dir.path().join("bus.json"), config.to_string()).expect("a file");
        Place(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BUS);
        command.args(args).current_dir(self.path()).env_remove("STDIO_BUS_CONFIG");
        command.env("XDG_STATE_HOME", self.path()).env("E2E_MARK", self.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A bus that listens.
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
        let client = Client::new(Wire::pipes("ide", stdout, stdin, &Log::default()));
        Ide { client, child, stderr }
    }

    /// Every bus that runs here. By its command line: nobody but root may look into the environment of a bus.
    fn buses(&self) -> Vec<u32> {
        let of_it = format!("stdio-bus serve --config {}/bus.json", self.path().display());
        started_with(&of_it)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.buses() {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        let deadline = Instant::now() + PATIENCE;
        let left = || marked(&format!("E2E_MARK={}", self.path().display()));
        while !thread::panicking() && !left().is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:?}", left());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Ide {
    fn opens_session(&mut self) -> String {
        self.client.sends(&initialize(0, json!({})));
        assert_eq!(self.client.gets(0)["protocolVersion"], 1);
        self.client.sends(&request(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
        let session = session_of(&self.client.gets(1));
        self.client.is_told("session/update");
        session
    }

    fn prompts(&mut self, id: u32, session: &str, text: &str) {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        self.client.sends(&request(id, "session/prompt", prompt));
    }

    /// What the agent says until it answers this, or why it does not.
    fn hears_turn(&mut self, id: u32) -> Result<String, Value> {
        let mut said = String::new();
        loop {
            let message = self.client.hears();
            if message["id"] == id {
                let done = message["result"]["stopReason"] == "end_turn";
                return if done { Ok(said) } else { Err(message["error"].clone()) };
            }
            if message["params"]["update"]["sessionUpdate"] == "agent_message_chunk" {
                said += message["params"]["update"]["content"]["text"].as_str().expect("text");
            }
        }
    }

    /// The IDE closes its side; what `connect` said to the user, and how it ended.
    fn closes(mut self) -> (ExitStatus, String) {
        self.client.half_closes();
        self.client.is_closed();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("stderr");
        (self.child.wait().expect("it is our child"), said)
    }
}

fn ends(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
}

#[test]
fn ten_at_once_start_one_bus() {
    let place = Place::new();
    let mut ides: Vec<_> = (0..10).map(|_| place.ide(&["--start"])).collect();
    for ide in &mut ides {
        let answer = ide.client.asks(7, "any/method", json!({ "a": 1 }));
        assert_eq!(answer["echo"], json!({ "a": 1 }));
    }
    assert_eq!(place.buses().len(), 1);
    let log = fs::read_to_string(place.path().join("stdio-bus/bus.log")).expect("its log");
    assert_eq!(log.matches(r#"{"listening":"#).count(), 1, "{log}");
    for ide in ides {
        let (status, said) = ide.closes();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    }
    assert_eq!(place.buses().len(), 1, "it stays when they leave");
}

#[test]
fn a_killed_bus_is_started_again_and_the_session_goes_on() {
    let place = Place::new();
    let mut ide = place.ide(&["--start"]);
    let session = ide.opens_session();
    ide.prompts(2, &session, "one");
    assert_eq!(ide.hears_turn(2), Ok("one".to_owned()));
    let before = place.buses();
    kill(Pid::from_raw(before[0] as i32), Signal::SIGKILL).expect("it runs");
    ide.prompts(3, &session, "two");
    // It may have been on its way when the bus was killed: then nobody can say what became of it.
    match ide.hears_turn(3) {
        Ok(said) => assert_eq!(said, "two"),
        Err(error) => assert_eq!(error["data"]["reason"], "worker_lost"),
    }
    ide.prompts(4, &session, "three");
    assert_eq!(ide.hears_turn(4), Ok("three".to_owned()));
    assert_ne!(place.buses(), before);
    let (status, said) = ide.closes();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn the_ide_goes_on_when_the_bus_is_killed_and_comes_back() {
    let place = Place::new();
    let bus = place.serve();
    let mut ide = place.ide(&[]);
    let session = ide.opens_session();
    ide.prompts(2, &session, "one");
    assert_eq!(ide.hears_turn(2), Ok("one".to_owned()));
    ide.prompts(3, &session, "/slow 600");
    ide.client.is_told("session/update");
    ends(bus);
    let error = ide.hears_turn(3).expect_err("nobody ends this turn");
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32050), &json!("worker_lost")));
    // Said while there is no bus, answered by the next one; nothing is told twice.
    ide.prompts(4, &session, "two");
    let bus = place.serve();
    assert_eq!(ide.hears_turn(4), Ok("two".to_owned()));
    let (status, said) = ide.closes();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    ends(bus);
}

#[test]
fn the_token_is_shown_again_to_a_bus_that_comes_back_and_it_is_the_new_one() {
    let place = Place::new();
    let file = place.path().join("bus.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
    config["auth"] = json!({ "token_file": "token" });
    fs::write(&file, config.to_string()).expect("a file");
    write_token(&place.path().join("token"), "the-first-token-of-two");
    let bus = place.serve();
    let mut ide = place.ide(&[]);
    let session = ide.opens_session();
    ends(bus);
    write_token(&place.path().join("token"), "the-second-token-of-two");
    ide.prompts(4, &session, "two");
    let bus = place.serve();
    assert_eq!(ide.hears_turn(4), Ok("two".to_owned()));
    let (status, said) = ide.closes();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    ends(bus);
}

#[test]
fn no_bus_is_one_clear_line() {
    let place = Place::new();
    let at = place.path().join("bus.sock");
    let at = at.to_str().expect("UTF-8");
    for args in [&["connect"][..], &["connect", "--unix", at]] {
        let out = run(place.path(), args, "");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(69), 1), "{said}");
        assert!(said.contains(&format!("no bus answers at unix://{at}")) && out.stdout.is_empty(), "{said}");
    }
}

#[test]
fn a_pool_that_is_not_there_is_told_to_the_ide() {
    let place = Place::new();
    let bus = place.serve();
    let ide = &initialize(1, json!({}));
    let out = run(place.path(), &["connect", "--pool", "none"], &format!("{ide}\n"));
    let answer: Value = serde_json::from_slice(&out.stdout).expect("one answer");
    assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!(1), &json!("unknown_pool")));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains(r#"there is no pool "none" (it has echo)"#), "{said}");
    ends(bus);
}

#[test]
fn a_signal_ends_it_at_once_and_the_bus_closes_the_session() {
    let place = Place::new();
    let bus = place.serve();
    let mut ide = place.ide(&[]);
    let session = ide.opens_session();
    ide.prompts(2, &session, "/slow 600");
    ide.client.is_told("session/update");
    kill(Pid::from_raw(ide.child.id() as i32), Signal::SIGTERM).expect("it runs");
    assert_eq!(ide.child.wait().expect("it is our child").code(), Some(128 + 15));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let out = run(place.path(), &["status", "--json"], "");
        let status: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        if status["sessions"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
    }
    ends(bus);
}
