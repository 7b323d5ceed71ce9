//! `ExportTraceServiceRequest` in JSON (`http/json`): ids in hex, 64-bit numbers as strings, enums as numbers.

use serde_json::{Value, json};

use crate::context::hex;
use crate::resource::{Resource, SCOPE, VERSION};
use crate::span::{Attribute, Span, nanos};

const STATUS_ERROR: u64 = 2;

pub(crate) fn request(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let described: Vec<Value> = resource
        .attributes
        .iter()
        .map(|(key, value)| key_value(key, &Attribute::Text(value.clone())))
        .collect();
    let scope = json!({ "name": SCOPE, "version": VERSION });
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": described },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
    .to_string()
    .into_bytes()
}

fn span(it: &Span) -> Value {
    let mut span = json!({
        "traceId": hex(&it.context.trace_id),
        "spanId": hex(&it.context.span_id),
        "name": it.name,
        "kind": it.kind as u64,
        "startTimeUnixNano": nanos(it.start).to_string(),
        "endTimeUnixNano": nanos(it.end).to_string(),
        "attributes": it.attributes.iter().map(|(key, value)| key_value(key, value)).collect::<Vec<_>>(),
        "flags": 1,
    });
    if let Some(parent) = it.parent {
        span["parentSpanId"] = hex(&parent).into();
    }
    if !it.context.tracestate.is_empty() {
        span["traceState"] = it.context.tracestate.as_str().into();
    }
    if let Some(error) = &it.error {
        span["status"] = json!({ "code": STATUS_ERROR, "message": error });
    }
    span
}

fn key_value(key: &str, value: &Attribute) -> Value {
    json!({ "key": key, "value": any_value(value) })
}

fn any_value(value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => json!({ "stringValue": text }),
        Attribute::Flag(flag) => json!({ "boolValue": flag }),
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
        Attribute::Float(number) => json!({ "doubleValue": number }),
        Attribute::Texts(texts) => {
            let values: Vec<Value> = texts.iter().map(|text| json!({ "stringValue": text })).collect();
            json!({ "arrayValue": { "values": values } })
        }
    }
}

/// How many spans the answer says were refused, and why.
pub(crate) fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let partial = answer.get("partialSuccess").filter(|it| it.is_object())?;
    let count = &partial["rejectedSpans"];
    let count = count.as_u64().or_else(|| count.as_str()?.parse().ok());
    Some((count.unwrap_or_default(), partial["errorMessage"].as_str().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_what_was_refused() {
        let answer = br#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#;
        assert_eq!(rejected(answer), Some((3, "too old".to_owned())));
        for none in [&b"{}"[..], b"", b"<html>", br#"{"partialSuccess":7}"#] {
            assert_eq!(rejected(none), None);
        }
    }
}
