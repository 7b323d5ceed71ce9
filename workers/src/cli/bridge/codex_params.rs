//! Sandboxes, models and MCP servers in the words of `codex app-server`.

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value, json};

use crate::cli::json::items;
use crate::cli::mcp_servers;
use crate::detect::{self, Model};

/// `turn/start` names the sandboxes differently from `thread/start`.
pub(super) fn sandbox_policy(sandbox: Option<&Value>, folders: &[String]) -> Value {
    match sandbox.and_then(Value::as_str) {
        Some("danger-full-access") => json!({ "type": "dangerFullAccess" }),
        Some("workspace-write") if folders.is_empty() => json!({ "type": "workspaceWrite" }),
        Some("workspace-write") => json!({ "type": "workspaceWrite", "writableRoots": folders }),
        _ => json!({ "type": "readOnly" }),
    }
}

/// The models of an answer to `model/list`.
pub(in crate::cli) fn models(list: &Value) -> Vec<Model> {
    let mut models = Vec::new();
    for listed in items(list).iter().filter(|listed| listed["hidden"] != true) {
        let efforts = items(&listed["supportedReasoningEfforts"]).iter();
        let efforts = efforts.filter_map(|effort| effort["reasoningEffort"].as_str().map(ToOwned::to_owned));
        let model = detect::model(&listed["id"], &listed["displayName"], efforts.collect());
        let tiers = [&listed["additionalSpeedTiers"], &listed["serviceTiers"]];
        models.extend(model.map(|model| model.with_tiers(tiers).described(&listed["description"])));
    }
    models
}

/// Reads an answer to `account/read`. A provider of the user's own needs no account.
pub(in crate::cli) fn is_logged_out(answer: &Value) -> bool {
    answer["account"].is_null() && answer["requiresOpenaiAuth"] == true
}

/// The servers in the form of codex's configuration, which allows only letters, digits, `_` and `-` in names.
pub(super) fn mcp_config(servers: &[acp::McpServer]) -> Map<String, Value> {
    let mut config = Map::new();
    for (name, mut server) in mcp_servers::by_name(servers) {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let name = name.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
        if let Some(fields) = server.as_object_mut() {
            fields.remove("type");
            if let Some(headers) = fields.remove("headers") {
                fields.insert("http_headers".to_owned(), headers);
            }
        }
        config.insert(name, server);
    }
    config
}
