//! Output for the user: results on stdout, messages on stderr.
//!
//! A reader that closes stdout early (`stdio-bus schema | head -1`) is no failure, and a closed stderr causes
//! no panic.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clients::Fault;
use rpc::text::escape_control;
use serde_json::Value;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();

/// Whether stdout is a terminal that shows colours, and the user wants them.
pub(crate) fn stdout_has_colour() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Prints to stdout and returns the exit code of doing so. A terminal does not obey what the text contains; anybody
/// else gets it byte for byte.
pub(crate) fn print(text: &str) -> ExitCode {
    let stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { escape_control(text) } else { text.into() };
    write_all(stdout, &text)
}

/// The same for text with styles, which only a terminal gets.
pub(crate) fn print_styled(text: &str) -> ExitCode {
    write_all(AutoStream::auto(io::stdout().lock()), text)
}

pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

fn write_all(mut out: impl Write, text: &str) -> ExitCode {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => report(format_args!("stdio-bus: cannot write to stdout: {error}"), 1),
    }
}

/// Prints one line to stderr and returns this exit code. The message may quote others.
pub(crate) fn report(message: impl fmt::Display, exit_code: u8) -> ExitCode {
    let mut stderr = io::stderr().lock();
    let message = message.to_string();
    let message = if stderr.is_terminal() { escape_control(&message) } else { message.as_str().into() };
    let _ = writeln!(stderr, "{message}");
    ExitCode::from(exit_code)
}

/// What the process of an agent wrote to its stderr before it ended, as people read it, if the error says so.
fn last_words(error: &str) -> String {
    let error: Value = serde_json::from_str(error).unwrap_or_default();
    let lines = error["data"]["stderr"].as_str().unwrap_or_default().lines();
    lines.map(|line| format!("\n| {line}")).collect()
}

/// Prints why a command failed and what the user can do. An error answer is JSON, and the faults of a file
/// begin with its name; programs can read both, so they are printed without a prefix.
pub(crate) fn report_fault(fault: &Fault) -> ExitCode {
    let code = fault.exit_code();
    match fault {
        Fault::Refused(error) if io::stderr().is_terminal() => {
            report(format_args!("{fault}{}", last_words(error.get())), code)
        }
        Fault::Config(_) | Fault::Refused(_) => report(fault, code),
        Fault::Unreachable(_) => {
            report(format_args!("stdio-bus: {fault}; start one with `stdio-bus serve`"), code)
        }
        fault => report(format_args!("stdio-bus: {fault}"), code),
    }
}
