//! A JSON value that keeps the order of keys and repeated keys.
//!
//! serde_json's own value keeps only the last of two equal keys, which would hide an error.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// A number without a fraction, however it is written: `1e3` and `1000.0` are integers.
    Integer(i128),
    Float(f64),
    String(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Names the type, for a message. Only a number or a boolean is shown with its value.
    pub(super) fn kind(&self) -> String {
        match self {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Integer(number) => number.to_string(),
            Json::Float(number) => format!("{number:?}"),
            Json::String(text) if text.is_empty() => "an empty string".to_owned(),
            Json::String(_) => "a string".to_owned(),
            Json::List(_) => "a list".to_owned(),
            Json::Object(_) => "an object".to_owned(),
        }
    }

    /// Finds the path of every key that its object holds more than once, at any depth.
    pub(super) fn repeated_keys(&self, path: &str, found: &mut Vec<String>) {
        match self {
            Json::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.repeated_keys(&format!("{path}[{index}]"), found);
                }
            }
            Json::Object(pairs) => {
                let mut seen = BTreeSet::new();
                let mut repeated = BTreeSet::new();
                // In `env` a name that begins with an underscore is one like any other.
                let remarks = !path.ends_with(".env");
                for (key, value) in pairs.iter().filter(|(key, _)| !(remarks && is_remark(key))) {
                    let path = join(path, key);
                    if !seen.insert(key) && repeated.insert(key) {
                        found.push(path.clone());
                    }
                    value.repeated_keys(&path, found);
                }
            }
            _ => {}
        }
    }
}

/// Whether a key is a remark of the author, which the bus does not read.
pub(super) fn is_remark(key: &str) -> bool {
    key.starts_with('_')
}

/// The path of `key` in the object at `path`.
pub(super) fn join(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '$');
    if key.is_empty() || !key.chars().all(plain) {
        return format!("{path}[{key:?}]");
    }
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        // Below 2^100 the cast to i128 is exact, and no limit allows a larger number.
        let whole = number.fract() == 0.0 && number.abs() < (1_u128 << 100) as f64;
        Ok(if whole { Json::Integer(number as i128) } else { Json::Float(number) })
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(pair) = pairs.next_entry()? {
            object.push(pair);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_numbers_their_value() {
        let json: Json = serde_json::from_str(r#"{"b":[1,1.0,1e3,-2,0.5,null],"a":true,"b":""}"#).unwrap();
        let numbers = [1, 1, 1000, -2].map(Json::Integer);
        let mut list = numbers.to_vec();
        list.extend([Json::Float(0.5), Json::Null]);
        let pairs = [("b", Json::List(list)), ("a", Json::Bool(true)), ("b", Json::String(String::new()))];
        assert_eq!(json, Json::Object(pairs.map(|(key, value)| (key.to_owned(), value)).to_vec()));
    }

    #[test]
    fn repeated_keys_are_found_once_each_at_any_depth() {
        let text = r#"{"a":1,"a":2,"a":3,"l":[{"x y":{"":1,"":2}}],"o":{"k":1},"k":2}"#;
        let mut found = Vec::new();
        serde_json::from_str::<Json>(text).unwrap().repeated_keys("", &mut found);
        assert_eq!(found, ["a", r#"l[0]["x y"][""]"#]);
    }
}
