//! One end whose peer lies: its frames have good checksums, and anything in their fields. A model of the few numbers
//! that matter says of each frame whether it can be true.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use bytes::Bytes;
use cluster::pipe::frame::{self, HEADER_BYTES, Header, Kind, MAX_FRAME_BYTES};
use cluster::pipe::{Config, MAX_CONTROL_BYTES, MIN_WINDOW, Moment, Pipe, Side, State};

use crate::rng::Rng;
use crate::run::Run;

const NUMBER: u64 = 42;
const WINDOW: usize = MIN_WINDOW;
const KINDS: [Kind; 7] = [Kind::Data, Kind::Data, Kind::Ack, Kind::Nack, Kind::Ping, Kind::Fin, Kind::Ctl];
const GO_BACK_REST: Duration = Duration::from_millis(25);
const NACK_REST: Duration = Duration::from_millis(50);

/// A frame with bytes that the pipe has sent.
struct Sent {
    end: u64,
    bytes: Bytes,
    /// When it was sent, how often since then, and what was confirmed at that time.
    at: Moment,
    count: usize,
    acked: u64,
}

struct Liar {
    rng: Rng,
    print: bool,
    pipe: Pipe,
    now: Moment,
    /// What the pipe has sent and was not told to have arrived.
    sent: BTreeMap<u64, Sent>,
    sent_end: u64,
    acked: u64,
    credit: u64,
    nacked: Option<Moment>,
    controls: u64,
    /// What the pipe must have let in.
    next: u64,
    received: u64,
    ended: bool,
    expected: VecDeque<u8>,
    unconsumed: usize,
    consumed: u64,
    hash: DefaultHasher,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    let mut rng = Rng::new(seed);
    let side = rng.one(&[Side::Edge, Side::Node]);
    let config =
        Config { window: WINDOW, max_frame_bytes: rng.one(&[MAX_FRAME_BYTES, 1100]), ..Config::new(side) };
    let mut liar = Liar {
        rng,
        print,
        pipe: Pipe::new(NUMBER, config, Moment::ZERO),
        now: Moment::ZERO,
        sent: BTreeMap::new(),
        sent_end: 0,
        acked: 0,
        credit: WINDOW as u64,
        nacked: None,
        controls: 0,
        next: 0,
        received: 0,
        ended: false,
        expected: VecDeque::new(),
        unconsumed: 0,
        consumed: 0,
        hash: DefaultHasher::new(),
    };
    let steps = liar.rng.within(50, 400);
    let own = if side == Side::Node { 1 } else { 0 };
    for _ in 0..steps {
        liar.step(own);
    }
    let survived = matches!(liar.pipe.state(), State::Open | State::Suspect);
    Run { hash: liar.hash.finish(), steps, survived }
}

impl Liar {
    fn step(&mut self, own: u16) {
        match self.rng.weighted(&[70, 10, 8, 3, 2, 6, 1]) {
            0 => self.lies(own),
            1 => {
                let bytes = self.rng.one(&[1, 100, 10_000, 100_000]);
                let taken = self.pipe.write(&vec![7; bytes]);
                assert!(taken <= bytes && taken <= WINDOW);
            }
            2 => {
                let micros = self.rng.one(&[100, 10_000, 500_000]);
                self.now += Duration::from_micros(self.rng.below(micros) as u64);
            }
            3 => {
                let message = vec![b' '; self.rng.below(MAX_CONTROL_BYTES)];
                let alive = matches!(self.pipe.state(), State::Open | State::Suspect);
                assert!(self.pipe.set_control(&message));
                self.controls += u64::from(alive);
            }
            4 => self.now += Duration::from_secs(self.rng.below(4) as u64),
            5 => self.reads(),
            _ if self.rng.percent(20) => self.pipe.finish(),
            _ => {}
        }
        while let Some(due) = self.pipe.next_alarm().filter(|due| *due <= self.now) {
            self.pipe.alarm(self.now);
            assert!(self.pipe.next_alarm().is_none_or(|next| next > due && next > self.now));
        }
        let mut short = 0;
        while let Some(frame) = self.pipe.next_frame(self.now) {
            short += self.note_sent(frame.bytes);
        }
        assert!(short <= 8, "{short} frames without bytes for one");
        let held = self.pipe.held_bytes();
        assert!(held + self.unconsumed <= 2 * WINDOW + 2 * MAX_CONTROL_BYTES, "{held} bytes are held");
    }

    fn reads(&mut self) {
        while let Some(bytes) = self.pipe.take_received() {
            let expected: Vec<u8> = self.expected.drain(..bytes.len().min(self.expected.len())).collect();
            assert!(bytes == expected, "what was let in is not what came");
            self.unconsumed += bytes.len();
            self.hash.write(&bytes);
        }
        assert!(self.expected.is_empty(), "{} bytes were let in and are missing", self.expected.len());
        let consumed = self.rng.below(self.unconsumed + 1);
        self.unconsumed -= consumed;
        self.consumed += consumed as u64;
        self.pipe.consumed(consumed, self.now);
        self.pipe.take_control();
    }

    /// Sends one frame to the pipe. Most of its fields are near to what would be right.
    fn lies(&mut self, own: u16) {
        let rng = &mut self.rng;
        let lengths = [0, 1, 1, 100, 3000, 5000, 30_000, MAX_FRAME_BYTES - HEADER_BYTES];
        let mut kind = rng.one(&KINDS);
        let mut length = rng.one(&lengths);
        if rng.percent(1) {
            kind = Kind::Rst;
        }
        if kind == Kind::Fin && !rng.percent(15) {
            kind = Kind::Data;
        }
        if kind != Kind::Data && !rng.percent(10) {
            length = match kind {
                Kind::Ctl => length % 1000,
                Kind::Ping => 8,
                _ => 0,
            };
        }
        let room = self.consumed + WINDOW as u64;
        let offsets =
            [self.next, self.next, self.next, self.next.wrapping_sub(1), self.next + 1, room, 0, u64::MAX];
        let mut acks = vec![self.acked, self.acked, self.sent_end, self.sent_end + 1, 0, u64::MAX];
        acks.extend(self.sent.values().flat_map(|sent| [sent.end, sent.end - 1]).take(6));
        let header = Header {
            kind,
            flags: if rng.percent(95) { 1 - own } else { rng.next() as u16 },
            pipe: if rng.percent(97) { NUMBER } else { NUMBER + 1 },
            offset: if kind == Kind::Ctl { rng.below(20) as u64 } else { rng.one(&offsets) },
            ack: if rng.percent(70) { self.acked } else { rng.one(&acks) },
            window: rng.one(&[0, 1, WINDOW as u32, u32::MAX]),
        };
        let payload: Vec<u8> = (0..length).map(|at| (at as u64 ^ self.next) as u8).collect();
        let mut message = frame::frame(&header, &payload).to_vec();
        let mut is_broken = false;
        if rng.percent(4) {
            let at = rng.below(message.len());
            message[at] ^= 1 << rng.below(8);
            is_broken = true;
        }
        if rng.percent(2) {
            message.truncate(rng.below(message.len()));
            is_broken = true;
        }
        // What one that floods does: the same, again and again.
        let times = if rng.percent(5) { 20 } else { 1 };
        for _ in 0..times {
            let can_be = !is_broken && self.can_be(&header, length, own);
            let before = self.pipe.state().clone();
            let taken = self.pipe.frame_received(Bytes::from(message.clone()), self.now);
            if self.print {
                println!("{:?} {header:?} +{length}: {taken:?}, {:?}", self.now, self.pipe.state());
            }
            assert_eq!(taken.is_ok(), can_be, "{header:?} +{length}: {taken:?}");
            if can_be && matches!(before, State::Open | State::Suspect) && kind != Kind::Rst {
                self.note_taken(&header, &payload);
            }
            while let Some(frame) = self.pipe.next_frame(self.now) {
                self.note_sent(frame.bytes);
            }
        }
    }

    fn can_be(&self, header: &Header, length: usize, own: u16) -> bool {
        if header.pipe != NUMBER || header.flags & 1 == own {
            return false;
        }
        let confirms = header.kind == Kind::Ctl && header.flags & 4 != 0;
        let right_length = match header.kind {
            Kind::Data => length > 0,
            Kind::Ctl if !confirms => length <= MAX_CONTROL_BYTES,
            Kind::Rst => length <= 256,
            Kind::Ping => length == 8,
            Kind::Ack if header.flags & 2 != 0 => length == 8,
            _ => length == 0,
        };
        if !right_length
            || matches!(self.pipe.state(), State::Dead(_))
            || self.pipe.is_over()
            || header.kind == Kind::Rst
        {
            return right_length;
        }
        let inside = self.sent.iter().any(|(start, sent)| *start < header.ack && header.ack < sent.end);
        if header.ack > self.sent_end || header.ack > self.acked && inside {
            return false;
        }
        if confirms && header.offset > self.controls {
            return false;
        }
        let (length, is_end) = match header.kind {
            Kind::Data => (length as u64, 0),
            Kind::Fin => (1, 1),
            _ => return true,
        };
        let Some(end) = header.offset.checked_add(length) else { return false };
        let is_new =
            header.offset >= self.next && !self.ended && end - is_end <= self.consumed + WINDOW as u64;
        end <= self.next || is_new
    }

    fn note_taken(&mut self, header: &Header, payload: &[u8]) {
        if header.ack > self.acked {
            self.acked = header.ack;
            self.sent = self.sent.split_off(&self.acked);
        }
        self.credit = self.credit.max(header.ack.saturating_add(u64::from(header.window)));
        if header.offset == self.next && header.kind == Kind::Data {
            self.next += payload.len() as u64;
            self.received += payload.len() as u64;
            self.expected.extend(payload);
        } else if header.offset == self.next && header.kind == Kind::Fin {
            self.next += 1;
            self.ended = true;
        }
    }

    /// What the pipe sends. Returns 1 for a frame without bytes of the stream.
    fn note_sent(&mut self, bytes: Bytes) -> usize {
        let header = frame::read(&bytes).expect("a pipe sends frames");
        self.hash.write(&bytes[..HEADER_BYTES]);
        // What is sent again tells what was true the first time.
        let is_again =
            matches!(header.kind, Kind::Data | Kind::Fin) && self.sent.contains_key(&header.offset);
        if header.kind != Kind::Rst && !is_again {
            assert_eq!(header.ack, self.next, "the pipe confirms what has not come");
            assert!(u64::from(header.window) <= WINDOW as u64 - (self.received - self.consumed));
        }
        if header.kind == Kind::Nack {
            assert!(self.nacked.is_none_or(|at| self.now >= at + NACK_REST), "asks too often");
            self.nacked = Some(self.now);
        }
        let end = match header.kind {
            Kind::Data => header.offset + (bytes.len() - HEADER_BYTES) as u64,
            Kind::Fin => header.offset + 1,
            _ => return 1,
        };
        assert!(end <= self.credit || header.kind == Kind::Fin, "{end} is beyond {}", self.credit);
        self.sent_end = self.sent_end.max(end);
        let (now, acked) = (self.now, self.acked);
        let new = Sent { end, bytes: bytes.clone(), at: now, count: 0, acked };
        let sent = self.sent.entry(header.offset).or_insert(new);
        assert!(sent.bytes == bytes, "a frame has changed");
        if sent.acked != acked || now >= sent.at + GO_BACK_REST {
            (sent.at, sent.count, sent.acked) = (now, 0, acked);
        }
        sent.count += 1;
        assert!(sent.count <= 3, "a frame is sent {} times at once", sent.count);
        assert!(self.sent.len() <= 257, "{} frames are on their way", self.sent.len());
        0
    }
}
