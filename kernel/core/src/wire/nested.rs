//! Finds what is nested deeper than routing looks: session ids in lists, in errors, in updates about other sessions,
//! and members of what the bus keeps to say it again.
//!
//! Only lines that may hold such things are read a second time, so this code need not be fast.

use memchr::memmem;

use crate::limit::{LIST_BYTES, NESTED_BYTES};
use crate::wire::error::shortened;
use crate::wire::json::{Reader, Span};
use crate::wire::scan::{Envelope, Kind, canonical};
use crate::wire::splice::{Edit, splice};

/// One row of a list of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The whole element of the list.
    pub(crate) element: Span,
    /// Its `sessionId` with the quotes; of several, the last one counts. `None`: there is none, or it is no string.
    pub(crate) id: Option<Span>,
    /// The sessions that it was forked from, as it says itself or in its `_meta`.
    pub(crate) forked_from: Vec<Span>,
}

/// Calls `each` with the rows of the list of sessions in this result or in these params. What is no object is no row.
/// Returns the place of everything in the list, within its brackets. `None`: there is no list, or nothing in it.
pub(crate) fn for_each_listed(
    line: &[u8],
    object: Option<Span>,
    mut each: impl FnMut(Listed),
) -> Option<Span> {
    let list = member(line, object, b"sessions")?;
    let mut all = None::<Span>;
    // A list may be long, so each element is read only once.
    walk(&mut reader_of(line, list), b'[', &mut |reader, _| {
        let (start, mut id, mut forked_from) = (reader.at, None, Vec::new());
        let is_read = walk(reader, b'{', &mut |reader, name| {
            let value = read_value(reader)?;
            let text_of = |value: Span| Some(value).filter(|value| value.of(line).starts_with(b"\""));
            match &*canonical(name.of(line)) {
                b"sessionId" => id = text_of(value),
                b"forkedFrom" => forked_from.extend(text_of(value)),
                b"_meta" => for_each_in(line, value, b'{', |_, extension| {
                    forked_from.extend(text(line, Some(extension), b"forkedFrom"));
                }),
                _ => {}
            }
            Some(())
        });
        if !is_read {
            read_value(reader)?;
        }
        let element = Span::new(start, reader.at);
        all = Some(Span { start: all.map_or(element.start, |all| all.start), end: element.end });
        if is_read {
            each(Listed { element, id, forked_from });
        }
        Some(())
    });
    all
}

/// The ids in the list under `key` in this object.
pub(crate) fn ids(line: &[u8], object: Option<Span>, key: &[u8]) -> Vec<Span> {
    elements(line, object, key).into_iter().filter(|id| id.of(line).starts_with(b"\"")).collect()
}

/// The ids of other sessions in an update: of the sender, the recipient and background tasks.
pub(crate) fn in_update(line: &[u8], envelope: &Envelope) -> Vec<Span> {
    if memmem::find(line, br#"SessionId""#).is_none() && memmem::find(line, br#""background""#).is_none() {
        return Vec::new();
    }
    let update = member(line, within(envelope.params, LIST_BYTES), b"update");
    let keys: [&[u8]; 4] = [b"background", b"state", b"senderSessionId", b"recipientSessionId"];
    let [background, state, sender, recipient] = members_of(line, update, keys);
    let mut found = in_background(line, background);
    found.extend(in_background(line, member(line, state, b"background")));
    found.extend(string(line, sender));
    found.extend(string(line, recipient));
    found
}

/// The ids of other sessions in an answer: of the session that an error is about, or of background tasks.
pub(crate) fn in_answer(line: &[u8], envelope: &Envelope) -> Vec<Span> {
    if envelope.kind == (Kind::Answer { failed: true }) {
        let data = member(line, within(envelope.outcome, NESTED_BYTES), b"data");
        return text(line, data, b"sessionId").into_iter().collect();
    }
    if memmem::find(line, br#""background""#).is_none() {
        return Vec::new();
    }
    let state = member(line, within(envelope.outcome, LIST_BYTES), b"state");
    in_background(line, member(line, state, b"background"))
}

/// The ids in a list of background tasks.
fn in_background(line: &[u8], tasks: Option<Span>) -> Vec<Span> {
    let mut found = Vec::new();
    for_each_of(line, tasks, |task| {
        found.extend(text(line, Some(task), b"sessionId"));
        Some(())
    });
    found
}

/// The elements of the list under `key` in this object.
pub(crate) fn elements(line: &[u8], object: Option<Span>, key: &[u8]) -> Vec<Span> {
    let mut elements = Vec::new();
    for_each_element(line, object, key, |element| {
        elements.push(element);
        Some(())
    });
    elements
}

/// Calls `each` with the elements of the list under `key` in this object, until it returns `None`.
pub(crate) fn for_each_element(
    line: &[u8],
    object: Option<Span>,
    key: &[u8],
    each: impl FnMut(Span) -> Option<()>,
) {
    for_each_of(line, member(line, object, key), each);
}

/// The same for an object that may be long, which is read only once and only until `each` returns `None`. `each` gets
/// `None` where a list under `key` begins. Of several, the last one counts among those that are reached.
pub(crate) fn for_each_element_once(
    line: &[u8],
    object: Option<Span>,
    key: &[u8],
    mut each: impl FnMut(Option<Span>) -> Option<()>,
) {
    let Some(object) = object else { return };
    walk(&mut reader_of(line, object), b'{', &mut |reader, name| {
        if *canonical(name.of(line)) != *key {
            return read_value(reader).map(|_| ());
        }
        each(None)?;
        let mut goes_on = Some(());
        let is_list = walk(reader, b'[', &mut |reader, _| {
            goes_on = each(Some(read_value(reader)?));
            goes_on
        });
        if is_list { goes_on } else { read_value(reader).map(|_| ()) }
    });
}

/// Calls `each` with the elements of this list, until it returns `None`.
fn for_each_of(line: &[u8], list: Option<Span>, mut each: impl FnMut(Span) -> Option<()>) {
    if let Some(list) = list {
        walk(&mut reader_of(line, list), b'[', &mut |reader, _| each(read_value(reader)?));
    }
}

/// The string under `key` in this object, with its quotes.
pub(crate) fn text(line: &[u8], object: Option<Span>, key: &[u8]) -> Option<Span> {
    string(line, member(line, object, key))
}

/// The text of this string, which stands with its quotes, up to about so many bytes. It may be megabytes long, and only
/// its beginning is read.
pub(crate) fn beginning(token: &[u8], at_most: usize) -> Option<String> {
    /// The bytes of a character when it is escaped, if it is one beyond the basic plane.
    const LONGEST_CHAR: usize = 12;
    let read = |token: &[u8]| serde_json::from_slice::<String>(token).ok();
    let text = if token.len() <= LONGEST_CHAR * (at_most + 1) {
        read(token)
    } else {
        // Where a character is cut in two, a little less is read.
        let cut = LONGEST_CHAR * at_most;
        (cut - LONGEST_CHAR..=cut).rev().find_map(|end| read(&[&token[..end], b"\""].concat()))
    };
    text.map(|text| shortened(&text, at_most).to_owned())
}

/// The value under `key` in this object. Of several, the last one counts, as for most decoders.
pub(crate) fn member(line: &[u8], object: Option<Span>, key: &[u8]) -> Option<Span> {
    let [found] = members_of(line, object, [key]);
    found
}

/// The values under each of these keys, for which the object is read only once.
pub(crate) fn members_of<const N: usize>(
    line: &[u8],
    object: Option<Span>,
    keys: [&[u8]; N],
) -> [Option<Span>; N] {
    let mut found = [None; N];
    if let Some(object) = object {
        for_each_in(line, object, b'{', |name, value| {
            let name = canonical(name.of(line));
            if let Some(at) = keys.iter().position(|key| **key == *name) {
                found[at] = Some(value);
            }
        });
    }
    found
}

/// This value, unless it is longer than what is read again.
pub(crate) fn within(value: Option<Span>, most: usize) -> Option<Span> {
    value.filter(|value| value.length() <= most)
}

/// This value, if it is a string.
pub(crate) fn string(line: &[u8], value: Option<Span>) -> Option<Span> {
    value.filter(|value| value.of(line).starts_with(b"\""))
}

/// The whole of a value that is not part of a line.
pub(crate) fn whole(value: &[u8]) -> Option<Span> {
    Some(Span::new(0, value.len()))
}

/// This object with one value under `key`, in the place of the old one if there is one. Everything else stays as it
/// is, byte by byte. `None`: it is no object.
pub(crate) fn with_member(object: &[u8], key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let old = members(object)?.into_iter().filter(|(name, _)| *canonical(name.of(object)) == *key);
    if let [(_, old)] = old.collect::<Vec<_>>()[..] {
        let mut edited = Vec::with_capacity(object.len() + value.len());
        splice(&mut edited, object, &[Edit::new(old, value)]);
        return Some(edited);
    }
    let object = without_member(object, key)?;
    let start = object.iter().position(|byte| *byte == b'{')? + 1;
    let is_empty = object[start..].trim_ascii_start().starts_with(b"}");
    let comma: &[u8] = if is_empty { b"" } else { b"," };
    Some([&object[..start], b"\"", key, b"\":", value, comma, &object[start..]].concat())
}

/// This object without the members under `key`. `None`: it is no object.
pub(crate) fn without_member(object: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    let members = members(object)?;
    let (Some((first, _)), Some((_, last))) = (members.first(), members.last()) else {
        return Some(object.to_vec());
    };
    let mut left = object[..first.start as usize].to_vec();
    let is_kept = |name: Span| *canonical(name.of(object)) != *key;
    let mut has_member = false;
    for (at, &(name, value)) in members.iter().enumerate().filter(|(_, (name, _))| is_kept(*name)) {
        if has_member {
            // The comma before a member goes with it.
            let before = members[at - 1].1.end;
            left.extend_from_slice(Span { start: before, end: name.start }.of(object));
        }
        left.extend_from_slice(Span { start: name.start, end: value.end }.of(object));
        has_member = true;
    }
    left.extend_from_slice(&object[last.end as usize..]);
    Some(left)
}

/// The keys and values of this object. `None`: it is no object.
fn members(object: &[u8]) -> Option<Vec<(Span, Span)>> {
    let start = object.len() - object.trim_ascii_start().len();
    if object.get(start) != Some(&b'{') {
        return None;
    }
    let mut members = Vec::new();
    for_each_in(object, Span::new(start, object.len()), b'{', |name, value| members.push((name, value)));
    Some(members)
}

/// Calls `each` with every member of a validated value: the key with its quotes, which is empty in a list, and the
/// value. Does nothing if the value does not begin with this bracket.
fn for_each_in(line: &[u8], value: Span, bracket: u8, mut each: impl FnMut(Span, Span)) {
    walk(&mut reader_of(line, value), bracket, &mut |reader, name| {
        let value = read_value(reader)?;
        each(name, value);
        Some(())
    });
}

/// A reader at the beginning of this value. It gets the line only up to the end of the value, so that it cannot run
/// past it.
fn reader_of(line: &[u8], value: Span) -> Reader<'_> {
    let mut reader = Reader::new(&line[..value.end as usize]);
    reader.at = value.start as usize;
    reader
}

fn read_value(reader: &mut Reader<'_>) -> Option<Span> {
    let start = reader.at;
    reader.value(0).ok()?;
    Some(Span::new(start, reader.at))
}

/// Reads a validated list or object. `each` reads one value, and is given its key. False: the value does not begin with
/// this bracket, and nothing was read.
fn walk<'a>(
    reader: &mut Reader<'a>,
    bracket: u8,
    each: &mut impl FnMut(&mut Reader<'a>, Span) -> Option<()>,
) -> bool {
    if reader.peek() != bracket {
        return false;
    }
    reader.at += 1;
    while !matches!(reader.skip_space(), b'}' | b']' | 0) {
        let mut name = Span::new(reader.at, reader.at);
        if bracket == b'{' {
            let Ok(key) = reader.key() else { return true };
            name.end = name.start + key.token.len() as u32;
        }
        if each(reader, name).is_none() {
            return true;
        }
        if reader.skip_space() == b',' {
            reader.at += 1;
        }
    }
    reader.at += 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_sessions_are_found_with_their_ids() {
        let listed = |result: &str| -> Vec<(String, Option<String>)> {
            let line = format!(r#"{{"id":1,"result":{result},"z":[]}}"#);
            let outcome = Envelope::scan(line.as_bytes()).unwrap().outcome;
            let text = |span: Span| String::from_utf8(span.of(line.as_bytes()).to_vec()).unwrap();
            let mut rows = Vec::new();
            for_each_listed(line.as_bytes(), outcome, |listed| {
                rows.push((text(listed.element), listed.id.map(text)));
            });
            rows
        };
        for (result, expected) in [
            ("null", vec![]),
            ("[]", vec![]),
            ("{}", vec![]),
            (r#"{"sessions":{"sessionId":"a"}}"#, vec![]),
            (r#"{"sessions":[ ]}"#, vec![]),
            (r#"{"sessions":[{"x":1}],"x":2,"s\u0065ssions" : [ "a" , {},[{}] ]}"#, vec![("{}", None)]),
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
        let all = |result: &[u8]| {
            let all = for_each_listed(result, whole(result), |_| {});
            all.map(|all| String::from_utf8(all.of(result).to_vec()).unwrap())
        };
        assert_eq!(all(br#"{"sessions":[ "a" , {} ,1 ]}"#).as_deref(), Some(r#""a" , {} ,1"#));
        assert_eq!(all(br#"{"sessions":[ ]}"#), None);
    }

    #[test]
    fn a_member_is_replaced_and_all_other_bytes_stay() {
        let text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).unwrap());
        for (object, without, with) in [
            ("{}", "{}", r#"{"k":7}"#),
            (" { } ", " { } ", r#" {"k":7 } "#),
            (r#"{"k":1}"#, "{}", r#"{"k":7}"#),
            (r#"{"b":1E5, "a" : 0.10}"#, r#"{"b":1E5, "a" : 0.10}"#, r#"{"k":7,"b":1E5, "a" : 0.10}"#),
            (r#"{"k":{"k":2},"a":0.10}"#, r#"{"a":0.10}"#, r#"{"k":7,"a":0.10}"#),
            (r#"{"a":",", "k":[1,2] , "b":2 }"#, r#"{"a":"," , "b":2 }"#, r#"{"a":",", "k":7 , "b":2 }"#),
            (r#"{"a":1,"\u006b":2}"#, r#"{"a":1}"#, r#"{"a":1,"\u006b":7}"#),
            (r#"{"k":1,"a":1,"k":2}"#, r#"{"a":1}"#, r#"{"k":7,"a":1}"#),
        ] {
            assert_eq!(text(without_member(object.as_bytes(), b"k")).as_deref(), Some(without), "{object}");
            assert_eq!(text(with_member(object.as_bytes(), b"k", b"7")).as_deref(), Some(with), "{object}");
        }
        assert_eq!(without_member(b"[1]", b"k"), None);
        assert_eq!(with_member(b"null", b"k", b"7"), None);
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
