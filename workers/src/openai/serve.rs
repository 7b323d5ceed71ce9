//! The process of the agent.
//!
//! At the end of stdin, at SIGTERM and at SIGINT, running turns are answered as cancelled, MCP servers are ended, and
//! the process exits.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::agent::OpenAiAgent;
use super::config::Config;
use super::log::log;
use super::login::{self, Login};
use super::options::Options;
use super::shared::Shared;
use crate::acp::serve::serve;
use crate::acp::writer::Writer;
use crate::folders;

/// The time for the responses of running turns.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// The time for MCP servers to end. There are none in most processes.
const MCP_GRACE: Duration = Duration::from_millis(2500);

/// Serves a client on stdin and stdout until stdin ends or a signal comes.
pub fn run(options: Options) -> ExitCode {
    if options.login {
        return log_in();
    }
    let variable = |name: &str| std::env::var(name).ok();
    let kept = Login::kept(variable);
    let of_login = |name: &str| kept.as_ref().and_then(|login| login.variable(name));
    let (config, warnings) = Config::read(|name| of_login(name).or_else(|| variable(name)));
    for warning in warnings {
        log(format_args!("{warning}"));
    }
    let folder = options.state.clone().or_else(|| Some(folders::state()?.join("openai")));
    match start(config, options, folder.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn log_in() -> ExitCode {
    match login::run() {
        Ok(done) => {
            eprintln!("stdio-bus: {done}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("stdio-bus: not logged in: {why}");
            ExitCode::FAILURE
        }
    }
}

fn start(config: Config, options: Options, folder: Option<&Path>) -> io::Result<()> {
    let shared = Arc::new(Shared::new(config, options, folder, Writer::stdout()?)?);
    let stopping = shared.clone();
    serve(OpenAiAgent::new(shared), EXIT_GRACE + MCP_GRACE, move || stopping.end_all(MCP_GRACE))
}
