//! Which message of the agent is being said. Agents that tell it give each chunk of text a `messageId`.

use serde_json::Value;

/// The kind and the id of the message that was said last.
#[derive(Default)]
pub(super) struct Saying(Option<(String, String)>);

impl Saying {
    /// Notes a chunk of text. Returns whether another message of its kind was said before it. A chunk without an id
    /// goes on with what was said.
    pub(super) fn moves_on(&mut self, chunk: &Value) -> bool {
        let Some(id) = chunk["messageId"].as_str() else { return false };
        let kind = chunk["sessionUpdate"].as_str().unwrap_or_default();
        let before = self.0.replace((kind.to_owned(), id.to_owned()));
        before.is_some_and(|(old_kind, old_id)| old_kind == kind && old_id != id)
    }

    /// Something else came in between.
    pub(super) fn pause(&mut self) {
        self.0 = None;
    }
}
