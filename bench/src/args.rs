//! Arguments that several commands share.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kernel_shell::raise_open_files;

use crate::bus::beside_us;
use crate::print::complain;
use crate::run::parse_seconds;

/// Arguments of every command that measures a bus.
#[derive(clap::Args)]
pub(crate) struct Measured {
    /// The binary of the bus [default: beside this one, else in PATH]
    #[arg(long, value_name = "PATH")]
    bus: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Measured {
    pub(crate) fn stdio_bus(&self) -> PathBuf {
        self.bus.clone().unwrap_or_else(beside_us)
    }

    /// Like `stdio_bus`, for a command that opens many files: raises the limit of this process first.
    pub(crate) fn stdio_bus_with_many_files(&self) -> Result<PathBuf, ExitCode> {
        match raise_open_files() {
            Ok(_) => Ok(self.stdio_bus()),
            Err(error) => Err(complain(format_args!("cannot open as many files as are needed: {error}"), 1)),
        }
    }
}

/// Arguments of commands that measure in turns, round after round.
#[derive(clap::Args)]
pub(crate) struct Turns {
    /// How often each is measured
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// How long each measurement takes, and half as long before it to warm up
    #[arg(long, value_name = "SEC", default_value = "1", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
}
