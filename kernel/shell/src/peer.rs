//! The fds of one link as the event loop sees them: registration, readiness, and the run queue.
//!
//! An fd is registered once, edge-triggered. Readiness is remembered here until a read or a write finds its end.
//! Nothing here knows what the bytes mean.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::{Deserialize, Serialize};

use kernel_core::id::{Key, Link, WorkerId};

use crate::handover::KeptFds;
use crate::process::pre_exec::HandedFds;

/// Which fd of a link an event is about. A client's socket is its input, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Input = 0,
    Output = 1,
    /// A worker's stderr.
    Stderr = 2,
    /// A listener or the signals, which belong to no link.
    Internal = 3,
}

const _: () = assert!(usize::BITS == 64, "a token holds a generation, an index and a stream");

/// Events of a closed fd carry its old generation, and so find nothing.
pub(crate) fn token(key: Key, stream: Stream) -> Token {
    assert!(key.index < 1 << 30, "the index leaves two bits for the stream");
    Token((key.generation as usize) << 32 | (key.index as usize) << 2 | stream as usize)
}

pub(crate) fn key_and_stream(token: Token) -> (Key, Stream) {
    let stream = match token.0 & 3 {
        0 => Stream::Input,
        1 => Stream::Output,
        2 => Stream::Stderr,
        _ => Stream::Internal,
    };
    (Key { index: (token.0 as u32) >> 2, generation: (token.0 >> 32) as u32 }, stream)
}

/// The size of a pipe on Linux, and the size of one that carries much. Only such pipes are made larger, because Linux
/// bounds the memory that the pipes of a user can take (`pipe-user-pages-soft`).
const USUAL_PIPE_BYTES: usize = 64 << 10;
#[cfg(target_os = "linux")]
const WIDE_PIPE_BYTES: i32 = 256 << 10;

enum Fds {
    Socket(OwnedFd),
    Pipes { input: OwnedFd, output: Option<OwnedFd> },
}

pub(crate) struct Peer {
    pub(crate) link: Link,
    fds: Fds,
    pub(crate) stderr: Option<Box<Stderr>>,
    /// There may be something to read. This stays true while the core does not want to read.
    pub(crate) can_read: bool,
    pub(crate) can_write: bool,
    /// No edge will follow on the input, so it is read until EOF.
    pub(crate) hung_up: bool,
    /// A client's socket takes no more bytes. What the client sent before is read first, then `Broken` is reported.
    pub(crate) disconnected: bool,
    pub(crate) eof_reported: bool,
    pub(crate) broken_reported: bool,
    /// The link is in the run queue.
    pub(crate) queued: bool,
    /// Its lines were long when it was last read in bulk.
    pub(crate) has_long_lines: bool,
    /// Its pipes were made larger, or could not be.
    is_input_wide: bool,
    is_output_wide: bool,
    /// A short read or write means that the kernel's buffer is empty or full, and that an edge will follow. This is
    /// false for stdio: a terminal returns one line per read, and a file has no edges.
    pub(crate) short_means_blocked: bool,
}

pub(crate) struct Stderr {
    pub(crate) fd: OwnedFd,
    pub(crate) worker: WorkerId,
    pub(crate) pid: u32,
    /// No edge will follow, so it is read until EOF.
    pub(crate) hung_up: bool,
    /// It is in the run queue.
    pub(crate) queued: bool,
    /// The unfinished line, shortened, for the log.
    pub(crate) line: Vec<u8>,
}

impl Peer {
    pub(crate) fn socket(link: Link, socket: OwnedFd) -> Peer {
        Peer::new(link, Fds::Socket(socket))
    }

    pub(crate) fn pipes(link: Link, input: OwnedFd, output: OwnedFd) -> Peer {
        Peer::new(link, Fds::Pipes { input, output: Some(output) })
    }

    fn new(link: Link, fds: Fds) -> Peer {
        Peer {
            link,
            fds,
            stderr: None,
            can_read: false,
            can_write: true,
            hung_up: false,
            disconnected: false,
            eof_reported: false,
            broken_reported: false,
            queued: false,
            has_long_lines: false,
            is_input_wide: false,
            is_output_wide: false,
            short_means_blocked: true,
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.fds, Fds::Socket(_))
    }

    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        match &self.fds {
            Fds::Socket(socket) => socket.as_fd(),
            Fds::Pipes { input, .. } => input.as_fd(),
        }
    }

    /// `None` once it is closed.
    pub(crate) fn output(&self) -> Option<BorrowedFd<'_>> {
        match &self.fds {
            Fds::Socket(socket) => Some(socket.as_fd()),
            Fds::Pipes { output, .. } => output.as_ref().map(AsFd::as_fd),
        }
    }

    /// Makes the pipe from a worker larger if it was found full: fewer and larger reads are cheaper.
    pub(crate) fn widen_input(&mut self, count: usize) {
        if count >= USUAL_PIPE_BYTES
            && self.short_means_blocked
            && !mem::replace(&mut self.is_input_wide, true)
            && let Fds::Pipes { input, .. } = &self.fds
        {
            widen(input);
        }
    }

    /// The same for the pipe to a worker, if so many bytes did not fit. True: it is larger now.
    pub(crate) fn widen_output(&mut self, waiting: usize) -> bool {
        waiting >= USUAL_PIPE_BYTES
            && self.short_means_blocked
            && !mem::replace(&mut self.is_output_wide, true)
            && matches!(&self.fds, Fds::Pipes { output: Some(output), .. } if widen(output))
    }

    pub(crate) fn register(&self, registry: &Registry) -> io::Result<()> {
        let key = self.link.0;
        match &self.fds {
            Fds::Socket(socket) => {
                watch(registry, socket, token(key, Stream::Input), Interest::READABLE | Interest::WRITABLE)?;
            }
            Fds::Pipes { input, output } => {
                watch(registry, input, token(key, Stream::Input), Interest::READABLE)?;
                if let Some(output) = output {
                    watch(registry, output, token(key, Stream::Output), Interest::WRITABLE)?;
                }
            }
        }
        if let Some(stderr) = &self.stderr {
            watch(registry, &stderr.fd, token(key, Stream::Stderr), Interest::READABLE)?;
        }
        Ok(())
    }

    pub(crate) fn close_output(&mut self, registry: &Registry) {
        if let Fds::Pipes { output, .. } = &mut self.fds
            && let Some(output) = output.take()
        {
            unwatch(registry, &output);
        }
    }

    pub(crate) fn close_stderr(&mut self, registry: &Registry) {
        if let Some(stderr) = self.stderr.take() {
            unwatch(registry, &stderr.fd);
        }
    }

    /// Deregisters and closes all its fds.
    pub(crate) fn close(mut self, registry: &Registry) {
        self.close_output(registry);
        self.close_stderr(registry);
        unwatch(registry, self.input());
    }
}

/// A peer as the next program finds it. Readiness is not in it: everything is tried once.
#[derive(Serialize, Deserialize)]
pub(crate) struct PeerState {
    pub(crate) link: Link,
    /// A socket has no output of its own.
    is_socket: bool,
    input: RawFd,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<RawFd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<StderrState>,
    hung_up: bool,
    disconnected: bool,
    eof_reported: bool,
    broken_reported: bool,
    is_input_wide: bool,
    is_output_wide: bool,
    short_means_blocked: bool,
}

#[derive(Serialize, Deserialize)]
struct StderrState {
    fd: RawFd,
    worker: WorkerId,
    pid: u32,
    hung_up: bool,
    #[serde(with = "serde_bytes")]
    line: Vec<u8>,
}

impl Peer {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> PeerState {
        let stderr = self.stderr.as_ref().map(|stderr| StderrState {
            fd: kept.keep(&stderr.fd),
            worker: stderr.worker,
            pid: stderr.pid,
            hung_up: stderr.hung_up,
            line: stderr.line.clone(),
        });
        PeerState {
            link: self.link,
            is_socket: self.is_socket(),
            input: kept.keep_borrowed(self.input()),
            output: self.output().filter(|_| !self.is_socket()).map(|output| kept.keep_borrowed(output)),
            stderr,
            hung_up: self.hung_up,
            disconnected: self.disconnected,
            eof_reported: self.eof_reported,
            broken_reported: self.broken_reported,
            is_input_wide: self.is_input_wide,
            is_output_wide: self.is_output_wide,
            short_means_blocked: self.short_means_blocked,
        }
    }

    pub(crate) fn take_over(state: PeerState, handed: &mut HandedFds) -> nix::Result<Peer> {
        let input = handed.take(state.input)?;
        let fds = if state.is_socket {
            Fds::Socket(input)
        } else {
            Fds::Pipes { input, output: state.output.map(|output| handed.take(output)).transpose()? }
        };
        let stderr = state.stderr.map(|stderr| -> nix::Result<_> {
            let StderrState { fd, worker, pid, hung_up, line } = stderr;
            Ok(Box::new(Stderr { hung_up, line, ..Stderr::new(handed.take(fd)?, worker, pid) }))
        });
        Ok(Peer {
            stderr: stderr.transpose()?,
            can_read: !state.eof_reported,
            can_write: !state.broken_reported,
            hung_up: state.hung_up,
            disconnected: state.disconnected,
            eof_reported: state.eof_reported,
            broken_reported: state.broken_reported,
            is_input_wide: state.is_input_wide,
            is_output_wide: state.is_output_wide,
            short_means_blocked: state.short_means_blocked,
            ..Peer::new(state.link, fds)
        })
    }
}

impl Stderr {
    pub(crate) fn new(fd: OwnedFd, worker: WorkerId, pid: u32) -> Stderr {
        Stderr { fd, worker, pid, hung_up: false, queued: false, line: Vec::new() }
    }
}

/// The peers by the index of their link.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Option<Peer>>,
}

impl Peers {
    /// The previous peer at this index must have been removed.
    pub(crate) fn insert(&mut self, peer: Peer) {
        let index = peer.link.0.index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        assert!(self.slots[index].is_none(), "the previous peer has been closed");
        self.slots[index] = Some(peer);
    }

    /// The link that occupies the index of `link` now.
    pub(crate) fn occupant(&self, link: Link) -> Option<Link> {
        self.slots.get(link.0.index as usize)?.as_ref().map(|peer| peer.link)
    }

    pub(crate) fn get_mut(&mut self, link: Link) -> Option<&mut Peer> {
        self.slots.get_mut(link.0.index as usize)?.as_mut().filter(|peer| peer.link == link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.slots.iter().flatten()
    }

    pub(crate) fn remove(&mut self, link: Link) -> Option<Peer> {
        self.get_mut(link)?;
        self.slots[link.0.index as usize].take()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Read(Link),
    ReadStderr(Link),
    /// Accept connections on the listener with this key.
    Accept(Key),
}

/// The work that needs no new event. Each task is in it at most once, so that no peer is served twice per turn.
#[derive(Default)]
pub(crate) struct RunQueue {
    tasks: VecDeque<Task>,
    /// Peers that were read and may have more. They wait behind those that have just become ready.
    more: VecDeque<Task>,
}

impl RunQueue {
    /// `queued` is the flag of the peer or listener. The code that pops the task clears it.
    pub(crate) fn push(&mut self, task: Task, queued: &mut bool) {
        if !mem::replace(queued, true) {
            self.tasks.push_back(task);
        }
    }

    /// The same for a peer that was just read and may have more.
    pub(crate) fn push_more(&mut self, task: Task, queued: &mut bool) {
        if !mem::replace(queued, true) {
            self.more.push_back(task);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    pub(crate) fn pop_more(&mut self) -> Option<Task> {
        self.more.pop_front()
    }

    /// How many tasks there are, and how many of peers that may have more.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.tasks.len(), self.more.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.more.is_empty()
    }
}

pub(crate) fn watch(registry: &Registry, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
    registry.register(&mut SourceFd(&fd.as_fd().as_raw_fd()), token, interest)
}

/// Closing alone does not deregister: a child between fork and exec may hold a copy of the fd for a moment.
pub(crate) fn unwatch(registry: &Registry, fd: impl AsFd) {
    // This fails for a file, which could not be registered either.
    let _ = registry.deregister(&mut SourceFd(&fd.as_fd().as_raw_fd()));
}

/// A pipe that cannot be made larger stays as it is.
#[cfg(target_os = "linux")]
fn widen(pipe: impl AsFd) -> bool {
    fcntl(pipe, FcntlArg::F_SETPIPE_SZ(WIDE_PIPE_BYTES)).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn widen(_: impl AsFd) -> bool {
    false
}

/// Returns the flags from before.
pub(crate) fn set_nonblocking(fd: impl AsFd) -> nix::Result<OFlag> {
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, generation: u32) -> Link {
        Link(Key { index, generation })
    }

    #[test]
    fn a_token_gives_back_its_key_and_stream() {
        for key in [
            Key { index: 0, generation: 0 },
            Key { index: (1 << 30) - 1, generation: u32::MAX },
            Key { index: 77, generation: 1 },
        ] {
            for stream in [Stream::Input, Stream::Output, Stream::Stderr, Stream::Internal] {
                assert_eq!(key_and_stream(token(key, stream)), (key, stream));
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_is_made_larger_once_it_was_full() {
        let size = |pipe: BorrowedFd<'_>| fcntl(pipe, FcntlArg::F_GETPIPE_SZ).unwrap();
        let (input, _theirs) = io::pipe().unwrap();
        let (_theirs, output) = io::pipe().unwrap();
        let usual = size(input.as_fd());
        // A user whose pipes take too much memory already gets no larger ones.
        let wide = if widen(&io::pipe().unwrap().0) { WIDE_PIPE_BYTES } else { usual };
        let mut peer = Peer::pipes(link(1, 1), input.into(), output.into());
        peer.widen_input(USUAL_PIPE_BYTES - 1);
        assert!(!peer.widen_output(USUAL_PIPE_BYTES - 1));
        assert_eq!((size(peer.input()), peer.output().map(size)), (usual, Some(usual)));
        peer.widen_input(USUAL_PIPE_BYTES);
        assert_eq!(peer.widen_output(USUAL_PIPE_BYTES), wide > usual);
        assert_eq!((size(peer.input()), peer.output().map(size)), (wide, Some(wide)));
        assert!(!peer.widen_output(USUAL_PIPE_BYTES), "only once");
    }

    #[test]
    fn a_task_is_in_the_queue_once_until_it_is_popped() {
        let (ann, ben) = (Task::Read(link(1, 1)), Task::ReadStderr(link(2, 1)));
        let (mut ann_queued, mut ben_queued) = (false, false);
        let mut queue = RunQueue::default();
        queue.push(ann, &mut ann_queued);
        queue.push(ben, &mut ben_queued);
        queue.push(ann, &mut ann_queued);
        assert_eq!((queue.pop(), queue.lens()), (Some(ann), (1, 0)));
        ann_queued = false;
        queue.push_more(ann, &mut ann_queued);
        queue.push(ann, &mut ann_queued);
        assert_eq!((queue.pop(), queue.pop(), queue.pop_more()), (Some(ben), None, Some(ann)));
        assert!(queue.is_empty());
    }

    #[test]
    fn an_old_link_does_not_find_the_peer_that_took_its_index() {
        let socket = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
        let mut peers = Peers::default();
        peers.insert(Peer::socket(link(3, 1), socket()));
        assert_eq!(peers.occupant(link(3, 2)), Some(link(3, 1)));
        assert!(peers.remove(link(3, 1)).is_some());
        assert_eq!(peers.occupant(link(3, 2)), None);
        peers.insert(Peer::socket(link(3, 2), socket()));
        assert!(peers.get_mut(link(3, 1)).is_none());
        assert!(peers.remove(link(3, 1)).is_none());
        assert!(peers.get_mut(link(3, 2)).is_some());
    }
}
