//! Moves bytes between a pipe, its carrier and the local end. What is beside the stream, its owner does.

use std::cell::RefCell;
use std::io;
use std::time::Instant;

use async_nats::{Client, Message, StatusCode, Subject};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::carrier::is_connected;
use crate::folders::FolderWatch;
use crate::local::Local;
use crate::outlet::Outlet;
use crate::pipe::{Moment, Pipe, Reason, State};

/// A read takes at most this much.
const READ_BYTES: usize = 128 << 10;
/// So many frames are taken before anything else is looked at.
const FRAMES_PER_TURN: usize = 64;
/// So many frames may wait for a pipe. More than a window has would be sent again.
pub(crate) const FRAMES_WAITING: usize = 1024;

thread_local! {
    /// All pipes of a process are on one thread, and read one after the other.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// What comes from the carrier for a pipe.
#[derive(Debug)]
pub(crate) enum Arrival {
    Frame(Bytes),
    /// Nobody is at the address of the peer.
    NobodyThere,
}

impl Arrival {
    /// What a message of the carrier says.
    pub(crate) fn of(message: Message) -> Arrival {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            Arrival::NobodyThere
        } else {
            Arrival::Frame(message.payload)
        }
    }
}

/// Why it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Both ends have ended their streams.
    Finished,
    /// The peer has ended its stream, and all of it has been passed on.
    PeerEnded,
    Dead(Reason),
}

/// A pipe with its two ends.
pub(crate) struct Pump {
    pub(crate) pipe: Pipe,
    /// From the pipe to the local end.
    pub(crate) down: Outlet,
    /// From the local end to the pipe.
    pub(crate) up: Outlet,
    pub(crate) folders: Option<FolderWatch>,
    client: Client,
    /// Where the peer is.
    to: Subject,
    /// Where this end is.
    own: Subject,
    local: Local,
    start: Instant,
    local_ended: bool,
    shut_down: bool,
}

impl Pump {
    /// `start` is the beginning of the time of this pipe.
    pub(crate) fn new(
        pipe: Pipe,
        start: Instant,
        client: Client,
        (own, to): (Subject, Subject),
        local: Local,
    ) -> Pump {
        Pump {
            pipe,
            down: Outlet::default(),
            up: Outlet::default(),
            folders: None,
            client,
            to,
            own,
            local,
            start,
            local_ended: false,
            shut_down: false,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.start.elapsed()
    }

    /// The local end has said everything.
    pub(crate) fn local_ended(&self) -> bool {
        self.local_ended
    }

    /// Does everything that can be done now.
    pub(crate) async fn step(&mut self) -> Option<Over> {
        while self.move_bytes() | self.send_frames().await {}
        match self.pipe.state() {
            State::Dead(reason) => Some(Over::Dead(reason.clone())),
            State::Finished => Some(Over::Finished),
            _ if self.pipe.has_ended() && self.down.is_empty() => Some(Over::PeerEnded),
            _ => None,
        }
    }

    /// True: something has moved.
    fn move_bytes(&mut self) -> bool {
        let now = self.now();
        let mut moved = false;
        while let Some(bytes) = self.pipe.take_received() {
            moved = true;
            match &mut self.folders {
                Some(folders) => {
                    let kept = folders.feed(bytes, &mut self.down);
                    self.pipe.consumed(kept, now);
                }
                None => self.down.push(bytes, true),
            }
        }
        while let Some(front) = self.down.front() {
            match self.local.try_write(front) {
                Ok(count) if count > 0 => {
                    let counted = self.down.advance(count);
                    self.pipe.consumed(counted, now);
                    moved = true;
                }
                Err(error) if would_block(&error) => break,
                _ => {
                    self.pipe.kill(Reason::Owner("nobody takes what arrives any more".to_owned()));
                    return true;
                }
            }
        }
        if self.pipe.has_ended() && self.down.is_empty() && !self.shut_down {
            self.shut_down = true;
            self.local.shut_down_write();
        }
        while let Some(front) = self.up.front() {
            let taken = self.pipe.write(front);
            if taken == 0 {
                break;
            }
            self.up.advance(taken);
            moved = true;
        }
        if self.local_ended && self.up.is_empty() {
            self.pipe.finish();
        }
        moved
    }

    /// True: the local end may have something to do again.
    async fn send_frames(&mut self) -> bool {
        if !is_connected(&self.client) {
            return false;
        }
        while let Some(frame) = self.pipe.next_frame(self.now()) {
            let to = self.to.clone();
            let sent = if frame.wants_reply {
                self.client.publish_with_reply(to, self.own.clone(), frame.bytes).await
            } else {
                self.client.publish(to, frame.bytes).await
            };
            if let Err(error) = sent {
                self.pipe.kill(Reason::Owner(format!("NATS does not take a message: {error}")));
                return true;
            }
        }
        false
    }

    /// Waits until there is something to do, and takes what has come. It can be abandoned at any time.
    pub(crate) async fn wait(&mut self, arrivals: &mut mpsc::Receiver<Arrival>) {
        let alarm = self.pipe.next_alarm().map(|at| self.start + at);
        let wants_read = !self.local_ended && self.up.is_empty() && self.pipe.room() > 0;
        let wants_write = !self.down.is_empty();
        let asleep = async {
            match alarm {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Frames first: an alarm must not blame a peer whose frames have not been looked at.
            biased;
            arrival = arrivals.recv() => match arrival {
                Some(arrival) => {
                    self.take(arrival);
                    for _ in 0..FRAMES_PER_TURN {
                        let Ok(arrival) = arrivals.try_recv() else { break };
                        self.take(arrival);
                    }
                }
                None => self.pipe.kill(Reason::Owner("the connection to NATS is closed".to_owned())),
            },
            _ = self.local.writable(), if wants_write => {}
            _ = self.local.readable(), if wants_read => self.read(),
            () = asleep => {
                let now = self.now();
                self.pipe.alarm(now);
            }
        }
    }

    fn take(&mut self, arrival: Arrival) {
        let now = self.now();
        match arrival {
            Arrival::Frame(frame) => {
                if let Err(why) = self.pipe.frame_received(frame, now) {
                    log::debug!("a frame was dropped: {why}");
                }
            }
            Arrival::NobodyThere => self.pipe.no_responders(),
        }
    }

    fn read(&mut self) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let most = self.pipe.room().min(buffer.len());
            match self.local.try_read(&mut buffer[..most]) {
                Ok(0) => self.local_ended = true,
                Ok(count) if self.up.lets_pass(&buffer[..count]) => {
                    let taken = self.pipe.write(&buffer[..count]);
                    debug_assert_eq!(taken, count);
                }
                Ok(count) => self.up.push(Bytes::copy_from_slice(&buffer[..count]), false),
                Err(error) if would_block(&error) => {}
                Err(_) => self.local_ended = true,
            }
        });
    }

    /// Sends what is left, the last frame of a dead pipe above all.
    pub(crate) async fn last_frames(&mut self) {
        self.send_frames().await;
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
