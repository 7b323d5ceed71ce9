//! The sessions of a client or a worker by their names, which also knows them in the order of their keys.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::id::SessionKey;
use crate::state::session_id::Token;

#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "N: Hash + Eq + Deserialize<'de>"))]
pub(crate) struct SessionNames<N = Token> {
    by_name: HashMap<N, SessionKey>,
    keys: BTreeSet<SessionKey>,
}

impl<N> Default for SessionNames<N> {
    fn default() -> Self {
        SessionNames { by_name: HashMap::new(), keys: BTreeSet::new() }
    }
}

impl<N: Borrow<[u8]> + Hash + Eq> SessionNames<N> {
    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<&SessionKey> {
        self.by_name.get(name)
    }

    pub(crate) fn contains_key(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn insert(&mut self, name: N, key: SessionKey) {
        if let Some(replaced) = self.by_name.insert(name, key) {
            self.keys.remove(&replaced);
        }
        self.keys.insert(key);
    }

    /// Removes this session. False: the name is not there, or another session has it.
    pub(crate) fn remove(&mut self, name: &[u8], key: SessionKey) -> bool {
        let is_it = self.by_name.get(name) == Some(&key);
        if is_it {
            self.by_name.remove(name);
            self.keys.remove(&key);
        }
        is_it
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The sessions in the order of their keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = SessionKey> {
        self.keys.iter().copied()
    }

    pub(crate) fn first(&self) -> Option<SessionKey> {
        self.keys.first().copied()
    }

    /// The first session behind this one.
    pub(crate) fn after(&self, key: Option<SessionKey>) -> Option<SessionKey> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.keys.range((from, Bound::Unbounded)).next().copied()
    }

    /// Removes the first session. Its name is removed as well if it is still the one that the table has.
    pub(crate) fn remove_first(&mut self, name: Option<&[u8]>) {
        if let Some(key) = self.keys.pop_first()
            && let Some(name) = name
            && self.by_name.get(name) == Some(&key)
        {
            self.by_name.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Key;

    #[test]
    fn names_and_keys_stay_together() {
        let key = |index| SessionKey(Key { index, generation: 1 });
        let mut names = SessionNames::<Box<[u8]>>::default();
        for (name, index) in [("b", 1), ("a", 2), ("c", 3), ("a", 4)] {
            names.insert(name.as_bytes().into(), key(index));
        }
        assert_eq!(names.keys().collect::<Vec<_>>(), [key(1), key(3), key(4)]);
        assert_eq!((names.len(), names.get(b"a")), (3, Some(&key(4))));
        assert!(!names.remove(b"a", key(2)) && names.remove(b"a", key(4)));
        assert_eq!((names.after(None), names.after(Some(key(1)))), (Some(key(1)), Some(key(3))));
        names.remove_first(Some(b"b"));
        names.remove_first(None);
        assert_eq!((names.first(), names.get(b"b"), names.is_empty()), (None, None, false));
    }
}
