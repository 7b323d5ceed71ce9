//! The log: lines to stderr through a bounded channel and one writer thread.
//!
//! Whoever logs never waits. A stderr that blocks, is closed or is full costs log lines and nothing else; how
//! many is said when lines can be written again. No control character of a message reaches the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{Level, Log, Metadata, Record};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// With lines cut at `LINE_BYTES`, at most 4 MiB wait for a slow reader of stderr.
const LINES_WAITING: usize = 1024;
const LINE_BYTES: usize = 4096;
/// How long an exit waits for the last lines.
const LAST_LINES: Duration = Duration::from_millis(200);

static LINES: OnceLock<Lines> = OnceLock::new();

/// Starts the log of this process. `RUST_LOG` says what is logged, without it everything from info on.
pub fn start_logging() {
    let (lines, notes) = Lines::new();
    let dropped = lines.dropped.clone();
    let writer = move || write_out(&notes, &dropped, Stderr);
    if LINES.set(lines.clone()).is_err()
        || thread::Builder::new().name("log".to_owned()).spawn(writer).is_err()
    {
        return;
    }
    let wanted = env_logger::Env::default().default_filter_or("info");
    let filter = env_logger::Builder::from_env(wanted).build();
    let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    log::set_max_level(filter.filter());
    // Refused where the process has a logger already; then that one stays.
    let _ = log::set_boxed_logger(Box::new(Logger { filter, colour, lines }));
}

/// Waits until the lines logged so far are written, but not long.
pub fn flush_logs() {
    if let Some(lines) = LINES.get() {
        lines.flush(LAST_LINES);
    }
}

struct Logger {
    filter: env_logger::Logger,
    colour: bool,
    lines: Lines,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.filter.matches(record) {
            self.lines.offer(|| format_line(record, SystemTime::now(), self.colour));
        }
    }

    fn flush(&self) {
        self.lines.flush(LAST_LINES);
    }
}

enum Note {
    Line(String),
    /// Everything before it is written.
    Flush(Sender<()>),
}

#[derive(Clone)]
struct Lines {
    notes: Sender<Note>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    fn new() -> (Lines, Receiver<Note>) {
        let (notes, waiting) = bounded(LINES_WAITING);
        (Lines { notes, dropped: Arc::default() }, waiting)
    }

    /// A line for which there is no room is not even made: whoever floods the log is not to slow the loop.
    fn offer(&self, line: impl FnOnce() -> String) {
        if self.notes.is_full() || self.notes.try_send(Note::Line(line())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let (done, written) = bounded(1);
        if self.notes.send_deadline(Note::Flush(done), until).is_ok() {
            let _ = written.recv_deadline(until);
        }
    }
}

fn write_out(notes: &Receiver<Note>, dropped: &AtomicU64, mut sink: impl Write) {
    for note in notes {
        match note {
            Note::Flush(done) => drop(done),
            Note::Line(line) if sink.write_all(line.as_bytes()).is_err() => {
                dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Note::Line(_) => {}
        }
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 && writeln!(sink, "[{missing} log lines were dropped]").is_err() {
            dropped.fetch_add(missing, Ordering::Relaxed);
        }
    }
}

/// Not std's, whose lock a panic on another thread needs.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match nix::unistd::write(&stderr, bytes) {
                // It can be non-blocking without our doing: a terminal shares its flags with our stdin.
                Err(Errno::EAGAIN) => {
                    let mut room = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut room, PollTimeout::NONE);
                }
                Err(Errno::EINTR) => {}
                done => return Ok(done?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `[2026-01-31T23:59:59.123Z INFO  kernel::shell] text`, as env_logger writes it.
fn format_line(record: &Record<'_>, now: SystemTime, colour: bool) -> String {
    let mut line = String::with_capacity(128);
    let (on, off) = if colour { (colour_of(record.level()), "\x1b[0m") } else { ("", "") };
    let _ = write!(line, "[{} {on}{:<5}{off} {}] ", timestamp(now), record.level(), record.target());
    let _ = write!(Escaped { line: &mut line, room: LINE_BYTES }, "{}", record.args());
    line.push('\n');
    line
}

fn colour_of(level: Level) -> &'static str {
    match level {
        Level::Error => "\x1b[1;31m",
        Level::Warn => "\x1b[33m",
        Level::Info => "\x1b[32m",
        Level::Debug => "\x1b[34m",
        Level::Trace => "\x1b[36m",
    }
}

/// Takes text, keeps one line of it without control characters, and cuts it where it is too long.
struct Escaped<'a> {
    line: &'a mut String,
    room: usize,
}

impl std::fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for letter in text.chars() {
            if self.room == 0 {
                return Ok(());
            }
            let before = self.line.len();
            match letter.is_control() || is_invisible(letter) {
                true => self.line.extend(letter.escape_default()),
                false => self.line.push(letter),
            }
            self.room = self.room.saturating_sub(self.line.len() - before);
            if self.room == 0 {
                self.line.push_str("...");
            }
        }
        Ok(())
    }
}

/// Line separators, and what turns the direction of the text around it.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// UTC, to the millisecond.
pub fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day since 1970-01-01. Years start in March here, so that a leap day is the last of its year,
/// and eras of 400 years are all alike.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_AN_ERA: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_AN_ERA, days % DAYS_AN_ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn line_of(text: &str) -> String {
        let at = UNIX_EPOCH + Duration::from_millis(1_769_903_999_123);
        let args = format_args!("{text}").to_string();
        let line =
            format_line(&Record::builder().args(format_args!("{args}")).target("bus").build(), at, false);
        line.strip_prefix("[2026-01-31T23:59:59.123Z INFO  bus] ").expect(&line).to_owned()
    }

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        assert_eq!(line_of("plain é 漢"), "plain é 漢\n");
        assert_eq!(line_of("a\nb\x1b[31m\0\u{9b}\u{202e}c"), "a\\nb\\u{1b}[31m\\u{0}\\u{9b}\\u{202e}c\n");
    }

    #[test]
    fn a_long_message_is_cut() {
        let line = line_of(&"é".repeat(LINE_BYTES));
        assert_eq!(line.len(), LINE_BYTES + "...\n".len());
        assert!(line.ends_with("é...\n"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let days = [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (11_016, (2000, 2, 29)), (20_483, (2026, 1, 30))];
        for (day, expected) in days {
            assert_eq!(date(day), expected);
        }
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_no_time() {
        let (reader, writer) = io::pipe().unwrap();
        let (lines, notes) = Lines::new();
        let dropped = lines.dropped.clone();
        let thread = thread::spawn(move || write_out(&notes, &dropped, writer));
        let text = format!("{}\n", "x".repeat(1023));
        // A pipe and the channel hold far less than this, so without dropping it would never end.
        let offered = 100 * LINES_WAITING;
        for _ in 0..offered {
            lines.offer(|| text.clone());
        }
        let missing = lines.dropped.load(Ordering::Relaxed);
        assert!(missing > 0);
        drop(lines);
        let (mut whole, mut told) = (0, 0);
        for line in BufReader::new(reader).lines().map(Result::unwrap) {
            match line.strip_suffix(" log lines were dropped]") {
                Some(count) => told += count[1..].parse::<usize>().unwrap(),
                None => whole += 1,
            }
        }
        thread.join().unwrap();
        assert_eq!(whole + told, offered);
    }

    #[test]
    fn lines_that_could_not_be_written_are_counted_when_they_can_be() {
        struct Full(usize, Arc<std::sync::Mutex<String>>);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.0 > 0 {
                    self.0 -= 1;
                    return Err(Errno::ENOSPC.into());
                }
                self.1.lock().unwrap().push_str(str::from_utf8(bytes).unwrap());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Arc::new(std::sync::Mutex::new(String::new()));
        let (lines, notes) = Lines::new();
        for line in ["a\n", "b\n", "c\n"] {
            lines.offer(|| line.to_owned());
        }
        let dropped = lines.dropped.clone();
        drop(lines);
        write_out(&notes, &dropped, Full(2, written.clone()));
        assert_eq!(*written.lock().unwrap(), "c\n[2 log lines were dropped]\n");
    }

    #[test]
    fn a_flush_does_not_wait_for_a_writer_that_is_stuck() {
        let (lines, notes) = Lines::new();
        lines.offer(|| "never written\n".to_owned());
        lines.flush(Duration::from_millis(1));
        drop(notes);
        lines.flush(Duration::from_secs(3600));
    }
}
