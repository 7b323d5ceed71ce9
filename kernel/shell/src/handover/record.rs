//! The form of the bytes that a bus leaves: what they are, their version, and one record for each part.
//!
//! A record that the reader does not know is skipped. All lengths are checked before anything is read.

use std::ops::{Range, RangeInclusive};

use kernel_core::upgrade::unread_version;

/// What the bytes begin with.
const KIND: &[u8; 16] = b"stdio-bus moves\n";
/// The first version had no copies of logs: all was in the state of the core.
const VERSIONS: RangeInclusive<u32> = 1..=2;
const RECORD_HEADER_BYTES: usize = size_of::<u32>() + size_of::<u64>();

/// What is in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Shell = 1,
    Core = 2,
    /// The copies of logs that the state of the core refers to.
    Logs = 3,
}

/// What the bytes begin with, and for each record what it begins with. The bytes of the record follow.
pub(crate) fn head() -> Vec<u8> {
    [KIND.as_slice(), &VERSIONS.end().to_le_bytes()].concat()
}

pub(crate) fn record_head(part: Part, length: usize) -> Vec<u8> {
    [(part as u32).to_le_bytes().as_slice(), &(length as u64).to_le_bytes()].concat()
}

/// The bytes of each part.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    records: Vec<(u32, Range<usize>)>,
}

impl<'a> Records<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Records<'a>, String> {
        let rest = bytes.strip_prefix(KIND).ok_or("this is not what a bus leaves")?;
        let (version, mut rest) = rest.split_first_chunk().ok_or("it is cut short")?;
        let version = u32::from_le_bytes(*version);
        if !VERSIONS.contains(&version) {
            return Err(unread_version(version, &VERSIONS));
        }
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (head, others) = rest.split_at_checked(RECORD_HEADER_BYTES).ok_or("it is cut short")?;
            let (part, length) = head.split_at(size_of::<u32>());
            let part = u32::from_le_bytes(part.try_into().map_err(|_| "it is cut short")?);
            let length = u64::from_le_bytes(length.try_into().map_err(|_| "it is cut short")?);
            let length = usize::try_from(length).map_err(|_| "a record is too long")?;
            let (record, others) = others.split_at_checked(length).ok_or("it is cut short")?;
            let end = bytes.len() - others.len();
            records.push((part, end - record.len()..end));
            rest = others;
        }
        Ok(Records { bytes, records })
    }

    /// Where the bytes of a part are.
    pub(crate) fn range(&self, part: Part) -> Option<Range<usize>> {
        self.records.iter().find(|(known, _)| *known == part as u32).map(|(_, range)| range.clone())
    }

    pub(crate) fn part(&self, part: Part) -> Result<&'a [u8], String> {
        let range =
            self.range(part).ok_or_else(|| format!("it has no record of the {part:?}").to_lowercase())?;
        Ok(&self.bytes[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_records() -> Vec<u8> {
        let unknown = [7_u32.to_le_bytes().as_slice(), &3_u64.to_le_bytes(), b"new"].concat();
        [head(), record_head(Part::Shell, 2), b"sh".to_vec(), unknown, record_head(Part::Core, 0)].concat()
    }

    #[test]
    fn known_records_are_found_and_others_skipped() {
        let bytes = two_records();
        let records = Records::read(&bytes).unwrap();
        assert_eq!(records.part(Part::Shell).unwrap(), b"sh");
        assert_eq!(records.part(Part::Core).unwrap(), b"");
        let bytes = head();
        assert_eq!(
            Records::read(&bytes).unwrap().part(Part::Core).unwrap_err(),
            "it has no record of the core"
        );
    }

    #[test]
    fn the_first_version_has_no_logs_and_is_read() {
        let mut bytes = two_records();
        bytes[KIND.len()] = 1;
        let records = Records::read(&bytes).unwrap();
        assert_eq!(records.part(Part::Shell).unwrap(), b"sh");
        assert_eq!(records.range(Part::Logs), None);
    }

    #[test]
    fn whatever_else_it_is_the_reason_is_told() {
        let bytes = two_records();
        // The ends of records are not errors: what is missing is noticed where it is looked for.
        let ends = [20, 34, 49, bytes.len()];
        for end in (0..bytes.len()).filter(|end| !ends.contains(end)) {
            let why = Records::read(&bytes[..end]).unwrap_err();
            assert!(
                why == "it is cut short" || end < 16 && why == "this is not what a bus leaves",
                "{end}: {why}"
            );
        }
        let mut newer = bytes.clone();
        newer[16] = 3;
        let why = Records::read(&newer).unwrap_err();
        assert!(
            why.starts_with("the state is of version 3, and this program reads versions 1 to 2: "),
            "{why}"
        );
        let mut long = bytes;
        long[24..32].fill(0xff);
        assert_eq!(Records::read(&long).unwrap_err(), "it is cut short");
    }
}
