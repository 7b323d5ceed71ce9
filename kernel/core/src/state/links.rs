//! Links: the unfinished input and the waiting output of every peer. All bytes leave through `send`.
//!
//! `send` appends, counts, marks the link for flushing and notes a queue over its limit. Nothing else adds bytes to a
//! queue, so "queued but never flushed" cannot be written. This file knows no JSON, no calls and no sessions.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize, Serializer};

use crate::api::{Action, Moment};
use crate::id::{Arena, Link, WorkerId};
use crate::limit::{
    BULK_BYTES, LINE_BYTES_WHEN_FULL, NAME_BYTES, QUEUE_LOW_PART, QUEUE_WATCHED_LEAST, QUEUE_WATCHED_PART,
    SEND_PIECE_BYTES, SHARED_LINE_BYTES, UNFINISHED_LINE_TIMEOUT, line_patience,
};
use crate::mutants::{Check, enabled};
use crate::state::actions::Actions;
use crate::state::backlog::HeldBytes;
use crate::state::calls::{EndpointId, Written};
use crate::state::metrics::{BySide, Side};
use crate::wire::buffer_pool::BufferPool;
use crate::wire::line_buffer::LineBuffer;
use crate::wire::long_line::{LongBuffer, LongBuffers, LongLine};
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::send_queue::SendQueue;
use crate::wire::splice::{Edit, splice};

/// Why a peer is not read.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Pause {
    /// The queue of this peer is full.
    Full(Link),
    /// It has lines left whose turn comes after others were served.
    Turn,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Peer {
    /// None: a client.
    pub(crate) worker: Option<WorkerId>,
    pub(crate) endpoint: EndpointId,
    /// It will send nothing more.
    pub(crate) ended: bool,
    /// How many lines it was sent.
    pub(crate) lines_out: u64,
    input: Input,
    output: SendQueue,
    /// `Action::Flush` is on its way to the shell.
    flushing: bool,
    /// Why it is not read now, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<Pause>,
    /// The peers that this one pauses.
    pausing: Vec<Link>,
    /// When it last took bytes, or a line was queued while it was not watched yet. So it has its whole time to take
    /// what it is closed for.
    #[serde(serialize_with = "crate::saved::time")]
    pub(crate) last_progress: Moment,
    /// Since when its queue has been over the limit without progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) full_since: Option<Moment>,
    /// Whether a stall alarm is set.
    pub(crate) stall_alarm: bool,
    /// When the unfinished line in `input` began, and when bytes were last added to it.
    #[serde(serialize_with = "crate::saved::time")]
    line_began: Moment,
    #[serde(serialize_with = "crate::saved::time")]
    line_since: Moment,
}

/// What has come from a peer: its unfinished line, and how its last lines began.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Input {
    #[serde(serialize_with = "half_line")]
    pub(crate) lines: LineBuffer,
    #[serde(skip)]
    pub(crate) prefixes: PrefixCache,
}

/// What has come of a line that has not ended.
fn half_line<S: Serializer>(lines: &LineBuffer, to: S) -> Result<S::Ok, S::Error> {
    if enabled(Check::SavedHalfLine) { lines.serialize(to) } else { LineBuffer::default().serialize(to) }
}

/// A line for several queues, and the buffer that they shared before.
pub(crate) struct Shared {
    copy: Option<LongBuffer>,
    before: Option<LongBuffer>,
}

impl Shared {
    /// The line itself, or the copy of it that the queues share.
    pub(crate) fn line<'a>(&'a self, line: &'a [u8]) -> &'a [u8] {
        self.copy.as_ref().map_or(line, |copy| copy.as_slice())
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Links {
    peers: Arena<Link, Peer>,
    actions: Actions,
    #[serde(skip)]
    buffers: BufferPool,
    #[serde(skip)]
    long_buffers: LongBuffers,
    /// The buffer of the long line that is handled now.
    #[serde(skip)]
    lent: Option<LongBuffer>,
    /// Bytes in the inputs and queues of all peers.
    held_bytes: HeldBytes,
    /// The clients whose unfinished input is longer than `LINE_BYTES_WHEN_FULL`, by its length.
    long_inputs: BTreeSet<(usize, Link)>,
    /// What was sent since the start.
    sent: BySide,
    /// How much work that was, in parts of a step.
    work: usize,
    /// Links that may be read again.
    resumed: VecDeque<Link>,
    /// Links with lines left that wait their turn, each once.
    turns: VecDeque<Link>,
    /// The last peer whose queue `send` found over the limit.
    over_limit: Option<Link>,
    /// Peers for which so much waits that they need a stall alarm.
    newly_full: Vec<Link>,
    /// The last peer whose queue `send` found at `BULK_BYTES`.
    bulk: Option<Link>,
    /// `max_output_queue`, or less while the bus holds much.
    pub(crate) queue_limit: usize,
    pub(crate) now: Moment,
}

impl Links {
    pub(crate) fn new(queue_limit: usize) -> Links {
        Links {
            peers: Arena::default(),
            actions: Actions::default(),
            buffers: BufferPool::default(),
            long_buffers: LongBuffers::default(),
            lent: None,
            held_bytes: HeldBytes::default(),
            long_inputs: BTreeSet::new(),
            sent: BySide::default(),
            work: 0,
            resumed: VecDeque::new(),
            turns: VecDeque::new(),
            over_limit: None,
            newly_full: Vec::new(),
            bulk: None,
            queue_limit,
            now: Moment::ZERO,
        }
    }

    /// The link that `open` will return next.
    pub(crate) fn next_link(&self) -> Link {
        self.peers.next_id()
    }

    pub(crate) fn open(&mut self, worker: Option<WorkerId>, endpoint: EndpointId) -> Link {
        self.peers.insert(Peer {
            worker,
            endpoint,
            ended: false,
            lines_out: 0,
            input: Input::default(),
            output: SendQueue::default(),
            flushing: false,
            paused: None,
            pausing: Vec::new(),
            last_progress: self.now,
            full_since: None,
            stall_alarm: false,
            line_began: Moment::ZERO,
            line_since: Moment::ZERO,
        })
    }

    /// Forgets the link, and returns what was not written to it. The peers that it paused are read again.
    pub(crate) fn close(&mut self, link: Link) -> Option<SendQueue> {
        let mut peer = self.peers.remove(link)?;
        self.held_bytes.give_back(peer.input.lines.len() + peer.output.len());
        if self.held_bytes.get() == 0 {
            self.long_buffers.trim();
        }
        self.long_inputs.remove(&(peer.input.lines.len(), link));
        for paused in std::mem::take(&mut peer.pausing) {
            self.resume(paused);
        }
        self.forget_paused(link, peer.paused);
        self.actions.push(Action::Close(link));
        Some(peer.output)
    }

    pub(crate) fn peer(&self, link: Link) -> Option<&Peer> {
        self.peers.get(link)
    }

    /// The worker behind this link, if it is one.
    #[inline]
    pub(crate) fn worker_of(&self, link: Link) -> Option<WorkerId> {
        self.peer(link)?.worker
    }

    /// Whether this peer is connected and may still send.
    pub(crate) fn may_send(&self, link: Link) -> bool {
        self.peer(link).is_some_and(|peer| !peer.ended)
    }

    pub(crate) fn peer_mut(&mut self, link: Link) -> Option<&mut Peer> {
        self.peers.get_mut(link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Link, &Peer)> {
        self.peers.iter()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// `spares_many`: what can wait is not among them, see `Actions`.
    pub(crate) fn next_action(&mut self, spares_many: bool) -> Option<Action> {
        let action = self.actions.next(spares_many)?;
        if let Action::Flush(link) = action
            && let Some(peer) = self.peers.get_mut(link)
        {
            peer.flushing = false;
        }
        Some(action)
    }

    // Output.

    /// Queues a line with these edits for a peer and adds the newline. `None`: the peer is gone.
    pub(crate) fn send(&mut self, to: Link, line: &[u8], edits: &[Edit<'_>]) -> Option<Written> {
        let peer = self.peers.get_mut(to)?;
        if peer.output.len() <= watched(self.queue_limit) {
            peer.last_progress = self.now;
        }
        if peer.output.is_segment_full() {
            peer.output.begin_segment(&mut self.long_buffers);
        }
        if !peer.output.has_buffer() {
            peer.output.give_buffer(self.buffers.take());
        }
        let position = peer.output.end();
        match &self.lent {
            // The memory of a line is somewhat larger than the line, so what waits for a slow peer is copied.
            Some(long) if peer.output.len() < self.queue_limit => {
                peer.output.splice_shared(long, line, edits);
            }
            _ => splice(peer.output.buffer(), line, edits),
        }
        peer.output.end_line();
        let length = (peer.output.end() - position) as usize;
        self.held_bytes.add(length);
        self.sent.add(Side::of(peer.worker), length as u64);
        peer.lines_out += 1;
        self.work += 1 + length / SEND_PIECE_BYTES;
        if !peer.flushing {
            peer.flushing = true;
            self.actions.flush(to);
        }
        if peer.output.len() >= BULK_BYTES {
            self.bulk = Some(to);
        }
        if peer.output.len() > watched(self.queue_limit) {
            if peer.output.len() > self.queue_limit {
                self.over_limit = Some(to);
                peer.full_since.get_or_insert(self.now);
            }
            if !peer.stall_alarm {
                self.newly_full.push(to);
            }
        }
        Some(Written::At { position, length: length as u32 })
    }

    /// The parts of a step that `send` has taken since the last call.
    #[inline]
    pub(crate) fn take_work(&mut self) -> usize {
        self.actions.begin_cause();
        std::mem::take(&mut self.work)
    }

    /// What `send` has queued.
    pub(crate) fn written(&self) -> &BySide {
        &self.sent
    }

    pub(crate) fn take_bulk(&mut self) -> Option<Link> {
        self.bulk.take()
    }

    #[inline]
    pub(crate) fn to_send(&self, link: Link) -> Cow<'_, [u8]> {
        self.peers.get(link).map_or(Cow::Borrowed(&[]), |peer| peer.output.waiting())
    }

    pub(crate) fn pieces_to_send(&self, link: Link) -> impl Iterator<Item = &[u8]> {
        self.peers.get(link).into_iter().flat_map(|peer| peer.output.pieces())
    }

    /// Whether so much waits for this peer that it is watched.
    pub(crate) fn is_watched(&self, link: Link) -> bool {
        self.queued_bytes(link) > watched(self.queue_limit)
    }

    pub(crate) fn queued_bytes(&self, link: Link) -> usize {
        self.peers.get(link).map_or(0, |peer| peer.output.len())
    }

    /// The peer took some bytes. Once its queue has room, the peers that it paused are read again.
    pub(crate) fn sent(&mut self, link: Link, count: usize) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        let before = peer.output.len();
        peer.output.sent(count, &mut self.long_buffers);
        peer.last_progress = self.now;
        let left = peer.output.len();
        self.held_bytes.give_back(before - left);
        if self.held_bytes.get() == 0 {
            self.long_buffers.trim();
        }
        if left == 0 {
            self.buffers.give(peer.output.take_buffer());
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

    // Queued calls.

    /// The line without its newline, if none of it has been written.
    pub(crate) fn unwritten(&self, to: Link, written: Written) -> Option<Cow<'_, [u8]>> {
        written.in_queue(&self.peers.get(to)?.output)
    }

    /// Whether none of the line has been written.
    pub(crate) fn is_unwritten(&self, to: Link, written: Written) -> bool {
        self.peers.get(to).is_some_and(|peer| written.is_in_queue(&peer.output))
    }

    // Input.

    /// Takes the input of a link out while its lines are handled. `put_back` follows.
    pub(crate) fn take_input(&mut self, link: Link) -> Option<Input> {
        let peer = self.peers.get_mut(link)?;
        // A whole `Input` is not replaced: the copies would cost more than the lookup.
        let prefixes = std::mem::take(&mut peer.input.prefixes);
        if peer.input.lines.is_empty() {
            return Some(Input { lines: LineBuffer::reusing(self.buffers.take()), prefixes });
        }
        let lines = std::mem::take(&mut peer.input.lines);
        self.held_bytes.give_back(lines.len());
        self.long_inputs.remove(&(lines.len(), link));
        Some(Input { lines, prefixes })
    }

    pub(crate) fn put_back(&mut self, link: Link, mut input: Input) {
        let Some(peer) = self.peers.get_mut(link) else {
            return self.buffers.give(input.lines.into_buffer());
        };
        peer.input.prefixes = input.prefixes;
        if input.lines.is_empty() {
            self.buffers.give(input.lines.into_buffer());
        } else {
            if input.lines.is_long(self.long_buffers.has_any()) {
                self.buffers.give(input.lines.move_to(self.long_buffers.take()));
            }
            self.held_bytes.add(input.lines.len());
            if input.lines.len() > LINE_BYTES_WHEN_FULL && peer.worker.is_none() && peer.paused.is_none() {
                self.long_inputs.insert((input.lines.len(), link));
            }
            peer.input.lines = input.lines;
        }
    }

    /// Where the next bytes of a long line can be read to.
    pub(crate) fn read_space(&mut self, link: Link) -> Option<&mut [u8]> {
        self.peers.get_mut(link)?.input.lines.space()
    }

    /// So many bytes were read to `read_space`.
    pub(crate) fn add_in_space(&mut self, link: Link, count: usize) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        let before = peer.input.lines.len();
        peer.input.lines.add(count);
        let after = peer.input.lines.len();
        self.held_bytes.add(after - before);
        if self.long_inputs.remove(&(before, link)) {
            self.long_inputs.insert((after, link));
        }
    }

    /// While a long line is handled, queues share its buffer.
    pub(crate) fn lend(&mut self, line: &LongLine) {
        self.lent = Some(line.buffer().clone());
    }

    /// Makes a copy of a line that the queues of so many peers share, if that is less than a copy for each of them.
    /// Send `Shared::line` to them, and call `end_share`.
    pub(crate) fn share(&mut self, peers: usize, line: &[u8]) -> Shared {
        let is_lent = self.lent.as_ref().is_some_and(|lent| lent.as_ptr() == line.as_ptr());
        if peers < 2 || line.len() < SHARED_LINE_BYTES || is_lent {
            return Shared { copy: None, before: None };
        }
        let copy = LongBuffer::new(line.to_vec());
        let before = self.lent.replace(copy.clone());
        Shared { copy: Some(copy), before }
    }

    /// The shared line is queued for everybody.
    pub(crate) fn end_share(&mut self, shared: Shared) {
        if shared.copy.is_some() {
            self.lent = shared.before;
        }
    }

    /// The long line is handled.
    pub(crate) fn take_back(&mut self, line: LongLine) {
        self.lent = None;
        self.long_buffers.give(line.into_buffer());
    }

    /// Whether nothing but white space has come since the last line.
    pub(crate) fn is_input_blank(&self, link: Link) -> bool {
        self.peers.get(link).is_none_or(|peer| peer.input.lines.is_blank())
    }

    /// The peer was just read, and an unfinished line is left. `is_new`: it begins among the bytes that were read.
    /// True: it must be finished in time.
    pub(crate) fn begins_line(&mut self, link: Link, is_new: bool) -> bool {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(link).filter(|peer| !peer.input.lines.is_empty()) else {
            return false;
        };
        if is_new {
            peer.line_began = now;
        }
        peer.line_since = now;
        true
    }

    /// The alarm of an unfinished line is due. Returns by when it must be finished or have grown, if it is unfinished.
    pub(crate) fn unfinished_line_due(&mut self, link: Link) -> Option<Moment> {
        let peer = self.peers.get_mut(link)?;
        // A few spaces are not a line.
        let begun = !peer.input.lines.is_blank() || peer.input.lines.len() > NAME_BYTES;
        if peer.paused.is_some() {
            // The bus does not read this peer, so the delay is its own.
            peer.line_began = self.now;
            peer.line_since = self.now;
        }
        let mut due = peer.line_since + UNFINISHED_LINE_TIMEOUT;
        if enabled(Check::LineDeadline) {
            due = due.min(peer.line_began + line_patience(peer.input.lines.line_bytes()));
        }
        (begun && !peer.ended).then_some(due)
    }

    /// Gives up the longest unfinished line of a client, if one is longer than `LINE_BYTES_WHEN_FULL`. Clients that are
    /// paused may have whole lines left, and are not read anyway.
    pub(crate) fn give_up_longest_line(&mut self) -> bool {
        let given_up = if enabled(Check::LongestLine) {
            self.long_inputs.pop_last()
        } else {
            self.long_inputs.pop_first()
        };
        let Some((length, link)) = given_up else { return false };
        if let Some(peer) = self.peers.get_mut(link).filter(|peer| peer.paused.is_none()) {
            peer.input.lines.give_up();
            self.held_bytes.give_back(length);
        }
        true
    }

    // Pausing.

    pub(crate) fn wants_read(&self, link: Link) -> bool {
        self.peers.get(link).is_some_and(|peer| peer.paused.is_none())
    }

    pub(crate) fn is_paused(&self, link: Link) -> bool {
        self.peers.get(link).is_some_and(|peer| peer.paused.is_some())
    }

    /// The peer whose queue went over the limit since the last call.
    pub(crate) fn take_over_limit(&mut self) -> Option<Link> {
        self.over_limit.take()
    }

    pub(crate) fn next_full(&mut self) -> Option<Link> {
        self.newly_full.pop()
    }

    /// Stops reading `link` until the queue of `on` has room.
    pub(crate) fn pause(&mut self, link: Link, on: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        if peer.paused.is_some() || !enabled(Check::Pause) {
            return;
        }
        peer.paused = Some(Pause::Full(on));
        match self.peers.get_mut(on) {
            Some(full) => full.pausing.push(link),
            None => self.resume(link),
        }
    }

    pub(crate) fn pausing(&self, link: Link) -> &[Link] {
        self.peers.get(link).map_or(&[], |peer| &peer.pausing)
    }

    /// Reads the peers that this one pauses again, although its queue is full.
    pub(crate) fn resume_all(&mut self, link: Link) {
        let Some(peer) = self.peers.get_mut(link) else { return };
        for paused in std::mem::take(&mut peer.pausing) {
            self.resume(paused);
        }
    }

    /// Stops reading `link` until others were served: the lines of it that are left wait their turn.
    pub(crate) fn wait_turn(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(link)
            && peer.paused.is_none()
        {
            peer.paused = Some(Pause::Turn);
            self.turns.push_back(link);
        }
    }

    /// The link whose turn it is, with lines of it that are still to be handled.
    pub(crate) fn next_turn(&mut self) -> Option<Link> {
        let link = self.turns.pop_front()?;
        if let Some(peer) = self.peers.get_mut(link) {
            peer.paused = None;
        }
        Some(link)
    }

    /// A link that is no longer paused. What it sent meanwhile is still to be handled.
    pub(crate) fn next_resumed(&mut self) -> Option<Link> {
        self.resumed.pop_front()
    }

    /// Whether no link is to be read again and no queue has become full.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_unread() && self.newly_full.is_empty()
    }

    /// Whether a link is to be read again.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        !self.resumed.is_empty() || !self.turns.is_empty()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    /// `held_bytes`, counted afresh.
    pub(crate) fn count_held_bytes(&self) -> usize {
        self.peers.iter().map(|(_, peer)| peer.input.lines.len() + peer.output.len()).sum()
    }

    fn resume(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(link)
            && matches!(peer.paused, Some(Pause::Full(_)))
        {
            peer.paused = None;
            self.resumed.push_back(link);
        }
    }

    fn forget_paused(&mut self, link: Link, pause: Option<Pause>) {
        let Some(Pause::Full(on)) = pause else { return };
        if let Some(full) = self.peers.get_mut(on) {
            full.pausing.retain(|paused| *paused != link);
        }
    }
}

/// With how many waiting bytes a peer is watched.
fn watched(queue_limit: usize) -> usize {
    (queue_limit / QUEUE_WATCHED_PART).max(QUEUE_WATCHED_LEAST).min(queue_limit)
}

#[cfg(test)]
mod tests;
