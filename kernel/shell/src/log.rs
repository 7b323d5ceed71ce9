//! The log: lines to stderr through a bounded channel and one writer thread.
//!
//! Logging never waits. If stderr blocks, is closed or is full, log lines are dropped, and their number is logged when
//! lines can be written again. No control character of a message reaches the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{Level, Log, Metadata, Record};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow};
use rpc::text::{rfc3339, steers_terminal};

use crate::log_file::LogFile;

/// With lines cut at `LINE_BYTES`, at most 4 MiB wait for a slow reader of stderr.
const QUEUED_LINES: usize = 1024;
const LINE_BYTES: usize = 4096;
/// How long the exit waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

static LINES: OnceLock<Lines> = OnceLock::new();

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line: `time`, `level`, `target`, `message`.
    Json,
}

/// Starts the log of this process. `RUST_LOG` selects what is logged; the default is everything from info on. `own`:
/// the log file of a bus in the background, which is kept short if stderr goes there.
pub fn start_logging(format: LogFormat, own: Option<&Path>) {
    let (lines, queue) = Lines::new();
    let dropped = lines.dropped.clone();
    let file = own.and_then(|path| LogFile::of(path, &io::stderr()));
    let writer = move || write_lines(&queue, &dropped, format, Stderr { file });
    // The thread takes no signals: one that comes while this process becomes another program must wait for that.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let is_started = thread::Builder::new().name("log".to_owned()).spawn(writer).is_ok();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    if LINES.set(lines.clone()).is_err() || !is_started {
        return;
    }
    let wanted = env_logger::Env::default().default_filter_or("info");
    let filter = env_logger::Builder::from_env(wanted).build();
    let no_colour = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env::var_os("TERM").is_some_and(|term| term == "dumb");
    let colour = io::stderr().is_terminal() && !no_colour;
    log::set_max_level(filter.filter());
    // This fails if the process has a logger already, which then stays.
    let _ = log::set_boxed_logger(Box::new(Logger { filter, format, colour, lines }));
}

/// Waits for a short time until the lines logged so far are written.
pub fn flush_logs() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_TIMEOUT);
    }
}

struct Logger {
    filter: env_logger::Logger,
    format: LogFormat,
    colour: bool,
    lines: Lines,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.filter.matches(record) {
            self.lines.offer(|| match self.format {
                LogFormat::Text => format_line(record, SystemTime::now(), self.colour),
                LogFormat::Json => json_line(record, SystemTime::now()),
            });
        }
    }

    fn flush(&self) {
        self.lines.flush(FLUSH_TIMEOUT);
    }
}

enum Item {
    Line(String),
    /// The sender is dropped when everything before it is written.
    Flush(Sender<()>),
}

#[derive(Clone)]
struct Lines {
    queue: Sender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    fn new() -> (Lines, Receiver<Item>) {
        let (queue, receiver) = bounded(QUEUED_LINES);
        (Lines { queue, dropped: Arc::default() }, receiver)
    }

    /// A line for which there is no room is not even formatted, so that a flood of lines does not slow the event loop.
    fn offer(&self, line: impl FnOnce() -> String) {
        if self.queue.is_full() || self.queue.try_send(Item::Line(line())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (done, written) = bounded(1);
        if self.queue.send_deadline(Item::Flush(done), deadline).is_ok() {
            let _ = written.recv_deadline(deadline);
        }
    }
}

fn write_lines(queue: &Receiver<Item>, dropped: &AtomicU64, format: LogFormat, mut sink: impl Write) {
    for item in queue {
        match item {
            Item::Flush(done) => drop(done),
            Item::Line(line) if sink.write_all(line.as_bytes()).is_err() => {
                dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Item::Line(_) => {}
        }
        let count = dropped.swap(0, Ordering::Relaxed);
        if count == 0 {
            continue;
        }
        let told = match format {
            LogFormat::Text => format!("[{count} log lines were dropped]\n"),
            LogFormat::Json => {
                let message = format_args!("{count} log lines were dropped");
                json_line(&Record::builder().level(Level::Warn).args(message).build(), SystemTime::now())
            }
        };
        if sink.write_all(told.as_bytes()).is_err() {
            dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// stderr without the lock of std, which a panic on another thread needs.
struct Stderr {
    file: Option<LogFile>,
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match nix::unistd::write(&stderr, bytes) {
                // stderr may be non-blocking, because a terminal shares its flags with our stdin.
                Err(Errno::EAGAIN) => {
                    let mut room = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut room, PollTimeout::NONE);
                }
                Err(Errno::EINTR) => {}
                done => {
                    let count = done?;
                    self.file.iter_mut().for_each(|file| file.wrote(count));
                    return Ok(count);
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats `[2026-01-31T23:59:59.123Z INFO  kernel_shell] text`, like env_logger, whose formatter would not escape
/// control characters.
fn format_line(record: &Record<'_>, now: SystemTime, colour: bool) -> String {
    let mut line = String::with_capacity(128);
    let (on, off) = if colour { (colour_of(record.level()), "\x1b[0m") } else { ("", "") };
    let _ = write!(line, "[{} {on}{:<5}{off} {}] ", rfc3339(now), record.level(), record.target());
    let _ = write!(Escaped { line: &mut line, room: LINE_BYTES }, "{}", record.args());
    line.push('\n');
    line
}

/// The same as JSON, cut at the same length. JSON itself escapes control characters.
fn json_line(record: &Record<'_>, now: SystemTime) -> String {
    let mut message = String::with_capacity(128);
    let _ = write!(Cut { line: &mut message, room: LINE_BYTES }, "{}", record.args());
    let level = record.level().as_str().to_lowercase();
    let line = serde_json::json!({
        "time": rfc3339(now), "level": level, "target": record.target(), "message": message,
    });
    format!("{line}\n")
}

/// Writes text until `room` is used up.
struct Cut<'a> {
    line: &'a mut String,
    room: usize,
}

impl std::fmt::Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let mut end = text.len().min(self.room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.line.push_str(&text[..end]);
        self.room -= end;
        if end < text.len() {
            self.room = 0;
        }
        Ok(())
    }
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

/// Writes text as one line: escapes control characters, and cuts the line when `room` is used up.
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
            if steers_terminal(letter) {
                self.line.extend(letter.escape_default());
            } else {
                self.line.push(letter);
            }
            self.room = self.room.saturating_sub(self.line.len() - before);
            if self.room == 0 {
                self.line.push_str("...");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::UNIX_EPOCH;

    use super::*;

    fn line_of(text: &str) -> String {
        let at = UNIX_EPOCH + Duration::from_millis(1_769_903_999_123);
        let args = format_args!("{text}").to_string();
        let line =
            format_line(&Record::builder().args(format_args!("{args}")).target("bus").build(), at, false);
        line.strip_prefix("[2026-01-31T23:59:59.123Z INFO  bus] ").expect(&line).to_owned()
    }

    #[test]
    fn a_line_of_json_has_the_same_words() {
        let args = "tick \u{1b}[2J \"é\"\n".to_owned() + &"é".repeat(LINE_BYTES);
        let at = UNIX_EPOCH + Duration::from_millis(1_769_903_999_123);
        let line = json_line(&Record::builder().args(format_args!("{args}")).target("bus").build(), at);
        assert!(line.ends_with("}\n") && line.lines().count() == 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["level"], &value["target"]), (&"info".into(), &"bus".into()));
        assert_eq!(value["time"], "2026-01-31T23:59:59.123Z");
        let message = value["message"].as_str().unwrap();
        assert!(message.starts_with("tick \u{1b}[2J \"é\"\n") && message.len() <= LINE_BYTES);
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
    fn a_reader_that_does_not_read_costs_log_lines_but_no_time() {
        let (reader, writer) = io::pipe().unwrap();
        let (lines, queue) = Lines::new();
        let dropped = lines.dropped.clone();
        let thread = thread::spawn(move || write_lines(&queue, &dropped, LogFormat::Text, writer));
        let text = format!("{}\n", "x".repeat(1023));
        // The pipe and the channel hold far less than this, so without dropping the loop would never end.
        let offered = 100 * QUEUED_LINES;
        for _ in 0..offered {
            lines.offer(|| text.clone());
        }
        assert!(lines.dropped.load(Ordering::Relaxed) > 0);
        drop(lines);
        let mut written = 0;
        let mut reported = 0;
        for line in BufReader::new(reader).lines().map(Result::unwrap) {
            match line.strip_suffix(" log lines were dropped]") {
                Some(count) => reported += count[1..].parse::<usize>().unwrap(),
                None => written += 1,
            }
        }
        thread.join().unwrap();
        assert_eq!(written + reported, offered);
    }

    #[test]
    fn lines_that_could_not_be_written_are_counted_in_the_log() {
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
        let (lines, queue) = Lines::new();
        for line in ["a\n", "b\n", "c\n"] {
            lines.offer(|| line.to_owned());
        }
        let dropped = lines.dropped.clone();
        drop(lines);
        write_lines(&queue, &dropped, LogFormat::Text, Full(2, written.clone()));
        assert_eq!(*written.lock().unwrap(), "c\n[2 log lines were dropped]\n");
    }

    #[test]
    fn a_flush_does_not_wait_for_a_writer_that_is_stuck() {
        let (lines, queue) = Lines::new();
        lines.offer(|| "never written\n".to_owned());
        lines.flush(Duration::from_millis(1));
        drop(queue);
        lines.flush(Duration::from_secs(3600));
    }
}
