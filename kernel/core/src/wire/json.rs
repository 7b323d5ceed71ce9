//! Reads over JSON and validates it as strictly as `serde_json`'s `RawValue`.
//!
//! The reader does not allocate or recurse. It knows strings, numbers and brackets, not what they mean.

use serde::{Deserialize, Serialize};

use memchr::memchr2;
use wide::u8x16;

/// The deepest nesting of brackets that is accepted. The reader's stack has one bit for each level.
pub(crate) const DEPTH_MAX: usize = 1024;

/// A range of bytes in a line: `start <= end <= line.len()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes that this span covers in `line`.
    pub(crate) fn of(self, line: &[u8]) -> &[u8] {
        &line[self.start as usize..self.end as usize]
    }

    /// How many bytes it covers.
    pub(crate) fn length(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Both positions fit into 32 bits, since the scanner refuses longer lines.
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }
}

/// Whether `token` is one well-formed string or number and nothing else.
pub(crate) fn is_string_or_number(token: &[u8]) -> bool {
    let mut reader = Reader::new(token);
    starts_string_or_number(reader.peek()) && reader.value(0).is_ok() && reader.end().is_ok()
}

/// Whether a value that starts with this byte can only be a string or a number.
pub(crate) fn starts_string_or_number(first: u8) -> bool {
    matches!(first, b'"' | b'-' | b'0'..=b'9')
}

/// The key of an object's member.
pub(crate) struct Key<'a> {
    /// The key with its quotes.
    pub(crate) token: &'a [u8],
    /// The bytes between the quotes.
    pub(crate) name: &'a [u8],
    /// True: the key is ASCII without escapes. False: it may be otherwise.
    pub(crate) plain: bool,
}

/// Why the reader stopped. `Reader::at` says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The bytes are not JSON, or not UTF-8.
    Syntax,
    /// More than `DEPTH_MAX` brackets are open.
    TooDeep,
    /// The line is JSON, but an array or a scalar.
    NotObject,
}

/// Reads over JSON and validates it. It does not recurse, since the peer chooses the depth.
pub(crate) struct Reader<'a> {
    /// The whole line.
    pub(crate) line: &'a [u8],
    /// The position of the next byte: `at <= line.len()`.
    pub(crate) at: usize,
    /// A string holds a byte beyond ASCII, so `end` must check the line for UTF-8.
    pub(crate) non_ascii: bool,
    /// One bit for each open bracket of the current value: set if it is a brace.
    braces: [u64; DEPTH_MAX / 64],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(line: &'a [u8]) -> Self {
        Reader { line, at: 0, non_ascii: false, braces: [0; DEPTH_MAX / 64] }
    }

    /// Reads over any value, around which `outer_depth` brackets are open. True: the value is a string in ASCII
    /// without escapes.
    #[inline(always)]
    pub(crate) fn value(&mut self, outer_depth: usize) -> Result<bool, ReadError> {
        match self.skip_space() {
            b'"' => self.string(),
            _ => self.any_value(outer_depth).map(|()| false),
        }
    }

    /// The same for any value. It stays out of line, so that `value` is small where it is inlined.
    #[inline(never)]
    fn any_value(&mut self, outer_depth: usize) -> Result<(), ReadError> {
        let mut depth = outer_depth;
        loop {
            match self.skip_space() {
                b'"' => {
                    self.string()?;
                }
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                bracket @ (b'{' | b'[') => {
                    if depth == DEPTH_MAX {
                        return Err(ReadError::TooDeep);
                    }
                    let brace = bracket == b'{';
                    let bit = 1 << (depth % 64);
                    let word = &mut self.braces[depth / 64];
                    *word = if brace { *word | bit } else { *word & !bit };
                    depth += 1;
                    self.at += 1;
                    // In ASCII a closing bracket stands two behind its opening one.
                    if self.skip_space() != bracket + 2 {
                        if brace {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                    depth -= 1;
                }
                _ => return Err(ReadError::Syntax),
            }
            // A value has ended. Close every bracket that ends here, up to the next comma.
            loop {
                if depth == outer_depth {
                    return Ok(());
                }
                let brace = self.braces[(depth - 1) / 64] >> ((depth - 1) % 64) & 1 == 1;
                match self.skip_space() {
                    b',' => {
                        self.at += 1;
                        if brace {
                            self.skip_space();
                            self.key()?;
                        }
                        break;
                    }
                    b'}' if brace => {}
                    b']' if !brace => {}
                    _ => return Err(ReadError::Syntax),
                }
                self.at += 1;
                depth -= 1;
            }
        }
    }

    /// Reads the rest of an object, from behind one of its members to behind its closing brace.
    pub(crate) fn rest_of_object(&mut self, outer_depth: usize) -> Result<(), ReadError> {
        loop {
            match self.skip_space() {
                b',' => self.at += 1,
                b'}' => break,
                _ => return Err(ReadError::Syntax),
            }
            self.skip_space();
            self.key()?;
            self.value(outer_depth + 1)?;
        }
        self.at += 1;
        Ok(())
    }

    /// Reads a key and its colon, up to the first byte of the value.
    #[inline(always)]
    pub(crate) fn key(&mut self) -> Result<Key<'a>, ReadError> {
        let start = self.at;
        if self.peek() != b'"' {
            return Err(ReadError::Syntax);
        }
        let plain = self.string()?;
        let token = &self.line[start..self.at];
        let name = &self.line[start + 1..self.at - 1];
        if self.skip_space() != b':' {
            return Err(ReadError::Syntax);
        }
        self.at += 1;
        self.skip_space();
        Ok(Key { token, name, plain })
    }

    /// Reads a string from its opening quote to behind the closing one. True: it is ASCII without escapes. False: it
    /// may be otherwise.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<bool, ReadError> {
        let start = self.at + 1;
        // Most strings end within one block.
        if let Some(block) = self.line.get(start..).and_then(<[u8]>::first_chunk) {
            let bytes = u8x16::new(*block);
            let end = specials(bytes).trailing_zeros() as usize;
            if block.get(end) == Some(&b'"') {
                let plain = bytes.to_bitmask() == 0;
                self.at = start + end + 1;
                self.non_ascii |= !plain;
                return Ok(plain);
            }
        }
        self.long_string()
    }

    /// The same for a string of any length.
    #[inline(never)]
    fn long_string(&mut self) -> Result<bool, ReadError> {
        // These are locals, because fields of `self` would be stored and loaded again at each step.
        let mut non_ascii = 0;
        let mut at = find_special(self.line, self.at + 1, &mut non_ascii);
        let mut plain = true;
        'escape: loop {
            match self.line.get(at) {
                Some(b'"') => break,
                Some(b'\\') => plain = false,
                _ => return self.fail(at),
            }
            match self.line.get(at + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                Some(b'u') if is_hex(self.line.get(at + 2..at + 6)) => at += 6,
                _ => return self.fail(at),
            }
            // Escapes come in groups, where a predicted branch to the next one is faster than a search for it.
            for &byte in self.line[at..].iter().take(NEAR_BYTES) {
                if is_special(byte) {
                    continue 'escape;
                }
                non_ascii |= u32::from(!byte.is_ascii());
                at += 1;
            }
            at = find_special(self.line, at, &mut non_ascii);
        }
        self.at = at + 1;
        self.non_ascii |= non_ascii != 0;
        Ok(plain && non_ascii == 0)
    }

    #[cold]
    fn fail(&mut self, at: usize) -> Result<bool, ReadError> {
        self.at = at;
        Err(ReadError::Syntax)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Result<(), ReadError> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        if self.peek() == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if matches!(self.peek(), b'.' | b'e' | b'E') { self.fraction() } else { Ok(()) }
    }

    /// Reads a fraction, an exponent, or both.
    #[cold]
    fn fraction(&mut self) -> Result<(), ReadError> {
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

    /// Reads one digit or more.
    #[inline]
    fn digits(&mut self) -> Result<(), ReadError> {
        let rest = &self.line[self.at..];
        let count = match rest.first_chunk().map(|block| leading_digits(u8x16::new(*block))) {
            Some(count) if count < 16 => count,
            _ => rest.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        };
        self.at += count;
        if count == 0 { Err(ReadError::Syntax) } else { Ok(()) }
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), ReadError> {
        if !self.line[self.at..].starts_with(literal) {
            return Err(ReadError::Syntax);
        }
        self.at += literal.len();
        Ok(())
    }

    /// Checks that nothing but white space is left. UTF-8 is checked only here, once for the whole line: outside of
    /// strings the reader has accepted only ASCII.
    pub(crate) fn end(&mut self) -> Result<(), ReadError> {
        self.skip_space();
        if self.at != self.line.len() {
            return Err(ReadError::Syntax);
        }
        if self.non_ascii
            && let Err(error) = std::str::from_utf8(self.line)
        {
            self.at = error.valid_up_to();
            return Err(ReadError::Syntax);
        }
        Ok(())
    }

    /// Skips white space and returns the next byte without reading it.
    #[inline]
    pub(crate) fn skip_space(&mut self) -> u8 {
        loop {
            match self.peek() {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                byte => return byte,
            }
        }
    }

    /// The next byte. At the end of the line it is NUL, which no rule of JSON accepts.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.line.get(self.at).copied().unwrap_or(0)
    }
}

/// After an escape, so many bytes are read one by one before blocks are used.
pub(crate) const NEAR_BYTES: usize = 4;
/// So many blocks of 16 bytes are read before memchr takes over.
const NEAR_BLOCKS: usize = 8;
/// Long strings are read in parts of so many bytes, which fit into the first-level cache.
pub(crate) const BLOCK_BYTES: usize = 4 * 1024;

/// The position of the next special byte of a string, or the end of the line. Sets a bit of `non_ascii` if a byte
/// before that position, or one near it, is beyond ASCII.
#[inline]
pub(crate) fn find_special(line: &[u8], mut at: usize, non_ascii: &mut u32) -> usize {
    let (blocks, tail) = line[at..].as_chunks();
    let near = &blocks[..blocks.len().min(NEAR_BLOCKS)];
    let mut seen = u8x16::ZERO;
    // Most stretches are short, and starting memchr costs as much as reading some blocks.
    for block in near {
        let bytes = u8x16::new(*block);
        seen |= bytes;
        let specials = specials(bytes);
        if specials != 0 {
            *non_ascii |= seen.to_bitmask();
            return at + specials.trailing_zeros() as usize;
        }
        at += block.len();
    }
    *non_ascii |= seen.to_bitmask();
    if blocks.len() > NEAR_BLOCKS {
        return find_special_in_long_text(line, at, non_ascii);
    }
    // The last bytes of the line are read as a whole block, together with some that were read already.
    let Some(block) = line.last_chunk() else { return find_special_in_short_line(line, at, non_ascii) };
    let bytes = u8x16::new(*block);
    *non_ascii |= bytes.to_bitmask();
    let behind = (specials(bytes) >> (block.len() - tail.len())).trailing_zeros() as usize;
    at + behind.min(tail.len())
}

/// One bit for each byte that `is_special`.
#[inline]
fn specials(bytes: u8x16) -> u32 {
    let quotes = bytes.simd_eq(u8x16::splat(b'"'));
    let backslashes = bytes.simd_eq(u8x16::splat(b'\\'));
    let controls = bytes.simd_eq(bytes.min(u8x16::splat(b' ' - 1)));
    (quotes | backslashes | controls).to_bitmask()
}

#[inline]
fn leading_digits(bytes: u8x16) -> usize {
    let from_0 = bytes.simd_eq(bytes.max(u8x16::splat(b'0')));
    let to_9 = bytes.simd_eq(bytes.min(u8x16::splat(b'9')));
    (from_0 & to_9).to_bitmask().trailing_ones() as usize
}

/// `find_special` for a line that is shorter than a block.
fn find_special_in_short_line(line: &[u8], at: usize, non_ascii: &mut u32) -> usize {
    let plain = line[at..].iter().take_while(|byte| !is_special(**byte));
    plain.fold(at, |at, byte| {
        *non_ascii |= u32::from(!byte.is_ascii());
        at + 1
    })
}

/// Whether this byte ends the plain text of a string: a quote, a backslash or a control byte.
pub(crate) fn is_special(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

fn is_hex(digits: Option<&[u8]>) -> bool {
    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// `find_special` for a long text. It goes part by part, so that the second pass over a part finds it in the cache.
#[inline(never)]
fn find_special_in_long_text(line: &[u8], mut at: usize, non_ascii: &mut u32) -> usize {
    for block in line[at..].chunks(BLOCK_BYTES) {
        let end = memchr2(b'"', b'\\', block);
        let plain = &block[..end.unwrap_or(block.len())];
        if !is_printable(plain) {
            *non_ascii |= u32::from(!plain.is_ascii());
            if plain.iter().fold(u8::MAX, |low, byte| low.min(*byte)) < b' ' {
                return at + plain.iter().position(|&byte| byte < b' ').unwrap_or(0);
            }
        }
        at += plain.len();
        if end.is_some() {
            break;
        }
    }
    at
}

/// Whether all bytes are ASCII and none is below the space. One subtraction puts control bytes and bytes beyond ASCII
/// above all others; the 32 lanes let the compiler vectorize the loop.
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
