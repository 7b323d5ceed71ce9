//! The keys that routing reads, and the objects in which it reads them.

use crate::wire::json::Key;

/// A key that routing reads, in the one object where it reads it.
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
    /// The key as it is spelled in a line.
    pub(crate) fn name(self) -> &'static str {
        FIELDS[self as usize].1
    }
}

/// The spelling of each field, in the order of `Field`. The fields of one container are neighbours.
pub(super) const FIELDS: [(Field, &str); 16] = [
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

/// The length of the longest key in `FIELDS`.
pub(super) const NAME_BYTES_MAX: usize = "elicitationId".len();

/// An object in which routing reads fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Top,
    Params,
    Meta,
    Update,
    Result,
}

impl Container {
    /// The container that is the value of this field, if the value is an object.
    pub(super) fn of_value(field: Field) -> Option<Container> {
        match field {
            Field::Params => Some(Container::Params),
            Field::Meta => Some(Container::Meta),
            Field::Update => Some(Container::Update),
            Field::Result => Some(Container::Result),
            _ => None,
        }
    }

    /// The field with this spelling. A match on constants compiles to comparisons without calls.
    #[inline]
    pub(super) fn field(self, key: &[u8]) -> Option<Field> {
        Some(match self {
            Container::Top => match key {
                b"jsonrpc" => Field::Jsonrpc,
                b"id" => Field::Id,
                b"method" => Field::Method,
                b"params" => Field::Params,
                b"result" => Field::Result,
                b"error" => Field::Error,
                b"sessionId" => Field::TopSession,
                b"pool" => Field::Pool,
                _ => return None,
            },
            Container::Params => match key {
                b"sessionId" => Field::Session,
                b"requestId" => Field::Request,
                b"elicitationId" => Field::Elicitation,
                b"_meta" => Field::Meta,
                b"update" => Field::Update,
                _ => return None,
            },
            Container::Meta if key == b"bus/pool" => Field::MetaPool,
            Container::Update if key == b"sessionId" => Field::Child,
            Container::Result if key == b"sessionId" => Field::ResultSession,
            Container::Meta | Container::Update | Container::Result => return None,
        })
    }

    /// Whether the scanner would take this key for a field, or for another spelling of one.
    pub(super) fn may_be_field(self, key: &Key<'_>) -> bool {
        self.field(key.name).is_some() || self.misspelled_field(key).is_some()
    }

    /// The field that some decoder may take this key for, although the key is spelled otherwise.
    pub(super) fn misspelled_field(self, key: &Key<'_>) -> Option<Field> {
        misspelled_field(self.fields(), key)
    }

    /// The part of `FIELDS` that belongs to this container.
    fn fields(self) -> &'static [(Field, &'static str)] {
        match self {
            Container::Top => &FIELDS[..8],
            Container::Params => &FIELDS[8..13],
            Container::Meta => &FIELDS[13..14],
            Container::Update => &FIELDS[14..15],
            Container::Result => &FIELDS[15..],
        }
    }

    /// The container around this one, and the field whose value this one is. `Top` has no parent.
    pub(super) fn parent(self) -> Option<(Container, Field)> {
        match self {
            Container::Top => None,
            Container::Params => Some((Container::Top, Field::Params)),
            Container::Meta => Some((Container::Params, Field::Meta)),
            Container::Update => Some((Container::Params, Field::Update)),
            Container::Result => Some((Container::Top, Field::Result)),
        }
    }

    /// How many brackets are open inside this container.
    pub(super) fn depth(self) -> usize {
        match self {
            Container::Top => 1,
            Container::Params | Container::Result => 2,
            Container::Meta | Container::Update => 3,
        }
    }
}

/// The one of these fields that some decoder may take this key for, although the key is spelled otherwise.
pub(super) fn misspelled_field(fields: &[(Field, &str)], key: &Key<'_>) -> Option<Field> {
    let folds_to =
        |folded: &[u8]| fields.iter().find(|(_, name)| name.as_bytes().eq_ignore_ascii_case(folded));
    if key.plain {
        return folds_to(key.name).map(|&(field, _)| field);
    }
    let mut folded = [0; NAME_BYTES_MAX];
    let mut folded_bytes = 0;
    let mut chars = std::str::from_utf8(key.name).ok()?.chars();
    while let Some(char) = chars.next() {
        let char = if char == '\\' { unescaped(&mut chars)? } else { char };
        let folded_char = match char {
            // These are the two characters beyond ASCII whose other case is an ASCII letter.
            '\u{17f}' => b's',
            '\u{212a}' => b'k',
            _ => u8::try_from(char).ok().filter(u8::is_ascii)?,
        };
        *folded.get_mut(folded_bytes)? = folded_char;
        folded_bytes += 1;
    }
    folds_to(&folded[..folded_bytes]).map(|&(field, _)| field)
}

/// The character that an escape stands for. `None`: a control character or a surrogate, which no routing key holds.
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
