//! Parses one line into a JSON-RPC message.
//!
//! The parts stay slices of the line, so that unread parts cost no copy and params can be echoed byte for byte.
//! Knows nothing of ACP.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::{Caller, INVALID_REQUEST, PARSE_ERROR, RpcError};

pub(crate) enum Message<'a> {
    Request { caller: Caller<'a>, method: Cow<'a, str>, params: Option<&'a RawValue> },
    Notification { method: Cow<'a, str>, params: Option<&'a RawValue> },
    Response { id: &'a RawValue, outcome: Outcome<'a> },
}

#[derive(Clone, Copy)]
pub(crate) enum Outcome<'a> {
    Result(&'a RawValue),
    Error(&'a RawValue),
}

/// A line that is no message. `caller` is known if the line has a valid id.
pub(crate) struct Malformed<'a> {
    pub(crate) caller: Option<Caller<'a>>,
    pub(crate) error: RpcError,
}

impl<'a> Message<'a> {
    pub(crate) fn parse(line: &'a [u8]) -> Result<Message<'a>, Malformed<'a>> {
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(_) => return Err(Malformed::new(PARSE_ERROR, "the line is not UTF-8")),
        };
        match serde_json::from_str::<Parts<'a>>(text) {
            Ok(parts) => parts.into_message(),
            Err(error) => Err(explain(text, &error)),
        }
    }
}

impl Malformed<'_> {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Malformed { caller: None, error: RpcError::new(code, message) }
    }
}

/// Tells broken JSON from JSON that is no message: serde's first error can mean either.
fn explain<'a>(text: &str, error: &serde_json::Error) -> Malformed<'a> {
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
    /// Clients of stdio_bus put it beside `params`. The response carries it back.
    #[serde(borrow, rename = "sessionId")]
    session: Option<&'a RawValue>,
}

impl<'a> Parts<'a> {
    fn into_message(self) -> Result<Message<'a>, Malformed<'a>> {
        if self.id.is_some_and(|id| !is_id(id)) {
            return Err(Malformed::new(INVALID_REQUEST, "Invalid request: id is no string or number"));
        }
        let caller = self.id.map(|id| Caller { id, session: self.session });
        let params = self.params;
        let Some(method) = self.method else {
            let outcome = self.error.map(Outcome::Error).or(self.result.map(Outcome::Result));
            return match (self.id, outcome) {
                (Some(id), Some(outcome)) => Ok(Message::Response { id, outcome }),
                _ => {
                    let error = RpcError::new(INVALID_REQUEST, "Invalid request: no method");
                    Err(Malformed { caller, error })
                }
            };
        };
        let Some(method) = string(method) else {
            let error = RpcError::new(INVALID_REQUEST, "Invalid request: method is no string");
            return Err(Malformed { caller, error });
        };
        Ok(match caller {
            Some(caller) => Message::Request { caller, method, params },
            None => Message::Notification { method, params },
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
        match Message::parse(line.as_bytes()) {
            Ok(_) => panic!("{line} is a message"),
            Err(malformed) => malformed.error.code,
        }
    }

    #[test]
    fn broken_json_and_json_that_is_no_message_have_different_codes() {
        for line in ["{", "{]", "nonsense", r#"{"id":1,"method":"m"} {}"#, r#"[{"id":1}"#] {
            assert_eq!(code(line), PARSE_ERROR, "{line}");
        }
        let twice = r#"{"id":1,"id":2,"method":"m"}"#;
        for line in
            ["1", "null", "[]", r#"[{"id":1,"method":"m"}]"#, "{}", r#"{"id":{},"method":"m"}"#, twice]
        {
            assert_eq!(code(line), INVALID_REQUEST, "{line}");
        }
        assert_eq!(Message::parse(b"{\"id\":1,\"method\":\"\xff\"}").err().unwrap().error.code, PARSE_ERROR);
    }

    #[test]
    fn a_null_id_makes_a_request_and_a_null_result_a_response() {
        let parse = |line| Message::parse(str::as_bytes(line)).ok().unwrap();
        assert!(matches!(parse(r#"{"id":null,"method":"m"}"#), Message::Request { .. }));
        assert!(matches!(parse(r#"{"method":"m"}"#), Message::Notification { .. }));
        assert!(matches!(
            parse(r#"{"id":0,"result":null}"#),
            Message::Response { outcome: Outcome::Result(_), .. }
        ));
        assert!(matches!(
            parse(r#"{"id":0,"error":{}}"#),
            Message::Response { outcome: Outcome::Error(_), .. }
        ));
    }

    #[test]
    fn an_escaped_method_is_unescaped() {
        match Message::parse(br#"{"id":1,"method":"session\/new"}"#).ok().unwrap() {
            Message::Request { method, .. } => assert_eq!(method, "session/new"),
            _ => panic!("it is a request"),
        }
    }

    #[test]
    fn deep_nesting_is_accepted() {
        let deep =
            format!(r#"{{"id":1,"method":"m","params":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(Message::parse(deep.as_bytes()).is_ok());
    }
}
