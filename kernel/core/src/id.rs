//! Ids for things that come and go: an index that is reused, and a generation that is not.
//!
//! An id of something that is gone never finds what now has its index. Each table takes its own type of id, so that a
//! session cannot be looked up by the id of a worker.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize, Serializer};

use crate::limit::CALL_INDEX_BITS;

/// The index of a thing in its table, and the generation that tells it from earlier things at the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Key {
    /// The index in the table. It is reused.
    pub index: u32,
    /// Counts all things that the table ever held.
    pub generation: u32,
}

/// As an array: in a state that is saved there are more keys than anything else, and with their names they would
/// be most of it.
impl Serialize for Key {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.index, self.generation).serialize(to)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.index, self.generation)
    }
}

/// A type of id that belongs to one table.
#[doc(hidden)]
pub trait TypedKey: Copy {
    /// The id with this key.
    fn from_key(key: Key) -> Self;
    /// The key of this id.
    fn key(self) -> Key;
}

/// A bare key, for tables that nothing else could be confused with.
impl TypedKey for Key {
    fn from_key(key: Key) -> Key {
        key
    }

    fn key(self) -> Key {
        self
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $visibility:vis $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        $visibility struct $name($visibility Key);

        impl TypedKey for $name {
            #[inline]
            fn from_key(key: Key) -> Self {
                $name(key)
            }

            #[inline]
            fn key(self) -> Key {
                self.0
            }
        }
    )*};
}

ids! {
    /// The byte stream of one peer: the connection of a client, or the pipes of one process of a worker. A shell may
    /// take its key apart, for example to pack it into the token of a poll.
    pub Link;
    /// A place for a process in a pool. It keeps its id over restarts, and each process has its own link.
    pub WorkerId;
    /// A session that the bus knows.
    pub(crate) SessionKey;
    /// A pool that is declared, or whose workers are still leaving.
    pub(crate) PoolId;
    /// A call in flight.
    pub(crate) CallKey;
}

impl Link {
    /// A number that no other link of this bus ever has.
    pub(crate) fn number(self) -> u32 {
        self.0.generation
    }
}

impl SessionKey {
    /// The bounds of all keys, for ranges.
    pub(crate) const FIRST: SessionKey = SessionKey(Key { index: 0, generation: 0 });
    pub(crate) const LAST: SessionKey = SessionKey(Key { index: u32::MAX, generation: u32::MAX });

    /// A number that no other session of this bus ever has.
    pub(crate) fn number(self) -> u32 {
        self.0.generation
    }
}

impl CallKey {
    /// The JSON-RPC id under which the callee sees the call.
    pub(crate) fn wire(self) -> u64 {
        u64::from(self.0.generation) << CALL_INDEX_BITS | u64::from(self.0.index)
    }

    /// A number that is greater for calls that were made later.
    pub(crate) fn order(self) -> u64 {
        u64::from(self.0.generation) << 32 | u64::from(self.0.index)
    }

    /// That id as it stands in a line.
    pub(crate) fn spelled(self, digits: &mut itoa::Buffer) -> &[u8] {
        digits.format(self.wire()).as_bytes()
    }

    /// The call with this wire id. Only the exact spelling that the bus writes is accepted.
    pub(crate) fn from_wire(spelled: &[u8]) -> Option<CallKey> {
        if spelled.is_empty() || spelled.len() > 16 || (spelled[0] == b'0' && spelled.len() > 1) {
            return None;
        }
        let mut wire = 0;
        for byte in spelled {
            if !byte.is_ascii_digit() {
                return None;
            }
            wire = wire * 10 + u64::from(byte - b'0');
        }
        Some(CallKey(Key {
            index: (wire & ((1 << CALL_INDEX_BITS) - 1)) as u32,
            generation: u32::try_from(wire >> CALL_INDEX_BITS).ok()?,
        }))
    }
}

/// Entries by an index. The index that was given back last is used next, so that a table that was saved and restored
/// gives out the same ones.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// The index that is used next.
    next: u32,
    count: usize,
}

#[derive(Debug, Serialize, Deserialize)]
enum Slot<T> {
    /// It is free. This index is used after it.
    Free(u32),
    Used(T),
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { slots: Vec::new(), next: 0, count: 0 }
    }
}

impl<T> Slots<T> {
    /// The index that `insert` will use next.
    #[inline]
    pub(crate) fn next_index(&self) -> u32 {
        self.next
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let index = self.next;
        self.count += 1;
        match self.slots.get_mut(index as usize) {
            Some(slot) => {
                if let Slot::Free(next) = std::mem::replace(slot, Slot::Used(value)) {
                    self.next = next;
                }
            }
            None => {
                self.slots.push(Slot::Used(value));
                self.next = index + 1;
            }
        }
        index
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match self.slots.get(index as usize) {
            Some(Slot::Used(value)) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.slots.get_mut(index as usize) {
            Some(Slot::Used(value)) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        match std::mem::replace(slot, Slot::Free(self.next)) {
            Slot::Used(value) => {
                self.next = index;
                self.count -= 1;
                Some(value)
            }
            free @ Slot::Free(_) => {
                *slot = free;
                None
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        })
    }

    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, &T)> {
        let from = (index as usize).min(self.slots.len());
        let slots = self.slots[from..].iter().zip(from as u32..);
        slots.filter_map(|(slot, index)| match slot {
            Slot::Used(value) => Some((index, value)),
            Slot::Free(_) => None,
        })
    }
}

/// A table whose ids go stale when their entry is removed.
#[doc(hidden)]
#[derive(Debug, Serialize, Deserialize)]
pub struct Arena<K, T> {
    entries: Slots<(u32, T)>,
    /// The generation of the next entry. One counter serves the whole table: ids differ as long as it does not wrap
    /// within the life of an id.
    next_generation: u32,
    id: PhantomData<K>,
}

impl<K, T> Default for Arena<K, T> {
    fn default() -> Self {
        Arena { entries: Slots::default(), next_generation: 1, id: PhantomData }
    }
}

impl<K: TypedKey, T> Arena<K, T> {
    /// The id that `insert` will return next.
    pub fn next_id(&self) -> K {
        K::from_key(Key { index: self.entries.next_index(), generation: self.next_generation })
    }

    /// Adds an entry and returns its id.
    pub fn insert(&mut self, value: T) -> K {
        let id = self.next_id();
        self.entries.insert((id.key().generation, value));
        self.next_generation = self.next_generation.wrapping_add(1);
        id
    }

    /// The entry of this id, if it is still there.
    #[inline]
    pub fn get(&self, id: K) -> Option<&T> {
        let Key { index, generation } = id.key();
        let (current, value) = self.entries.get(index)?;
        (*current == generation).then_some(value)
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, id: K) -> Option<&mut T> {
        let Key { index, generation } = id.key();
        let (current, value) = self.entries.get_mut(index)?;
        (*current == generation).then_some(value)
    }

    /// Removes the entry of this id, if it is still there.
    pub fn remove(&mut self, id: K) -> Option<T> {
        self.get(id)?;
        self.entries.remove(id.key().index).map(|(_, value)| value)
    }

    /// The entry at this index, of whatever generation.
    pub fn at(&self, index: u32) -> Option<(K, &T)> {
        let (generation, value) = self.entries.get(index)?;
        Some((K::from_key(Key { index, generation: *generation }), value))
    }

    /// The same, to change it.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index).map(|(_, value)| value)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries in the order of their index, which is the same for the same history.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.iter_from(0)
    }

    /// The entries from this index on, in the same order.
    pub fn iter_from(&self, index: u32) -> impl Iterator<Item = (K, &T)> {
        let entries = self.entries.iter_from(index);
        entries
            .map(|(index, (generation, value))| (K::from_key(Key { index, generation: *generation }), value))
    }

    /// All entries, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// All ids in that order.
    pub fn ids(&self) -> Vec<K> {
        self.iter().map(|(id, _)| id).collect()
    }
}

/// Values under the ids of another table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SecondaryMap<K, T> {
    slots: Vec<Option<(u32, T)>>,
    count: usize,
    id: PhantomData<K>,
}

impl<K, T> Default for SecondaryMap<K, T> {
    fn default() -> Self {
        SecondaryMap { slots: Vec::new(), count: 0, id: PhantomData }
    }
}

impl<K: TypedKey, T> SecondaryMap<K, T> {
    /// Adds the value of this id.
    pub(crate) fn insert(&mut self, id: K, value: T) {
        let Key { index, generation } = id.key();
        let index = index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.count += usize::from(self.slots[index].is_none());
        self.slots[index] = Some((generation, value));
    }

    /// The value of this id.
    #[inline]
    pub(crate) fn get(&self, id: K) -> Option<&T> {
        let Key { index, generation } = id.key();
        let (current, value) = self.slots.get(index as usize)?.as_ref()?;
        (*current == generation).then_some(value)
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: K) -> Option<&mut T> {
        let Key { index, generation } = id.key();
        let (current, value) = self.slots.get_mut(index as usize)?.as_mut()?;
        (*current == generation).then_some(value)
    }

    /// Removes the value of this id.
    pub(crate) fn remove(&mut self, id: K) -> Option<T> {
        self.get(id)?;
        self.count -= 1;
        self.slots[id.key().index as usize].take().map(|(_, value)| value)
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All values in the order of their index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let (generation, value) = slot.as_ref()?;
            Some((K::from_key(Key { index: index as u32, generation: *generation }), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_does_not_find_the_next_entry_at_its_index() {
        let mut arena: Arena<Link, _> = Arena::default();
        let first = arena.insert("first");
        assert_eq!(arena.remove(first), Some("first"));
        let second = arena.insert("second");
        assert_eq!(first.key().index, second.key().index);
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(second), Some(&"second"));
    }
}
