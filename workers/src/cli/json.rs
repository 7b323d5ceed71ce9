//! Reads fields of JSON values whose shape nobody guarantees.

use serde_json::Value;

/// The string in this field, or an empty one.
pub(crate) fn string<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

/// The first of these fields that is a string.
pub(crate) fn text(object: &Value, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| object[*key].as_str()).map(ToOwned::to_owned)
}

/// The number in this field, or zero.
pub(crate) fn count(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or(0)
}

/// The elements of a list, or none.
pub(crate) fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
