//! Lines that wait outside of the send queues: for a worker to be ready, for a session to open, for a client to
//! return.
//!
//! A backlog owns the count of its bytes, and adds each change to the total of the bus. So the total cannot be wrong.
//! The same holds for what is `Kept` of a client, a session, a worker or a pool beside lines.

use std::collections::VecDeque;

use crate::id::CallKey;
use crate::limit::UNCOUNTED_BYTES;
use crate::wire::message::Held;

/// The bytes in all backlogs, and what is kept beside lines.
#[derive(Default)]
pub(crate) struct HeldBytes(usize);

impl HeldBytes {
    pub(crate) fn get(&self) -> usize {
        self.0
    }
}

/// How much counts for what a peer makes the bus keep: names, handshakes, settings and the like.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    counted: usize,
}

impl Kept {
    /// So many bytes are kept from now on.
    pub(crate) fn set(&mut self, bytes: usize, held: &mut HeldBytes) {
        let counted = counted(bytes);
        held.0 = held.0 - self.counted + counted;
        self.counted = counted;
    }

    /// The bytes that count. Panics if the owner keeps another number of bytes than it said.
    pub(crate) fn check(&self, bytes: usize) -> usize {
        assert_eq!(self.counted, counted(bytes), "kept bytes are counted");
        self.counted
    }
}

fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

/// Something that waits in a backlog.
pub(crate) trait Waiting: Sized {
    /// The bytes that it has on the heap.
    fn heap_bytes(&self) -> usize;

    /// The bytes that count for it.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.heap_bytes()
    }
}

/// A queue of waiting things, in order.
#[derive(Debug)]
pub(crate) struct Backlog<T> {
    items: VecDeque<T>,
    bytes: usize,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Backlog { items: VecDeque::new(), bytes: 0 }
    }
}

impl<T: Waiting> Backlog<T> {
    pub(crate) fn push(&mut self, item: T, held: &mut HeldBytes) {
        self.bytes += item.bytes();
        held.0 += item.bytes();
        self.items.push_back(item);
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self, held: &mut HeldBytes) -> VecDeque<T> {
        held.0 -= std::mem::take(&mut self.bytes);
        std::mem::take(&mut self.items)
    }

    /// Takes out what matches. The rest stays in its order.
    pub(crate) fn take_where(
        &mut self,
        mut matches: impl FnMut(&T) -> bool,
        held: &mut HeldBytes,
    ) -> VecDeque<T> {
        let (taken, left) = std::mem::take(&mut self.items).into_iter().partition(|item| matches(item));
        self.items = left;
        let bytes = count(&taken);
        self.bytes -= bytes;
        held.0 -= bytes;
        taken
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        count(&self.items)
    }
}

fn count<T: Waiting>(items: &VecDeque<T>) -> usize {
    items.iter().map(T::bytes).sum()
}

/// What waits for a worker to be ready, or for a session to be open again.
#[derive(Debug)]
pub(crate) enum Queued {
    /// The `initialize` of a client. The worker's init result answers it.
    Initialize(CallKey),
    /// A line that already has the worker's ids. `None`: a notification.
    Line(Option<CallKey>, Box<[u8]>),
}

impl Queued {
    /// The call that waits, if it is one.
    pub(crate) fn call(&self) -> Option<CallKey> {
        match self {
            Queued::Initialize(call) => Some(*call),
            Queued::Line(call, _) => *call,
        }
    }
}

impl Waiting for Queued {
    fn heap_bytes(&self) -> usize {
        match self {
            Queued::Initialize(_) => 0,
            Queued::Line(_, line) => line.len(),
        }
    }
}

/// A message of a worker about a session that no answer has named yet.
#[derive(Debug)]
pub(crate) struct Early {
    /// The agent's name of the session.
    pub(crate) name: Box<[u8]>,
    pub(crate) held: Held,
}

impl Waiting for Early {
    fn heap_bytes(&self) -> usize {
        self.name.len() + self.held.len()
    }
}

impl Waiting for Held {
    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

/// A request of an agent that the owner of its session has not answered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) call: CallKey,
    /// The request as the worker sent it.
    pub(crate) held: Held,
}

impl Waiting for Pending {
    fn heap_bytes(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Queued {
        Queued::Line(None, text.as_bytes().into())
    }

    #[test]
    fn every_way_out_gives_the_bytes_back() {
        let (mut one, mut two) = (Backlog::default(), Backlog::default());
        let mut held = HeldBytes::default();
        for text in ["a", "bb", "ccc"] {
            one.push(line(text), &mut held);
        }
        two.push(line("dddd"), &mut held);
        let each = size_of::<Queued>();
        let both = (6 + 3 * each, 4 + each);
        assert_eq!((one.bytes(), two.bytes(), held.get()), (both.0, both.1, both.0 + both.1));
        let taken = one.take_where(|item| item.heap_bytes() == 2, &mut held);
        let left = 4 + 2 * each;
        assert_eq!((taken.len(), one.bytes(), one.count_bytes(), held.get()), (1, left, left, left + both.1));
        assert_eq!(one.take(&mut held).len(), 2);
        assert!(one.is_empty());
        two.take(&mut held);
        assert_eq!(held.get(), 0);
    }

    #[test]
    fn what_is_kept_counts_beyond_the_first_bytes_only() {
        let (mut kept, mut held) = (Kept::default(), HeldBytes::default());
        for (bytes, counted) in [(100, 0), (UNCOUNTED_BYTES + 7, 7), (UNCOUNTED_BYTES + 3, 3), (0, 0)] {
            kept.set(bytes, &mut held);
            assert_eq!((kept.check(bytes), held.get()), (counted, counted));
        }
    }
}
