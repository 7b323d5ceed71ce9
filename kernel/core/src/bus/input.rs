//! Reading: bytes become lines, and each line goes to the part that handles it.
//!
//! One line may be for hundreds of guests, and one chunk has hundreds of lines. So what the lines of a chunk cause
//! counts, and once it is much, the rest of the chunk waits until others were served.

use std::borrow::Cow;

use super::{Bus, ReadMode};
use crate::id::{Link, WorkerId};
use crate::limit::{AUTH_LINE_BYTES, UNFINISHED_LINE_TIMEOUT};
use crate::mutants::{Check, enabled};
use crate::state::clients::AuthState;
use crate::state::links::Input;
use crate::state::metrics::Side;
use crate::state::timers::Alarm;
use crate::wire::line_buffer::{LineBuffer, Piece};
use crate::wire::long_line::LongLine;

/// What the bus does with the bytes of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// Only the first line counts, which must show the token.
    AuthOnly,
    /// The client was rejected, and what it still sends is dropped.
    Discard,
    /// The first byte is not `{`, so this is no JSON-RPC client. It is closed without an answer.
    Close,
}

/// How far a chunk is read.
struct Reading<'a> {
    /// What is not read of it.
    chunk: &'a [u8],
    /// A line of it was handled, so that what is unfinished now began with it.
    has_new_line: bool,
}

impl Bus {
    /// Handles the whole lines among the bytes, and lines that were held back before, each with what follows from it.
    pub(super) fn read(&mut self, link: Link, bytes: &[u8], mode: ReadMode) {
        let mut reading = Reading { chunk: bytes, has_new_line: false };
        loop {
            let goes_on = self.read_lines(link, &mut reading, mode);
            self.follow_up();
            if !goes_on {
                return;
            }
        }
    }

    /// Handles the last lines of a worker. What follows from them comes after the loss of the worker.
    pub(super) fn read_last_lines(&mut self, link: Link) {
        let mut reading = Reading { chunk: &[], has_new_line: false };
        while self.read_lines(link, &mut reading, ReadMode::Last) {}
    }

    /// Handles lines up to the first one from which something follows. True: there may be more of them.
    fn read_lines(&mut self, link: Link, reading: &mut Reading<'_>, mode: ReadMode) -> bool {
        let worker = self.links.worker_of(link);
        let gate = if worker.is_some() { Gate::Open } else { self.gate_for(link, reading.chunk) };
        match gate {
            Gate::Open | Gate::AuthOnly => {}
            Gate::Discard => return false,
            Gate::Close => {
                self.client_leaves(link);
                return false;
            }
        }
        let mut awaits_token = gate == Gate::AuthOnly;
        let Some(mut input) = self.links.take_input(link) else { return false };
        let mut chunk = reading.chunk;
        let mut line_is_new = reading.has_new_line || input.lines.is_empty();
        let limit = self.line_limit(worker.is_none());
        self.links.take_work();
        self.links.take_over_limit();
        while mode != ReadMode::UnlessPaused || !self.links.is_paused(link) {
            let limit = if awaits_token { limit.min(AUTH_LINE_BYTES) } else { limit };
            let Some(piece) = input.lines.next(&mut chunk, limit) else { break };
            self.counters.count_in(Side::of(worker), &piece);
            line_is_new = true;
            match (piece, worker) {
                (Piece::Line(line), Some(worker)) => {
                    if !line.iter().all(u8::is_ascii_whitespace) {
                        self.worker_line(worker, line, || input.prefixes.scan(line));
                    }
                }
                (Piece::Line(line), None) => {
                    if !line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
                        self.client_line(link, line, || input.prefixes.scan(line));
                    }
                }
                (Piece::Long(long), _) => long_line(self, link, worker, long),
                (Piece::TooLong(partial), Some(worker)) => self.worker_too_long(worker, &partial),
                (Piece::TooLong(partial), None) => self.client_too_long(link, &partial),
            }
            if awaits_token {
                awaits_token = self.awaits_token(link);
                if self.clients.auth_of(link) == Some(AuthState::Rejected) {
                    chunk = &[];
                    input.lines = emptied(input.lines);
                    break;
                }
            }
            if self.links.peer(link).is_none() {
                chunk = &[];
                break;
            }
            if let Some(full) = self.links.take_over_limit() {
                self.over_limit(link, full);
            }
            self.leftovers.spend_parts(self.links.take_work());
            if self.leftovers.is_spent() && mode != ReadMode::Last {
                if mode == ReadMode::EvenIfPaused {
                    // Its sender is gone. What it still wanted is as good as not sent.
                    (chunk, input.lines) = (&[], emptied(input.lines));
                } else if !chunk.is_empty() || !input.lines.is_empty() {
                    self.links.wait_turn(link);
                }
                break;
            }
            if !self.todo.is_empty() {
                *reading = Reading { chunk, has_new_line: true };
                self.links.put_back(link, input);
                return true;
            }
        }
        input.lines.hold(chunk);
        if mode == ReadMode::Last {
            unended_line(self, link, worker, &mut input);
            input.lines = emptied(input.lines);
        }
        let auth_line_too_long = awaits_token && input.lines.is_too_long();
        let is_begun = !input.lines.is_empty();
        self.links.put_back(link, input);
        if auth_line_too_long {
            self.auth_line_too_long(link);
            return false;
        }
        if worker.is_none() && is_begun {
            if self.links.begins_line(link, line_is_new) {
                self.alarms.arm(self.now + UNFINISHED_LINE_TIMEOUT, Alarm::Line(link));
            }
            // While more is held than may be, the longest lines that clients have begun are given up. They are answered
            // like lines that are too long.
            while self.held_bytes() > self.limits.max_held_bytes && self.links.give_up_longest_line() {}
        }
        false
    }

    /// The first byte of a client must open a JSON object. The request of a browser, a TLS handshake or anything else
    /// is not even answered.
    fn gate_for(&self, link: Link, bytes: &[u8]) -> Gate {
        let gate = match self.clients.auth_of(link) {
            None | Some(AuthState::Accepted) => return Gate::Open,
            Some(AuthState::Rejected) if enabled(Check::Rejected) => return Gate::Discard,
            Some(AuthState::Rejected) => return Gate::Open,
            Some(AuthState::AwaitingFirstLine) => Gate::Open,
            Some(AuthState::AwaitingToken) => Gate::AuthOnly,
        };
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let is_foreign = self.links.is_input_blank(link) && first.is_some_and(|first| *first != b'{');
        if is_foreign && enabled(Check::FirstLine) { Gate::Close } else { gate }
    }
}

/// Handles a line whose buffer the queues of its receivers can share. It was scanned while it came.
#[cold]
fn long_line(bus: &mut Bus, link: Link, worker: Option<WorkerId>, mut long: Box<LongLine>) {
    let is_blank = if worker.is_some() { long.is_blank() } else { long.is_space() };
    if !is_blank {
        let scanned = long.scan();
        bus.links.lend(&long);
        let line = long.bytes();
        match worker {
            Some(worker) => bus.worker_line(worker, line, || scanned.map(Cow::Owned)),
            None => bus.client_line(link, line, || scanned.map(Cow::Owned)),
        }
    }
    bus.links.take_back(*long);
}

/// Handles the last bytes of a link, if they are a message although their line does not end.
#[cold]
fn unended_line(bus: &mut Bus, link: Link, worker: Option<WorkerId>, input: &mut Input) {
    if let Some(mut long) = input.lines.take_long() {
        if long.scan().is_ok() {
            long_line(bus, link, worker, long);
        }
        return;
    }
    let rest = input.lines.rest();
    match (input.prefixes.scan(rest).map(Cow::into_owned), worker) {
        (Err(_), _) => {}
        (scanned, Some(worker)) => bus.worker_line(worker, rest, || scanned.map(Cow::Owned)),
        (scanned, None) => bus.client_line(link, rest, || scanned.map(Cow::Owned)),
    }
}

fn emptied(lines: LineBuffer) -> LineBuffer {
    LineBuffer::reusing(lines.into_buffer())
}
