//! A client that does what it should, and judges every line that it hears.
//!
//! It keeps a few requests in flight: plain ones, a prompt of its session with all that is streamed for it, now and
//! then a permission. Each is different from all others of the run, so an answer, a chunk or a question that is not
//! this client's is noticed, and so is one that comes twice, late or in the wrong order.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::request::{Answer, Shape};
use crate::talk::Talk;

/// Lines above 4 KiB: shorter ones are written whole or not at all, so that no kill can tear one.
pub(super) const LINE_BYTES: usize = 9 << 10;
/// A prompt comes back in three chunks (`--chunks 3`), each a line like that.
pub(super) const CHUNKS: usize = 3;
const PLAIN_A_ROUND: usize = 3;
/// A session is deleted after so many prompts, and the next is opened.
const PROMPTS_A_SESSION: u64 = 8;
/// One prompt in so many asks for a permission.
const ASK_EVERY: u64 = 5;
const EXCERPT_BYTES: usize = 300;

/// When each worker was killed.
#[derive(Default)]
pub(super) struct Kills(Mutex<Vec<(u64, Instant)>>);

/// What became of the requests of one client, or of all.
#[derive(Clone, Default)]
pub(super) struct Tally {
    pub(super) asked: u64,
    pub(super) right: u64,
    /// Errors of the bus, by their reason.
    pub(super) refused: BTreeMap<String, u64>,
    /// The first that was not for a worker's death, and what was asked.
    pub(super) refusal: Option<String>,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    /// What went wrong first, in words.
    pub(super) first: Option<String>,
    /// Sessions that were opened, and prompts that were right after a death had hit their session.
    pub(super) sessions: u64,
    pub(super) survived: u64,
    /// Of right answers to plain requests.
    pub(super) latency_us: Times,
    /// From a worker's death to the error that says so.
    pub(super) mourning_us: Times,
}

/// Microseconds, in slots that are exact to a thousandth.
#[derive(Clone)]
pub(super) struct Times(Histogram<u64>);

pub(super) struct Client<'a> {
    number: u32,
    talk: Talk,
    shape: &'a Shape,
    kills: &'a Kills,
    next_id: u64,
    waiting: BTreeMap<u64, Asked>,
    session: Option<Session>,
    /// All that it ever had: late words about an old one are no mistake.
    had: Vec<String>,
    prompts: u64,
    tally: Tally,
}

struct Session {
    name: String,
    prompts: u64,
    /// Its worker has died since its last right answer.
    struck: bool,
}

struct Asked {
    at: Instant,
    what: What,
}

enum What {
    Plain,
    New,
    Delete,
    /// `text` is to come back; so much of it has.
    Prompt {
        text: String,
        heard: usize,
    },
}

impl<'a> Client<'a> {
    pub(super) fn new(
        number: u32,
        mut talk: Talk,
        shape: &'a Shape,
        kills: &'a Kills,
    ) -> io::Result<Client<'a>> {
        // Whose worker was killed over it asks again.
        while let Some(reason) = talk.initialize()? {
            if reason != "worker_lost" {
                return Err(io::Error::other(format!("not initialized: {reason}")));
            }
        }
        Ok(Client::greeted(number, talk, shape, kills))
    }

    fn greeted(number: u32, talk: Talk, shape: &'a Shape, kills: &'a Kills) -> Client<'a> {
        let (waiting, had, tally) = (BTreeMap::new(), Vec::new(), Tally::default());
        Client { number, talk, shape, kills, next_id: 1, waiting, session: None, had, prompts: 0, tally }
    }

    /// Asks and listens until then, waits for what is still owed, and leaves for good.
    pub(super) fn run(mut self, until: Instant) -> Tally {
        while Instant::now() < until {
            if let Err(fault) = self.round() {
                self.end(&fault);
                return self.tally;
            }
        }
        let _ = self.talk.say(&json!({ "jsonrpc": "2.0", "method": "_bus/bye" }));
        self.tally
    }

    fn round(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        match &self.session {
            None => self.ask(&mut lines, What::New, "session/new", json!({ "cwd": "/", "mcpServers": [] })),
            Some(session) if session.prompts >= PROMPTS_A_SESSION => {
                let params = json!({ "sessionId": session.name });
                self.ask(&mut lines, What::Delete, "session/delete", params);
            }
            Some(_) => self.prompt(&mut lines),
        }
        for _ in 0..PLAIN_A_ROUND {
            let id = self.take_id(What::Plain);
            self.shape.write(&mut lines, self.number, id);
        }
        self.talk.send(&lines)?;
        while !self.waiting.is_empty() {
            let line = self.talk.line()?.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec();
            if let Err(why) = self.hear(&line)? {
                self.tally.wrong += 1;
                let excerpt = String::from_utf8_lossy(&line[..line.len().min(EXCERPT_BYTES)]).into_owned();
                self.tally.note(|| format!("{why}: {excerpt}"));
            }
        }
        Ok(())
    }

    fn prompt(&mut self, lines: &mut Vec<u8>) {
        self.prompts += 1;
        let Some(session) = &mut self.session else { return };
        session.prompts += 1;
        let (said, text) = match self.prompts % ASK_EVERY {
            0 => ("/ask".to_owned(), "You chose allow_once.\n".to_owned()),
            _ => {
                let mine = format!("client {} prompt {} ", self.number, self.prompts);
                let text = mine.chars().cycle().take(CHUNKS * LINE_BYTES).collect::<String>();
                (text.clone(), text)
            }
        };
        let params = json!({ "sessionId": session.name, "prompt": [{ "type": "text", "text": said }] });
        self.ask(lines, What::Prompt { text, heard: 0 }, "session/prompt", params);
    }

    fn ask(&mut self, lines: &mut Vec<u8>, what: What, method: &str, params: Value) {
        let id = self.take_id(what);
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        lines.extend_from_slice(format!("{message}\n").as_bytes());
    }

    fn take_id(&mut self, what: What) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.tally.asked += 1;
        self.waiting.insert(id, Asked { at: Instant::now(), what });
        id
    }

    /// The inner error says what is wrong with the line.
    fn hear(&mut self, line: &[u8]) -> io::Result<Result<(), &'static str>> {
        if self.hear_plain(line) {
            return Ok(Ok(()));
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else { return Ok(Err("no JSON")) };
        match (message["method"].as_str(), message.get("id")) {
            (Some("session/update"), None) => Ok(self.hear_update(&message["params"])),
            (Some("session/request_permission"), Some(id)) => self.hear_question(id, &message["params"]),
            // A question that was taken back, because its turn was.
            (Some("$/cancel_request"), None) => Ok(Ok(())),
            (None, Some(id)) => Ok(self.hear_answer(id, &message)),
            _ => Ok(Err("neither an answer nor a message of a session")),
        }
    }

    /// Whether it is the right answer to a plain request, as most of what comes is.
    fn hear_plain(&mut self, line: &[u8]) -> bool {
        let Some(Answer { id, params: Some(params) }) = Answer::read(line) else { return false };
        let waits = self.waiting.get(&id).is_some_and(|asked| matches!(asked.what, What::Plain));
        if !waits || !self.shape.is_params(params, self.number, id) {
            return false;
        }
        if let Some(asked) = self.waiting.remove(&id) {
            self.tally.right += 1;
            self.tally.latency_us.add(asked.at.elapsed());
        }
        true
    }

    fn hear_answer(&mut self, id: &Value, message: &Value) -> Result<(), &'static str> {
        let Some(asked) = id.as_u64().and_then(|id| self.waiting.remove(&id)) else {
            return Err("answered twice, or never asked");
        };
        match message.get("error") {
            Some(error) => self.hear_error(&asked, error),
            None => self.hear_result(asked.what, &message["result"]),
        }
    }

    fn hear_result(&mut self, what: What, result: &Value) -> Result<(), &'static str> {
        match what {
            What::Plain => return Err("a result that is not the echo of its request"),
            What::New => {
                let Some(name) = result["sessionId"].as_str() else { return Err("no session") };
                self.had.push(name.to_owned());
                self.session = Some(Session { name: name.to_owned(), prompts: 0, struck: false });
                self.tally.sessions += 1;
            }
            What::Delete => self.session = None,
            What::Prompt { text, heard } => {
                if result["stopReason"] != "end_turn" {
                    return Err("a prompt that was ended by nobody");
                }
                if heard != text.len() {
                    return Err("a prompt of which not all was streamed back");
                }
                if let Some(session) = &mut self.session {
                    self.tally.survived += u64::from(std::mem::take(&mut session.struck));
                }
            }
        }
        self.tally.right += 1;
        Ok(())
    }

    fn hear_error(&mut self, asked: &Asked, error: &Value) -> Result<(), &'static str> {
        let data = &error["data"];
        let Some(reason) = data["reason"].as_str() else { return Err("an error without a reason") };
        *self.tally.refused.entry(reason.to_owned()).or_default() += 1;
        if reason != "worker_lost" {
            let kind = asked.what.name();
            self.tally.refusal.get_or_insert_with(|| format!("{kind}: {error}"));
        }
        let killed = data["worker"].as_u64().and_then(|worker| self.kills.after(worker, asked.at));
        if let Some(killed) = killed.filter(|_| reason == "worker_lost") {
            self.tally.mourning_us.add(killed.elapsed());
        }
        match asked.what {
            What::Prompt { .. } if reason == "worker_lost" => {
                if let Some(session) = &mut self.session {
                    session.struck = true;
                }
            }
            // Whether it was deleted nobody can tell.
            What::Delete | What::Prompt { .. } => self.session = None,
            What::Plain | What::New => {}
        }
        Ok(())
    }

    fn hear_update(&mut self, params: &Value) -> Result<(), &'static str> {
        let Some(name) = params["sessionId"].as_str() else { return Err("an update of no session") };
        if !self.had.iter().any(|had| had == name) {
            return Err("an update of somebody else's session");
        }
        let update = &params["update"];
        if update["sessionUpdate"] != "agent_message_chunk" {
            return Ok(());
        }
        let chunk = update["content"]["text"].as_str().unwrap_or_default();
        let current = self.session.as_ref().is_some_and(|session| session.name == name);
        let mut whats = self.waiting.values_mut().map(|asked| &mut asked.what);
        let Some(What::Prompt { text, heard }) =
            whats.find(|what| matches!(what, What::Prompt { .. })).filter(|_| current)
        else {
            return Err("a chunk of no prompt that waits");
        };
        if !text[*heard..].starts_with(chunk) {
            return Err("a chunk of another prompt, or out of order");
        }
        *heard += chunk.len();
        Ok(())
    }

    fn hear_question(&mut self, id: &Value, params: &Value) -> io::Result<Result<(), &'static str>> {
        let asked = self.session.as_ref().is_some_and(|session| params["sessionId"] == session.name.as_str());
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
        self.talk.say(&json!({ "jsonrpc": "2.0", "id": id, "result": outcome }))?;
        Ok(if asked { Ok(()) } else { Err("a question about somebody else's session") })
    }

    fn end(&mut self, fault: &io::Error) {
        self.tally.lost = self.waiting.len() as u64;
        let ids = self.waiting.keys().collect::<Vec<_>>();
        let number = self.number;
        self.tally.note(|| format!("client {number}: {fault}, while it waited for {ids:?}"));
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
    /// Said before the kill, so that nobody hears of a death that is not known here.
    pub(super) fn add(&self, worker: u64) {
        self.0.lock().expect("nobody panics with it").push((worker, Instant::now()));
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().expect("nobody panics with it").len()
    }

    /// The first kill of this worker since then: what it answers for cannot be older than the request.
    fn after(&self, worker: u64, asked: Instant) -> Option<Instant> {
        let kills = self.0.lock().expect("nobody panics with it");
        let since = kills.iter().rev().take_while(|(_, at)| *at >= asked);
        since.filter(|(number, _)| *number == worker).map(|(_, at)| *at).last()
    }
}

impl Tally {
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        self.first.get_or_insert_with(what);
    }

    pub(super) fn add(&mut self, other: Tally) {
        self.asked += other.asked;
        self.right += other.right;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.sessions += other.sessions;
        self.survived += other.survived;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.refusal = self.refusal.take().or(other.refusal);
        self.first = self.first.take().or(other.first);
        self.latency_us.0 += other.latency_us.0;
        self.mourning_us.0 += other.mourning_us.0;
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

    use super::*;
    use crate::talk::Socket;

    /// A client with the session `mine` that has asked what `what` says, under the id 1; and what it makes of a line.
    fn verdict(what: What, line: &str) -> Result<(), &'static str> {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (shape, kills) = (Shape::new(LINE_BYTES), Kills::default());
        let talk = Talk::over(Socket::Unix(ours)).unwrap();
        let mut client = Client::greeted(7, talk, &shape, &kills);
        client.session = Some(Session { name: "mine".to_owned(), prompts: 1, struck: false });
        client.had.push("mine".to_owned());
        client.take_id(what);
        client.hear(line.as_bytes()).unwrap()
    }

    fn prompt(heard: usize) -> What {
        What::Prompt { text: "one two".to_owned(), heard }
    }

    fn chunk(session: &str, text: &str) -> String {
        json!({ "method": "session/update", "params": { "sessionId": session, "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } } } })
        .to_string()
    }

    #[test]
    fn what_is_right_passes() {
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
    fn what_is_wrong_is_noticed() {
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
    fn a_death_is_the_first_since_it_was_asked() {
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
