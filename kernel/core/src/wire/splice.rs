//! A line with a few spans replaced.

use std::ops::Deref;

use crate::wire::scan::Span;

/// What stands at `span` of the line gives way to `with`.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    pub(crate) span: Span,
    pub(crate) with: &'a [u8],
}

impl<'a> Cut<'a> {
    pub(crate) fn new(span: Span, with: &'a [u8]) -> Cut<'a> {
        Cut { span, with }
    }
}

/// A handful of cuts in the order of the line.
pub(crate) struct Cuts<'a> {
    cuts: [Cut<'a>; 4],
    count: usize,
}

impl<'a> Cuts<'a> {
    pub(crate) fn none() -> Cuts<'a> {
        Cuts { cuts: [Cut::new(Span::new(0, 0), &[]); 4], count: 0 }
    }

    /// Adds a cut, which overlaps no other, at its place in the order.
    pub(crate) fn add(&mut self, span: Span, with: &'a [u8]) {
        let mut place = self.count;
        while place > 0 && self.cuts[place - 1].span.start > span.start {
            self.cuts[place] = self.cuts[place - 1];
            place -= 1;
        }
        self.cuts[place] = Cut::new(span, with);
        self.count += 1;
    }
}

impl<'a> Deref for Cuts<'a> {
    type Target = [Cut<'a>];

    fn deref(&self) -> &[Cut<'a>] {
        &self.cuts[..self.count]
    }
}

/// Appends `line` with its cuts, which are in order and do not overlap.
pub(crate) fn splice(out: &mut Vec<u8>, line: &[u8], cuts: &[Cut<'_>]) {
    let mut from = 0;
    for cut in cuts {
        out.extend_from_slice(&line[from..cut.span.start as usize]);
        out.extend_from_slice(cut.with);
        from = cut.span.end as usize;
    }
    out.extend_from_slice(&line[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_replace_their_spans_whatever_the_order_they_came_in() {
        let line = br#"{"id":1,"params":{"sessionId":"a"}}"#;
        let (id, session) = (Span { start: 6, end: 7 }, Span { start: 30, end: 33 });
        for swapped in [false, true] {
            let mut cuts = Cuts::none();
            if swapped {
                cuts.add(session, b"\"long\"");
                cuts.add(id, b"42");
            } else {
                cuts.add(id, b"42");
                cuts.add(session, b"\"long\"");
            }
            let mut out = Vec::new();
            splice(&mut out, line, &cuts);
            assert_eq!(out, br#"{"id":42,"params":{"sessionId":"long"}}"#);
        }
    }
}
