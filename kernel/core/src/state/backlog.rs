//! Lines that wait outside of the send queues: for a worker to be ready, for a session to open, for a client to
//! return.
//!
//! A backlog owns the count of its bytes, and adds each change to the total of the bus. So the total cannot be wrong.
//! The same holds for what is `Kept` of a client, a session, a worker or a pool beside lines.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::id::CallKey;
use crate::limit::UNCOUNTED_BYTES;
use crate::saved::counts_as;
use crate::wire::message::Held;

/// A count of bytes that the bus holds, such as those in all backlogs and what is kept beside lines.
///
/// Giving back more than was added is a fault of the bus. Tests stop there. In production the count is zero then: a
/// count that wrapped around would make the bus refuse everybody until it is restarted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HeldBytes(usize);

impl HeldBytes {
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes);
    }

    #[inline]
    pub(crate) fn give_back(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.0, "{bytes} bytes are given back of {}", self.0);
        self.0 = self.0.saturating_sub(bytes);
    }

    pub(crate) fn get(&self) -> usize {
        self.0
    }
}

/// How much counts for what a peer makes the bus keep: names, handshakes, settings and the like.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    counted: usize,
}

impl Kept {
    /// So many bytes are kept from now on.
    pub(crate) fn set(&mut self, bytes: usize, held: &mut HeldBytes) {
        let counted = counted(bytes);
        held.give_back(self.counted);
        held.add(counted);
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
    /// What counts for each one beside its bytes on the heap.
    const OWN_BYTES: usize;

    /// The bytes that it has on the heap.
    fn heap_bytes(&self) -> usize;

    /// The bytes that count for it.
    fn bytes(&self) -> usize {
        Self::OWN_BYTES + self.heap_bytes()
    }
}

/// A queue of waiting things, in order.
#[derive(Debug, Serialize, Deserialize)]
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
        held.add(item.bytes());
        self.items.push_back(item);
    }

    /// A backlog of these, which counted nowhere.
    pub(crate) fn of(items: VecDeque<T>, held: &mut HeldBytes) -> Self {
        let bytes = count(&items);
        held.add(bytes);
        Backlog { items, bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Takes the first one out.
    pub(crate) fn pop(&mut self, held: &mut HeldBytes) -> Option<T> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        held.give_back(item.bytes());
        Some(item)
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self, held: &mut HeldBytes) -> VecDeque<T> {
        held.give_back(std::mem::take(&mut self.bytes));
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
        held.give_back(bytes);
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

/// Waiting things by a key, those of one key in order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>, T: Deserialize<'de>"))]
pub(crate) struct KeyedBacklog<K, T> {
    items: BTreeMap<(K, u64), T>,
    /// How many were ever added.
    added: u64,
    bytes: usize,
}

impl<K, T> Default for KeyedBacklog<K, T> {
    fn default() -> Self {
        KeyedBacklog { items: BTreeMap::new(), added: 0, bytes: 0 }
    }
}

impl<K: Ord + Clone, T: Waiting> KeyedBacklog<K, T> {
    pub(crate) fn push(&mut self, key: K, item: T, held: &mut HeldBytes) {
        self.bytes += item.bytes();
        held.add(item.bytes());
        self.items.insert((key, self.added), item);
        self.added += 1;
    }

    /// Takes out everything with this key.
    pub(crate) fn take_key(&mut self, key: &K, held: &mut HeldBytes) -> Vec<T> {
        let range = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let found: Vec<_> = self.items.range(range).map(|(key, _)| key.clone()).collect();
        let taken: Vec<T> = found.iter().filter_map(|key| self.items.remove(key)).collect();
        let bytes = taken.iter().map(T::bytes).sum::<usize>();
        self.bytes -= bytes;
        held.give_back(bytes);
        taken
    }

    /// Takes everything out, in the order of the keys.
    pub(crate) fn take(&mut self, held: &mut HeldBytes) -> impl Iterator<Item = T> + use<K, T> {
        held.give_back(std::mem::take(&mut self.bytes));
        std::mem::take(&mut self.items).into_values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        self.items.values().map(T::bytes).sum()
    }
}

fn count<T: Waiting>(items: &VecDeque<T>) -> usize {
    items.iter().map(T::bytes).sum()
}

/// What waits for a worker to be ready, or for a session to be open again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Queued {
    /// The `initialize` of a client. The worker's init result answers it.
    Initialize(CallKey),
    /// A line that already has the worker's ids. `None`: a notification.
    Line(Option<CallKey>, #[serde(with = "serde_bytes")] Box<[u8]>),
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
    const OWN_BYTES: usize = counts_as::<Queued>(32);

    fn heap_bytes(&self) -> usize {
        match self {
            Queued::Initialize(_) => 0,
            Queued::Line(_, line) => line.len(),
        }
    }
}

/// Messages of a worker about sessions that no answer has named yet, by the agent's name.
pub(crate) type Early = KeyedBacklog<Box<[u8]>, Held>;

impl Waiting for Held {
    const OWN_BYTES: usize = counts_as::<Held>(184);

    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

impl Waiting for Box<[u8]> {
    const OWN_BYTES: usize = counts_as::<Box<[u8]>>(16);

    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Queued {
        Queued::Line(None, text.as_bytes().into())
    }

    #[test]
    fn what_has_a_key_is_found_by_it() {
        let (mut backlog, mut held) = (KeyedBacklog::<u64, Queued>::default(), HeldBytes::default());
        for (key, text) in [(2, "a"), (1, "bb"), (2, "ccc")] {
            backlog.push(key, line(text), &mut held);
        }
        assert_eq!(backlog.bytes(), held.get());
        assert!(backlog.take_key(&3, &mut held).is_empty());
        let sizes: Vec<_> = backlog.take_key(&2, &mut held).iter().map(Waiting::bytes).collect();
        assert!(sizes.len() == 2 && sizes[0] < sizes[1], "in order: {sizes:?}");
        assert_eq!((backlog.count_bytes(), held.get()), (backlog.bytes(), backlog.bytes()));
        assert_eq!(backlog.take(&mut held).count(), 1);
        assert!(backlog.is_empty() && held.get() == 0);
    }

    #[test]
    fn every_way_out_gives_the_bytes_back() {
        let (mut one, mut two) = (Backlog::default(), Backlog::default());
        let mut held = HeldBytes::default();
        for text in ["a", "bb", "ccc"] {
            one.push(line(text), &mut held);
        }
        two.push(line("dddd"), &mut held);
        let each = Queued::OWN_BYTES;
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
