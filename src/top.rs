//! `top`: a live screen of a running bus.

use std::env;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clients::Ended;
use clients::top::{self, Options};

use crate::bus_args::BusArgs;
use crate::output::{report, report_fault, stdout_has_colour};

const EXAMPLES: &str = "\
Examples:
  stdio-bus top                              the bus of ./bus.json, refreshed every second
  stdio-bus top --tcp 127.0.0.1:9000 --interval 0.2

Keys: arrows (or j and k) select a pool, worker or session, Enter shows it in detail and Esc goes back, Tab \
goes to the sessions, s sorts, / filters, R restarts, x closes, ? lists the keys, q or Ctrl-C quits. If the bus goes \
away, top waits until it is back.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Refresh interval in seconds
    #[arg(long, value_name = "SEC", default_value = "1", value_parser = crate::call::parse_seconds)]
    interval: Duration,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || dumb {
        return report("stdio-bus: top needs a terminal; for programs there is `stdio-bus status --json`", 2);
    }
    let shown = args.bus.target().and_then(|target| {
        top::run(Options { target, interval: args.interval, colour: stdout_has_colour() })
    });
    match shown {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Signalled(signal)) => ExitCode::from(128 + signal as u8),
        Err(fault) => report_fault(&fault),
    }
}
