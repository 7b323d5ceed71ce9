//! A client that behaves well and checks every line that it receives.
//!
//! It keeps a few requests in flight: plain ones, a prompt of its session with all that is streamed for it, and now and
//! then a permission. Each is different from all others of the run, so it notices an answer, a chunk or a question that
//! is not its own, and one that comes twice, late or in the wrong order.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rpc::write;
use serde_json::{Value, json};

use crate::client::{Client, grant, prompt};
use crate::request::{Answer, Shape};

/// More than 4 KiB: a kill cannot tear shorter lines, which a pipe takes whole or not at all.
pub(super) const LINE_BYTES: usize = 9 << 10;
/// The echo agent sends a prompt back in so many chunks, each on a line of that length.
pub(super) const CHUNKS: usize = 3;
const PLAIN_PER_ROUND: usize = 3;
/// A session is deleted after so many prompts, and the next is opened.
const PROMPTS_PER_SESSION: u64 = 8;
/// One prompt in so many asks for a permission.
const ASK_EVERY: u64 = 5;
const EXCERPT_BYTES: usize = 300;

/// When each worker was killed.
#[derive(Default)]
pub(super) struct Kills(Mutex<Vec<(u64, Instant)>>);

/// What became of the requests of one client, or of all.
#[derive(Clone, Default)]
pub(super) struct Counts {
    pub(super) asked: u64,
    pub(super) right: u64,
    /// Errors that the bus sent, by their reason.
    pub(super) refused: BTreeMap<String, u64>,
    /// The first of them that was not `worker_lost`, and the kind of its request.
    pub(super) first_refusal: Option<String>,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    /// The first fault, in words.
    pub(super) first_fault: Option<String>,
    /// Sessions that were opened.
    pub(super) sessions: u64,
    /// Prompts that were right after the worker of their session had died.
    pub(super) survived: u64,
    /// The times of right answers to plain requests.
    pub(super) latency_us: Times,
    /// From the kill of a worker to the error that reports it.
    pub(super) loss_us: Times,
}

/// Microseconds, exact to a thousandth.
#[derive(Clone)]
pub(super) struct Times(Histogram<u64>);

pub(super) struct CheckingClient<'a> {
    number: u32,
    client: Client,
    shape: &'a Shape,
    kills: &'a Kills,
    next_id: u64,
    waiting: BTreeMap<u64, Asked>,
    session: Option<Session>,
    /// All sessions that it ever had: a late update of an old one is no fault.
    past_sessions: Vec<String>,
    prompts: u64,
    counts: Counts,
}

struct Session {
    id: String,
    prompts: u64,
    /// Whether its worker has died since its last right answer.
    lost_worker: bool,
}

struct Asked {
    at: Instant,
    what: What,
}

enum What {
    Plain,
    New,
    Delete,
    /// `text` must come back, and `received` bytes of it have.
    Prompt {
        text: String,
        received: usize,
    },
}

impl<'a> CheckingClient<'a> {
    pub(super) fn new(
        number: u32,
        mut client: Client,
        shape: &'a Shape,
        kills: &'a Kills,
    ) -> io::Result<CheckingClient<'a>> {
        // A client whose worker was killed meanwhile asks again.
        while let Err(reason) = client.initialize()? {
            if reason != "worker_lost" {
                return Err(io::Error::other(format!("not initialized: {reason}")));
            }
        }
        Ok(CheckingClient::initialized(number, client, shape, kills))
    }

    fn initialized(number: u32, client: Client, shape: &'a Shape, kills: &'a Kills) -> CheckingClient<'a> {
        CheckingClient {
            number,
            client,
            shape,
            kills,
            next_id: 1,
            waiting: BTreeMap::new(),
            session: None,
            past_sessions: Vec::new(),
            prompts: 0,
            counts: Counts::default(),
        }
    }

    /// Sends requests and checks their answers until then, waits for the last ones, and sends `_bus/bye`.
    pub(super) fn run(mut self, until: Instant) -> Counts {
        while Instant::now() < until {
            if let Err(fault) = self.round() {
                self.note_lost(&fault);
                return self.counts;
            }
        }
        let _ = self.client.send(&write::notification("_bus/bye", ()));
        self.counts
    }

    fn round(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        match &self.session {
            None => self.ask(&mut lines, What::New, "session/new", json!({ "cwd": "/", "mcpServers": [] })),
            Some(session) if session.prompts >= PROMPTS_PER_SESSION => {
                let params = json!({ "sessionId": session.id });
                self.ask(&mut lines, What::Delete, "session/delete", params);
            }
            Some(_) => self.prompt(&mut lines),
        }
        for _ in 0..PLAIN_PER_ROUND {
            let id = self.take_id(What::Plain);
            self.shape.write(&mut lines, self.number, id);
        }
        self.client.send(&lines)?;
        while !self.waiting.is_empty() {
            let line = self.client.line()?.to_vec();
            if let Err(why) = self.receive(&line)? {
                self.counts.wrong += 1;
                let excerpt = String::from_utf8_lossy(&line[..line.len().min(EXCERPT_BYTES)]).into_owned();
                self.counts.note(|| format!("{why}: {excerpt}"));
            }
        }
        Ok(())
    }

    fn prompt(&mut self, lines: &mut Vec<u8>) {
        self.prompts += 1;
        let Some(session) = &mut self.session else { return };
        session.prompts += 1;
        let (prompted, text) = match self.prompts % ASK_EVERY {
            0 => ("/ask".to_owned(), "You chose allow_once.\n".to_owned()),
            _ => {
                let mine = format!("client {} prompt {} ", self.number, self.prompts);
                let text = mine.chars().cycle().take(CHUNKS * LINE_BYTES).collect::<String>();
                (text.clone(), text)
            }
        };
        let params = prompt(&session.id, &prompted);
        self.ask(lines, What::Prompt { text, received: 0 }, "session/prompt", params);
    }

    fn ask(&mut self, lines: &mut Vec<u8>, what: What, method: &str, params: Value) {
        let id = self.take_id(what);
        lines.extend(write::request(id, method, params));
    }

    fn take_id(&mut self, what: What) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.counts.asked += 1;
        self.waiting.insert(id, Asked { at: Instant::now(), what });
        id
    }

    /// The inner error tells what is wrong with the line.
    fn receive(&mut self, line: &[u8]) -> io::Result<Result<(), &'static str>> {
        if self.receive_plain(line) {
            return Ok(Ok(()));
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else { return Ok(Err("no JSON")) };
        match (message["method"].as_str(), message.get("id")) {
            (Some("session/update"), None) => Ok(self.receive_update(&message["params"])),
            (Some("session/request_permission"), Some(id)) => self.receive_question(id, &message["params"]),
            // A permission request that was cancelled with its turn.
            (Some("$/cancel_request"), None) => Ok(Ok(())),
            (None, Some(id)) => Ok(self.receive_answer(id, &message)),
            _ => Ok(Err("neither an answer nor a message of a session")),
        }
    }

    /// Whether the line is the right answer to a plain request, as most lines are.
    fn receive_plain(&mut self, line: &[u8]) -> bool {
        let Some(Answer { id, params: Some(params) }) = Answer::read(line) else { return false };
        let waits = self.waiting.get(&id).is_some_and(|asked| matches!(asked.what, What::Plain));
        if !waits || !self.shape.is_params(params, self.number, id) {
            return false;
        }
        if let Some(asked) = self.waiting.remove(&id) {
            self.counts.right += 1;
            self.counts.latency_us.add(asked.at.elapsed());
        }
        true
    }

    fn receive_answer(&mut self, id: &Value, message: &Value) -> Result<(), &'static str> {
        let Some(asked) = id.as_u64().and_then(|id| self.waiting.remove(&id)) else {
            return Err("answered twice, or never asked");
        };
        match message.get("error") {
            Some(error) => self.receive_error(&asked, error),
            None => self.receive_result(asked.what, &message["result"]),
        }
    }

    fn receive_result(&mut self, what: What, result: &Value) -> Result<(), &'static str> {
        match what {
            What::Plain => return Err("a result that is not the echo of its request"),
            What::New => {
                let Some(id) = result["sessionId"].as_str() else { return Err("no session") };
                self.past_sessions.push(id.to_owned());
                self.session = Some(Session { id: id.to_owned(), prompts: 0, lost_worker: false });
                self.counts.sessions += 1;
            }
            What::Delete => self.session = None,
            What::Prompt { text, received } => {
                if result["stopReason"] != "end_turn" {
                    return Err("a prompt that was ended by nobody");
                }
                if received != text.len() {
                    return Err("a prompt of which not all was streamed back");
                }
                if let Some(session) = &mut self.session {
                    self.counts.survived += u64::from(std::mem::take(&mut session.lost_worker));
                }
            }
        }
        self.counts.right += 1;
        Ok(())
    }

    fn receive_error(&mut self, asked: &Asked, error: &Value) -> Result<(), &'static str> {
        let data = &error["data"];
        let Some(reason) = data["reason"].as_str() else { return Err("an error without a reason") };
        *self.counts.refused.entry(reason.to_owned()).or_default() += 1;
        if reason != "worker_lost" {
            let kind = asked.what.name();
            self.counts.first_refusal.get_or_insert_with(|| format!("{kind}: {error}"));
        }
        let killed = data["worker"].as_u64().and_then(|worker| self.kills.after(worker, asked.at));
        if let Some(killed) = killed
            && reason == "worker_lost"
        {
            self.counts.loss_us.add(killed.elapsed());
        }
        match asked.what {
            What::Prompt { .. } if reason == "worker_lost" => {
                if let Some(session) = &mut self.session {
                    session.lost_worker = true;
                }
            }
            // It is not known whether the session was deleted.
            What::Delete | What::Prompt { .. } => self.session = None,
            What::Plain | What::New => {}
        }
        Ok(())
    }

    fn receive_update(&mut self, params: &Value) -> Result<(), &'static str> {
        let Some(id) = params["sessionId"].as_str() else { return Err("an update of no session") };
        if !self.past_sessions.iter().any(|past| past == id) {
            return Err("an update of somebody else's session");
        }
        let update = &params["update"];
        if update["sessionUpdate"] != "agent_message_chunk" {
            return Ok(());
        }
        let chunk = update["content"]["text"].as_str().unwrap_or_default();
        let is_current = self.session.as_ref().is_some_and(|session| session.id == id);
        let mut whats = self.waiting.values_mut().map(|asked| &mut asked.what);
        let prompt = whats.find(|what| matches!(what, What::Prompt { .. }));
        let (Some(What::Prompt { text, received }), true) = (prompt, is_current) else {
            return Err("a chunk of no prompt that waits");
        };
        if !text[*received..].starts_with(chunk) {
            return Err("a chunk of another prompt, or out of order");
        }
        *received += chunk.len();
        Ok(())
    }

    fn receive_question(&mut self, id: &Value, params: &Value) -> io::Result<Result<(), &'static str>> {
        let asked = self.session.as_ref().is_some_and(|session| params["sessionId"] == session.id.as_str());
        self.client.send(&grant(id, &json!("allow_once")))?;
        Ok(if asked { Ok(()) } else { Err("a question about somebody else's session") })
    }

    fn note_lost(&mut self, fault: &io::Error) {
        self.counts.lost = self.waiting.len() as u64;
        let ids = self.waiting.keys().collect::<Vec<_>>();
        let number = self.number;
        self.counts.note(|| format!("client {number}: {fault}, while it waited for {ids:?}"));
    }
}

impl What {
    fn name(&self) -> &'static str {
        match self {
            What::Plain => "a plain request",
            What::New => "session/new",
            What::Delete => "session/delete",
            What::Prompt { .. } => "session/prompt",
        }
    }
}

impl Kills {
    /// Called before the kill, so that no client gets an error before the kill is known here.
    pub(super) fn add(&self, worker: u64) {
        self.0.lock().expect("no thread panics while it holds the lock").push((worker, Instant::now()));
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().expect("no thread panics while it holds the lock").len()
    }

    /// The first kill of this worker since the request was sent.
    fn after(&self, worker: u64, asked: Instant) -> Option<Instant> {
        let kills = self.0.lock().expect("no thread panics while it holds the lock");
        let since = kills.iter().rev().take_while(|(_, at)| *at >= asked);
        since.filter(|(number, _)| *number == worker).map(|(_, at)| *at).last()
    }
}

impl Counts {
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        self.first_fault.get_or_insert_with(what);
    }

    pub(super) fn add(&mut self, other: Counts) {
        self.asked += other.asked;
        self.right += other.right;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.sessions += other.sessions;
        self.survived += other.survived;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
        self.first_fault = self.first_fault.take().or(other.first_fault);
        self.latency_us.0 += other.latency_us.0;
        self.loss_us.0 += other.loss_us.0;
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.0.saturating_record(time.as_micros() as u64);
    }

    pub(super) fn at(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(quantile))
    }
}

impl Default for Times {
    fn default() -> Times {
        Times(Histogram::new_with_max(600_000_000, 3).expect("the bounds are good"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rpc::Stream;

    use super::*;

    /// How a client with the session `mine` that has sent `what` under the id 1 judges a line.
    fn verdict(what: What, line: &str) -> Result<(), &'static str> {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (shape, kills) = (Shape::new(LINE_BYTES), Kills::default());
        let client = Client::over(Stream::Unix(ours));
        let mut client = CheckingClient::initialized(7, client, &shape, &kills);
        client.session = Some(Session { id: "mine".to_owned(), prompts: 1, lost_worker: false });
        client.past_sessions.push("mine".to_owned());
        client.take_id(what);
        client.receive(line.as_bytes()).unwrap()
    }

    fn prompt(received: usize) -> What {
        What::Prompt { text: "one two".to_owned(), received }
    }

    fn chunk(session: &str, text: &str) -> String {
        json!({ "method": "session/update", "params": { "sessionId": session, "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } } } })
        .to_string()
    }

    #[test]
    fn right_lines_pass() {
        let (shape, mut line) = (Shape::new(LINE_BYTES), Vec::new());
        shape.write(&mut line, 7, 1);
        assert_eq!(verdict(What::Plain, String::from_utf8(line).unwrap().trim_end()), Ok(()));
        assert_eq!(verdict(prompt(7), r#"{"id":1,"result":{"stopReason":"end_turn"}}"#), Ok(()));
        assert_eq!(verdict(prompt(0), &chunk("mine", "one")), Ok(()));
        assert_eq!(verdict(prompt(3), &chunk("mine", " two")), Ok(()));
        let refused = r#"{"id":1,"error":{"code":-32050,"data":{"reason":"worker_lost","worker":2}}}"#;
        assert_eq!(verdict(What::Plain, refused), Ok(()));
        let asks = r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"mine"}}"#;
        assert_eq!(verdict(prompt(0), asks), Ok(()));
    }

    #[test]
    fn wrong_lines_are_noticed() {
        let (shape, mut of_another) = (Shape::new(LINE_BYTES), Vec::new());
        shape.write(&mut of_another, 8, 1);
        let of_another = String::from_utf8(of_another).unwrap();
        let asks = r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"theirs"}}"#;
        for (what, line) in [
            (What::Plain, of_another.trim_end()),
            (What::Plain, r#"{"id":1,"result":{}}"#),
            (What::Plain, r#"{"id":2,"result":{}}"#),
            (What::Plain, r#"{"id":1,"error":{"code":-1,"message":"no reason"}}"#),
            (What::Plain, r#"{"id":1,"resu"#),
            (What::Plain, r#"{"method":"other"}"#),
            (What::Plain, &chunk("mine", "one")),
            (prompt(3), r#"{"id":1,"result":{"stopReason":"end_turn"}}"#),
            (prompt(7), r#"{"id":1,"result":{"stopReason":"cancelled"}}"#),
            (prompt(0), &chunk("mine", "two")),
            (prompt(3), &chunk("mine", "one")),
            (prompt(0), &chunk("theirs", "one")),
            (prompt(0), asks),
        ] {
            assert!(verdict(what, line).is_err(), "{}", &line[..line.len().min(100)]);
        }
    }

    #[test]
    fn a_kill_is_the_first_since_the_request() {
        let kills = Kills::default();
        kills.add(1);
        let asked = Instant::now();
        assert_eq!(kills.after(1, asked), None);
        kills.add(2);
        kills.add(1);
        let first = kills.after(1, asked).unwrap();
        kills.add(1);
        assert_eq!((kills.after(1, asked), kills.count()), (Some(first), 4));
    }
}
