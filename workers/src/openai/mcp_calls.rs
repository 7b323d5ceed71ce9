//! Tool calls that MCP servers perform.
//!
//! The user is asked before each, unless the session's mode says otherwise: whether a tool changes something, only its
//! server knows. A read-only session is offered the tools that say that they change nothing, and asks as well.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value};

use super::convert::agent_thought;
use super::mcp::{McpTool, Servers};
use super::record::Mode;
use super::session::{TurnEnded, TurnEvent};
use super::tool_calls::Outcome;
use super::turn::{CallError, Turn};

/// A prompt waits this long for servers before it says so.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// The tools of MCP servers that a model may use in a session of this mode.
pub(super) fn offered_mcp_tools(servers: Option<&Servers>, mode: Mode) -> Vec<McpTool> {
    let mut tools = servers.map(Servers::tools).unwrap_or_default();
    tools.retain(|tool| mode != Mode::Read || tool.is_read_only);
    tools
}

impl Turn {
    /// Waits until it is known which servers work. A cancel ends the wait. If it takes long, the user is told.
    pub(super) fn wait_for_mcp(&self) -> Result<(), TurnEnded> {
        let Some(servers) = self.mcp_servers()? else { return Ok(()) };
        servers.wake(self.event_tx.clone());
        let mut patience = SILENT_WAIT;
        loop {
            let starting = servers.starting();
            if starting.is_empty() {
                return Ok(());
            }
            match self.events.recv_timeout(patience) {
                Ok(TurnEvent::Ended) | Err(RecvTimeoutError::Disconnected) => return Err(TurnEnded),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    patience = Duration::MAX;
                    let text = format!("Waiting for MCP servers to start: {}.\n", starting.join(", "));
                    self.send(agent_thought(&text))?;
                }
            }
        }
    }

    /// Tells the user which servers do not work.
    pub(super) fn tell_mcp_news(&self) -> Result<(), TurnEnded> {
        let Some(servers) = self.mcp_servers()? else { return Ok(()) };
        for line in servers.news() {
            self.send(agent_thought(&line))?;
        }
        Ok(())
    }

    /// The tool of this name, if a server has it.
    pub(super) fn mcp_tool(&self, function: &str) -> Result<Option<McpTool>, TurnEnded> {
        let state = self.session.lock_for(self.number)?;
        let mut tools = offered_mcp_tools(state.mcp.as_deref(), state.record.mode).into_iter();
        Ok(tools.find(|tool| tool.function == function))
    }

    pub(super) fn perform_mcp(
        &self,
        id: &str,
        tool: &McpTool,
        arguments: &str,
        input: Value,
    ) -> Result<Outcome, CallError> {
        let announcement = acp::ToolCall::new(id.to_owned(), tool.title.clone()).raw_input(input.clone());
        self.send(acp::SessionUpdate::ToolCall(announcement))?;
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let arguments: Map<String, Value> = serde_json::from_str(arguments)
            .map_err(|error| format!("the arguments cannot be read: {error}"))?;
        let (mode, _) = self.mode_and_cwd()?;
        if mode != Mode::Auto {
            let fields = acp::ToolCallUpdateFields::new()
                .title(tool.title.clone())
                .kind(acp::ToolKind::Other)
                .raw_input(input);
            self.ask_permission(id, &tool.title, fields)?;
        }
        self.update(id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::InProgress))?;
        let servers = self.mcp_servers()?.ok_or_else(|| "the MCP server has ended".to_owned())?;
        let number = self.shared.next_number();
        // Dropped at a cancel, it cancels the call.
        let _call = servers.call(tool, arguments, number, self.event_tx.clone())?;
        loop {
            match self.events.recv() {
                Ok(TurnEvent::Called(called, result)) if called == number => {
                    let result = result?;
                    let content = Some(result.content);
                    return Ok(Outcome { text: result.text, has_worked: result.has_worked, content });
                }
                Ok(TurnEvent::Ended) | Err(_) => return Err(TurnEnded.into()),
                Ok(_) => {}
            }
        }
    }

    fn mcp_servers(&self) -> Result<Option<Arc<Servers>>, TurnEnded> {
        Ok(self.session.lock_for(self.number)?.mcp.clone())
    }
}
