//! Reading: bytes become lines, and each line goes to the part that handles it.
//!
//! One line may be for hundreds of guests, and one chunk has hundreds of lines. So what the lines of a chunk cause
//! counts, and once it is much, the rest of the chunk waits until others were served.

use super::{Bus, ReadMode};
use crate::id::{Link, WorkerId};
use crate::limit::{AUTH_LINE_BYTES, UNFINISHED_LINE_TIMEOUT};
use crate::mutants::{Check, enabled};
use crate::state::clients::AuthState;
use crate::state::metrics::Side;
use crate::state::timers::Alarm;
use crate::wire::line_buffer::{LineBuffer, Piece};
use crate::wire::long_line::LongLine;
use crate::wire::prefix_cache::PrefixCache;

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

impl Bus {
    /// Handles the whole lines among the bytes, and lines that were held back before.
    pub(super) fn read(&mut self, link: Link, bytes: &[u8], mode: ReadMode) {
        let worker = self.links.worker_of(link);
        let gate = if worker.is_some() { Gate::Open } else { self.gate_for(link, bytes) };
        match gate {
            Gate::Open | Gate::AuthOnly => {}
            Gate::Discard => return,
            Gate::Close => return self.client_leaves(link),
        }
        let mut awaits_token = gate == Gate::AuthOnly;
        let Some(mut input) = self.links.take_input(link) else { return };
        let mut chunk = bytes;
        let mut line_is_new = input.lines.is_empty();
        let limit = self.line_limit(worker.is_none());
        self.links.take_work();
        self.links.take_over_limit();
        while mode != ReadMode::UnlessPaused || !self.links.is_paused(link) {
            let limit = if awaits_token { limit.min(AUTH_LINE_BYTES) } else { limit };
            let Some(piece) = input.lines.next(&mut chunk, limit) else { break };
            self.counters.count_in(Side::of(worker), &piece);
            line_is_new = true;
            match (piece, worker) {
                (Piece::Line(line), Some(worker)) => self.worker_line(worker, line, &mut input.prefixes),
                (Piece::Line(line), None) => self.client_line(link, line, &mut input.prefixes),
                (Piece::Long(long), _) => self.long_line(link, worker, long, &mut input.prefixes),
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
        }
        input.lines.hold(chunk);
        if mode == ReadMode::Last {
            let rest = input.lines.rest();
            if input.prefixes.scan(rest).is_ok() {
                match worker {
                    Some(worker) => self.worker_line(worker, rest, &mut input.prefixes),
                    None => self.client_line(link, rest, &mut input.prefixes),
                }
            }
            input.lines = emptied(input.lines);
        }
        let auth_line_too_long = awaits_token && input.lines.is_too_long();
        let is_begun = !input.lines.is_empty();
        self.links.put_back(link, input);
        if auth_line_too_long {
            return self.auth_line_too_long(link);
        }
        if worker.is_none() && is_begun {
            if self.links.begins_line(link, line_is_new) {
                self.alarms.arm(self.now + UNFINISHED_LINE_TIMEOUT, Alarm::Line(link));
            }
            // While more is held than may be, the longest lines that clients have begun are given up. They are answered
            // like lines that are too long.
            while self.held_bytes() > self.limits.max_held_bytes && self.links.give_up_longest_line() {}
        }
    }

    /// Handles a line whose buffer the queues of its receivers can share.
    #[cold]
    fn long_line(
        &mut self,
        link: Link,
        worker: Option<WorkerId>,
        long: Box<LongLine>,
        prefixes: &mut PrefixCache,
    ) {
        self.links.lend(&long);
        match worker {
            Some(worker) => self.worker_line(worker, long.bytes(), prefixes),
            None => self.client_line(link, long.bytes(), prefixes),
        }
        self.links.take_back(*long);
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

fn emptied(lines: LineBuffer) -> LineBuffer {
    LineBuffer::reusing(lines.into_buffer())
}
