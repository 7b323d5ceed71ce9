//! One connection that speaks ACP: its handshake, its sessions and their turns, and a verdict on every line that comes
//! back.
//!
//! A session has one turn at a time. The agent must stream the prompt's own text in order, and begin again at its start
//! if it sends more. A line that is lost, repeated, out of order or another session's does not fit. This module knows
//! nothing of sockets or of rates.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::time::Instant;

use rpc::write;
use serde_json::{Value, json};

use crate::client::grant;
use crate::ledger::Verdict;
use crate::request::Shape;

pub(crate) const UPDATE: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":""#;
pub(crate) const CHUNK: &[u8] =
    br#"","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#;
pub(crate) const CHUNK_END: &[u8] = br#""}}}}"#;
/// The prompt that makes the echo agent ask for a permission, before it sends text of its own.
const ASK: &str = "/ask";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Sessions on each connection.
    pub(crate) sessions: usize,
    /// Chunks that each turn must stream. None: as many as make up the whole prompt.
    pub(crate) updates: Option<u64>,
    /// In one turn of so many the agent asks for a permission. None: in no turn.
    pub(crate) ask_every: Option<u64>,
}

pub(crate) struct Acp {
    connection: u32,
    turns: Turns,
    sessions: Vec<Session>,
    by_id: HashMap<String, usize>,
    /// Sessions without a turn.
    free: VecDeque<usize>,
    next_id: u64,
    asked: HashMap<u64, Asked>,
}

#[derive(Clone, Copy)]
enum Asked {
    Initialize,
    Session,
    /// A prompt in the session of that index.
    Turn(usize),
}

struct Session {
    id: String,
    turn: Option<Turn>,
    /// The prompt. Its memory is reused from turn to turn.
    text: Vec<u8>,
}

struct Turn {
    /// When the turn was due.
    due: Instant,
    chunks: u64,
    /// Bytes of text that have come.
    received: usize,
    /// Whether the agent must ask for a permission.
    asks: bool,
    /// Whether it has asked.
    was_asked: bool,
    /// Whether a fault of this turn was counted.
    spoiled: bool,
}

impl Acp {
    pub(crate) fn new(connection: u32, turns: Turns) -> Acp {
        Acp {
            connection,
            turns,
            sessions: Vec::new(),
            by_id: HashMap::new(),
            free: VecDeque::new(),
            next_id: 1,
            asked: HashMap::new(),
        }
    }

    pub(crate) fn begin(&mut self, into: &mut Vec<u8>) {
        let capabilities =
            json!({ "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false });
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        self.call("initialize", &params, Asked::Initialize, into);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.sessions.len() == self.turns.sessions && !self.free.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// Appends the prompt of a turn in the session that has been free longest.
    pub(crate) fn ask(&mut self, shape: &Shape, into: &mut Vec<u8>, due: Instant) {
        let Some(index) = self.free.pop_front() else { return };
        let id = self.next_id;
        self.next_id += 1;
        self.asked.insert(id, Asked::Turn(index));
        let asks = self.turns.ask_every.is_some_and(|every| id.is_multiple_of(every));
        let session = &mut self.sessions[index];
        session.text.clear();
        const PROMPT: &str = r#","method":"session/prompt","params":{"sessionId":""#;
        const TEXT: &str = r#"","prompt":[{"type":"text","text":""#;
        const END: &str = "\"}]}}\n";
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id}{PROMPT}{}{TEXT}"#, session.id);
        if asks {
            session.text.extend_from_slice(ASK.as_bytes());
        } else {
            let _ = write!(session.text, "{}/{index}/{id} ", self.connection);
            let fixed = head.len() + END.len() + session.text.len();
            session.text.extend_from_slice(shape.pad(fixed));
        }
        for part in [head.as_bytes(), &session.text, END.as_bytes()] {
            into.extend_from_slice(part);
        }
        session.turn = Some(Turn { due, chunks: 0, received: 0, asks, was_asked: false, spoiled: false });
    }

    /// Judges one line, without its newline, and answers it if it is a permission request.
    pub(crate) fn judge(&mut self, line: &[u8], into: &mut Vec<u8>) -> Verdict {
        if let Some((session, text)) = usual_chunk(line) {
            return self.chunk(session, text);
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else { return Verdict::Unasked };
        let params = &message["params"];
        let session = params["sessionId"].as_str().unwrap_or_default();
        match (message["method"].as_str(), message["id"].as_u64()) {
            (Some("session/update"), None) => {
                let update = &params["update"];
                if update["sessionUpdate"] == "agent_message_chunk" {
                    return self
                        .chunk(session, update["content"]["text"].as_str().unwrap_or_default().as_bytes());
                }
                // The id of a session is not known before its answer has come.
                let opening = self.sessions.len() < self.turns.sessions;
                if opening || self.by_id.contains_key(session) { Verdict::Passing } else { Verdict::Unasked }
            }
            (Some("session/request_permission"), Some(_)) => self.permit(session, &message, into),
            (None, Some(id)) => self.answered(id, &message, into),
            _ => Verdict::Unasked,
        }
    }

    fn call(&mut self, method: &str, params: &Value, asked: Asked, into: &mut Vec<u8>) {
        self.asked.insert(self.next_id, asked);
        into.extend(write::request(self.next_id, method, params));
        self.next_id += 1;
    }

    fn chunk(&mut self, session: &str, text: &[u8]) -> Verdict {
        let Some(session) = self.by_id.get(session).map(|index| &mut self.sessions[*index]) else {
            return Verdict::Unasked;
        };
        let Some(turn) = session.turn.as_mut() else { return Verdict::Unasked };
        turn.chunks += 1;
        // After a permission the agent sends text of its own.
        if turn.spoiled || turn.asks {
            return Verdict::Passing;
        }
        turn.spoiled = !continues(&session.text, turn.received, text);
        turn.received += text.len();
        if turn.spoiled { Verdict::Spoiled } else { Verdict::Passing }
    }

    fn permit(&mut self, session: &str, question: &Value, into: &mut Vec<u8>) -> Verdict {
        let option = &question["params"]["options"][0]["optionId"];
        into.extend(grant(&question["id"], option));
        let turn = self.by_id.get(session).and_then(|index| self.sessions[*index].turn.as_mut());
        match turn {
            Some(turn) if turn.asks && !turn.was_asked => turn.was_asked = true,
            Some(turn) if turn.was_asked => return Verdict::Repeated,
            _ => return Verdict::Unasked,
        }
        Verdict::Passing
    }

    fn answered(&mut self, id: u64, answer: &Value, into: &mut Vec<u8>) -> Verdict {
        let result = &answer["result"];
        match self.asked.remove(&id) {
            None if id > 0 && id < self.next_id => Verdict::Repeated,
            None => Verdict::Unasked,
            Some(Asked::Initialize) if result["protocolVersion"] == 1 => {
                for _ in 0..self.turns.sessions {
                    self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }), Asked::Session, into);
                }
                Verdict::Passing
            }
            Some(Asked::Initialize) => Verdict::Spoiled,
            Some(Asked::Session) => {
                let Some(id) = result["sessionId"].as_str() else { return Verdict::Spoiled };
                let index = self.sessions.len();
                self.sessions.push(Session { id: id.to_owned(), turn: None, text: Vec::new() });
                self.free.push_back(index);
                let known = self.by_id.insert(id.to_owned(), index).is_some();
                if known { Verdict::Spoiled } else { Verdict::Passing }
            }
            Some(Asked::Turn(index)) => {
                self.free.push_back(index);
                let session = &mut self.sessions[index];
                let Some(turn) = session.turn.take() else { return Verdict::Unasked };
                let complete = match self.turns.updates {
                    _ if turn.asks => turn.was_asked,
                    Some(updates) => turn.chunks == updates,
                    None => turn.received == session.text.len(),
                };
                if turn.spoiled {
                    Verdict::Passing
                } else if complete && result["stopReason"] == "end_turn" {
                    Verdict::Right(turn.due)
                } else {
                    Verdict::Spoiled
                }
            }
        }
    }
}

/// The session and the text of a chunk that is spelled as usual. The text is compared byte for byte, so its escapes are
/// not decoded.
fn usual_chunk(line: &[u8]) -> Option<(&str, &[u8])> {
    let rest = line.strip_prefix(UPDATE)?;
    let (session, rest) = rest.split_at(memchr::memchr(b'"', rest)?);
    let text = rest.strip_prefix(CHUNK)?.strip_suffix(CHUNK_END)?;
    Some((std::str::from_utf8(session).ok()?, text))
}

/// Whether `chunk` continues a text that is repeated without end, after so many bytes.
fn continues(text: &[u8], after: usize, mut chunk: &[u8]) -> bool {
    if text.is_empty() {
        return chunk.is_empty();
    }
    let mut at = after % text.len();
    while !chunk.is_empty() {
        let part = chunk.len().min(text.len() - at);
        if chunk[..part] != text[at..at + part] {
            return false;
        }
        chunk = &chunk[part..];
        at = 0;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection with a session "s" and a turn in it, and the text of that turn.
    fn talking(turns: Turns) -> (Acp, String, Instant) {
        let mut acp = Acp::new(3, turns);
        let mut sent = Vec::new();
        let now = Instant::now();
        acp.begin(&mut sent);
        assert_eq!(acp.judge(br#"{"id":1,"result":{"protocolVersion":1}}"#, &mut sent), Verdict::Passing);
        assert!(!acp.has_room());
        assert_eq!(acp.judge(br#"{"id":2,"result":{"sessionId":"s"}}"#, &mut sent), Verdict::Passing);
        assert!(acp.has_room());
        sent.clear();
        acp.ask(&Shape::new(200), &mut sent, now);
        assert!(!acp.has_room() && sent.len() == 200);
        let prompt = serde_json::from_slice::<Value>(&sent).unwrap();
        assert_eq!((&prompt["id"], &prompt["params"]["sessionId"]), (&3.into(), &"s".into()));
        (acp, prompt["params"]["prompt"][0]["text"].as_str().unwrap().to_owned(), now)
    }

    fn chunk(session: &str, text: &str) -> Vec<u8> {
        [UPDATE, session.as_bytes(), CHUNK, text.as_bytes(), CHUNK_END].concat()
    }

    const END: &[u8] = br#"{"id":3,"result":{"stopReason":"end_turn"}}"#;
    const ONE: Turns = Turns { sessions: 1, updates: None, ask_every: None };

    #[test]
    fn a_turn_is_right_when_all_of_its_prompt_came_back_in_order() {
        let (mut acp, text, now) = talking(ONE);
        let (head, tail) = text.split_at(20);
        let into = &mut Vec::new();
        assert_eq!(acp.judge(&chunk("s", head), into), Verdict::Passing);
        let spaced = String::from_utf8(chunk("s", tail)).unwrap().replace("\"update\":", "\"update\": ");
        assert_eq!(acp.judge(spaced.as_bytes(), into), Verdict::Passing);
        assert_eq!(acp.judge(END, into), Verdict::Right(now));
        assert_eq!(acp.judge(END, into), Verdict::Repeated);
        assert_eq!(acp.judge(&chunk("s", head), into), Verdict::Unasked, "there is no turn");
        assert!(into.is_empty() && acp.has_room());
    }

    #[test]
    fn lost_repeated_and_mixed_up_chunks_spoil_a_turn_once() {
        for pieces in [&[0..20, 21..999][..], &[0..20, 0..20, 20..999], &[20..999, 0..20], &[0..999, 0..1]] {
            let (mut acp, text, _) = talking(ONE);
            let into = &mut Vec::new();
            let lines = pieces.iter().map(|piece| chunk("s", &text[piece.start..piece.end.min(text.len())]));
            let mut verdicts: Vec<_> = lines.map(|line| acp.judge(&line, into)).collect();
            verdicts.push(acp.judge(END, into));
            let spoiled = verdicts.iter().filter(|verdict| **verdict == Verdict::Spoiled).count();
            assert_eq!(spoiled, 1, "{pieces:?}: {verdicts:?}");
            assert!(!verdicts.iter().any(|verdict| matches!(verdict, Verdict::Right(_))));
        }
        let (mut acp, text, _) = talking(ONE);
        assert_eq!(acp.judge(&chunk("t", &text), &mut Vec::new()), Verdict::Unasked);
    }

    #[test]
    fn updates_are_counted_where_their_number_is_known() {
        for (count, right) in [(2, false), (3, true), (4, false)] {
            let (mut acp, text, _) = talking(Turns { updates: Some(3), ..ONE });
            (0..count)
                .for_each(|_| assert_eq!(acp.judge(&chunk("s", &text), &mut Vec::new()), Verdict::Passing));
            assert_eq!(matches!(acp.judge(END, &mut Vec::new()), Verdict::Right(_)), right, "{count}");
        }
    }

    #[test]
    fn a_question_is_answered_once_and_only_where_it_was_asked_for() {
        let question = |session| {
            let params = format!(r#"{{"sessionId":"{session}","options":[{{"optionId":"yes"}}]}}"#);
            format!(r#"{{"id":9,"method":"session/request_permission","params":{params}}}"#)
        };
        let mut acp = Acp::new(3, Turns { ask_every: Some(1), ..ONE });
        let into = &mut Vec::new();
        acp.begin(into);
        acp.judge(br#"{"id":1,"result":{"protocolVersion":1}}"#, into);
        acp.judge(br#"{"id":2,"result":{"sessionId":"s"}}"#, into);
        acp.ask(&Shape::new(200), into, Instant::now());
        into.clear();
        assert_eq!(acp.judge(question("s").as_bytes(), into), Verdict::Passing);
        let answer = serde_json::from_slice::<Value>(into).unwrap();
        assert_eq!((&answer["id"], &answer["result"]["outcome"]["optionId"]), (&9.into(), &"yes".into()));
        assert_eq!(acp.judge(question("s").as_bytes(), into), Verdict::Repeated);
        assert_eq!(acp.judge(question("t").as_bytes(), into), Verdict::Unasked);
        assert!(matches!(acp.judge(END, into), Verdict::Right(_)));
        let (mut acp, _, _) = talking(ONE);
        assert_eq!(acp.judge(question("s").as_bytes(), into), Verdict::Unasked);
    }
}
