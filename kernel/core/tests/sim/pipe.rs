//! A link as the shell sees it: a byte pipe in each direction, with its flow control. Also the history of a run.

use std::collections::VecDeque;

use kernel_core::id::Link;

use crate::record::Serial;

pub(crate) struct Pipe<M = Mark> {
    pub(crate) link: Link,
    /// Bytes that the peer has written and the bus was not given yet.
    pub(crate) up: Vec<u8>,
    /// How many bytes the bus was given in all.
    given: u64,
    /// The position at which the last marked line ended.
    finished: u64,
    /// The positions in the peer's stream at which lines end, with what they are.
    ends: VecDeque<(u64, M)>,
    /// Bytes that were taken from the bus and that the peer has not read yet.
    pub(crate) down: Vec<u8>,
    pub(crate) down_bytes_max: usize,
    /// The beginning of a line of which the peer has not read the end.
    heard: Vec<u8>,
    /// Bytes that the bus has queued and that were not taken yet.
    pub(crate) queued: Vec<u8>,
    /// The next byte that is taken begins a line.
    pub(crate) at_start: bool,
    /// The core has asked for a flush that is not finished.
    pub(crate) flush: bool,
    /// The core does not want to read it.
    pub(crate) paused: bool,
    /// In this call the core went on with what it had been given before.
    pub(crate) is_read: bool,
    /// The core has closed it, or the peer is gone.
    pub(crate) closed: bool,
    /// Nothing more is written to the peer.
    pub(crate) shut: bool,
    /// The bus was told that nothing more will come.
    pub(crate) ended: bool,
}

/// What is complete once the bus was given a certain byte.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    Line(Serial),
    /// A line that is answered by an error without an id.
    Bad,
    /// Bytes that no client may begin with.
    Hostile,
}

impl<M> Pipe<M> {
    pub(crate) fn new(link: Link, down_bytes_max: usize) -> Pipe<M> {
        Pipe {
            link,
            up: Vec::new(),
            given: 0,
            finished: 0,
            ends: VecDeque::new(),
            down: Vec::new(),
            down_bytes_max,
            heard: Vec::new(),
            queued: Vec::new(),
            at_start: true,
            flush: false,
            paused: false,
            is_read: false,
            closed: false,
            shut: false,
            ended: false,
        }
    }

    /// The peer writes. `mark` is what is complete with the last of these bytes.
    pub(crate) fn write(&mut self, bytes: &[u8], mark: Option<M>) {
        self.up.extend_from_slice(bytes);
        if let Some(mark) = mark {
            self.ends.push_back((self.given + self.up.len() as u64, mark));
        }
    }

    /// The bytes that the bus is given next, and what is complete with them.
    pub(crate) fn give(&mut self, count: usize) -> (Vec<u8>, Vec<M>) {
        let bytes = take_front(&mut self.up, count);
        self.given += bytes.len() as u64;
        let mut marks = Vec::new();
        while self.ends.front().is_some_and(|(end, _)| *end <= self.given) {
            let Some((end, mark)) = self.ends.pop_front() else { break };
            self.finished = end;
            marks.push(mark);
        }
        (bytes, marks)
    }

    /// How many of the bytes that the bus is given next have no more than one end of a line among them.
    pub(crate) fn one_line(&self) -> usize {
        self.ends.get(1).map_or(self.up.len(), |(end, _)| (end - self.given) as usize - 1)
    }

    /// How many bytes the bus was given up to the end of the last marked line.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    /// How much was given since the last marked line, at least what the bus holds of an unfinished one.
    pub(crate) fn unfinished(&self) -> usize {
        (self.given - self.finished) as usize
    }

    /// The whole lines among the next bytes that the peer reads.
    pub(crate) fn read_lines(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let bytes = take_front(&mut self.down, count);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(end) => {
                    self.heard.extend_from_slice(end);
                    lines.push(std::mem::take(&mut self.heard));
                }
                None => self.heard.extend_from_slice(part),
            }
        }
        lines
    }
}

/// Removes the first bytes and returns them.
pub(crate) fn take_front(bytes: &mut Vec<u8>, count: usize) -> Vec<u8> {
    let rest = bytes.split_off(count.min(bytes.len()));
    std::mem::replace(bytes, rest)
}

/// The history of a run: always as a hash, and as text when a seed is replayed.
pub(crate) struct Trace {
    hash: u64,
    print: bool,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, print }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn note(&mut self, now_ms: u128, what: std::fmt::Arguments<'_>, bytes: &[u8]) {
        use std::fmt::Write;

        let _ = write!(self, "{now_ms} {what}");
        self.mix(bytes);
        if self.print {
            println!("{now_ms:>8} {what} {}", String::from_utf8_lossy(bytes));
        }
    }

    fn mix(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = (self.hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3).rotate_left(23);
        }
    }
}

impl std::fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.mix(text.as_bytes());
        Ok(())
    }
}
