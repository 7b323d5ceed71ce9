//! What a pipe is told at its start, the states of its life, and what it counts.

use std::fmt;
use std::time::Duration;

/// Which end of the pipe this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that has opened the pipe: a worker of the bus that clients reach.
    Edge,
    /// The end that was asked for it: a client of the bus that has the agents.
    Node,
}

/// What a pipe is told at its start. Values out of range are brought into it.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is. The two ends of a pipe are different ones.
    pub side: Side,
    /// How many bytes each direction may be ahead of its receiver: what this end offers to take, and how much of its
    /// own it keeps until it is confirmed. From [`MIN_WINDOW`] to [`MAX_WINDOW`], usually [`DEFAULT_WINDOW`].
    ///
    /// [`MIN_WINDOW`]: super::MIN_WINDOW
    /// [`MAX_WINDOW`]: super::MAX_WINDOW
    /// [`DEFAULT_WINDOW`]: super::DEFAULT_WINDOW
    pub window: usize,
    /// The window of the peer, if it is known before its first frame; else [`MIN_WINDOW`](super::MIN_WINDOW), which
    /// every end has.
    pub peer_window: usize,
    /// The longest message that the carrier takes. Frames, with their headers, are no longer.
    pub max_frame_bytes: usize,
}

impl Config {
    /// The usual values for this end.
    pub fn new(side: Side) -> Config {
        Config {
            side,
            window: super::DEFAULT_WINDOW,
            peer_window: super::MIN_WINDOW,
            max_frame_bytes: super::MAX_FRAME_BYTES,
        }
    }
}

/// Where a pipe is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The peer is heard.
    Open,
    /// The peer has not been heard for 6 s, or nobody has answered at its address. Nobody is told: bytes are still
    /// taken, and any frame of the peer makes it open again.
    Suspect,
    /// Both directions have ended, and everything has arrived. The owner may drop the pipe; if it waits for
    /// [`is_over`](super::Pipe::is_over), a peer whose last frames were lost hears that they are not needed.
    Finished,
    /// The end, with its reason. Bytes that had arrived can still be taken; nothing else comes.
    Dead(Reason),
}

/// Why a pipe is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer was silent for 30 s.
    Silent,
    /// Nobody was at the peer's address, and it was silent for 30 s.
    NoResponders,
    /// The peer has ended the pipe, and says this. It is short and has no control characters.
    Reset(String),
    /// The node answers under another address: the process at the other end was replaced.
    Replaced,
    /// The owner has ended the pipe for this reason.
    Owner(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Silent => out.write_str("it has not answered for 30 s"),
            Reason::NoResponders => out.write_str("nobody has been at its address for 30 s"),
            Reason::Replaced => out.write_str("it answers under another address"),
            Reason::Reset(text) | Reason::Owner(text) => out.write_str(text),
        }
    }
}

/// What a pipe has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that were sent, of every kind, those that were sent again included.
    pub frames_sent: u64,
    /// Frames that were received and not rejected.
    pub frames_received: u64,
    /// Frames with bytes of the stream that were sent again.
    pub resent: u64,
    /// Frames that had arrived before and were dropped.
    pub duplicates: u64,
    /// Frames that came before others that had to come first, and were dropped.
    pub early: u64,
    /// Frames that cannot be true and were dropped.
    pub rejected: u64,
    /// How often the pipe became suspect.
    pub stalls: u64,
    /// How long the peer took to answer the last ping.
    pub round_trip: Option<Duration>,
}
