//! One line from the client, read once: what kind of message it is, and where its parts lie.
//!
//! The parts stay slices of the line: what is not looked into costs no copy, and params go back byte for
//! byte. Knows JSON-RPC and nothing of ACP.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::rpc::{Asker, INVALID_REQUEST, PARSE_ERROR, Refusal};

pub(crate) enum Incoming<'a> {
    Request { asker: Asker<'a>, method: Cow<'a, str>, params: Option<&'a RawValue> },
    Notification { method: Cow<'a, str>, params: Option<&'a RawValue> },
    Answer { id: &'a RawValue, outcome: Outcome<'a> },
}

#[derive(Clone, Copy)]
pub(crate) enum Outcome<'a> {
    Result(&'a RawValue),
    Error(&'a RawValue),
}

/// A line that is no message, and whom to tell: somebody, where an id could be read.
pub(crate) struct Malformed<'a> {
    pub(crate) asker: Option<Asker<'a>>,
    pub(crate) refusal: Refusal,
}

impl<'a> Incoming<'a> {
    pub(crate) fn scan(line: &'a [u8]) -> Result<Incoming<'a>, Malformed<'a>> {
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(_) => return Err(Malformed::new(PARSE_ERROR, "the line is not UTF-8")),
        };
        match serde_json::from_str::<Parts<'a>>(text) {
            Ok(parts) => parts.sort(),
            Err(error) => Err(blame(text, &error)),
        }
    }
}

impl Malformed<'_> {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Malformed { asker: None, refusal: Refusal::new(code, message) }
    }
}

/// The reader stops at the first thing it did not expect, so only a second look tells a broken line from a
/// whole one of the wrong shape.
fn blame<'a>(text: &str, error: &serde_json::Error) -> Malformed<'a> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => Malformed::new(PARSE_ERROR, format!("Parse error: {error}")),
        Ok(_) if text.trim_start().starts_with('[') => {
            Malformed::new(INVALID_REQUEST, "Invalid request: batches are not spoken here")
        }
        Ok(_) => Malformed::new(INVALID_REQUEST, format!("Invalid request: {error}")),
    }
}

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// Beside `params`, where clients of stdio_bus put it; its answer carries it back.
    #[serde(borrow, rename = "sessionId")]
    session: Option<&'a RawValue>,
}

impl<'a> Parts<'a> {
    fn sort(self) -> Result<Incoming<'a>, Malformed<'a>> {
        if self.id.is_some_and(|id| !is_id(id)) {
            return Err(Malformed::new(INVALID_REQUEST, "Invalid request: id is no string or number"));
        }
        let asker = self.id.map(|id| Asker { id, session: self.session });
        let params = self.params;
        let Some(method) = self.method else {
            let outcome = self.error.map(Outcome::Error).or(self.result.map(Outcome::Result));
            return match (self.id, outcome) {
                (Some(id), Some(outcome)) => Ok(Incoming::Answer { id, outcome }),
                _ => Err(Malformed {
                    asker,
                    refusal: Refusal::new(INVALID_REQUEST, "Invalid request: no method"),
                }),
            };
        };
        let Some(method) = string(method) else {
            let refusal = Refusal::new(INVALID_REQUEST, "Invalid request: method is no string");
            return Err(Malformed { asker, refusal });
        };
        Ok(match asker {
            Some(asker) => Incoming::Request { asker, method, params },
            None => Incoming::Notification { method, params },
        })
    }
}

/// serde takes `null` for an absent option, but `"id":null` is an id, and `"result":null` is an answer.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&'a RawValue>::deserialize(from).map(Some)
}

fn is_id(raw: &RawValue) -> bool {
    matches!(raw.get().as_bytes()[0], b'"' | b'-' | b'0'..=b'9') || raw.get() == "null"
}

fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inside = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inside.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str(raw.get()).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: &str) -> i32 {
        match Incoming::scan(line.as_bytes()) {
            Ok(_) => panic!("{line} is a message"),
            Err(malformed) => malformed.refusal.code,
        }
    }

    #[test]
    fn a_broken_line_is_told_from_one_of_the_wrong_shape() {
        for line in ["{", "{]", "nonsense", r#"{"id":1,"method":"m"} {}"#, r#"[{"id":1}"#] {
            assert_eq!(code(line), PARSE_ERROR, "{line}");
        }
        let twice = r#"{"id":1,"id":2,"method":"m"}"#;
        for line in
            ["1", "null", "[]", r#"[{"id":1,"method":"m"}]"#, "{}", r#"{"id":{},"method":"m"}"#, twice]
        {
            assert_eq!(code(line), INVALID_REQUEST, "{line}");
        }
        assert_eq!(
            Incoming::scan(b"{\"id\":1,\"method\":\"\xff\"}").err().unwrap().refusal.code,
            PARSE_ERROR
        );
    }

    #[test]
    fn a_null_id_asks_and_a_null_result_answers() {
        let scan = |line| Incoming::scan(str::as_bytes(line)).ok().unwrap();
        assert!(matches!(scan(r#"{"id":null,"method":"m"}"#), Incoming::Request { .. }));
        assert!(matches!(scan(r#"{"method":"m"}"#), Incoming::Notification { .. }));
        assert!(matches!(
            scan(r#"{"id":0,"result":null}"#),
            Incoming::Answer { outcome: Outcome::Result(_), .. }
        ));
        assert!(matches!(
            scan(r#"{"id":0,"error":{}}"#),
            Incoming::Answer { outcome: Outcome::Error(_), .. }
        ));
    }

    #[test]
    fn an_escaped_method_is_read_as_what_it_means() {
        match Incoming::scan(br#"{"id":1,"method":"session\/new"}"#).ok().unwrap() {
            Incoming::Request { method, .. } => assert_eq!(method, "session/new"),
            _ => panic!("it asks"),
        }
    }

    #[test]
    fn nesting_of_any_depth_is_only_bytes() {
        let deep =
            format!(r#"{{"id":1,"method":"m","params":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(Incoming::scan(deep.as_bytes()).is_ok());
    }
}
