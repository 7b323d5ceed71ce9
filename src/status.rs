//! `status`: prints the status of a running bus.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clients::{Target, status};
use serde_json::value::RawValue;

use crate::bus_args::BusArgs;
use crate::output::{
    Printed, pause, print, print_more, print_more_styled, print_styled, report_fault, stdout_has_colour,
};

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
    /// Print it again every two seconds, or every SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = parse_interval)]
    watch: Option<Duration>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match args.bus.target() {
        Ok(target) => target,
        Err(fault) => return report_fault(&fault),
    };
    let first = match status::fetch(&target) {
        Ok(status) => status,
        Err(fault) => return report_fault(&fault),
    };
    match args.watch {
        Some(every) => watch(&target, first, args.json, every),
        None if args.json => print(&format!("{first}\n")),
        None => print_styled(&status::describe(&first)),
    }
}

/// Prints a status again and again, until its reader is gone.
fn watch(target: &Target, first: Box<RawValue>, json: bool, every: Duration) -> ExitCode {
    let is_screen = !json && io::stdout().is_terminal();
    // A terminal that gets no styles is not cleared either.
    let is_cleared = is_screen && stdout_has_colour();
    let mut latest = Ok(first);
    loop {
        if is_cleared {
            // To the upper left corner, and everything below is cleared.
            print_styled("\x1b[H\x1b[2J");
        }
        let printed = match &latest {
            Ok(status) if json => print_more(&format!("{status}\n")),
            // An empty line tells the tables apart where none is cleared.
            Ok(status) if is_cleared => print_more_styled(&status::describe(status)),
            Ok(status) => print_more_styled(&(status::describe(status) + "\n")),
            Err(fault) if is_screen => print_more(&format!("{fault}\n")),
            Err(fault) => return report_fault(fault),
        };
        if let Printed::Break(code) = printed {
            return code;
        }
        if let Printed::Break(code) = pause(every) {
            return code;
        }
        latest = status::fetch(target);
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds, 0.1 or more".to_owned())
}
