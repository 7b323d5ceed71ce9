//! Output: results on stdout, errors and progress on stderr.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fmt};

const PROGRESS_APART: Duration = Duration::from_millis(250);

/// Prints the text and gives the exit code. A reader of stdout that has closed it is no failure.
pub(crate) fn answer(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            complain(format_args!("cannot write to stdout: {error}"), 1)
        }
        _ => ExitCode::SUCCESS,
    }
}

pub(crate) fn complain(message: impl fmt::Display, exit_code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "bus-bench: {message}");
    ExitCode::from(exit_code)
}

/// 1234567 as 1,234,567.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that makes it short.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 10_000.0 => format!("{us:.0} us"),
        us => format!("{:.1} ms", us / 1000.0),
    }
}

/// The text in red, if stdout is a terminal and colour is wanted.
pub(crate) fn red(text: impl fmt::Display) -> String {
    // https://no-color.org: any value but the empty one.
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = io::stdout().is_terminal() && !unwanted && !is_dumb();
    if colour { format!("\x1b[31m{text}\x1b[0m") } else { text.to_string() }
}

/// A line on a terminal that shows progress, and is erased when it is dropped.
pub(crate) struct Progress {
    /// None: stderr is no terminal.
    label: Option<String>,
    next: Instant,
    shown: bool,
}

impl Progress {
    pub(crate) fn on_stderr(label: String) -> Progress {
        let seen = io::stderr().is_terminal() && !is_dumb();
        Progress { label: seen.then_some(label), next: Instant::now(), shown: false }
    }

    #[cfg(test)]
    pub(crate) fn none() -> Progress {
        Progress { label: None, next: Instant::now(), shown: false }
    }

    pub(crate) fn show(&mut self, now: Instant, state: impl FnOnce() -> String) {
        let Some(label) = &self.label else { return };
        if now < self.next {
            return;
        }
        let _ = write!(io::stderr(), "\r\x1b[K{label}: {}", state());
        self.next = now + PROGRESS_APART;
        self.shown = true;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_made_to_be_read() {
        let read = [0.0, 999.4, 1000.0, 1_234_567.0].map(thousands);
        assert_eq!(read, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([8.14, 812.3, 48_000.0].map(micros), ["8.1 us", "812 us", "48.0 ms"]);
    }
}
