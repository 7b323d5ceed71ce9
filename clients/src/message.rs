//! A JSON-RPC message, of which only the parts that a client looks at are told apart.
//!
//! Every part is a slice of the line, so it can be passed on as it was spelled. What stands in a part is not
//! looked at.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Default, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) id: Option<&'a RawValue>,
    /// With its quotes.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) error: Option<&'a RawValue>,
    /// The habit of stdio_bus clients: the pool that this one message is for.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) pool: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    /// None: it is not one JSON object, or a part is there twice.
    pub(crate) fn scan(line: &'a [u8]) -> Option<Message<'a>> {
        parts(line)
    }
}

/// The `data.reason` of an error of the bus. Empty where it has none.
pub(crate) fn reason(error: &RawValue) -> String {
    let error = serde_json::from_str::<Value>(error.get()).unwrap_or_default();
    error["data"]["reason"].as_str().unwrap_or_default().to_owned()
}

/// The parts of a JSON object. None: it is not one, or a part is there twice.
pub(crate) fn parts<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    // A list would be taken for the parts in their order.
    let first = json.iter().find(|byte| !byte.is_ascii_whitespace())?;
    (*first == b'{').then(|| serde_json::from_slice(json).ok())?
}

/// A `null` that stands there is `Some`: it is a good result.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_as_they_are_spelled() {
        let line = br#" {"id" : 1.50,"x":[{}], "result": null ,"method":"a\u0062"}"#;
        let message = Message::scan(line).unwrap();
        assert_eq!(message.id.map(RawValue::get), Some("1.50"));
        assert_eq!(message.result.map(RawValue::get), Some("null"));
        assert_eq!(message.method.map(RawValue::get), Some(r#""a\u0062""#));
        assert!(message.error.is_none() && message.params.is_none() && message.pool.is_none());
    }

    #[test]
    fn what_is_no_object_or_not_clear_is_none() {
        for line in ["", " ", "[]", r#"[1,"m"]"#, "7", "{", r#"{"id":1,"id":2}"#, r#"{"id":1} {}"#] {
            assert!(Message::scan(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn depth_is_no_danger() {
        let deep = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(400_000), "]".repeat(400_000));
        assert!(Message::scan(deep.as_bytes()).is_some());
    }
}
