//! The tools of MCP servers as the model sees them.
//!
//! A model needs unique names of few kinds of characters, so a tool is called after its server and itself.

use std::collections::HashSet;

use rmcp::model::Tool;
use serde_json::{Value, json};

/// OpenAI takes 128 tools; the client's own are among them.
const TOOLS_MAX: usize = 120;
/// A tool whose declaration is longer is left out.
const TOOL_BYTES_MAX: usize = 32 << 10;
/// All declarations together.
const ALL_BYTES_MAX: usize = 256 << 10;
/// The longest name that OpenAI takes.
const NAME_BYTES_MAX: usize = 64;

/// A tool of a server.
#[derive(Clone, Debug)]
pub(in crate::openai) struct McpTool {
    /// The name that the model uses.
    pub(in crate::openai) function: String,
    /// The place of the server among those of the session.
    pub(super) server: usize,
    /// The name that the server uses.
    pub(super) name: String,
    /// For people: the server, and the tool.
    pub(in crate::openai) title: String,
    /// The server says that the tool changes nothing.
    pub(in crate::openai) is_read_only: bool,
    pub(in crate::openai) declaration: Value,
}

/// All tools of all servers that the model can be offered, and how many it cannot.
pub(super) fn offered<'a>(servers: impl Iterator<Item = (&'a str, &'a [Tool])>) -> (Vec<McpTool>, usize) {
    let mut taken = HashSet::new();
    let mut offered = Vec::new();
    let mut left_out = 0;
    let mut bytes = 0;
    for (server, (server_name, tools)) in servers.enumerate() {
        for tool in tools {
            let function = unique_name(server_name, &tool.name, &mut taken);
            let declaration = declaration(&function, tool);
            let length = declaration.to_string().len();
            if offered.len() == TOOLS_MAX || length > TOOL_BYTES_MAX || bytes + length > ALL_BYTES_MAX {
                left_out += 1;
                continue;
            }
            bytes += length;
            let annotations = tool.annotations.as_ref();
            let shown = tool.title.as_deref().or(annotations.and_then(|hints| hints.title.as_deref()));
            offered.push(McpTool {
                function,
                server,
                name: tool.name.to_string(),
                title: format!("{server_name}: {}", shown.unwrap_or(&tool.name)),
                is_read_only: annotations.is_some_and(|hints| hints.read_only_hint == Some(true)),
                declaration,
            });
        }
    }
    (offered, left_out)
}

fn declaration(function: &str, tool: &Tool) -> Value {
    let mut parameters = Value::Object(tool.input_schema.as_ref().clone());
    // Servers of tools without arguments leave it out, and model servers refuse that.
    if parameters["type"] == "object" && parameters.get("properties").is_none() {
        parameters["properties"] = json!({});
    }
    let description = tool.description.as_deref().unwrap_or_default();
    let declared = json!({ "name": function, "description": description, "parameters": parameters });
    json!({ "type": "function", "function": declared })
}

fn unique_name(server: &str, tool: &str, taken: &mut HashSet<String>) -> String {
    let plain = |text: &str| -> String {
        let allowed = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        text.chars().map(|char| if allowed(char) { char } else { '_' }).collect()
    };
    let mut name = format!("{}__{}", plain(server), plain(tool));
    name.truncate(NAME_BYTES_MAX);
    let mut number = 2;
    while !taken.insert(name.clone()) {
        let suffix = format!("_{number}");
        name.truncate(NAME_BYTES_MAX - suffix.len());
        name.push_str(&suffix);
        number += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tool(name: &str) -> Tool {
        serde_json::from_value(json!({ "name": name, "inputSchema": { "type": "object" } })).unwrap()
    }

    #[test]
    fn a_tool_is_named_after_its_server_and_declared_with_its_schema() {
        let add = json!({ "name": "add two", "title": "Adds", "description": "a + b",
            "inputSchema": { "type": "object", "properties": { "a": {} } }, "annotations": { "readOnlyHint": true } });
        let tools = [serde_json::from_value(add).unwrap(), tool("plain")];
        let (offered, left_out) = offered([("my srv", &tools[..])].into_iter());
        assert_eq!(
            (offered[0].function.as_str(), offered[0].title.as_str()),
            ("my_srv__add_two", "my srv: Adds")
        );
        assert_eq!((offered[0].is_read_only, offered[1].is_read_only, left_out), (true, false, 0));
        let function = &offered[0].declaration["function"];
        assert_eq!(
            (&function["name"], &function["description"]),
            (&json!("my_srv__add_two"), &json!("a + b"))
        );
        assert_eq!(
            offered[1].declaration["function"]["parameters"],
            json!({ "type": "object", "properties": {} })
        );
    }

    #[test]
    fn too_many_and_too_long_tools_are_left_out() {
        let many: Vec<_> = (0..TOOLS_MAX + 7).map(|number| tool(&number.to_string())).collect();
        let (some, left_out) = offered([("a", &many[..]), ("b", &many[..1])].into_iter());
        assert_eq!((some.len(), left_out), (TOOLS_MAX, 8));
        let mut long = tool("long");
        long.description = Some("x".repeat(TOOL_BYTES_MAX).into());
        let (some, left_out) = offered([("a", &[long, tool("short")][..])].into_iter());
        assert_eq!((some.len(), left_out), (1, 1));
    }

    proptest! {
        #[test]
        fn every_name_is_unique_and_fit_for_a_model(
            names in prop::collection::vec((".{0,40}", ".{0,60}"), 1..20),
        ) {
            let mut taken = HashSet::new();
            let made: Vec<_> = names.iter().map(|(server, tool)| unique_name(server, tool, &mut taken)).collect();
            prop_assert_eq!(made.iter().collect::<HashSet<_>>().len(), made.len());
            for name in made {
                let fits = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
                prop_assert!(name.len() <= NAME_BYTES_MAX && name.chars().all(fits), "{}", name);
            }
        }
    }
}
