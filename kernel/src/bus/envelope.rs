//! The routing fields of one line: where its id, method, session and pool stand.
//!
//! One pass validates the JSON as strictly as `serde_json`'s `RawValue` and finds the spans, without
//! allocating. What it lets through means the same to every decoder at the levels that are routed by: no
//! routing key twice, none in another spelling. Knows nothing of what the fields stand for.

use std::borrow::Cow;
use std::fmt;

use memchr::{memchr, memchr2};

use super::skim::Skim;

/// Brackets inside brackets; one bit each in the scanner's stack.
const DEPTH_MAX: usize = 1024;

/// Bytes of a line, `start <= end <= line.len()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub(crate) fn of(self, line: &[u8]) -> &[u8] {
        &line[self.start as usize..self.end as usize]
    }

    /// `scan` refuses a line whose places do not fit.
    fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }
}

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
        if u32::try_from(line.len()).is_err() {
            return Err(Malformed {
                fault: Fault::NotRpc("a line must be below 4 GiB"),
                id: None,
                answer: false,
            });
        }
        let mut scanner = Scanner::new(line);
        match scanner.walk() {
            Ok(()) => scanner.envelope().map_err(|fault| scanner.malformed(fault)),
            Err(Stop::Syntax) => Err(Malformed::skimmed(Fault::Syntax { at: scanner.reader.at }, line)),
            Err(Stop::TooDeep) => Err(Malformed::skimmed(Fault::TooDeep, line)),
            Err(Stop::NotObject) => Err(Malformed { fault: Fault::NotObject, id: None, answer: false }),
        }
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
        let mut skim = Skim::default();
        skim.feed(line);
        let id = skim.id().filter(|id| is_token(id));
        let id = id.map(|id| Span::new(skim.id_at(), skim.id_at() + id.len()));
        Malformed { fault, id, answer: skim.is_answer() }
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

/// One session of a `session/list` answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub element: Span,
    /// Its `sessionId` with the quotes, the last one as decoders do. None if that is not a string.
    pub id: Option<Span>,
}

/// The sessions in a `session/list` answer, `line` and `outcome` as they came out of `scan`.
pub(crate) fn listed_sessions(line: &[u8], outcome: Span) -> Vec<Listed> {
    let Some(sessions) = last_member(line, outcome, b"sessions") else { return Vec::new() };
    let mut listed = Vec::new();
    for_each_in(line, sessions, b'[', |_, element| {
        let id = last_member(line, element, b"sessionId").filter(|id| id.of(line).starts_with(b"\""));
        listed.push(Listed { element, id });
    });
    listed
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
const FIELDS: [(Field, &str); 16] = [
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

/// An object whose keys are routed by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
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
    fn around(self) -> Option<(Place, Field)> {
        match self {
            Place::Top => None,
            Place::Params => Some((Place::Top, Field::Params)),
            Place::Meta => Some((Place::Params, Field::Meta)),
            Place::Update => Some((Place::Params, Field::Update)),
            Place::Result => Some((Place::Top, Field::Result)),
        }
    }

    /// Brackets that are open inside it.
    fn depth(self) -> usize {
        match self {
            Place::Top => 1,
            Place::Params | Place::Result => 2,
            Place::Meta | Place::Update => 3,
        }
    }
}

/// Walks a line and notes where its routing fields are.
struct Scanner<'a> {
    reader: Reader<'a>,
    /// One bit for each field whose key was there.
    seen: u16,
    /// The value of each field that was seen. Blank for an id that was there twice.
    spans: [Span; FIELDS.len()],
    /// The first fault that does not end the walk.
    fault: Option<Fault>,
}

impl<'a> Scanner<'a> {
    fn new(line: &'a [u8]) -> Self {
        Scanner { reader: Reader::new(line), seen: 0, spans: [Span::default(); FIELDS.len()], fault: None }
    }

    /// From the first byte to the last.
    fn walk(&mut self) -> Result<(), Stop> {
        if self.reader.past_space() != b'{' {
            self.reader.value(0)?;
            self.reader.end()?;
            return Err(Stop::NotObject);
        }
        self.reader.at += 1;
        let mut place = Place::Top;
        // Nothing of the object was read but its brace.
        let mut fresh = true;
        loop {
            match self.reader.past_space() {
                b'}' => {
                    self.reader.at += 1;
                    let Some((parent, field)) = place.around() else { return self.reader.end() };
                    self.spans[field as usize].end = self.reader.at as u32;
                    place = parent;
                    fresh = false;
                }
                b',' if !fresh => {
                    self.reader.at += 1;
                    self.reader.past_space();
                    fresh = self.member(&mut place)?;
                }
                _ if fresh => fresh = self.member(&mut place)?,
                _ => return Err(Stop::Syntax),
            }
        }
    }

    /// A key and its value; or only the brace of the value, if that is a place to step into: then true.
    fn member(&mut self, place: &mut Place) -> Result<bool, Stop> {
        let key = self.reader.key()?;
        let start = self.reader.at;
        let Some(field) = self.note(*place, key) else {
            self.reader.value(place.depth())?;
            return Ok(false);
        };
        if let Some(inner) = Place::inside(field)
            && self.reader.peek() == b'{'
        {
            self.reader.at += 1;
            self.spans[field as usize] = Span::new(start, start);
            *place = inner;
            return Ok(true);
        }
        self.reader.value(place.depth())?;
        self.spans[field as usize] = Span::new(start, self.reader.at);
        Ok(false)
    }

    /// The field that this key names, the first time it does.
    fn note(&mut self, place: Place, key: Span) -> Option<Field> {
        // Without its quotes.
        let key = &self.reader.line[key.start as usize + 1..key.end as usize - 1];
        let fields = place.fields();
        // The first byte tells most names apart, and spares the call of a comparison.
        let is_key = |name: &[u8]| name.len() == key.len() && name[0] == key[0] && name == key;
        let Some(&(field, _)) = fields.iter().find(|(_, name)| is_key(name.as_bytes())) else {
            let field = disguised(fields, key)?;
            self.fault.get_or_insert(Fault::EscapedKey(field));
            return None;
        };
        let bit = 1 << field as usize;
        if self.seen & bit != 0 {
            self.fault.get_or_insert(Fault::DuplicateKey(field));
            if field == Field::Id {
                self.spans[Field::Id as usize] = Span::default();
            }
            return None;
        }
        self.seen |= bit;
        Some(field)
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
            outcome: self.span(Field::Result).or(self.span(Field::Error)),
            session: self.text_or(Field::Session, "sessionId must be a string")?,
            top_session: self.text_or(Field::TopSession, "sessionId must be a string")?,
            pool: self.text_or(Field::Pool, "pool must be a string")?,
            meta_pool: self.text_or(Field::MetaPool, "bus/pool must be a string")?,
            request: self
                .span(Field::Request)
                .filter(|_| self.first(Field::Request).is_some_and(is_string_or_number)),
            elicitation: self.text(Field::Elicitation),
            child: self.text(Field::Child),
            result_session: self.text_or(Field::ResultSession, "sessionId must be a string")?,
        })
    }

    fn kind(&self) -> Result<Kind, Fault> {
        match (self.has(Field::Method), self.has(Field::Result), self.has(Field::Error)) {
            (true, false, false) if self.has(Field::Id) => Ok(Kind::Request),
            (true, false, false) => Ok(Kind::Notification),
            (false, true, false) => Ok(Kind::Answer { failed: false }),
            (false, false, true) => Ok(Kind::Answer { failed: true }),
            (true, ..) => Err(Fault::NotRpc("method excludes result and error")),
            (false, true, true) => Err(Fault::NotRpc("result excludes error")),
            (false, false, false) => Err(Fault::NotRpc("method, result and error are all missing")),
        }
    }

    fn method(&self) -> Result<Span, Fault> {
        let token = self.text(Field::Method).ok_or(Fault::NotRpc("method must be a string"))?;
        let method = Span { start: token.start + 1, end: token.end - 1 };
        if memchr(b'\\', method.of(self.reader.line)).is_some() {
            return Err(Fault::NotRpc("method must be spelled plainly"));
        }
        Ok(method)
    }

    fn malformed(&self, fault: Fault) -> Malformed {
        let id = self.span(Field::Id).filter(|_| self.first(Field::Id).is_some_and(is_string_or_number));
        let asks = self.has(Field::Method) || fault == Fault::EscapedKey(Field::Method);
        Malformed { fault, id, answer: !asks }
    }

    fn has(&self, field: Field) -> bool {
        self.seen & 1 << field as usize != 0
    }

    fn span(&self, field: Field) -> Option<Span> {
        self.has(field).then(|| self.spans[field as usize])
    }

    /// The first byte of the value, which tells its type.
    fn first(&self, field: Field) -> Option<u8> {
        self.span(field)?.of(self.reader.line).first().copied()
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
fn disguised(fields: &[(Field, &str)], key: &[u8]) -> Option<Field> {
    let folds_to =
        |folded: &[u8]| fields.iter().find(|(_, name)| name.as_bytes().eq_ignore_ascii_case(folded));
    if !key.iter().any(|&byte| byte == b'\\' || !byte.is_ascii()) {
        return folds_to(key).map(|&(field, _)| field);
    }
    let mut folded = [0; NAME_BYTES_MAX];
    let mut folded_bytes = 0;
    let mut chars = std::str::from_utf8(key).ok()?.chars();
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

/// The value under `key` in this object.
fn last_member(line: &[u8], object: Span, key: &[u8]) -> Option<Span> {
    let mut found = None;
    for_each_in(line, object, b'{', |name, value| {
        if *canonical(name.of(line)) == *key {
            found = Some(value);
        }
    });
    found
}

/// Each element, or key and value, of a value that was validated before. Does nothing if it does not begin
/// with this bracket.
fn for_each_in(line: &[u8], value: Span, bracket: u8, mut each: impl FnMut(Span, Span)) {
    // Cut at its end, so that what follows it in the line is not looked at.
    let mut reader = Reader { at: value.start as usize, ..Reader::new(&line[..value.end as usize]) };
    if reader.peek() != bracket {
        return;
    }
    reader.at += 1;
    while !matches!(reader.past_space(), b'}' | b']' | 0) {
        let mut name = Span::default();
        if bracket == b'{' {
            let Ok(span) = reader.key() else { return };
            name = span;
        }
        let start = reader.at;
        if reader.value(0).is_err() {
            return;
        }
        each(name, Span::new(start, reader.at));
        if reader.past_space() == b',' {
            reader.at += 1;
        }
    }
}

/// A string or a number, whole and well formed.
fn is_token(token: &[u8]) -> bool {
    let mut reader = Reader::new(token);
    is_string_or_number(reader.peek()) && reader.value(0).is_ok() && reader.end().is_ok()
}

fn is_string_or_number(first: u8) -> bool {
    matches!(first, b'"' | b'-' | b'0'..=b'9')
}

/// What ends a walk, at the reader's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Syntax,
    TooDeep,
    NotObject,
}

/// Passes over JSON and validates it. No recursion: a peer chooses the depth.
struct Reader<'a> {
    line: &'a [u8],
    /// The next byte, `at <= line.len()`.
    at: usize,
    /// A string holds a byte beyond ASCII, so the line has yet to be checked for UTF-8.
    beyond_ascii: bool,
    /// One bit for each open bracket of the value that is passed over: is it a brace?
    braces: [u64; DEPTH_MAX / 64],
}

impl<'a> Reader<'a> {
    fn new(line: &'a [u8]) -> Self {
        Reader { line, at: 0, beyond_ascii: false, braces: [0; DEPTH_MAX / 64] }
    }

    /// Any value, without looking into it. `around` brackets are open already.
    fn value(&mut self, around: usize) -> Result<(), Stop> {
        let mut depth = around;
        loop {
            match self.past_space() {
                b'"' => self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                bracket @ (b'{' | b'[') => {
                    if depth == DEPTH_MAX {
                        return Err(Stop::TooDeep);
                    }
                    let brace = bracket == b'{';
                    let bit = 1 << (depth % 64);
                    let word = &mut self.braces[depth / 64];
                    *word = if brace { *word | bit } else { *word & !bit };
                    depth += 1;
                    self.at += 1;
                    // In ASCII a closing bracket stands two behind its opening one.
                    if self.past_space() != bracket + 2 {
                        if brace {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                    depth -= 1;
                }
                _ => return Err(Stop::Syntax),
            }
            // A value has ended: close what ends with it, up to the next comma.
            loop {
                if depth == around {
                    return Ok(());
                }
                let brace = self.braces[(depth - 1) / 64] >> ((depth - 1) % 64) & 1 == 1;
                match self.past_space() {
                    b',' => {
                        self.at += 1;
                        if brace {
                            self.past_space();
                            self.key()?;
                        }
                        break;
                    }
                    b'}' if brace => {}
                    b']' if !brace => {}
                    _ => return Err(Stop::Syntax),
                }
                self.at += 1;
                depth -= 1;
            }
        }
    }

    /// A key and its colon, up to the value. The span is that of the key with its quotes.
    fn key(&mut self) -> Result<Span, Stop> {
        let start = self.at;
        if self.peek() != b'"' {
            return Err(Stop::Syntax);
        }
        self.string()?;
        let key = Span::new(start, self.at);
        if self.past_space() != b':' {
            return Err(Stop::Syntax);
        }
        self.at += 1;
        self.past_space();
        Ok(key)
    }

    /// From its opening quote to behind the closing one.
    fn string(&mut self) -> Result<(), Stop> {
        // Kept out of `self` on the way, where they would be stored and loaded again at each step.
        let mut at = self.at + 1;
        let mut bits = 0;
        at = plain_end(self.line, at, &mut bits);
        'stretch: loop {
            match self.line.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {}
                _ => return self.fail(at),
            }
            match self.line.get(at + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                Some(b'u') if is_hex(self.line.get(at + 2..at + 6)) => at += 6,
                _ => return self.fail(at),
            }
            // Escapes come in crowds, where a guessed branch to the next is faster than finding its place.
            for &byte in self.line[at..].iter().take(NEAR_BYTES) {
                if is_mark(byte) {
                    continue 'stretch;
                }
                bits |= byte as u64;
                at += 1;
            }
            at = plain_end(self.line, at, &mut bits);
        }
        self.at = at + 1;
        self.beyond_ascii |= bits & HIGH_BITS != 0;
        Ok(())
    }

    #[cold]
    fn fail(&mut self, at: usize) -> Result<(), Stop> {
        self.at = at;
        Err(Stop::Syntax)
    }

    fn number(&mut self) -> Result<(), Stop> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        if self.peek() == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One at least.
    fn digits(&mut self) -> Result<(), Stop> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start { Err(Stop::Syntax) } else { Ok(()) }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Stop> {
        if !self.line[self.at..].starts_with(word) {
            return Err(Stop::Syntax);
        }
        self.at += word.len();
        Ok(())
    }

    /// Behind the last byte. Only here is UTF-8 checked: outside of strings, the walk has taken only ASCII.
    fn end(&mut self) -> Result<(), Stop> {
        self.past_space();
        if self.at != self.line.len() {
            return Err(Stop::Syntax);
        }
        if self.beyond_ascii
            && let Err(error) = std::str::from_utf8(self.line)
        {
            self.at = error.valid_up_to();
            return Err(Stop::Syntax);
        }
        Ok(())
    }

    /// The first byte that is not white space, which is then the next.
    #[inline]
    fn past_space(&mut self) -> u8 {
        loop {
            match self.peek() {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                byte => return byte,
            }
        }
    }

    /// The next byte. NUL at the end of the line: no rule of JSON takes one.
    #[inline]
    fn peek(&self) -> u8 {
        self.line.get(self.at).copied().unwrap_or(0)
    }
}

/// How far a string is read byte by byte, and then by words, before memchr takes over.
const NEAR_BYTES: usize = 4;
const NEAR_WORDS: usize = 8;
/// A part of the first-level cache.
const BLOCK_BYTES: usize = 4 * 1024;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = ONES * 0x80;

/// The place of the next quote, backslash or control byte of a string, or the end of the line. All bits
/// on the way, and maybe some behind it, are added to `bits`.
#[inline]
fn plain_end(line: &[u8], mut at: usize, bits: &mut u64) -> usize {
    let (words, tail) = line[at..].as_chunks::<8>();
    // Most stretches are short, and starting up memchr costs as much as some words.
    for word in words.iter().take(NEAR_WORDS) {
        let word = u64::from_le_bytes(*word);
        *bits |= word;
        let marks = marks(word);
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    if words.len() > NEAR_WORDS {
        return far_plain_end(line, at, bits);
    }
    for &byte in tail {
        if is_mark(byte) {
            break;
        }
        *bits |= byte as u64;
        at += 1;
    }
    at
}

fn is_mark(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

fn is_hex(digits: Option<&[u8]>) -> bool {
    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// The high bit of each byte that `is_mark`. Exact for the lowest of them; above
/// it a borrow can mark others.
fn marks(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * b' ' as u64);
    let quote = (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    (control | quote | backslash) & !word & HIGH_BITS
}

/// `plain_end` over a long stretch. In blocks, so that the second look at a block finds it in the cache.
#[inline(never)]
fn far_plain_end(line: &[u8], mut at: usize, bits: &mut u64) -> usize {
    for block in line[at..].chunks(BLOCK_BYTES) {
        let mark = memchr2(b'"', b'\\', block);
        let plain = &block[..mark.unwrap_or(block.len())];
        if !is_printable(plain) {
            *bits |= plain.iter().fold(0, |all, byte| all | byte) as u64;
            if plain.iter().fold(u8::MAX, |low, byte| low.min(*byte)) < b' ' {
                return at + plain.iter().position(|&byte| byte < b' ').unwrap_or(0);
            }
        }
        at += plain.len();
        if mark.is_some() {
            break;
        }
    }
    at
}

/// All in ASCII from the space on. One subtraction puts control bytes and those beyond ASCII above all others,
/// and the lanes let the compiler make vectors of it.
fn is_printable(bytes: &[u8]) -> bool {
    let (chunks, tail) = bytes.as_chunks::<32>();
    let mut top = [0; 32];
    for chunk in chunks {
        for (top, byte) in top.iter_mut().zip(chunk) {
            *top = byte.wrapping_sub(b' ').max(*top);
        }
    }
    let above = |top: u8| top >= 0x60;
    !above(top.into_iter().fold(0, u8::max)) && !tail.iter().any(|byte| above(byte.wrapping_sub(b' ')))
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
    use serde_json::value::RawValue;

    use super::*;

    /// Messages, good and broken, the same for the same seed.
    pub(in crate::bus) struct Lines {
        state: u64,
        keys: Vec<&'static str>,
        odd_keys: Vec<&'static str>,
        scalars: Vec<&'static str>,
    }

    const KEYS: &str = "jsonrpc id method params result error sessionId pool requestId elicitationId _meta update \
        bus/pool x toolCallId";
    const ODD_KEYS: &str = r#"ID \u0069d i\u0064x Method PARAMS re\u0073ult ſessionId \u017fessionID sessionid POOL
        bus\/pool Update \ud800 a\"b\\ é id\n"#;
    const SCALARS: &str = r#"1|0|-0.5e+3|1e999|12345678901234567890|null|true|false|""|"abc"|"é😀"|"\ud800\u0041"|"{\\"|
        "a \"quoted\" word\n"|
        "a text that goes on for more than the sixty-four bytes that are read by words, to meet memchr as well"|
        "a text of that length with an accént, and an escape \t behind it, before it comes to its end at last""#;
    const METHODS: [&str; 4] = ["session/prompt", "session/update", "$/cancel_request", "m"];
    const NOISE: &[u8] = b"\"\\{}[]:,0-.eEu+ntf \t\n\0\x1f\x7f\xc3\xa9\xff";

    impl Lines {
        pub(in crate::bus) fn new(seed: u64) -> Lines {
            Lines {
                state: seed,
                keys: KEYS.split_whitespace().collect(),
                odd_keys: ODD_KEYS.split_whitespace().collect(),
                scalars: SCALARS.split('|').map(str::trim).collect(),
            }
        }

        pub(in crate::bus) fn next_line(&mut self) -> Vec<u8> {
            let text = match self.below(8) {
                0 => self.value(4),
                1 => self.object(4),
                _ => self.message(),
            };
            let mut line = text.into_bytes();
            if self.below(3) == 0 {
                for _ in 0..=self.below(3) {
                    self.mutate(&mut line);
                }
            }
            line
        }

        fn message(&mut self) -> String {
            let mut members = vec![r#""jsonrpc":"2.0""#.to_owned()];
            if self.below(3) != 0 {
                members.push(format!(r#""id":{}"#, self.scalar()));
            }
            if self.below(2) == 0 {
                members.push(format!(r#""method":"{}""#, METHODS[self.below(4)]));
                members.push(format!(r#""params":{}"#, self.params()));
            } else {
                let key = ["result", "error"][self.below(2)];
                members.push(format!(r#""{key}":{}"#, self.object(2)));
            }
            if self.below(4) == 0 {
                members.push(self.member(2));
            }
            let first = self.below(members.len());
            members.rotate_left(first);
            format!("{}{{{}}}", self.space(), members.join(","))
        }

        fn params(&mut self) -> String {
            let mut members = Vec::new();
            for (key, chance) in [("sessionId", 2), ("requestId", 4), ("elicitationId", 6)] {
                if self.below(chance) == 0 {
                    members.push(format!(r#""{key}":{}"#, self.scalar()));
                }
            }
            for (key, inner) in [("_meta", "bus/pool"), ("update", "sessionId")] {
                if self.below(4) == 0 {
                    members.push(format!(r#""{key}":{{{},"{inner}":{}}}"#, self.member(1), self.scalar()));
                }
            }
            members.push(self.member(2));
            format!("{{{}}}", members.join(","))
        }

        fn value(&mut self, deeper: usize) -> String {
            match self.below(4) {
                0 if deeper > 0 => self.object(deeper),
                1 if deeper > 0 => {
                    let elements: Vec<_> = (0..self.below(3)).map(|_| self.value(deeper - 1)).collect();
                    format!("[{}{}]", self.space(), elements.join(","))
                }
                _ => self.scalar().to_owned(),
            }
        }

        fn object(&mut self, deeper: usize) -> String {
            let members: Vec<_> = (0..self.below(4)).map(|_| self.member(deeper)).collect();
            format!("{{{}{}}}", self.space(), members.join(","))
        }

        fn member(&mut self, deeper: usize) -> String {
            let odd = self.below(8) == 0;
            let key = self.below(if odd { self.odd_keys.len() } else { self.keys.len() });
            let key = if odd { self.odd_keys[key] } else { self.keys[key] };
            let value = self.value(deeper.saturating_sub(1));
            format!(r#"{}"{key}"{}:{}{value}"#, self.space(), self.space(), self.space())
        }

        fn scalar(&mut self) -> &'static str {
            // Plain strings are what routing is about, so half of them are that.
            let scalar = self.below(self.scalars.len() * 2);
            self.scalars.get(scalar).copied().unwrap_or(r#""s-1""#)
        }

        fn space(&mut self) -> &'static str {
            ["", "", "", "", "", " ", "\t", " \r\n"][self.below(8)]
        }

        fn mutate(&mut self, line: &mut Vec<u8>) {
            let at = self.below(line.len() + 1);
            let to = (at + self.below(8)).min(line.len());
            match self.below(6) {
                0 => line.truncate(at),
                1 => drop(line.drain(at..to)),
                2 => line.extend_from_within(at..to),
                3 => line.insert(at, NOISE[self.below(NOISE.len())]),
                _ if at == line.len() => {}
                4 => line[at] = NOISE[self.below(NOISE.len())],
                _ => line[at] ^= 1 << self.below(8),
            }
        }

        /// Xorshift.
        fn below(&mut self, bound: usize) -> usize {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            (self.state >> 32) as usize % bound
        }
    }

    /// All members of an object, in their order, keys as spelled.
    struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

    impl<'de> Deserialize<'de> for Members<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Each;
            impl<'de> Visitor<'de> for Each {
                type Value = Members<'de>;
                fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                    out.write_str("an object")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                    let mut members = Vec::new();
                    while let Some(member) = map.next_entry()? {
                        members.push(member);
                    }
                    Ok(Members(members))
                }
            }
            deserializer.deserialize_map(Each)
        }
    }

    /// The same verdict as `scan`, by way of serde_json. Syntax faults are all at byte 0.
    #[derive(Default)]
    struct Oracle<'a> {
        found: Vec<(Field, &'a str)>,
        ids: usize,
        fault: Option<Fault>,
    }

    impl<'a> Oracle<'a> {
        fn scan(line: &'a [u8]) -> Result<Envelope, Malformed> {
            let refuse = |fault| Err(Malformed { fault, id: None, answer: false });
            let Ok(value) = serde_json::from_slice::<&RawValue>(line) else {
                return refuse(Fault::Syntax { at: 0 });
            };
            if !value.get().starts_with('{') {
                return refuse(Fault::NotObject);
            }
            let mut oracle = Oracle::default();
            oracle.visit("", value.get());
            let span = |token: &str| {
                let start = token.as_ptr() as usize - line.as_ptr() as usize;
                Span::new(start, start + token.len())
            };
            oracle.envelope(span).map_err(|fault| {
                let id = oracle.find(Field::Id).filter(|id| oracle.ids == 1 && is_id(id)).map(span);
                let asks = oracle.find(Field::Method).is_some() || fault == Fault::EscapedKey(Field::Method);
                Malformed { fault, id, answer: !asks }
            })
        }

        fn visit(&mut self, level: &str, object: &'a str) {
            let fields = match level {
                "" => &FIELDS[..8],
                "params" => &FIELDS[8..13],
                "_meta" => &FIELDS[13..14],
                "update" => &FIELDS[14..15],
                _ => &FIELDS[15..],
            };
            let Members(members) = serde_json::from_str(object).expect("was validated");
            for (key, value) in members {
                let Ok(decoded) = serde_json::from_str::<String>(key.get()) else { continue };
                let folded = decoded.replace('ſ', "s").replace('\u{212a}', "k");
                let Some(&(field, name)) = fields.iter().find(|(_, name)| name.eq_ignore_ascii_case(&folded))
                else {
                    continue;
                };
                self.ids += usize::from(key.get() == r#""id""# && level.is_empty());
                if key.get() != format!("\"{name}\"") {
                    self.fault.get_or_insert(Fault::EscapedKey(field));
                } else if self.find(field).is_some() {
                    self.fault.get_or_insert(Fault::DuplicateKey(field));
                } else {
                    self.found.push((field, value.get()));
                    let is_level =
                        matches!((level, name), ("", "params" | "result") | ("params", "_meta" | "update"));
                    if is_level && value.get().starts_with('{') {
                        self.visit(name, value.get());
                    }
                }
            }
        }

        fn envelope(&self, span: impl Fn(&str) -> Span) -> Result<Envelope, Fault> {
            if let Some(fault) = self.fault {
                return Err(fault);
            }
            let has = |field| self.find(field).is_some();
            let (method, result, error) = (has(Field::Method), has(Field::Result), has(Field::Error));
            let wrong = match (method, result, error) {
                (true, true, _) | (true, _, true) => Some("method excludes result and error"),
                (false, true, true) => Some("result excludes error"),
                (false, false, false) => Some("method, result and error are all missing"),
                _ => None,
            };
            let method = self.find(Field::Method).unwrap_or("\"\"");
            let id = self.find(Field::Id).filter(|&id| id != "null" || has(Field::Method));
            let wrong = wrong
                .or((!method.starts_with('"')).then_some("method must be a string"))
                .or(method.contains('\\').then_some("method must be spelled plainly"))
                .or(id.is_some_and(|id| !is_id(id)).then_some("id must be a string or a number"));
            if let Some(wrong) = wrong {
                return Err(Fault::NotRpc(wrong));
            }
            let text = |field: Field, strict: Option<&'static str>| match (self.find(field), strict) {
                (None | Some("null"), _) => Ok(None),
                (Some(token), _) if token.starts_with('"') => Ok(Some(span(token))),
                (_, Some(wrong)) => Err(Fault::NotRpc(wrong)),
                (_, None) => Ok(None),
            };
            Ok(Envelope {
                kind: match (has(Field::Method), id) {
                    (true, Some(_)) => Kind::Request,
                    (true, None) => Kind::Notification,
                    (false, _) => Kind::Answer { failed: error },
                },
                id: id.map(&span),
                method: if has(Field::Method) { span(&method[1..method.len() - 1]) } else { Span::default() },
                params: self.find(Field::Params).map(&span),
                outcome: self.find(Field::Result).or(self.find(Field::Error)).map(&span),
                session: text(Field::Session, Some("sessionId must be a string"))?,
                top_session: text(Field::TopSession, Some("sessionId must be a string"))?,
                pool: text(Field::Pool, Some("pool must be a string"))?,
                meta_pool: text(Field::MetaPool, Some("bus/pool must be a string"))?,
                request: self.find(Field::Request).filter(|token| is_id(token)).map(&span),
                elicitation: text(Field::Elicitation, None)?,
                child: text(Field::Child, None)?,
                result_session: text(Field::ResultSession, Some("sessionId must be a string"))?,
            })
        }

        fn find(&self, field: Field) -> Option<&'a str> {
            self.found.iter().find(|(found, _)| *found == field).map(|(_, value)| *value)
        }
    }

    fn is_id(token: &str) -> bool {
        token.starts_with('"') || token.parse::<f64>().is_ok()
    }

    fn scan(line: &str) -> Result<Envelope, Fault> {
        Envelope::scan(line.as_bytes()).map_err(|malformed| malformed.fault)
    }

    fn not_json(line: &[u8]) -> bool {
        matches!(Envelope::scan(line), Err(Malformed { fault: Fault::Syntax { .. } | Fault::TooDeep, .. }))
    }

    #[test]
    fn it_agrees_with_serde_json_on_made_up_lines() {
        std::thread::scope(|scope| {
            for seed in [0x5eed_0000, 0x5eed_ffff] {
                scope.spawn(move || agrees_with_serde_json(seed, 100_000));
            }
        });
    }

    fn agrees_with_serde_json(seed: u64, count: usize) {
        let mut lines = Lines::new(seed);
        let (mut good, mut not_rpc, mut broken) = (0, 0, 0);
        for _ in 0..count {
            let line = lines.next_line();
            let shown = || String::from_utf8_lossy(&line);
            let expected = Oracle::scan(&line);
            let got = Envelope::scan(&line);
            if let Err(Malformed { fault: Fault::Syntax { .. }, .. }) = expected {
                broken += 1;
                assert!(not_json(&line), "{got:?} for {}", shown());
                continue;
            }
            good += usize::from(got.is_ok());
            not_rpc += usize::from(got.is_err());
            assert_eq!(got, expected, "{}", shown());
        }
        assert!(
            good.min(not_rpc).min(broken) > count / 10,
            "{good} good, {not_rpc} not rpc, {broken} broken"
        );
    }

    #[test]
    fn every_field_is_found_where_it_stands() {
        let line = concat!(
            r#" {"jsonrpc":"2.0","id":"a\"b","sessionId":"top","pool":"p","method":"m/é","params":{"sessionId":"s","#,
            r#""requestId":-1.50,"elicitationId":"e","_meta":{"x":{"bus/pool":1},"bus/pool":"q"},"#,
            r#""update":{"sessionId":"c"},"sessionid_":{"sessionId":1,"id":2}}} "#,
        );
        let envelope = scan(line).unwrap();
        let text =
            |span: Option<Span>| span.map(|span| std::str::from_utf8(span.of(line.as_bytes())).unwrap());
        assert_eq!(envelope.kind, Kind::Request);
        assert_eq!(text(envelope.id), Some(r#""a\"b""#));
        assert_eq!(text(Some(envelope.method)), Some("m/é"));
        assert_eq!(text(envelope.top_session), Some(r#""top""#));
        assert_eq!(text(envelope.pool), Some(r#""p""#));
        assert_eq!(text(envelope.session), Some(r#""s""#));
        assert_eq!(text(envelope.request), Some("-1.50"));
        assert_eq!(text(envelope.elicitation), Some(r#""e""#));
        assert_eq!(text(envelope.meta_pool), Some(r#""q""#));
        assert_eq!(text(envelope.child), Some(r#""c""#));
        assert!(text(envelope.params).unwrap().starts_with(r#"{"sessionId":"s","#));
        assert!(text(envelope.params).unwrap().ends_with(r#""id":2}}"#));
        assert_eq!((envelope.outcome, envelope.result_session), (None, None));

        let line = r#"{"result":{"sessionId":"r"},"id":7}"#;
        let envelope = scan(line).unwrap();
        assert_eq!(envelope.kind, Kind::Answer { failed: false });
        assert_eq!(envelope.outcome, Some(Span::new(10, 27)));
        assert_eq!(envelope.result_session, Some(Span::new(23, 26)));
        assert_eq!(envelope.id, Some(Span::new(33, 34)));
        assert_eq!(envelope.method, Span::default());
    }

    #[test]
    fn a_line_is_a_request_a_notification_or_an_answer() {
        let answer = |failed| Kind::Answer { failed };
        for (line, kind, has_id) in [
            (r#"{"id":1,"method":"m"}"#, Kind::Request, true),
            (r#"{"id":1e999,"method":"","jsonrpc":[]}"#, Kind::Request, true),
            (r#"{"method":"m","params":[{"id":1,"id":2}]}"#, Kind::Notification, false),
            (r#"{"method":"m","params":null}"#, Kind::Notification, false),
            (r#"{"id":1,"result":null}"#, answer(false), true),
            (r#"{"id":"x","error":{}}"#, answer(true), true),
            (r#"{"id":null,"error":{}}"#, answer(true), false),
            (r#"{"error":{"code":1}}"#, answer(true), false),
        ] {
            let envelope = scan(line).unwrap();
            assert_eq!((envelope.kind, envelope.id.is_some()), (kind, has_id), "{line}");
        }
    }

    #[test]
    fn what_is_not_rpc_is_refused_with_the_reason() {
        for (line, why) in [
            (r#"{"id":null,"method":"m"}"#, "id must be a string or a number"),
            (r#"{"id":true,"method":"m"}"#, "id must be a string or a number"),
            (r#"{"id":[1],"method":"m"}"#, "id must be a string or a number"),
            (r#"{"id":{},"result":1}"#, "id must be a string or a number"),
            (r#"{"id":false,"error":1}"#, "id must be a string or a number"),
            (r#"{"method":1}"#, "method must be a string"),
            (r#"{"method":null}"#, "method must be a string"),
            (r#"{"method":"session\/new"}"#, "method must be spelled plainly"),
            (r#"{"method":"m","result":1}"#, "method excludes result and error"),
            (r#"{"method":"m","error":1,"id":1}"#, "method excludes result and error"),
            (r#"{"id":1,"result":1,"error":null}"#, "result excludes error"),
            (r#"{"id":1}"#, "method, result and error are all missing"),
            ("{}", "method, result and error are all missing"),
            (r#"{"method":"m","params":{"sessionId":1}}"#, "sessionId must be a string"),
            (r#"{"method":"m","sessionId":{}}"#, "sessionId must be a string"),
            (r#"{"id":1,"result":{"sessionId":true}}"#, "sessionId must be a string"),
            (r#"{"method":"m","pool":[]}"#, "pool must be a string"),
            (r#"{"method":"m","params":{"_meta":{"bus/pool":1}}}"#, "bus/pool must be a string"),
        ] {
            assert_eq!(scan(line), Err(Fault::NotRpc(why)), "{line}");
        }
    }

    #[test]
    fn null_is_absent_and_the_lesser_fields_may_be_anything() {
        for line in [
            r#"{"method":"m","sessionId":null,"pool":null,"params":{"sessionId":null,"_meta":null,"update":null}}"#,
            r#"{"method":"m","params":{"requestId":null,"elicitationId":null,"_meta":{"bus/pool":null}}}"#,
            r#"{"method":"m","params":{"requestId":{},"elicitationId":1,"update":{"sessionId":[]},"_meta":[]}}"#,
            r#"{"method":"m","params":{"requestId":true,"elicitationId":{},"update":{"sessionId":0},"_meta":1}}"#,
            r#"{"method":"m","params":[{"sessionId":1}]}"#,
            r#"{"method":"m","params":"sessionId"}"#,
        ] {
            let found = scan(line).unwrap();
            let absent = Envelope { kind: found.kind, method: found.method, params: found.params, ..ABSENT };
            assert_eq!(found, absent, "{line}");
        }
        assert_eq!(scan(r#"{"result":{"sessionId":null}}"#).unwrap().result_session, None);
    }

    const ABSENT: Envelope = Envelope {
        kind: Kind::Notification,
        id: None,
        method: Span { start: 0, end: 0 },
        params: None,
        outcome: None,
        session: None,
        top_session: None,
        pool: None,
        meta_pool: None,
        request: None,
        elicitation: None,
        child: None,
        result_session: None,
    };

    #[test]
    fn a_routing_key_stands_once_and_is_spelled_plainly() {
        let wrap = |field: Field, members: &str| match field as usize {
            0..8 => format!("{{{members}}}"),
            8..13 => format!(r#"{{"params":{{{members}}},"method":"m"}}"#),
            13 => format!(r#"{{"params":{{"_meta":{{{members}}}}},"method":"m"}}"#),
            14 => format!(r#"{{"params":{{"update":{{{members}}}}},"method":"m"}}"#),
            _ => format!(r#"{{"id":1,"result":{{{members}}}}}"#),
        };
        for (index, (field, name)) in FIELDS.into_iter().enumerate() {
            assert_eq!(
                (field as usize, field.name()),
                (index, name),
                "the table is in the order of the enum"
            );
            assert!(name.len() <= NAME_BYTES_MAX);
            let twice = wrap(field, &format!(r#""{name}":"a","x":1,"{name}":"a""#));
            assert_eq!(scan(&twice), Err(Fault::DuplicateKey(field)), "{twice}");
            let all_escaped: String = name.bytes().map(|byte| format!("\\u{byte:04X}")).collect();
            let mut spellings = vec![name.to_uppercase(), all_escaped, name.replacen('s', "ſ", 1)];
            spellings.extend([name.replacen('s', r"\u017f", 1), name.replace('/', r"\/")]);
            for at in 0..name.len() {
                let byte = name.as_bytes()[at];
                let (before, after) = (&name[..at], &name[at + 1..]);
                spellings.push(format!("{before}\\u{byte:04x}{after}"));
                spellings.push(format!("{before}{}{after}", (byte as char).to_ascii_uppercase()));
            }
            for spelling in spellings.into_iter().filter(|spelling| spelling != name) {
                let alone = wrap(field, &format!(r#""{spelling}":"a""#));
                assert_eq!(scan(&alone), Err(Fault::EscapedKey(field)), "{alone}");
                let beside = wrap(field, &format!(r#""{name}":"a","{spelling}":"b""#));
                assert_eq!(scan(&beside), Err(Fault::EscapedKey(field)), "{beside}");
            }
        }
        assert_eq!(disguised(&[(Field::Pool, "kiosk")], "\u{212a}iosK".as_bytes()), Some(Field::Pool));
    }

    #[test]
    fn other_keys_and_deeper_levels_are_free() {
        for line in [
            r#"{"method":"m","a":1,"a":2,"\u0061":3,"É\ud800":4,"idx":5,"i\u0064x":6,"id\u0000":7,"\n":8}"#,
            r#"{"method":"m","params":{"id":1,"id":2,"ID":3,"pool":4,"\u0070ool":5,"bus/pool":6,"Method":7}}"#,
            r#"{"method":"m","params":{"x":{"sessionId":1,"sessionId":2,"SESSIONID":3}}}"#,
            r#"{"method":"m","params":{"update":{"content":{"sessionId":1,"sessionId":2},"_meta":1,"_Meta":2}}}"#,
            r#"{"method":"m","params":{"_meta":{"sessionId":1,"sessionId":2,"update":{"sessionId":3}}}}"#,
            r#"{"id":1,"error":{"sessionId":1,"sessionId":2,"\u0073essionId":3}}"#,
            r#"{"id":1,"result":{"update":{"sessionId":1,"sessionId":2},"_meta":{"bus/pool":1,"bus/pool":2}}}"#,
        ] {
            assert!(scan(line).is_ok(), "{:?} for {line}", scan(line));
        }
    }

    #[test]
    fn a_bad_line_still_gives_its_id() {
        let long = "[".repeat(2000);
        for (line, id, answer) in [
            (r#"{"result":1,"result":2,"id":"a"}"#, Some(r#""a""#), true),
            (r#"{"id":5,"Result":{}}"#, Some("5"), true),
            (r#"{"id":5}"#, Some("5"), true),
            (r#"{"id":5,"result":1,"error":2}"#, Some("5"), true),
            (r#"{"params":{"sessionId":1,"sessionId":2},"method":"m","id":5}"#, Some("5"), false),
            (r#"{"id":5,"METHOD":"m"}"#, Some("5"), false),
            (r#"{"id":5,"ID":6,"result":1}"#, Some("5"), true),
            (r#"{"id":5,"id":5,"id":5,"result":1}"#, None, true),
            (r#"{"id":5,"id":null,"result":1}"#, None, true),
            (r#"{"id":[5],"result":1}"#, None, true),
            ("{\"id\":5,\"result\":\"a\x01b\"}", Some("5"), true),
            ("{\"result\":\"a\x01b\",\"id\":5}", Some("5"), true),
            (r#"{"id":5,"result":"a\x"}"#, Some("5"), true),
            (r#"{"id":05,"result":1}"#, None, true),
            (r#"{"id":"\x","result":1}"#, None, true),
            (r#"{"id":5,"method":nil}"#, Some("5"), false),
            (r#"{"id":5,"#, Some("5"), false),
            (r#"got {"id":5,"result":1}"#, None, false),
            (r#"[{"id":5,"result":1}]"#, None, false),
            (&format!(r#"{{"result":{long},"id":5"#), None, true),
            (&format!(r#"{{"id":5,"result":{long}"#), Some("5"), true),
        ] {
            let malformed = Envelope::scan(line.as_bytes()).unwrap_err();
            let found = malformed.id.map(|id| id.of(line.as_bytes()));
            assert_eq!(
                (found, malformed.answer),
                (id.map(str::as_bytes), answer),
                "{malformed:?} for {line:.99}"
            );
        }
        let not_utf8 = b"{\"result\":\"\xff\",\"id\":\"a\"}";
        let malformed =
            Malformed { fault: Fault::Syntax { at: 11 }, id: Some(Span::new(19, 22)), answer: true };
        assert_eq!(Envelope::scan(not_utf8), Err(malformed));
    }

    #[test]
    fn text_that_is_not_json_is_refused_where_it_breaks() {
        for (line, at) in [
            (&b""[..], 0),
            (b"  ", 2),
            (b"hello", 0),
            (b"{", 1),
            (b"{\"id\":1,}", 8),
            (b"{,}", 1),
            (b"{\"id\" 1}", 6),
            (b"{\"id\":01}", 7),
            (b"{\"id\":1}}", 8),
            (b"{\"id\":1}\0", 8),
            (b"\xef\xbb\xbf{\"id\":1}", 0),
            (b"{\"a\":\"\x1f\"}", 6),
            (b"{\"a\":\"b\\", 7),
            (b"{\"a\":\"\\u12g4\"}", 6),
            (b"{\"a\":tru}", 5),
            (b"{\"a\":[1}", 7),
            (b"{\"a\":{]", 6),
            (b"{\"a\":\"\xc3\"}", 6),
            (b"{\"a\":\"\xed\xa0\x80\"}", 6),
            (b"[\"\xc3\"]", 2),
        ] {
            let fault = Envelope::scan(line).unwrap_err().fault;
            assert_eq!(fault, Fault::Syntax { at }, "{}", String::from_utf8_lossy(line));
        }
        for line in ["[]", " [{\"id\":1}] ", "1", "\"{}\"", "null", "-0.0e-0"] {
            assert_eq!(scan(line), Err(Fault::NotObject), "{line}");
        }
    }

    #[test]
    fn a_mark_is_found_at_every_place_of_a_string() {
        let marks = ["\0", "\x1f", "\\x", r#"\""#, "é", "\x7f", r"\u00e9"].map(str::as_bytes);
        let marks = marks.into_iter().chain([&b"\xff"[..], b"\x80"]);
        for mark in marks {
            let near = (0..200).flat_map(|before| [0, 1, 7, 8, 100].map(|after| (before, after)));
            let far = (BLOCK_BYTES + 50..BLOCK_BYTES + 80)
                .flat_map(|before| [3, 2 * BLOCK_BYTES].map(|after| (before, after)));
            for (before, after) in near.chain(far) {
                let mut line = b"{\"method\":\"m\",\"x\":\"".to_vec();
                line.resize(line.len() + before, b'.');
                line.extend_from_slice(mark);
                line.resize(line.len() + after, b'.');
                line.extend_from_slice(b"\"}");
                let accepted = serde_json::from_slice::<&RawValue>(&line).is_ok();
                assert_eq!(!not_json(&line), accepted, "{mark:?} behind {before}, before {after}");
            }
        }
    }

    #[test]
    fn the_depth_is_bounded_and_costs_no_stack() {
        let nest = |open: &str, depth: usize, close: &str| {
            format!(r#"{{"method":"m","params":{}1{}}}"#, open.repeat(depth), close.repeat(depth))
        };
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"update":"#, "}]")] {
            let levels = (DEPTH_MAX - 1) / close.len();
            assert!(scan(&nest(open, levels, close)).is_ok(), "{open}");
            assert_eq!(scan(&nest(open, levels + 1, close)), Err(Fault::TooDeep), "{open}");
            assert_eq!(scan(&nest(open, 200_000, close)), Err(Fault::TooDeep), "{open}");
        }
        for key in ["_meta", "update"] {
            let inside = |depth| {
                scan(&format!(
                    r#"{{"method":"m","params":{{"{key}":{{"a":{}1{}}}}}}}"#,
                    "[".repeat(depth),
                    "]".repeat(depth)
                ))
            };
            assert!(inside(DEPTH_MAX - 3).is_ok());
            assert_eq!(inside(DEPTH_MAX - 2), Err(Fault::TooDeep));
        }
        assert_eq!(scan(&"[".repeat(200_000)), Err(Fault::TooDeep));
        assert_eq!(scan(&(r#"{"params":"#.repeat(200_000))), Err(Fault::TooDeep));
        let crossed = format!(r#"{{"params":{}1{}]}}}}"#, "[{\"a\":".repeat(300), "}]".repeat(299));
        assert_eq!(scan(&crossed), Err(Fault::Syntax { at: crossed.len() - 3 }));
    }

    #[test]
    fn a_fault_is_one_sentence() {
        for (fault, sentence) in [
            (Fault::Syntax { at: 3 }, "not valid JSON at byte 3"),
            (Fault::TooDeep, "nested deeper than 1024 levels"),
            (Fault::NotObject, "not a JSON object"),
            (Fault::DuplicateKey(Field::Session), r#"the key "sessionId" is there twice"#),
            (Fault::EscapedKey(Field::MetaPool), r#"the key "bus/pool" is not spelled plainly"#),
            (Fault::NotRpc("pool must be a string"), "not JSON-RPC: pool must be a string"),
        ] {
            assert_eq!(fault.to_string(), sentence);
        }
    }

    #[test]
    fn listed_sessions_are_found_with_their_ids() {
        let listed = |result: &str| -> Vec<(String, Option<String>)> {
            let line = format!(r#"{{"id":1,"result":{result},"z":[]}}"#);
            let outcome = scan(&line).unwrap().outcome.unwrap();
            let text = |span: Span| String::from_utf8(span.of(line.as_bytes()).to_vec()).unwrap();
            let sessions = listed_sessions(line.as_bytes(), outcome);
            sessions.into_iter().map(|listed| (text(listed.element), listed.id.map(text))).collect()
        };
        for (result, expected) in [
            ("null", vec![]),
            ("[]", vec![]),
            ("{}", vec![]),
            (r#"{"sessions":{"sessionId":"a"}}"#, vec![]),
            (r#"{"sessions":[ ]}"#, vec![]),
            (
                r#"{"sessions":[1],"x":2,"s\u0065ssions" : [ "a" , {} ]}"#,
                vec![(r#""a""#, None), ("{}", None)],
            ),
            (
                r#"{"sessions":[{"sessionId":"a","cwd":"/[{"} ,{"sessionId":1},{"x":{"sessionId":"b"}}],"next":null}"#,
                vec![
                    (r#"{"sessionId":"a","cwd":"/[{"}"#, Some(r#""a""#)),
                    (r#"{"sessionId":1}"#, None),
                    (r#"{"x":{"sessionId":"b"}}"#, None),
                ],
            ),
            (
                r#"{"sessions":[{"sessionId":"a","\u0073essionId":"b\"","\ud800":1}]}"#,
                vec![(r#"{"sessionId":"a","\u0073essionId":"b\"","\ud800":1}"#, Some(r#""b\"""#))],
            ),
            (
                r#"{"sessions":[{"sessionId":"a","sessionId":null}]}"#,
                vec![(r#"{"sessionId":"a","sessionId":null}"#, None)],
            ),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(e, id)| (e.to_owned(), id.map(str::to_owned))).collect();
            assert_eq!(listed(result), expected, "{result}");
        }
    }

    #[test]
    fn equal_strings_have_one_canonical_spelling() {
        for (token, body) in [
            (r#""""#, ""),
            (r#""abc é""#, "abc é"),
            (r#""\u0061\/\u00e9""#, "a/é"),
            (r#""\ud83d\ude00""#, "😀"),
            (r#""\u0022\\\u000a\u001F""#, r#"\"\\\n\u001f"#),
            (r#""\ud800\u0061""#, r"\ud800\u0061"),
        ] {
            assert_eq!(canonical(token.as_bytes()), body.as_bytes(), "{token}");
        }
        assert!(matches!(canonical(b"\"plain\""), Cow::Borrowed(b"plain")));
    }

    /// https://github.com/nst/JSONTestSuite, where it is at hand.
    #[test]
    fn the_json_test_suite_passes() {
        let Some(suite) = std::env::var_os("JSON_TEST_SUITE") else { return };
        let mut files = 0;
        for entry in std::fs::read_dir(Path::new(&suite).join("test_parsing")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let line = std::fs::read(&path).unwrap();
            let valid = match name.as_bytes()[0] {
                b'y' => true,
                b'n' => false,
                _ => serde_json::from_slice::<&RawValue>(&line).is_ok(),
            };
            let got = Envelope::scan(&line);
            assert_eq!(!not_json(&line), valid, "{name}: {got:?}");
            if valid && !line.trim_ascii_start().starts_with(b"{") {
                assert_eq!(got.unwrap_err().fault, Fault::NotObject, "{name}");
            }
            files += 1;
        }
        assert!(files > 300, "only {files} files");
    }
}
