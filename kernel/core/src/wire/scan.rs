//! The routing fields of one line: where its id, method, session and pool stand.
//!
//! One pass validates the JSON as strictly as `serde_json`'s `RawValue` and finds the spans, without
//! allocating. What it lets through means the same to every decoder at the levels that are routed by: no
//! routing key twice, none in another spelling. Knows nothing of what the fields stand for.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr;

pub(crate) use crate::wire::json::Span;
use crate::wire::json::{DEPTH_MAX, Key, Reader, Stop, is_string_or_number, is_token};
use crate::wire::partial_scan::PartialScan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Notification,
    /// `failed`: it has an error and no result.
    Answer {
        failed: bool,
    },
}

/// A good line. Tokens are as spelled, strings with their quotes; a field that is null counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub kind: Kind,
    /// A string or a number. A request always has one, a notification never.
    pub id: Option<Span>,
    /// Between the quotes, without escapes. Empty for answers.
    pub method: Span,
    pub params: Option<Span>,
    /// The value of `result` or `error`.
    pub outcome: Option<Span>,
    /// `params.sessionId`
    pub session: Option<Span>,
    /// `sessionId` beside `method`
    pub top_session: Option<Span>,
    /// `pool` beside `method`
    pub pool: Option<Span>,
    /// `params._meta["bus/pool"]`
    pub meta_pool: Option<Span>,
    /// `params.requestId`, a string or a number.
    pub request: Option<Span>,
    /// `params.elicitationId`
    pub elicitation: Option<Span>,
    /// `params.update.sessionId`
    pub child: Option<Span>,
    /// `result.sessionId`
    pub result_session: Option<Span>,
}

impl Envelope {
    /// `line` has neither a newline nor a carriage return at its end.
    pub(crate) fn scan(line: &[u8]) -> Result<Envelope, Malformed> {
        let mut scanner = Scanner::new(line)?;
        let walked = scanner.walk();
        scanner.outcome(walked)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub fault: Fault,
    /// The top-level id, if there is exactly one and it is a string or a number. A guess where the JSON
    /// itself is broken.
    pub id: Option<Span>,
    /// It was meant as an answer, so `id` is one that its sender was asked under: it has no method, and,
    /// where the JSON itself is broken, a result or an error.
    pub answer: bool,
}

impl Malformed {
    /// What can be told of a line that cannot be walked to its end.
    fn skimmed(fault: Fault, line: &[u8]) -> Malformed {
        // A stray print may quote a message somewhere in its text; that is not one.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Malformed { fault, id: None, answer: false };
        }
        let mut partial = PartialScan::default();
        partial.feed(line);
        let id = partial.id().filter(|id| is_token(id));
        let id = id.map(|id| Span::new(partial.id_at(), partial.id_at() + id.len()));
        Malformed { fault, id, answer: partial.is_answer() }
    }
}

/// Why a line cannot be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not JSON, or not UTF-8, from this byte on.
    Syntax {
        at: usize,
    },
    TooDeep,
    /// JSON, but an array or a scalar.
    NotObject,
    /// A decoder keeps one of them, and not each decoder the same.
    DuplicateKey(Field),
    /// Spelled with escapes, or in letters that some decoders fold to this key.
    EscapedKey(Field),
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

/// A key that the bus reads, at the one level where it reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    TopSession,
    Pool,
    Session,
    Request,
    Elicitation,
    Meta,
    Update,
    MetaPool,
    Child,
    ResultSession,
}

impl Field {
    /// As it is spelled in the line.
    pub(crate) fn name(self) -> &'static str {
        FIELDS[self as usize].1
    }
}

/// What stands between the quotes of a JSON string, spelled so that equal strings are equal bytes. A string
/// with a lone surrogate has no such spelling and stays as it is.
pub(crate) fn canonical(token: &[u8]) -> Cow<'_, [u8]> {
    let body = unquoted(token).unwrap_or(token);
    if memchr(b'\\', body).is_none() {
        return Cow::Borrowed(body);
    }
    let respelled = serde_json::from_slice::<String>(token).and_then(|text| serde_json::to_string(&text));
    match respelled {
        Ok(text) => Cow::Owned(text.as_bytes()[1..text.len() - 1].to_vec()),
        Err(_) => Cow::Borrowed(body),
    }
}

/// In the order of `Field`, and those of one place side by side.
pub(super) const FIELDS: [(Field, &str); 16] = [
    (Field::Jsonrpc, "jsonrpc"),
    (Field::Id, "id"),
    (Field::Method, "method"),
    (Field::Params, "params"),
    (Field::Result, "result"),
    (Field::Error, "error"),
    (Field::TopSession, "sessionId"),
    (Field::Pool, "pool"),
    (Field::Session, "sessionId"),
    (Field::Request, "requestId"),
    (Field::Elicitation, "elicitationId"),
    (Field::Meta, "_meta"),
    (Field::Update, "update"),
    (Field::MetaPool, "bus/pool"),
    (Field::Child, "sessionId"),
    (Field::ResultSession, "sessionId"),
];

/// The longest of those names.
const NAME_BYTES_MAX: usize = "elicitationId".len();

/// A value in a line behind which no field is expected: of the first other member of its params or its result, or of
/// the second of its update.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) at: usize,
    pub(super) place: Place,
    /// It is in an object that is itself a value there.
    pub(super) inside: bool,
    pub(super) seen: u16,
    /// All before it is.
    pub(super) ascii: bool,
}

/// An object whose keys are routed by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Top,
    Params,
    Meta,
    Update,
    Result,
}

impl Place {
    /// The place that the value of this field is, if it is an object.
    fn inside(field: Field) -> Option<Place> {
        match field {
            Field::Params => Some(Place::Params),
            Field::Meta => Some(Place::Meta),
            Field::Update => Some(Place::Update),
            Field::Result => Some(Place::Result),
            _ => None,
        }
    }

    /// The field that is spelled so here. One comparison with a constant each, which needs no call.
    #[inline]
    fn field(self, key: &[u8]) -> Option<Field> {
        Some(match self {
            Place::Top => match key {
                b"jsonrpc" => Field::Jsonrpc,
                b"id" => Field::Id,
                b"method" => Field::Method,
                b"params" => Field::Params,
                b"result" => Field::Result,
                b"error" => Field::Error,
                b"sessionId" => Field::TopSession,
                b"pool" => Field::Pool,
                _ => return None,
            },
            Place::Params => match key {
                b"sessionId" => Field::Session,
                b"requestId" => Field::Request,
                b"elicitationId" => Field::Elicitation,
                b"_meta" => Field::Meta,
                b"update" => Field::Update,
                _ => return None,
            },
            Place::Meta if key == b"bus/pool" => Field::MetaPool,
            Place::Update if key == b"sessionId" => Field::Child,
            Place::Result if key == b"sessionId" => Field::ResultSession,
            Place::Meta | Place::Update | Place::Result => return None,
        })
    }

    /// Whether the scanner would take this key for a field, or for one in disguise.
    pub(super) fn may_be_field(self, key: &Key<'_>) -> bool {
        self.field(key.name).is_some() || disguised(self.fields(), key).is_some()
    }

    fn fields(self) -> &'static [(Field, &'static str)] {
        match self {
            Place::Top => &FIELDS[..8],
            Place::Params => &FIELDS[8..13],
            Place::Meta => &FIELDS[13..14],
            Place::Update => &FIELDS[14..15],
            Place::Result => &FIELDS[15..],
        }
    }

    /// The place around it, and the field of that whose value it is. The top is in nothing.
    pub(super) fn around(self) -> Option<(Place, Field)> {
        match self {
            Place::Top => None,
            Place::Params => Some((Place::Top, Field::Params)),
            Place::Meta => Some((Place::Params, Field::Meta)),
            Place::Update => Some((Place::Params, Field::Update)),
            Place::Result => Some((Place::Top, Field::Result)),
        }
    }

    /// Brackets that are open inside it.
    pub(super) fn depth(self) -> usize {
        match self {
            Place::Top => 1,
            Place::Params | Place::Result => 2,
            Place::Meta | Place::Update => 3,
        }
    }
}

/// Walks a line and notes where its routing fields are.
pub(super) struct Scanner<'a> {
    pub(super) reader: Reader<'a>,
    /// One bit for each field whose key was there.
    pub(super) seen: u16,
    /// The value of each field that was seen. Blank for an id that was there twice.
    spans: [Span; FIELDS.len()],
    /// One bit for each that is a string in ASCII without escapes. There may be others.
    plain: u16,
    /// The first byte of each value, which tells its type. NUL where there is none.
    firsts: [u8; FIELDS.len()],
    /// The first fault that does not end the walk.
    fault: Option<Fault>,
    /// From where on the next line like this one may be read.
    pub(super) point: Option<Point>,
}

impl Scanner<'_> {
    /// The next value may be such a point. `begun`: it is not the first of its object.
    fn note_point(&mut self, place: Place, begun: bool) {
        let expected = match place {
            Place::Params | Place::Result => true,
            Place::Update => begun,
            Place::Top | Place::Meta => false,
        };
        if expected {
            let (at, seen, ascii) = (self.reader.at, self.seen, !self.reader.beyond_ascii);
            self.point = Some(Point { at, place, inside: false, seen, ascii });
        }
    }
}

impl<'a> Scanner<'a> {
    pub(super) fn new(line: &'a [u8]) -> Result<Self, Malformed> {
        if u32::try_from(line.len()).is_err() {
            let fault = Fault::NotRpc("a line must be below 4 GiB");
            return Err(Malformed { fault, id: None, answer: false });
        }
        Ok(Scanner {
            reader: Reader::new(line),
            seen: 0,
            spans: [Span::default(); FIELDS.len()],
            plain: 0,
            firsts: [0; FIELDS.len()],
            fault: None,
            point: None,
        })
    }

    /// From the first byte to the last.
    pub(super) fn walk(&mut self) -> Result<(), Stop> {
        if self.reader.past_space() != b'{' {
            self.reader.value(0)?;
            self.reader.end()?;
            return Err(Stop::NotObject);
        }
        self.reader.at += 1;
        let default_pool = self.opens_as_usual();
        self.members(default_pool)
    }

    /// From the first brace, or from behind a member at the top if `begun`, to the last byte.
    fn members(&mut self, mut begun: bool) -> Result<(), Stop> {
        let mut place = Place::Top;
        loop {
            let next = self.reader.past_space();
            if next == b'}' {
                self.reader.at += 1;
                let Some((parent, field)) = place.around() else { return self.reader.end() };
                self.spans[field as usize].end = self.reader.at as u32;
                (place, begun) = (parent, true);
                continue;
            }
            if begun {
                if next != b',' {
                    return Err(Stop::Syntax);
                }
                self.reader.at += 1;
                self.reader.past_space();
            }
            begun = !self.member(&mut place, begun)?;
        }
    }

    /// Most lines begin with the same bytes, which need not be taken apart each time.
    #[inline]
    fn opens_as_usual(&mut self) -> bool {
        const OPENING: &[u8] = br#"{"jsonrpc":"2.0""#;
        const VERSION_BYTES: usize = r#""2.0""#.len();
        let default_pool = self.reader.line.starts_with(OPENING);
        if default_pool {
            self.reader.at = OPENING.len();
            self.seen = 1 << Field::Jsonrpc as usize;
            self.firsts[Field::Jsonrpc as usize] = b'"';
            self.spans[Field::Jsonrpc as usize] = Span::new(OPENING.len() - VERSION_BYTES, OPENING.len());
        }
        default_pool
    }

    /// A key and its value; or only the brace of the value, if that is a place to step into: then true.
    #[inline]
    fn member(&mut self, place: &mut Place, begun: bool) -> Result<bool, Stop> {
        let key = self.reader.key()?;
        let start = self.reader.at;
        let field = self.note(*place, key);
        if field.is_none() && self.point.is_none() {
            self.note_point(*place, begun);
        }
        if let Some(field) = field {
            let first = self.reader.peek();
            self.firsts[field as usize] = first;
            self.spans[field as usize] = Span::new(start, start);
            if let Some(inner) = Place::inside(field).filter(|_| first == b'{') {
                self.reader.at += 1;
                *place = inner;
                return Ok(true);
            }
        }
        let plain = self.reader.value(place.depth())?;
        if let Some(field) = field {
            self.spans[field as usize].end = self.reader.at as u32;
            self.plain |= u16::from(plain) << field as usize;
        }
        Ok(false)
    }

    /// The field that this key names, the first time it does.
    fn note(&mut self, place: Place, key: Key<'_>) -> Option<Field> {
        let Some(field) = place.field(key.name) else {
            let field = disguised(place.fields(), &key)?;
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

    pub(super) fn outcome(&self, walked: Result<(), Stop>) -> Result<Envelope, Malformed> {
        let line = self.reader.line;
        match walked {
            Ok(()) => self.envelope().map_err(|fault| self.malformed(fault)),
            Err(Stop::Syntax) => Err(Malformed::skimmed(Fault::Syntax { at: self.reader.at }, line)),
            Err(Stop::TooDeep) => Err(Malformed::skimmed(Fault::TooDeep, line)),
            Err(Stop::NotObject) => Err(Malformed { fault: Fault::NotObject, id: None, answer: false }),
        }
    }

    /// What the fields amount to, after a walk to the end.
    fn envelope(&self) -> Result<Envelope, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let kind = self.kind()?;
        let method = if self.has(Field::Method) { self.method()? } else { Span::default() };
        let id = match self.first(Field::Id) {
            Some(first) if is_string_or_number(first) => self.span(Field::Id),
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
            session: self.text_or(Field::Session, "sessionId must be a string")?,
            top_session: self.text_or(Field::TopSession, "sessionId must be a string")?,
            pool: self.text_or(Field::Pool, "pool must be a string")?,
            meta_pool: self.text_or(Field::MetaPool, "bus/pool must be a string")?,
            request: self
                .span(Field::Request)
                .filter(|_| self.first(Field::Request).is_some_and(is_string_or_number)),
            elicitation: self.text(Field::Elicitation),
            child: self.text(Field::Child),
            result_session: self.text(Field::ResultSession),
        })
    }

    fn kind(&self) -> Result<Kind, Fault> {
        match (self.has(Field::Method), self.has(Field::Result), self.has(Field::Error)) {
            (true, false, false) if self.has(Field::Id) => Ok(Kind::Request),
            (true, false, false) => Ok(Kind::Notification),
            (false, true, false) => Ok(Kind::Answer { failed: false }),
            (false, false, true) => Ok(Kind::Answer { failed: true }),
            (true, ..) => Err(Fault::NotRpc("method excludes result and error")),
            // Some agents spell out which of the two it is not.
            (false, true, true) => match (self.first(Field::Result), self.first(Field::Error)) {
                (_, Some(b'n')) => Ok(Kind::Answer { failed: false }),
                (Some(b'n'), _) => Ok(Kind::Answer { failed: true }),
                _ => Err(Fault::NotRpc("result excludes error")),
            },
            (false, false, false) => Err(Fault::NotRpc("method, result and error are all missing")),
        }
    }

    fn method(&self) -> Result<Span, Fault> {
        let token = self.text(Field::Method).ok_or(Fault::NotRpc("method must be a string"))?;
        let method = Span { start: token.start + 1, end: token.end - 1 };
        let plain = self.plain & 1 << Field::Method as usize != 0;
        if !plain && memchr(b'\\', method.of(self.reader.line)).is_some() {
            return Err(Fault::NotRpc("method must be spelled plainly"));
        }
        Ok(method)
    }

    fn malformed(&self, fault: Fault) -> Malformed {
        let id = self.span(Field::Id).filter(|_| self.first(Field::Id).is_some_and(is_string_or_number));
        let outgoing = self.has(Field::Method) || fault == Fault::EscapedKey(Field::Method);
        Malformed { fault, id, answer: !outgoing }
    }

    fn has(&self, field: Field) -> bool {
        self.seen & 1 << field as usize != 0
    }

    fn span(&self, field: Field) -> Option<Span> {
        self.has(field).then(|| self.spans[field as usize])
    }

    fn first(&self, field: Field) -> Option<u8> {
        Some(self.firsts[field as usize]).filter(|first| *first != 0)
    }

    fn text(&self, field: Field) -> Option<Span> {
        self.span(field).filter(|_| self.first(field) == Some(b'"'))
    }

    fn text_or(&self, field: Field, wrong: &'static str) -> Result<Option<Span>, Fault> {
        match self.first(field) {
            None | Some(b'n') => Ok(None),
            Some(b'"') => Ok(self.span(field)),
            Some(_) => Err(Fault::NotRpc(wrong)),
        }
    }
}

/// The field that a decoder may take this key for, though it is not spelled like it.
fn disguised(fields: &[(Field, &str)], key: &Key<'_>) -> Option<Field> {
    let folds_to =
        |folded: &[u8]| fields.iter().find(|(_, name)| name.as_bytes().eq_ignore_ascii_case(folded));
    if key.plain {
        return folds_to(key.name).map(|&(field, _)| field);
    }
    let mut folded = [0; NAME_BYTES_MAX];
    let mut folded_bytes = 0;
    let mut chars = std::str::from_utf8(key.name).ok()?.chars();
    while let Some(char) = chars.next() {
        let char = if char == '\\' { unescaped(&mut chars)? } else { char };
        let folded_char = match char {
            // The two characters beyond ASCII whose other case is an ASCII letter.
            '\u{17f}' => b's',
            '\u{212a}' => b'k',
            _ => u8::try_from(char).ok().filter(u8::is_ascii)?,
        };
        *folded.get_mut(folded_bytes)? = folded_char;
        folded_bytes += 1;
    }
    folds_to(&folded[..folded_bytes]).map(|&(field, _)| field)
}

/// The character behind a backslash. None for what no routing key holds: control characters and surrogates.
fn unescaped(chars: &mut std::str::Chars<'_>) -> Option<char> {
    match chars.next()? {
        'u' => {
            let (digits, rest) = chars.as_str().split_at_checked(4)?;
            *chars = rest.chars();
            char::from_u32(u32::from_str_radix(digits, 16).ok()?)
        }
        'b' | 'f' | 'n' | 'r' | 't' => None,
        char => Some(char),
    }
}

fn unquoted(token: &[u8]) -> Option<&[u8]> {
    token.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests;
