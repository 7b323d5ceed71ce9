//! What has begun and not ended, by its key. It holds a bounded number: the oldest leaves for the newest.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

pub(crate) struct Table<K, V> {
    most: usize,
    /// In the order in which they came.
    entries: BTreeMap<u64, (K, V)>,
    numbers: HashMap<K, u64>,
    next: u64,
}

impl<K: Clone + Eq + Hash, V> Table<K, V> {
    pub(crate) fn new(most: usize) -> Table<K, V> {
        Table { most, entries: BTreeMap::new(), numbers: HashMap::new(), next: 0 }
    }

    /// Returns what has to leave: what had this key, and the oldest one if there is no room.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Vec<(K, V)> {
        let mut gone: Vec<(K, V)> = self.remove(&key).map(|old| (key.clone(), old)).into_iter().collect();
        if self.entries.len() >= self.most
            && let Some((_, (oldest, value))) = self.entries.pop_first()
        {
            self.numbers.remove(&oldest);
            gone.push((oldest, value));
        }
        self.numbers.insert(key.clone(), self.next);
        self.entries.insert(self.next, (key, value));
        self.next += 1;
        gone
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(self.numbers.get(key)?).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(self.numbers.get(key)?).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let number = self.numbers.remove(key)?;
        self.entries.remove(&number).map(|(_, value)| value)
    }

    /// Takes all of them out, the oldest first.
    pub(crate) fn take_all(&mut self) -> Vec<V> {
        self.numbers.clear();
        std::mem::take(&mut self.entries).into_values().map(|(_, value)| value).collect()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_for_the_newest_and_a_key_has_one_value() {
        let mut table = Table::new(2);
        assert_eq!((table.insert("a", 1), table.insert("b", 2)), (vec![], vec![]));
        assert_eq!(table.insert("a", 3), [("a", 1)]);
        assert_eq!(table.insert("c", 4), [("b", 2)], "b is older than the second a");
        assert_eq!((table.get(&"a"), table.get(&"b"), table.len()), (Some(&3), None, 2));
        assert_eq!((table.remove(&"a"), table.remove(&"a")), (Some(3), None));
        assert_eq!((table.take_all(), table.len()), (vec![4], 0));
    }
}
