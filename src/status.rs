//! `status`: one look at a running bus.

use std::process::ExitCode;

use clients::status;

use crate::place::BusArgs;
use crate::print::{Paint, answer, tell};

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
    match args.bus.way().and_then(|way| status::ask(&way)) {
        Ok(status) if args.json => answer(&format!("{status}\n")),
        Ok(status) => answer(&status::describe(&status, Paint::on_stdout().is_on())),
        Err(fault) => tell(&fault),
    }
}
