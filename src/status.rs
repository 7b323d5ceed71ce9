//! `status`: prints the status of a running bus.

use std::process::ExitCode;

use clients::status;
use serde_json::value::RawValue;

use crate::bus_args::BusArgs;
use crate::output::{print, print_styled, report_fault};
use crate::watch::{WatchArgs, watch};

const EXAMPLES: &str = "\
Examples:
  stdio-bus status
  stdio-bus status --watch                   again every two seconds; --watch=10 less often
  stdio-bus status --tcp 127.0.0.1:9000
  stdio-bus status --json | jq '.pools[].workers[] | select(.state != \"up\")'";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the whole status as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    again: WatchArgs,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match args.bus.target() {
        Ok(target) => target,
        Err(fault) => return report_fault(&fault),
    };
    let text = |status: Box<RawValue>| match args.json {
        true => format!("{status}\n"),
        false => status::describe(&status),
    };
    let read = || status::fetch(&target).map(text);
    let first = match read() {
        Ok(first) => first,
        Err(fault) => return report_fault(&fault),
    };
    match args.again.watch {
        Some(every) => watch(every, args.json, first, read, report_fault),
        None if args.json => print(&first),
        None => print_styled(&first),
    }
}
