//! Finds session ids that are nested deeper than routing looks: in lists, in errors, in updates about other sessions.
//!
//! Only lines that may hold such ids are read a second time, so this code need not be fast.

use memchr::memmem;

use crate::wire::json::{Reader, Span};
use crate::wire::scan::{Envelope, Kind, canonical};

/// One session of a `session/list` answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The whole element of the list.
    pub(crate) element: Span,
    /// Its `sessionId` with the quotes; of several, the last one counts. `None`: there is none, or it is no string.
    pub(crate) id: Option<Span>,
}

/// The sessions in a `session/list` answer whose envelope has this `outcome`.
pub(crate) fn listed_sessions(line: &[u8], outcome: Span) -> Vec<Listed> {
    elements(line, Some(outcome), b"sessions")
        .into_iter()
        .map(|element| Listed { element, id: text(line, Some(element), b"sessionId") })
        .collect()
}

/// The ids of other sessions in an update: of the sender, the recipient and background tasks.
pub(crate) fn in_update(line: &[u8], envelope: &Envelope) -> Vec<Span> {
    if memmem::find(line, br#"SessionId""#).is_none() && memmem::find(line, br#""background""#).is_none() {
        return Vec::new();
    }
    let update = member(line, envelope.params, b"update");
    let mut found = in_background(line, update);
    found.extend(in_background(line, member(line, update, b"state")));
    found.extend(text(line, update, b"senderSessionId"));
    found.extend(text(line, update, b"recipientSessionId"));
    found
}

/// The ids of other sessions in an answer: of the session that an error is about, or of background tasks.
pub(crate) fn in_answer(line: &[u8], envelope: &Envelope) -> Vec<Span> {
    if envelope.kind == (Kind::Answer { failed: true }) {
        let data = member(line, envelope.outcome, b"data");
        return text(line, data, b"sessionId").into_iter().collect();
    }
    if memmem::find(line, br#""background""#).is_none() {
        return Vec::new();
    }
    in_background(line, member(line, envelope.outcome, b"state"))
}

fn in_background(line: &[u8], object: Option<Span>) -> Vec<Span> {
    let tasks = elements(line, object, b"background");
    tasks.into_iter().filter_map(|task| text(line, Some(task), b"sessionId")).collect()
}

/// The elements of the list under `key` in this object.
fn elements(line: &[u8], object: Option<Span>, key: &[u8]) -> Vec<Span> {
    let mut elements = Vec::new();
    if let Some(list) = member(line, object, key) {
        for_each_in(line, list, b'[', |_, element| elements.push(element));
    }
    elements
}

/// The string under `key` in this object, with its quotes.
fn text(line: &[u8], object: Option<Span>, key: &[u8]) -> Option<Span> {
    member(line, object, key).filter(|value| value.of(line).starts_with(b"\""))
}

/// The value under `key` in this object. Of several, the last one counts, as for most decoders.
fn member(line: &[u8], object: Option<Span>, key: &[u8]) -> Option<Span> {
    let mut found = None;
    for_each_in(line, object?, b'{', |name, value| {
        if *canonical(name) == *key {
            found = Some(value);
        }
    });
    found
}

/// Calls `each` with every member of a validated value: the key with its quotes, which is empty in a list, and the
/// value. Does nothing if the value does not begin with this bracket.
fn for_each_in(line: &[u8], value: Span, bracket: u8, mut each: impl FnMut(&[u8], Span)) {
    // The reader gets the line only up to the end of the value, so that it cannot run past it.
    let mut reader = Reader::new(&line[..value.end as usize]);
    reader.at = value.start as usize;
    if reader.peek() != bracket {
        return;
    }
    reader.at += 1;
    while !matches!(reader.skip_space(), b'}' | b']' | 0) {
        let mut name: &[u8] = b"";
        if bracket == b'{' {
            let Ok(key) = reader.key() else { return };
            name = key.token;
        }
        let start = reader.at;
        if reader.value(0).is_err() {
            return;
        }
        each(name, Span::new(start, reader.at));
        if reader.skip_space() == b',' {
            reader.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_sessions_are_found_with_their_ids() {
        let listed = |result: &str| -> Vec<(String, Option<String>)> {
            let line = format!(r#"{{"id":1,"result":{result},"z":[]}}"#);
            let outcome = Envelope::scan(line.as_bytes()).unwrap().outcome.unwrap();
            let text = |span: Span| String::from_utf8(span.of(line.as_bytes()).to_vec()).unwrap();
            let sessions = listed_sessions(line.as_bytes(), outcome);
            sessions.into_iter().map(|listed| (text(listed.element), listed.id.map(text))).collect()
        };
        for (result, expected) in [
            ("null", vec![]),
            ("[]", vec![]),
            ("{}", vec![]),
            (r#"{"sessions":{"sessionId":"a"}}"#, vec![]),
            (r#"{"sessions":[ ]}"#, vec![]),
            (
                r#"{"sessions":[1],"x":2,"s\u0065ssions" : [ "a" , {} ]}"#,
                vec![(r#""a""#, None), ("{}", None)],
            ),
            (
                r#"{"sessions":[{"sessionId":"a","cwd":"/[{"} ,{"sessionId":1},{"x":{"sessionId":"b"}}],"next":null}"#,
                vec![
                    (r#"{"sessionId":"a","cwd":"/[{"}"#, Some(r#""a""#)),
                    (r#"{"sessionId":1}"#, None),
                    (r#"{"x":{"sessionId":"b"}}"#, None),
                ],
            ),
            (
                r#"{"sessions":[{"sessionId":"a","\u0073essionId":"b\"","\ud800":1}]}"#,
                vec![(r#"{"sessionId":"a","\u0073essionId":"b\"","\ud800":1}"#, Some(r#""b\"""#))],
            ),
            (
                r#"{"sessions":[{"sessionId":"a","sessionId":null}]}"#,
                vec![(r#"{"sessionId":"a","sessionId":null}"#, None)],
            ),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(e, id)| (e.to_owned(), id.map(str::to_owned))).collect();
            assert_eq!(listed(result), expected, "{result}");
        }
    }

    #[test]
    fn ids_of_other_sessions_are_found() {
        let found = |line: &str| -> Vec<String> {
            let envelope = Envelope::scan(line.as_bytes()).unwrap();
            let spans = match envelope.kind {
                Kind::Answer { .. } => in_answer(line.as_bytes(), &envelope),
                _ => in_update(line.as_bytes(), &envelope),
            };
            let text = |span: Span| String::from_utf8(span.of(line.as_bytes()).to_vec()).unwrap();
            spans.into_iter().map(text).collect()
        };
        let update = |update: &str| {
            found(&format!(r#"{{"method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#))
        };
        assert_eq!(update(r#"{"senderSessionId":"a","x":1,"recipientSessionId":"b"}"#), [r#""a""#, r#""b""#]);
        assert_eq!(update(r#"{"background":[{"sessionId":"a"},{"sessionId":1},{}]}"#), [r#""a""#]);
        assert_eq!(update(r#"{"state":{"background":[{"sessionId":"a"}]}}"#), [r#""a""#]);
        assert!(update(r#"{"content":{"senderSessionId":"a"},"sessionId":"c"}"#).is_empty());
        assert_eq!(found(r#"{"id":1,"error":{"code":1,"message":"","data":{"sessionId":"a"}}}"#), [r#""a""#]);
        assert!(found(r#"{"id":1,"error":{"code":1,"message":"","data":"sessionId"}}"#).is_empty());
        assert_eq!(found(r#"{"id":1,"result":{"state":{"background":[{"sessionId":"a"}]}}}"#), [r#""a""#]);
        assert!(found(r#"{"id":1,"result":{"data":{"sessionId":"a"}}}"#).is_empty());
    }
}
