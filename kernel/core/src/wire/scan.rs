//! Finds the routing fields of one line: its id, method, session and pool.
//!
//! One pass validates the JSON as strictly as `serde_json`'s `RawValue` and finds the spans, without allocating.
//! An accepted line means the same to every decoder: in the objects that routing reads, no routing key occurs twice
//! and none has another spelling. The scanner does not know what the fields are for.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr;

use crate::limit::NAME_BYTES;
use crate::wire::field::{Container, FIELDS, Field};
pub(crate) use crate::wire::json::Span;
use crate::wire::json::{DEPTH_MAX, Key, ReadError, Reader, is_string_or_number, starts_string_or_number};
use crate::wire::partial_scan::PartialScan;

/// The kind of a JSON-RPC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The message has a method and an id.
    Request,
    /// The message has a method and no id.
    Notification,
    /// The message has a result, or an error if it `failed`.
    Answer { failed: bool },
}

/// Where the routing fields of a valid line are. Spans of strings include the quotes. A field that is null counts as
/// absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Whether the line is a request, a notification or an answer.
    pub kind: Kind,
    /// `id`, a string or a number. A request always has one, a notification never.
    pub id: Option<Span>,
    /// `method` without its quotes; it holds no escapes. The span is empty for answers.
    pub method: Span,
    /// `params` of any type.
    pub params: Option<Span>,
    /// `error` of a failed answer, otherwise `result`.
    pub outcome: Option<Span>,
    /// `params.sessionId`.
    pub session: Option<Span>,
    /// `sessionId` beside `method`.
    pub top_session: Option<Span>,
    /// `pool` beside `method`.
    pub pool: Option<Span>,
    /// `params._meta["bus/pool"]`.
    pub meta_pool: Option<Span>,
    /// `params.requestId`, a string or a number.
    pub request: Option<Span>,
    /// `params.elicitationId`.
    pub elicitation: Option<Span>,
    /// `params.update.sessionId`.
    pub child: Option<Span>,
    /// `result.sessionId`.
    pub result_session: Option<Span>,
    /// It is a piece of what an agent says, which changes nothing of its session. Only the prefix cache knows that.
    pub is_piece: Hint,
}

/// What saves work where it is known. An envelope is the same with it and without.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint(pub bool);

impl PartialEq for Hint {
    fn eq(&self, _: &Hint) -> bool {
        true
    }
}

impl Eq for Hint {}

impl Envelope {
    /// Scans a line, which comes without its line end.
    pub(crate) fn scan(line: &[u8]) -> Result<Envelope, Malformed> {
        let mut scanner = Scanner::new(line)?;
        let read = scanner.read();
        scanner.finish(read)
    }
}

/// A line that cannot be routed, and what is known of it nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Why the line cannot be routed.
    pub fault: Fault,
    /// The top-level id, if there is exactly one and it is a string or a number. It is a guess where the JSON itself
    /// is broken.
    pub id: Option<Span>,
    /// The line was meant as an answer, so `id` is the id of a request to its sender. Such a line has no method and,
    /// where the JSON itself is broken, a result or an error.
    pub answer: bool,
}

impl Malformed {
    /// Guesses the id and the kind of a line that the scanner could not read to its end.
    fn partially_scanned(fault: Fault, line: &[u8]) -> Malformed {
        // Stray output may quote a message somewhere in its text, but the line is not that message.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Malformed { fault, id: None, answer: false };
        }
        let mut partial = PartialScan::default();
        partial.feed(line);
        Malformed::guessed(fault, &partial)
    }

    /// The same where the line was partially scanned, and begins with a brace.
    pub(super) fn guessed(fault: Fault, partial: &PartialScan) -> Malformed {
        let id = partial.id().filter(|id| is_string_or_number(id));
        let id = id.map(|id| Span::new(partial.id_start(), partial.id_start() + id.len()));
        Malformed { fault, id, answer: partial.is_answer() }
    }
}

/// Why a line cannot be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The line is not JSON, or not UTF-8, from the byte `at` on.
    Syntax { at: usize },
    /// The line nests more than `DEPTH_MAX` brackets.
    TooDeep,
    /// The line is JSON, but an array or a scalar.
    NotObject,
    /// The key occurs twice. Decoders differ in which one they keep.
    DuplicateKey(Field),
    /// The key is spelled with escapes, or in letters that some decoders fold to this key.
    EscapedKey(Field),
    /// The line is a JSON object, but no JSON-RPC message for this reason.
    NotRpc(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Syntax { at } => write!(out, "not valid JSON at byte {at}"),
            Fault::TooDeep => write!(out, "nested deeper than {DEPTH_MAX} levels"),
            Fault::NotObject => write!(out, "not a JSON object"),
            Fault::DuplicateKey(field) => write!(out, "the key {:?} is there twice", field.name()),
            Fault::EscapedKey(field) => write!(out, "the key {:?} is not spelled plainly", field.name()),
            Fault::NotRpc(why) => write!(out, "not JSON-RPC: {why}"),
        }
    }
}

/// So many bytes a name of `NAME_BYTES` has at most where every character of it is escaped.
const SPELLED_NAME_BYTES: usize = NAME_BYTES * "\\u0041".len();

/// The content of a JSON string, spelled so that equal strings are equal bytes. A string with a lone surrogate has no
/// such spelling and stays as it is.
///
/// Of a string that is too long for any name only the beginning is given, which is too long as well.
pub(crate) fn canonical(token: &[u8]) -> Cow<'_, [u8]> {
    let body = unquoted(token).unwrap_or(token);
    if body.len() > SPELLED_NAME_BYTES {
        return Cow::Borrowed(&body[..=NAME_BYTES]);
    }
    if memchr(b'\\', body).is_none() {
        return Cow::Borrowed(body);
    }
    let respelled = serde_json::from_slice::<String>(token).and_then(|text| serde_json::to_string(&text));
    match respelled {
        Ok(text) => Cow::Owned(text.as_bytes()[1..text.len() - 1].to_vec()),
        Err(_) => Cow::Borrowed(body),
    }
}

/// Where the scan of a line that begins alike may resume: at the value of the first member of `params` or `result`
/// that is no field, or at the value of the second such member of `update`. No field is expected behind it.
#[derive(Clone, Copy)]
pub(super) struct ResumePoint {
    /// The position of the value.
    pub(super) at: usize,
    /// The container whose member the value is.
    pub(super) container: Container,
    /// The value is one level deeper: a member of an object that is itself a member of `container`.
    pub(super) in_content: bool,
    /// The fields before this point, as in `Found::seen`.
    pub(super) seen: u16,
    /// All bytes before this point are ASCII.
    pub(super) ascii: bool,
}

/// The routing fields of a line, as far as it was read.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    /// One bit for each field whose key has occurred.
    pub(super) seen: u16,
    /// One bit for each field whose value is a string in ASCII without escapes. Other fields may be such strings too.
    pub(super) plain: u16,
    /// The value of each field in `seen`. It is empty for an id that occurs twice.
    pub(super) spans: [Span; FIELDS.len()],
    /// The first byte of each value, which tells its type. It is NUL where there is no value.
    pub(super) firsts: [u8; FIELDS.len()],
    /// The first fault that does not end the scan.
    fault: Option<Fault>,
}

/// Reads a line and records where its routing fields are.
pub(super) struct Scanner<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) found: Found,
    /// Where the scan of the next line that begins like this one may resume.
    pub(super) resume_point: Option<ResumePoint>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(line: &'a [u8]) -> Result<Self, Malformed> {
        check_length(line)?;
        Ok(Scanner { reader: Reader::new(line), found: Found::default(), resume_point: None })
    }

    /// Reads the line from its first byte to its last.
    pub(super) fn read(&mut self) -> Result<(), ReadError> {
        if self.reader.skip_space() != b'{' {
            self.reader.value(0)?;
            self.reader.end()?;
            return Err(ReadError::NotObject);
        }
        self.reader.at += 1;
        let after_member = self.skip_usual_opening();
        self.read_members(after_member)
    }

    /// Most lines begin with the same bytes, which are compared at once. True: the line does, and its first member
    /// has been read.
    #[inline]
    fn skip_usual_opening(&mut self) -> bool {
        const OPENING: &[u8] = br#"{"jsonrpc":"2.0""#;
        const VERSION_BYTES: usize = r#""2.0""#.len();
        let is_usual = self.reader.line.starts_with(OPENING);
        if is_usual {
            self.reader.at = OPENING.len();
            self.found.seen = 1 << Field::Jsonrpc as usize;
            self.found.firsts[Field::Jsonrpc as usize] = b'"';
            self.found.spans[Field::Jsonrpc as usize] =
                Span::new(OPENING.len() - VERSION_BYTES, OPENING.len());
        }
        is_usual
    }

    /// Reads from behind the first brace, or from behind a top-level member if `after_member`, to the last byte.
    fn read_members(&mut self, mut after_member: bool) -> Result<(), ReadError> {
        let mut container = Container::Top;
        loop {
            let next = self.reader.skip_space();
            if next == b'}' {
                self.reader.at += 1;
                let Some((parent, field)) = container.parent() else { return self.reader.end() };
                self.found.spans[field as usize].end = self.reader.at as u32;
                container = parent;
                after_member = true;
                continue;
            }
            if after_member {
                if next != b',' {
                    return Err(ReadError::Syntax);
                }
                self.reader.at += 1;
                self.reader.skip_space();
            }
            after_member = !self.read_member(&mut container, after_member)?;
        }
    }

    /// Reads a key and its value. True: the value is a container; only its brace is read, and `container` is now it.
    #[inline]
    fn read_member(&mut self, container: &mut Container, after_member: bool) -> Result<bool, ReadError> {
        let key = self.reader.key()?;
        let start = self.reader.at;
        let field = self.found.record_key(*container, key);
        if field.is_none() && self.resume_point.is_none() {
            self.set_resume_point(*container, after_member);
        }
        if let Some(field) = field {
            let first = self.reader.peek();
            self.found.firsts[field as usize] = first;
            self.found.spans[field as usize] = Span::new(start, start);
            if first == b'{'
                && let Some(inner) = Container::of_value(field)
            {
                self.reader.at += 1;
                *container = inner;
                return Ok(true);
            }
        }
        let plain = self.reader.value(container.depth())?;
        if let Some(field) = field {
            self.found.spans[field as usize].end = self.reader.at as u32;
            self.found.plain |= u16::from(plain) << field as usize;
        }
        Ok(false)
    }

    /// Makes the next value the resume point if no field is expected behind it. An update begins with its type, so
    /// its first member is not enough.
    fn set_resume_point(&mut self, container: Container, after_member: bool) {
        let is_last_field_seen = match container {
            Container::Params | Container::Result => true,
            Container::Update => after_member,
            Container::Top | Container::Meta => false,
        };
        if is_last_field_seen {
            self.resume_point = Some(ResumePoint {
                at: self.reader.at,
                container,
                in_content: false,
                seen: self.found.seen,
                ascii: !self.reader.non_ascii,
            });
        }
    }

    /// The result of the scan, given the result of `read`.
    pub(super) fn finish(&self, read: Result<(), ReadError>) -> Result<Envelope, Malformed> {
        let line = self.reader.line;
        match read {
            Ok(()) => self.found.result(line),
            Err(ReadError::Syntax) => {
                Err(Malformed::partially_scanned(Fault::Syntax { at: self.reader.at }, line))
            }
            Err(ReadError::TooDeep) => Err(Malformed::partially_scanned(Fault::TooDeep, line)),
            Err(ReadError::NotObject) => Err(Malformed { fault: Fault::NotObject, id: None, answer: false }),
        }
    }
}

impl Found {
    /// The field that this key names, if it occurs for the first time. Records a fault for any other spelling and for
    /// a second occurrence.
    #[inline]
    pub(super) fn record_key(&mut self, container: Container, key: Key<'_>) -> Option<Field> {
        let Some(field) = container.field(key.name) else {
            let field = container.misspelled_field(&key)?;
            self.fault.get_or_insert(Fault::EscapedKey(field));
            return None;
        };
        let bit = 1 << field as usize;
        if self.seen & bit != 0 {
            self.fault.get_or_insert(Fault::DuplicateKey(field));
            if field == Field::Id {
                self.spans[Field::Id as usize] = Span::default();
                self.firsts[Field::Id as usize] = 0;
            }
            return None;
        }
        self.seen |= bit;
        Some(field)
    }

    /// The result for a line that was read to its end.
    pub(super) fn result(&self, line: &[u8]) -> Result<Envelope, Malformed> {
        self.envelope(line).map_err(|fault| self.malformed(fault))
    }

    fn envelope(&self, line: &[u8]) -> Result<Envelope, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let kind = self.kind()?;
        let method = if self.has(Field::Method) { self.method(line)? } else { Span::default() };
        let id = match self.first(Field::Id) {
            Some(first) if starts_string_or_number(first) => self.span(Field::Id),
            None => None,
            Some(b'n') if matches!(kind, Kind::Answer { .. }) => None,
            Some(_) => return Err(Fault::NotRpc("id must be a string or a number")),
        };
        Ok(Envelope {
            kind,
            id,
            method,
            params: self.span(Field::Params),
            outcome: match kind {
                Kind::Answer { failed: true } => self.span(Field::Error),
                _ => self.span(Field::Result),
            },
            session: self.string_or_null(Field::Session, "sessionId must be a string")?,
            top_session: self.string_or_null(Field::TopSession, "sessionId must be a string")?,
            pool: self.string_or_null(Field::Pool, "pool must be a string")?,
            meta_pool: self.string_or_null(Field::MetaPool, "bus/pool must be a string")?,
            request: self.string_or_number(Field::Request),
            elicitation: self.string(Field::Elicitation),
            child: self.string(Field::Child),
            result_session: self.string(Field::ResultSession),
            is_piece: Hint(false),
        })
    }

    fn kind(&self) -> Result<Kind, Fault> {
        match (self.has(Field::Method), self.has(Field::Result), self.has(Field::Error)) {
            (true, false, false) if self.has(Field::Id) => Ok(Kind::Request),
            (true, false, false) => Ok(Kind::Notification),
            (false, true, false) => Ok(Kind::Answer { failed: false }),
            (false, false, true) => Ok(Kind::Answer { failed: true }),
            (true, ..) => Err(Fault::NotRpc("method excludes result and error")),
            // Some agents send both keys, and null for the one that does not apply.
            (false, true, true) => match (self.first(Field::Result), self.first(Field::Error)) {
                (_, Some(b'n')) => Ok(Kind::Answer { failed: false }),
                (Some(b'n'), _) => Ok(Kind::Answer { failed: true }),
                _ => Err(Fault::NotRpc("result excludes error")),
            },
            (false, false, false) => Err(Fault::NotRpc("method, result and error are all missing")),
        }
    }

    /// The method without its quotes.
    fn method(&self, line: &[u8]) -> Result<Span, Fault> {
        let token = self.string(Field::Method).ok_or(Fault::NotRpc("method must be a string"))?;
        let method = Span { start: token.start + 1, end: token.end - 1 };
        let plain = self.plain & 1 << Field::Method as usize != 0;
        if !plain && memchr(b'\\', method.of(line)).is_some() {
            return Err(Fault::NotRpc("method must be spelled plainly"));
        }
        Ok(method)
    }

    fn malformed(&self, fault: Fault) -> Malformed {
        let has_method = self.has(Field::Method) || fault == Fault::EscapedKey(Field::Method);
        Malformed { fault, id: self.string_or_number(Field::Id), answer: !has_method }
    }

    fn has(&self, field: Field) -> bool {
        self.seen & 1 << field as usize != 0
    }

    fn span(&self, field: Field) -> Option<Span> {
        self.has(field).then(|| self.spans[field as usize])
    }

    /// The first byte of the field's value.
    fn first(&self, field: Field) -> Option<u8> {
        Some(self.firsts[field as usize]).filter(|first| *first != 0)
    }

    /// The field's value, if it is a string.
    fn string(&self, field: Field) -> Option<Span> {
        if self.first(field) == Some(b'"') { self.span(field) } else { None }
    }

    /// The field's value, if it is a string or a number.
    fn string_or_number(&self, field: Field) -> Option<Span> {
        if self.first(field).is_some_and(starts_string_or_number) { self.span(field) } else { None }
    }

    /// The field's value, which must be a string or null. `None`: it is null or absent.
    fn string_or_null(&self, field: Field, otherwise: &'static str) -> Result<Option<Span>, Fault> {
        match self.first(field) {
            None | Some(b'n') => Ok(None),
            Some(b'"') => Ok(self.span(field)),
            Some(_) => Err(Fault::NotRpc(otherwise)),
        }
    }
}

/// Spans have 32 bits.
pub(super) fn check_length(line: &[u8]) -> Result<(), Malformed> {
    if u32::try_from(line.len()).is_err() {
        let fault = Fault::NotRpc("a line must be below 4 GiB");
        return Err(Malformed { fault, id: None, answer: false });
    }
    Ok(())
}

fn unquoted(token: &[u8]) -> Option<&[u8]> {
    token.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests;
