//! The ids of requests, as their senders spelled them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A JSON-RPC id as its sender spelled it. Up to 39 bytes, such as a quoted UUID, need no allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Id(Spelling);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Spelling {
    Short { length: u8, bytes: [u8; Id::SHORT_BYTES] },
    Long(Box<[u8]>),
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Id, D::Error> {
        serde_bytes::deserialize::<Vec<u8>, D>(from).map(|spelled| Id::new(&spelled))
    }
}

impl Id {
    /// An id of this length needs no allocation.
    pub(crate) const SHORT_BYTES: usize = 39;

    #[inline]
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Spelling::Short { .. } => 0,
            Spelling::Long(bytes) => bytes.len(),
        }
    }

    pub(crate) fn new(spelled: &[u8]) -> Id {
        if spelled.len() > Id::SHORT_BYTES {
            return Id(Spelling::Long(spelled.into()));
        }
        let mut bytes = [0; Id::SHORT_BYTES];
        bytes[..spelled.len()].copy_from_slice(spelled);
        Id(Spelling::Short { length: spelled.len() as u8, bytes })
    }

    /// The id of a call that the bus made.
    pub(crate) fn none() -> Id {
        Id::new(b"")
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Spelling::Short { length, bytes } => &bytes[..usize::from(*length)],
            Spelling::Long(bytes) => bytes,
        }
    }
}
