//! What can still be told of a line that is too long to keep, or too broken to read.
//!
//! Follows strings, escapes and depth through any chunking, and keeps the id and whether the line asks or
//! answers. Holds a few hundred bytes whatever it is fed. Does not validate: a broken line gives a best guess.

use memchr::memchr2;

/// A longer id is not kept: the bus's own ids are numbers below 2^53, so it could not be one.
const ID_BYTES_MAX: usize = 128;

/// The longest key that is looked for.
const KEY_BYTES_MAX: usize = "method".len();

const _: () = assert!(size_of::<PartialScan>() <= 256);

#[derive(Clone, Debug)]
pub(crate) struct PartialScan {
    /// All bytes so far.
    fed: usize,
    depth: usize,
    /// The outermost bracket is a brace, so its strings before a colon are keys.
    object: bool,
    in_string: bool,
    /// The last byte was a backslash that escapes the next. Only where `in_string`.
    escaping: bool,
    awaits: Awaits,
    keeps: Keeps,
    key: [u8; KEY_BYTES_MAX],
    /// `KEY_BYTES_MAX + 1`: longer than any key that is looked for.
    key_bytes: usize,
    token: [u8; ID_BYTES_MAX],
    /// `ID_BYTES_MAX + 1`: too long to be kept.
    token_bytes: usize,
    /// Where in the line the token starts.
    token_at: usize,
    /// The token ended, so it is the whole of it.
    token_whole: bool,
    ids: usize,
    method: bool,
    outcome: bool,
}

/// What comes next in the outermost object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Key,
    Colon,
    /// The value of "id".
    Id,
    /// Nothing of interest before the next comma.
    Comma,
}

/// Where the bytes of the string or number under way are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Nothing,
    Key,
    Token,
}

impl Default for PartialScan {
    fn default() -> Self {
        PartialScan {
            fed: 0,
            depth: 0,
            object: false,
            in_string: false,
            escaping: false,
            awaits: Awaits::Comma,
            keeps: Keeps::Nothing,
            key: [0; KEY_BYTES_MAX],
            key_bytes: 0,
            token: [0; ID_BYTES_MAX],
            token_bytes: 0,
            token_at: 0,
            token_whole: false,
            ids: 0,
            method: false,
            outcome: false,
        }
    }
}

impl PartialScan {
    /// The next bytes of the line, in any chunking.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if self.in_string && !self.escaping && self.keeps == Keeps::Nothing {
                let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                if plain > 0 {
                    self.fed += plain;
                    rest = &rest[plain..];
                    continue;
                }
            }
            if self.in_string {
                self.step_in_string(byte);
            } else {
                self.step_between(byte);
            }
            self.fed += 1;
            rest = after;
        }
    }

    /// The top-level id as spelled, a string with its quotes or a number. Only if there is exactly one.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        if self.ids != 1 || !self.token_whole {
            return None;
        }
        self.token.get(..self.token_bytes)
    }

    /// Where in the line `id` starts.
    pub(crate) fn id_at(&self) -> usize {
        self.token_at
    }

    pub(crate) fn is_answer(&self) -> bool {
        self.outcome && !self.method
    }

    pub(crate) fn is_request(&self) -> bool {
        self.method && self.id().is_some()
    }

    fn step_in_string(&mut self, byte: u8) {
        let ends = byte == b'"' && !self.escaping;
        self.escaping = byte == b'\\' && !self.escaping;
        match self.keeps {
            Keeps::Nothing => {}
            Keeps::Key if ends => self.awaits = Awaits::Colon,
            Keeps::Key => self.keep_of_key(byte),
            Keeps::Token => {
                self.keep_of_token(byte);
                self.token_whole = ends;
            }
        }
        if ends {
            self.in_string = false;
            self.keeps = Keeps::Nothing;
        }
    }

    fn step_between(&mut self, byte: u8) {
        if self.keeps == Keeps::Token {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b']' | b'}') {
                self.keep_of_token(byte);
                return;
            }
            self.token_whole = true;
            self.keeps = Keeps::Nothing;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b',' if self.depth == 1 && self.object => self.awaits = Awaits::Key,
            b':' if self.depth == 1 && self.awaits == Awaits::Colon => self.note_key(),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => self.begin_value(byte),
        }
    }

    /// A key or a value starts with this byte.
    fn begin_value(&mut self, byte: u8) {
        if byte == b'"' {
            self.in_string = true;
        }
        if self.depth == 1 {
            match (self.awaits, byte) {
                (Awaits::Key, b'"') => {
                    self.keeps = Keeps::Key;
                    self.key_bytes = 0;
                }
                (Awaits::Id, b'"' | b'-' | b'0'..=b'9') => {
                    self.keeps = Keeps::Token;
                    self.token_at = self.fed;
                    self.token_bytes = 0;
                    self.keep_of_token(byte);
                }
                _ => {}
            }
            self.awaits = Awaits::Comma;
        }
        if matches!(byte, b'{' | b'[') {
            self.depth += 1;
            if self.depth == 1 {
                self.object = byte == b'{';
                self.awaits = if self.object { Awaits::Key } else { Awaits::Comma };
            }
        }
    }

    fn note_key(&mut self) {
        self.awaits = Awaits::Comma;
        match self.key.get(..self.key_bytes) {
            Some(b"id") => {
                self.ids += 1;
                self.awaits = Awaits::Id;
            }
            Some(b"method") => self.method = true,
            Some(b"result" | b"error") => self.outcome = true,
            _ => {}
        }
    }

    fn keep_of_key(&mut self, byte: u8) {
        if let Some(place) = self.key.get_mut(self.key_bytes) {
            *place = byte;
        }
        self.key_bytes = (self.key_bytes + 1).min(KEY_BYTES_MAX + 1);
    }

    fn keep_of_token(&mut self, byte: u8) {
        if let Some(place) = self.token.get_mut(self.token_bytes) {
            *place = byte;
        }
        self.token_bytes = (self.token_bytes + 1).min(ID_BYTES_MAX + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::oracle::Lines;
    use crate::wire::scan::{Envelope, Kind};

    fn partial(line: &[u8], chunk: usize) -> PartialScan {
        let mut partial = PartialScan::default();
        for bytes in line.chunks(chunk.max(1)) {
            partial.feed(bytes);
        }
        partial
    }

    fn told(partial: &PartialScan) -> (Option<&[u8]>, usize, bool, bool) {
        (partial.id(), partial.id_at(), partial.is_answer(), partial.is_request())
    }

    #[test]
    fn the_id_is_kept_as_it_is_spelled() {
        let id =
            |line: &str| partial(line.as_bytes(), 1).id().map(|id| String::from_utf8_lossy(id).into_owned());
        let wide = "7".repeat(ID_BYTES_MAX);
        for (line, expected) in [
            (r#"{"id":1,"method":"m"}"#, Some("1")),
            (r#" { "a" : { "id" : 2 } , "id" : -1.5e3 } "#, Some("-1.5e3")),
            (r#"{"result":[{"id":2}],"id":"a\"b\\"}"#, Some(r#""a\"b\\""#)),
            (r#"{"a":"\"id\":3","b":"id","id":4}"#, Some("4")),
            (r#"{"id":1,"id":1}"#, None),
            (r#"{"id":1,"id":null}"#, None),
            (r#"{"id":null}"#, None),
            (r#"{"id":true}"#, None),
            (r#"{"id":{"id":1}}"#, None),
            (r#"{"id":[1]}"#, None),
            (r#"{"ids":1,"i":2,"id\u0000":3}"#, None),
            (r#"["id",1,{"id":2}]"#, None),
            (r#"["a","id":5]"#, None),
            (r#"{"id":n5}"#, None),
            (r#"{"id":12"#, None),
            (r#"{"id":"12"#, None),
            ("", None),
            (&format!(r#"{{"id":{wide}}}"#), Some(&wide)),
            (&format!(r#"{{"id":{wide}7}}"#), None),
        ] {
            assert_eq!(id(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_line_asks_or_answers() {
        for (line, answer, request) in [
            (r#"{"id":1,"method":"m"}"#, false, true),
            (r#"{"method":"m"}"#, false, false),
            (r#"{"id":1,"result":{"method":1}}"#, true, false),
            (r#"{"error":{},"id":null}"#, true, false),
            (r#"{"method":"m","id":1,"result":{}}"#, false, true),
            (r#"{"a":"method","params":{"result":1}}"#, false, false),
            (r#"{"id":1,"methods":1,"results":2,"errors":3}"#, false, false),
        ] {
            let partial = partial(line.as_bytes(), 1);
            assert_eq!((partial.is_answer(), partial.is_request()), (answer, request), "{line}");
        }
    }

    #[test]
    fn every_chunking_tells_the_same() {
        let mut lines = Lines::new(0x5eed_0001);
        for _ in 0..if cfg!(miri) { 2 } else { 300 } {
            let line = lines.next_line();
            let whole = partial(&line, line.len());
            for chunk in 1..=64 {
                assert_eq!(told(&partial(&line, chunk)), told(&whole), "{}", String::from_utf8_lossy(&line));
            }
        }
    }

    #[test]
    fn it_agrees_with_the_scanner_on_good_lines() {
        let mut lines = Lines::new(0x5eed_0002);
        let (mut good, count) = (0, if cfg!(miri) { 100 } else { 20_000 });
        for _ in 0..count {
            let line = lines.next_line();
            let Ok(envelope) = Envelope::scan(&line) else { continue };
            if envelope.id.is_some_and(|id| id.of(&line).len() > ID_BYTES_MAX) {
                continue;
            }
            good += 1;
            let partial = partial(&line, 7);
            let shown = || String::from_utf8_lossy(&line);
            assert_eq!(partial.id(), envelope.id.map(|id| id.of(&line)), "{}", shown());
            assert_eq!(partial.is_request(), matches!(envelope.kind, Kind::Request), "{}", shown());
            assert_eq!(partial.is_answer(), matches!(envelope.kind, Kind::Answer { .. }), "{}", shown());
            if let Some(id) = envelope.id {
                assert_eq!(partial.id_at(), id.start as usize, "{}", shown());
            }
        }
        assert!(good > count / 20, "only {good} good lines");
    }
}
