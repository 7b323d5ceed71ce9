//! Lines that wait outside of the send queues: for a worker to be ready, for a session to open, for a client to
//! return.
//!
//! A backlog owns the count of its bytes, and adds each change to the total of the bus. So the total cannot be wrong.

use std::collections::VecDeque;

use crate::id::CallKey;
use crate::wire::message::Held;

/// The bytes in all backlogs.
#[derive(Default)]
pub(crate) struct HeldBytes(usize);

impl HeldBytes {
    pub(crate) fn get(&self) -> usize {
        self.0
    }
}

/// Something that waits in a backlog.
pub(crate) trait Waiting {
    /// The bytes that count for it.
    fn bytes(&self) -> usize;
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
    fn bytes(&self) -> usize {
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
    fn bytes(&self) -> usize {
        self.held.len()
    }
}

impl Waiting for Held {
    fn bytes(&self) -> usize {
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
    fn bytes(&self) -> usize {
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
        assert_eq!((one.bytes(), two.bytes(), held.get()), (6, 4, 10));
        let taken = one.take_where(|item| item.bytes() == 2, &mut held);
        assert_eq!((taken.len(), one.bytes(), one.count_bytes(), held.get()), (1, 4, 4, 8));
        assert_eq!(one.take(&mut held).len(), 2);
        assert!(one.is_empty());
        two.take(&mut held);
        assert_eq!(held.get(), 0);
    }
}
