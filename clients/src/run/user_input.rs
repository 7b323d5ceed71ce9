//! What the user types or pipes into stdin, read on demand, so that what is not read stays in the terminal or the pipe.
//!
//! One thread reads. At a terminal it can be told to stop, so that something else is printed or asked.

use std::io::{self, BufRead, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use rpc::lines::LINE_BYTES_MAX;
use rpc::text::steers_terminal;

use super::events::Event;
use super::line_editor::{Edited, LineEditor};

/// How soon a withdrawal is noticed, in milliseconds.
const POLL_MS: u16 = 50;

/// The editor reads for ever from a terminal that is gone, and so is not waited for longer than this.
const EDITOR_PATIENCE: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// A line as the terminal or the pipe gives it.
    Line,
    /// A prompt, with the editor.
    Prompt,
}

/// How stdin is read.
pub(super) enum Source {
    /// Line by line.
    Lines,
    /// Everything until the end counts as one line.
    Whole,
    /// A terminal where lines can be withdrawn, and prompts are edited.
    Editor(Box<LineEditor>),
}

pub(super) struct UserInput {
    requests_tx: Sender<Ask>,
    /// Each request ends with one message.
    finished: Receiver<()>,
    withdraw: Arc<AtomicBool>,
    filled_in: Arc<Mutex<String>>,
    has_editor: bool,
    /// What was requested and has not come.
    pending: Option<Ask>,
    /// The end of the pending request was already waited for.
    is_finished: bool,
    /// The input has ended.
    is_over: bool,
}

impl UserInput {
    pub(super) fn new(events: Sender<Event>, source: Source) -> UserInput {
        let (requests_tx, requests) = channel();
        let (finished_tx, finished) = channel();
        let (withdraw, filled_in, has_editor) = match &source {
            Source::Editor(editor) => (editor.withdraw.clone(), editor.filled_in.clone(), true),
            _ => (Arc::default(), Arc::default(), false),
        };
        let reader = Reader { events, source, withdraw: withdraw.clone() };
        thread::spawn(move || reader.run(&requests, &finished_tx));
        UserInput {
            requests_tx,
            finished,
            withdraw,
            filled_in,
            has_editor,
            pending: None,
            is_finished: false,
            is_over: false,
        }
    }

    pub(super) fn has_editor(&self) -> bool {
        self.has_editor
    }

    /// The next prompt begins with this text, where there is an editor.
    pub(super) fn fill_in(&self, text: &str) {
        if let Ok(mut filled_in) = self.filled_in.lock() {
            text.clone_into(&mut filled_in);
        }
    }

    /// Requests a line. Returns false if none will come.
    pub(super) fn request_line(&mut self) -> bool {
        self.request(Ask::Line)
    }

    /// Requests a prompt, which is a line that can be edited where there is an editor. Returns false if none will come.
    pub(super) fn request_prompt(&mut self) -> bool {
        self.request(if self.has_editor { Ask::Prompt } else { Ask::Line })
    }

    fn request(&mut self, ask: Ask) -> bool {
        if self.pending.is_some_and(|pending| pending != ask) {
            self.withdraw();
        }
        if !self.is_over && self.pending.is_none() {
            self.withdraw.store(false, Ordering::SeqCst);
            self.is_finished = false;
            self.pending = self.requests_tx.send(ask).is_ok().then_some(ask);
        }
        !self.is_over && self.pending.is_some()
    }

    /// Stops reading at a terminal, which is as it was before when this returns. A line that has just come stays an
    /// event.
    pub(super) fn withdraw(&mut self) {
        if !self.has_editor || self.pending.is_none() || self.is_finished {
            return;
        }
        self.withdraw.store(true, Ordering::SeqCst);
        self.is_finished = true;
        if self.finished.recv_timeout(EDITOR_PATIENCE).is_err() {
            self.is_over = true;
        }
        // The reader says with the flag whether it has heeded it.
        if !self.withdraw.load(Ordering::SeqCst) {
            self.pending = None;
        }
    }

    /// The editor is open, and the cursor stands in it.
    pub(super) fn is_editing(&self) -> bool {
        self.pending == Some(Ask::Prompt) && !self.is_finished
    }

    /// A line was read before it could be withdrawn, and is among the events.
    pub(super) fn is_line_due(&self) -> bool {
        self.has_editor && self.pending.is_some() && self.is_finished && !self.is_over
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Notes that the requested line has come.
    pub(super) fn on_line(&mut self, line: Option<&String>) {
        if !std::mem::replace(&mut self.is_finished, true) {
            let _ = self.finished.recv();
        }
        self.pending = None;
        self.is_over = line.is_none();
    }
}

struct Reader {
    events: Sender<Event>,
    source: Source,
    withdraw: Arc<AtomicBool>,
}

/// The reader was told to stop.
struct Withdrawn;

impl Reader {
    fn run(mut self, requests: &Receiver<Ask>, finished: &Sender<()>) {
        for ask in requests {
            let is_gone = match self.read(ask) {
                Ok(line) => self.events.send(Event::UserLine(line)).is_err(),
                Err(Withdrawn) => {
                    self.withdraw.store(false, Ordering::SeqCst);
                    false
                }
            };
            if finished.send(()).is_err() || is_gone {
                return;
            }
        }
    }

    fn read(&mut self, ask: Ask) -> Result<Option<String>, Withdrawn> {
        let withdraw = self.withdraw.clone();
        match &mut self.source {
            Source::Lines => Ok(read_line(false)),
            Source::Whole => Ok(read_line(true)),
            Source::Editor(_) if ask == Ask::Line => read_at_terminal(&withdraw),
            Source::Editor(editor) => read_prompt(editor, &withdraw),
        }
    }
}

fn read_prompt(editor: &mut LineEditor, withdraw: &AtomicBool) -> Result<Option<String>, Withdrawn> {
    // A line that was typed before it was asked for is taken as it is, and shown where it belongs.
    if is_readable(0) {
        let line = read_line(false).map(|line| without_keys(&line));
        if let Some(line) = &line {
            let sign = if editor.colour { "\x1b[36m>\x1b[0m" } else { ">" };
            eprintln!("{sign} {line}");
        }
        return Ok(line);
    }
    let mut cleared = 0;
    loop {
        match editor.read() {
            Ok(Edited::Line(line)) => return Ok(Some(line)),
            Ok(Edited::Ended) => return Ok(None),
            Ok(Edited::Withdrawn) => return Err(Withdrawn),
            Ok(Edited::Cleared) => {
                cleared += 1;
                if cleared > 1 {
                    eprintln!("(Ctrl-D ends)");
                }
            }
            // A terminal that does not tell where its cursor is can still be read.
            Err(_) => {
                eprint!("> ");
                return read_at_terminal(withdraw);
            }
        }
    }
}

/// What was typed, without arrows and other keys that nobody was there to heed.
fn without_keys(line: &str) -> String {
    let mut text = String::new();
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '\x1b' && letters.next_if(|next| matches!(next, '[' | 'O')).is_some() {
            // The key ends with the first byte that is no parameter.
            while letters.next().is_some_and(|next| !matches!(next, '@'..='~')) {}
        } else if letter == '\t' || !steers_terminal(letter) {
            text.push(letter);
        }
    }
    text
}

/// Reads a line of a terminal, which is readable when the line is complete.
fn read_at_terminal(withdraw: &AtomicBool) -> Result<Option<String>, Withdrawn> {
    while !is_readable(POLL_MS) {
        if withdraw.load(Ordering::SeqCst) {
            return Err(Withdrawn);
        }
    }
    Ok(read_line(false))
}

fn is_readable(timeout_ms: u16) -> bool {
    let stdin = io::stdin();
    poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], timeout_ms) == Ok(1)
}

fn read_line(whole: bool) -> Option<String> {
    let mut line = Vec::new();
    // A longer line is cut, and its rest is the next line.
    let mut stdin = io::stdin().lock().take(LINE_BYTES_MAX as u64);
    let read = match whole {
        true => stdin.read_to_end(&mut line),
        false => stdin.read_until(b'\n', &mut line),
    };
    let line = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
    matches!(read, Ok(1..)).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_were_pressed_too_early_are_no_text() {
        let cases = [
            ("a\x1b[Db", "ab"),
            ("\x1b[1;5Cé\x1bOP!", "é!"),
            ("x\x1b", "x"),
            ("\x1b[", ""),
            ("a\tb\x07", "a\tb"),
        ];
        for (typed, text) in cases {
            assert_eq!(without_keys(typed), text, "{typed:?}");
        }
    }
}
