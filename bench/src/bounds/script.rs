//! What a puppet is told to say in an attack, and how its turn is read to the end.

use std::io;

use serde_json::{Value, json};

use super::scene::Scene;
use crate::client::{Client, grant};

const QUESTION: &str = concat!(
    r#"{"jsonrpc":"2.0","id":@id,"method":"session/request_permission","params":{"sessionId":"@session","#,
    r#""options":[{"optionId":"yes","name":"Yes","kind":"allow_once"}],"#,
    r#""toolCall":{"toolCallId":"t","title":"@title"}}}"#,
    "\n"
);
const UPDATE: &str = concat!(
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"@session","#,
    r#""update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"@text"}}}}"#,
    "\n"
);

/// A piece of a script of the puppet.
pub(super) fn piece(text: &str, times: usize) -> Value {
    json!({ "text": text, "times": times })
}

pub(super) fn question(id: u64, title: &str) -> Value {
    piece(&QUESTION.replace("@id", &id.to_string()).replace("@title", title), 1)
}

pub(super) fn update(text: &str, times: usize) -> Value {
    piece(&UPDATE.replace("@text", text), times)
}

/// The length of an update with a text of this length, more or less.
pub(super) fn update_bytes(text_bytes: usize) -> usize {
    UPDATE.len() + text_bytes
}

/// What stands before and behind a mark in the text of a piece.
pub(super) fn halves(piece: &Value, mark: &str) -> [String; 2] {
    let text = piece["text"].as_str().unwrap_or_default();
    let (head, tail) = text.split_once(mark).unwrap_or((text, ""));
    [head.to_owned(), tail.to_owned()]
}

/// The attacker makes the puppet say this in a turn that ends when so many questions are answered.
pub(super) fn prompt_to_say(scene: &mut Scene, say: &[Value], wait: usize) -> io::Result<()> {
    scene.attacker.prompt(&scene.session, &json!({ "say": say, "wait": wait }).to_string())
}

/// Reads to the end of the turn, and says yes to whatever is asked meanwhile.
pub(super) fn until_prompt_ends(client: &mut Client) -> io::Result<()> {
    loop {
        let line = client.line()?;
        let head = &line[..line.len().min(200)];
        if memchr::memmem::find(head, b"\"id\":\"prompt\"").is_some() {
            return Ok(());
        }
        if memchr::memmem::find(head, b"session/request_permission").is_some() {
            let id = id_of(line)?;
            client.send(&grant(&id, &json!("yes")))?;
        }
    }
}

fn id_of(line: &[u8]) -> io::Result<Value> {
    let id = rpc::Parts::parse(line).and_then(|parts| serde_json::from_str(parts.id?.get()).ok());
    id.ok_or_else(|| io::Error::other("a question without an id"))
}

/// The id of the next question that this client is asked.
pub(super) fn next_question(client: &mut Client) -> io::Result<Value> {
    loop {
        let line = client.line()?;
        let head = &line[..line.len().min(200)];
        if memchr::memmem::find(head, b"session/request_permission").is_some() {
            return id_of(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_are_lines_of_json() {
        for said in [question(7, "What?"), update("x", 2)] {
            let text = said["text"].as_str().unwrap();
            assert!(text.ends_with('\n') && serde_json::from_str::<Value>(text).is_ok(), "{text}");
        }
        assert_eq!(halves(&piece("a@hereb", 1), "@here"), ["a", "b"]);
    }
}
