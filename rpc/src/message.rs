//! One line, parsed once: what kind of message it is, and where its parts lie.
//!
//! The parts stay slices of the line, so what is not looked into costs no copy and is passed on byte for byte.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::{INVALID_REQUEST, PARSE_ERROR, RpcError};

/// A JSON-RPC message.
pub enum Message<'a> {
    /// The peer waits for a response.
    Request {
        /// Where the response goes.
        reply_to: ReplyTo<'a>,
        /// The method, unescaped.
        method: Cow<'a, str>,
        /// The params, unless they are missing or null.
        params: Option<&'a RawValue>,
    },
    /// The peer waits for nothing.
    Notification {
        /// The method, unescaped.
        method: Cow<'a, str>,
        /// The params, unless they are missing or null.
        params: Option<&'a RawValue>,
    },
    /// The answer to a request.
    Response {
        /// The id of the request.
        id: &'a RawValue,
        /// Its result, which may be null, or its error.
        outcome: Result<&'a RawValue, &'a RawValue>,
    },
}

/// Where a response goes: the id and the top-level session of the request, both as they were spelled.
#[derive(Clone, Copy)]
pub struct ReplyTo<'a> {
    /// The id of the request.
    pub id: &'a RawValue,
    /// The `sessionId` beside `params`, where clients of stdio_bus put it. The response carries it back.
    pub session: Option<&'a RawValue>,
}

impl ReplyTo<'_> {
    /// The reply to a line whose id could not be read.
    pub const UNKNOWN: ReplyTo<'static> = ReplyTo { id: RawValue::NULL, session: None };

    /// A copy that outlives the line.
    pub fn to_owned(self) -> OwnedReplyTo {
        OwnedReplyTo { id: self.id.to_owned(), session: self.session.map(ToOwned::to_owned) }
    }
}

impl<'a> From<&'a RawValue> for ReplyTo<'a> {
    fn from(id: &'a RawValue) -> ReplyTo<'a> {
        ReplyTo { id, session: None }
    }
}

/// A `ReplyTo` that outlives the line of its request.
#[derive(Clone, Debug)]
pub struct OwnedReplyTo {
    /// The id of the request.
    pub id: Box<RawValue>,
    session: Option<Box<RawValue>>,
}

impl OwnedReplyTo {
    /// What `write` takes.
    pub fn as_ref(&self) -> ReplyTo<'_> {
        ReplyTo { id: &self.id, session: self.session.as_deref() }
    }
}

/// Why a line is no message, and where to say so.
pub struct Malformed<'a> {
    /// `ReplyTo::UNKNOWN` if no id could be read.
    pub reply_to: ReplyTo<'a>,
    /// What is wrong.
    pub error: Box<RpcError>,
}

impl<'a> Message<'a> {
    /// Parses a line, with or without its newline.
    pub fn parse(line: &'a [u8]) -> Result<Message<'a>, Malformed<'a>> {
        let Ok(text) = std::str::from_utf8(line) else {
            return Err(malformed(PARSE_ERROR, "the line is not UTF-8"));
        };
        match serde_json::from_str::<Parts<'a>>(text) {
            Ok(parts) if is_object(line) => parts.into_message(),
            Ok(_) => Err(explain(text, "")),
            Err(error) => Err(explain(text, &error.to_string())),
        }
    }
}

/// The members of a message, each as it was spelled and whatever it holds.
#[derive(Clone, Copy, Default, Deserialize)]
pub struct Parts<'a> {
    /// The id.
    #[serde(borrow, default, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    /// The method, with its quotes.
    #[serde(borrow, default, deserialize_with = "present")]
    pub method: Option<&'a RawValue>,
    /// The params.
    #[serde(borrow, default, deserialize_with = "present")]
    pub params: Option<&'a RawValue>,
    /// The result.
    #[serde(borrow, default, deserialize_with = "present")]
    pub result: Option<&'a RawValue>,
    /// The error.
    #[serde(borrow, default, deserialize_with = "present")]
    pub error: Option<&'a RawValue>,
    /// The session beside `params`, where clients of stdio_bus put it.
    #[serde(borrow, default, rename = "sessionId", deserialize_with = "present")]
    pub session: Option<&'a RawValue>,
    /// The pool that this one message is for, where clients of stdio_bus put it.
    #[serde(borrow, default, deserialize_with = "present")]
    pub pool: Option<&'a RawValue>,
}

impl<'a> Parts<'a> {
    /// `None`: the line is not one JSON object, or a member is there twice.
    pub fn parse(line: &'a [u8]) -> Option<Parts<'a>> {
        members(line)
    }

    fn into_message(self) -> Result<Message<'a>, Malformed<'a>> {
        if self.id.is_some_and(|id| !is_id(id)) {
            return Err(malformed(INVALID_REQUEST, "Invalid request: id is no string or number"));
        }
        let session = self.session.filter(is_not_null);
        let reply_to = self.id.map_or(ReplyTo::UNKNOWN, |id| ReplyTo { id, session });
        let invalid = |why| Err(Malformed { reply_to, error: Box::new(RpcError::new(INVALID_REQUEST, why)) });
        let Some(method) = self.method.filter(is_not_null) else {
            let outcome = self.error.filter(is_not_null).map(Err).or(self.result.map(Ok));
            return match (self.id, outcome) {
                (Some(id), Some(outcome)) => Ok(Message::Response { id, outcome }),
                _ => invalid("Invalid request: no method"),
            };
        };
        let Some(method) = string(method) else {
            return invalid("Invalid request: method is no string");
        };
        let params = self.params.filter(is_not_null);
        Ok(match self.id {
            Some(_) => Message::Request { reply_to, method, params },
            None => Message::Notification { method, params },
        })
    }
}

/// Reads members of a JSON object. `None`: it is not one, or a member is there twice.
pub fn members<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    // serde would take a list for the members in their order.
    if is_object(json) { serde_json::from_slice(json).ok() } else { None }
}

/// For `deserialize_with`: a `null` that is there is `Some`, because a null id is an id and a null result is a result.
pub fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&'a RawValue>::deserialize(from).map(Some)
}

fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().starts_with(b"{")
}

fn malformed<'a>(code: i32, message: impl Into<String>) -> Malformed<'a> {
    Malformed { reply_to: ReplyTo::UNKNOWN, error: Box::new(RpcError::new(code, message)) }
}

/// The parser stops at the first thing that it did not expect, so a second look has to tell a line that is no JSON from
/// JSON of the wrong shape.
fn explain<'a>(text: &str, error: &str) -> Malformed<'a> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => malformed(PARSE_ERROR, format!("Parse error: {error}")),
        Ok(_) if text.trim_start().starts_with('[') => {
            malformed(INVALID_REQUEST, "Invalid request: batches are not spoken here")
        }
        Ok(_) => malformed(INVALID_REQUEST, format!("Invalid request: {error}")),
    }
}

fn is_id(raw: &RawValue) -> bool {
    matches!(raw.get().as_bytes()[0], b'"' | b'-' | b'0'..=b'9') || raw.get() == "null"
}

fn is_not_null(raw: &&RawValue) -> bool {
    raw.get() != "null"
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

    fn refused(line: &[u8]) -> Malformed<'_> {
        match Message::parse(line) {
            Ok(_) => panic!("{} is a message", line.escape_ascii()),
            Err(malformed) => malformed,
        }
    }

    #[test]
    fn a_line_that_is_no_json_is_told_from_json_of_the_wrong_shape() {
        let broken = ["{", "{]", "nonsense", r#"{"id":1,"method":"m"} {}"#, r#"[{"id":1}"#, ""];
        for line in broken {
            assert_eq!(refused(line.as_bytes()).error.code, PARSE_ERROR, "{line}");
        }
        assert_eq!(refused(b"{\"id\":1,\"method\":\"\xff\"}").error.code, PARSE_ERROR);
        let misshapen = [
            "1",
            "null",
            "[]",
            r#"[{"id":1,"method":"m"}]"#,
            r#"[1,"m",{},1,1,1,1]"#,
            "{}",
            r#"{"id":{},"method":"m"}"#,
            r#"{"id":1,"id":2,"method":"m"}"#,
        ];
        for line in misshapen {
            assert_eq!(refused(line.as_bytes()).error.code, INVALID_REQUEST, "{line}");
        }
        assert_eq!(refused(b"[1]").error.message, "Invalid request: batches are not spoken here");
    }

    #[test]
    fn a_malformed_line_is_answered_under_its_id_if_that_can_be_read() {
        assert_eq!(refused(br#"{"id":1.50,"method":7}"#).reply_to.id.get(), "1.50");
        assert_eq!(refused(br#"{"id":"x"}"#).reply_to.id.get(), r#""x""#);
        assert_eq!(refused(br#"{"id":[],"method":"m"}"#).reply_to.id.get(), "null");
    }

    #[test]
    fn a_null_id_asks_and_a_null_result_answers() {
        let parse = |line| Message::parse(str::as_bytes(line)).ok().unwrap();
        assert!(matches!(parse(r#"{"id":null,"method":"m"}"#), Message::Request { .. }));
        assert!(matches!(
            parse(r#"{"method":"m","params":null}"#),
            Message::Notification { params: None, .. }
        ));
        assert!(matches!(parse(r#"{"id":0,"result":null}"#), Message::Response { outcome: Ok(_), .. }));
        assert!(matches!(parse(r#"{"id":0,"error":{}}"#), Message::Response { outcome: Err(_), .. }));
        let both = r#"{"id":0,"result":1,"error":null}"#;
        assert!(matches!(parse(both), Message::Response { outcome: Ok(_), .. }));
    }

    #[test]
    fn an_escaped_method_is_read_as_what_it_means() {
        match Message::parse(br#"{"id":1,"method":"session\/new"}"#).ok().unwrap() {
            Message::Request { method, .. } => assert_eq!(method, "session/new"),
            _ => panic!("it asks"),
        }
    }

    #[test]
    fn a_reply_keeps_the_spelling_of_its_request() {
        let line = br#"{"id": "\u0061", "sessionId":"s" ,"method":"m"}"#;
        let Ok(Message::Request { reply_to, .. }) = Message::parse(line) else { panic!("it asks") };
        let kept = reply_to.to_owned();
        assert_eq!(kept.as_ref().id.get(), r#""\u0061""#);
        assert_eq!(kept.as_ref().session.map(RawValue::get), Some(r#""s""#));
    }

    #[test]
    fn parts_are_given_as_they_are_spelled() {
        let line = br#" {"id" : 1.50,"x":[{}], "result": null ,"method":"a\u0062"}"#;
        let parts = Parts::parse(line).unwrap();
        assert_eq!(parts.id.map(RawValue::get), Some("1.50"));
        assert_eq!(parts.result.map(RawValue::get), Some("null"));
        assert_eq!(parts.method.map(RawValue::get), Some(r#""a\u0062""#));
        assert!(parts.error.is_none() && parts.params.is_none() && parts.pool.is_none());
    }

    #[test]
    fn what_is_no_object_or_not_clear_has_no_parts() {
        for line in ["", " ", "[]", r#"[1,"m"]"#, "7", "{", r#"{"id":1,"id":2}"#, r#"{"id":1} {}"#] {
            assert!(Parts::parse(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn nesting_of_any_depth_is_only_bytes() {
        let nested = format!("{}{}", "[".repeat(400_000), "]".repeat(400_000));
        let line = format!(r#"{{"id":1,"method":"m","params":{nested}}}"#);
        assert!(Message::parse(line.as_bytes()).is_ok());
        assert!(Parts::parse(line.as_bytes()).is_some());
    }
}
