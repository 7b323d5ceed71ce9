//! The agent's process: stdin, signals, and the end.
//!
//! The end of stdin, SIGTERM and SIGINT all mean the same: running CLIs are ended with all that they started, their
//! turns answered as cancelled, and the process leaves.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::agent::Agent;
use super::house::House;
use super::{Options, argv, log, runtimes};
use crate::acp::fd_wait::each_line;
use crate::acp::signals::on_signal;
use crate::acp::writer::Writer as Out;

/// For the ends of those that run. Whoever started us waits longer than that.
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
    let words = |error: io::Error| error.to_string();
    let row = runtimes::named(&options.runtime)?;
    let Some(turn) = row.turn.clone() else {
        let args = row.acp.as_ref().map(|acp| acp.args.join(" ")).unwrap_or_default();
        return Err(format!(
            "{} speaks ACP itself and needs no adapter: {} {args}",
            row.name, row.binaries[0]
        ));
    };
    if let Some(model) = options.model.as_deref().filter(|model| !argv::is_model(model)) {
        return Err(format!("{model:?} is no name of a model"));
    }
    if let Some(mode) =
        options.mode.as_deref().filter(|mode| turn.modes.iter().all(|known| known.id != *mode))
    {
        let known: Vec<&str> = turn.modes.iter().map(|mode| mode.id.as_str()).collect();
        return Err(format!("no mode is called {mode}; there are {}", known.join(", ")));
    }
    // As files, because std's own handles buffer in their way.
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(words)?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(words)?);
    let house = Arc::new(House::new(row, turn, options, Out::new(stdout)).map_err(words)?);
    let stops = house.clone();
    on_signal(move || leave(&stops)).map_err(words)?;
    let agent = Agent::new(house.clone());
    each_line(&mut stdin, |line| agent.line(line)).map_err(words)?;
    leave(&house)
}

fn leave(house: &House) -> ! {
    let until = Instant::now() + GRACE;
    house.end_all();
    while house.is_at_work() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    process::exit(0)
}
