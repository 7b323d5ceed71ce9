//! What ACP says of a tool call, in the words that a person or an envelope needs.

use serde_json::{Map, Value};

/// A `tool_call`, a `tool_call_update`, or the `toolCall` of a permission request.
pub(super) struct ToolCall<'a>(pub(super) &'a Value);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Completed,
    Failed,
}

impl<'a> ToolCall<'a> {
    pub(super) fn id(&self) -> Option<&'a str> {
        self.0["toolCallId"].as_str().filter(|id| !id.is_empty())
    }

    /// None: nothing is said of it here.
    pub(super) fn state(&self) -> Option<State> {
        Some(match self.0["status"].as_str()? {
            "completed" => State::Completed,
            "failed" | "cancelled" => State::Failed,
            _ => State::Open,
        })
    }

    /// It does not run yet.
    pub(super) fn is_pending(&self) -> bool {
        self.0["status"] == "pending"
    }

    /// What the tool is called. Agents that know it say so in different places.
    pub(super) fn name(&self) -> &'a str {
        let call = self.0;
        let of_vendor = || call["_meta"].as_object()?.values().find_map(|meta| meta["toolName"].as_str());
        let named = call["name"].as_str().or(call["_meta"]["toolName"].as_str()).or_else(of_vendor);
        named.or(call["kind"].as_str()).filter(|name| !name.is_empty()).unwrap_or("tool")
    }

    pub(super) fn title(&self) -> Option<&'a str> {
        self.0["title"].as_str().filter(|title| !title.trim().is_empty())
    }

    pub(super) fn args(&self) -> Map<String, Value> {
        self.0["rawInput"].as_object().cloned().unwrap_or_default()
    }
}

/// What the calls of a turn are about. Said once; later words about a call may leave it out.
#[derive(Default)]
pub(super) struct Titles(Vec<(String, String)>);

impl Titles {
    /// The title of this call, now that this was said of it, in one line. `is_new`: nothing was said before.
    pub(super) fn learn(&mut self, call: &ToolCall<'_>) -> Title<'_> {
        let id = call.id().unwrap_or_default();
        let said = call.title().map(|title| title.replace(['\n', '\r', '\t'], " "));
        let known = self.0.iter().position(|(known, _)| known == id);
        let at = known.unwrap_or_else(|| {
            self.0.push((id.to_owned(), call.name().to_owned()));
            self.0.len() - 1
        });
        if let Some(said) = said {
            self.0[at].1 = said;
        }
        Title { text: &self.0[at].1, is_new: known.is_none() }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

pub(super) struct Title<'a> {
    pub(super) text: &'a str,
    pub(super) is_new: bool,
}

/// The text of a content block. Empty where it has none.
pub(super) fn text_of(content: &Value) -> &str {
    match content["type"].as_str() {
        Some("text") => content["text"].as_str().unwrap_or_default(),
        Some("resource_link") => content["uri"].as_str().unwrap_or_default(),
        Some("resource") => content["resource"]["text"].as_str().unwrap_or_default(),
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_is_called_by_the_best_name_there_is() {
        let cases = [
            (json!({ "name": "bash", "kind": "execute" }), "bash"),
            (json!({ "_meta": { "toolName": "Read" }, "kind": "read" }), "Read"),
            (json!({ "_meta": { "x": 1, "claudeCode": { "toolName": "Edit" } }, "kind": "edit" }), "Edit"),
            (json!({ "kind": "execute", "_meta": {} }), "execute"),
            (json!({}), "tool"),
        ];
        for (call, name) in cases {
            assert_eq!(ToolCall(&call).name(), name, "{call}");
        }
    }
}
