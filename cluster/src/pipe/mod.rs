//! A reliable byte stream in both directions over a carrier that loses, repeats, delays and reorders messages.
//!
//! [`Pipe`] is one end. It is a value: frames, bytes of the owner and the time go in; frames, bytes and the next alarm
//! come out. It has no I/O, no clock and no randomness, and does not know its carrier.
//!
//! # What the owner does
//!
//! - **Bytes in**: [`room`](Pipe::room) says how much [`write`](Pipe::write) takes. While it is 0, the source is not
//!   read: that is how a slow peer slows the source. [`finish`](Pipe::finish) ends this direction.
//! - **Bytes out**: [`take_received`](Pipe::take_received) gives what has arrived, and [`consumed`](Pipe::consumed)
//!   says how much of it has been passed on. Only that lets the peer send more. [`has_ended`](Pipe::has_ended) is the
//!   end of the peer's stream.
//! - **The carrier**: [`frame_received`](Pipe::frame_received) for each message,
//!   [`carrier_connected`](Pipe::carrier_connected) when a connection was made anew, and
//!   [`no_responders`](Pipe::no_responders) when the carrier knows that nobody is at the peer's address. Frames from
//!   [`next_frame`](Pipe::next_frame) are sent in their order while the carrier takes any. A frame that
//!   [`wants_reply`](Frame::wants_reply) is sent so that the carrier can report that.
//! - **Time**: [`alarm`](Pipe::alarm) when [`next_alarm`](Pipe::next_alarm) is due, after all frames that have already
//!   arrived were given to the pipe.
//! - After every one of these calls: drain `next_frame`, look at `take_received`, `room`, [`state`](Pipe::state) and
//!   `next_alarm`.
//!
//! ```
//! use std::time::Duration;
//! use cluster::pipe::{Config, Pipe, Side};
//!
//! let now = Duration::ZERO;
//! let mut edge = Pipe::new(7, Config::new(Side::Edge), now);
//! let mut node = Pipe::new(7, Config::new(Side::Node), now);
//! assert_eq!(edge.write(b"{}\n"), 3);
//! while let Some(frame) = edge.next_frame(now) {
//!     node.frame_received(frame.bytes, now).expect("a good frame");
//! }
//! let bytes = node.take_received().expect("bytes");
//! assert_eq!(&bytes[..], b"{}\n");
//! node.consumed(bytes.len(), now);
//! ```
//!
//! # What it guarantees
//!
//! Bytes arrive in order and once, or the pipe is dead at both ends, at the latest 30 s after the last frame, and both
//! say why. It never holds more than one window in each direction. How large that is, only its owner says: at first,
//! and when the pipe [wants more](Pipe::wants_window), which a peer can bring about by answering late. Nothing that a
//! peer sends makes it panic or grow by itself: a frame that cannot be true is dropped and counted.

mod control;
pub mod frame;
mod receive;
mod rules;
mod send;
mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;

use self::control::Control;
pub use self::frame::MAX_FRAME_BYTES;
use self::frame::{FROM_NODE, HEADER_BYTES, Header, Kind, Rejected};
use self::receive::Receiver;
use self::send::Sender;
pub use self::state::{Config, Reason, Side, State, Statistics};
use crate::mutants::{Check, enabled};

/// The time since some start that the owner chooses. It never goes backwards.
pub type Moment = Duration;

/// The usual window, in bytes.
pub const DEFAULT_WINDOW: usize = 1024 * 1024;
/// The smallest window. Every end has at least this.
pub const MIN_WINDOW: usize = 64 * 1024;
/// The largest window.
pub const MAX_WINDOW: usize = 16 * 1024 * 1024;
/// A window shall hold this much for each microsecond of the round trip, or a peer far away gets less than it could
/// take: 64 MB/s.
pub const BYTES_PER_MICROSECOND: usize = 64;
/// A control message is no longer than this.
pub const MAX_CONTROL_BYTES: usize = 1024;
/// A carrier must take messages of this length.
pub const MIN_FRAME_BYTES: usize = HEADER_BYTES + MAX_CONTROL_BYTES;

/// What has arrived is confirmed after this, if nothing confirms it before.
const ACK_AFTER: Duration = Duration::from_millis(200);
/// What is missing is asked for, and what comes again is confirmed again, no more often than this.
const NACK_REST: Duration = Duration::from_millis(50);
/// Everything is sent again no more often than this because a peer asks for it.
const GO_BACK_REST: Duration = Duration::from_millis(25);
const GO_BACK_REST_MAX: Duration = Duration::from_millis(200);
/// Without progress for this long, what is not confirmed is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(400);
/// The time grows with each try, and with the round trip, up to this.
const RESEND_AFTER_MAX: Duration = Duration::from_secs(2);
/// A peer that has not been heard for this long is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(2);
/// A peer that has not been heard for this long is suspect.
const SUSPECT_AFTER: Duration = Duration::from_secs(6);
/// A peer that has not been heard for this long is dead.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(30);
/// A finished pipe answers its peer for this long after the last frame.
const LINGER: Duration = Duration::from_secs(6);
/// An alarm that comes later than this says that this process was stopped.
const LATE: Duration = Duration::from_secs(1);
/// So long a peer may need to be heard after this process was stopped.
const LATE_GRACE: Duration = Duration::from_secs(2);
/// A ping holds the time of its sender, which its answer gives back.
const PING_BYTES: usize = 8;
/// What the peer says about its death is cut to this.
const MAX_REASON_BYTES: usize = 256;

/// A message for the carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message.
    pub bytes: Bytes,
    /// It shall be sent so that the carrier can report that nobody is at the peer's address: over NATS, with a reply
    /// subject.
    pub wants_reply: bool,
}

/// One end of a pipe.
pub struct Pipe {
    number: u64,
    side: Side,
    state: State,
    send: Sender,
    receive: Receiver,
    control: Control,
    statistics: Statistics,

    /// When the peer was heard last.
    heard: Moment,
    /// When the last ping was sent, or should have been.
    pinged: Moment,
    /// Why the pipe is suspect.
    suspect: Option<Reason>,
    /// Not before this is a suspect peer dead: this process was stopped and could not hear it.
    grace: Option<Moment>,
    /// The shortest round trip so far.
    nearest: Option<Duration>,
    /// When the pipe finished, or was heard after that.
    finished: Option<Moment>,

    /// When something is to be sent again, and how often that was done without progress.
    resend_at: Option<Moment>,
    resends: u32,
    /// When everything was sent again, and from which offset on.
    went_back: Option<(Moment, u64)>,
    /// When what has arrived is to be confirmed.
    ack_at: Option<Moment>,
    acked: Option<Moment>,
    /// When what is missing is to be asked for.
    nack_at: Option<Moment>,
    nacked: Option<Moment>,
    control_at: Option<Moment>,
    reset_sent: Option<Moment>,

    // Frames that go out as soon as the carrier takes them.
    reset_due: bool,
    nack_due: bool,
    ack_due: bool,
    /// What the latest ping of the peer holds.
    answer: Option<[u8; PING_BYTES]>,
    ping_due: bool,
    first_due: bool,
}

impl Pipe {
    /// One end of the pipe with this number, which no other pipe between the two has ever had: a random one.
    pub fn new(number: u64, config: Config, now: Moment) -> Pipe {
        let window = config.window.clamp(MIN_WINDOW, MAX_WINDOW);
        let peer_window = config.peer_window.clamp(MIN_WINDOW, MAX_WINDOW);
        let max_frame_bytes = config.max_frame_bytes.clamp(MIN_FRAME_BYTES, MAX_FRAME_BYTES);
        // Four frames to a window, so that one can be sent while another is confirmed.
        let max_payload = (max_frame_bytes - HEADER_BYTES).min(window / 4);
        Pipe {
            number,
            side: config.side,
            state: State::Open,
            send: Sender::new(window, max_payload, peer_window as u64),
            receive: Receiver::new(window, MIN_WINDOW as u64),
            control: Control::default(),
            statistics: Statistics::default(),
            heard: now,
            pinged: now,
            suspect: None,
            grace: None,
            nearest: None,
            finished: None,
            resend_at: None,
            resends: 0,
            went_back: None,
            ack_at: None,
            acked: None,
            nack_at: None,
            nacked: None,
            control_at: None,
            reset_sent: None,
            reset_due: false,
            nack_due: false,
            // The peer knows only that the window is not the smallest one.
            ack_due: window > MIN_WINDOW,
            answer: None,
            // How far away the peer is shows best before much is on the way.
            ping_due: true,
            first_due: false,
        }
    }

    /// The number that `new` was given.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where the pipe is in its life.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Why the pipe is dead, if it is.
    pub fn death(&self) -> Option<&Reason> {
        match &self.state {
            State::Dead(reason) => Some(reason),
            _ => None,
        }
    }

    /// Nothing more happens: the pipe is dead and has said so, or is finished and no frame has come for a while.
    pub fn is_over(&self) -> bool {
        match self.state {
            State::Open | State::Suspect => false,
            State::Finished => self.finished.is_none(),
            State::Dead(_) => !self.reset_due,
        }
    }

    /// What was counted since the start.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The window that fits to the distance of the peer, if that is more than this pipe has and it carries much.
    pub fn wants_window(&self) -> Option<usize> {
        let micros = self.nearest?.as_micros() as usize;
        let wanted = micros.saturating_mul(BYTES_PER_MICROSECOND).min(MAX_WINDOW);
        let carried = self.send.sent().max(self.receive.next());
        let window = self.send.window();
        let is_small = wanted > window && carried > window as u64 / 2;
        (is_small && self.is_alive() && enabled(Check::WindowGrows)).then_some(wanted)
    }

    /// Makes the window as large as this. It never becomes smaller, because the peer may have been told already.
    pub fn grow(&mut self, window: usize) {
        let window = window.min(MAX_WINDOW);
        if window > self.send.window() && self.is_alive() {
            self.send.grow(window);
            self.receive.grow(window);
            self.ack_due |= !self.receive.has_ended();
        }
    }

    /// Bytes of both directions that the pipe keeps. Those that `take_received` has given out are the owner's.
    pub fn held_bytes(&self) -> usize {
        self.send.held_bytes() + self.receive.held_bytes() + self.control.held_bytes()
    }

    // The owner's bytes.

    /// How many bytes `write` takes now. 0 once the direction was ended or the pipe is dead.
    pub fn room(&self) -> usize {
        self.send.room()
    }

    /// Takes bytes to send, at most [`room`](Self::room), and returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.send.write(bytes)
    }

    /// Ends this direction behind the bytes that were written. The other direction goes on.
    pub fn finish(&mut self) {
        self.send.finish();
    }

    /// Whether everything that was written has arrived at the other end.
    pub fn all_confirmed(&self) -> bool {
        self.send.all_confirmed() && !self.send.waits_for_peer()
    }

    /// The next bytes that have arrived. They count as not passed on until [`consumed`](Self::consumed) says so.
    pub fn take_received(&mut self) -> Option<Bytes> {
        self.receive.take()
    }

    /// So many bytes that were taken have been passed on; the peer may send as many more.
    pub fn consumed(&mut self, bytes: usize, _now: Moment) {
        self.receive.consumed(bytes);
        if self.receive.has_much_room_to_tell() && !self.receive.has_ended() {
            self.ack_due = true;
        }
    }

    /// The peer's stream has ended, and all of it was taken.
    pub fn has_ended(&self) -> bool {
        self.receive.has_ended() && self.receive.is_empty()
    }

    /// Tells the peer something beside the stream: small JSON. It replaces what was set before and has not arrived.
    /// False: it is longer than [`MAX_CONTROL_BYTES`], and nothing is sent.
    pub fn set_control(&mut self, message: &[u8]) -> bool {
        let fits = message.len() <= MAX_CONTROL_BYTES;
        if fits && self.is_alive() {
            self.control.set(Bytes::copy_from_slice(message));
        }
        fits
    }

    /// The latest that the peer has told beside the stream, once.
    pub fn take_control(&mut self) -> Option<Bytes> {
        self.control.take()
    }

    /// Ends the pipe. The peer is told, by the frame that [`next_frame`](Self::next_frame) returns.
    pub fn kill(&mut self, reason: Reason) {
        if self.is_alive() {
            self.die(reason);
        }
    }

    // The carrier.

    /// The carrier has connected anew: what was on its way may be lost.
    pub fn carrier_connected(&mut self, now: Moment) {
        if !self.is_alive() {
            return;
        }
        if enabled(Check::ResendOnConnect) {
            self.go_back(now);
        }
        if enabled(Check::AskOnConnect) {
            self.nack_due = true;
        }
        self.control.send_again();
    }

    /// The carrier says that nobody is at the peer's address.
    pub fn no_responders(&mut self) {
        if self.state == State::Open {
            self.becomes_suspect(Reason::NoResponders);
        }
    }

    /// A message of the carrier. The error says why it was dropped; the pipe is not changed by it then.
    pub fn frame_received(&mut self, frame: Bytes, now: Moment) -> Result<(), Rejected> {
        let taken = self.take_frame(frame, now);
        match taken {
            Ok(()) => self.statistics.frames_received += 1,
            Err(_) => self.statistics.rejected += 1,
        }
        taken
    }

    /// The next message for the carrier.
    pub fn next_frame(&mut self, now: Moment) -> Option<Frame> {
        let bytes = match self.next_bytes(now) {
            Some(bytes) => bytes,
            None if self.ping_due => return Some(self.ping(now)),
            None => {
                // Bytes that may not be sent wait for the peer too.
                if self.send.waits_for_peer() && self.resend_at.is_none() && self.is_alive() {
                    self.resend_at = Some(now + self.resend_after());
                }
                return None;
            }
        };
        self.statistics.frames_sent += 1;
        Some(Frame { bytes, wants_reply: false })
    }

    // Time.

    /// When [`alarm`](Self::alarm) is to be called. It may be called earlier.
    pub fn next_alarm(&self) -> Option<Moment> {
        match self.state {
            State::Dead(_) => None,
            State::Finished => {
                [self.finished.map(|since| since + LINGER), self.ack_at].into_iter().flatten().min()
            }
            State::Open | State::Suspect => {
                let timers = [self.resend_at, self.ack_at, self.nack_at, self.control_at];
                let ping = enabled(Check::Ping).then(|| self.ping_at());
                timers.into_iter().chain([ping, self.silent_at()]).flatten().min()
            }
        }
    }

    /// Does what is due.
    pub fn alarm(&mut self, now: Moment) {
        let is_late = self.next_alarm().is_some_and(|due| now > due + LATE);
        match self.state {
            State::Dead(_) => return,
            State::Finished => {
                if self.finished.is_some_and(|since| now >= since + LINGER) {
                    self.finished = None;
                    self.ack_at = None;
                }
            }
            State::Open | State::Suspect => {
                if is_late && self.grace.is_none() && enabled(Check::LateAlarm) {
                    self.grace = Some(now + LATE_GRACE);
                }
                self.pings_and_deaths(now);
            }
        }
        if is_due(&mut self.ack_at, now) && enabled(Check::AckInTime) {
            self.ack_due = true;
        }
        if is_due(&mut self.nack_at, now) {
            self.nack_due = true;
        }
        if is_due(&mut self.control_at, now) {
            self.control.send_again();
        }
        if is_due(&mut self.resend_at, now) && self.is_alive() && self.send.waits_for_peer() {
            self.resends_after_silence(now);
        }
    }

    fn is_alive(&self) -> bool {
        matches!(self.state, State::Open | State::Suspect)
    }
}

/// The answer to a frame of a pipe that does not exist here (any more): it tells the peer that the pipe is dead.
/// `None`: the bytes are no frame, or one that needs no answer.
pub fn reset_unknown(frame: &[u8], reason: &str) -> Option<Bytes> {
    let header = frame::read(frame).ok().filter(|header| header.kind != Kind::Rst)?;
    let flags = (header.flags & FROM_NODE) ^ FROM_NODE;
    Some(frame::frame(
        &Header { kind: Kind::Rst, flags, offset: 0, ack: 0, window: 0, ..header },
        cut(reason),
    ))
}

/// The beginning of a reason that fits into a frame.
fn cut(reason: &str) -> &[u8] {
    let end = (0..=MAX_REASON_BYTES.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
    &reason.as_bytes()[..end.unwrap_or(0)]
}

/// Whether this timer has run out. Then it is stopped.
fn is_due(timer: &mut Option<Moment>, now: Moment) -> bool {
    timer.take_if(|due| *due <= now).is_some()
}
