//! The MCP servers of a session in the form that the CLIs' configurations use.

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value, json};

/// The servers by name, with their variables and headers as objects.
pub(super) fn by_name(servers: &[acp::McpServer]) -> Map<String, Value> {
    let mut all = Map::new();
    for server in servers {
        let Value::Object(mut fields) = json!(server) else { continue };
        let name = fields.remove("name").and_then(|name| name.as_str().map(ToOwned::to_owned));
        for key in ["env", "headers"] {
            if let Some(Value::Array(pairs)) = fields.get(key) {
                let pair = |pair: &Value| Some((pair["name"].as_str()?.to_owned(), pair["value"].clone()));
                let object = pairs.iter().filter_map(pair).collect();
                fields.insert(key.to_owned(), Value::Object(object));
            }
        }
        all.insert(name.unwrap_or_default(), Value::Object(fields));
    }
    all
}
