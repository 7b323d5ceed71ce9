//! The agent's process: stdin, signals, and the end.
//!
//! The end of stdin, SIGTERM and SIGINT all mean the same: running turns are answered as cancelled, and the
//! process is gone within a second whatever still hangs.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::agent::Agent;
use super::config::Config;
use super::shared::{Shared, default_folder};
use super::{Options, log};
use crate::acp::fd_wait::each_line;
use crate::acp::signals::on_signal;
use crate::acp::writer::Writer;

/// For the last words of those that run.
const GRACE: Duration = Duration::from_millis(500);

pub(super) fn run(options: Options) -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let (config, warnings) = Config::read(variable);
    for warning in warnings {
        log(format_args!("{warning}"));
    }
    let folder = options.state.clone().or_else(|| default_folder(variable));
    match start(config, options, folder.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn start(config: Config, options: Options, folder: Option<&std::path::Path>) -> io::Result<()> {
    // As files, because std's own handles buffer in their way.
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let shared = Arc::new(Shared::new(config, options, folder, Writer::new(stdout))?);
    let stops = shared.clone();
    on_signal(move || leave(&stops))?;
    let agent = Agent::new(shared.clone());
    each_line(&mut stdin, |line| agent.line(line))?;
    leave(&shared)
}

fn leave(shared: &Shared) -> ! {
    let limit = || {
        thread::sleep(GRACE);
        process::exit(0);
    };
    // Without the thread there is no limit but that of whoever started us.
    let _ = thread::Builder::new().spawn(limit);
    shared.end_all_turns();
    process::exit(0)
}
