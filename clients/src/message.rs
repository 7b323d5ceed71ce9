//! A JSON-RPC message, split into the members that a client looks at.
//!
//! Every member is a slice of the line, so it can be forwarded verbatim. Its content is not parsed.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Default, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) id: Option<&'a RawValue>,
    /// Includes the quotes.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) error: Option<&'a RawValue>,
    /// stdio_bus clients name the pool of a single message here.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) pool: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    /// Returns `None` if the line is not one JSON object, or repeats a member.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Message<'a>> {
        parse_object(line)
    }
}

/// The `data.reason` of an error of the bus. Empty if there is none.
pub(crate) fn reason(error: &RawValue) -> String {
    let error = serde_json::from_str::<Value>(error.get()).unwrap_or_default();
    error["data"]["reason"].as_str().unwrap_or_default().to_owned()
}

/// Returns `None` if `json` is not an object, or repeats a member.
pub(crate) fn parse_object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    // serde would also read the members from an array.
    let first = json.iter().find(|byte| !byte.is_ascii_whitespace())?;
    (*first == b'{').then(|| serde_json::from_slice(json).ok())?
}

/// An explicit `null` becomes `Some`: it is a valid result.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_verbatim_slices() {
        let line = br#" {"id" : 1.50,"x":[{}], "result": null ,"method":"a\u0062"}"#;
        let message = Message::parse(line).unwrap();
        assert_eq!(message.id.map(RawValue::get), Some("1.50"));
        assert_eq!(message.result.map(RawValue::get), Some("null"));
        assert_eq!(message.method.map(RawValue::get), Some(r#""a\u0062""#));
        assert!(message.error.is_none() && message.params.is_none() && message.pool.is_none());
    }

    #[test]
    fn anything_but_one_unambiguous_object_is_none() {
        for line in ["", " ", "[]", r#"[1,"m"]"#, "7", "{", r#"{"id":1,"id":2}"#, r#"{"id":1} {}"#] {
            assert!(Message::parse(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(400_000), "]".repeat(400_000));
        assert!(Message::parse(deep.as_bytes()).is_some());
    }
}
