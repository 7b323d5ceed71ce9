//! The state of the bus as bytes: what `Bus::save` writes and `Bus::restore` reads.
//!
//! The form is MessagePack with the names of all fields, so that another version of the bus skips what it does not
//! know. What there are thousands of and never changes, such as an id, is an array without names, and what is none is
//! left out: both are read by every version. What is only a memory of work done, such as buffers and prefixes of lines,
//! is not saved, and what depends on the random keys of a hash table is made again.

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use crate::api::Moment;

/// What the bytes begin with: what they are, the version of their form, and how many follow.
const KIND: &[u8; 16] = b"stdio-bus state\n";
/// The last of them is written.
const VERSIONS: RangeInclusive<u32> = 1..=1;
const HEADER_BYTES: usize = KIND.len() + size_of::<u32>() + size_of::<u64>();

/// What counts for a value of this type beside what it has on the heap. Counts are saved, and another version goes on
/// with them, so each is a number that stays, whatever the type takes in this version. It has to be near to that.
pub(crate) const fn counts_as<T>(bytes: usize) -> usize {
    assert!(size_of::<T>() <= 2 * bytes);
    bytes
}

/// The value as bytes, for which so much room is made at first.
pub(crate) fn write<T: Serialize>(value: &T, room: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(room + HEADER_BYTES);
    bytes.extend_from_slice(KIND);
    bytes.extend_from_slice(&VERSIONS.end().to_le_bytes());
    bytes.extend_from_slice(&[0; size_of::<u64>()]);
    let mut to = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    value.serialize(&mut to).map_err(|error| format!("the state cannot be written: {error}"))?;
    let length = (bytes.len() - HEADER_BYTES) as u64;
    bytes[HEADER_BYTES - size_of::<u64>()..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let rest = bytes.strip_prefix(KIND).ok_or("this is not the state of a bus")?;
    let (version, rest) = rest.split_first_chunk().ok_or("the state is cut short")?;
    let version = u32::from_le_bytes(*version);
    if !VERSIONS.contains(&version) {
        return Err(unread_version(version, &VERSIONS));
    }
    let (length, rest) = rest.split_first_chunk().ok_or("the state is cut short")?;
    let length = u64::from_le_bytes(*length);
    if length != rest.len() as u64 {
        return Err(format!("the state has {} bytes, and says that it has {length}", rest.len()));
    }
    rmp_serde::from_slice(rest).map_err(|error| format!("the state cannot be read: {error}"))
}

/// Why what a bus has left is not read by a program that reads these versions, and what leads there all the same.
pub fn unread_version(version: u32, read: &RangeInclusive<u32>) -> String {
    let (first, last) = (read.start(), read.end());
    let read = if first == last { format!("version {last}") } else { format!("versions {first} to {last}") };
    format!(
        "the state is of version {version}, and this program reads {read}: \
         use `stdio-bus drain` for each pool, then stop the bus and start this program"
    )
}

/// A time as an array, which is read like one with names.
pub(crate) fn time<S: Serializer>(time: &Moment, to: S) -> Result<S::Ok, S::Error> {
    (time.as_secs(), time.subsec_nanos()).serialize(to)
}

/// Bytes in a ring.
pub(crate) mod ring {
    use std::collections::VecDeque;

    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &VecDeque<u8>, to: S) -> Result<S::Ok, S::Error> {
        let (first, second) = bytes.as_slices();
        if second.is_empty() {
            return to.serialize_bytes(first);
        }
        to.serialize_bytes(&[first, second].concat())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VecDeque<u8>, D::Error> {
        serde_bytes::deserialize::<Vec<u8>, D>(from).map(Into::into)
    }
}

/// Bytes that several share. Each gets its own.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &Arc<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Vec<u8>>, D::Error> {
        serde_bytes::deserialize::<Vec<u8>, D>(from).map(Arc::new)
    }
}

/// An array of any length.
pub(crate) mod array {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer, T: Serialize, const N: usize>(
        array: &[T; N],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        array.as_slice().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
        from: D,
    ) -> Result<[T; N], D::Error> {
        let items = Vec::<T>::deserialize(from)?;
        let count = items.len();
        items.try_into().map_err(|_| D::Error::custom(format!("{count} items where {N} belong")))
    }
}

/// An array of any length on the heap.
pub(crate) mod boxed_array {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer, T: Serialize, const N: usize>(
        array: &[T; N],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        super::array::serialize(array, to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
        from: D,
    ) -> Result<Box<[T; N]>, D::Error> {
        super::array::deserialize(from).map(Box::new)
    }
}

/// Arrays of any length in an array of any length.
pub(crate) mod arrays {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer, const N: usize, const M: usize>(
        arrays: &[[u64; N]; M],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        arrays.as_flattened().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize, const M: usize>(
        from: D,
    ) -> Result<[[u64; N]; M], D::Error> {
        let items = Vec::<u64>::deserialize(from)?;
        let (arrays, rest) = items.as_chunks::<N>();
        let arrays = <[[u64; N]; M]>::try_from(arrays).ok().filter(|_| rest.is_empty());
        arrays.ok_or_else(|| D::Error::custom(format!("{} items where {} belong", items.len(), N * M)))
    }
}
