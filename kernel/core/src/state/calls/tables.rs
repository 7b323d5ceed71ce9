//! How endpoints are found in their table, how a chain of calls is walked, and what is made again after a restore.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use super::{Call, Calls, EndpointEntry, EndpointId, Side};
use crate::id::{CallKey, Slots};

/// An endpoint is in the table for as long as anything refers to it.
impl Index<EndpointId> for Slots<EndpointEntry> {
    type Output = EndpointEntry;

    #[inline]
    fn index(&self, endpoint: EndpointId) -> &EndpointEntry {
        self.get(endpoint.0).expect("what refers to an endpoint ends before it")
    }
}

impl IndexMut<EndpointId> for Slots<EndpointEntry> {
    #[inline]
    fn index_mut(&mut self, endpoint: EndpointId) -> &mut EndpointEntry {
        self.get_mut(endpoint.0).expect("what refers to an endpoint ends before it")
    }
}

impl Calls {
    /// Makes the tables again that depend on the keys of this table's hashes, after they were saved with others.
    pub(crate) fn index(&mut self) {
        for entry in self.endpoints.iter_mut() {
            let indexed = std::mem::take(&mut entry.by_id);
            entry.by_id = indexed
                .into_iter()
                .filter_map(|((_, generation), index)| {
                    let (_, call) = self.entries.at(index)?;
                    Some(((self.hasher.hash_one(call.id.as_bytes()), generation), index))
                })
                .collect();
        }
    }
}

pub(crate) struct Walk<'a> {
    pub(super) calls: &'a Calls,
    pub(super) side: Side,
    pub(super) at: u32,
}

impl<'a> Iterator for Walk<'a> {
    type Item = (CallKey, &'a Call);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, call) = self.calls.entries.at(self.at)?;
        self.at = match self.side {
            Side::Caller => call.caller_neighbours.newer,
            Side::Callee => call.callee_neighbours.newer,
        };
        Some((key, call))
    }
}
