//! `sessions`: lists the sessions of a running bus.

use std::process::ExitCode;

use clients::sessions;

use crate::bus_args::BusArgs;
use crate::output::{print, print_styled, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus sessions                         who has which session, who has joined it, what is asked
  stdio-bus sessions --json | jq '.[] | select(.questions > 0)'
  stdio-bus run --attach s17                 watch one of them; --control to take part";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print all that the bus says of its sessions, as a list of JSON in one line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match args.bus.target().and_then(|target| sessions::fetch(&target)) {
        Ok(sessions) if args.json => print(&format!("{sessions}\n")),
        Ok(sessions) => print_styled(&sessions::describe(&sessions)),
        Err(fault) => report_fault(&fault),
    }
}
