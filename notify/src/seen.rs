//! The sessions as `_bus/sessions` shows them, when something is to be told.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// By their labels.
pub(crate) type Sessions = BTreeMap<String, Seen>;

/// A session that the bus has. What is missing is empty.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Seen {
    pub(crate) pool: Option<String>,
    /// The process of its agent.
    pub(crate) worker: Option<u64>,
    /// Only where sessions may be shared.
    pub(crate) title: Option<String>,
    /// The id of its transcript, by which nobody can open it.
    pub(crate) history: Option<String>,
    /// How many questions of the agent are open.
    pub(crate) questions: usize,
    /// Requests in flight.
    pub(crate) calls: usize,
}

/// Reads the list of all sessions. Entries that are not understood are left out.
pub(crate) fn sessions_of(list: Value) -> Sessions {
    let Value::Array(items) = list else { return Sessions::new() };
    let entry = |item: Value| {
        let label = item["session"].as_str()?.to_owned();
        Some((label, serde_json::from_value(item).ok()?))
    };
    items.into_iter().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_of_the_bus_is_read_and_the_rest_left_out() {
        let list = json!([
            { "session": "s1", "pool": "a", "worker": 0, "title": "T", "history": "3f", "questions": 2, "calls": 1,
              "more": {} },
            { "session": "s2", "pool": null, "questions": 0 },
            { "session": "s3", "questions": "many" },
            7,
        ]);
        let sessions = sessions_of(list);
        assert_eq!(sessions.keys().collect::<Vec<_>>(), ["s1", "s2"]);
        let (title, history) = (Some("T".to_owned()), Some("3f".to_owned()));
        assert_eq!(
            sessions["s1"],
            Seen { pool: Some("a".to_owned()), worker: Some(0), title, history, questions: 2, calls: 1 }
        );
        assert_eq!(sessions_of(json!(null)), Sessions::new());
    }
}
