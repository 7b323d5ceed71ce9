//! Copies a line with a few spans replaced.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use crate::wire::scan::Span;

/// The replacement of one span.
#[derive(Clone, Copy)]
pub(crate) struct Edit<'a> {
    /// The bytes of the line that are replaced.
    pub(crate) span: Span,
    /// The new bytes.
    pub(crate) with: &'a [u8],
}

impl<'a> Edit<'a> {
    pub(crate) fn new(span: Span, with: &'a [u8]) -> Edit<'a> {
        Edit { span, with }
    }
}

/// Up to four edits, in the order of the line.
pub(crate) struct Edits<'a> {
    edits: [Edit<'a>; 4],
    count: usize,
}

impl<'a> Edits<'a> {
    pub(crate) fn none() -> Edits<'a> {
        Edits { edits: [Edit::new(Span::new(0, 0), &[]); 4], count: 0 }
    }

    /// Adds an edit in order. It overlaps no other edit.
    pub(crate) fn add(&mut self, span: Span, with: &'a [u8]) {
        let mut index = self.count;
        while index > 0 && self.edits[index - 1].span.start > span.start {
            self.edits[index] = self.edits[index - 1];
            index -= 1;
        }
        self.edits[index] = Edit::new(span, with);
        self.count += 1;
    }

    /// Adds an edit, if the line has this field.
    pub(crate) fn add_at(&mut self, span: Option<Span>, with: &'a [u8]) {
        if let Some(span) = span {
            self.add(span, with);
        }
    }
}

impl<'a> Deref for Edits<'a> {
    type Target = [Edit<'a>];

    fn deref(&self) -> &[Edit<'a>] {
        &self.edits[..self.count]
    }
}

/// These edits, and further ones in any order.
#[inline]
pub(crate) fn with_nested<'a>(
    edits: &'a [Edit<'a>],
    nested: &'a [(Span, impl Deref<Target = [u8]>)],
) -> Cow<'a, [Edit<'a>]> {
    if nested.is_empty() {
        return Cow::Borrowed(edits);
    }
    let nested = nested.iter().map(|(span, with)| Edit::new(*span, with));
    let mut all: Vec<_> = edits.iter().copied().chain(nested).collect();
    all.sort_by_key(|edit| edit.span.start);
    Cow::Owned(all)
}

/// Appends `line` to `out` with these edits, which are in order and do not overlap.
#[inline]
pub(crate) fn splice(out: &mut Vec<u8>, line: &[u8], edits: &[Edit<'_>]) {
    splice_from(0, out, line, edits);
}

/// The same without the first `from` bytes of the line, behind which all edits are.
#[inline]
pub(crate) fn splice_from(mut from: usize, out: &mut Vec<u8>, line: &[u8], edits: &[Edit<'_>]) {
    for edit in edits {
        out.extend_from_slice(&line[from..edit.span.start as usize]);
        out.extend_from_slice(edit.with);
        from = edit.span.end as usize;
    }
    out.extend_from_slice(&line[from..]);
}

/// The longest part of a line that no edit touches, and how many edits are before it.
pub(crate) fn longest_unedited(line: &[u8], edits: &[Edit<'_>]) -> (Range<usize>, usize) {
    let starts = std::iter::once(0).chain(edits.iter().map(|edit| edit.span.end as usize));
    let ends = edits.iter().map(|edit| edit.span.start as usize).chain([line.len()]);
    let parts = starts.zip(ends).map(|(start, end)| start..end).zip(0..);
    parts.max_by_key(|(part, _)| part.len()).unwrap_or((0..0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unedited_part_is_between_any_two_edits() {
        let line = b"aa1bbbb2c3ddddd";
        let at = |start, end| Edit::new(Span::new(start, end), b"x");
        assert_eq!(longest_unedited(line, &[]), (0..15, 0));
        assert_eq!(longest_unedited(line, &[at(2, 3), at(7, 8), at(9, 10)]), (10..15, 3));
        assert_eq!(longest_unedited(line, &[at(2, 3), at(7, 8), at(9, 15)]), (3..7, 1));
        assert_eq!(longest_unedited(line, &[at(12, 15)]), (0..12, 0));
        for edits in [vec![], vec![at(0, 1)], vec![at(2, 3), at(7, 8)], vec![at(14, 15)]] {
            let (part, before) = longest_unedited(line, &edits);
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            splice(&mut whole, line, &edits);
            splice(&mut pieces, &line[..part.start], &edits[..before]);
            pieces.extend_from_slice(&line[part.clone()]);
            splice_from(part.end, &mut pieces, line, &edits[before..]);
            assert_eq!(pieces, whole);
        }
    }

    #[test]
    fn edits_may_be_added_in_any_order() {
        let line = br#"{"id":1,"params":{"sessionId":"a"}}"#;
        let (id, session) = (Span { start: 6, end: 7 }, Span { start: 30, end: 33 });
        for swapped in [false, true] {
            let mut edits = Edits::none();
            if swapped {
                edits.add(session, b"\"long\"");
                edits.add(id, b"42");
            } else {
                edits.add(id, b"42");
                edits.add(session, b"\"long\"");
            }
            let mut out = Vec::new();
            splice(&mut out, line, &edits);
            assert_eq!(out, br#"{"id":42,"params":{"sessionId":"long"}}"#);
        }
    }
}
