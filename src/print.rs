//! What goes to the user: answers on stdout, complaints on stderr.
//!
//! A reader that has seen enough (`stdio-bus schema | head -1`) is no failure, and a complaint that nobody can
//! hear is lost without a panic.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::{env, fmt};

use clients::Fault;

/// Prints it and gives the exit code of having done so.
pub(crate) fn answer(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => complain(format_args!("stdio-bus: cannot write to stdout: {error}"), 1),
    }
}

/// Prints it as a line of its own and gives back the exit code.
pub(crate) fn complain(message: impl fmt::Display, exit_code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(exit_code)
}

/// Says why a program got no good answer, and what to do about it. An error that was answered is JSON, and the faults
/// of a file have its name; both are printed as they are, for programs to read.
pub(crate) fn tell(fault: &Fault) -> ExitCode {
    let code = fault.exit_code();
    match fault {
        Fault::Config(_) | Fault::Refused(_) => complain(fault, code),
        Fault::Unreachable(_) => {
            complain(format_args!("stdio-bus: {fault}; start one with `stdio-bus serve`"), code)
        }
        fault => complain(format_args!("stdio-bus: {fault}"), code),
    }
}

/// Colours, where they can be seen and are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    pub(crate) fn on_stdout() -> Paint {
        Paint::on_terminal(io::stdout().is_terminal())
    }

    pub(crate) fn on_stderr() -> Paint {
        Paint::on_terminal(io::stderr().is_terminal())
    }

    pub(crate) fn on_terminal(terminal: bool) -> Paint {
        // https://no-color.org: any value but the empty one.
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { on: terminal && !unwanted && !dumb }
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
