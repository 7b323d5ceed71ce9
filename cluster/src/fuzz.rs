//! Properties that hold for any bytes: one function for each kind of input, which panics if they do not hold.
//!
//! They are for the fuzzer in `fuzz/` and for tests, behind the feature `fuzzing`.

use std::time::Duration;

use bytes::Bytes;

use crate::pipe::frame::{self, HEADER_BYTES, Header, Kind, Rejected};
use crate::pipe::{
    Config, MAX_CONTROL_BYTES, MAX_FRAME_BYTES, MIN_WINDOW, Moment, Pipe, Reason, Side, State, reset_unknown,
};

const KINDS: [Kind; 7] = [Kind::Data, Kind::Ack, Kind::Nack, Kind::Ping, Kind::Fin, Kind::Rst, Kind::Ctl];
const NUMBER: u64 = 7;
const WINDOW: usize = MIN_WINDOW;

/// Reading any bytes as a frame gives what would be written so again, or an error.
pub fn frame(bytes: &[u8]) {
    match frame::read(bytes) {
        Ok(header) => assert_eq!(frame::frame(&header, &bytes[HEADER_BYTES..]), bytes),
        Err(Rejected::Length) => assert!(bytes.len() < HEADER_BYTES || bytes.len() > MAX_FRAME_BYTES),
        Err(Rejected::Version) => assert_ne!(bytes[0], frame::VERSION),
        Err(Rejected::Kind) => assert!(usize::from(bytes[1]) >= KINDS.len()),
        Err(fault) => assert_eq!(fault, Rejected::Checksum),
    }
    if let Some(answer) = reset_unknown(bytes, "no such pipe") {
        assert_eq!(frame::read(&answer).map(|header| header.kind), Ok(Kind::Rst));
    }
    // The same fields with the right checksum.
    let mut script = Script(bytes);
    let header = script.header(0, 0);
    let written = frame::frame(&header, &bytes[..bytes.len().min(MAX_FRAME_BYTES - HEADER_BYTES)]);
    assert_eq!(frame::read(&written), Ok(header));
}

/// The bytes say what happens to one end of a pipe: frames with any fields, its owner, its carrier, the time.
pub fn pipe(bytes: &[u8]) {
    let mut script = Script(bytes);
    let side = if script.byte() % 2 == 0 { Side::Edge } else { Side::Node };
    let max_frame_bytes = if script.byte() % 2 == 0 { MAX_FRAME_BYTES } else { 2000 };
    let config = Config { window: WINDOW, max_frame_bytes, ..Config::new(side) };
    let mut now = Moment::ZERO;
    let mut pipe = Pipe::new(NUMBER, config, now);
    // What the pipe expects next, and where it is itself.
    let (mut next, mut sent) = (0, 0);
    let mut unconsumed = 0;
    while !script.0.is_empty() {
        let before = pipe.state().clone();
        match script.byte() % 16 {
            0..6 => {
                let mut header = script.header(next, sent);
                if !header.flags.is_multiple_of(16) {
                    header.flags = u16::from(side == Side::Edge) | header.flags & 6;
                    header.pipe = NUMBER;
                }
                let length = usize::from(script.number() >> (script.byte() % 16));
                let payload = vec![b'x'; length.min(MAX_FRAME_BYTES - HEADER_BYTES)];
                let taken = pipe.frame_received(frame::frame(&header, &payload), now);
                assert!(taken.is_ok() || *pipe.state() == before);
            }
            6 => {
                let length = usize::from(script.byte()).min(script.0.len());
                let (raw, rest) = script.0.split_at(length);
                script.0 = rest;
                assert!(
                    pipe.frame_received(Bytes::copy_from_slice(raw), now).is_ok() || *pipe.state() == before
                );
            }
            7 | 8 => {
                let bytes = vec![b'y'; usize::from(script.number()) * 2];
                assert_eq!(pipe.room().min(bytes.len()), pipe.write(&bytes));
            }
            9 => {
                while let Some(bytes) = pipe.take_received() {
                    unconsumed += bytes.len();
                }
                let consumed = unconsumed.min(usize::from(script.number()) * 2);
                unconsumed -= consumed;
                pipe.consumed(consumed, now);
                pipe.take_control();
            }
            10 => now += Duration::from_millis(u64::from(script.byte())),
            11 => now += Duration::from_millis(u64::from(script.number())),
            12 => pipe.carrier_connected(now),
            13 => pipe.no_responders(),
            14 => assert!(pipe.set_control(&vec![b'z'; usize::from(script.number()) % MAX_CONTROL_BYTES])),
            _ => match script.byte() {
                0 => pipe.finish(),
                1 => pipe.kill(Reason::Replaced),
                _ => {}
            },
        }
        if pipe.next_alarm().is_some_and(|due| due <= now) {
            pipe.alarm(now);
        }
        assert!(pipe.next_alarm().is_none_or(|due| due > now), "an alarm is due again at once");
        let mut frames = 0;
        while let Some(sent_frame) = pipe.next_frame(now) {
            let header = frame::read(&sent_frame.bytes).expect("a pipe sends frames");
            assert!(sent_frame.bytes.len() <= max_frame_bytes);
            next = next.max(header.ack);
            sent = sent.max(header.offset);
            frames += 1;
        }
        assert!(frames < 600, "{frames} frames for one event");
        assert!(pipe.held_bytes() + unconsumed <= 2 * WINDOW + 2 * MAX_CONTROL_BYTES);
        assert!(!matches!(before, State::Dead(_)) || *pipe.state() == before, "the dead stay dead");
    }
}

/// Reads what to do from the input, and zeros when it ends.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn header(&mut self, next: u64, sent: u64) -> Header {
        Header {
            kind: KINDS[usize::from(self.byte()) % KINDS.len()],
            flags: self.number(),
            pipe: u64::from(self.byte()),
            offset: self.near(next),
            ack: self.near(sent),
            window: u32::from(self.number()) << (self.byte() % 16),
        }
    }

    /// This number, or one near it, or any.
    fn near(&mut self, number: u64) -> u64 {
        match self.byte() {
            0..128 => number,
            128..192 => number.wrapping_add(u64::from(self.number())),
            192..224 => number.wrapping_sub(u64::from(self.byte())),
            _ => u64::from(self.number()) << (self.byte() % 49),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run without a fuzzer.
    #[test]
    fn any_bytes_break_nothing() {
        let mut state = 1u64;
        for length in 0..1500 {
            let bytes: Vec<u8> = (0..length % 300)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            frame(&bytes);
            pipe(&bytes);
        }
    }
}
