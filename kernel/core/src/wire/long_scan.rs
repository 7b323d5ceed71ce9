//! Scans a long line while it comes, so that nothing is left to do at once when its end has come.
//!
//! The result is that of `Envelope::scan` for the whole line. Short lines are not scanned here: the reader is faster,
//! because it keeps its state on the stack. What the partial scan says of the line is known at any time as well, for a
//! line that is broken, or that is given up before its end.

use crate::mutants::{Check, enabled};
use crate::wire::field::{Container, Field, NAME_BYTES_MAX};
use crate::wire::json::{
    DEPTH_MAX, Key, NEAR_BYTES, ReadError, Span, find_special, is_special, starts_string_or_number,
};
use crate::wire::partial_scan::{Known, Next, PartialScan};
use crate::wire::scan::{Envelope, Fault, Found, Malformed, check_length};

/// A longer key is no spelling of a field: no escape of one character is longer than this.
const KEY_BYTES_MAX: usize = NAME_BYTES_MAX * "\\u0069".len();

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first byte that is not white space.
    Start,
    Value,
    /// The first value of an array, or its end.
    ValueOrEnd,
    Key,
    /// The first key of an object, or its end.
    KeyOrEnd,
    Colon,
    AfterValue,
    String {
        is_key: bool,
    },
    Number(Number),
    /// Nothing but white space.
    End,
}

/// The part of a number that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Number {
    /// The part that this byte belongs to, behind this one. `Ok(None)`: the number is complete without it.
    #[inline]
    fn next(self, byte: u8) -> Result<Option<Number>, ReadError> {
        let next = match (self, byte) {
            (Number::Minus, b'0') => Number::Zero,
            (Number::Minus | Number::Digits, b'0'..=b'9') => Number::Digits,
            (Number::Zero | Number::Digits, b'.') => Number::Point,
            (Number::Point | Number::Fraction, b'0'..=b'9') => Number::Fraction,
            (Number::Zero | Number::Digits | Number::Fraction, b'e' | b'E') => Number::E,
            (Number::E, b'+' | b'-') => Number::Sign,
            (Number::E | Number::Sign | Number::Exponent, b'0'..=b'9') => Number::Exponent,
            _ if self.is_complete() => return Ok(None),
            _ => return Err(ReadError::Syntax),
        };
        Ok(Some(next))
    }

    #[inline]
    fn is_complete(self) -> bool {
        matches!(self, Number::Zero | Number::Digits | Number::Fraction | Number::Exponent)
    }
}

/// The state of a scan between two pieces of the line.
pub(crate) struct LongScan {
    found: Found,
    phase: Phase,
    /// How many bytes have come.
    fed: usize,
    /// The position of the next byte. An escape, a literal or a character that is cut in two is read when it is whole.
    at: usize,
    /// The number of open brackets.
    depth: usize,
    /// One bit for each open bracket: set if it is a brace.
    braces: [u64; DEPTH_MAX / 64],
    /// The innermost open object in which routing reads fields, if the line is an object.
    container: Container,
    /// The number of brackets that are open in it. The line is no object if that is more than there can be.
    container_depth: usize,
    /// The field whose value comes next or is being read, if it is one.
    field: Option<Field>,
    /// How often the top-level key `id` has occurred, and whether it is that of the current member.
    ids: usize,
    is_id: bool,
    /// The last value of that key, as far as it was read, if it is a string or a number.
    id: Option<Span>,
    /// The position of the opening quote of the current or the last string, and where it ended if it was a key.
    quote: usize,
    key_end: usize,
    /// That string has no escapes so far.
    plain: bool,
    /// A string holds a byte beyond ASCII.
    non_ascii: bool,
    /// The bytes before this position are UTF-8.
    utf8_to: usize,
    /// There is something behind `utf8_to` that is not UTF-8.
    not_utf8: bool,
    /// Why the rest of the line is not read. `at` says where.
    stopped: Option<ReadError>,
    /// What the line may be all the same, if it is not read.
    partial: Option<Box<PartialScan>>,
    /// So many bytes of ASCII white space are in front of the first other one.
    blank: usize,
}

impl Default for LongScan {
    fn default() -> Self {
        LongScan {
            found: Found::default(),
            phase: Phase::Start,
            fed: 0,
            at: 0,
            depth: 0,
            braces: [0; DEPTH_MAX / 64],
            container: Container::Top,
            container_depth: usize::MAX,
            field: None,
            ids: 0,
            is_id: false,
            id: None,
            quote: 0,
            key_end: 0,
            plain: true,
            non_ascii: false,
            utf8_to: 0,
            not_utf8: false,
            stopped: None,
            partial: None,
            blank: 0,
        }
    }
}

impl LongScan {
    /// Reads on. `line` is all of the line that has come.
    pub(crate) fn feed(&mut self, line: &[u8]) {
        let Some(new) = line.get(self.fed..).filter(|new| !new.is_empty()) else { return };
        if self.blank == self.fed {
            self.blank += new.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        }
        self.fed = line.len();
        if let Some(partial) = &mut self.partial {
            return partial.feed(new);
        }
        if !enabled(Check::LongScan) {
            self.field = None;
        }
        match self.read(line) {
            Ok(()) => self.read_utf8(line),
            Err(error) => {
                self.stopped = Some(error);
                self.partial = Some(Box::new(self.partial(line)));
            }
        }
    }

    pub(crate) fn bytes_fed(&self) -> usize {
        self.fed
    }

    /// Whether nothing but white space has come.
    pub(crate) fn is_blank(&self) -> bool {
        self.blank == self.fed
    }

    /// The same for the white space of JSON alone.
    pub(crate) fn is_space(&self) -> bool {
        self.phase == Phase::Start && self.stopped.is_none()
    }

    /// What the partial scan says of as much of the line as there is.
    pub(crate) fn partial(&self, line: &[u8]) -> PartialScan {
        let mut partial = match &self.partial {
            Some(partial) => (**partial).clone(),
            None => self.partial_before(line),
        };
        partial.feed(line.get(partial.bytes_fed()..).unwrap_or_default());
        partial
    }

    /// What the partial scan says of the bytes before `at`, which are valid so far.
    fn partial_before(&self, line: &[u8]) -> PartialScan {
        let has = |field: Field| self.found.seen & 1 << field as usize != 0;
        let id_is_read = matches!(self.phase, Phase::String { is_key: false } | Phase::Number(_));
        let is_top = self.depth == 1 && self.is_object();
        let id = self.id.map(|id| {
            let start = id.start as usize;
            if is_top && id_is_read && self.is_id {
                return (start, &line[start..self.at], false);
            }
            // Whatever follows a number at once would belong to it.
            (start, id.of(line), line[start] == b'"' || id.end as usize != self.at)
        });
        let next = match self.phase {
            Phase::Key | Phase::KeyOrEnd if is_top => Next::Key,
            Phase::String { is_key: true } if is_top => Next::RestOfKey(&line[self.quote..self.at]),
            Phase::Colon if is_top => Next::Colon(&line[self.quote..self.key_end]),
            Phase::Value if is_top && self.is_id => Next::Id,
            _ => Next::Other,
        };
        PartialScan::resumed(Known {
            bytes: self.at,
            depth: self.depth,
            is_object: self.is_object(),
            in_string: matches!(self.phase, Phase::String { .. }),
            ids: self.ids,
            id,
            has_method: has(Field::Method),
            has_outcome: has(Field::Result) || has(Field::Error),
            next,
        })
    }

    fn is_object(&self) -> bool {
        self.container_depth != usize::MAX
    }

    /// The result for the whole line, as much of which is read as was not fed.
    pub(crate) fn finish(&mut self, line: &[u8]) -> Result<Envelope, Malformed> {
        check_length(line)?;
        self.feed(line);
        let syntax = || Fault::Syntax { at: self.at };
        let fault = match (self.stopped, self.phase) {
            (Some(ReadError::TooDeep), _) => Fault::TooDeep,
            (Some(_), _) => syntax(),
            (None, Phase::Number(number)) if number.is_complete() && self.depth == 0 => Fault::NotObject,
            (None, Phase::End) if self.non_ascii && self.utf8_to < line.len() => {
                Fault::Syntax { at: self.utf8_to }
            }
            (None, Phase::End) if self.is_object() => return self.found.result(line),
            (None, Phase::End) => Fault::NotObject,
            (None, _) => syntax(),
        };
        // Stray output may quote a message somewhere in its text, but the line is not that message.
        if fault == Fault::NotObject || line.get(self.blank) != Some(&b'{') {
            return Err(Malformed { fault, id: None, answer: false });
        }
        Err(Malformed::guessed(fault, &self.partial(line)))
    }

    /// Checks what was read for UTF-8. Outside of strings only ASCII was accepted.
    fn read_utf8(&mut self, line: &[u8]) {
        if !self.non_ascii {
            self.utf8_to = self.at;
        } else if !self.not_utf8 {
            match std::str::from_utf8(&line[self.utf8_to..]) {
                Ok(_) => self.utf8_to = line.len(),
                Err(error) => {
                    self.utf8_to += error.valid_up_to();
                    // A character may be cut in two.
                    self.not_utf8 = error.error_len().is_some();
                }
            }
        }
    }

    /// Reads to the end of what has come, or up to something that can only be read together with what follows it.
    fn read(&mut self, line: &[u8]) -> Result<(), ReadError> {
        while let Some(&byte) = line.get(self.at) {
            let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
            match self.phase {
                Phase::String { is_key } => {
                    if !self.read_string(line, is_key)? {
                        return Ok(());
                    }
                }
                Phase::Number(number) => self.read_number(line, number)?,
                _ if is_space => self.at += 1,
                Phase::ValueOrEnd if byte == b']' => self.close(),
                Phase::Value | Phase::ValueOrEnd => {
                    if !self.read_value(line, byte)? {
                        return Ok(());
                    }
                }
                Phase::AfterValue => self.read_behind_value(byte)?,
                Phase::KeyOrEnd if byte == b'}' => self.close(),
                Phase::Key | Phase::KeyOrEnd if byte == b'"' => self.begin_string(true),
                Phase::Colon if byte == b':' => {
                    self.at += 1;
                    self.phase = Phase::Value;
                    if self.depth == self.container_depth {
                        self.record_key(line);
                    }
                }
                Phase::Start if byte == b'{' => {
                    self.container_depth = self.container.depth();
                    self.open(true);
                }
                Phase::Start => self.phase = Phase::Value,
                Phase::Key | Phase::KeyOrEnd | Phase::Colon | Phase::End => return Err(ReadError::Syntax),
            }
        }
        Ok(())
    }

    #[inline]
    fn read_behind_value(&mut self, byte: u8) -> Result<(), ReadError> {
        let innermost = self.depth - 1;
        let is_brace = self.braces[innermost / 64] >> (innermost % 64) & 1 == 1;
        match byte {
            b',' => {
                self.at += 1;
                self.phase = if is_brace { Phase::Key } else { Phase::Value };
            }
            b'}' if is_brace => self.close(),
            b']' if !is_brace => self.close(),
            _ => return Err(ReadError::Syntax),
        }
        Ok(())
    }

    /// The colon behind a key of the container has come.
    fn record_key(&mut self, line: &[u8]) {
        let token = &line[self.quote..self.key_end];
        let name = &token[1..token.len() - 1];
        let may_be_field = name.len() <= KEY_BYTES_MAX;
        let plain = may_be_field && self.plain && name.is_ascii();
        let key = Key { token, name, plain };
        self.is_id = self.container == Container::Top && name == b"id";
        if self.is_id {
            self.ids += 1;
            self.id = None;
        }
        self.field = if may_be_field { self.found.record_key(self.container, key) } else { None };
    }

    /// Reads the value with this first byte, or only its bracket. False: more of it has to come.
    #[inline]
    fn read_value(&mut self, line: &[u8], byte: u8) -> Result<bool, ReadError> {
        let field = self.field.filter(|_| self.depth == self.container_depth);
        if let Some(field) = field {
            self.found.firsts[field as usize] = byte;
            self.found.spans[field as usize] = Span::new(self.at, self.at);
        }
        if self.is_id && self.depth == 1 && starts_string_or_number(byte) {
            self.id = Some(Span::new(self.at, self.at));
        }
        match byte {
            b'"' => {
                self.begin_string(false);
                return self.read_string(line, false);
            }
            b'-' => return self.begin_number(line, Number::Minus),
            b'0' => return self.begin_number(line, Number::Zero),
            b'1'..=b'9' => return self.begin_number(line, Number::Digits),
            b't' => return self.read_literal(line, b"true"),
            b'f' => return self.read_literal(line, b"false"),
            b'n' => return self.read_literal(line, b"null"),
            b'{' | b'[' if self.depth == DEPTH_MAX => return Err(ReadError::TooDeep),
            b'{' => {
                if let Some(inner) = field.and_then(Container::of_value) {
                    self.container = inner;
                    self.container_depth = inner.depth();
                    self.field = None;
                }
                self.open(true);
            }
            b'[' => self.open(false),
            _ => return Err(ReadError::Syntax),
        }
        Ok(true)
    }

    #[inline]
    fn begin_number(&mut self, line: &[u8], number: Number) -> Result<bool, ReadError> {
        self.at += 1;
        self.phase = Phase::Number(number);
        self.read_number(line, number).map(|()| true)
    }

    fn begin_string(&mut self, is_key: bool) {
        self.quote = self.at;
        self.plain = true;
        self.at += 1;
        self.phase = Phase::String { is_key };
    }

    /// Reads a literal. False: more of it has to come.
    fn read_literal(&mut self, line: &[u8], literal: &[u8]) -> Result<bool, ReadError> {
        let rest = &line[self.at..];
        if rest.starts_with(literal) {
            self.at += literal.len();
            self.end_value();
            return Ok(true);
        }
        if literal.starts_with(rest) { Ok(false) } else { Err(ReadError::Syntax) }
    }

    /// Reads a number on.
    #[inline]
    fn read_number(&mut self, line: &[u8], mut number: Number) -> Result<(), ReadError> {
        loop {
            if matches!(number, Number::Digits | Number::Fraction | Number::Exponent) {
                let digits = line[self.at..].iter().take_while(|byte| byte.is_ascii_digit());
                self.at += digits.count();
            }
            let Some(&byte) = line.get(self.at) else { break };
            let Some(next) = number.next(byte)? else {
                self.end_value();
                return Ok(());
            };
            number = next;
            self.at += 1;
        }
        self.phase = Phase::Number(number);
        Ok(())
    }

    /// Reads a string on. False: more of it has to come.
    fn read_string(&mut self, line: &[u8], is_key: bool) -> Result<bool, ReadError> {
        let mut non_ascii = u32::from(self.non_ascii);
        let mut at = find_special(line, self.at, &mut non_ascii);
        let end = loop {
            match line.get(at) {
                Some(b'"') => break Ok(true),
                Some(b'\\') => {}
                Some(_) => break Err(ReadError::Syntax),
                None => break Ok(false),
            }
            self.plain = false;
            match escape_bytes(&line[at + 1..]) {
                Ok(Some(escape)) => at += escape,
                Ok(None) => break Ok(false),
                Err(error) => break Err(error),
            }
            // Escapes come in groups, where it is faster to look for the next one than to search for it.
            let near = line[at..].iter().take(NEAR_BYTES).take_while(|byte| !is_special(**byte));
            at = near.fold(at, |at, byte| {
                non_ascii |= u32::from(!byte.is_ascii());
                at + 1
            });
            if line.get(at).is_none_or(|byte| !is_special(*byte)) {
                at = find_special(line, at, &mut non_ascii);
            }
        };
        self.at = at;
        self.non_ascii = non_ascii != 0;
        if end == Ok(true) {
            self.at += 1;
            if is_key {
                self.key_end = self.at;
                self.phase = Phase::Colon;
            } else {
                self.end_value();
            }
        }
        end
    }

    /// A value has ended.
    #[inline]
    fn end_value(&mut self) {
        self.phase = if self.depth == 0 { Phase::End } else { Phase::AfterValue };
        if self.is_id
            && self.depth == 1
            && let Some(id) = &mut self.id
        {
            id.end = self.at as u32;
        }
        if self.depth == self.container_depth
            && let Some(field) = self.field.take()
        {
            self.found.spans[field as usize].end = self.at as u32;
            if self.found.firsts[field as usize] == b'"' {
                self.found.plain |= u16::from(self.plain) << field as usize;
            }
        }
    }

    /// Reads an opening bracket.
    #[inline]
    fn open(&mut self, brace: bool) {
        let bit = 1 << (self.depth % 64);
        let word = &mut self.braces[self.depth / 64];
        *word = if brace { *word | bit } else { *word & !bit };
        self.depth += 1;
        self.at += 1;
        self.phase = if brace { Phase::KeyOrEnd } else { Phase::ValueOrEnd };
    }

    /// Reads a closing bracket.
    #[inline]
    fn close(&mut self) {
        self.at += 1;
        let ends_container = self.depth == self.container_depth;
        self.depth -= 1;
        if !ends_container {
            return self.end_value();
        }
        self.phase = Phase::End;
        if let Some((parent, field)) = self.container.parent() {
            self.found.spans[field as usize].end = self.at as u32;
            self.container = parent;
            self.container_depth = parent.depth();
            self.phase = Phase::AfterValue;
        }
    }
}

/// The length of the escape whose backslash stands before these bytes. `None`: more of it has to come.
fn escape_bytes(rest: &[u8]) -> Result<Option<usize>, ReadError> {
    match rest.split_first() {
        None => Ok(None),
        Some((b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', _)) => Ok(Some(2)),
        Some((b'u', digits)) => {
            let digits = &digits[..digits.len().min(4)];
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return Err(ReadError::Syntax);
            }
            Ok((digits.len() == 4).then_some(6))
        }
        Some(_) => Err(ReadError::Syntax),
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl LongScan {
    /// The result for a line that comes in pieces of these lengths, again and again.
    pub(crate) fn scan(line: &[u8], pieces: &[usize]) -> Result<Envelope, Malformed> {
        let mut scan = LongScan::default();
        let (mut fed, mut pieces) = (0, pieces.iter().cycle());
        while fed < line.len() {
            fed = line.len().min(fed + pieces.next().map_or(1, |piece| (*piece).max(1)));
            scan.feed(&line[..fed]);
        }
        scan.finish(line)
    }
}

#[cfg(test)]
mod tests;
