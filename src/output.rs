//! Output for the user: results on stdout, messages on stderr.
//!
//! A reader that closes stdout early (`stdio-bus schema | head -1`) is no failure, and a closed stderr causes
//! no panic.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::{env, fmt};

use clients::Fault;

/// Prints to stdout and returns the exit code of doing so.
pub(crate) fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => report(format_args!("stdio-bus: cannot write to stdout: {error}"), 1),
    }
}

/// Prints one line to stderr and returns this exit code.
pub(crate) fn report(message: impl fmt::Display, exit_code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(exit_code)
}

/// Prints why a command failed and what the user can do. An error answer is JSON, and the faults of a file
/// begin with its name; programs can read both, so they are printed without a prefix.
pub(crate) fn report_fault(fault: &Fault) -> ExitCode {
    let code = fault.exit_code();
    match fault {
        Fault::Config(_) | Fault::Refused(_) => report(fault, code),
        Fault::Unreachable(_) => {
            report(format_args!("stdio-bus: {fault}; start one with `stdio-bus serve`"), code)
        }
        fault => report(format_args!("stdio-bus: {fault}"), code),
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    pub(crate) fn on_stdout() -> Style {
        Style::on_terminal(io::stdout().is_terminal())
    }

    pub(crate) fn on_stderr() -> Style {
        Style::on_terminal(io::stderr().is_terminal())
    }

    pub(crate) fn on_terminal(terminal: bool) -> Style {
        // https://no-color.org: any value but the empty one.
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Style { on: terminal && !unwanted && !dumb }
    }

    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    pub(crate) fn bold(self, text: impl fmt::Display) -> String {
        self.with("1", text)
    }

    pub(crate) fn green(self, text: impl fmt::Display) -> String {
        self.with("32", text)
    }

    pub(crate) fn red(self, text: impl fmt::Display) -> String {
        self.with("31", text)
    }

    fn with(self, code: &str, text: impl fmt::Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
