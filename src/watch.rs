//! `--watch`: prints what a command prints again and again, until its reader is gone.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use crate::output::{Printed, pause, print_more, print_more_styled, print_styled, stdout_has_colour};

#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// Print it again every two seconds, or every SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = parse_interval)]
    pub(crate) watch: Option<Duration>,
}

/// Prints the first text, and every so often the next one. A fault ends it where no screen shows that it goes on;
/// `is_json` says that each text is a line for programs.
pub(crate) fn watch<F: Display>(
    every: Duration,
    is_json: bool,
    first: String,
    mut next: impl FnMut() -> Result<String, F>,
    report: impl Fn(&F) -> ExitCode,
) -> ExitCode {
    let is_screen = !is_json && io::stdout().is_terminal();
    // A terminal that gets no styles is not cleared either.
    let is_cleared = is_screen && stdout_has_colour();
    let mut latest = Ok(first);
    loop {
        if is_cleared {
            // To the upper left corner, and everything below is cleared.
            print_styled("\x1b[H\x1b[2J");
        }
        let printed = match &latest {
            Ok(line) if is_json => print_more(line),
            // An empty line tells the tables apart where none is cleared.
            Ok(table) if is_cleared => print_more_styled(table),
            Ok(table) => print_more_styled(&format!("{table}\n")),
            Err(fault) if is_screen => print_more(&format!("{fault}\n")),
            Err(fault) => return report(fault),
        };
        if let Printed::Break(code) = printed {
            return code;
        }
        if let Printed::Break(code) = pause(every) {
            return code;
        }
        latest = next();
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds, 0.1 or more".to_owned())
}
