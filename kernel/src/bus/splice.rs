//! A line with a few spans replaced; decimal numbers without an allocation.

use super::envelope::Span;

/// What stands at `span` of the line gives way to `with`.
#[derive(Clone, Copy)]
pub(super) struct Cut<'a> {
    pub(super) span: Span,
    pub(super) with: &'a [u8],
}

impl<'a> Cut<'a> {
    pub(super) fn new(span: Span, with: &'a [u8]) -> Cut<'a> {
        Cut { span, with }
    }
}

/// A handful of cuts in the order of the line.
pub(super) struct Cuts<'a> {
    cuts: [Option<Cut<'a>>; 4],
    count: usize,
}

impl<'a> Cuts<'a> {
    pub(super) fn none() -> Cuts<'a> {
        Cuts { cuts: [None; 4], count: 0 }
    }

    /// Adds a cut, which overlaps no other, at its place in the order.
    pub(super) fn add(&mut self, span: Span, with: &'a [u8]) {
        let mut place = self.count;
        while place > 0 && self.cuts[place - 1].is_some_and(|cut| cut.span.start > span.start) {
            self.cuts[place] = self.cuts[place - 1];
            place -= 1;
        }
        self.cuts[place] = Some(Cut::new(span, with));
        self.count += 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Cut<'a>> + '_ {
        self.cuts[..self.count].iter().flatten().copied()
    }
}

/// Appends `line` with its cuts, which are in order and do not overlap.
pub(super) fn splice<'a>(out: &mut Vec<u8>, line: &[u8], cuts: impl Iterator<Item = Cut<'a>>) {
    let mut from = 0;
    for cut in cuts {
        out.extend_from_slice(&line[from..cut.span.start as usize]);
        out.extend_from_slice(cut.with);
        from = cut.span.end as usize;
    }
    out.extend_from_slice(&line[from..]);
}

/// A number as it stands in a line.
pub(super) struct Decimal {
    digits: [u8; 20],
    length: usize,
}

impl Decimal {
    pub(super) fn of(number: u64) -> Decimal {
        let mut buffer = itoa::Buffer::new();
        let spelled = buffer.format(number).as_bytes();
        let mut digits = [0; 20];
        digits[..spelled.len()].copy_from_slice(spelled);
        Decimal { digits, length: spelled.len() }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.digits[..self.length]
    }

    /// The number spelled so, if it is spelled as `of` would.
    pub(super) fn parse(spelled: &[u8]) -> Option<u64> {
        if spelled.is_empty() || spelled.len() > 16 || (spelled[0] == b'0' && spelled.len() > 1) {
            return None;
        }
        spelled.iter().try_fold(0u64, |number, digit| {
            digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
        })
    }
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
            splice(&mut out, line, cuts.iter());
            assert_eq!(out, br#"{"id":42,"params":{"sessionId":"long"}}"#);
        }
    }

    #[test]
    fn numbers_come_back_as_they_went() {
        for number in [0, 1, 9, 10, 1048576, (1 << 53) - 1] {
            let spelled = Decimal::of(number);
            assert_eq!(spelled.as_bytes(), number.to_string().as_bytes());
            assert_eq!(Decimal::parse(spelled.as_bytes()), Some(number));
        }
        for odd in ["", "01", "-1", "1.0", "1e3", " 1", "99999999999999999999"] {
            assert_eq!(Decimal::parse(odd.as_bytes()), None, "{odd}");
        }
    }
}
