//! Lines as peers write them, with named slots where the bus may write something else.
//!
//! A line is written with odd spacing, key order and unknown members, and is kept in parts. What the bus sends is
//! compared with it: outside of the slots every byte must be the same.

use crate::rng::Rng;

/// A value that the bus may rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Id,
    /// `params.sessionId`
    Session,
    /// `sessionId` beside `method` or `result`
    Top,
    /// `params.requestId`
    Request,
    /// `params.update.sessionId`
    Child,
    /// `result.sessionId`
    Opened,
}

#[derive(Clone, Debug)]
pub(crate) enum Part {
    Text(Vec<u8>),
    Slot(Slot, Vec<u8>),
}

#[derive(Clone, Default)]
pub(crate) struct Line {
    parts: Vec<Part>,
}

/// Shows the text without the padding.
impl std::fmt::Debug for Line {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", String::from_utf8_lossy(&self.bytes()).replace("pppp", ""))
    }
}

impl Line {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) | Part::Slot(_, text) => bytes.extend_from_slice(text),
            }
        }
        bytes
    }

    /// The value of a slot as the peer sent it.
    pub(crate) fn slot(&self, wanted: Slot) -> Option<&[u8]> {
        self.parts.iter().find_map(|part| match part {
            Part::Slot(slot, token) if *slot == wanted => Some(&**token),
            _ => None,
        })
    }

    /// The slot values of `other`, if it is the same everywhere else.
    pub(crate) fn filled(&self, other: &[u8]) -> Option<Vec<(Slot, Vec<u8>)>> {
        let mut rest = other;
        let mut found = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => rest = rest.strip_prefix(&**text)?,
                Part::Slot(slot, _) => {
                    let (token, after) = rest.split_at(token_length(rest)?);
                    found.push((*slot, token.to_vec()));
                    rest = after;
                }
            }
        }
        rest.is_empty().then_some(found)
    }
}

/// The length of the string or number at the start of these bytes.
fn token_length(bytes: &[u8]) -> Option<usize> {
    if bytes.first() != Some(&b'"') {
        let end = bytes.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t'));
        return end.filter(|end| *end > 0);
    }
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return Some(at + 1),
            _ => escaped = *byte == b'\\' && !escaped,
        }
    }
    None
}

/// The text of a JSON string, however it is spelled.
pub(crate) fn decoded(token: &[u8]) -> Option<String> {
    serde_json::from_slice(token).ok()
}

/// A mark that is unique to one line of the whole run.
pub(crate) fn mark(serial: usize) -> String {
    format!("#{serial}#")
}

/// The serial of the first mark in a line.
pub(crate) fn marked(line: &[u8]) -> Option<usize> {
    let mut parts = line.split(|byte| *byte == b'#').skip(1);
    parts.find_map(|part| std::str::from_utf8(part).ok().filter(|part| !part.is_empty())?.parse().ok())
}

pub(crate) type Value = Vec<Part>;

pub(crate) fn text(text: impl Into<Vec<u8>>) -> Value {
    vec![Part::Text(text.into())]
}

pub(crate) fn slot(slot: Slot, token: impl Into<Vec<u8>>) -> Value {
    vec![Part::Slot(slot, token.into())]
}

/// Writes a text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(crate) fn object(rng: &mut Rng, mut members: Vec<(&str, Value)>) -> Value {
    rng.shuffle(&mut members);
    let mut parts = text("{");
    for (at, (key, value)) in members.into_iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let (before, after, inside) = (space(rng), space(rng), space(rng));
        parts.extend(text(format!("{comma}{before}\"{key}\"{inside}:{after}")));
        parts.extend(value);
        parts.extend(text(space(rng)));
    }
    parts.extend(text("}"));
    parts
}

pub(crate) fn line(value: Value) -> Line {
    let mut parts: Vec<Part> = Vec::new();
    for part in value {
        match (parts.last_mut(), part) {
            (Some(Part::Text(before)), Part::Text(text)) => before.extend(text),
            (_, part) => parts.push(part),
        }
    }
    Line { parts }
}

/// A value that looks as if it mattered for routing, and does not.
pub(crate) fn noise(rng: &mut Rng) -> Value {
    text(rng.one(&[
        r#"{"id":7,"sessionId":"s1","params":{"sessionId":"s2"}}"#,
        r#"[1.0,1E5,-0,0.10,{"id":"x","result":{"sessionId":"s1"}}]"#,
        r#""\u00e9 \ud83d\ude00 é \" \\ \/""#,
        r#"{"method":"session/new","jsonrpc":"2.0" , "id" : 1 }"#,
        "null",
        "12345678901234567890123",
        r#""{\"id\":1}""#,
    ]))
}

fn space(rng: &mut Rng) -> &'static str {
    rng.one(&["", "", "", " ", "  ", "\t"])
}
