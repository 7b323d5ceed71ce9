//! `ExportTraceServiceRequest` in protobuf, the default encoding of OTLP, and what of its answer is of interest.
//!
//! The few fields that are written have kept their numbers since version 1.0 of the protocol (opentelemetry-proto:
//! `collector/trace/v1/trace_service.proto`, `trace/v1/trace.proto`, `common/v1/common.proto`).

use crate::resource::{Resource, SCOPE, VERSION};
use crate::span::{Attribute, Span, nanos};

const STATUS_ERROR: u64 = 2;
/// Bit 8: whether the parent is of another program is known. Bit 9: it is. Bits 0 to 7 are the flags of W3C.
const FLAG_SAMPLED: u32 = 1;

pub(crate) fn request(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let mut scope = Message::default();
    scope.text(1, SCOPE);
    scope.text(2, VERSION);
    let mut scope_spans = Message::default();
    scope_spans.message(1, &scope);
    for it in spans {
        scope_spans.message(2, &span(it));
    }
    let mut described = Message::default();
    for (key, value) in &resource.attributes {
        described.message(1, &key_value(key, &Attribute::Text(value.clone())));
    }
    let mut resource_spans = Message::default();
    resource_spans.message(1, &described);
    resource_spans.message(2, &scope_spans);
    let mut request = Message::default();
    request.message(1, &resource_spans);
    request.0
}

fn span(it: &Span) -> Message {
    let mut span = Message::default();
    span.bytes(1, &it.context.trace_id);
    span.bytes(2, &it.context.span_id);
    span.text(3, &it.context.tracestate);
    if let Some(parent) = it.parent {
        span.bytes(4, &parent);
    }
    span.text(5, &it.name);
    span.number(6, it.kind as u64);
    span.fixed64(7, nanos(it.start));
    span.fixed64(8, nanos(it.end));
    for (key, value) in &it.attributes {
        span.message(9, &key_value(key, value));
    }
    if let Some(error) = &it.error {
        let mut status = Message::default();
        status.text(2, error);
        status.number(3, STATUS_ERROR);
        span.message(15, &status);
    }
    span.fixed32(16, FLAG_SAMPLED);
    span
}

fn key_value(key: &str, value: &Attribute) -> Message {
    let mut pair = Message::default();
    pair.text(1, key);
    pair.message(2, &any_value(value));
    pair
}

fn any_value(value: &Attribute) -> Message {
    let mut any = Message::default();
    match value {
        // An empty text is a value too, so it is written.
        Attribute::Text(text) => any.bytes(1, text.as_bytes()),
        Attribute::Flag(flag) => any.number(2, u64::from(*flag)),
        Attribute::Number(number) => any.number(3, *number as u64),
        Attribute::Float(number) => any.fixed64(4, number.to_bits()),
        Attribute::Texts(texts) => {
            let mut list = Message::default();
            for text in texts {
                list.message(1, &any_value(&Attribute::Text(text.clone())));
            }
            any.message(5, &list);
        }
    }
    any
}

/// Writes the fields of a message one after the other.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u64, number: u64) {
        self.key(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, number: u32) {
        self.key(field, 5);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// An empty text is the same as none.
    fn text(&mut self, field: u64, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }
}

/// How many spans the answer says were refused, and why.
pub(crate) fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let partial = fields(answer)?.into_iter().find(|(field, _)| *field == 1)?.1.bytes()?;
    let (mut count, mut why) = (0, String::new());
    for (field, value) in fields(partial)? {
        match (field, value) {
            (1, Field::Number(number)) => count = number,
            (2, Field::Bytes(text)) => why = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    Some((count, why))
}

#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Field::Bytes(bytes) => Some(bytes),
            Field::Number(_) => None,
        }
    }
}

/// The fields of a message. `None`: it is none.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => Field::Number(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Field::Bytes(take(&mut bytes, length)?)
            }
            5 => Field::Number(u32::from_le_bytes(take(&mut bytes, 4)?.try_into().ok()?).into()),
            _ => return None,
        };
        found.push((key >> 3, value));
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_format_says() {
        let mut message = Message::default();
        message.number(1, 150);
        message.text(2, "testing");
        message.text(3, "");
        assert_eq!(message.0, [0x08, 0x96, 0x01, 0x12, 7, b't', b'e', b's', b't', b'i', b'n', b'g']);
    }

    #[test]
    fn an_answer_tells_what_was_refused() {
        let mut partial = Message::default();
        partial.number(1, 3);
        partial.text(2, "too old");
        let mut answer = Message::default();
        answer.message(1, &partial);
        assert_eq!(rejected(&answer.0), Some((3, "too old".to_owned())));
        assert_eq!(rejected(b""), None);
        // Any bytes are an answer, or none.
        for cut in 0..answer.0.len() {
            let _ = rejected(&answer.0[..cut]);
        }
        for bytes in [&[0xff; 20][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], &[0x0b]]
        {
            assert_eq!(rejected(bytes), None);
        }
    }
}
