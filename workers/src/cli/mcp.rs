//! Writes the MCP servers of a session to a file, for a CLI that reads them there.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process;

use agent_client_protocol_schema::v1 as acp;
use serde_json::json;

use super::log::log;
use super::mcp_servers;
use super::shared::Shared;

/// A file that only the user can read, since it may contain secrets. It is removed with this value.
pub(super) struct McpConfig {
    pub(super) path: PathBuf,
}

impl McpConfig {
    /// Returns `None` if there are no servers, or if the CLI takes none from a file.
    pub(super) fn write(shared: &Shared, servers: &[acp::McpServer]) -> Option<McpConfig> {
        if servers.is_empty() || shared.turn.opens_by_message() {
            return None;
        }
        let (true, Some(folder)) = (shared.turn.names("{mcp_config}"), &shared.folder) else {
            log(format_args!("{} MCP servers are not used: {} takes none", servers.len(), shared.row.id));
            return None;
        };
        let path = folder.join(format!("mcp.{}.{}.json", process::id(), shared.next_number()));
        let text = json!({ "mcpServers": mcp_servers::by_name(servers) }).to_string();
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
