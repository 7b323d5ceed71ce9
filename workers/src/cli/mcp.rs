//! The MCP servers of a session, for a CLI that takes a file with them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::house::House;
use super::log;
use super::runtimes::FormatName;

/// A file that only the user can read, since there may be secrets in it. It lives as long as the process.
pub(super) struct McpConfig {
    pub(super) path: PathBuf,
}

impl McpConfig {
    /// `None`: there are none, or the CLI takes none, or none this way.
    pub(super) fn write(house: &House, servers: &[acp::McpServer]) -> Option<McpConfig> {
        let takes =
            house.turn.args.iter().flat_map(|arg| arg.words()).any(|word| word.contains("{mcp_config}"));
        if servers.is_empty() || house.turn.format == FormatName::CodexAppServer {
            return None;
        }
        let folder = house.folder.as_deref().filter(|_| takes);
        let Some(folder) = folder else {
            log(format_args!("{} MCP servers are not used: {} takes none", servers.len(), house.row.id));
            return None;
        };
        let path = folder.join(format!("mcp.{}.{}.json", process::id(), house.next_turn()));
        let text = json!({ "mcpServers": mcp_servers(servers) }).to_string();
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match open.and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => Some(McpConfig { path }),
            Err(error) => {
                log(format_args!("{}: {error}", path.display()));
                None
            }
        }
    }
}

impl Drop for McpConfig {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// By their names, as the CLIs write them.
pub(super) fn mcp_servers(servers: &[acp::McpServer]) -> serde_json::Map<String, Value> {
    let pairs = |list: &Value| -> Value {
        let pair = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["value"].clone()));
        Value::Object(list.as_array().into_iter().flatten().filter_map(pair).collect())
    };
    let mut all = serde_json::Map::new();
    for server in servers {
        let mut shape = json!(server);
        let name = shape["name"].as_str().unwrap_or_default().to_owned();
        for key in ["env", "headers"] {
            if shape[key].is_array() {
                shape[key] = pairs(&shape[key]);
            }
        }
        if let Some(object) = shape.as_object_mut() {
            object.remove("name");
        }
        all.insert(name, shape);
    }
    all
}
