//! The agent's process: checks the options, reads stdin, and exits.
//!
//! The end of stdin, SIGTERM and SIGINT have the same effect: running CLIs are stopped with everything that they
//! started, their turns are answered as cancelled, and the process exits.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::agent::Agent;
use super::shared::Shared;
use super::{Options, argv, log, runtimes};
use crate::acp::fd_wait::each_line;
use crate::acp::signals::on_signal;
use crate::acp::writer::Writer;

/// How long running CLIs may take to stop. The bus waits longer than that.
const GRACE: Duration = Duration::from_secs(4);

pub(super) fn run(options: Options) -> ExitCode {
    match start(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log(format_args!("{why}"));
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> Result<(), String> {
    let to_message = |error: io::Error| error.to_string();
    let row = runtimes::named(&options.runtime)?;
    let Some(turn) = row.turn.clone() else {
        let args = row.acp.as_ref().map(|acp| acp.args.join(" ")).unwrap_or_default();
        return Err(format!(
            "{} speaks ACP itself and needs no adapter: {} {args}",
            row.name, row.binaries[0]
        ));
    };
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
    // As files, because the handles of std have buffers of their own.
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(to_message)?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(to_message)?);
    let shared = Arc::new(Shared::new(row, turn, options, Writer::new(stdout)).map_err(to_message)?);
    let signalled = shared.clone();
    on_signal(move || shut_down(&signalled)).map_err(to_message)?;
    let agent = Agent::new(shared.clone());
    each_line(&mut stdin, |line| agent.line(line)).map_err(to_message)?;
    shut_down(&shared)
}

fn shut_down(shared: &Shared) -> ! {
    let until = Instant::now() + GRACE;
    shared.close_all();
    while shared.is_busy() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    process::exit(0)
}
