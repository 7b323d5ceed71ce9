//! A finished span, as the protocol has it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::context::Context;

/// The longest text of an attribute, in bytes. What agents say has any size.
const TEXT_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) context: Context,
    pub(crate) parent: Option<[u8; 8]>,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Attribute)>,
    /// Why it has failed, if it has.
    pub(crate) error: Option<String>,
}

/// The numbers are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Internal = 1,
    Client = 3,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute {
    Text(String),
    Number(i64),
    Float(f64),
    Flag(bool),
    Texts(Vec<String>),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Attribute {
        Attribute::Text(cut(text))
    }
}

/// The beginning of a text, up to the bytes that an attribute may have.
pub(crate) fn cut(text: &str) -> String {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].to_owned()
}

/// Nanoseconds since 1970. A clock that is wrong by centuries gives zero.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or_default()
}
