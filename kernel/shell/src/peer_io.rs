//! The fds of one link as the loop sees them: what is registered, what is ready, what waits for its turn.
//!
//! An fd is registered once, for edges, and never again: readiness is remembered here until a read or a write
//! finds the end of it. Knows nothing of what the bytes mean.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use kernel_core::id::{Key, Link, WorkerId};

/// Which fd of a link an event is about. A client's socket is its input, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Input = 0,
    Output = 1,
    /// A worker's stderr.
    Mutter = 2,
    /// Not a link's: a door or the signals.
    House = 3,
}

const _: () = assert!(usize::BITS == 64, "a token holds a generation, an index and a stream");

/// Events of an fd that has been closed carry its old generation, and so find nothing.
pub(crate) fn token(key: Key, stream: Stream) -> Token {
    assert!(key.index < 1 << 30, "the index leaves two bits for the stream");
    Token((key.generation as usize) << 32 | (key.index as usize) << 2 | stream as usize)
}

pub(crate) fn key_and_stream(token: Token) -> (Key, Stream) {
    let stream = match token.0 & 3 {
        0 => Stream::Input,
        1 => Stream::Output,
        2 => Stream::Mutter,
        _ => Stream::House,
    };
    (Key { index: (token.0 as u32) >> 2, generation: (token.0 >> 32) as u32 }, stream)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Client,
    /// The client on stdin and stdout of the bus itself.
    Stdio,
    Worker(WorkerId),
}

enum Wire {
    Socket(OwnedFd),
    Pipes { input: OwnedFd, output: Option<OwnedFd> },
}

pub(crate) struct Peer {
    pub(crate) link: Link,
    pub(crate) kind: Kind,
    wire: Wire,
    pub(crate) mutter: Option<Box<Mutter>>,
    /// There may be something to read. Stays true while the core does not want to read.
    pub(crate) can_read: bool,
    pub(crate) can_write: bool,
    /// No edge will follow on the input, so it is read until EOF.
    pub(crate) hung_up: bool,
    /// A client's socket that takes no more bytes. What it sent before is read first, then it is `broken`.
    pub(crate) dead: bool,
    /// The core knows that nothing more will come from it.
    pub(crate) ended: bool,
    /// The core knows that nothing more can be written to it.
    pub(crate) broken: bool,
    /// It stands in the run queue.
    pub(crate) queued: bool,
    /// A short read or write means that the buffer of the kernel is empty or full, and that an edge will
    /// follow. A terminal gives a line at a time, and a file has no edges.
    pub(crate) short_is_dry: bool,
}

/// A worker's stderr.
pub(crate) struct Mutter {
    pub(crate) fd: OwnedFd,
    pub(crate) pid: u32,
    /// No edge will follow, so it is read until EOF.
    pub(crate) hung_up: bool,
    /// It stands in the run queue.
    pub(crate) queued: bool,
    /// The unfinished line, for the log only, cut where it is too long.
    pub(crate) line: Vec<u8>,
}

impl Peer {
    pub(crate) fn socket(link: Link, socket: OwnedFd) -> Peer {
        Peer::over(link, Kind::Client, Wire::Socket(socket))
    }

    pub(crate) fn pipes(link: Link, kind: Kind, input: OwnedFd, output: OwnedFd) -> Peer {
        Peer::over(link, kind, Wire::Pipes { input, output: Some(output) })
    }

    fn over(link: Link, kind: Kind, wire: Wire) -> Peer {
        Peer {
            link,
            kind,
            wire,
            mutter: None,
            can_read: false,
            can_write: true,
            hung_up: false,
            dead: false,
            ended: false,
            broken: false,
            queued: false,
            short_is_dry: true,
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.wire, Wire::Socket(_))
    }

    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        match &self.wire {
            Wire::Socket(socket) => socket.as_fd(),
            Wire::Pipes { input, .. } => input.as_fd(),
        }
    }

    /// None where it has been closed.
    pub(crate) fn output(&self) -> Option<BorrowedFd<'_>> {
        match &self.wire {
            Wire::Socket(socket) => Some(socket.as_fd()),
            Wire::Pipes { output, .. } => output.as_ref().map(AsFd::as_fd),
        }
    }

    pub(crate) fn register(&self, registry: &Registry) -> io::Result<()> {
        let key = self.link.0;
        match &self.wire {
            Wire::Socket(socket) => {
                watch(registry, socket, token(key, Stream::Input), Interest::READABLE | Interest::WRITABLE)
            }
            Wire::Pipes { input, output } => {
                watch(registry, input, token(key, Stream::Input), Interest::READABLE)?;
                if let Some(output) = output {
                    watch(registry, output, token(key, Stream::Output), Interest::WRITABLE)?;
                }
                match &self.mutter {
                    Some(mutter) => {
                        watch(registry, &mutter.fd, token(key, Stream::Mutter), Interest::READABLE)
                    }
                    None => Ok(()),
                }
            }
        }
    }

    pub(crate) fn close_output(&mut self, registry: &Registry) {
        if let Wire::Pipes { output, .. } = &mut self.wire
            && let Some(output) = output.take()
        {
            forget(registry, &output);
        }
    }

    pub(crate) fn close_mutter(&mut self, registry: &Registry) {
        if let Some(mutter) = self.mutter.take() {
            forget(registry, &mutter.fd);
        }
    }

    /// Deregisters and closes all its fds.
    pub(crate) fn close(mut self, registry: &Registry) {
        self.close_output(registry);
        self.close_mutter(registry);
        forget(registry, self.input());
    }
}

impl Mutter {
    pub(crate) fn new(fd: OwnedFd, pid: u32) -> Mutter {
        Mutter { fd, pid, hung_up: false, queued: false, line: Vec::new() }
    }
}

/// The peers by the index of their link.
#[derive(Default)]
pub(crate) struct Links {
    peers: Vec<Option<Peer>>,
}

impl Links {
    pub(crate) fn insert(&mut self, peer: Peer) {
        let index = peer.link.0.index as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        assert!(self.peers[index].is_none(), "who stood there has been closed");
        self.peers[index] = Some(peer);
    }

    /// Who stands where this link is to stand.
    pub(crate) fn predecessor(&self, link: Link) -> Option<Link> {
        self.peers.get(link.0.index as usize)?.as_ref().map(|peer| peer.link)
    }

    pub(crate) fn get_mut(&mut self, link: Link) -> Option<&mut Peer> {
        self.peers.get_mut(link.0.index as usize)?.as_mut().filter(|peer| peer.link == link)
    }

    pub(crate) fn remove(&mut self, link: Link) -> Option<Peer> {
        self.get_mut(link)?;
        self.peers[link.0.index as usize].take()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Read(Link),
    Mutter(Link),
    /// At the door with this key.
    Accept(Key),
}

/// What can go on without a new event. Each stands in it at most once, so that nobody is served twice a turn.
#[derive(Default)]
pub(crate) struct RunQueue {
    tasks: VecDeque<Task>,
}

impl RunQueue {
    /// `queued` is the bit of the one who waits. It is cleared by whoever pops the task.
    pub(crate) fn push(&mut self, task: Task, queued: &mut bool) {
        if !mem::replace(queued, true) {
            self.tasks.push_back(task);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

pub(crate) fn watch(registry: &Registry, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
    registry.register(&mut SourceFd(&fd.as_fd().as_raw_fd()), token, interest)
}

/// Closing alone would not do: a child between fork and exec may hold a copy of the fd for a moment.
pub(crate) fn forget(registry: &Registry, fd: impl AsFd) {
    // It fails for a file, which could not be registered in the first place.
    let _ = registry.deregister(&mut SourceFd(&fd.as_fd().as_raw_fd()));
}

/// Gives back the flags it had.
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
    fn a_token_gives_back_what_it_was_made_of() {
        for key in [
            Key { index: 0, generation: 0 },
            Key { index: (1 << 30) - 1, generation: u32::MAX },
            Key { index: 77, generation: 1 },
        ] {
            for stream in [Stream::Input, Stream::Output, Stream::Mutter, Stream::House] {
                assert_eq!(key_and_stream(token(key, stream)), (key, stream));
            }
        }
    }

    #[test]
    fn a_task_stands_in_the_queue_once_until_it_is_popped() {
        let (ann, ben) = (Task::Read(link(1, 1)), Task::Mutter(link(2, 1)));
        let (mut ann_queued, mut ben_queued) = (false, false);
        let mut queue = RunQueue::default();
        queue.push(ann, &mut ann_queued);
        queue.push(ben, &mut ben_queued);
        queue.push(ann, &mut ann_queued);
        assert_eq!((queue.pop(), queue.len()), (Some(ann), 1));
        ann_queued = false;
        queue.push(ann, &mut ann_queued);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(ben), Some(ann), None));
        assert!(queue.is_empty());
    }

    #[test]
    fn an_old_link_does_not_find_the_peer_that_took_its_index() {
        let socket = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
        let mut links = Links::default();
        links.insert(Peer::socket(link(3, 1), socket()));
        assert_eq!(links.predecessor(link(3, 2)), Some(link(3, 1)));
        assert!(links.remove(link(3, 1)).is_some());
        assert_eq!(links.predecessor(link(3, 2)), None);
        links.insert(Peer::socket(link(3, 2), socket()));
        assert!(links.get_mut(link(3, 1)).is_none());
        assert!(links.remove(link(3, 1)).is_none());
        assert!(links.get_mut(link(3, 2)).is_some());
    }
}
