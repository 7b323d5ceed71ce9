//! States as other versions of the program write them are read: with fields that this one does not know, and without
//! those that may be missing.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::save::KEPT;
use crate::Bus;
use crate::upgrade::LeftLogs;

/// What a state begins with, before its form: see `crate::saved`.
const HEADER_BYTES: usize = 28;
const LENGTH_BYTES: usize = 8;

/// Any value of a state.
#[derive(Clone, Debug, PartialEq)]
enum Any {
    None,
    Bool(bool),
    Whole(i64),
    Natural(u64),
    Number(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Any>),
    Map(Vec<(Any, Any)>),
}

impl Any {
    /// Does something with the fields of every struct, and says with how many of them. The names of variants begin with
    /// a capital letter, tables have no texts for keys, and a time is a type of another crate.
    fn each_struct(&mut self, change: &mut impl FnMut(&mut Vec<(Any, Any)>)) -> usize {
        match self {
            Any::List(items) => items.iter_mut().map(|item| item.each_struct(change)).sum(),
            Any::Map(fields) => {
                let inside: usize = fields.iter_mut().map(|(_, value)| value.each_struct(change)).sum();
                let is_field = |key: &Any| match key {
                    Any::Text(name) => name.starts_with(|first: char| first.is_ascii_lowercase()),
                    _ => false,
                };
                let is_time = fields.iter().any(|(key, _)| *key == Any::Text("nanos".to_owned()));
                let is_struct = !fields.is_empty() && !is_time && fields.iter().all(|(key, _)| is_field(key));
                if is_struct {
                    change(fields);
                }
                inside + usize::from(is_struct)
            }
            _ => 0,
        }
    }
}

impl Serialize for Any {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Any::None => to.serialize_unit(),
            Any::Bool(value) => to.serialize_bool(*value),
            Any::Whole(number) => to.serialize_i64(*number),
            Any::Natural(number) => to.serialize_u64(*number),
            Any::Number(number) => to.serialize_f64(*number),
            Any::Text(text) => to.serialize_str(text),
            Any::Bytes(bytes) => to.serialize_bytes(bytes),
            Any::List(items) => to.collect_seq(items),
            Any::Map(fields) => to.collect_map(fields.iter().map(|(key, value)| (key, value))),
        }
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Any, D::Error> {
        from.deserialize_any(AnyVisitor)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Any;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Any, E> {
        Ok(Any::None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Any, E> {
        Ok(Any::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Any, E> {
        Ok(Any::Whole(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Any, E> {
        Ok(Any::Natural(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Any, E> {
        Ok(Any::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Any, E> {
        Ok(Any::Text(text.to_owned()))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Any, E> {
        Ok(Any::Bytes(bytes.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Any, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Any::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Any, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = from.next_entry()? {
            fields.push(field);
        }
        Ok(Any::Map(fields))
    }
}

/// The kept state of the first version, with each of its structs changed. Also how many there are.
fn kept_but(mut change: impl FnMut(&mut Vec<(Any, Any)>)) -> (Vec<u8>, usize) {
    let kept = std::fs::read(KEPT).unwrap();
    let (head, form) = kept.split_at(HEADER_BYTES);
    let mut state: Any = rmp_serde::from_slice(form).expect("the form of the kept state");
    let count = state.each_struct(&mut change);
    let form = rmp_serde::to_vec(&state).unwrap();
    let length = (form.len() as u64).to_le_bytes();
    ([&head[..HEADER_BYTES - LENGTH_BYTES], &length, &form].concat(), count)
}

/// What a bus writes that has read this. A hash table has an order of its own, but no length of its own.
fn written_again(state: &[u8]) -> usize {
    let bus = Bus::restore(state, &LeftLogs::default()).expect("it is read");
    bus.check_invariants();
    bus.save().unwrap().len()
}

#[test]
fn what_a_newer_version_adds_is_skipped() {
    let (same, structs) = kept_but(|_| {});
    assert!(structs > 100, "{structs} structs");
    let new = |name: &str, value: Any| (Any::Text(name.to_owned()), value);
    for first in [false, true] {
        let (newer, _) = kept_but(|fields| {
            let inner = Any::Map(vec![(Any::Natural(7), Any::List(vec![Any::Bytes(vec![0xff; 300])]))]);
            let at = if first { 0 } else { fields.len() };
            fields.insert(at, new("a_table_of_another_version", inner));
            fields.push(new("a_number_of_another_version", Any::Number(0.5)));
        });
        assert_eq!(written_again(&newer), written_again(&same));
    }
}

#[test]
fn what_is_none_may_be_missing() {
    let mut missing = 0;
    let (older, _) = kept_but(|fields| {
        let before = fields.len();
        fields.retain(|(_, value)| *value != Any::None);
        missing += before - fields.len();
    });
    assert!(missing > 20, "{missing} fields");
    assert_eq!(written_again(&older), written_again(&std::fs::read(KEPT).unwrap()));
}

#[test]
fn what_must_be_there_is_missed_by_its_name() {
    let (broken, _) =
        kept_but(|fields| fields.retain(|(name, _)| *name != Any::Text("agent_token".to_owned())));
    let said = Bus::restore(&broken, &LeftLogs::default()).err().expect("it cannot be read");
    assert!(said.contains("missing field `agent_token`"), "{said}");
}
