//! Parses `history` of bus.json: whether, where and how long what was said is kept.

use kernel_core::config::HistoryConfig;

use super::json::Json;
use super::reader::{Fields, Reader};

pub(super) const HISTORY_KEYS: [&str; 3] = ["folder", "max_bytes", "keep_days"];

impl<'a> Reader<'a> {
    /// `None`: nothing is kept.
    pub(super) fn history(&mut self, top: &Fields<'a>) -> Option<HistoryConfig> {
        let mut history = HistoryConfig::default();
        let Some(node) = top.find("history") else { return Some(history) };
        match node.json {
            Json::Bool(true) => return Some(history),
            Json::Bool(false) => return None,
            Json::Object(_) => {}
            _ => {
                return self.must_be(&node, "true, false or an object with folder, max_bytes and keep_days");
            }
        }
        let fields = self.object(&node, &HISTORY_KEYS)?;
        history.folder = fields.find("folder").and_then(|node| self.path(&node));
        if let Some(bytes) = self.integer(&fields, "max_bytes", 0..=1 << 50) {
            history.max_bytes = bytes;
        }
        history.keep_days = self.integer(&fields, "keep_days", 1..=100_000);
        Some(history)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kernel_core::config::{Config, HistoryConfig};

    use super::super::parse;
    use super::super::tests::schema_json;
    use super::HISTORY_KEYS;

    fn read(text: &str) -> Result<Config, String> {
        parse(&text.replace('@', r#""pools":[{"id":"a","command":"x""#), Path::new("/etc"))
            .map_err(|it| it.to_string())
    }

    #[test]
    fn what_is_said_is_kept_unless_the_file_says_otherwise() {
        let history = |text: &str| read(text).unwrap().history;
        assert_eq!(history("{@}]}"), Some(HistoryConfig::default()));
        assert_eq!(history(r#"{"history":true,@}]}"#), Some(HistoryConfig::default()));
        assert_eq!(history(r#"{"history":false,@}]}"#), None);
        let text = r#"{"history":{"folder":"h","max_bytes":7,"keep_days":30},@}]}"#;
        let expected = HistoryConfig { folder: Some("/etc/h".into()), max_bytes: 7, keep_days: Some(30) };
        assert_eq!(history(text), Some(expected));
        let fault = read(r#"{"history":"no",@}]}"#).unwrap_err();
        assert!(fault.contains("history: must be true, false or an object"), "{fault}");
        assert!(read(r#"{"history":{"days":1},@}]}"#).is_err());
    }

    #[test]
    fn the_schema_knows_the_keys() {
        let schema = schema_json();
        let named = schema["properties"]["history"]["oneOf"][1]["properties"].as_object().unwrap();
        assert_eq!(named.len(), HISTORY_KEYS.len());
        assert!(HISTORY_KEYS.iter().all(|key| named.contains_key(*key)));
    }

    #[test]
    fn a_pool_that_is_not_shared_is_not_kept_unless_it_says_so() {
        let keeps = |more: &str| read(&format!("{{@{more}}}]}}")).unwrap().pools[0].keep;
        assert!(keeps("") && !keeps(r#","history":false"#));
        assert!(!keeps(r#","share":false"#) && keeps(r#","share":false,"history":true"#));
    }
}
