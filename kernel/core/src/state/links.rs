//! The post: every link's unfinished line and waiting bytes, and the one door through which bytes leave.
//!
//! `send` appends, counts, marks for flushing and notes when a queue is over its limit; nothing else can add
//! bytes to a queue, so "queued but never flushed" cannot be written. Knows no JSON, sessions or calls.

use std::collections::VecDeque;

use crate::api::{Action, Moment};
use crate::id::{Arena, Link, WorkerId};
use crate::limit::{BULK_BYTES, NAME_BYTES, QUEUE_LOW_PART};
use crate::mutants::{Check, enabled};
use crate::state::calls::{EndpointId, Written};
use crate::wire::buffer_pool::BufferPool;
use crate::wire::json::Span;
use crate::wire::line_buffer::LineBuffer;
use crate::wire::send_queue::SendQueue;
use crate::wire::splice::{Edit, splice};

pub(crate) struct Peer {
    /// None: a client.
    pub(crate) worker: Option<WorkerId>,
    pub(crate) endpoint: EndpointId,
    /// It will send nothing more.
    pub(crate) ended: bool,
    /// Lines that it was told.
    pub(crate) lines_out: u64,
    input: LineBuffer,
    output: SendQueue,
    /// `Action::Flush` is on its way to the shell.
    flushing: bool,
    /// Not read until this peer's queue has room. That peer `holds_up` this one.
    paused_by: Option<Link>,
    pausing: Vec<Link>,
    /// It has taken nothing since then, if there was anything to take.
    pub(crate) last_progress: Moment,
    /// Its queue is over the limit, and it has taken nothing since.
    pub(crate) full_since: Option<Moment>,
    /// An alarm for that is set.
    pub(crate) stall_alarm: bool,
    /// When the unfinished line in `input` was last added to.
    line_since: Moment,
    /// An alarm for that is set.
    line_alarm: bool,
}

pub(crate) struct LinkTable {
    peers: Arena<Peer>,
    actions: VecDeque<Action>,
    buffers: BufferPool,
    /// Bytes in lines and queues here.
    held_bytes: usize,
    /// Lines and bytes that were ever sent.
    lines_out: u64,
    bytes_out: u64,
    /// Links that may be read again.
    resumed: VecDeque<Link>,
    /// The last peer whose queue a `send` found over the limit.
    on_over_limit: Option<Link>,
    /// Peers that need an alarm, lest they take nothing for ever.
    newly_full: Vec<Link>,
    /// The last peer whose queue a `send` found at `BULK_BYTES`.
    bulk: Option<Link>,
    /// `max_output_queue`, or less while much is held.
    pub(crate) queue_limit: usize,
    pub(crate) now: Moment,
}

impl LinkTable {
    pub(crate) fn new(queue_limit: usize) -> LinkTable {
        LinkTable {
            peers: Arena::default(),
            actions: VecDeque::new(),
            buffers: BufferPool::default(),
            held_bytes: 0,
            lines_out: 0,
            bytes_out: 0,
            resumed: VecDeque::new(),
            on_over_limit: None,
            newly_full: Vec::new(),
            bulk: None,
            queue_limit,
            now: Moment::ZERO,
        }
    }

    /// The link that `open` will give next.
    pub(crate) fn next_link(&self) -> Link {
        Link(self.peers.next_key())
    }

    pub(crate) fn open(&mut self, worker: Option<WorkerId>, endpoint: EndpointId) -> Link {
        Link(self.peers.insert(Peer {
            worker,
            endpoint,
            ended: false,
            lines_out: 0,
            input: LineBuffer::default(),
            output: SendQueue::default(),
            flushing: false,
            paused_by: None,
            pausing: Vec::new(),
            last_progress: self.now,
            full_since: None,
            stall_alarm: false,
            line_since: Moment::ZERO,
            line_alarm: false,
        }))
    }

    /// Forgets the link and all that waits for it. Those it held up are read again.
    pub(crate) fn close(&mut self, link: Link) {
        let Some(mut peer) = self.peers.remove(link.0) else { return };
        self.held_bytes -= peer.input.len() + peer.output.len();
        for paused in std::mem::take(&mut peer.pausing) {
            self.resume(paused);
        }
        self.no_longer_waits(link, peer.paused_by);
        self.actions.push_back(Action::Close(link));
    }

    pub(crate) fn peer(&self, link: Link) -> Option<&Peer> {
        self.peers.get(link.0)
    }

    pub(crate) fn peer_mut(&mut self, link: Link) -> Option<&mut Peer> {
        self.peers.get_mut(link.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Link, &Peer)> {
        self.peers.iter().map(|(key, peer)| (Link(key), peer))
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        if let Action::Flush(link) = action
            && let Some(peer) = self.peers.get_mut(link.0)
        {
            peer.flushing = false;
        }
        Some(action)
    }

    // Out.

    /// The one door. The line gets its end here. `None`: there is no such peer any more.
    pub(crate) fn send(&mut self, to: Link, line: &[u8], edits: &[Edit<'_>]) -> Option<Written> {
        let peer = self.peers.get_mut(to.0)?;
        if peer.output.is_empty() {
            peer.last_progress = self.now;
        }
        if !peer.output.has_buffer() {
            peer.output.give_buffer(self.buffers.take());
        }
        let position = peer.output.end();
        let buffer = peer.output.buffer();
        splice(buffer, line, edits);
        buffer.push(b'\n');
        let length = (peer.output.end() - position) as usize;
        self.held_bytes += length;
        self.lines_out += 1;
        self.bytes_out += length as u64;
        peer.lines_out += 1;
        if !peer.flushing {
            peer.flushing = true;
            self.actions.push_back(Action::Flush(to));
        }
        if peer.output.len() >= BULK_BYTES {
            self.bulk = Some(to);
        }
        if peer.output.len() > self.queue_limit {
            self.on_over_limit = Some(to);
            if peer.full_since.is_none() {
                peer.full_since = Some(self.now);
                self.newly_full.push(to);
            }
        }
        Some(Written::At { position, length: length as u32 })
    }

    /// The same with further cuts, wherever they are.
    #[inline]
    pub(crate) fn send_nested(
        &mut self,
        to: Link,
        line: &[u8],
        edits: &[Edit<'_>],
        nested: &[(Span, Box<[u8]>)],
    ) -> Option<Written> {
        if nested.is_empty() {
            return self.send(to, line, edits);
        }
        let nested = nested.iter().map(|(span, with)| Edit::new(*span, with));
        let mut all: Vec<_> = edits.iter().copied().chain(nested).collect();
        all.sort_by_key(|edit| edit.span.start);
        self.send(to, line, &all)
    }

    /// How many lines and bytes `send` has taken.
    pub(crate) fn written(&self) -> (u64, u64) {
        (self.lines_out, self.bytes_out)
    }

    pub(crate) fn take_bulk(&mut self) -> Option<Link> {
        self.bulk.take()
    }

    pub(crate) fn to_send(&self, link: Link) -> &[u8] {
        self.peers.get(link.0).map_or(&[], |peer| peer.output.waiting())
    }

    pub(crate) fn queued_bytes(&self, link: Link) -> usize {
        self.peers.get(link.0).map_or(0, |peer| peer.output.len())
    }

    /// The peer took some bytes. Once its queue has room, those it held up are read again.
    pub(crate) fn sent(&mut self, link: Link, count: usize) {
        let Some(peer) = self.peers.get_mut(link.0) else { return };
        let before = peer.output.len();
        peer.output.sent(count);
        peer.last_progress = self.now;
        let left = peer.output.len();
        self.held_bytes -= before - left;
        if left == 0 {
            let buffer = peer.output.take_buffer();
            self.buffers.give(buffer);
        }
        if left > self.queue_limit / QUEUE_LOW_PART {
            peer.full_since = peer.full_since.map(|_| self.now);
            return;
        }
        peer.full_since = None;
        if !peer.pausing.is_empty() {
            self.resume_all(link);
        }
    }

    /// A line that has not begun to be written, without its end.
    pub(crate) fn unwritten(&self, to: Link, written: Written) -> Option<&[u8]> {
        let Written::At { position, length } = written else { return None };
        let line = self.peers.get(to.0)?.output.unwritten(position, length as usize)?;
        Some(&line[..line.len() - 1])
    }

    // In.

    /// Takes the unfinished line of a link out while its lines are handled; `put_back` follows.
    pub(crate) fn take_input(&mut self, link: Link) -> Option<LineBuffer> {
        let peer = self.peers.get_mut(link.0)?;
        let input = std::mem::take(&mut peer.input);
        self.held_bytes -= input.len();
        if input.is_empty() {
            return Some(LineBuffer::reusing(self.buffers.take()));
        }
        Some(input)
    }

    pub(crate) fn put_back(&mut self, link: Link, input: LineBuffer) {
        if !input.is_empty()
            && let Some(peer) = self.peers.get_mut(link.0)
        {
            self.held_bytes += input.len();
            peer.input = input;
        } else {
            self.buffers.give(input.into_buffer());
        }
    }

    /// Nothing but white space has come since the last line.
    pub(crate) fn is_input_blank(&self, link: Link) -> bool {
        self.peers.get(link.0).is_none_or(|peer| peer.input.is_blank())
    }

    /// The peer was just read. True: it has begun a line, and no alarm is set for the rest of it.
    pub(crate) fn begins_to_wait(&mut self, link: Link) -> bool {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(link.0).filter(|peer| !peer.input.is_empty()) else {
            return false;
        };
        peer.line_since = now;
        !std::mem::replace(&mut peer.line_alarm, true)
    }

    /// The alarm of an unfinished line rings: since when nothing was added to it, if it is still there.
    pub(crate) fn waits_for_line(&mut self, link: Link) -> Option<Moment> {
        let peer = self.peers.get_mut(link.0)?;
        // A few blanks are no line.
        let begun = !peer.input.is_blank() || peer.input.len() > NAME_BYTES;
        peer.line_alarm = begun && !peer.ended;
        if peer.paused_by.is_some() {
            // It is the bus that does not read.
            peer.line_since = self.now;
        }
        peer.line_alarm.then_some(peer.line_since)
    }

    // Who is read.

    pub(crate) fn wants_read(&self, link: Link) -> bool {
        self.peers.get(link.0).is_some_and(|peer| peer.paused_by.is_none())
    }

    pub(crate) fn is_paused(&self, link: Link) -> bool {
        self.peers.get(link.0).is_some_and(|peer| peer.paused_by.is_some())
    }

    /// The peer whose queue went over the limit since this was last asked.
    pub(crate) fn take_over_limit(&mut self) -> Option<Link> {
        self.on_over_limit.take()
    }

    pub(crate) fn next_full(&mut self) -> Option<Link> {
        self.newly_full.pop()
    }

    /// `link` is not read until `on` has room.
    pub(crate) fn pause(&mut self, link: Link, on: Link) {
        let Some(peer) = self.peers.get_mut(link.0) else { return };
        if peer.paused_by.is_some() || !enabled(Check::Pause) {
            return;
        }
        peer.paused_by = Some(on);
        match self.peers.get_mut(on.0) {
            Some(full) => full.pausing.push(link),
            None => self.resume(link),
        }
    }

    pub(crate) fn pausing(&self, link: Link) -> &[Link] {
        self.peers.get(link.0).map_or(&[], |peer| &peer.pausing)
    }

    /// Those that this peer holds up are read again, full as it is.
    pub(crate) fn resume_all(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link.0) else { return };
        for paused in std::mem::take(&mut peer.pausing) {
            self.resume(paused);
        }
    }

    /// A link that was held up and no longer is; what it sent meanwhile is still to be handled.
    pub(crate) fn next_resumed(&mut self) -> Option<Link> {
        self.resumed.pop_front()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The same, counted afresh.
    pub(crate) fn count_held_bytes(&self) -> usize {
        self.peers.iter().map(|(_, peer)| peer.input.len() + peer.output.len()).sum()
    }

    fn resume(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(link.0)
            && peer.paused_by.take().is_some()
        {
            self.resumed.push_back(link);
        }
    }

    fn no_longer_waits(&mut self, link: Link, on: Option<Link>) {
        if let Some(full) = on.and_then(|on| self.peers.get_mut(on.0)) {
            full.pausing.retain(|paused| *paused != link);
        }
    }
}
