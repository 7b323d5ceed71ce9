//! Cuts what is too long to keep: mostly the output of tools, which the transcript is read without.

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::message::Kind;

/// A string of a tool call is cut here.
const TOOL_STRING_BYTES: usize = 32 << 10;
/// Any other string is cut here.
const STRING_BYTES: usize = 1 << 20;
/// Of a message that is longer after that, only its method and its kind are kept.
const MESSAGE_BYTES: usize = 4 << 20;

/// The message as it is kept, and how many of its bytes are left out.
pub fn cut(message: &RawValue) -> (Cow<'_, RawValue>, Option<u64>) {
    let bytes = message.get().len();
    if bytes <= TOOL_STRING_BYTES {
        return (Cow::Borrowed(message), None);
    }
    let kind = Kind::of(message);
    let update = kind.as_ref().and_then(Kind::update);
    let most = match update {
        Some("tool_call" | "tool_call_update") => TOOL_STRING_BYTES,
        _ => STRING_BYTES,
    };
    if bytes <= most {
        return (Cow::Borrowed(message), None);
    }
    if let Ok(mut value) = serde_json::from_str::<Value>(message.get()) {
        let left_out = shorten(&mut value, most);
        match to_raw_value(&value) {
            Ok(_) if left_out == 0 && bytes <= MESSAGE_BYTES => return (Cow::Borrowed(message), None),
            Ok(short) if short.get().len() <= MESSAGE_BYTES => return (Cow::Owned(short), Some(left_out)),
            _ => {}
        }
    }
    let method = kind.as_ref().and_then(|kind| kind.method.as_deref());
    let rest = json!({ "method": method, "params": { "update": { "sessionUpdate": update } } });
    (Cow::Owned(to_raw_value(&rest).unwrap_or_default()), Some(bytes as u64))
}

/// Shortens all strings to this length, and returns by how much.
fn shorten(value: &mut Value, most: usize) -> u64 {
    match value {
        Value::String(text) if text.len() > most => {
            let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            let left_out = text.len() - end;
            text.truncate(end);
            text.push_str(&format!("\n[{left_out} bytes are not kept]"));
            left_out as u64
        }
        Value::Array(values) => values.iter_mut().map(|value| shorten(value, most)).sum(),
        Value::Object(values) => values.iter_mut().map(|(_, value)| shorten(value, most)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(kind: &str, bytes: usize) -> Box<RawValue> {
        let text = "é".repeat(bytes / 2);
        let content = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
        let update = json!({ "sessionUpdate": kind, "toolCallId": "t", "content": content });
        to_raw_value(&json!({ "method": "session/update", "params": { "update": update } })).unwrap()
    }

    #[test]
    fn the_output_of_a_tool_is_cut_and_says_so() {
        let long = update("tool_call_update", 100 << 10);
        let (kept, left_out) = cut(&long);
        assert!(left_out.is_some_and(|bytes| bytes > 60 << 10), "{left_out:?}");
        assert!(kept.get().len() < 40 << 10 && kept.get().contains("bytes are not kept]"));
        assert!(kept.get().contains(r#""toolCallId":"t""#));
        let said = update("agent_message_chunk", 100 << 10);
        assert_eq!(cut(&said).1, None);
        assert_eq!(cut(&update("tool_call", 10 << 10)).1, None);
    }

    #[test]
    fn of_a_huge_message_only_its_kind_is_kept() {
        let many: Vec<_> = (0..200_000).map(|number| format!("some words and {number}")).collect();
        let update = json!({ "sessionUpdate": "plan", "entries": many });
        let huge = json!({ "method": "session/update", "params": { "update": update } });
        let huge = to_raw_value(&huge).unwrap();
        let (kept, left_out) = cut(&huge);
        assert_eq!(left_out, Some(huge.get().len() as u64));
        assert!(kept.get().len() < 200 && kept.get().contains("plan"), "{}", kept.get());
        let deep = RawValue::from_string("[".repeat(3 << 20) + &"]".repeat(3 << 20)).unwrap();
        assert!(cut(&deep).0.get().len() < 200);
    }
}
