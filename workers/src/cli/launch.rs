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

/// What a process is started with, beside the settings of its session.
pub(super) struct Launch<'a> {
    pub(super) record: &'a Record,
    pub(super) add_dirs: &'a [String],
    pub(super) mcp_config: Option<&'a McpConfig>,
    /// Where the CLI takes the prompt with its start.
    pub(super) prompt: &'a str,
    pub(super) images: &'a [String],
}

/// Fails with the reason to report to the client.
pub(super) fn launch(
    shared: &Shared,
    session: &Session,
    start: &Launch<'_>,
    inbox: SyncSender<ProcessEvent>,
) -> Result<Process, String> {
    let record = start.record;
    let program = shared.program()?;
    let settings = responses::settings_of(shared, record);
    let values = Values {
        cwd: &record.cwd,
        session: record.cli_session.as_deref(),
        fork: record.fork_source(),
        model: settings.model.as_deref(),
        effort: settings.effort.as_deref(),
        mode: Some(&settings.mode),
        mcp_config: start.mcp_config.map(|config| config.path.as_path()),
        add_dirs: start.add_dirs,
        images: start.images,
        prompt: start.prompt,
        has_forms: shared.client.shows_forms(),
    };
    let args = argv::arguments(&shared.turn, &values)?;
    let mark = format!("{}.{}.{}", id(), session.id, shared.next_number());
    let start = Start { program: &program, args: &args, env: &shared.turn.env, cwd: &record.cwd, mark };
    Process::start(start, inbox).map_err(|error| format!("{} did not start: {error}", program.display()))
}
