//! Names for things that come and go: an index that is used again, and a generation that is not.
//!
//! A `Key` of something that has gone never finds what now lives in its place.

use std::fmt;

use slab::Slab;

/// Where a thing stands in its table, and which of the things that stood there it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub index: u32,
    pub generation: u32,
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.index, self.generation)
    }
}

/// A table whose keys go stale when their entry is removed.
#[derive(Debug)]
pub struct Arena<T> {
    entries: Slab<(u32, T)>,
    /// The generation that the next entry gets. One counter for the whole table is enough: keys differ
    /// as long as it does not wrap within the life of a key.
    next_generation: u32,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena { entries: Slab::new(), next_generation: 1 }
    }
}

impl<T> Arena<T> {
    /// The key that `insert` will give next.
    pub fn next_key(&self) -> Key {
        Key { index: self.entries.vacant_key() as u32, generation: self.next_generation }
    }

    pub fn insert(&mut self, value: T) -> Key {
        let key = self.next_key();
        self.entries.insert((key.generation, value));
        self.next_generation = self.next_generation.wrapping_add(1);
        key
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let (generation, value) = self.entries.get(key.index as usize)?;
        (*generation == key.generation).then_some(value)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(key.index as usize)?;
        (*generation == key.generation).then_some(value)
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        Some(self.entries.remove(key.index as usize).1)
    }

    /// What stands at this index now, whichever generation it is of.
    pub fn at(&self, index: u32) -> Option<(Key, &T)> {
        let (generation, value) = self.entries.get(index as usize)?;
        Some((Key { index, generation: *generation }, value))
    }

    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize).map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// In the order of their index, which is the same for the same history.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries
            .iter()
            .map(|(index, (generation, value))| (Key { index: index as u32, generation: *generation }, value))
    }
}

/// Values that stand beside the entries of another table, under the same keys.
#[derive(Debug)]
pub struct SecondaryMap<T> {
    slots: Vec<Option<(u32, T)>>,
    count: usize,
}

impl<T> Default for SecondaryMap<T> {
    fn default() -> Self {
        SecondaryMap { slots: Vec::new(), count: 0 }
    }
}

impl<T> SecondaryMap<T> {
    pub fn insert(&mut self, key: Key, value: T) {
        let index = key.index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.count += usize::from(self.slots[index].is_none());
        self.slots[index] = Some((key.generation, value));
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let (generation, value) = self.slots.get(key.index as usize)?.as_ref()?;
        (*generation == key.generation).then_some(value)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = self.slots.get_mut(key.index as usize)?.as_mut()?;
        (*generation == key.generation).then_some(value)
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.count -= 1;
        self.slots[key.index as usize].take().map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let (generation, value) = slot.as_ref()?;
            Some((Key { index: index as u32, generation: *generation }, value))
        })
    }
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub Key);
    )*};
}

keys! {
    /// One peer's byte stream: a client's connection, or the pipes of one life of a worker.
    Link;
    /// A place for a process in a pool. It keeps its key over restarts; each life has a link of its own.
    WorkerId;
    /// A session that the bus knows.
    SessionKey;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_find_its_successor() {
        let mut table = Arena::default();
        let first = table.insert("first");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(first.index, second.index);
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
    }
}
