//! Reads ACP's tool calls: id, state, name, title and arguments.

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

    /// Returns `None` if this message does not mention it.
    pub(super) fn state(&self) -> Option<State> {
        Some(match self.0["status"].as_str()? {
            "completed" => State::Completed,
            "failed" | "cancelled" => State::Failed,
            _ => State::Open,
        })
    }

    /// Whether its input may still be generated. Returns `None` if this message does not mention it.
    pub(super) fn is_pending(&self) -> Option<bool> {
        Some(self.0["status"].as_str()? == "pending")
    }

    /// The name of the tool. Agents put it in different places.
    pub(super) fn name(&self) -> &'a str {
        let call = self.0;
        let vendor_name = || call["_meta"].as_object()?.values().find_map(|meta| meta["toolName"].as_str());
        let named = call["name"].as_str().or(call["_meta"]["toolName"].as_str()).or_else(vendor_name);
        named.or(call["kind"].as_str()).filter(|name| !name.is_empty()).unwrap_or("tool")
    }

    /// The call whose subagent sends this. Vendors put it under a name of their own.
    pub(super) fn parent(&self) -> Option<&'a str> {
        let meta = self.0["_meta"].as_object()?;
        let own = meta.get("parentToolUseId").and_then(Value::as_str);
        let vendors = || meta.values().find_map(|meta| meta["parentToolUseId"].as_str());
        own.or_else(vendors).filter(|id| !id.is_empty())
    }

    /// Whether the input says more than the folder, which some agents tell before they know the command.
    pub(super) fn has_input(args: &Map<String, Value>) -> bool {
        args.keys().any(|key| key != "cwd")
    }

    pub(super) fn title(&self) -> Option<&'a str> {
        self.0["title"].as_str().filter(|title| !title.trim().is_empty())
    }

    pub(super) fn args(&self) -> Map<String, Value> {
        self.0["rawInput"].as_object().cloned().unwrap_or_default()
    }
}

/// The titles of a turn's calls. Later messages about a call may leave its title out.
#[derive(Default)]
pub(super) struct Titles(Vec<(String, String)>);

impl Titles {
    /// Records the title and returns it in one line. `is_new`: this is the first message about the call.
    pub(super) fn learn(&mut self, call: &ToolCall<'_>) -> Title<'_> {
        let id = call.id().unwrap_or_default();
        let title = call.title().map(|title| title.replace(['\n', '\r', '\t'], " "));
        let known = self.0.iter().position(|(known, _)| known == id);
        let at = known.unwrap_or_else(|| {
            self.0.push((id.to_owned(), call.name().to_owned()));
            self.0.len() - 1
        });
        if let Some(title) = title {
            self.0[at].1 = title;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_most_specific_tool_name_wins() {
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
