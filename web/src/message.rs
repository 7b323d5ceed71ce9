//! The few fields of a JSON-RPC message that the door looks at. The bytes themselves pass as they came.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;

#[derive(Debug, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    error: Option<IgnoredAny>,
}

impl<'a> Message<'a> {
    /// `None`: it is no object, or a key of it occurs twice.
    pub(crate) fn parse(text: &'a str) -> Option<Message<'a>> {
        // A list would be taken for the fields in their order.
        if !text.trim_start().starts_with('{') {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    pub(crate) fn is_request(&self) -> bool {
        self.method.is_some() && self.id.is_some()
    }

    /// The session that its params name.
    pub(crate) fn session(&self) -> Option<Cow<'a, str>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            session_id: Option<Cow<'a, str>>,
        }

        // A list would be taken for the fields in their order.
        let params = self.params.map(RawValue::get).filter(|params| params.starts_with('{'))?;
        serde_json::from_str::<Params<'a>>(params).ok()?.session_id
    }

    /// The line that this was parsed from, with a session in its params. All other bytes stay as they are. `None`: the
    /// params are no object, or say something about a session already.
    pub(crate) fn with_session(&self, line: &str, session: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Params {
            #[serde(default, rename = "sessionId", deserialize_with = "is_there")]
            has_session: bool,
        }

        let params = self.params.map(RawValue::get).filter(|params| params.starts_with('{'))?;
        if serde_json::from_str::<Params>(params).ok()?.has_session {
            return None;
        }
        // The params are a part of the line.
        let at = params.as_ptr().addr().checked_sub(line.as_ptr().addr())? + 1;
        let (before, after) = line.split_at_checked(at)?;
        let comma = if after.trim_start().starts_with('}') { "" } else { "," };
        Some(format!(r#"{before}"sessionId":{}{comma}{after}"#, json!(session)))
    }

    pub(crate) fn is_response(&self) -> bool {
        self.method.is_none() && (self.result.is_some() || self.error.is_some())
    }
}

/// Reads any value, also null: the key is there.
fn is_there<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

/// A whole line that answers the request `id` with an error of the door.
pub(crate) fn error_line(id: Option<&RawValue>, code: i32, reason: &str, message: &str) -> String {
    let error = json!({ "code": code, "message": message, "data": { "reason": reason } });
    let id = id.map_or("null", RawValue::get);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// A whole line that says why a text is no message, with the codes of the bus.
pub(crate) fn malformed_line(text: &str) -> String {
    let (code, reason, why) = if !is_json(text) {
        (-32_700, "parse", "this is not JSON")
    } else if text.starts_with('[') {
        (-32_600, "invalid", "batches are not taken")
    } else {
        (-32_600, "invalid", "this is not one JSON-RPC message")
    };
    error_line(None, code, reason, why)
}

pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The lines of one frame or body. A line break between the tokens of one message is white space; some clients also
/// put several messages into one frame.
pub(crate) fn lines_of(text: &str) -> Vec<Cow<'_, str>> {
    let text = text.trim();
    if !text.contains(['\n', '\r']) {
        return if text.is_empty() { Vec::new() } else { vec![text.into()] };
    }
    if is_json(text) {
        return vec![text.replace(['\n', '\r'], " ").into()];
    }
    let lines = text.split(['\n', '\r']).map(str::trim);
    lines.filter(|line| !line.is_empty()).map(Cow::Borrowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_message_or_several_lines() {
        assert_eq!(lines_of(" {\"id\":1}\n"), [r#"{"id":1}"#]);
        assert_eq!(lines_of("{\n  \"id\": 1\r\n}"), [r#"{   "id": 1  }"#]);
        assert_eq!(lines_of("{\"id\":1}\n\n{\"id\":2}\r\n"), [r#"{"id":1}"#, r#"{"id":2}"#]);
        assert_eq!(lines_of("{\"id\":1}\n{oops\n"), [r#"{"id":1}"#, "{oops"]);
        assert!(lines_of(" \r\n ").is_empty());
    }

    #[test]
    fn only_an_object_whose_keys_occur_once_is_a_message() {
        assert!(Message::parse(r#"["session/prompt",1]"#).is_none());
        assert!(Message::parse(r#"{"method":"_bus/status","method":"session/prompt"}"#).is_none());
        assert!(Message::parse(r#"{"method":"_bus/status","m\u0065thod":"session/prompt"}"#).is_none());
        let message = Message::parse(r#"{"m\u0065thod":"a/b","id":"x","params":{"sessionId":"s"}}"#).unwrap();
        assert_eq!((message.method.as_deref(), message.session().as_deref()), (Some("a/b"), Some("s")));
        assert!(message.is_request() && !message.is_response());
        assert!(Message::parse(r#"{"id":1,"result":null}"#).is_some());
    }

    #[test]
    fn a_session_is_put_into_the_params_and_the_rest_stays_as_it_is() {
        let filled = |line: &str| Message::parse(line).unwrap().with_session(line, r#"s"1"#);
        let line = r#"{"x":{ },"method":"a", "params":{ },"id":1.0}"#;
        let expected = r#"{"x":{ },"method":"a", "params":{"sessionId":"s\"1" },"id":1.0}"#;
        assert_eq!(filled(line).as_deref(), Some(expected));
        let line = r#"{"params" : { "é" : [1e2], "prompt":[{"sessionId":1}]} ,"method":"a"}"#;
        let expected =
            r#"{"params" : {"sessionId":"s\"1", "é" : [1e2], "prompt":[{"sessionId":1}]} ,"method":"a"}"#;
        assert_eq!(filled(line).as_deref(), Some(expected));
        for params in [r#"{"sessionId":null}"#, r#"{"session\u0049d":5}"#, "null", "[]", "7"] {
            assert_eq!(filled(&format!(r#"{{"method":"a","params":{params}}}"#)), None, "{params}");
        }
        assert_eq!(filled(r#"{"method":"a"}"#), None);
    }

    #[test]
    fn an_error_repeats_the_id_as_it_was_spelled() {
        let message = Message::parse(r#"{"id": 1.0e1,"method":"x"}"#).unwrap();
        let line = error_line(message.id, -32_061, "read_only", "no");
        assert!(line.starts_with(r#"{"jsonrpc":"2.0","id":1.0e1,"error":{"code":-32061,"#), "{line}");
    }
}
