//! JSON passed over and validated, as strictly as `serde_json`'s `RawValue` does it.
//!
//! No allocation, no recursion. Knows strings, numbers and brackets, and nothing of what is in them.

use memchr::memchr2;
use wide::u8x16;

/// Brackets inside brackets; one bit each in the reader's stack.
pub(crate) const DEPTH_MAX: usize = 1024;

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
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }
}

/// A string or a number, whole and well formed.
pub(crate) fn is_token(token: &[u8]) -> bool {
    let mut reader = Reader::new(token);
    is_string_or_number(reader.peek()) && reader.value(0).is_ok() && reader.end().is_ok()
}

pub(crate) fn is_string_or_number(first: u8) -> bool {
    matches!(first, b'"' | b'-' | b'0'..=b'9')
}

pub(crate) struct Key<'a> {
    /// With its quotes.
    pub(crate) token: &'a [u8],
    /// What stands between them.
    pub(crate) name: &'a [u8],
    /// It is ASCII without escapes. False: it may not be.
    pub(crate) plain: bool,
}

/// What ends a walk, at the reader's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Syntax,
    TooDeep,
    NotObject,
}

/// Passes over JSON and validates it. No recursion: a peer chooses the depth.
pub(crate) struct Reader<'a> {
    pub(crate) line: &'a [u8],
    /// The next byte, `at <= line.len()`.
    pub(crate) at: usize,
    /// A string holds a byte beyond ASCII, so the line has yet to be checked for UTF-8.
    pub(crate) beyond_ascii: bool,
    /// One bit for each open bracket of the value that is passed over: is it a brace?
    braces: [u64; DEPTH_MAX / 64],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(line: &'a [u8]) -> Self {
        Reader { line, at: 0, beyond_ascii: false, braces: [0; DEPTH_MAX / 64] }
    }

    /// Any value, without looking into it. `around` brackets are open already. True: it is a string, and that is
    /// ASCII without escapes.
    #[inline(always)]
    pub(crate) fn value(&mut self, around: usize) -> Result<bool, Stop> {
        match self.past_space() {
            b'"' => self.string(),
            _ => self.any_value(around).map(|()| false),
        }
    }

    #[inline(never)]
    fn any_value(&mut self, around: usize) -> Result<(), Stop> {
        let mut depth = around;
        loop {
            match self.past_space() {
                b'"' => {
                    self.string()?;
                }
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

    /// The rest of a value that is an object, from behind a member of it.
    pub(crate) fn rest_of_object(&mut self, around: usize) -> Result<(), Stop> {
        loop {
            match self.past_space() {
                b',' => self.at += 1,
                b'}' => break,
                _ => return Err(Stop::Syntax),
            }
            self.past_space();
            self.key()?;
            self.value(around + 1)?;
        }
        self.at += 1;
        Ok(())
    }

    /// A key and its colon, up to the value.
    #[inline(always)]
    pub(crate) fn key(&mut self) -> Result<Key<'a>, Stop> {
        let start = self.at;
        if self.peek() != b'"' {
            return Err(Stop::Syntax);
        }
        let plain = self.string()?;
        let token = &self.line[start..self.at];
        let name = &self.line[start + 1..self.at - 1];
        if self.past_space() != b':' {
            return Err(Stop::Syntax);
        }
        self.at += 1;
        self.past_space();
        Ok(Key { token, name, plain })
    }

    /// From its opening quote to behind the closing one. True: it is ASCII without escapes; false: it may not be.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<bool, Stop> {
        let start = self.at + 1;
        // Most strings end within a block.
        if let Some(block) = self.line.get(start..).and_then(<[u8]>::first_chunk) {
            let bytes = u8x16::new(*block);
            let end = marks(bytes).trailing_zeros() as usize;
            if block.get(end) == Some(&b'"') {
                let plain = bytes.to_bitmask() == 0;
                self.at = start + end + 1;
                self.beyond_ascii |= !plain;
                return Ok(plain);
            }
        }
        self.long_string()
    }

    /// The same for any string.
    #[inline(never)]
    fn long_string(&mut self) -> Result<bool, Stop> {
        // Kept out of `self` on the way, where they would be stored and loaded again at each step.
        let mut bits = 0;
        let mut at = plain_end(self.line, self.at + 1, &mut bits);
        let mut plain = true;
        'stretch: loop {
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
            // Escapes come in crowds, where a guessed branch to the next is faster than finding its place.
            for &byte in self.line[at..].iter().take(NEAR_BYTES) {
                if is_mark(byte) {
                    continue 'stretch;
                }
                bits |= u32::from(!byte.is_ascii());
                at += 1;
            }
            at = plain_end(self.line, at, &mut bits);
        }
        self.at = at + 1;
        self.beyond_ascii |= bits != 0;
        Ok(plain && bits == 0)
    }

    #[cold]
    fn fail(&mut self, at: usize) -> Result<bool, Stop> {
        self.at = at;
        Err(Stop::Syntax)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Result<(), Stop> {
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

    /// And exponent, or only that.
    #[cold]
    fn fraction(&mut self) -> Result<(), Stop> {
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
    #[inline]
    fn digits(&mut self) -> Result<(), Stop> {
        let rest = &self.line[self.at..];
        let count = match rest.first_chunk().map(|block| leading_digits(u8x16::new(*block))) {
            Some(count) if count < 16 => count,
            _ => rest.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        };
        self.at += count;
        if count == 0 { Err(Stop::Syntax) } else { Ok(()) }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Stop> {
        if !self.line[self.at..].starts_with(word) {
            return Err(Stop::Syntax);
        }
        self.at += word.len();
        Ok(())
    }

    /// Behind the last byte. Only here is UTF-8 checked: outside of strings, the walk has taken only ASCII.
    pub(crate) fn end(&mut self) -> Result<(), Stop> {
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
    pub(crate) fn past_space(&mut self) -> u8 {
        loop {
            match self.peek() {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                byte => return byte,
            }
        }
    }

    /// The next byte. NUL at the end of the line: no rule of JSON takes one.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.line.get(self.at).copied().unwrap_or(0)
    }
}

/// How far a string is read byte by byte, and then by blocks, before memchr takes over.
const NEAR_BYTES: usize = 4;
const NEAR_BLOCKS: usize = 8;
/// A part of the first-level cache.
pub(crate) const BLOCK_BYTES: usize = 4 * 1024;

/// The place of the next quote, backslash or control byte of a string, or the end of the line. `bits` is no longer
/// zero if a byte on the way, or one near it, is beyond ASCII.
#[inline]
fn plain_end(line: &[u8], mut at: usize, bits: &mut u32) -> usize {
    let (blocks, tail) = line[at..].as_chunks();
    let near = &blocks[..blocks.len().min(NEAR_BLOCKS)];
    let mut seen = u8x16::ZERO;
    // Most stretches are short, and starting up memchr costs as much as some blocks.
    for block in near {
        let bytes = u8x16::new(*block);
        seen |= bytes;
        let marks = marks(bytes);
        if marks != 0 {
            *bits |= seen.to_bitmask();
            return at + marks.trailing_zeros() as usize;
        }
        at += block.len();
    }
    *bits |= seen.to_bitmask();
    if blocks.len() > NEAR_BLOCKS {
        return far_plain_end(line, at, bits);
    }
    // The last bytes of the line are looked at as a whole block, with some that were looked at already.
    let Some(block) = line.last_chunk() else { return near_plain_end(line, at, bits) };
    let bytes = u8x16::new(*block);
    *bits |= bytes.to_bitmask();
    let behind = (marks(bytes) >> (block.len() - tail.len())).trailing_zeros() as usize;
    at + behind.min(tail.len())
}

/// A bit for each byte that `is_mark`.
#[inline]
fn marks(bytes: u8x16) -> u32 {
    let quotes = bytes.simd_eq(u8x16::splat(b'"'));
    let backslashes = bytes.simd_eq(u8x16::splat(b'\\'));
    let controls = bytes.simd_eq(bytes.min(u8x16::splat(b' ' - 1)));
    (quotes | backslashes | controls).to_bitmask()
}

#[inline]
fn leading_digits(bytes: u8x16) -> usize {
    let (from_0, to_9) = (bytes.max(u8x16::splat(b'0')), bytes.min(u8x16::splat(b'9')));
    (bytes.simd_eq(from_0) & bytes.simd_eq(to_9)).to_bitmask().trailing_ones() as usize
}

/// `plain_end` of a line that is shorter than a block.
fn near_plain_end(line: &[u8], at: usize, bits: &mut u32) -> usize {
    let plain = line[at..].iter().take_while(|byte| !is_mark(**byte));
    plain.fold(at, |at, byte| {
        *bits |= u32::from(!byte.is_ascii());
        at + 1
    })
}

fn is_mark(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

fn is_hex(digits: Option<&[u8]>) -> bool {
    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// `plain_end` over a long stretch. In blocks, so that the second look at a block finds it in the cache.
#[inline(never)]
fn far_plain_end(line: &[u8], mut at: usize, bits: &mut u32) -> usize {
    for block in line[at..].chunks(BLOCK_BYTES) {
        let mark = memchr2(b'"', b'\\', block);
        let plain = &block[..mark.unwrap_or(block.len())];
        if !is_printable(plain) {
            *bits |= u32::from(!plain.is_ascii());
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
