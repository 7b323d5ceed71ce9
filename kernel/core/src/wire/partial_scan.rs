//! Finds the id and the kind of a line that is too long to keep or too broken to scan.
//!
//! It follows strings, escapes and depth through any chunking and needs a few hundred bytes for a line of any length.
//! It does not validate: for a broken line the result is a guess.

use serde::{Deserialize, Serialize};

use memchr::memchr2;

/// A longer id is not kept: the ids that the bus assigns are numbers below 2^53, so it cannot be one of them.
const ID_BYTES_MAX: usize = 128;

/// The length of the longest key that matters here.
const KEY_BYTES_MAX: usize = "method".len();

const _: () = assert!(size_of::<PartialScan>() <= 256);

/// The state of a scan between two chunks of the line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PartialScan {
    /// The number of bytes so far.
    bytes_fed: usize,
    /// The number of open brackets.
    depth: usize,
    /// The outermost bracket is a brace, so its strings before a colon are keys.
    is_object: bool,
    in_string: bool,
    /// The last byte was a backslash that escapes the next one. True only if `in_string`.
    escaping: bool,
    expected: Expected,
    copying: Copying,
    #[serde(with = "serde_bytes")]
    key: [u8; KEY_BYTES_MAX],
    /// The length of the key. `KEY_BYTES_MAX + 1`: it is longer than any key that matters.
    key_bytes: usize,
    #[serde(with = "serde_bytes")]
    id: [u8; ID_BYTES_MAX],
    /// The length of the id. `ID_BYTES_MAX + 1`: it is too long to be kept.
    id_bytes: usize,
    /// The position of the id in the line.
    id_start: usize,
    /// The id has ended, so `id` holds all of it.
    id_complete: bool,
    /// How often the key `id` occurs.
    id_count: usize,
    /// The key `method` occurs.
    has_method: bool,
    /// The key `result` or `error` occurs.
    has_outcome: bool,
}

/// What comes next in the outermost object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Expected {
    Key,
    Colon,
    /// The value of the key `id`.
    Id,
    /// Nothing that matters before the next comma.
    Comma,
}

/// What is known of a line whose beginning was read in another way, and is valid so far.
pub(crate) struct Known<'a> {
    pub(crate) bytes: usize,
    pub(crate) depth: usize,
    pub(crate) is_object: bool,
    pub(crate) in_string: bool,
    /// How often the top-level key `id` has occurred.
    pub(crate) ids: usize,
    /// Where the last value of it begins, as much of it as was read, and whether that is all, if it is a string or a
    /// number.
    pub(crate) id: Option<(usize, &'a [u8], bool)>,
    pub(crate) has_method: bool,
    pub(crate) has_outcome: bool,
    pub(crate) next: Next<'a>,
}

/// What comes next in a line that is known so far.
pub(crate) enum Next<'a> {
    /// A top-level key.
    Key,
    /// The rest of the one that begins so.
    RestOfKey(&'a [u8]),
    /// The colon behind it.
    Colon(&'a [u8]),
    /// The value of the key `id`.
    Id,
    Other,
}

/// So many bytes of a key or an id are enough to know that it is too long.
const TOKEN_BYTES: usize = ID_BYTES_MAX + KEY_BYTES_MAX + 2;

/// Where the bytes of the current string or number are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Copying {
    Nothing,
    Key,
    Id,
}

impl Default for PartialScan {
    fn default() -> Self {
        PartialScan {
            bytes_fed: 0,
            depth: 0,
            is_object: false,
            in_string: false,
            escaping: false,
            expected: Expected::Comma,
            copying: Copying::Nothing,
            key: [0; KEY_BYTES_MAX],
            key_bytes: 0,
            id: [0; ID_BYTES_MAX],
            id_bytes: 0,
            id_start: 0,
            id_complete: false,
            id_count: 0,
            has_method: false,
            has_outcome: false,
        }
    }
}

impl PartialScan {
    /// The scan of a line that was read in another way so far.
    pub(crate) fn resumed(known: Known<'_>) -> PartialScan {
        let mut scan = PartialScan {
            depth: 1,
            is_object: true,
            id_count: known.ids,
            has_method: known.has_method,
            has_outcome: known.has_outcome,
            ..PartialScan::default()
        };
        let mut is_in_token = false;
        if let Some((start, id, is_all)) = known.id {
            scan.bytes_fed = start;
            scan.expected = Expected::Id;
            scan.feed(&id[..id.len().min(TOKEN_BYTES)]);
            scan.id_complete = is_all;
            is_in_token = !is_all;
        }
        let copying = scan.copying;
        scan.copying = Copying::Nothing;
        scan.in_string = false;
        scan.expected = match known.next {
            Next::Key | Next::RestOfKey(_) => Expected::Key,
            Next::Colon(_) => Expected::Colon,
            Next::Id => Expected::Id,
            Next::Other => Expected::Comma,
        };
        if let Next::RestOfKey(key) | Next::Colon(key) = known.next {
            scan.key_bytes = 0;
            let name = key.get(1..).unwrap_or_default();
            let is_whole = matches!(known.next, Next::Colon(_));
            let name = if is_whole { &name[..name.len().saturating_sub(1)] } else { name };
            name.iter().take(TOKEN_BYTES).for_each(|byte| scan.push_key_byte(*byte));
            if !is_whole {
                scan.expected = Expected::Comma;
                scan.copying = Copying::Key;
            }
        } else if is_in_token {
            scan.copying = copying;
        }
        scan.escaping = false;
        scan.in_string = known.in_string;
        scan.is_object = known.is_object;
        scan.depth = known.depth;
        scan.bytes_fed = known.bytes;
        scan
    }

    /// The number of bytes so far.
    pub(crate) fn bytes_fed(&self) -> usize {
        self.bytes_fed
    }

    /// Reads the next bytes of the line, in any chunking.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if self.in_string && !self.escaping && self.copying == Copying::Nothing {
                let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                if plain > 0 {
                    self.bytes_fed += plain;
                    rest = &rest[plain..];
                    continue;
                }
            }
            if self.in_string {
                self.step_in_string(byte);
            } else {
                self.step_outside_string(byte);
            }
            self.bytes_fed += 1;
            rest = after;
        }
    }

    /// The top-level id as spelled, a string with its quotes or a number. `None`: there is none, or more than one.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        if self.id_count != 1 || !self.id_complete {
            return None;
        }
        self.id.get(..self.id_bytes)
    }

    /// The position of `id` in the line.
    pub(crate) fn id_start(&self) -> usize {
        self.id_start
    }

    pub(crate) fn is_answer(&self) -> bool {
        self.has_outcome && !self.has_method
    }

    pub(crate) fn is_request(&self) -> bool {
        self.has_method && self.id().is_some()
    }

    fn step_in_string(&mut self, byte: u8) {
        let ends = byte == b'"' && !self.escaping;
        self.escaping = byte == b'\\' && !self.escaping;
        match self.copying {
            Copying::Nothing => {}
            Copying::Key if ends => self.expected = Expected::Colon,
            Copying::Key => self.push_key_byte(byte),
            Copying::Id => {
                self.push_id_byte(byte);
                self.id_complete = ends;
            }
        }
        if ends {
            self.in_string = false;
            self.copying = Copying::Nothing;
        }
    }

    fn step_outside_string(&mut self, byte: u8) {
        if self.copying == Copying::Id {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b']' | b'}') {
                self.push_id_byte(byte);
                return;
            }
            self.id_complete = true;
            self.copying = Copying::Nothing;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b',' if self.depth == 1 && self.is_object => self.expected = Expected::Key,
            b':' if self.depth == 1 && self.expected == Expected::Colon => self.end_key(),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => self.begin_value(byte),
        }
    }

    /// Begins the key or the value that starts with this byte.
    fn begin_value(&mut self, byte: u8) {
        if byte == b'"' {
            self.in_string = true;
        }
        if self.depth == 1 {
            match (self.expected, byte) {
                (Expected::Key, b'"') => {
                    self.copying = Copying::Key;
                    self.key_bytes = 0;
                }
                (Expected::Id, b'"' | b'-' | b'0'..=b'9') => {
                    self.copying = Copying::Id;
                    self.id_start = self.bytes_fed;
                    self.id_bytes = 0;
                    self.push_id_byte(byte);
                }
                _ => {}
            }
            self.expected = Expected::Comma;
        }
        if matches!(byte, b'{' | b'[') {
            self.depth += 1;
            if self.depth == 1 {
                self.is_object = byte == b'{';
                self.expected = if self.is_object { Expected::Key } else { Expected::Comma };
            }
        }
    }

    /// Acts on the key whose colon has come.
    fn end_key(&mut self) {
        self.expected = Expected::Comma;
        match self.key.get(..self.key_bytes) {
            Some(b"id") => {
                self.id_count += 1;
                self.expected = Expected::Id;
            }
            Some(b"method") => self.has_method = true,
            Some(b"result" | b"error") => self.has_outcome = true,
            _ => {}
        }
    }

    fn push_key_byte(&mut self, byte: u8) {
        if let Some(slot) = self.key.get_mut(self.key_bytes) {
            *slot = byte;
        }
        self.key_bytes = (self.key_bytes + 1).min(KEY_BYTES_MAX + 1);
    }

    fn push_id_byte(&mut self, byte: u8) {
        if let Some(slot) = self.id.get_mut(self.id_bytes) {
            *slot = byte;
        }
        self.id_bytes = (self.id_bytes + 1).min(ID_BYTES_MAX + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::oracle::LineGenerator;
    use crate::wire::scan::{Envelope, Kind};

    fn partial(line: &[u8], chunk: usize) -> PartialScan {
        let mut partial = PartialScan::default();
        for bytes in line.chunks(chunk.max(1)) {
            partial.feed(bytes);
        }
        partial
    }

    fn result(partial: &PartialScan) -> (Option<&[u8]>, usize, bool, bool) {
        (partial.id(), partial.id_start(), partial.is_answer(), partial.is_request())
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
    fn requests_and_answers_are_told_apart() {
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
    fn every_chunking_gives_the_same_result() {
        let mut lines = LineGenerator::new(0x5eed_0001);
        for _ in 0..if cfg!(miri) { 2 } else { 300 } {
            let line = lines.next_line();
            let whole = partial(&line, line.len());
            for chunk in 1..=64 {
                assert_eq!(
                    result(&partial(&line, chunk)),
                    result(&whole),
                    "{}",
                    String::from_utf8_lossy(&line)
                );
            }
        }
    }

    #[test]
    fn it_agrees_with_the_scanner_on_valid_lines() {
        let mut lines = LineGenerator::new(0x5eed_0002);
        let count = if cfg!(miri) { 100 } else { 20_000 };
        let mut valid = 0;
        for _ in 0..count {
            let line = lines.next_line();
            let Ok(envelope) = Envelope::scan(&line) else { continue };
            if envelope.id.is_some_and(|id| id.of(&line).len() > ID_BYTES_MAX) {
                continue;
            }
            valid += 1;
            let partial = partial(&line, 7);
            let shown = || String::from_utf8_lossy(&line);
            assert_eq!(partial.id(), envelope.id.map(|id| id.of(&line)), "{}", shown());
            assert_eq!(partial.is_request(), matches!(envelope.kind, Kind::Request), "{}", shown());
            assert_eq!(partial.is_answer(), matches!(envelope.kind, Kind::Answer { .. }), "{}", shown());
            if let Some(id) = envelope.id {
                assert_eq!(partial.id_start(), id.start as usize, "{}", shown());
            }
        }
        assert!(valid > count / 20, "only {valid} valid lines");
    }
}
