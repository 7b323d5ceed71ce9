//! How a peer's last update began, so that the next one that begins alike is scanned from there.
//!
//! An agent streams: line after line differs only behind `"update":{"sessionUpdate":"agent_message_chunk",`. What the
//! scanner knows at a comma follows from the bytes before it alone, so it can be taken over with them.

use super::{Envelope, FIELDS, From, Malformed, Place, Scanner, Span, Stop};

/// A longer beginning is not remembered.
const HEAD_BYTES: usize = 512;

/// Where a walk was behind the first comma of an update.
#[derive(Clone, Copy)]
pub(super) struct Comma {
    at: usize,
    seen: u16,
    /// All before it is.
    ascii: bool,
}

/// What follows from the bytes of `head`. Empty: nothing is known yet.
#[derive(Default)]
pub(crate) struct Habit {
    head: Vec<u8>,
    seen: u16,
    plain: u16,
    spans: [Span; FIELDS.len()],
    firsts: [u8; FIELDS.len()],
}

impl Habit {
    /// What `Envelope::scan` says of the line.
    pub(crate) fn scan(&mut self, line: &[u8]) -> Result<Envelope, Malformed> {
        if u32::try_from(line.len()).is_err() {
            return Envelope::scan(line);
        }
        let mut scanner = Scanner::new(line);
        if !self.head.is_empty() && line.starts_with(&self.head) {
            let walked = scanner.go_on(self);
            return scanner.outcome(walked);
        }
        let walked = scanner.walk();
        if walked.is_ok() {
            self.learn(&scanner);
        }
        scanner.outcome(walked)
    }

    fn learn(&mut self, scanner: &Scanner<'_>) {
        // A key that is there again behind the comma has touched what was known of the first.
        let known = |comma: &Comma| comma.ascii && comma.at <= HEAD_BYTES && scanner.fault.is_none();
        let Some(comma) = scanner.comma.filter(known) else { return };
        self.head.clear();
        self.head.extend_from_slice(&scanner.reader.line[..comma.at]);
        self.seen = comma.seen;
        self.plain = scanner.plain & comma.seen;
        self.spans = scanner.spans;
        // What was seen behind the comma is of that line only.
        for (field, first) in scanner.firsts.iter().enumerate() {
            self.firsts[field] = if comma.seen & 1 << field == 0 { 0 } else { *first };
        }
    }
}

impl Scanner<'_> {
    /// Notes the first comma of an update.
    pub(super) fn note_comma(&mut self) {
        self.comma = Some(Comma { at: self.reader.at, seen: self.seen, ascii: !self.reader.beyond_ascii });
    }

    /// The rest of a line that begins like another.
    fn go_on(&mut self, habit: &Habit) -> Result<(), Stop> {
        self.reader.at = habit.head.len();
        self.seen = habit.seen;
        self.plain = habit.plain;
        self.spans = habit.spans;
        self.firsts = habit.firsts;
        self.members(Place::Update, From::Comma)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Field;
    use super::super::oracle::Lines;
    use super::*;

    const HEAD: &str = concat!(
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","#,
        r#""update":{"sessionUpdate":"m","#
    );

    #[test]
    fn a_line_that_begins_like_the_last_is_scanned_as_any_other() {
        let ends = [
            r#""content":{"type":"text","text":"é"}}}}"#,
            r#""sessionId":"c","x":[1,{}]},"_meta":{"bus/pool":"q"}},"id":7,"sessionId":"top"}"#,
            r#""x":1},"sessionId":"again"}}"#,
            r#""x":1},"update":{}}}"#,
            r#""x":1}},"method":"again"}"#,
            r#" "x" : 1 } } } "#,
            r#"}}}"#,
            r#","x":1}}}"#,
            r#""x":1}}"#,
            r#""x":1}}}}"#,
            r#""ſessionId":1}}}"#,
            r#""x":1}},"id":null}"#,
            "",
            "\"x\":\"\u{1}\"}}}",
        ];
        let mut habit = Habit::default();
        for first in ends {
            for end in ends {
                for line in [format!("{HEAD}{first}"), format!("{HEAD}{end}")] {
                    assert_eq!(habit.scan(line.as_bytes()), Envelope::scan(line.as_bytes()), "{line}");
                }
            }
        }
        assert_eq!(habit.head, HEAD.as_bytes());
    }

    #[test]
    fn a_number_before_the_comma_is_not_taken_for_a_longer_one() {
        let mut habit = Habit::default();
        for update in [r#"{"a":1,"b":2}"#, r#"{"a":12,"b":2}"#, r#"{"a":1 ,"b":2}"#, r#"{"a":1}"#] {
            let line = format!(r#"{{"method":"m","params":{{"update":{update}}}}}"#);
            assert_eq!(habit.scan(line.as_bytes()), Envelope::scan(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn whatever_came_before_makes_no_difference() {
        let mut lines = Lines::new(0x5eed_0003);
        let (mut habit, mut alike) = (Habit::default(), 0);
        for _ in 0..if cfg!(miri) { 100 } else { 50_000 } {
            let line = lines.next_line();
            assert_eq!(habit.scan(&line), Envelope::scan(&line), "{}", String::from_utf8_lossy(&line));
            // The same beginning with another end.
            let value = lines.next_line();
            let other = [&*habit.head, br#""x":"#, &*value, b"}}}"].concat();
            alike += usize::from(!habit.head.is_empty() && Envelope::scan(&other).is_ok());
            assert_eq!(habit.scan(&other), Envelope::scan(&other), "{}", String::from_utf8_lossy(&other));
        }
        assert!(cfg!(miri) || alike > 10_000, "only {alike} lines began like another");
    }

    #[test]
    fn what_is_behind_the_comma_of_one_line_is_not_of_the_next() {
        let mut habit = Habit::default();
        let with_id = format!(r#"{HEAD}"x":1}},"requestId":1}},"id":7,"pool":"p"}}"#);
        assert_eq!(habit.scan(with_id.as_bytes()), Envelope::scan(with_id.as_bytes()));
        let without = format!(r#"{HEAD}"x":1}}}}}}"#);
        let envelope = habit.scan(without.as_bytes()).unwrap();
        assert_eq!((envelope.id, envelope.pool, envelope.request), (None, None, None));
        assert_eq!(habit.firsts[Field::Id as usize], 0);
    }
}
