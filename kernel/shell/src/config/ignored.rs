//! Keys of stdio_bus that mean nothing to this bus. They are taken with a warning, so that its configurations run here.

use super::error::ConfigError;
use super::json::Json;
use super::jsonc::{plain_json, without_mark};

/// Values of `transport` that say what this bus does anyway.
const TRANSPORT: [(&str, &str); 2] = [("framing", "ndjson"), ("protocol", "json")];

/// Whether the value at this JSON path is ignored rather than refused.
pub(super) fn is_ignored(path: &str) -> bool {
    let in_pool = path.strip_prefix("pools[").and_then(|rest| rest.split_once("].")).map(|(_, key)| key);
    matches!(path, "version" | "transport") || in_pool == Some("description")
}

/// One warning for each key of a good bus.json that is ignored.
pub fn ignored_keys(text: &str) -> Vec<ConfigError> {
    let Ok(Json::Object(top)) = serde_json::from_str(&plain_json(without_mark(text))) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut note =
        |path: String, message: &str| found.push(ConfigError { path, message: message.to_owned() });
    for (key, value) in &top {
        match (key.as_str(), value) {
            ("transport", Json::Object(fields)) => {
                let is_usual = |(key, value): &(String, Json)| {
                    TRANSPORT
                        .iter()
                        .any(|(name, only)| key == name && *value == Json::String((*only).to_owned()))
                };
                if !fields.iter().all(is_usual) {
                    let only = "ignored: this bus speaks lines of JSON (ndjson, json) and nothing else";
                    note("transport".to_owned(), only);
                }
            }
            ("version" | "transport", _) => note(key.clone(), "ignored: it means nothing to this bus"),
            ("pools", Json::List(pools)) => {
                for (index, pool) in pools.iter().enumerate() {
                    let Json::Object(fields) = pool else { continue };
                    if fields.iter().any(|(key, _)| key == "description") {
                        let path = format!("pools[{index}].description");
                        note(path, "ignored: a remark is written as \"_description\", or as a comment");
                    }
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_stdio_bus_ignores_is_taken_with_a_warning_and_typos_are_not() {
        let text = r#"{"version": "2.0", "transport": {"framing": "ndjson", "protocol": "json"},
            "pools": [{"id": "a", "command": "x", "description": "mine"}]}"#;
        assert!(super::super::parse(text, Path::new("/")).is_ok());
        let paths: Vec<_> = ignored_keys(text).into_iter().map(|warning| warning.path).collect();
        assert_eq!(paths, ["version", "pools[0].description"]);
        let odd = text.replace("ndjson", "length");
        assert!(ignored_keys(&odd).iter().any(|warning| warning.path == "transport"));
        for typo in ["versions", "transports"] {
            let text = format!(r#"{{"{typo}": 1, "pools": [{{"id": "a", "command": "x"}}]}}"#);
            assert!(super::super::parse(&text, Path::new("/")).is_err(), "{typo}");
        }
    }
}
