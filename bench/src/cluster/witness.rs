//! A client behind `connect` that prompts without a pause, whatever happens to the cluster, and checks every line.
//!
//! Each prompt is a text of its own, of which no two pieces are alike, so it notices bytes that are missing, repeated,
//! out of order or somebody else's, and answers that come twice or never.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rpc::write;
use serde_json::{Value, json};

use crate::client::{Client, prompt};

/// An answer that takes longer has not come: more than the longest stop, and what is waited for a dead node after it.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a session may take to be good again when nothing is disturbed any more.
const HEALED: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// An error that a loss has caused.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub(super) edge: usize,
    pub(super) node: Option<String>,
    pub(super) reason: String,
    pub(super) asked: Instant,
    pub(super) at: Instant,
}

/// What one client, or all of them, have seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) asked: u64,
    pub(super) right: u64,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) losses: Vec<Loss>,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) first_fault: Option<String>,
    /// Prompts that were right in a session that had heard an error before.
    pub(super) survived: u64,
    pub(super) longest: Duration,
    /// It was answered well in the end.
    pub(super) healed: u64,
}

pub(super) struct Witness {
    number: usize,
    edge: usize,
    rng: Rng,
    client: Client,
    process: Child,
    next_id: u64,
    session: Option<Session>,
    seen: Seen,
}

struct Session {
    id: String,
    /// Texts of prompts that were answered with an error, and how far they have come: the rest may come later.
    failed: Vec<(String, usize)>,
    was_lost: bool,
}

impl Witness {
    pub(super) fn start(stdio_bus: &Path, socket: &Path, number: usize, edge: usize) -> io::Result<Witness> {
        let mut command = Command::new(stdio_bus);
        command.args(["connect", "--pool", "echo", "--unix"]).arg(socket);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut process = child?;
        let mut client = Client::of_child(&mut process);
        client.set_timeout(PATIENCE);
        let rng = Rng::with_seed(number as u64);
        let mut witness =
            Witness { number, edge, rng, client, process, next_id: 1, session: None, seen: Seen::default() };
        witness.client.initialize()?.map_err(io::Error::other)?;
        Ok(witness)
    }

    /// Prompts until then, and after that until it is answered well.
    pub(super) fn run(mut self, until: impl Fn() -> bool) -> Seen {
        let mut over = None;
        loop {
            let is_over = until();
            if is_over && over.is_none() {
                over = Some(Instant::now());
            }
            match self.round() {
                Ok(true) if is_over => {
                    self.seen.healed = 1;
                    break;
                }
                Ok(true) => {}
                // Whoever hears an error does not ask again at once.
                Ok(false) if over.is_some_and(|over| over.elapsed() > HEALED) => break,
                Ok(false) => thread::sleep(PAUSE),
                Err(error) => {
                    self.seen.lost += 1;
                    let number = self.number;
                    self.seen.note(|| format!("client {number}: {error}"));
                    break;
                }
            }
        }
        let _ = self.client.send(&write::notification("_bus/bye", ()));
        std::mem::take(&mut self.seen)
    }

    /// One request for the session and one about nothing. True: both were answered well.
    fn round(&mut self) -> io::Result<bool> {
        let plain = self.take_id();
        let token = format!("plain {} {plain} ", self.number);
        let mut lines = write::request(plain, "echo", &token);
        let id = self.take_id();
        let text = self.text();
        match &self.session {
            None => lines.extend(write::request(id, "session/new", json!({ "cwd": "/", "mcpServers": [] }))),
            Some(session) => lines.extend(write::request(id, "session/prompt", prompt(&session.id, &text))),
        }
        let asked = Instant::now();
        self.client.send(&lines)?;
        let (mut waiting, mut received, mut good) = (vec![plain, id], 0, true);
        while !waiting.is_empty() {
            let line = self.client.line()?.to_vec();
            let Ok(message) = serde_json::from_slice::<Value>(&line) else {
                self.is_wrong("no JSON", &line);
                continue;
            };
            if message.get("method").is_some() {
                if let Err(why) = self.hears(&message, &text, &mut received) {
                    self.is_wrong(why, &line);
                }
                continue;
            }
            let answered = message["id"].as_u64().unwrap_or_default();
            if !waiting.contains(&answered) {
                self.is_wrong("answered twice, or never asked", &line);
                continue;
            }
            waiting.retain(|waits| *waits != answered);
            self.seen.longest = self.seen.longest.max(asked.elapsed());
            if message.get("error").is_some() {
                good = false;
                self.fails(&message["error"], asked, (answered == id).then_some((&*text, received)));
            } else if answered == plain {
                if memchr::memmem::find(&line, token.as_bytes()).is_none() {
                    self.is_wrong("the answer to another request", &line);
                }
                self.seen.right += 1;
            } else if let Err(why) = self.is_answered(&message["result"], &text, received) {
                self.is_wrong(why, &line);
            }
        }
        Ok(good)
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.seen.asked += 1;
        self.next_id
    }

    fn text(&mut self) -> String {
        let words = match self.rng.u8(..20) {
            0 => 20_000,
            1..4 => 1_000,
            _ => 20,
        };
        let words = self.rng.usize(4..words);
        (0..words).map(|_| format!("{:08x} ", self.rng.u32(..))).collect()
    }

    /// A line of the agent: a piece of the prompt that is at work, or of one that has failed.
    fn hears(&mut self, message: &Value, text: &str, received: &mut usize) -> Result<(), &'static str> {
        let update = &message["params"]["update"];
        if update["sessionUpdate"] != "agent_message_chunk" {
            return Ok(());
        }
        let session = self.session.as_mut().filter(|session| message["params"]["sessionId"] == *session.id);
        // A late word of a session that was given up.
        let Some(session) = session else { return Ok(()) };
        let chunk = update["content"]["text"].as_str().unwrap_or_default();
        if text[*received..].starts_with(chunk) {
            *received += chunk.len();
            return Ok(());
        }
        for (failed, come) in &mut session.failed {
            if let Some(at) = failed[*come..].find(chunk) {
                *come += at + chunk.len();
                return Ok(());
            }
        }
        Err("a piece of no prompt, or out of order")
    }

    fn is_answered(&mut self, result: &Value, text: &str, received: usize) -> Result<(), &'static str> {
        self.seen.right += 1;
        match &mut self.session {
            None => {
                let id = result["sessionId"].as_str().ok_or("no session")?;
                self.session = Some(Session { id: id.to_owned(), failed: Vec::new(), was_lost: false });
            }
            Some(_) if result["stopReason"] != "end_turn" => return Err("a prompt that was ended by nobody"),
            Some(_) if received != text.len() => return Err("a prompt of which not all came back"),
            Some(session) => self.seen.survived += u64::from(std::mem::take(&mut session.was_lost)),
        }
        Ok(())
    }

    fn fails(&mut self, error: &Value, asked: Instant, prompted: Option<(&str, usize)>) {
        let data = &error["data"];
        let Some(reason) = data["reason"].as_str() else {
            let shown = error.to_string();
            return self.is_wrong("an error without a reason", shown.as_bytes());
        };
        *self.seen.errors.entry(reason.to_owned()).or_default() += 1;
        let node = data["node"].as_str().map(str::to_owned);
        let (edge, at, reason) = (self.edge, Instant::now(), reason.to_owned());
        let is_over = reason == "unknown_session";
        self.seen.losses.push(Loss { edge, node, reason, asked, at });
        if let (Some((text, received)), Some(session)) = (prompted, &mut self.session) {
            session.was_lost = true;
            session.failed.push((text.to_owned(), received));
            if session.failed.len() > 8 {
                session.failed.remove(0);
            }
            if is_over {
                self.session = None;
            }
        }
    }

    fn is_wrong(&mut self, why: &str, line: &[u8]) {
        self.seen.wrong += 1;
        let shown = String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
        let number = self.number;
        self.seen.note(|| format!("client {number}: {why}: {shown}"));
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Seen {
    fn note(&mut self, what: impl FnOnce() -> String) {
        self.first_fault.get_or_insert_with(what);
    }

    pub(super) fn add(&mut self, other: Seen) {
        self.asked += other.asked;
        self.right += other.right;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.survived += other.survived;
        self.healed += other.healed;
        self.longest = self.longest.max(other.longest);
        self.losses.extend(other.losses);
        for (reason, count) in other.errors {
            *self.errors.entry(reason).or_default() += count;
        }
        self.first_fault = self.first_fault.take().or(other.first_fault);
    }

    pub(super) fn refused(&self) -> u64 {
        self.errors.values().sum()
    }
}
