//! Reads lines that the bus has sent: errors and their reasons, and ids as they are spelled.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::line::Slot;
use crate::oracle::broken;

/// Every error of the bus, with its reason and its code.
const REASONS: [(&str, i64); 14] = [
    ("parse", -32700),
    ("invalid", -32600),
    ("too_large", -32600),
    ("no_method", -32601),
    ("worker_lost", -32050),
    ("unknown_session", -32051),
    ("unknown_pool", -32052),
    ("pool_down", -32053),
    ("busy", -32054),
    ("stopping", -32055),
    ("unauthorized", -32056),
    ("client_gone", -32057),
    ("no_start", -32058),
    ("cancelled", -32800),
];

/// The values of a line's slots.
pub(crate) type SlotValues = Vec<(Slot, Vec<u8>)>;

pub(crate) fn parse(line: &[u8]) -> Value {
    match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(fault) => broken!("(4) identical bytes", "not JSON, {fault}: {}", shown(line)),
    }
}

/// The reason of an error of the bus, which must be a documented one.
pub(crate) fn reason_of(value: &Value, line: &[u8]) -> Option<String> {
    let error = value.get("error")?;
    let reason = error["data"]["reason"].as_str()?;
    let known = REASONS.iter().any(|(name, code)| *name == reason && error["code"] == *code);
    if !known {
        broken!("(9) reasons", "{}", shown(line));
    }
    Some(reason.to_owned())
}

/// The id of a line, as it is spelled.
pub(crate) fn id_token(line: &[u8]) -> Vec<u8> {
    let members = serde_json::from_slice::<BTreeMap<String, &RawValue>>(line).unwrap_or_default();
    members.get("id").map(|id| id.get().as_bytes().to_vec()).unwrap_or_default()
}

pub(crate) fn token(filled: &SlotValues, slot: Slot) -> &[u8] {
    filled.iter().find(|(found, _)| *found == slot).map_or(&[], |(_, token)| token)
}

pub(crate) fn number(token: &[u8]) -> u64 {
    match std::str::from_utf8(token).ok().and_then(|token| token.parse().ok()) {
        Some(number) => number,
        None => broken!("(1) an answer under its id", "not a call_id id: {}", shown(token)),
    }
}

pub(crate) fn shown(line: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(line)
}
