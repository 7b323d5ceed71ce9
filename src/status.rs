//! `status`: prints the status of a running bus.

use std::process::ExitCode;

use clients::status;

use crate::bus_args::BusArgs;
use crate::output::{print, print_styled, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus status
  stdio-bus status --tcp 127.0.0.1:9000
  stdio-bus status --json | jq '.pools[].workers[] | select(.state != \"up\")'";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print all that the bus says of itself, as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match args.bus.target().and_then(|target| status::fetch(&target)) {
        Ok(status) if args.json => print(&format!("{status}\n")),
        Ok(status) => print_styled(&status::describe(&status)),
        Err(fault) => report_fault(&fault),
    }
}
