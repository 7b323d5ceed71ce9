//! Starts the CLI for a session, with the arguments of its table row.

use std::process::id;
use std::sync::mpsc::SyncSender;

use super::argv::{self, Values};
use super::mcp::McpConfig;
use super::process::{Process, ProcessEvent, Start};
use super::record::Record;
use super::responses;
use super::session::Session;
use super::shared::Shared;

/// Fails with the reason to report to the client.
pub(super) fn launch(
    shared: &Shared,
    session: &Session,
    record: &Record,
    prompt: &str,
    mcp_config: Option<&McpConfig>,
    inbox: SyncSender<ProcessEvent>,
) -> Result<Process, String> {
    let program = shared.program()?;
    let settings = responses::settings_of(shared, record);
    let values = Values {
        cwd: &record.cwd,
        session: record.cli_session.as_deref(),
        fork: record.fork_source(),
        model: settings.model.as_deref(),
        effort: settings.effort.as_deref(),
        mode: Some(&settings.mode),
        mcp_config: mcp_config.map(|config| config.path.as_path()),
        prompt,
    };
    let args = argv::arguments(&shared.turn, &values)?;
    let mark = format!("{}.{}.{}", id(), session.id, shared.next_number());
    let start = Start { program: &program, args: &args, env: &shared.turn.env, cwd: &record.cwd, mark };
    Process::start(start, inbox).map_err(|error| format!("{} did not start: {error}", program.display()))
}
