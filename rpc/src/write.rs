//! The lines of messages, each with its newline, so that one `write` sends a whole message.
//!
//! A line never holds a newline of its own: JSON that came from elsewhere may be spread over several lines, and its
//! newlines become spaces. Params that are null are left out.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::message::ReplyTo;

/// A request. The id is a number, a string or a `RawValue`.
pub fn request(id: impl Serialize, method: &str, params: impl Serialize) -> Vec<u8> {
    let mut line = Line::new();
    line.member("id", id);
    line.call(method, params)
}

/// A notification.
pub fn notification(method: &str, params: impl Serialize) -> Vec<u8> {
    Line::new().call(method, params)
}

/// The response to a request that succeeded.
pub fn result(to: ReplyTo<'_>, result: impl Serialize) -> Vec<u8> {
    Line::reply(to, "result", result)
}

/// The response to a request that failed. The error is an `RpcError` or any other JSON.
pub fn error(to: ReplyTo<'_>, error: impl Serialize) -> Vec<u8> {
    Line::reply(to, "error", error)
}

struct Line(Vec<u8>);

impl Line {
    fn new() -> Line {
        Line(br#"{"jsonrpc":"2.0""#.to_vec())
    }

    fn call(mut self, method: &str, params: impl Serialize) -> Vec<u8> {
        self.member("method", method);
        let before = self.0.len();
        self.member("params", params);
        if self.0[before..] == *br#","params":null"# {
            self.0.truncate(before);
        }
        self.end()
    }

    fn reply(to: ReplyTo<'_>, name: &str, value: impl Serialize) -> Vec<u8> {
        let mut line = Line::new();
        line.member::<&RawValue>("id", to.id);
        if let Some(session) = to.session {
            line.member::<&RawValue>("sessionId", session);
        }
        line.member(name, value);
        line.end()
    }

    fn member<T: Serialize>(&mut self, name: &str, value: T) {
        let text = [",\"", name, "\":"].concat();
        self.0.extend_from_slice(text.as_bytes());
        serde_json::to_writer(&mut self.0, &value).expect("a plain value becomes JSON");
    }

    fn end(mut self) -> Vec<u8> {
        for byte in &mut self.0 {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        self.0.extend_from_slice(b"}\n");
        self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::{METHOD_NOT_FOUND, RpcError};

    fn text(line: Vec<u8>) -> String {
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn messages_are_written_in_the_usual_order() {
        let params = json!({ "a": "é\n" });
        assert_eq!(
            text(request("x", "m", &params)),
            "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"m\",\"params\":{\"a\":\"é\\n\"}}\n"
        );
        assert_eq!(text(request(7, "m", ())), "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"m\"}\n");
        assert_eq!(text(notification("m", [1])), "{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":[1]}\n");
        let refused = RpcError::new(METHOD_NOT_FOUND, "no");
        assert_eq!(
            text(error(ReplyTo::UNKNOWN, &refused)),
            "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32601,\"message\":\"no\"}}\n"
        );
    }

    #[test]
    fn a_reply_carries_the_id_and_the_session_as_they_came() {
        let raw = |text| serde_json::from_str::<&RawValue>(text).unwrap();
        let to = ReplyTo { id: raw("1.0"), session: Some(raw(r#""\u0061""#)) };
        assert_eq!(
            text(result(to, ())),
            "{\"jsonrpc\":\"2.0\",\"id\":1.0,\"sessionId\":\"\\u0061\",\"result\":null}\n"
        );
    }

    #[test]
    fn json_of_many_lines_becomes_one() {
        let params: &RawValue = serde_json::from_str("{\r\n  \"a\": 1\n}").unwrap();
        assert_eq!(text(notification("m", params)).lines().count(), 1);
    }
}
