//! The names of sessions as they stand in lines.
//!
//! The id that a client sees is `TAG.AGENTID`, or `NAME~TAG.AGENTID` of a bus with a name. The tag cannot be guessed
//! and makes the id unique over all workers; the agent's own id behind the dot still names the session after a restart
//! of the bus. Where the agent is another bus, its id has that form again: `e1~TAG.n17~TAG.AGENTID`.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::{BUS_NAME_CHARS, is_bus_name};

const TAG_BYTES: usize = 13;
/// Tags are drawn from the first stream of the seed, which has the number 0.
const LIFE_STREAM: u64 = 1;
const TAG_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The name of a session as it stands in a line: a JSON string with its quotes. All tables that know a session by
/// this name share one copy of it, and find it by the name without the quotes.
#[derive(Clone, Debug)]
pub(crate) struct Token(Arc<[u8]>);

impl Token {
    /// The name without its quotes.
    pub(crate) fn name(&self) -> &[u8] {
        &self.0[1..self.0.len() - 1]
    }
}

impl Deref for Token {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Token {
    fn borrow(&self) -> &[u8] {
        self.name()
    }
}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.0 == other.0
    }
}

impl Eq for Token {}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Token, D::Error> {
        let bytes: Vec<u8> = serde_bytes::deserialize(from)?;
        if bytes.len() < 2 {
            return Err(D::Error::custom("a name without its quotes"));
        }
        Ok(Token(bytes.into()))
    }
}

/// A name with its quotes.
pub(crate) fn token(name: &[u8]) -> Token {
    Token([b"\"", name, b"\""].concat().into())
}

/// A name that a bus has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tagged<'a> {
    /// The name of that bus, if it has one.
    pub(crate) bus: Option<&'a str>,
    /// The name that its agent uses.
    pub(crate) agent: &'a [u8],
}

impl<'a> Tagged<'a> {
    /// None: no bus has made it.
    pub(crate) fn of(name: &'a [u8]) -> Option<Tagged<'a>> {
        if let Some(agent) = without_tag(name) {
            return Some(Tagged { bus: None, agent });
        }
        let at = name.iter().take(BUS_NAME_CHARS + 1).position(|letter| *letter == b'~')?;
        let bus = std::str::from_utf8(&name[..at]).ok().filter(|bus| is_bus_name(bus))?;
        Some(Tagged { bus: Some(bus), agent: without_tag(&name[at + 1..])? })
    }
}

fn without_tag(name: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = name.split_at_checked(TAG_BYTES)?;
    let agent = rest.strip_prefix(b".")?;
    (!agent.is_empty() && tag.iter().all(|letter| TAG_LETTERS.contains(letter))).then_some(agent)
}

/// The agent's name in a name of the bus; any other name as it is.
pub(crate) fn agent_name(name: &[u8]) -> &[u8] {
    Tagged::of(name).map_or(name, |tagged| tagged.agent)
}

/// Whether a bus has made this name.
pub(crate) fn is_tagged(name: &[u8]) -> bool {
    Tagged::of(name).is_some()
}

/// The source of the bus's names: a stream of tags that nobody outside can predict.
#[derive(Serialize, Deserialize)]
pub(crate) struct Tags {
    #[serde(with = "stream")]
    random: ChaCha20Rng,
    /// The name of the bus with a tilde; nothing if it has none.
    prefix: Box<[u8]>,
}

/// The stream is saved as its seed and how far it was read.
mod stream {
    use super::{ChaCha20Rng, Deserialize, Deserializer, SeedableRng, Serialize, Serializer};
    use crate::mutants::{Check, enabled};

    pub(super) fn serialize<S: Serializer>(stream: &ChaCha20Rng, to: S) -> Result<S::Ok, S::Error> {
        let at = stream.get_word_pos();
        (stream.get_seed(), (at >> 64) as u64, at as u64).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ChaCha20Rng, D::Error> {
        let (seed, high, low) = <([u8; 32], u64, u64)>::deserialize(from)?;
        let mut stream = ChaCha20Rng::from_seed(seed);
        if enabled(Check::SavedTags) {
            stream.set_word_pos(u128::from(high) << 64 | u128::from(low));
        }
        Ok(stream)
    }
}

impl Tags {
    pub(crate) fn new(seed: [u8; 32], bus: Option<&str>) -> Tags {
        let prefix = bus.map(|bus| format!("{bus}~")).unwrap_or_default();
        Tags { random: ChaCha20Rng::from_seed(seed), prefix: prefix.into_bytes().into() }
    }

    /// What tells this bus from every other one, and is the same as long as its state lives, also in the next program
    /// after an upgrade. It is drawn from the same seed as the tags, from another stream, and betrays neither.
    pub(crate) fn life(&self) -> u64 {
        let mut other = ChaCha20Rng::from_seed(self.random.get_seed());
        other.set_stream(LIFE_STREAM);
        other.next_u64()
    }

    /// `TAG.name`, with quotes, and behind the name of the bus if it has one.
    pub(crate) fn token(&mut self, name: &[u8]) -> Token {
        let mut token = Vec::with_capacity(self.prefix.len() + TAG_BYTES + name.len() + 3);
        token.push(b'"');
        token.extend_from_slice(&self.prefix);
        let mut bits = u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64());
        for _ in 0..TAG_BYTES {
            token.push(TAG_LETTERS[(bits & 31) as usize]);
            bits >>= 5;
        }
        token.push(b'.');
        token.extend_from_slice(name);
        token.push(b'"');
        Token(token.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tagged_name_contains_the_name_of_the_agent() {
        let mut tags = Tags::new([7; 32], None);
        let (one, two) = (tags.token(b"s1"), tags.token(b"s1"));
        assert_ne!(one, two);
        assert_eq!(Tagged::of(one.name()), Some(Tagged { bus: None, agent: b"s1" }));
        assert_eq!(Tags::new([7; 32], None).token(b"s1"), one, "the same seed gives the same tags");
    }

    #[test]
    fn the_name_of_the_bus_stands_first() {
        let longest = "n".repeat(BUS_NAME_CHARS);
        for bus in ["n17", "a-b_C", "abcdefghijklm", &longest] {
            let token = Tags::new([7; 32], Some(bus)).token(b"s~1");
            assert_eq!(Tagged::of(token.name()), Some(Tagged { bus: Some(bus), agent: b"s~1" }));
        }
    }

    #[test]
    fn names_of_buses_nest() {
        let inner = Tags::new([7; 32], Some("n17")).token(b"s1");
        let outer = Tags::new([8; 32], Some("e1")).token(inner.name());
        let tagged = Tagged::of(outer.name()).unwrap();
        assert_eq!((tagged.bus, tagged.agent), (Some("e1"), inner.name()));
        assert_eq!(Tagged::of(tagged.agent), Some(Tagged { bus: Some("n17"), agent: b"s1" }));
        assert_eq!(agent_name(agent_name(outer.name())), b"s1");
    }

    #[test]
    fn other_names_have_no_tag() {
        let long = format!("{}~abcdefghijklm.s", "n".repeat(BUS_NAME_CHARS + 1));
        for name in [
            "",
            "s1",
            "abcdefghijklm",
            "abcdefghijklm.",
            "abcdefghijkl1.s",
            "ABCDEFGHIJKLM.s",
            "~abcdefghijklm.s",
            "n.1~abcdefghijklm.s",
            "n17~s1",
            "n17~abcdefghijklm.",
            "é~abcdefghijklm.s",
            "n17~~abcdefghijklm.s",
            &long,
        ] {
            assert_eq!(Tagged::of(name.as_bytes()), None, "{name}");
            assert_eq!(agent_name(name.as_bytes()), name.as_bytes());
        }
    }
}
