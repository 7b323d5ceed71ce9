//! Copies a line with a few spans replaced.

use std::ops::Deref;

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

/// Appends `line` to `out` with these edits, which are in order and do not overlap.
pub(crate) fn splice(out: &mut Vec<u8>, line: &[u8], edits: &[Edit<'_>]) {
    let mut from = 0;
    for edit in edits {
        out.extend_from_slice(&line[from..edit.span.start as usize]);
        out.extend_from_slice(edit.with);
        from = edit.span.end as usize;
    }
    out.extend_from_slice(&line[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

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
