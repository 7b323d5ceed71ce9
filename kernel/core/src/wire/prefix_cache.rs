//! How a peer's last lines began, so that the next one that begins alike is read from there.
//!
//! Peers repeat themselves: the lines of one method, of one session, even of one agent's stream, are the same but
//! for their id up to where their content begins. What the scanner knows there follows from the bytes before it
//! alone, so it can be taken over with them.

use std::borrow::Cow;

use super::json::{Reader, Span, is_string_or_number};
use super::scan::{Envelope, Malformed, Place, Point, Scanner};

/// A longer beginning is not remembered.
const HEAD_BYTES: usize = 512;
/// So many lines of a peer are not remembered at all: thousands may say hello, and then nothing for hours.
const FIRST_LINES: u8 = 8;
/// How many ways to begin are remembered: an agent that answers and streams has two.
const PREFIXES: usize = 2;

impl Point {
    /// The value behind the type of a content block, where an update goes on with one.
    fn in_content(self, line: &[u8]) -> Option<Point> {
        const TYPE: &[u8] = br#"{"type":"#;
        let content = line[self.at..].strip_prefix(TYPE).filter(|_| self.place == Place::Update)?;
        let mut reader = Reader::new(line);
        reader.at = line.len() - content.len();
        reader.value(self.place.depth() + 1).ok().filter(|plain| *plain)?;
        reader.at += usize::from(reader.peek() == b',');
        reader.key().ok()?;
        Some(Point { at: reader.at, inside: true, ..self })
    }
}

/// A way to begin a line.
struct Prefix {
    /// Up to the id, or to the point if there is no id.
    before: Vec<u8>,
    /// From the id to the point.
    behind: Vec<u8>,
    point: Point,
    /// Of the last line that began so.
    envelope: Envelope,
}

/// The ways in which a peer began its last lines.
#[derive(Default)]
pub(crate) struct PrefixCache {
    prefixes: Vec<Prefix>,
    /// Which of them was met last.
    latest: usize,
    /// How many of the first lines have come.
    first_lines: u8,
}

impl PrefixCache {
    /// One that remembers from the first line on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn learn_at_once() -> PrefixCache {
        PrefixCache { first_lines: FIRST_LINES, ..PrefixCache::default() }
    }

    /// What `Envelope::scan` says of the line.
    pub(crate) fn scan(&mut self, line: &[u8]) -> Result<Cow<'_, Envelope>, Malformed> {
        for which in [self.latest, self.other()] {
            if self.prefixes.get_mut(which).is_some_and(|prefix| prefix.matches(line)) {
                self.latest = which;
                return Ok(Cow::Borrowed(&self.prefixes[which].envelope));
            }
        }
        let mut scanner = Scanner::new(line)?;
        let walked = scanner.walk();
        let envelope = scanner.outcome(walked)?;
        if self.first_lines < FIRST_LINES {
            self.first_lines += 1;
        } else {
            self.learn(&scanner, &envelope);
        }
        Ok(Cow::Owned(envelope))
    }

    /// Remembers how this line began, in place of the shape that was not met for longer.
    fn learn(&mut self, scanner: &Scanner<'_>, envelope: &Envelope) {
        let known = |point: &Point| point.ascii && point.at <= HEAD_BYTES && point.seen == scanner.seen;
        let Some(point) = scanner.point.filter(known) else { return };
        let point = point.in_content(scanner.reader.line).filter(known).unwrap_or(point);
        if self.prefixes.len() < PREFIXES {
            self.latest = self.prefixes.len();
            self.prefixes.reserve_exact(1);
            self.prefixes.push(Prefix { before: Vec::new(), behind: Vec::new(), point, envelope: *envelope });
        } else {
            self.latest = self.other();
        }
        let head = &scanner.reader.line[..point.at];
        let id = envelope.id.unwrap_or(Span::new(head.len(), head.len()));
        let prefix = &mut self.prefixes[self.latest];
        prefix.before.clear();
        prefix.before.extend_from_slice(&head[..id.start as usize]);
        prefix.behind.clear();
        prefix.behind.extend_from_slice(&head[id.end as usize..]);
        (prefix.point, prefix.envelope) = (point, *envelope);
    }

    fn other(&self) -> usize {
        PREFIXES - 1 - self.latest
    }
}

impl Prefix {
    /// Whether the line begins so and is good, with no other field behind that. Then `envelope` is that of the line.
    fn matches(&mut self, line: &[u8]) -> bool {
        if !line.starts_with(&self.before) || u32::try_from(line.len()).is_err() {
            return false;
        }
        let mut reader = Reader::new(line);
        reader.at = self.before.len();
        if self.envelope.id.is_some() {
            let passed = passes_id(&mut reader);
            let id_end = reader.at;
            if !passed || !line[id_end..].starts_with(&self.behind) {
                return false;
            }
            reader.at += self.behind.len();
            self.envelope.move_behind_id(id_end);
        }
        let Some(end) = self.outer_end(&mut reader) else { return false };
        let outer = match self.point.place {
            Place::Result => &mut self.envelope.outcome,
            _ => &mut self.envelope.params,
        };
        if let Some(outer) = outer {
            outer.end = end as u32;
        }
        true
    }

    /// Walks from the point to the end of the line: where the params or the result end, if all is good and no other
    /// field comes.
    fn outer_end(&self, reader: &mut Reader<'_>) -> Option<usize> {
        let Point { place, inside, .. } = self.point;
        let around = place.depth();
        let depth = around + usize::from(inside);
        reader.value(depth).ok()?;
        // Often that was all.
        if let (2, b"}}") | (3, b"}}}") | (4, b"}}}}") = (depth, &reader.line[reader.at..]) {
            reader.at += depth;
            return reader.end().ok().map(|()| reader.at - 1);
        }
        if inside {
            reader.rest_of_object(around).ok()?;
        }
        outer_end(reader, place)
    }
}

#[inline]
fn passes_id(reader: &mut Reader<'_>) -> bool {
    match reader.peek() {
        b'"' => reader.string().is_ok(),
        first => is_string_or_number(first) && reader.number().is_ok(),
    }
}

/// The same from behind a member of this place.
fn outer_end(reader: &mut Reader<'_>, mut place: Place) -> Option<usize> {
    let mut outer_end = 0;
    loop {
        let next = reader.past_space();
        reader.at += 1;
        match next {
            b'}' => {
                let Some((parent, _)) = place.around() else { break };
                if parent == Place::Top {
                    outer_end = reader.at;
                }
                place = parent;
            }
            b',' => {
                reader.past_space();
                let key = reader.key().ok()?;
                if place.may_be_field(&key) {
                    return None;
                }
                reader.value(place.depth()).ok()?;
            }
            _ => return None,
        }
    }
    reader.end().is_ok().then_some(outer_end)
}

impl Envelope {
    /// The same where the id ends here.
    #[inline]
    fn move_behind_id(&mut self, end: usize) {
        let Some(id) = self.id.filter(|id| id.end != end as u32) else { return };
        let by = (end as u32).wrapping_sub(id.end);
        let fields = [
            &mut self.id,
            &mut self.params,
            &mut self.outcome,
            &mut self.session,
            &mut self.top_session,
            &mut self.pool,
            &mut self.meta_pool,
            &mut self.request,
            &mut self.elicitation,
            &mut self.child,
            &mut self.result_session,
        ];
        for span in fields.into_iter().flatten().chain([&mut self.method]) {
            for place in [&mut span.start, &mut span.end] {
                if *place > id.start {
                    *place = place.wrapping_add(by);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::Lines;
    use super::*;

    const HEADS: [&str; 4] = [
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"m","#,
        r#"{"jsonrpc":"2.0","id":70,"method":"m","params":{"_meta":{"bus/pool":"p"},"sessionId":"s","#,
        r#"{"jsonrpc":"2.0","id":"a-b","result":{"#,
        r#"{"id":1, "error" : null, "jsonrpc":"2.0","result":{"sessionId":"r", "#,
    ];
    const ENDS: [&str; 22] = [
        r#""content":{"type":"text","text":"x"}}}}"#,
        r#""content":{"type":"text","text":"x","sessionId":{"y":[{}]}},"z":[1]}}}"#,
        r#""content":{"type":"text","text":"x"]}}}"#,
        r#""content":{"type":"text",}}}}"#,
        r#""content":{"type":"text","text":"é"}}}}"#,
        r#""content":{"type":"text","text":"é"}}}"#,
        r#""sessionId":"c","x":[1,{}]},"_meta":{"bus/pool":"q"}},"id":7,"sessionId":"top"}"#,
        r#""x":1},"sessionId":"again"}}"#,
        r#""x":1},"update":{}}}"#,
        r#""x":1}},"method":"again"}"#,
        r#" "x" : 1 } } } "#,
        r#" "x" : 1 } } "#,
        r#"}}}"#,
        r#"}}"#,
        r#","x":1}}}"#,
        r#""x":1}}"#,
        r#""x":1}}}}"#,
        r#""ſessionId":1}}"#,
        r#""x":1}},"id":null}"#,
        r#""x":1},"error":{}}"#,
        "",
        "\"x\":\"\u{1}\"}}",
    ];

    fn scan(prefix_cache: &mut PrefixCache, line: &[u8]) -> Result<Envelope, Malformed> {
        prefix_cache.scan(line).map(Cow::into_owned)
    }

    #[test]
    fn a_line_that_begins_like_the_last_is_scanned_as_any_other() {
        let stride = if cfg!(miri) { 7 } else { 1 };
        for head in HEADS {
            for first in ENDS.iter().step_by(stride) {
                for end in ENDS.iter().step_by(stride) {
                    let mut prefix_cache = PrefixCache::learn_at_once();
                    for line in [format!("{head}{first}"), format!("{head}{end}"), format!("{head}{first}")] {
                        assert_eq!(
                            scan(&mut prefix_cache, line.as_bytes()),
                            Envelope::scan(line.as_bytes()),
                            "{line}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn it_is_met_again_whatever_its_id() {
        for head in &HEADS[1..] {
            let mut prefix_cache = PrefixCache::learn_at_once();
            let spelled = Envelope::scan(format!("{head}\"x\":1}}}}").as_bytes()).unwrap().id.unwrap();
            let (before, behind) = (&head[..spelled.start as usize], &head[spelled.end as usize..]);
            let line = |id: &str| format!(r#"{before}{id}{behind}"text":"y"}}}}"#);
            scan(&mut prefix_cache, line("1").as_bytes()).unwrap();
            for id in
                ["2", "12345678901234567890", "-1.5e3", r#""0d7c""#, r#""a longer one, with \" in it""#, "3"]
            {
                let found = prefix_cache.scan(line(id).as_bytes()).unwrap();
                assert!(matches!(found, Cow::Borrowed(_)), "{id}");
                assert_eq!(*found, Envelope::scan(line(id).as_bytes()).unwrap());
            }
            for id in ["null", "01", "1a", "[]", "", "\"é\"", "\"", "tru"] {
                assert_eq!(
                    scan(&mut prefix_cache, line(id).as_bytes()),
                    Envelope::scan(line(id).as_bytes()),
                    "{id}"
                );
            }
        }
    }

    #[test]
    fn the_text_of_an_update_is_all_that_is_read_of_it_again() {
        let mut prefix_cache = PrefixCache::learn_at_once();
        let line = |text: &str| format!(r#"{}"content":{{"type":"text","text":"{text}"}}}}}}}}"#, HEADS[0]);
        for (text, met) in
            [("a", false), ("é", true), (r#"\"{[:"#, true), (r#""},"sessionId":"c","x":{"y":""#, false)]
        {
            let found = prefix_cache.scan(line(text).as_bytes()).unwrap();
            assert_eq!(matches!(found, Cow::Borrowed(_)), met, "{text}");
            assert_eq!(*found, Envelope::scan(line(text).as_bytes()).unwrap());
        }
        assert!(prefix_cache.prefixes[0].before.ends_with(br#""type":"text","text":"#));
    }

    #[test]
    fn of_one_who_says_little_nothing_is_remembered() {
        let mut prefix_cache = PrefixCache::default();
        let line = format!("{}\"x\":1}}}}", HEADS[1]);
        let met = (0..12).map(|_| matches!(prefix_cache.scan(line.as_bytes()), Ok(Cow::Borrowed(_))));
        assert_eq!(met.filter(|met| *met).count(), 12 - usize::from(FIRST_LINES) - 1);
    }

    #[test]
    fn two_ways_to_begin_are_remembered() {
        let mut prefix_cache = PrefixCache::learn_at_once();
        let (update, request) = (HEADS[0].to_owned() + r#""x":1}}}"#, HEADS[1].to_owned() + r#""x":1}}"#);
        let answer = HEADS[2].to_owned() + r#""x":1}}"#;
        for (line, met) in [
            (&update, false),
            (&request, false),
            (&update, true),
            (&request, true),
            (&answer, false),
            (&answer, true),
            (&request, true),
            (&update, false),
        ] {
            let found = prefix_cache.scan(line.as_bytes()).unwrap();
            assert_eq!(matches!(found, Cow::Borrowed(_)), met, "{line}");
        }
    }

    #[test]
    fn a_number_before_the_point_is_not_taken_for_a_longer_one() {
        let mut prefix_cache = PrefixCache::learn_at_once();
        for update in [r#"{"a":1,"b":2}"#, r#"{"a":12,"b":2}"#, r#"{"a":1 ,"b":2}"#, r#"{"a":1}"#] {
            let line = format!(r#"{{"method":"m","params":{{"update":{update}}}}}"#);
            assert_eq!(scan(&mut prefix_cache, line.as_bytes()), Envelope::scan(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn whatever_came_before_makes_no_difference() {
        let mut lines = Lines::new(0x5eed_0003);
        let (mut prefix_cache, mut met) = (PrefixCache::learn_at_once(), 0);
        for _ in 0..if cfg!(miri) { 100 } else { 30_000 } {
            let line = lines.next_line();
            assert_eq!(
                scan(&mut prefix_cache, &line),
                Envelope::scan(&line),
                "{}",
                String::from_utf8_lossy(&line)
            );
            // The same beginning with another id and another end.
            let Some(prefix) = prefix_cache.prefixes.get(prefix_cache.latest) else { continue };
            let id = if prefix.envelope.id.is_some() { lines.scalar() } else { "" };
            let value = lines.next_line();
            let parts = [&*prefix.before, id.as_bytes(), &*prefix.behind, &*value, b"}}"];
            let other = [&parts.concat()[..], [&b""[..], b"}", b"}}"][lines.below(3)]].concat();
            let expected = Envelope::scan(&other);
            let found = prefix_cache.scan(&other);
            met += usize::from(matches!(found, Ok(Cow::Borrowed(_))));
            assert_eq!(found.map(Cow::into_owned), expected, "{}", String::from_utf8_lossy(&other));
            // The same line, but for a few bytes.
            let mut other = other;
            lines.mutate(&mut other);
            assert_eq!(
                scan(&mut prefix_cache, &other),
                Envelope::scan(&other),
                "{}",
                String::from_utf8_lossy(&other)
            );
        }
        assert!(cfg!(miri) || met > 3_000, "only {met} lines began like another");
    }
}
