//! Reads values out of JSON and notes every mistake with its path, so that all of them are shown at once.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{ConfigError, unknown_key};
use super::ignored::is_ignored;
use super::json::{Json, is_remark, join};
use super::resolve::Resolver;

/// No number of seconds exceeds a year, so that a deadline never overflows.
const SECONDS_MAX: u32 = 365 * 24 * 60 * 60;

pub(super) type Range = RangeInclusive<u64>;

pub(super) struct Reader<'a> {
    pub(super) resolver: Resolver<'a>,
    pub(super) errors: Vec<ConfigError>,
}

/// A value and its JSON path.
pub(super) struct Node<'a> {
    pub(super) path: String,
    pub(super) json: &'a Json,
}

/// The members of an object, and its JSON path.
pub(super) struct Fields<'a> {
    pub(super) path: String,
    pub(super) pairs: &'a [(String, Json)],
}

impl<'a> Fields<'a> {
    pub(super) fn find(&self, key: &str) -> Option<Node<'a>> {
        let (_, json) = self.pairs.iter().find(|(name, _)| name == key)?;
        Some(Node { path: join(&self.path, key), json })
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.pairs.iter().map(|(key, json)| (key.as_str(), Node { path: join(&self.path, key), json }))
    }
}

/// The types of values. A value of another type is noted as an error and read as `None`.
impl<'a> Reader<'a> {
    pub(super) fn object(&mut self, node: &Node<'a>, known: &[&str]) -> Option<Fields<'a>> {
        let Json::Object(pairs) = node.json else {
            return self.must_be(node, "an object");
        };
        let fields = Fields { path: node.path.clone(), pairs };
        for (key, node) in fields.nodes().filter(|(key, _)| !known.contains(key) && !is_remark(key)) {
            if !is_ignored(&node.path) {
                self.error(&node.path, unknown_key(key, known));
            }
        }
        Some(fields)
    }

    pub(super) fn list(&mut self, node: &Node<'a>) -> Option<Vec<Node<'a>>> {
        let Json::List(items) = node.json else {
            return self.must_be(node, "a list");
        };
        let node_of = |(index, json)| Node { path: format!("{}[{index}]", node.path), json };
        Some(items.iter().enumerate().map(node_of).collect())
    }

    pub(super) fn non_empty_list(&mut self, node: &Node<'a>) -> Vec<Node<'a>> {
        let Some(items) = self.list(node) else { return Vec::new() };
        if items.is_empty() {
            self.error(&node.path, "must not be empty");
        }
        items
    }

    pub(super) fn strings(&mut self, node: &Node<'a>) -> Vec<String> {
        let items = self.list(node).unwrap_or_default();
        items.iter().filter_map(|item| self.string(item)).map(str::to_owned).collect()
    }

    pub(super) fn non_empty(&mut self, node: &Node<'a>) -> Option<&'a str> {
        let text = self.string(node)?;
        if text.is_empty() {
            self.error(&node.path, "must not be empty");
            return None;
        }
        Some(text)
    }

    pub(super) fn string(&mut self, node: &Node<'a>) -> Option<&'a str> {
        let Json::String(text) = node.json else {
            return self.must_be(node, "a string");
        };
        if text.contains('\0') {
            self.error(&node.path, "must not hold a NUL character");
            return None;
        }
        Some(text)
    }

    pub(super) fn path(&mut self, node: &Node<'a>) -> Option<PathBuf> {
        let text = self.string(node)?;
        self.ok_or_note(&node.path, self.resolver.path(text))
    }

    pub(super) fn integer<N: TryFrom<u64>>(
        &mut self,
        fields: &Fields<'a>,
        key: &str,
        range: Range,
    ) -> Option<N> {
        let node = fields.find(key)?;
        if let Json::Integer(number) = node.json
            && let Ok(number) = u64::try_from(*number)
            && range.contains(&number)
            && let Ok(number) = number.try_into()
        {
            return Some(number);
        }
        self.must_be(&node, format_args!("a whole number from {} to {}", range.start(), range.end()))
    }

    /// Reads a duration above zero.
    pub(super) fn positive_seconds(&mut self, fields: &Fields<'a>, key: &str) -> Option<Duration> {
        let seconds = self.seconds(fields, key)?;
        if seconds.is_zero() {
            let what = format_args!("a number above 0 and up to {SECONDS_MAX}");
            return self.must_be(&fields.find(key)?, what);
        }
        Some(seconds)
    }

    pub(super) fn seconds(&mut self, fields: &Fields<'a>, key: &str) -> Option<Duration> {
        let node = fields.find(key)?;
        let number = match node.json {
            Json::Integer(number) => *number as f64,
            Json::Float(number) => *number,
            _ => f64::NAN,
        };
        if !(0.0..=f64::from(SECONDS_MAX)).contains(&number) {
            return self.must_be(&node, format_args!("a number from 0 to {SECONDS_MAX}"));
        }
        Some(Duration::from_secs_f64(number))
    }

    pub(super) fn ok_or_note<T>(&mut self, path: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|message| self.error(path, message)).ok()
    }

    pub(super) fn must_be<T>(&mut self, node: &Node<'a>, what: impl Display) -> Option<T> {
        self.error(&node.path, format!("must be {what}, not {}", node.json.kind()));
        None
    }

    pub(super) fn refuse_repeated_keys(&mut self, json: &Json) {
        let mut repeated = Vec::new();
        json.repeated_keys("", &mut repeated);
        for path in repeated {
            self.error(&path, "this key occurs more than once");
        }
    }

    pub(super) fn error(&mut self, path: &str, message: impl Into<String>) {
        let path = if path.is_empty() { "$" } else { path };
        self.errors.push(ConfigError { path: path.to_owned(), message: message.into() });
    }

    /// Reads one of a few words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        fields: &Fields<'a>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let node = fields.find(key)?;
        let words = choices.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        let Json::String(text) = node.json else { return self.must_be(&node, words) };
        let chosen = choices.iter().find(|(word, _)| word == text).map(|(_, choice)| *choice);
        if chosen.is_none() {
            self.error(&node.path, format!("must be {words}, not {text:?}"));
        }
        chosen
    }

    pub(super) fn boolean(&mut self, node: &Node<'a>) -> Option<bool> {
        match node.json {
            Json::Bool(value) => Some(*value),
            _ => self.must_be(node, "true or false"),
        }
    }
}
