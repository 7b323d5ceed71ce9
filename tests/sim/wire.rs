//! A link as the shell sees it: two byte pipes and what the core has said about them. And the trace.

use std::collections::VecDeque;

use kernel_core::id::Link;

use crate::ledger::Serial;

pub(crate) struct Wire {
    pub(crate) link: Link,
    /// Written by the peer, not given to the bus.
    pub(crate) up: Vec<u8>,
    /// How much was given to the bus in all.
    given: u64,
    /// Where lines end in the peer's stream, and what they are.
    ends: VecDeque<(u64, Mark)>,
    /// Taken from the bus, not read by the peer.
    pub(crate) down: Vec<u8>,
    pub(crate) down_bytes_max: usize,
    /// The line that the peer has read a part of.
    heard: Vec<u8>,
    /// Said by the bus, not taken.
    pub(crate) said: Vec<u8>,
    /// What is taken next begins a line.
    pub(crate) at_start: bool,
    /// The core has asked for a flush that is not done.
    pub(crate) flush: bool,
    /// Not read until the core says so.
    pub(crate) paused: bool,
    /// The core has closed it, or the peer is gone.
    pub(crate) closed: bool,
    /// Nothing more is written to the peer.
    pub(crate) shut: bool,
    /// The bus was told that nothing more will come.
    pub(crate) ended: bool,
}

/// What the bus has been given when it was given the last byte of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    Line(Serial),
    /// A line that is answered by an error without an id.
    Bad,
    /// What no client may begin with.
    Hostile,
}

impl Wire {
    pub(crate) fn new(link: Link, down_bytes_max: usize) -> Wire {
        Wire {
            link,
            up: Vec::new(),
            given: 0,
            ends: VecDeque::new(),
            down: Vec::new(),
            down_bytes_max,
            heard: Vec::new(),
            said: Vec::new(),
            at_start: true,
            flush: false,
            paused: false,
            closed: false,
            shut: false,
            ended: false,
        }
    }

    /// The peer writes. `mark` is what is complete with the last of these bytes.
    pub(crate) fn write(&mut self, bytes: &[u8], mark: Option<Mark>) {
        self.up.extend_from_slice(bytes);
        if let Some(mark) = mark {
            self.ends.push_back((self.given + self.up.len() as u64, mark));
        }
    }

    /// The bytes that the bus is given next, and what is complete with them.
    pub(crate) fn give(&mut self, count: usize) -> (Vec<u8>, Vec<Mark>) {
        let bytes = take_front(&mut self.up, count);
        self.given += bytes.len() as u64;
        let mut marks = Vec::new();
        while self.ends.front().is_some_and(|(end, _)| *end <= self.given) {
            marks.extend(self.ends.pop_front().map(|(_, mark)| mark));
        }
        (bytes, marks)
    }

    /// The whole lines among the next bytes that the peer reads.
    pub(crate) fn hear(&mut self, count: usize) -> Vec<Vec<u8>> {
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

/// The first bytes of these, which are then without them.
pub(crate) fn take_front(bytes: &mut Vec<u8>, count: usize) -> Vec<u8> {
    let rest = bytes.split_off(count.min(bytes.len()));
    std::mem::replace(bytes, rest)
}

/// What happened: always as a hash, and as text for whoever replays a seed.
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
