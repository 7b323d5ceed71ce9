//! `puppet`: an agent that does what its clients tell it, for bounds and for chaos.
//!
//! Every request may carry a script in `params.say`: pieces of text, each with how often it is said, which may be any
//! lines at all. In a prompt the script is the text of its first block, and the turn can wait for answers before it
//! ends. A prompt that begins with `turn` streams sealed texts instead, of lengths that follow from its seed; turns of
//! several sessions go on at the same time. Everything else is answered with what was asked.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{self, ExitCode};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use fastrand::Rng;
use rpc::{LineReader, Message, OwnedReplyTo, write};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::print::complain;
use crate::sealed::{self, Place, Seal};

/// In place of the id of the session that a prompt is about.
const SESSION: &str = "@session";
/// So much is collected before it is written, at most: what one write holds differs from time to time.
const WRITES: [usize; 4] = [1, 8 << 10, 128 << 10, 1 << 20];
/// How many updates of one turn are said before another turn goes on.
const RUN_MAX: u32 = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Session ids begin with this
    #[arg(long, value_name = "NAME", default_value = "puppet")]
    name: String,
}

/// What a `turn` is made of.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Script {
    /// Its name, which no other turn of the run has.
    pub(crate) turn: u64,
    pub(crate) seed: u64,
    pub(crate) updates: u32,
    /// The longest text, in bytes.
    pub(crate) most: usize,
    /// Before this update a permission is asked for.
    pub(crate) ask: Option<u32>,
}

impl Script {
    /// The blocks of its prompt, with a sealed text of so many bytes.
    pub(crate) fn prompt(&self, session: &str, agent_session: &str, bytes: usize) -> Value {
        let Script { turn, seed, updates, most, ask } = self;
        let seal = Seal { session: agent_session, turn: *turn, place: Place::Prompt };
        let script = json!({ "turn": turn, "seed": seed, "updates": updates, "most": most, "ask": ask });
        let block = |text: String| json!({ "type": "text", "text": text });
        json!({ "sessionId": session, "prompt": [block(script.to_string()), block(seal.text(bytes))] })
    }
}

/// A length between 1 and this, whose logarithm is spread evenly.
pub(crate) fn log_uniform(rng: &mut Rng, most: usize) -> usize {
    (most as f64).powf(rng.f64()) as usize
}

#[derive(Deserialize)]
struct Piece {
    text: String,
    #[serde(default = "once")]
    times: usize,
}

fn once() -> usize {
    1
}

/// What is told in a request, or in the first block of a prompt.
#[derive(Deserialize, Default)]
struct Told {
    #[serde(default)]
    say: Vec<Piece>,
    /// The turn ends when so many of its requests are answered.
    #[serde(default)]
    wait: usize,
}

struct Turn {
    reply_to: OwnedReplyTo,
    session: String,
    goes: Goes,
}

enum Goes {
    Said { wait: usize },
    Sealed { script: Script, rng: Rng, said: u32, asked: Asked, fault: Option<&'static str> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    NotYet,
    Waits(u64),
    Done,
}

struct Puppet {
    name: String,
    turns: VecDeque<Turn>,
    sessions: u64,
    next_id: u64,
    rng: Rng,
    out: Vec<u8>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(error, 1),
    }
}

fn serve(args: &Args) -> io::Result<()> {
    let (to_us, lines) = mpsc::channel::<Vec<u8>>();
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    thread::spawn(move || {
        let mut reader = LineReader::default();
        while let Ok(Some(line)) = reader.read_line(&mut input, None) {
            if to_us.send(line.to_vec()).is_err() {
                return;
            }
        }
    });
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Puppet::new(args.name.clone(), u64::from(process::id())).run(&lines, &mut output)
}

impl Puppet {
    fn new(name: String, seed: u64) -> Puppet {
        let rng = Rng::with_seed(seed);
        Puppet { name, turns: VecDeque::new(), sessions: 0, next_id: 1, rng, out: Vec::new() }
    }

    fn run(&mut self, lines: &Receiver<Vec<u8>>, output: &mut (impl Write + AsFd)) -> io::Result<()> {
        let mut enough = WRITES[0];
        loop {
            let runs = self.turns.iter().any(Turn::can_go_on);
            if !self.out.is_empty() && (!runs || self.out.len() >= enough) {
                rpc::fd_wait::write_all(output, &self.out)?;
                self.out.clear();
                enough = WRITES[self.rng.usize(..WRITES.len())];
            }
            let line = if runs {
                match lines.try_recv() {
                    Ok(line) => Some(line),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            } else {
                let Ok(line) = lines.recv() else { return Ok(()) };
                Some(line)
            };
            match line {
                Some(line) => self.take(&line),
                None => self.go_on(),
            }
        }
    }

    fn take(&mut self, line: &[u8]) {
        match Message::parse(line) {
            Ok(Message::Request { reply_to, method, params }) => {
                let params = params.map_or("null", RawValue::get);
                if method == "session/prompt" {
                    return self.begin(reply_to.to_owned(), params);
                }
                match self.answer(&method, params) {
                    Some(result) => self.out.extend(write::result(reply_to, result)),
                    None => {
                        let unknown = rpc::RpcError::new(rpc::error::INVALID_PARAMS, "no such session");
                        self.out.extend(write::error(reply_to, unknown));
                    }
                }
            }
            Ok(Message::Notification { method, params }) if method == "session/cancel" => {
                let of = params.and_then(|params| serde_json::from_str::<OfSession>(params.get()).ok());
                self.cancel(&of.map(|of| of.session_id).unwrap_or_default());
            }
            Ok(Message::Response { id, outcome }) => self.take_response(id, outcome.ok()),
            _ => {}
        }
    }

    /// The result of a request. `None`: it is about a session of another agent.
    fn answer(&mut self, method: &str, params: &str) -> Option<Value> {
        Some(match method {
            "initialize" => json!({ "protocolVersion": 1, "agentInfo": { "name": self.name, "version": "1" },
                "agentCapabilities": { "loadSession": true,
                    "sessionCapabilities": { "close": {}, "resume": {}, "delete": {} } } }),
            "session/new" => {
                self.sessions += 1;
                json!({ "sessionId": format!("{}-{}-{}", self.name, process::id(), self.sessions) })
            }
            // Another process of the same agent has opened it, and may be gone.
            "session/load" | "session/resume" => {
                let of: OfSession = serde_json::from_str(params).ok()?;
                of.session_id.strip_prefix(&self.name)?.strip_prefix('-')?;
                json!({})
            }
            "session/close" | "session/delete" => {
                let of: OfSession = serde_json::from_str(params).ok()?;
                self.cancel(&of.session_id);
                json!({})
            }
            _ => {
                let told: Told = serde_json::from_str(params).unwrap_or_default();
                if !told.say.is_empty() {
                    self.say(&told.say, "");
                    return Some(json!({}));
                }
                json!({ "echo": serde_json::from_str::<&RawValue>(params).ok() })
            }
        })
    }

    fn say(&mut self, pieces: &[Piece], session: &str) {
        for piece in pieces {
            let text = piece.text.replace(SESSION, session);
            self.out.reserve(text.len() * piece.times);
            (0..piece.times).for_each(|_| self.out.extend_from_slice(text.as_bytes()));
        }
    }

    fn begin(&mut self, reply_to: OwnedReplyTo, params: &str) {
        let Ok(Prompt { session_id: session, prompt }) = serde_json::from_str::<Prompt>(params) else {
            let refusal = rpc::RpcError::new(rpc::error::INVALID_PARAMS, "that is no prompt");
            self.out.extend(write::error(reply_to.as_ref(), refusal));
            return;
        };
        let first = prompt.first().map_or("", |block| &block.text);
        let goes = match serde_json::from_str::<Script>(first) {
            Ok(script) => {
                let seal = Seal { session: &session, turn: script.turn, place: Place::Prompt };
                let is_right = prompt.get(1).is_some_and(|block| sealed::read(&block.text) == Some(seal));
                let fault = (!is_right).then_some("its prompt has come to another session, or was changed");
                let rng = Rng::with_seed(script.seed);
                Goes::Sealed { script, rng, said: 0, asked: Asked::NotYet, fault }
            }
            Err(_) => {
                let told: Told = serde_json::from_str(first).unwrap_or_default();
                self.say(&told.say, &session);
                Goes::Said { wait: told.wait }
            }
        };
        self.turns.push_back(Turn { reply_to, session, goes });
    }

    /// Lets the first turn that can go on say some more, and puts it behind the others.
    fn go_on(&mut self) {
        let Some(at) = self.turns.iter().position(Turn::can_go_on) else { return };
        let Some(mut turn) = self.turns.remove(at) else { return };
        let run = self.rng.u32(1..=RUN_MAX);
        for _ in 0..run {
            if turn.step(&mut self.out, &mut self.next_id) {
                return;
            }
            if !turn.can_go_on() {
                break;
            }
        }
        self.turns.push_back(turn);
    }

    fn take_response(&mut self, id: &RawValue, result: Option<&RawValue>) {
        let number = id.get().parse().unwrap_or(0);
        let of_it = |turn: &&mut Turn| match &turn.goes {
            Goes::Said { wait } => *wait > 0,
            Goes::Sealed { asked, .. } => *asked == Asked::Waits(number),
        };
        let Some(turn) = self.turns.iter_mut().find(of_it) else { return };
        match &mut turn.goes {
            Goes::Said { wait } => *wait -= 1,
            Goes::Sealed { script, asked, fault, .. } => {
                *asked = Asked::Done;
                let decision = result.and_then(|result| serde_json::from_str::<Decision>(result.get()).ok());
                let seal = Seal { session: &turn.session, turn: script.turn, place: Place::Decision };
                if let Some(Meta { text }) = decision.and_then(|decision| decision.meta)
                    && sealed::read(&text) != Some(seal)
                {
                    *fault = Some("an answer to another question");
                }
            }
        }
    }

    fn cancel(&mut self, session: &str) {
        let (ended, left) = self.turns.drain(..).partition(|turn: &Turn| turn.session == session);
        self.turns = left;
        for turn in ended {
            let turn: Turn = turn;
            self.out.extend(write::result(turn.reply_to.as_ref(), json!({ "stopReason": "cancelled" })));
        }
    }
}

impl Turn {
    fn can_go_on(&self) -> bool {
        match &self.goes {
            Goes::Said { wait } => *wait == 0,
            Goes::Sealed { asked, .. } => !matches!(asked, Asked::Waits(_)),
        }
    }

    /// Says one thing. True: that was its end.
    fn step(&mut self, out: &mut Vec<u8>, next_id: &mut u64) -> bool {
        let end = json!({ "stopReason": "end_turn" });
        let Goes::Sealed { script, rng, said, asked, fault } = &mut self.goes else {
            out.extend(write::result(self.reply_to.as_ref(), end));
            return true;
        };
        let seal = |place| Seal { session: &self.session, turn: script.turn, place };
        if *asked == Asked::NotYet && script.ask == Some(*said) {
            let options = json!([{ "optionId": "yes", "name": "Yes", "kind": "allow_once" },
                { "optionId": "no", "name": "No", "kind": "reject_once" }]);
            let call =
                json!({ "toolCallId": "t", "title": seal(Place::Question).text(log_uniform(rng, 4096)) });
            let params = json!({ "sessionId": self.session, "toolCall": call, "options": options });
            out.extend(write::request(*next_id, "session/request_permission", params));
            *asked = Asked::Waits(*next_id);
            *next_id += 1;
            return false;
        }
        let text = |rng: &mut Rng, place| seal(place).text(log_uniform(rng, script.most));
        if *said < script.updates {
            let text = text(rng, Place::Update { nth: *said, of: script.updates });
            write_update(out, &self.session, &text);
            *said += 1;
            return false;
        }
        let text = text(rng, Place::Result);
        let result = json!({ "stopReason": "end_turn", "_meta": { "text": text, "fault": fault } });
        out.extend(write::result(self.reply_to.as_ref(), result));
        true
    }
}

fn write_update(out: &mut Vec<u8>, session: &str, text: &str) {
    let head = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":""#;
    let update = r#"","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#;
    for part in [head, session, update, text, "\"}}}}\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfSession {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    session_id: String,
    prompt: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct Decision {
    #[serde(rename = "_meta")]
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it says to these lines, with all its turns at their end or waiting.
    fn said(puppet: &mut Puppet, lines: &[Value]) -> Vec<Value> {
        for line in lines {
            puppet.take(line.to_string().as_bytes());
            while puppet.turns.iter().any(Turn::can_go_on) {
                puppet.go_on();
            }
        }
        let said = std::mem::take(&mut puppet.out);
        let lines = said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    fn puppet() -> Puppet {
        Puppet::new("toy".to_owned(), 1)
    }

    #[test]
    fn it_says_what_it_is_told_as_often_as_it_is_told() {
        let say = json!([{ "text": "{\"a\":[" }, { "text": "1,", "times": 3 }, { "text": "1]}\n" }]);
        let asked = json!({ "id": 1, "method": "agent/say", "params": { "say": say } });
        assert_eq!(said(&mut puppet(), &[asked]), [json!({ "a": [1, 1, 1, 1] }), answer(1, &json!({}))]);
        let asked = json!({ "id": 2, "method": "any", "params": { "x": 1 } });
        assert_eq!(said(&mut puppet(), &[asked]), [answer(2, &json!({ "echo": { "x": 1 } }))]);
    }

    #[test]
    fn a_turn_that_asks_waits_for_its_answers() {
        let script = json!({ "say": [{ "text": "{\"of\":\"@session\"}\n" }], "wait": 1 }).to_string();
        let prompt = json!({ "sessionId": "s", "prompt": [{ "type": "text", "text": script }] });
        let mut puppet = puppet();
        let asked = json!({ "id": 1, "method": "session/prompt", "params": prompt });
        assert_eq!(said(&mut puppet, &[asked]), [json!({ "of": "s" })]);
        let ended = answer(1, &json!({ "stopReason": "end_turn" }));
        assert_eq!(said(&mut puppet, &[json!({ "id": 9, "result": {} })]), [ended]);
    }

    #[test]
    fn a_turn_streams_sealed_texts_and_notices_what_is_not_its_own() {
        let script = Script { turn: 4, seed: 1, updates: 3, most: 500, ask: Some(1) };
        let mut puppet = puppet();
        let asked =
            json!({ "id": 1, "method": "session/prompt", "params": script.prompt("toy-1", "toy-1", 100) });
        let first = said(&mut puppet, &[asked]);
        assert_eq!(first[1]["method"], "session/request_permission");
        let text =
            |update: &Value| update["params"]["update"]["content"]["text"].as_str().unwrap().to_owned();
        let place = |text: &str| sealed::read(text).unwrap().place;
        assert_eq!(place(&text(&first[0])), Place::Update { nth: 0, of: 3 });
        let wrong = Seal { session: "toy-2", turn: 4, place: Place::Decision }.text(80);
        let answered = json!({ "id": first[1]["id"], "result": { "_meta": { "text": wrong } } });
        let rest = said(&mut puppet, &[answered]);
        assert_eq!(place(&text(&rest[1])), Place::Update { nth: 2, of: 3 });
        assert_eq!(rest[2]["result"]["_meta"]["fault"], "an answer to another question");
    }

    #[test]
    fn a_session_that_is_closed_ends_its_turns() {
        let script = json!({ "wait": 1 }).to_string();
        let prompt = json!({ "sessionId": "s", "prompt": [{ "type": "text", "text": script }] });
        let asked = json!({ "id": 1, "method": "session/prompt", "params": prompt });
        let closed = json!({ "id": 2, "method": "session/close", "params": { "sessionId": "s" } });
        let cancelled = answer(1, &json!({ "stopReason": "cancelled" }));
        assert_eq!(said(&mut puppet(), &[asked, closed]), [cancelled, answer(2, &json!({}))]);
    }

    #[test]
    fn only_its_own_sessions_are_opened_again() {
        let load = |id: &str| json!({ "id": 1, "method": "session/load", "params": { "sessionId": id } });
        assert_eq!(said(&mut puppet(), &[load("toy-1-2")]), [answer(1, &json!({}))]);
        assert!(said(&mut puppet(), &[load("other-1-2")])[0]["error"].is_object());
    }

    #[test]
    fn lengths_are_spread_over_all_magnitudes() {
        let mut rng = Rng::with_seed(1);
        let drawn = (0..1000).map(|_| log_uniform(&mut rng, 1 << 20)).collect::<Vec<_>>();
        let between =
            |least: usize, most: usize| drawn.iter().filter(|one| (least..most).contains(one)).count();
        assert!(between(1, 1 << 10) > 400 && between(1 << 10, 1 << 21) > 400 && between(0, 1) == 0);
    }

    fn answer(id: u64, result: &Value) -> Value {
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    }
}
