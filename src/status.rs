//! `status`: prints the status of a running bus.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clients::status;
use serde_json::value::RawValue;

use crate::bus_args::BusArgs;
use crate::output::{print, print_styled, report_fault};

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
    let show = |status: &RawValue| match args.json {
        true => print(&format!("{status}\n")),
        false => print_styled(&status::describe(status)),
    };
    let first = match status::fetch(&target) {
        Ok(status) => status,
        Err(fault) => return report_fault(&fault),
    };
    let Some(every) = args.watch else { return show(&first) };
    let is_screen = !args.json && io::stdout().is_terminal();
    let mut latest = Ok(first);
    loop {
        if is_screen {
            // To the upper left corner, and everything below is cleared.
            print_styled("\x1b[H\x1b[2J");
        }
        let printed = match &latest {
            Ok(status) => show(status),
            Err(fault) if is_screen => print(&format!("{fault}\n")),
            Err(fault) => return report_fault(fault),
        };
        if printed != ExitCode::SUCCESS {
            return printed;
        }
        if !is_screen && !args.json {
            print("\n");
        }
        thread::sleep(every);
        latest = status::fetch(&target);
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds, 0.1 or more".to_owned())
}
