//! A scanned line: its bytes, and where its routing fields stand.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::json::Span;
use super::nested::{beginning, member, text, within};
use super::scan::{Envelope, Kind, canonical};
use crate::limit::{NESTED_BYTES, SESSION_TITLE_BYTES};

/// The title of a longer question is kept beside it.
const TITLE_KEPT_BYTES: usize = 16 << 10;

/// A line with its envelope. The two always travel together.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) line: &'a [u8],
    pub(crate) envelope: &'a Envelope,
}

impl<'a> Message<'a> {
    #[inline]
    pub(crate) fn new(line: &'a [u8], envelope: &'a Envelope) -> Message<'a> {
        Message { line, envelope }
    }

    /// The method. Empty for an answer.
    #[inline]
    pub(crate) fn method(self) -> &'a [u8] {
        self.envelope.method.of(self.line)
    }

    /// The id as its sender spelled it.
    #[inline]
    pub(crate) fn id(self) -> Option<&'a [u8]> {
        self.text(self.envelope.id)
    }

    #[inline]
    pub(crate) fn params(self) -> Option<&'a [u8]> {
        self.text(self.envelope.params)
    }

    /// The value of `result` or `error`.
    #[inline]
    pub(crate) fn outcome(self) -> Option<&'a [u8]> {
        self.text(self.envelope.outcome)
    }

    #[inline]
    pub(crate) fn is_request(self) -> bool {
        self.envelope.kind == Kind::Request
    }

    #[inline]
    pub(crate) fn is_notification(self) -> bool {
        self.envelope.kind == Kind::Notification
    }

    /// Whether this is an error answer.
    #[inline]
    pub(crate) fn is_error(self) -> bool {
        self.envelope.kind == Kind::Answer { failed: true }
    }

    /// The string at this span, unquoted and unescaped.
    #[inline]
    pub(crate) fn name(self, span: Span) -> Cow<'a, [u8]> {
        canonical(span.of(self.line))
    }

    /// The session in the params.
    #[inline]
    pub(crate) fn session_name(self) -> Option<Cow<'a, [u8]>> {
        self.envelope.session.map(|span| self.name(span))
    }

    /// The session beside the method.
    #[inline]
    pub(crate) fn label(self) -> Option<Cow<'a, [u8]>> {
        self.envelope.top_session.map(|span| self.name(span))
    }

    /// What an agent wants to do, in its own words, if this is a question that says so and is no longer than what is
    /// read again. It is only shown, and cut.
    pub(crate) fn asked_title(self) -> Option<String> {
        let (line, params) = (self.line, within(self.envelope.params, NESTED_BYTES));
        let title = match self.method() {
            b"session/request_permission" => text(line, member(line, params, b"toolCall"), b"title")?,
            b"elicitation/create" => text(line, params, b"message")?,
            _ => return None,
        };
        beginning(title.of(line), SESSION_TITLE_BYTES)
    }

    fn text(self, span: Option<Span>) -> Option<&'a [u8]> {
        span.map(|span| span.of(self.line))
    }
}

/// A message that the bus keeps for later. It is not scanned a second time.
#[derive(Debug)]
pub(crate) struct Held {
    line: Box<[u8]>,
    envelope: Envelope,
    /// What a long question asks, once somebody wanted to know.
    title: OnceLock<Option<Box<str>>>,
}

/// The line is all that is saved.
impl Serialize for Held {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.line)
    }
}

impl<'de> Deserialize<'de> for Held {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Held, D::Error> {
        let line: Box<[u8]> = serde_bytes::deserialize(from)?;
        let envelope = Envelope::scan(&line).map_err(|malformed| D::Error::custom(malformed.fault))?;
        Ok(Held { line, envelope, title: OnceLock::new() })
    }
}

impl Held {
    #[inline]
    pub(crate) fn new(message: Message<'_>) -> Held {
        Held { line: message.line.into(), envelope: *message.envelope, title: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn message(&self) -> Message<'_> {
        Message::new(&self.line, &self.envelope)
    }

    /// `asked_title`, which is looked for only once in a long line.
    pub(crate) fn title(&self) -> Option<String> {
        if self.len() < TITLE_KEPT_BYTES {
            return self.message().asked_title();
        }
        let title = self.title.get_or_init(|| self.message().asked_title().map(Into::into));
        title.as_deref().map(str::to_owned)
    }

    /// The bytes of its line.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }
}
