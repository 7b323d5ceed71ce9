//! Remembers how a peer's last lines began, so that the next line that begins alike is scanned from there on.
//!
//! Peers repeat themselves: the lines of one method, session or stream are equal up to where their content begins,
//! except for the id. What the scanner knows at that point follows from the bytes before it, so the cache keeps both.
//! A line is cut at its id and at the resume point, the value behind which no routing field is expected:
//!
//! ```text
//! {"jsonrpc":"2.0","id":17,"method":"session/prompt","params":{"sessionId":"s","prompt":[{ .. }]}}
//! |---- before_id -----|id|------------------------- after_id -------------------------|^ resume point
//!
//! {"method":"session/update","params":{"sessionId":"s","update":{ .. "content":{"type":"text","text":"..."}}}}
//! |----------------------------------- before_id: there is no id -----------------------------------|^ resume point
//! ```
//!
//! The cache compares `before_id` and `after_id` with the line; it reads the id and what begins at the resume point.

use std::borrow::Cow;

use crate::wire::field::Container;
use crate::wire::json::{Reader, Span, starts_string_or_number};
use crate::wire::scan::{Envelope, Hint, Malformed, ResumePoint, Scanner};
use crate::wire::splice::Edit;

/// The longest prefix that is learned, in bytes.
const PREFIX_BYTES_MAX: usize = 512;
/// So many lines of a peer are scanned before one is learned: thousands of clients may connect and then stay silent.
const LINES_BEFORE_LEARNING: u8 = 8;
/// How many prefixes are kept: an agent that both answers and streams uses two.
const PREFIXES: usize = 2;

impl ResumePoint {
    /// A later point for an update whose value here is a content block: the value behind the block's type.
    fn in_content_block(self, line: &[u8]) -> Option<ResumePoint> {
        const TYPE: &[u8] = br#"{"type":"#;
        if self.container != Container::Update || !line[self.at..].starts_with(TYPE) {
            return None;
        }
        let mut reader = Reader::new(line);
        reader.at = self.at + TYPE.len();
        let is_plain_string = reader.value(self.container.depth() + 1).ok()?;
        if !is_plain_string {
            return None;
        }
        reader.at += usize::from(reader.peek() == b',');
        reader.key().ok()?;
        Some(ResumePoint { at: reader.at, in_content: true, ..self })
    }
}

/// How a line began.
struct Prefix {
    /// The bytes before the id, or before the resume point if there is no id.
    before_id: Vec<u8>,
    /// The bytes between the id and the resume point.
    after_id: Vec<u8>,
    /// Where the scan resumes. Its position is that of the line which was learned.
    resume_point: ResumePoint,
    /// The envelope of the last line that began so.
    envelope: Envelope,
}

/// How a peer's last lines began.
#[derive(Default)]
pub(crate) struct PrefixCache {
    prefixes: Vec<Prefix>,
    /// The index of the prefix that was matched or learned last.
    latest: usize,
    /// How many lines were scanned, up to `LINES_BEFORE_LEARNING`.
    lines_scanned: u8,
}

impl PrefixCache {
    /// A cache that learns from the first line on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn learn_at_once() -> PrefixCache {
        PrefixCache { lines_scanned: LINES_BEFORE_LEARNING, ..PrefixCache::default() }
    }

    /// Gives the same result as `Envelope::scan`. It is borrowed if the line began like an earlier one.
    pub(crate) fn scan(&mut self, line: &[u8]) -> Result<Cow<'_, Envelope>, Malformed> {
        for index in [self.latest, self.other()] {
            if self.prefixes.get_mut(index).is_some_and(|prefix| prefix.matches(line)) {
                self.latest = index;
                return Ok(Cow::Borrowed(&self.prefixes[index].envelope));
            }
        }
        let mut scanner = Scanner::new(line)?;
        let read = scanner.read();
        let envelope = scanner.finish(read)?;
        if self.lines_scanned < LINES_BEFORE_LEARNING {
            self.lines_scanned += 1;
        } else {
            self.learn(&scanner, &envelope);
        }
        Ok(Cow::Owned(envelope))
    }

    /// Remembers how this line began, in place of the prefix that was matched less recently.
    fn learn(&mut self, scanner: &Scanner<'_>, envelope: &Envelope) {
        let is_usable = |point: &ResumePoint| {
            point.ascii && point.at <= PREFIX_BYTES_MAX && point.seen == scanner.found.seen
        };
        let Some(point) = scanner.resume_point.filter(is_usable) else { return };
        let point = point.in_content_block(scanner.reader.line).filter(is_usable).unwrap_or(point);
        if self.prefixes.len() < PREFIXES {
            self.latest = self.prefixes.len();
            self.prefixes.reserve_exact(1);
            self.prefixes.push(Prefix {
                before_id: Vec::new(),
                after_id: Vec::new(),
                resume_point: point,
                envelope: *envelope,
            });
        } else {
            self.latest = self.other();
        }
        let head = &scanner.reader.line[..point.at];
        let id = envelope.id.unwrap_or(Span::new(head.len(), head.len()));
        let prefix = &mut self.prefixes[self.latest];
        prefix.before_id.clear();
        prefix.before_id.extend_from_slice(&head[..id.start as usize]);
        prefix.after_id.clear();
        prefix.after_id.extend_from_slice(&head[id.end as usize..]);
        prefix.resume_point = point;
        prefix.envelope = *envelope;
        prefix.envelope.is_piece = Hint(envelope.begins_piece(head));
    }

    fn other(&self) -> usize {
        PREFIXES - 1 - self.latest
    }
}

impl Prefix {
    /// Whether the line begins so, is valid, and has no routing field behind the resume point. If so, `envelope` is
    /// now the envelope of this line.
    fn matches(&mut self, line: &[u8]) -> bool {
        if !line.starts_with(&self.before_id) || u32::try_from(line.len()).is_err() {
            return false;
        }
        let mut reader = Reader::new(line);
        reader.at = self.before_id.len();
        if self.envelope.id.is_some() {
            let is_id = read_id(&mut reader);
            let id_end = reader.at;
            if !is_id || !line[id_end..].starts_with(&self.after_id) {
                return false;
            }
            reader.at += self.after_id.len();
            self.envelope.move_id_end(id_end);
        }
        let Some(end) = self.resume(&mut reader) else { return false };
        let outermost = match self.resume_point.container {
            Container::Result => &mut self.envelope.outcome,
            _ => &mut self.envelope.params,
        };
        if let Some(outermost) = outermost {
            outermost.end = end as u32;
        }
        true
    }

    /// Reads from the resume point to the end of the line. Returns where `params` or `result` ends, if the line is
    /// valid and no routing field follows.
    fn resume(&self, reader: &mut Reader<'_>) -> Option<usize> {
        let ResumePoint { container, in_content, .. } = self.resume_point;
        let outer_depth = container.depth();
        let depth = outer_depth + usize::from(in_content);
        reader.value(depth).ok()?;
        // Often only the closing braces are left, which are compared at once.
        if let (2, b"}}") | (3, b"}}}") | (4, b"}}}}") = (depth, &reader.line[reader.at..]) {
            reader.at += depth;
            return reader.end().ok().map(|()| reader.at - 1);
        }
        if in_content {
            reader.rest_of_object(outer_depth).ok()?;
        }
        close_objects(reader, container)
    }
}

/// Reads an id. False: the value is something else, or broken.
#[inline]
fn read_id(reader: &mut Reader<'_>) -> bool {
    match reader.peek() {
        b'"' => reader.string().is_ok(),
        first => starts_string_or_number(first) && reader.number().is_ok(),
    }
}

/// Reads from behind a member of this container to the end of the line, closing one object after the other. Returns
/// where `params` or `result` ends, or `None` for a broken line and for a routing field.
fn close_objects(reader: &mut Reader<'_>, mut container: Container) -> Option<usize> {
    let mut outermost_end = 0;
    loop {
        let next = reader.skip_space();
        reader.at += 1;
        match next {
            b'}' => {
                let Some((parent, _)) = container.parent() else { break };
                if parent == Container::Top {
                    outermost_end = reader.at;
                }
                container = parent;
            }
            b',' => {
                reader.skip_space();
                let key = reader.key().ok()?;
                if container.may_be_field(&key) {
                    return None;
                }
                reader.value(container.depth()).ok()?;
            }
            _ => return None,
        }
    }
    reader.end().is_ok().then_some(outermost_end)
}

impl Envelope {
    /// Whether every line with this envelope that begins so is a piece of what an agent says. Nearly all agents begin
    /// their updates with the kind.
    fn begins_piece(&self, head: &[u8]) -> bool {
        const KIND: &[u8] = br#","update":{"sessionUpdate":"agent_"#;
        let behind = self.session.and_then(|span| head.get(span.end as usize..));
        behind.is_some_and(|behind| behind.starts_with(KIND))
    }

    /// Moves every position behind the id, for a line that differs only in an id which ends at `id_end`.
    #[inline]
    fn move_id_end(&mut self, id_end: usize) {
        let Some(old_id) = self.id else { return };
        if old_id.end == id_end as u32 {
            return;
        }
        self.move_behind(old_id.start, (id_end as u32).wrapping_sub(old_id.end));
    }

    /// The envelope of the line with these edits, which are in order, and each of which is a field or in none.
    pub(crate) fn edited(mut self, edits: &[Edit<'_>]) -> Envelope {
        for edit in edits.iter().rev() {
            let shift = (edit.with.len() as u32).wrapping_sub(edit.span.length() as u32);
            self.move_behind(edit.span.start, shift);
        }
        self
    }

    /// Moves every position behind this one.
    #[inline]
    fn move_behind(&mut self, start: u32, shift: u32) {
        // Without `..`, so that a new field cannot be forgotten.
        let Envelope {
            kind: _,
            id,
            method,
            params,
            outcome,
            session,
            top_session,
            pool,
            meta_pool,
            request,
            elicitation,
            child,
            result_session,
            is_piece: _,
        } = self;
        let optional = [
            id,
            params,
            outcome,
            session,
            top_session,
            pool,
            meta_pool,
            request,
            elicitation,
            child,
            result_session,
        ];
        for span in optional.into_iter().flatten().chain([method]) {
            for position in [&mut span.start, &mut span.end] {
                if *position > start {
                    *position = position.wrapping_add(shift);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::oracle::LineGenerator;
    use crate::wire::splice::{Edits, splice};

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

    /// Scans the line with and without the cache. True: the cache knew its beginning.
    fn scan(cache: &mut PrefixCache, line: &[u8]) -> bool {
        let scanned = cache.scan(line);
        let is_hit = matches!(scanned, Ok(Cow::Borrowed(_)));
        assert_eq!(scanned.map(Cow::into_owned), Envelope::scan(line), "{}", String::from_utf8_lossy(line));
        is_hit
    }

    #[test]
    fn a_line_that_begins_like_the_last_is_scanned_like_any_other() {
        let stride = if cfg!(miri) { 7 } else { 1 };
        for head in HEADS {
            for first in ENDS.iter().step_by(stride) {
                for end in ENDS.iter().step_by(stride) {
                    let mut cache = PrefixCache::learn_at_once();
                    for line in [format!("{head}{first}"), format!("{head}{end}"), format!("{head}{first}")] {
                        scan(&mut cache, line.as_bytes());
                    }
                }
            }
        }
    }

    #[test]
    fn a_prefix_matches_with_any_id() {
        for head in &HEADS[1..] {
            let mut cache = PrefixCache::learn_at_once();
            let id = Envelope::scan(format!("{head}\"x\":1}}}}").as_bytes()).unwrap().id.unwrap();
            let (before, after) = (&head[..id.start as usize], &head[id.end as usize..]);
            let line = |id: &str| format!(r#"{before}{id}{after}"text":"y"}}}}"#);
            scan(&mut cache, line("1").as_bytes());
            for id in
                ["2", "12345678901234567890", "-1.5e3", r#""0d7c""#, r#""a longer one, with \" in it""#, "3"]
            {
                assert!(scan(&mut cache, line(id).as_bytes()), "{id}");
            }
            for id in ["null", "01", "1a", "[]", "", "\"é\"", "\"", "tru"] {
                scan(&mut cache, line(id).as_bytes());
            }
        }
    }

    #[test]
    fn only_the_text_of_a_repeated_update_is_read() {
        let mut cache = PrefixCache::learn_at_once();
        let line = |text: &str| format!(r#"{}"content":{{"type":"text","text":"{text}"}}}}}}}}"#, HEADS[0]);
        for (text, is_hit) in
            [("a", false), ("é", true), (r#"\"{[:"#, true), (r#""},"sessionId":"c","x":{"y":""#, false)]
        {
            assert_eq!(scan(&mut cache, line(text).as_bytes()), is_hit, "{text}");
        }
        assert!(cache.prefixes[0].before_id.ends_with(br#""type":"text","text":"#));
    }

    #[test]
    fn what_an_agent_says_is_told_from_what_changes_its_session() {
        let head = r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"#;
        for (update, is_piece) in [
            (r#""agent_message_chunk","content":{"type":"text","text":"a"}"#, true),
            (r#""agent_thought_chunk","content":{"type":"text","text":"a"}"#, true),
            (r#""session_info_update","title":"a","x":1"#, false),
            (r#""current_mode_update","currentModeId":"a","x":1"#, false),
        ] {
            let mut cache = PrefixCache::learn_at_once();
            let line = format!("{head}{update}}}}}}}");
            assert!(!cache.scan(line.as_bytes()).unwrap().is_piece.0, "it was scanned in full");
            assert_eq!(cache.scan(line.as_bytes()).unwrap().is_piece.0, is_piece, "{line}");
        }
        // Where the kind is not a part of what is compared, nothing is known.
        let mut cache = PrefixCache::learn_at_once();
        for kind in ["agent_message_chunk", "session_info_update", "agent_message_chunk"] {
            assert!(!cache.scan(format!("{head}\"{kind}\"}}}}}}").as_bytes()).unwrap().is_piece.0);
        }
    }

    #[test]
    fn nothing_is_learned_from_a_peers_first_lines() {
        let mut cache = PrefixCache::default();
        let line = format!("{}\"x\":1}}}}", HEADS[1]);
        let hits = (0..12).filter(|_| scan(&mut cache, line.as_bytes())).count();
        assert_eq!(hits, 12 - usize::from(LINES_BEFORE_LEARNING) - 1);
    }

    #[test]
    fn two_prefixes_are_kept() {
        let mut cache = PrefixCache::learn_at_once();
        let update = HEADS[0].to_owned() + r#""x":1}}}"#;
        let request = HEADS[1].to_owned() + r#""x":1}}"#;
        let answer = HEADS[2].to_owned() + r#""x":1}}"#;
        for (line, is_hit) in [
            (&update, false),
            (&request, false),
            (&update, true),
            (&request, true),
            (&answer, false),
            (&answer, true),
            (&request, true),
            (&update, false),
        ] {
            assert_eq!(scan(&mut cache, line.as_bytes()), is_hit, "{line}");
        }
    }

    #[test]
    fn a_number_before_the_resume_point_is_compared_whole() {
        let mut cache = PrefixCache::learn_at_once();
        for update in [r#"{"a":1,"b":2}"#, r#"{"a":12,"b":2}"#, r#"{"a":1 ,"b":2}"#, r#"{"a":1}"#] {
            scan(&mut cache, format!(r#"{{"method":"m","params":{{"update":{update}}}}}"#).as_bytes());
        }
    }

    #[test]
    fn the_lines_before_make_no_difference() {
        let mut lines = LineGenerator::new(0x5eed_0003);
        let mut cache = PrefixCache::learn_at_once();
        let mut hits = 0;
        for _ in 0..if cfg!(miri) { 100 } else { 30_000 } {
            scan(&mut cache, &lines.next_line());
            // The same prefix with another id and another end.
            let Some(prefix) = cache.prefixes.get(cache.latest) else { continue };
            let id = if prefix.envelope.id.is_some() { lines.scalar() } else { "" };
            let value = lines.next_line();
            let end = [&b"}}"[..], b"}}}", b"}}}}"][lines.below(3)];
            let mut other = [&prefix.before_id, id.as_bytes(), &prefix.after_id, &value, end].concat();
            hits += usize::from(scan(&mut cache, &other));
            // The same line with a few bytes changed.
            lines.mutate(&mut other);
            scan(&mut cache, &other);
        }
        assert!(cfg!(miri) || hits > 3_000, "only {hits} lines began like another");
    }

    #[test]
    fn an_edited_line_has_the_edited_envelope() {
        let mut lines = LineGenerator::new(0x5eed_0005);
        for _ in 0..if cfg!(miri) { 100 } else { 5_000 } {
            let line = lines.next_line();
            let Ok(envelope) = Envelope::scan(&line) else { continue };
            for with in [&br#""x""#[..], br#""a much longer name than any""#] {
                let mut edits = Edits::none();
                edits.add_at(envelope.session, with);
                edits.add_at(envelope.top_session, with);
                edits.add_at(envelope.id, b"123456");
                let mut out = Vec::new();
                splice(&mut out, &line, &edits);
                assert_eq!(
                    Envelope::scan(&out),
                    Ok(envelope.edited(&edits)),
                    "{}",
                    String::from_utf8_lossy(&line)
                );
            }
        }
    }
}
