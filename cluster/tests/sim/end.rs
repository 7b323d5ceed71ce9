//! One end of a world: the pipe, its owner, and the oracle of what it says and does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use cluster::pipe::frame::{self, HEADER_BYTES, Kind};
use cluster::pipe::{Config, Frame, MIN_WINDOW, Moment, Pipe, Reason, Side, State};

use crate::carrier::Arrival;
use crate::rng::Rng;

pub(crate) const PIPE: u64 = 0x0123_4567_89ab_cdef;
/// A prime, so that no length of frames brings the same bytes to the same place.
const PATTERN_BYTES: usize = 8191;
/// No write is longer than this.
pub(crate) const MAX_WRITE: usize = 200_000;
/// What a pipe may keep beside the stream: control messages.
const BESIDE_BYTES: usize = 2048;
const NACK_REST: Duration = Duration::from_millis(50);
/// From the last frame to the death.
pub(crate) const SILENT: Duration = Duration::from_secs(30);

pub(crate) struct End {
    pub(crate) pipe: Pipe,
    pub(crate) side: usize,
    pub(crate) window: usize,

    // The owner.
    pattern: &'static [u8],
    peer_pattern: &'static [u8],
    pub(crate) written: u64,
    pub(crate) read: u64,
    pub(crate) has_finished: bool,
    /// Bytes that were taken and are not passed on.
    unconsumed: usize,
    /// The owner passes nothing on.
    pub(crate) is_reading: bool,
    pub(crate) control_set: u64,
    pub(crate) control_got: u64,

    // The process.
    /// What has arrived while the process was stopped.
    pub(crate) inbox: VecDeque<Arrival>,
    pub(crate) stopped_until: Option<Moment>,
    /// It was stopped since it heard the peer.
    pub(crate) was_stopped: bool,
    /// The carrier takes so many more frames.
    pub(crate) carrier_takes: usize,

    // What the oracle knows.
    /// Frames with bytes of the stream that the peer has not confirmed, by their offset.
    sent: BTreeMap<u64, Bytes>,
    acked: u64,
    credit: u64,
    nacked: Option<Moment>,
    /// When the last good frame came to this process.
    pub(crate) came: Moment,
    pub(crate) heard: Moment,
    pub(crate) died: Option<Moment>,
    pub(crate) frames: u64,
}

/// The bytes of one direction, again and again.
fn pattern(side: usize) -> &'static [u8] {
    static PATTERNS: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let new = |side: u64| {
        let mut rng = Rng::new(side + 77);
        let once: Vec<u8> = (0..PATTERN_BYTES).map(|_| rng.next() as u8).collect();
        once.repeat(2 + MAX_WRITE / PATTERN_BYTES)
    };
    &PATTERNS.get_or_init(|| [new(0), new(1)])[side]
}

impl End {
    pub(crate) fn new(side: usize, window: usize, peer_window: usize, max_frame_bytes: usize) -> End {
        let sides = [Side::Edge, Side::Node];
        let config = Config { side: sides[side], window, peer_window, max_frame_bytes };
        End {
            pipe: Pipe::new(PIPE, config, Moment::ZERO),
            side,
            window,
            pattern: pattern(side),
            peer_pattern: pattern(1 - side),
            written: 0,
            read: 0,
            has_finished: false,
            unconsumed: 0,
            is_reading: true,
            control_set: 0,
            control_got: 0,
            inbox: VecDeque::new(),
            stopped_until: None,
            was_stopped: false,
            carrier_takes: usize::MAX,
            sent: BTreeMap::new(),
            acked: 0,
            credit: peer_window.max(MIN_WINDOW) as u64,
            nacked: None,
            came: Moment::ZERO,
            heard: Moment::ZERO,
            died: None,
            frames: 0,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.pipe.state(), State::Open | State::Suspect)
    }

    pub(crate) fn write(&mut self, bytes: usize) {
        let room = self.pipe.room();
        let at = (self.written % PATTERN_BYTES as u64) as usize;
        let taken = self.pipe.write(&self.pattern[at..at + bytes]);
        assert_eq!(taken, bytes.min(room), "a pipe takes what it has room for");
        self.written += taken as u64;
        self.check_memory();
    }

    pub(crate) fn finish(&mut self) {
        self.pipe.finish();
        self.has_finished = true;
        assert_eq!(self.pipe.room(), 0);
    }

    pub(crate) fn set_control(&mut self) {
        self.control_set += 1;
        assert!(self.pipe.set_control(self.control_set.to_string().as_bytes()));
    }

    /// The owner takes what has arrived, and passes on as much of it as it can.
    pub(crate) fn read(&mut self, now: Moment, at_most: usize) {
        while let Some(bytes) = self.pipe.take_received() {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let at = (self.read % PATTERN_BYTES as u64) as usize;
                let (some, others) = rest.split_at(rest.len().min(PATTERN_BYTES - at));
                assert!(some == &self.peer_pattern[at..at + some.len()], "wrong bytes at {}", self.read);
                self.read += some.len() as u64;
                rest = others;
            }
            self.unconsumed += bytes.len();
            assert!(self.unconsumed <= self.window, "{} bytes were let in", self.unconsumed);
        }
        let consumed = self.unconsumed.min(at_most);
        if consumed > 0 {
            self.unconsumed -= consumed;
            self.pipe.consumed(consumed, now);
        }
        if let Some(message) = self.pipe.take_control() {
            let number: u64 = std::str::from_utf8(&message).expect("text").parse().expect("a number");
            assert!(number > self.control_got, "control message {number} after {}", self.control_got);
            self.control_got = number;
        }
    }

    pub(crate) fn check_memory(&self) {
        let held = self.pipe.held_bytes();
        assert!(held <= 2 * self.window + BESIDE_BYTES, "{held} bytes are held");
        let outgoing = self.written - self.acked.min(self.written);
        assert!(outgoing <= self.window as u64 || !self.is_alive(), "{outgoing} bytes are kept");
        assert!(
            held + self.unconsumed <= 2 * self.window + BESIDE_BYTES,
            "{held} and {} bytes",
            self.unconsumed
        );
    }

    /// Something comes out of the carrier to the running process.
    pub(crate) fn take(&mut self, arrival: Arrival, now: Moment) {
        match arrival {
            Arrival::NoResponders => self.pipe.no_responders(),
            Arrival::Connected => {
                self.pipe.carrier_connected(now);
                self.nacked = None;
            }
            Arrival::Message(bytes) => {
                let header = frame::read(&bytes);
                let own = u16::from(self.side == 1);
                let good = header.ok().filter(|header| header.pipe == PIPE && header.flags & 1 != own);
                let taken = self.pipe.frame_received(bytes, now);
                match good {
                    Some(header) => {
                        assert!(taken.is_ok(), "a good frame was rejected: {taken:?} {header:?}");
                        if header.kind != Kind::Rst {
                            self.heard = now;
                            self.was_stopped = false;
                            self.acked = self.acked.max(header.ack);
                            self.credit = self.credit.max(header.ack + u64::from(header.window));
                            self.sent = self.sent.split_off(&self.acked);
                        }
                    }
                    None => assert!(taken.is_err(), "a bad frame was taken: {header:?}"),
                }
            }
        }
        self.check_memory();
    }

    /// What the oracle says about a frame that this end sends.
    pub(crate) fn check_sent(&mut self, sent: &Frame, now: Moment) {
        self.frames += 1;
        let header = frame::read(&sent.bytes).expect("a pipe sends frames");
        assert_eq!((header.pipe, header.flags & 1), (PIPE, u16::from(self.side == 1)));
        assert_eq!(sent.wants_reply, header.kind == Kind::Ping);
        match header.kind {
            Kind::Data | Kind::Fin => {
                let is_end = header.kind == Kind::Fin;
                let end = header.offset + (sent.bytes.len() - HEADER_BYTES) as u64;
                assert!(end <= self.credit || is_end, "bytes up to {end}, credit up to {}", self.credit);
                assert!(!is_end || end == self.written, "the end is at {end}, not at {}", self.written);
                let before = self.sent.insert(header.offset, sent.bytes.clone());
                assert!(before.is_none_or(|before| before == sent.bytes), "a frame has changed");
                assert!(self.sent.len() <= 257, "{} frames are on their way", self.sent.len());
            }
            Kind::Nack => {
                let too_early = self.nacked.is_some_and(|at| now < at + NACK_REST);
                assert!(!too_early, "asks at {now:?} and before that at {:?}", self.nacked);
                self.nacked = Some(now);
            }
            _ => {}
        }
    }

    /// What must be true at every moment. `gone` says that the process of the peer has ended.
    pub(crate) fn check_state(&mut self, now: Moment) {
        let is_stopped = self.stopped_until.is_some();
        let slack = Duration::from_secs(if self.was_stopped { 40 } else { 0 });
        match self.pipe.state() {
            State::Dead(reason) if self.died.is_none() => {
                self.died = Some(now);
                let silence = match reason {
                    Reason::Silent | Reason::NoResponders => SILENT,
                    _ => Duration::ZERO,
                };
                let silent = now - self.came;
                assert!(silent >= silence, "{reason}, and its last frame came {silent:?} ago");
                assert!(!reason.to_string().is_empty());
            }
            State::Open | State::Suspect => {
                let silent = now - self.heard;
                assert!(is_stopped || silent <= SILENT + slack, "silent for {silent:?}, and not dead");
            }
            _ => {}
        }
    }
}
