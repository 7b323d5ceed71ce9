//! `sessions`: lists the sessions of a running bus, and closes one.

use std::process::ExitCode;

use clients::sessions;

use crate::bus_args::BusArgs;
use crate::output::{print, print_styled, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus sessions                         owners, folders and open questions
  stdio-bus sessions --json | jq '.[] | select(.questions > 0)'
  stdio-bus sessions close s17               cancel its turn, and have the agent close it
  stdio-bus run --attach s17                 watch one; --control to take part";

const CLOSE_EXAMPLES: &str = "\
Examples:
  stdio-bus sessions close s17";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print the sessions as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Close a session, whoever owns it: cancels its turn and has the agent close it
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        /// The session as `sessions` calls it, such as s17
        label: String,
        #[command(flatten)]
        bus: BusArgs,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if let Some(Action::Close { label, bus }) = &args.action {
        return match bus.target().and_then(|target| sessions::close(&target, label)) {
            Ok(()) => print(&format!("{label} is closed\n")),
            Err(fault) => report_fault(&fault.in_words()),
        };
    }
    match args.bus.target().and_then(|target| sessions::fetch(&target)) {
        Ok(sessions) if args.json => print(&format!("{sessions}\n")),
        Ok(sessions) => print_styled(&sessions::describe(&sessions)),
        Err(fault) => report_fault(&fault),
    }
}
