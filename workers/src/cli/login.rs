//! How a user logs in to a CLI: at a terminal, with the CLI's own command.
//!
//! A client that has a terminal runs this agent once more with `--login`, or the CLI itself if it can be given a whole
//! command.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value, json};

use super::runtimes::Runtime;
use super::shared::Shared;

const METHOD_ID: &str = "terminal-login";
const FLAG: &str = "--login";

/// Becomes the CLI's command for a login. Returns only if that fails, with the reason.
pub(super) fn run(row: &Runtime, program: Option<&Path>) -> String {
    let Some(args) = &row.log_in_args else { return format!("{} has no command to log in", row.name) };
    let Some(program) = program.map(ToOwned::to_owned).or_else(|| row.program()) else {
        return row.missing();
    };
    let error = Command::new(&program).args(args).exec();
    format!("{} did not start: {error}", program.display())
}

/// The ways to log in that this client can offer. Only one with a terminal can.
pub(super) fn methods(shared: &Shared, client: &Value) -> Vec<acp::AuthMethod> {
    let takes_flag = client["auth"]["terminal"] == true;
    let takes_command = client["_meta"]["terminal-auth"] == true;
    let (Some(args), true) = (&shared.row.log_in_args, takes_flag || takes_command) else {
        return Vec::new();
    };
    let name = format!("Log in to {}", shared.row.name);
    let how = shared.row.log_in.as_deref().unwrap_or_default();
    let mut method = acp::AuthMethodTerminal::new(METHOD_ID, name.clone())
        .description(format!("Runs in a terminal: {how}"))
        .args(vec![FLAG.to_owned()]);
    if let (true, Ok(program)) = (takes_command, shared.program()) {
        let command = json!({ "command": program, "args": args, "label": name });
        method = method.meta(Map::from_iter([("terminal-auth".to_owned(), command)]));
    }
    vec![acp::AuthMethod::Terminal(method)]
}
