//! Output for the user: results on stdout, messages on stderr.
//!
//! A reader that closes stdout early (`stdio-bus schema | head -1`) is no failure, and a closed stderr causes
//! no panic. A command that prints again and again ends with its reader.

use std::env;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clients::Fault;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rpc::text::escape_control;
use serde_json::Value;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();

/// Whether stdout is a terminal that shows colours, and the user wants them.
pub(crate) fn stdout_has_colour() -> bool {
    // In CI the library would take a dumb terminal for the log of a CI system, which shows colours.
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    !is_dumb && AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Whether a command can print more, or ends with this exit code: its reader is gone, or printing failed.
pub(crate) type Printed = ControlFlow<ExitCode>;

/// Prints to stdout and returns the exit code of doing so. A terminal does not obey what the text contains; anybody
/// else gets it byte for byte.
pub(crate) fn print(text: &str) -> ExitCode {
    exit_code(print_more(text))
}

/// Like `print`, for text with styles, which only a terminal gets.
pub(crate) fn print_styled(text: &str) -> ExitCode {
    exit_code(print_more_styled(text))
}

/// The same as `print`, for a command that prints until its reader is gone.
pub(crate) fn print_more(text: &str) -> Printed {
    let stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { escape_control(text) } else { text.into() };
    write_all(stdout, &text)
}

/// The same as `print_styled`, for a command that prints until its reader is gone.
pub(crate) fn print_more_styled(text: &str) -> Printed {
    let colours = if stdout_has_colour() { ColorChoice::Always } else { ColorChoice::Never };
    write_all(AutoStream::new(io::stdout().lock(), colours), text)
}

/// Waits this long before a command prints more. A reader that goes meanwhile ends the command, which may have nothing
/// more to print and would not hear of it.
pub(crate) fn pause(time: Duration) -> Printed {
    let until = Instant::now() + time;
    let stdout = io::stdout();
    // poll reports a closed reader without being asked.
    let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
    let is_gone = |seen: PollFlags| seen.intersects(PollFlags::POLLERR | PollFlags::POLLHUP);
    if fds[0].revents().is_some_and(is_gone) {
        return Printed::Break(ExitCode::SUCCESS);
    }
    // A signal ends a poll early, and not every system can poll what stdout is.
    thread::sleep(until.saturating_duration_since(Instant::now()));
    Printed::Continue(())
}

pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

fn write_all(mut out: impl Write, text: &str) -> Printed {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Printed::Continue(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Printed::Break(ExitCode::SUCCESS),
        Err(error) => Printed::Break(report(format_args!("stdio-bus: cannot write to stdout: {error}"), 1)),
    }
}

fn exit_code(printed: Printed) -> ExitCode {
    match printed {
        Printed::Continue(()) => ExitCode::SUCCESS,
        Printed::Break(code) => code,
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
        Fault::Unreachable(why) if why.starts_with("what answers at ") => {
            let hint = "another program has that address; choose another one in \"listen\" of bus.json";
            report(format_args!("stdio-bus: {fault}; {hint}"), code)
        }
        Fault::Unreachable(_) => {
            report(format_args!("stdio-bus: {fault}; start one with `stdio-bus start`"), code)
        }
        fault => report(format_args!("stdio-bus: {fault}"), code),
    }
}
