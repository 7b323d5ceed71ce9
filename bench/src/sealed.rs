//! Texts that prove what they are: each names its session, its turn, its place in the turn and its length, with a
//! checksum over all of them, and is filled up with bytes that depend on it. So whoever reads one can tell, without
//! knowing anything else, whether it is whole, unchanged and in the right session.

use std::fmt::Write;
use std::sync::OnceLock;

/// The filling repeats after so many bytes, which is prime: a piece that has moved does not fit.
const PERIOD: usize = 61;
const PATTERN_BYTES: usize = PERIOD << 10;
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// What a text says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal<'a> {
    /// The agent's own id of the session, which no other session of a run has.
    pub(crate) session: &'a str,
    /// No other turn of a run has it.
    pub(crate) turn: u64,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// What a client asks for.
    Prompt,
    /// The agent's update with this number, of so many.
    Update { nth: u32, of: u32 },
    /// What the agent asks in the turn.
    Question,
    /// What a client answers to that.
    Decision,
    /// The end of the turn.
    Result,
}

impl Seal<'_> {
    /// A text of so many bytes, or of a few more if the seal does not fit into them. It needs no escapes in JSON.
    pub(crate) fn text(&self, bytes: usize) -> String {
        let mut head = self.head();
        // The checksum is as long for every length.
        let bytes = bytes.max(head.len() + 18);
        let sum = checksum(&head, bytes);
        let _ = write!(head, "{sum:016x} ");
        let from = sum as usize % PERIOD;
        let mut text = head;
        text.reserve(bytes - text.len());
        let mut filling = &pattern()[from..];
        while text.len() < bytes {
            let piece = &filling[..filling.len().min(bytes - text.len())];
            text.push_str(piece);
            filling = pattern();
        }
        text
    }

    fn head(&self) -> String {
        let Seal { session, turn, place } = self;
        let (kind, nth, of) = match place {
            Place::Prompt => ('p', 0, 0),
            Place::Update { nth, of } => ('u', *nth, *of),
            Place::Question => ('q', 0, 0),
            Place::Decision => ('d', 0, 0),
            Place::Result => ('r', 0, 0),
        };
        format!("{session} {turn} {kind} {nth} {of} ")
    }
}

/// What this text is. `None`: it was changed, or is no such text.
pub(crate) fn read(text: &str) -> Option<Seal<'_>> {
    let mut fields = text.splitn(7, ' ');
    let session = fields.next()?;
    let turn = fields.next()?.parse().ok()?;
    let kind = fields.next()?;
    let (nth, of) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let sum = u64::from_str_radix(fields.next()?, 16).ok()?;
    let filling = fields.next()?.as_bytes();
    let place = match kind {
        "p" => Place::Prompt,
        "u" => Place::Update { nth, of },
        "q" => Place::Question,
        "d" => Place::Decision,
        "r" => Place::Result,
        _ => return None,
    };
    let seal = Seal { session, turn, place };
    if checksum(&seal.head(), text.len()) != sum {
        return None;
    }
    let from = sum as usize % PERIOD;
    let (first, rest) = filling.split_at(filling.len().min(PATTERN_BYTES - from));
    let fits = pattern().as_bytes()[from..].starts_with(first)
        && rest.chunks(PATTERN_BYTES).all(|piece| pattern().as_bytes().starts_with(piece));
    fits.then_some(seal)
}

/// FNV-1a over the head and the length.
fn checksum(head: &str, bytes: usize) -> u64 {
    let length = (bytes as u64).to_le_bytes();
    head.bytes()
        .chain(length)
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn pattern() -> &'static str {
    static PATTERN: OnceLock<String> = OnceLock::new();
    PATTERN.get_or_init(|| (0..PATTERN_BYTES).map(|at| char::from(ALPHABET[at % PERIOD])).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [Place; 5] =
        [Place::Prompt, Place::Update { nth: 3, of: 7 }, Place::Question, Place::Decision, Place::Result];

    #[test]
    fn a_text_says_what_it_is_at_every_length() {
        for bytes in [0, 60, 100, 62_000, PATTERN_BYTES - 1, PATTERN_BYTES, PATTERN_BYTES + 70, 2 << 20] {
            for place in PLACES {
                let seal = Seal { session: "shared-12-3", turn: 77, place };
                let text = seal.text(bytes);
                assert!(text.len() == bytes || bytes <= 60, "{} of {bytes}", text.len());
                assert_eq!(read(&text), Some(seal), "{bytes} {place:?}");
            }
        }
    }

    #[test]
    fn a_text_that_was_changed_is_noticed() {
        let seal = |session, turn| Seal { session, turn, place: Place::Update { nth: 0, of: 2 } };
        let text = seal("a-1", 5).text(300_000);
        let mut moved = text.clone();
        moved.remove(200_000);
        let mut longer = text.clone();
        longer.insert(200_000, 'x');
        let other = seal("a-2", 5).text(300_000);
        let mixed = format!("{}{}", &text[..150_000], &other[150_000..]);
        let renamed = text.replacen("a-1 5", "a-2 5", 1);
        for wrong in [&text[..299_999], &moved, &longer, &mixed, &renamed, "", "hello", "a 1 u 0 2 0 x"] {
            assert_eq!(read(wrong), None);
        }
    }
}
