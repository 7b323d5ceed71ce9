//! The process of the agent: checks the options, serves the client and stops the CLIs.
//!
//! The end of stdin, SIGTERM and SIGINT have the same effect: running CLIs are stopped with everything that they
//! started, their turns are answered as cancelled, and the process exits.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::agent::CliAgent;
use super::log::log;
use super::options::Options;
use super::shared::Shared;
use super::{argv, login, runtimes};
use crate::acp::serve::serve;
use crate::acp::writer::Writer;

/// How long running CLIs may take to stop. The bus waits longer than that.
const EXIT_GRACE: Duration = Duration::from_secs(4);

/// Serves ACP on stdin and stdout until stdin ends or a signal arrives.
pub fn run(options: Options) -> ExitCode {
    match start(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log(format_args!("{why}"));
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> Result<(), String> {
    let row = runtimes::named(&options.runtime)?;
    if let Some(id) = &options.login {
        return Err(login::run(&row, options.program.as_deref(), id));
    }
    let Some(turn) = row.turn.clone() else {
        let args = row.acp.as_ref().map(|acp| acp.args.join(" ")).unwrap_or_default();
        return Err(format!(
            "{} speaks ACP itself and needs no adapter: {} {args}",
            row.name, row.binaries[0]
        ));
    };
    let is_root =
        nix::unistd::geteuid().is_root() && env::var_os("IS_SANDBOX").is_none_or(|it| it.is_empty());
    let turn = turn.without_refused_modes(is_root);
    if let Some(model) = &options.model
        && !argv::is_model(model)
    {
        return Err(format!("{model:?} is no name of a model"));
    }
    if let Some(mode) = &options.mode
        && turn.modes.iter().all(|known| known.id != *mode)
    {
        let known: Vec<&str> = turn.modes.iter().map(|mode| mode.id.as_str()).collect();
        return Err(format!("no mode is called {mode}; there are {}", known.join(", ")));
    }
    let shared = Writer::stdout().and_then(|writer| Shared::new(row, turn, options, writer));
    let shared = Arc::new(shared.map_err(|error| error.to_string())?);
    let stopping = shared.clone();
    serve(CliAgent::new(shared), EXIT_GRACE, move || stop(&stopping)).map_err(|error| error.to_string())
}

/// Stops all CLIs and waits until they have ended.
fn stop(shared: &Shared) {
    shared.close_all();
    while shared.is_busy() {
        thread::sleep(Duration::from_millis(5));
    }
}
