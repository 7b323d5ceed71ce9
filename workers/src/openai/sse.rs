//! Parses server-sent events from bytes in any chunking.
//!
//! It follows the standard: lines end with LF, CRLF or CR, one leading byte order mark and one space after the colon
//! are dropped, `data` lines are joined, comments and unknown fields are skipped. One exception: an unfinished event
//! at the end of the stream counts, because servers forget the last empty line.

/// A longer event is an error.
const EVENT_BYTES_MAX: usize = 16 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Event {
    /// The `event` field. Empty: it has none.
    pub(super) kind: String,
    pub(super) data: String,
    pub(super) id: Option<String>,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct TooLong;

#[derive(Default)]
pub(super) struct Parser {
    /// The unfinished line.
    line: Vec<u8>,
    /// The `data` lines of the unfinished event, each with a newline after it.
    data: Vec<u8>,
    kind: Vec<u8>,
    id: Option<Vec<u8>>,
    /// A CR has ended the last line, so an LF that follows ends none.
    after_cr: bool,
    /// The first line has ended, and only it can have a byte order mark.
    has_begun: bool,
}

impl Parser {
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.line.extend_from_slice(rest);
                break;
            };
            self.line.extend_from_slice(&rest[..end]);
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.end_line(events);
        }
        if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(())
    }

    /// Ends the stream.
    pub(super) fn finish(mut self, events: &mut Vec<Event>) {
        if !self.line.is_empty() {
            self.end_line(events);
        }
        self.dispatch(events);
    }

    fn end_line(&mut self, events: &mut Vec<Event>) {
        let mut taken = std::mem::take(&mut self.line);
        let mut line = &taken[..];
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch(events);
        } else {
            self.field(line);
        }
        taken.clear();
        self.line = taken;
    }

    fn field(&mut self, line: &[u8]) {
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.kind = value.to_vec(),
            b"id" => self.id = Some(value.to_vec()),
            _ => {}
        }
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        let kind = std::mem::take(&mut self.kind);
        let id = self.id.take().map(|id| String::from_utf8_lossy(&id).into_owned());
        if self.data.pop().is_none() {
            return;
        }
        let data = String::from_utf8_lossy(&self.data).into_owned();
        self.data.clear();
        events.push(Event { kind: String::from_utf8_lossy(&kind).into_owned(), data, id });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for chunk in chunks {
            parser.push(chunk, &mut events).unwrap();
        }
        parser.finish(&mut events);
        events
    }

    fn data(bytes: &[u8]) -> Vec<String> {
        read(&[bytes]).into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn lines_end_with_lf_crlf_or_cr() {
        for end in ["\n", "\r\n", "\r"] {
            let text = ["data: one", "", "data: two", "data: three", "", ""].join(end);
            assert_eq!(data(text.as_bytes()), ["one", "two\nthree"], "{end:?}");
        }
        assert_eq!(data(b"data: one\r\ndata: two\r\rdata: three\n\r"), ["one\ntwo", "three"]);
    }

    #[test]
    fn one_space_after_the_colon_is_dropped_and_needs_not_be_there() {
        assert_eq!(data(b"data:one\n\ndata:  two\n\ndata: [DONE]\n\n"), ["one", " two", "[DONE]"]);
    }

    #[test]
    fn comments_unknown_fields_and_empty_events_are_skipped() {
        assert_eq!(data(b": OPENROUTER PROCESSING\n\nid: 7\nretry: 10\n\nevent: ping\n\n:\n"), [""; 0]);
        assert_eq!(data(b"data\n\ndata:\ndata:\n\n"), ["", "\n"]);
        assert_eq!(data(b"dat: a\nDATA: b\n data: c\ndata: d\n\n"), ["d"]);
    }

    #[test]
    fn the_kind_belongs_to_its_event_alone() {
        let events = read(&[b"event: error\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\n\n"]);
        let kinds: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.data.as_str())).collect();
        assert_eq!(kinds, [("error", "a"), ("", "b"), ("", "c")]);
    }

    #[test]
    fn a_byte_order_mark_is_dropped_at_the_beginning_only() {
        assert_eq!(data(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"), ["a"]);
        assert_eq!(read(&[b"\xef", b"\xbb", b"\xbfdata: a\n\n"])[0].data, "a");
    }

    #[test]
    fn an_unfinished_event_at_the_end_counts() {
        assert_eq!(data(b"data: a\n\ndata: b"), ["a", "b"]);
        assert_eq!(data(b"data: a\n"), ["a"]);
        assert_eq!(data(b""), [""; 0]);
    }

    #[test]
    fn an_event_without_an_end_is_an_error() {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        let chunk = vec![b'x'; 1 << 20];
        let error = (0..20).find_map(|_| parser.push(&chunk, &mut events).err());
        assert_eq!(error, Some(TooLong));
    }

    proptest! {
        #[test]
        fn chunking_does_not_change_the_events(
            text in "(data: ?|event: ?|: ?|id|\u{feff}|é|x|\r|\n|\r\n|\n\n){0,40}",
            cuts in prop::collection::vec(0usize..400, 0..12),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([bytes.len()]);
            let begins = [0].into_iter().chain(cuts.iter().copied());
            let chunks: Vec<_> = begins.zip(ends).map(|(begin, end)| &bytes[begin..end]).collect();
            prop_assert_eq!(read(&chunks), read(&[bytes]));
        }

        #[test]
        fn any_text_comes_back_whatever_the_line_ends(
            lines in prop::collection::vec("[^\r\n]{0,30}", 1..5),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        ) {
            let text: String = lines.iter().map(|line| format!("data: {line}{end}")).collect();
            prop_assert_eq!(data(format!("{text}{end}").as_bytes()), [lines.join("\n")]);
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let bytewise: Vec<_> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&bytewise), read(&[&bytes]));
        }
    }
}
