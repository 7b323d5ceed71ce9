//! `logs`: prints what the workers of a running bus wrote to their stderr.

use std::process::ExitCode;
use std::time::Duration;

use clients::logs::{Logs, Whose, parse_whose};

use crate::bus_args::BusArgs;
use crate::output::{Printed, pause, print, print_more, report, report_fault};

/// Polling interval of `--follow`.
const EVERY: Duration = Duration::from_millis(250);

const EXAMPLES: &str = "\
Examples:
  stdio-bus logs                             the last lines of all workers
  stdio-bus logs claude -n 1000              more of one pool
  stdio-bus logs claude/0 -f                 one worker, and follow it

The bus keeps 256 KiB per worker, also of processes that have ended.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only this pool, or this worker of it
    #[arg(value_name = "POOL[/N]", value_parser = parse_whose)]
    whose: Option<Whose>,
    /// Keep printing new lines until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Number of last lines to print
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200)]
    lines: usize,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let opened = args.bus.target().and_then(|target| Logs::open(&target, args.whose.clone()));
    let mut logs = match opened {
        Ok(logs) => logs,
        Err(fault) => return report_fault(&fault.in_words()),
    };
    loop {
        match logs.read(args.lines) {
            // Who wants no lines is not told that there are none.
            Ok(text) if text.is_empty() && !args.follow && args.lines > 0 => {
                return report("stdio-bus: no worker has written to stderr", 0);
            }
            Ok(text) if !args.follow => return print(&text),
            Ok(text) => {
                if let Printed::Break(code) = print_more(&text) {
                    return code;
                }
            }
            Err(fault) => return report_fault(&fault.in_words()),
        }
        if let Printed::Break(code) = pause(EVERY) {
            return code;
        }
    }
}
