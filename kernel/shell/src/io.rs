//! Moves bytes between the fds of links and the core.
//!
//! In one turn of the event loop each link is read at most once. Its queued bytes are written at the end of the turn,
//! or earlier where there are many. Nothing here blocks, and nothing here decides about messages.

use std::io::IoSlice;
use std::mem;

use memchr::{memchr, memrchr};
use mio::Poll;
use mio::event::Event as Readiness;
use nix::errno::Errno;
use nix::sys::uio::writev;
use nix::unistd::{read, write};

use kernel_core::id::Link;
use kernel_core::{Bus, Event, Moment};

use crate::peer::{Peer, Peers, RunQueue, Stream, Task};

/// Everything is read into one buffer of this size, so it is also the most that a link is read per turn.
const SCRATCH_BYTES: usize = 256 << 10;

/// A link with short lines is read no more than this per turn, because the time that a turn takes grows with the lines.
const SHORT_LINES_BYTES: usize = 64 << 10;
/// All links that are ready are together read no more than this per turn, but each at least `LEAST_BYTES`: whoever
/// becomes ready meanwhile waits for the whole turn.
const TURN_BYTES: usize = 256 << 10;
const LEAST_BYTES: usize = 512;
/// Once so many bytes of short lines were read in a turn, or `LONG_LINES_TIMES` as many of long ones, links that were
/// read before and have more wait for the next turn, so that whoever says little does not wait for all that say much.
const SHARE_BYTES: usize = 32 << 10;
const LONG_LINES_TIMES: usize = 8;
/// If the bus has stood still for so long, all links are read before timers: none of them blames a peer for that.
const STOOD_STILL: Moment = Moment::from_secs(1);
/// A longer line is not short: the copies of its bytes take longer than the rest of its way.
const SHORT_LINE_BYTES: usize = 2 << 10;

/// At most this many pieces are written at once. Only long lines and the parts of long queues are pieces of their own.
const PIECES_MAX: usize = 16;

/// The core first gets this part of what was read, and at least `FIRST_BYTES`.
const FIRST_PART: usize = 2;
const FIRST_BYTES: usize = 4 << 10;

pub(crate) struct Io {
    pub(crate) bus: Bus,
    pub(crate) poll: Poll,
    /// When the current turn began.
    pub(crate) now: Moment,
    pub(crate) scratch: Box<[u8]>,
    pub(crate) peers: Peers,
    pub(crate) queue: RunQueue,
    /// Links with queued bytes that can be written to again.
    writable: Vec<Link>,
    /// The most that one link is read in this turn.
    most_bytes: usize,
    /// What was read in this turn, in bytes of short lines, and what may be.
    spent_bytes: usize,
    share_bytes: usize,
    last_turn: Moment,
}

impl Io {
    pub(crate) fn new(bus: Bus, poll: Poll) -> Io {
        Io {
            bus,
            poll,
            now: Moment::ZERO,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            peers: Peers::default(),
            queue: RunQueue::default(),
            writable: Vec::new(),
            most_bytes: SCRATCH_BYTES,
            spent_bytes: 0,
            share_bytes: SHARE_BYTES,
            last_turn: Moment::ZERO,
        }
    }

    /// Whether there is work that needs no new event.
    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.writable.is_empty()
    }

    /// So many links are to be read in the turn that begins.
    pub(crate) fn begin_turn(&mut self, ready: usize) {
        self.most_bytes = (TURN_BYTES / ready.max(1)).clamp(LEAST_BYTES, SCRATCH_BYTES);
        let stood_still = self.now >= self.last_turn + STOOD_STILL;
        self.share_bytes = if stood_still { usize::MAX } else { SHARE_BYTES };
        (self.spent_bytes, self.last_turn) = (0, self.now);
    }

    /// The next link that was read before and has more, if this turn still reads one.
    pub(crate) fn next_more(&mut self) -> Option<Task> {
        if self.spent_bytes < self.share_bytes { self.queue.pop_more() } else { None }
    }

    /// Remembers what an event says about a link. Events of closed fds carry an old key and find nothing.
    pub(crate) fn note(&mut self, link: Link, stream: Stream, event: &Readiness) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        let arrived = event.is_readable() || event.is_read_closed() || event.is_error();
        if stream == Stream::Stderr {
            if let Some(stderr) = &mut peer.stderr {
                stderr.hung_up |= event.is_read_closed();
                self.queue.push(Task::ReadStderr(link), &mut stderr.queued);
            }
            return;
        }
        if stream == Stream::Input && arrived {
            peer.can_read = !peer.eof_reported;
            peer.hung_up |= event.is_read_closed();
            peer.disconnected |= peer.is_socket() && event.is_write_closed();
            self.queue.push(Task::Read(link), &mut peer.queued);
        }
        // A pipe whose reader is gone reports that without being writable; the next write finds out.
        let opened = event.is_writable() || event.is_write_closed() || event.is_error();
        if opened
            && (stream == Stream::Output || peer.is_socket())
            && !peer.can_write
            && !peer.broken_reported
        {
            peer.can_write = true;
            self.writable.push(link);
        }
    }

    /// Reads on from a link that the core did not want to read.
    pub(crate) fn resume(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(link) {
            self.queue.push(Task::Read(link), &mut peer.queued);
        }
    }

    /// Reads once, if there is something to read and the core wants it.
    pub(crate) fn read(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        peer.queued = false;
        if !peer.can_read || !self.bus.wants_read(link) {
            if peer.disconnected {
                self.read_rest(link);
                self.report_broken(link);
            }
            return;
        }
        // The rest of a long line is read to where it stays until it is written.
        let space = self.bus.read_space(link);
        let in_space = space.is_some();
        let most = if peer.has_long_lines { SCRATCH_BYTES } else { SHORT_LINES_BYTES };
        let most = most.min(self.most_bytes);
        let space = match space {
            Some(space) => {
                let most = space.len().min(self.most_bytes);
                &mut space[..most]
            }
            None => &mut self.scratch[..most],
        };
        match read(peer.input(), space) {
            Ok(0) => self.report_eof(link),
            Ok(count) => {
                let drained = count < space.len() && peer.short_means_blocked && !peer.hung_up;
                peer.can_read = !drained;
                if peer.can_read || peer.disconnected {
                    self.queue.push_more(Task::Read(link), &mut peer.queued);
                }
                let is_long = in_space || peer.has_long_lines;
                self.spent_bytes += if is_long { count / LONG_LINES_TIMES } else { count };
                // Short lines pass faster through a pipe that fits into the cache.
                if in_space || peer.has_long_lines {
                    peer.widen_input(count);
                }
                if in_space {
                    self.bus.received_in_space(link, count, self.now);
                    self.flush_bulk();
                } else {
                    self.early_flush(link, count);
                }
            }
            Err(Errno::EAGAIN) => {
                peer.can_read = false;
                if peer.disconnected {
                    self.report_broken(link);
                }
            }
            Err(Errno::EINTR) => self.queue.push(Task::Read(link), &mut peer.queued),
            Err(_) if peer.is_socket() => self.report_broken(link),
            Err(_) => self.report_eof(link),
        }
    }

    /// Gives the core the `count` bytes that were read, in two parts. If the first part fills the queue of a peer, that
    /// queue is written before the second part is handled, so that the peer works on it in the meantime.
    ///
    /// The contract: the core takes bytes in any chunking, so the split changes when bytes are written, never which.
    /// The cut is behind a line, because the core cannot forward half a line. `take_bulk` names the link to write to.
    fn early_flush(&mut self, link: Link, count: usize) {
        let first = whole_lines(&self.scratch[..count], FIRST_BYTES.max(count / FIRST_PART));
        if count >= SHORT_LINES_BYTES
            && let Some(peer) = self.peers.get_mut(link)
        {
            peer.has_long_lines = begins_long_line(&self.scratch[first..count]);
        }
        self.bus.received(link, &self.scratch[..first], self.now);
        self.flush_bulk();
        if first < count {
            self.bus.received(link, &self.scratch[first..count], self.now);
        }
    }

    fn flush_bulk(&mut self) {
        if let Some(full) = self.bus.take_bulk() {
            self.flush(full);
        }
    }

    /// Reads what a disconnected client sent before. The core did not want to read it, but there is no later chance.
    fn read_rest(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        if peer.eof_reported {
            return;
        }
        loop {
            match read(peer.input(), &mut self.scratch) {
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => return,
                Ok(count) => self.bus.received(link, &self.scratch[..count], self.now),
            }
        }
    }

    /// Writes once what is queued for this link. This is the one place where bytes leave; the rest waits for an edge.
    pub(crate) fn flush(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        if !peer.can_write || peer.broken_reported {
            return;
        }
        let Some(output) = peer.output() else { return };
        let mut waiting = self.bus.pieces_to_send(link);
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let (mut used, mut length) = (0, 0);
        for (slot, piece) in pieces.iter_mut().zip(&mut waiting) {
            *slot = IoSlice::new(piece);
            used += 1;
            length += piece.len();
        }
        let are_all = used < PIECES_MAX || waiting.next().is_none();
        drop(waiting);
        let outcome = loop {
            let outcome = match &pieces[..used] {
                [] => return,
                [only] => write(output, only),
                several => writev(output, several),
            };
            if outcome != Err(Errno::EINTR) {
                break outcome;
            }
        };
        match outcome {
            Ok(count) => {
                if count < length {
                    // There may be no edge for the room that the bus makes itself.
                    peer.can_write = !peer.short_means_blocked || peer.widen_output(length);
                    if peer.can_write {
                        self.writable.push(link);
                    }
                } else if !are_all {
                    self.writable.push(link);
                }
                self.bus.sent(link, count, self.now);
            }
            Err(Errno::EAGAIN) => peer.can_write = false,
            // What the client sent before it left is read first.
            Err(_) if peer.is_socket() => {
                peer.can_write = false;
                peer.disconnected = true;
                self.queue.push(Task::Read(link), &mut peer.queued);
            }
            Err(_) => self.report_broken(link),
        }
    }

    /// Writes to the links that have become writable. Those that become so meanwhile wait for the next turn.
    pub(crate) fn flush_writable(&mut self) {
        let count = self.writable.len();
        for at in 0..count {
            self.flush(self.writable[at]);
        }
        self.writable.drain(..count);
    }

    fn report_eof(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        peer.can_read = false;
        if peer.disconnected {
            return self.report_broken(link);
        }
        if !mem::replace(&mut peer.eof_reported, true) {
            self.bus.handle(Event::Ended(link), self.now);
        }
    }

    fn report_broken(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        peer.can_write = false;
        if !mem::replace(&mut peer.broken_reported, true) {
            self.bus.handle(Event::Broken(link), self.now);
        }
    }

    /// Adds a peer. The core may reuse the index of a link in the turn in which it closes that link, so the old peer
    /// may still be there: its `Action::Close` comes later, and finds its fds closed.
    pub(crate) fn add(&mut self, peer: Peer) {
        if let Some(old) = self.peers.occupant(peer.link) {
            self.close(old);
        }
        self.peers.insert(peer);
    }

    /// Adds a peer of the program whose place this one has taken. Everything is tried once: it may have become ready
    /// meanwhile, and what was read then is not to wait for timers.
    pub(crate) fn take_over(&mut self, mut peer: Peer) {
        let link = peer.link;
        // Stdin or stdout may be a file, which is always ready and cannot be polled.
        let is_lost = peer.register(self.poll.registry()).is_err() && peer.short_means_blocked;
        self.queue.push(Task::Read(link), &mut peer.queued);
        if let Some(stderr) = &mut peer.stderr {
            self.queue.push(Task::ReadStderr(link), &mut stderr.queued);
        }
        if peer.can_write {
            self.writable.push(link);
        }
        self.add(peer);
        if is_lost {
            self.report_broken(link);
        }
    }

    pub(crate) fn close(&mut self, link: Link) {
        if let Some(peer) = self.peers.remove(link) {
            peer.close(self.poll.registry());
        }
    }

    pub(crate) fn close_output(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(link) {
            peer.close_output(self.poll.registry());
        }
    }
}

/// The length of the whole lines among the first `limit` bytes. If there is none, all bytes.
fn whole_lines(bytes: &[u8], limit: usize) -> usize {
    let end = bytes.get(..limit).and_then(|head| memrchr(b'\n', head));
    end.map_or(bytes.len(), |end| end + 1)
}

/// Whether these bytes, which follow a whole line, begin one that is not short. No bytes are the middle of a long one.
fn begins_long_line(bytes: &[u8]) -> bool {
    memchr(b'\n', &bytes[..bytes.len().min(SHORT_LINE_BYTES)]).is_none()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use kernel_core::id::Key;

    use super::*;
    use crate::config;

    #[test]
    fn a_peer_whose_index_is_reused_is_closed_first() {
        let text = r#"{"pools":[{"id":"a","command":"agent","warm":false}]}"#;
        let config = config::parse(text, Path::new("/")).unwrap();
        let mut io = Io::new(Bus::new(&config, [0; 32], Moment::ZERO), Poll::new().unwrap());
        let link = |generation| Link(Key { index: 3, generation });
        let mut ends = Vec::new();
        for generation in [1, 2] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            io.add(Peer::socket(link(generation), ours.into()));
            ends.push(theirs);
        }
        assert_eq!(ends[0].read(&mut [0; 8]).unwrap(), 0, "the old socket is closed");
        // The core closes the old link later, and that must not concern the new one.
        io.close(link(1));
        assert!(io.peers.get_mut(link(2)).is_some());
    }

    #[test]
    fn long_lines_are_told_from_short_ones() {
        let read = |line: usize| [vec![b'x'; line - 1], vec![b'\n']].concat().repeat((64 << 10) / line + 1);
        for (line, is_long) in [(200, false), (2000, false), (2100, true), (4096, true), (200_000, true)] {
            let bytes = read(line);
            let bytes = &bytes[..64 << 10];
            let first = whole_lines(bytes, bytes.len() / FIRST_PART);
            assert_eq!(begins_long_line(&bytes[first..]), is_long, "{line}");
        }
    }

    #[test]
    fn a_read_is_cut_behind_a_line() {
        assert_eq!(whole_lines(b"ab\ncd\nef", 100), 8);
        assert_eq!(whole_lines(b"ab\ncd\nef", 7), 6);
        assert_eq!(whole_lines(b"ab\ncd\nef", 5), 3);
        assert_eq!(whole_lines(b"abcdef\ngh", 4), 9);
        assert_eq!(whole_lines(b"", 4), 0);
    }
}
