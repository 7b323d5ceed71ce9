//! Generates test lines, and scans them by way of serde_json to check the scanner.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::field::{FIELDS, Field};
use super::scan::{Envelope, Fault, Hint, Kind, Malformed, Span};

/// Generates valid and broken messages, the same ones for the same seed.
pub(crate) struct LineGenerator {
    state: u64,
    keys: Vec<&'static str>,
    odd_keys: Vec<&'static str>,
    scalars: Vec<&'static str>,
}

const KEYS: &str = "jsonrpc id method params result error sessionId pool requestId elicitationId _meta update \
    bus/pool x toolCallId";
const ODD_KEYS: &str = r#"ID \u0069d i\u0064x Method PARAMS re\u0073ult ſessionId \u017fessionID sessionid POOL
    bus\/pool Update \ud800 a\"b\\ é id\n"#;
const SCALARS: &str = r#"1|0|-0.5e+3|1e999|12345678901234567890|null|true|false|""|"abc"|"é😀"|"\ud800\u0041"|"{\\"|
    "a \"quoted\" word\n""#;
/// Strings that are longer than what the reader takes block by block, so that it uses memchr as well.
const LONG_SCALARS: [&str; 2] = [
    concat!(
        r#""a text that goes on for more than the hundred and twenty-eight bytes that are looked at in blocks of "#,
        r#"sixteen each, so that it comes to meet what is behind them""#
    ),
    concat!(
        r#""a text of about that length with an accént, and, long before it has come to its end, and some way "#,
        r#"behind that, but not quite among the last of its words, an escape \t as well""#
    ),
];
const METHODS: [&str; 4] = ["session/prompt", "session/update", "$/cancel_request", "m"];
const NOISE: &[u8] = b"\"\\{}[]:,0-.eEu+ntf \t\n\0\x1f\x7f\xc3\xa9\xff";

impl LineGenerator {
    pub(crate) fn new(seed: u64) -> LineGenerator {
        LineGenerator {
            state: seed,
            keys: KEYS.split_whitespace().collect(),
            odd_keys: ODD_KEYS.split_whitespace().collect(),
            scalars: SCALARS.split('|').map(str::trim).chain(LONG_SCALARS).collect(),
        }
    }

    pub(crate) fn next_line(&mut self) -> Vec<u8> {
        let text = match self.below(8) {
            0 => self.value(4),
            1 => self.object(4),
            _ => self.message(),
        };
        let mut line = text.into_bytes();
        if self.below(3) == 0 {
            for _ in 0..=self.below(3) {
                self.mutate(&mut line);
            }
        }
        line
    }

    fn message(&mut self) -> String {
        let mut members = vec![r#""jsonrpc":"2.0""#.to_owned()];
        if self.below(3) != 0 {
            members.push(format!(r#""id":{}"#, self.scalar()));
        }
        if self.below(2) == 0 {
            members.push(format!(r#""method":"{}""#, METHODS[self.below(4)]));
            members.push(format!(r#""params":{}"#, self.params()));
        } else {
            let key = ["result", "error"][self.below(2)];
            members.push(format!(r#""{key}":{}"#, self.object(2)));
        }
        if self.below(4) == 0 {
            members.push(self.member(2));
        }
        let first = self.below(members.len());
        members.rotate_left(first);
        format!("{}{{{}}}", self.space(), members.join(","))
    }

    fn params(&mut self) -> String {
        let mut members = Vec::new();
        for (key, chance) in [("sessionId", 2), ("requestId", 4), ("elicitationId", 6)] {
            if self.below(chance) == 0 {
                members.push(format!(r#""{key}":{}"#, self.scalar()));
            }
        }
        for (key, inner) in [("_meta", "bus/pool"), ("update", "sessionId")] {
            if self.below(4) == 0 {
                members.push(format!(r#""{key}":{{{},"{inner}":{}}}"#, self.member(1), self.scalar()));
            }
        }
        members.push(self.member(2));
        format!("{{{}}}", members.join(","))
    }

    fn value(&mut self, levels: usize) -> String {
        match self.below(4) {
            0 if levels > 0 => self.object(levels),
            1 if levels > 0 => {
                let elements: Vec<_> = (0..self.below(3)).map(|_| self.value(levels - 1)).collect();
                format!("[{}{}]", self.space(), elements.join(","))
            }
            _ => self.scalar().to_owned(),
        }
    }

    fn object(&mut self, levels: usize) -> String {
        let members: Vec<_> = (0..self.below(4)).map(|_| self.member(levels)).collect();
        format!("{{{}{}}}", self.space(), members.join(","))
    }

    fn member(&mut self, levels: usize) -> String {
        let odd = self.below(8) == 0;
        let key = self.below(if odd { self.odd_keys.len() } else { self.keys.len() });
        let key = if odd { self.odd_keys[key] } else { self.keys[key] };
        let value = self.value(levels.saturating_sub(1));
        format!(r#"{}"{key}"{}:{}{value}"#, self.space(), self.space(), self.space())
    }

    pub(crate) fn scalar(&mut self) -> &'static str {
        // Routing mostly reads plain strings, so half of the scalars are one.
        let scalar = self.below(self.scalars.len() * 2);
        self.scalars.get(scalar).copied().unwrap_or(r#""s-1""#)
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", "", "", " ", "\t", " \r\n"][self.below(8)]
    }

    /// Changes, drops, repeats or inserts a few bytes.
    pub(crate) fn mutate(&mut self, line: &mut Vec<u8>) {
        let at = self.below(line.len() + 1);
        let to = (at + self.below(8)).min(line.len());
        match self.below(6) {
            0 => line.truncate(at),
            1 => drop(line.drain(at..to)),
            2 => line.extend_from_within(at..to),
            3 => line.insert(at, NOISE[self.below(NOISE.len())]),
            _ if at == line.len() => {}
            4 => line[at] = NOISE[self.below(NOISE.len())],
            _ => line[at] ^= 1 << self.below(8),
        }
    }

    /// A pseudo-random number below `bound`, by xorshift.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) as usize % bound
    }
}

/// All members of an object in their order, with the keys as they are spelled.
struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// Scans a line by way of serde_json.
#[derive(Default)]
pub(crate) struct Oracle<'a> {
    found: Vec<(Field, &'a str)>,
    /// How often the top-level id occurs.
    ids: usize,
    fault: Option<Fault>,
}

impl<'a> Oracle<'a> {
    /// Gives the same result as `Envelope::scan`, except that syntax faults are all at byte 0.
    pub(crate) fn scan(line: &'a [u8]) -> Result<Envelope, Malformed> {
        let refuse = |fault| Err(Malformed { fault, id: None, answer: false });
        let Ok(value) = serde_json::from_slice::<&RawValue>(line) else {
            return refuse(Fault::Syntax { at: 0 });
        };
        if !value.get().starts_with('{') {
            return refuse(Fault::NotObject);
        }
        let mut oracle = Oracle::default();
        oracle.visit("", value.get());
        let span = |token: &str| {
            let start = token.as_ptr() as usize - line.as_ptr() as usize;
            Span::new(start, start + token.len())
        };
        oracle.envelope(span).map_err(|fault| {
            let id = oracle.find(Field::Id).filter(|id| oracle.ids == 1 && is_id(id)).map(span);
            let has_method =
                oracle.find(Field::Method).is_some() || fault == Fault::EscapedKey(Field::Method);
            Malformed { fault, id, answer: !has_method }
        })
    }

    fn visit(&mut self, level: &str, object: &'a str) {
        let fields = match level {
            "" => &FIELDS[..8],
            "params" => &FIELDS[8..13],
            "_meta" => &FIELDS[13..14],
            "update" => &FIELDS[14..15],
            _ => &FIELDS[15..],
        };
        let Members(members) = serde_json::from_str(object).expect("the line is valid JSON");
        for (key, value) in members {
            let Ok(decoded) = serde_json::from_str::<String>(key.get()) else { continue };
            let folded = decoded.replace('ſ', "s").replace('\u{212a}', "k");
            let Some(&(field, name)) = fields.iter().find(|(_, name)| name.eq_ignore_ascii_case(&folded))
            else {
                continue;
            };
            self.ids += usize::from(key.get() == r#""id""# && level.is_empty());
            if key.get() != format!("\"{name}\"") {
                self.fault.get_or_insert(Fault::EscapedKey(field));
            } else if self.find(field).is_some() {
                self.fault.get_or_insert(Fault::DuplicateKey(field));
            } else {
                self.found.push((field, value.get()));
                let is_level =
                    matches!((level, name), ("", "params" | "result") | ("params", "_meta" | "update"));
                if is_level && value.get().starts_with('{') {
                    self.visit(name, value.get());
                }
            }
        }
    }

    fn envelope(&self, span: impl Fn(&str) -> Span) -> Result<Envelope, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let has = |field| self.find(field).is_some();
        let (method, result, error) = (has(Field::Method), has(Field::Result), has(Field::Error));
        let null = |field| self.find(field) == Some("null");
        let failed = error && !(result && null(Field::Error));
        let wrong = match (method, result, error) {
            (true, true, _) | (true, _, true) => Some("method excludes result and error"),
            (false, true, true) if failed && !null(Field::Result) => Some("result excludes error"),
            (false, false, false) => Some("method, result and error are all missing"),
            _ => None,
        };
        let method = self.find(Field::Method).unwrap_or("\"\"");
        let id = self.find(Field::Id).filter(|&id| id != "null" || has(Field::Method));
        let wrong = wrong
            .or((!method.starts_with('"')).then_some("method must be a string"))
            .or(method.contains('\\').then_some("method must be spelled plainly"))
            .or(id.is_some_and(|id| !is_id(id)).then_some("id must be a string or a number"));
        if let Some(wrong) = wrong {
            return Err(Fault::NotRpc(wrong));
        }
        let text = |field: Field, strict: Option<&'static str>| match (self.find(field), strict) {
            (None | Some("null"), _) => Ok(None),
            (Some(token), _) if token.starts_with('"') => Ok(Some(span(token))),
            (_, Some(wrong)) => Err(Fault::NotRpc(wrong)),
            (_, None) => Ok(None),
        };
        Ok(Envelope {
            kind: match (has(Field::Method), id) {
                (true, Some(_)) => Kind::Request,
                (true, None) => Kind::Notification,
                (false, _) => Kind::Answer { failed },
            },
            id: id.map(&span),
            method: if has(Field::Method) { span(&method[1..method.len() - 1]) } else { Span::default() },
            params: self.find(Field::Params).map(&span),
            outcome: self.find(if failed { Field::Error } else { Field::Result }).map(&span),
            session: text(Field::Session, Some("sessionId must be a string"))?,
            top_session: text(Field::TopSession, Some("sessionId must be a string"))?,
            pool: text(Field::Pool, Some("pool must be a string"))?,
            meta_pool: text(Field::MetaPool, Some("bus/pool must be a string"))?,
            request: self.find(Field::Request).filter(|token| is_id(token)).map(&span),
            elicitation: text(Field::Elicitation, None)?,
            child: text(Field::Child, None)?,
            result_session: text(Field::ResultSession, None)?,
            is_piece: Hint(false),
        })
    }

    fn find(&self, field: Field) -> Option<&'a str> {
        self.found.iter().find(|(found, _)| *found == field).map(|(_, value)| *value)
    }
}

fn is_id(token: &str) -> bool {
    token.starts_with('"') || token.parse::<f64>().is_ok()
}
