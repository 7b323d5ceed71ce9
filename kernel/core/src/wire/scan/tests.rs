//! Tests every rule of the scanner, and all of them against the oracle.

use std::path::Path;

use serde_json::value::RawValue;

use super::*;
use crate::wire::field::{NAME_BYTES_MAX, misspelled_field};
use crate::wire::json::BLOCK_BYTES;
use crate::wire::oracle::{LineGenerator, Oracle};

fn scan(line: &str) -> Result<Envelope, Fault> {
    Envelope::scan(line.as_bytes()).map_err(|malformed| malformed.fault)
}

fn not_json(line: &[u8]) -> bool {
    matches!(Envelope::scan(line), Err(Malformed { fault: Fault::Syntax { .. } | Fault::TooDeep, .. }))
}

#[test]
fn it_agrees_with_serde_json_on_generated_lines() {
    std::thread::scope(|scope| {
        for seed in [0x5eed_0000, 0x5eed_ffff] {
            let count = if cfg!(miri) { 100 } else { 100_000 };
            scope.spawn(move || agrees_with_serde_json(seed, count));
        }
    });
}

fn agrees_with_serde_json(seed: u64, count: usize) {
    let mut lines = LineGenerator::new(seed);
    let mut valid = 0;
    let mut not_rpc = 0;
    let mut broken = 0;
    for _ in 0..count {
        let line = lines.next_line();
        let shown = || String::from_utf8_lossy(&line);
        let expected = Oracle::scan(&line);
        let got = Envelope::scan(&line);
        if let Err(Malformed { fault: Fault::Syntax { .. }, .. }) = expected {
            broken += 1;
            assert!(not_json(&line), "{got:?} for {}", shown());
            continue;
        }
        valid += usize::from(got.is_ok());
        not_rpc += usize::from(got.is_err());
        assert_eq!(got, expected, "{}", shown());
    }
    assert!(valid.min(not_rpc).min(broken) > count / 10, "{valid} valid, {not_rpc} not rpc, {broken} broken");
}

#[test]
fn every_field_is_found() {
    let line = concat!(
        r#" {"jsonrpc":"2.0","id":"a\"b","sessionId":"top","pool":"p","method":"m/é","params":{"sessionId":"s","#,
        r#""requestId":-1.50,"elicitationId":"e","_meta":{"x":{"bus/pool":1},"bus/pool":"q"},"#,
        r#""update":{"sessionId":"c"},"sessionid_":{"sessionId":1,"id":2}}} "#,
    );
    let envelope = scan(line).unwrap();
    let text = |span: Option<Span>| span.map(|span| std::str::from_utf8(span.of(line.as_bytes())).unwrap());
    assert_eq!(envelope.kind, Kind::Request);
    assert_eq!(text(envelope.id), Some(r#""a\"b""#));
    assert_eq!(text(Some(envelope.method)), Some("m/é"));
    assert_eq!(text(envelope.top_session), Some(r#""top""#));
    assert_eq!(text(envelope.pool), Some(r#""p""#));
    assert_eq!(text(envelope.session), Some(r#""s""#));
    assert_eq!(text(envelope.request), Some("-1.50"));
    assert_eq!(text(envelope.elicitation), Some(r#""e""#));
    assert_eq!(text(envelope.meta_pool), Some(r#""q""#));
    assert_eq!(text(envelope.child), Some(r#""c""#));
    assert!(text(envelope.params).unwrap().starts_with(r#"{"sessionId":"s","#));
    assert!(text(envelope.params).unwrap().ends_with(r#""id":2}}"#));
    assert_eq!((envelope.outcome, envelope.result_session), (None, None));

    let line = r#"{"result":{"sessionId":"r"},"id":7}"#;
    let envelope = scan(line).unwrap();
    assert_eq!(envelope.kind, Kind::Answer { failed: false });
    assert_eq!(envelope.outcome, Some(Span::new(10, 27)));
    assert_eq!(envelope.result_session, Some(Span::new(23, 26)));
    assert_eq!(envelope.id, Some(Span::new(33, 34)));
    assert_eq!(envelope.method, Span::default());
}

#[test]
fn a_line_is_a_request_a_notification_or_an_answer() {
    let answer = |failed| Kind::Answer { failed };
    for (line, kind, has_id) in [
        (r#"{"id":1,"method":"m"}"#, Kind::Request, true),
        (r#"{"id":1e999,"method":"","jsonrpc":[]}"#, Kind::Request, true),
        (r#"{"method":"m","params":[{"id":1,"id":2}]}"#, Kind::Notification, false),
        (r#"{"method":"m","params":null}"#, Kind::Notification, false),
        (r#"{"id":1,"result":null}"#, answer(false), true),
        (r#"{"id":"x","error":{}}"#, answer(true), true),
        (r#"{"id":null,"error":{}}"#, answer(true), false),
        (r#"{"error":{"code":1}}"#, answer(true), false),
    ] {
        let envelope = scan(line).unwrap();
        assert_eq!((envelope.kind, envelope.id.is_some()), (kind, has_id), "{line}");
    }
}

#[test]
fn what_is_not_rpc_is_refused_with_the_reason() {
    for (line, why) in [
        (r#"{"id":null,"method":"m"}"#, "id must be a string or a number"),
        (r#"{"id":true,"method":"m"}"#, "id must be a string or a number"),
        (r#"{"id":[1],"method":"m"}"#, "id must be a string or a number"),
        (r#"{"id":{},"result":1}"#, "id must be a string or a number"),
        (r#"{"id":false,"error":1}"#, "id must be a string or a number"),
        (r#"{"method":1}"#, "method must be a string"),
        (r#"{"method":null}"#, "method must be a string"),
        (r#"{"method":"session\/new"}"#, "method must be spelled plainly"),
        (r#"{"method":"m","result":1}"#, "method excludes result and error"),
        (r#"{"method":"m","error":1,"id":1}"#, "method excludes result and error"),
        (r#"{"id":1,"result":1,"error":{}}"#, "result excludes error"),
        (r#"{"id":1}"#, "method, result and error are all missing"),
        ("{}", "method, result and error are all missing"),
        (r#"{"method":"m","params":{"sessionId":1}}"#, "sessionId must be a string"),
        (r#"{"method":"m","sessionId":{}}"#, "sessionId must be a string"),
        (r#"{"method":"m","pool":[]}"#, "pool must be a string"),
        (r#"{"method":"m","params":{"_meta":{"bus/pool":1}}}"#, "bus/pool must be a string"),
    ] {
        assert_eq!(scan(line), Err(Fault::NotRpc(why)), "{line}");
    }
}

#[test]
fn an_answer_may_have_both_keys_if_one_is_null() {
    for (line, failed) in [
        (r#"{"id":1,"result":{"a":1},"error":null}"#, false),
        (r#"{"id":1,"result":null,"error":null}"#, false),
        (r#"{"id":1,"error":{"a":1},"result":null}"#, true),
    ] {
        let envelope = Envelope::scan(line.as_bytes()).unwrap();
        assert_eq!(envelope.kind, Kind::Answer { failed }, "{line}");
        assert_eq!(envelope.outcome.unwrap().of(line.as_bytes()).starts_with(b"{"), line.contains("{\"a\""));
    }
}

#[test]
fn null_counts_as_absent_and_optional_fields_may_have_any_type() {
    for line in [
        r#"{"method":"m","sessionId":null,"pool":null,"params":{"sessionId":null,"_meta":null,"update":null}}"#,
        r#"{"method":"m","params":{"requestId":null,"elicitationId":null,"_meta":{"bus/pool":null}}}"#,
        r#"{"method":"m","params":{"requestId":{},"elicitationId":1,"update":{"sessionId":[]},"_meta":[]}}"#,
        r#"{"method":"m","params":{"requestId":true,"elicitationId":{},"update":{"sessionId":0},"_meta":1}}"#,
        r#"{"method":"m","params":[{"sessionId":1}]}"#,
        r#"{"method":"m","params":"sessionId"}"#,
    ] {
        let found = scan(line).unwrap();
        let absent = Envelope { kind: found.kind, method: found.method, params: found.params, ..ABSENT };
        assert_eq!(found, absent, "{line}");
    }
    assert_eq!(scan(r#"{"result":{"sessionId":null}}"#).unwrap().result_session, None);
}

const ABSENT: Envelope = Envelope {
    kind: Kind::Notification,
    id: None,
    method: Span { start: 0, end: 0 },
    params: None,
    outcome: None,
    session: None,
    top_session: None,
    pool: None,
    meta_pool: None,
    request: None,
    elicitation: None,
    child: None,
    result_session: None,
    is_piece: Hint(false),
};

#[test]
fn a_routing_key_occurs_once_and_is_spelled_plainly() {
    let wrap = |field: Field, members: &str| match field as usize {
        0..8 => format!("{{{members}}}"),
        8..13 => format!(r#"{{"params":{{{members}}},"method":"m"}}"#),
        13 => format!(r#"{{"params":{{"_meta":{{{members}}}}},"method":"m"}}"#),
        14 => format!(r#"{{"params":{{"update":{{{members}}}}},"method":"m"}}"#),
        _ => format!(r#"{{"id":1,"result":{{{members}}}}}"#),
    };
    for (index, (field, name)) in FIELDS.into_iter().enumerate() {
        assert_eq!((field as usize, field.name()), (index, name), "the table is in the order of the enum");
        assert!(name.len() <= NAME_BYTES_MAX);
        let twice = wrap(field, &format!(r#""{name}":"a","x":1,"{name}":"a""#));
        assert_eq!(scan(&twice), Err(Fault::DuplicateKey(field)), "{twice}");
        let all_escaped: String = name.bytes().map(|byte| format!("\\u{byte:04X}")).collect();
        let mut spellings = vec![name.to_uppercase(), all_escaped, name.replacen('s', "ſ", 1)];
        spellings.extend([name.replacen('s', r"\u017f", 1), name.replace('/', r"\/")]);
        for at in 0..name.len() {
            let byte = name.as_bytes()[at];
            let (before, after) = (&name[..at], &name[at + 1..]);
            spellings.push(format!("{before}\\u{byte:04x}{after}"));
            spellings.push(format!("{before}{}{after}", (byte as char).to_ascii_uppercase()));
        }
        for spelling in spellings.into_iter().filter(|spelling| spelling != name) {
            let alone = wrap(field, &format!(r#""{spelling}":"a""#));
            assert_eq!(scan(&alone), Err(Fault::EscapedKey(field)), "{alone}");
            let beside = wrap(field, &format!(r#""{name}":"a","{spelling}":"b""#));
            assert_eq!(scan(&beside), Err(Fault::EscapedKey(field)), "{beside}");
        }
    }
    let kelvin = "\u{212a}iosK".as_bytes();
    let key = Key { token: b"", name: kelvin, plain: false };
    assert_eq!(misspelled_field(&[(Field::Pool, "kiosk")], &key), Some(Field::Pool));
}

#[test]
fn other_keys_and_deeper_levels_may_be_anything() {
    for line in [
        r#"{"method":"m","a":1,"a":2,"\u0061":3,"É\ud800":4,"idx":5,"i\u0064x":6,"id\u0000":7,"\n":8}"#,
        r#"{"method":"m","params":{"id":1,"id":2,"ID":3,"pool":4,"\u0070ool":5,"bus/pool":6,"Method":7}}"#,
        r#"{"method":"m","params":{"x":{"sessionId":1,"sessionId":2,"SESSIONID":3}}}"#,
        r#"{"method":"m","params":{"update":{"content":{"sessionId":1,"sessionId":2},"_meta":1,"_Meta":2}}}"#,
        r#"{"method":"m","params":{"_meta":{"sessionId":1,"sessionId":2,"update":{"sessionId":3}}}}"#,
        r#"{"id":1,"error":{"sessionId":1,"sessionId":2,"\u0073essionId":3}}"#,
        r#"{"id":1,"result":{"update":{"sessionId":1,"sessionId":2},"_meta":{"bus/pool":1,"bus/pool":2}}}"#,
    ] {
        assert!(scan(line).is_ok(), "{:?} for {line}", scan(line));
    }
}

#[test]
fn a_bad_line_still_gives_its_id() {
    let long = "[".repeat(2000);
    for (line, id, answer) in [
        (r#"{"result":1,"result":2,"id":"a"}"#, Some(r#""a""#), true),
        (r#"{"id":5,"Result":{}}"#, Some("5"), true),
        (r#"{"id":5}"#, Some("5"), true),
        (r#"{"id":5,"result":1,"error":2}"#, Some("5"), true),
        (r#"{"params":{"sessionId":1,"sessionId":2},"method":"m","id":5}"#, Some("5"), false),
        (r#"{"id":5,"METHOD":"m"}"#, Some("5"), false),
        (r#"{"id":5,"ID":6,"result":1}"#, Some("5"), true),
        (r#"{"id":5,"id":5,"id":5,"result":1}"#, None, true),
        (r#"{"id":5,"id":null,"result":1}"#, None, true),
        (r#"{"id":[5],"result":1}"#, None, true),
        ("{\"id\":5,\"result\":\"a\x01b\"}", Some("5"), true),
        ("{\"result\":\"a\x01b\",\"id\":5}", Some("5"), true),
        (r#"{"id":5,"result":"a\x"}"#, Some("5"), true),
        (r#"{"id":05,"result":1}"#, None, true),
        (r#"{"id":"\x","result":1}"#, None, true),
        (r#"{"id":5,"method":nil}"#, Some("5"), false),
        (r#"{"id":5,"#, Some("5"), false),
        (r#"got {"id":5,"result":1}"#, None, false),
        (r#"[{"id":5,"result":1}]"#, None, false),
        (&format!(r#"{{"result":{long},"id":5"#), None, true),
        (&format!(r#"{{"id":5,"result":{long}"#), Some("5"), true),
    ] {
        let malformed = Envelope::scan(line.as_bytes()).unwrap_err();
        let found = malformed.id.map(|id| id.of(line.as_bytes()));
        assert_eq!(
            (found, malformed.answer),
            (id.map(str::as_bytes), answer),
            "{malformed:?} for {line:.99}"
        );
    }
    let not_utf8 = b"{\"result\":\"\xff\",\"id\":\"a\"}";
    let malformed = Malformed { fault: Fault::Syntax { at: 11 }, id: Some(Span::new(19, 22)), answer: true };
    assert_eq!(Envelope::scan(not_utf8), Err(malformed));
}

#[test]
fn text_that_is_not_json_is_refused_where_it_breaks() {
    for (line, at) in [
        (&b""[..], 0),
        (b"  ", 2),
        (b"hello", 0),
        (b"{", 1),
        (b"{\"id\":1,}", 8),
        (b"{,}", 1),
        (b"{\"id\" 1}", 6),
        (b"{\"id\":01}", 7),
        (b"{\"id\":1}}", 8),
        (b"{\"id\":1}\0", 8),
        (b"\xef\xbb\xbf{\"id\":1}", 0),
        (b"{\"a\":\"\x1f\"}", 6),
        (b"{\"a\":\"b\\", 7),
        (b"{\"a\":\"\\u12g4\"}", 6),
        (b"{\"a\":tru}", 5),
        (b"{\"a\":[1}", 7),
        (b"{\"a\":{]", 6),
        (b"{\"a\":\"\xc3\"}", 6),
        (b"{\"a\":\"\xed\xa0\x80\"}", 6),
        (b"[\"\xc3\"]", 2),
    ] {
        let fault = Envelope::scan(line).unwrap_err().fault;
        assert_eq!(fault, Fault::Syntax { at }, "{}", String::from_utf8_lossy(line));
    }
    for line in ["[]", " [{\"id\":1}] ", "1", "\"{}\"", "null", "-0.0e-0"] {
        assert_eq!(scan(line), Err(Fault::NotObject), "{line}");
    }
}

#[test]
fn a_special_byte_is_found_at_every_position_of_a_string() {
    let specials = ["\0", "\x1f", "\\x", r#"\""#, "é", "\x7f", r"\u00e9"].map(str::as_bytes);
    let specials = specials.into_iter().chain([&b"\xff"[..], b"\x80"]);
    for special in specials {
        let step = if cfg!(miri) { 29 } else { 1 };
        let near = (0..200).step_by(step).flat_map(|before| [0, 1, 7, 8, 100].map(|after| (before, after)));
        let far = (BLOCK_BYTES + 50..BLOCK_BYTES + 80)
            .filter(|_| !cfg!(miri))
            .flat_map(|before| [3, 2 * BLOCK_BYTES].map(|after| (before, after)));
        for (before, after) in near.chain(far) {
            let mut line = b"{\"method\":\"m\",\"x\":\"".to_vec();
            line.resize(line.len() + before, b'.');
            line.extend_from_slice(special);
            line.resize(line.len() + after, b'.');
            line.extend_from_slice(b"\"}");
            let accepted = serde_json::from_slice::<&RawValue>(&line).is_ok();
            assert_eq!(!not_json(&line), accepted, "{special:?} behind {before}, before {after}");
        }
    }
}

#[test]
fn the_depth_is_bounded_and_costs_no_stack() {
    let deep = if cfg!(miri) { 2_000 } else { 200_000 };
    let nest = |open: &str, depth: usize, close: &str| {
        format!(r#"{{"method":"m","params":{}1{}}}"#, open.repeat(depth), close.repeat(depth))
    };
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"update":"#, "}]")] {
        let levels = (DEPTH_MAX - 1) / close.len();
        assert!(scan(&nest(open, levels, close)).is_ok(), "{open}");
        assert_eq!(scan(&nest(open, levels + 1, close)), Err(Fault::TooDeep), "{open}");
        assert_eq!(scan(&nest(open, deep, close)), Err(Fault::TooDeep), "{open}");
    }
    for key in ["_meta", "update"] {
        let inside = |depth| {
            scan(&format!(
                r#"{{"method":"m","params":{{"{key}":{{"a":{}1{}}}}}}}"#,
                "[".repeat(depth),
                "]".repeat(depth)
            ))
        };
        assert!(inside(DEPTH_MAX - 3).is_ok());
        assert_eq!(inside(DEPTH_MAX - 2), Err(Fault::TooDeep));
    }
    assert_eq!(scan(&"[".repeat(deep)), Err(Fault::TooDeep));
    assert_eq!(scan(&(r#"{"params":"#.repeat(deep))), Err(Fault::TooDeep));
    let crossed = format!(r#"{{"params":{}1{}]}}}}"#, "[{\"a\":".repeat(300), "}]".repeat(299));
    assert_eq!(scan(&crossed), Err(Fault::Syntax { at: crossed.len() - 3 }));
}

#[test]
fn a_fault_is_one_sentence() {
    for (fault, sentence) in [
        (Fault::Syntax { at: 3 }, "not valid JSON at byte 3"),
        (Fault::TooDeep, "nested deeper than 1024 levels"),
        (Fault::NotObject, "not a JSON object"),
        (Fault::DuplicateKey(Field::Session), r#"the key "sessionId" is there twice"#),
        (Fault::EscapedKey(Field::MetaPool), r#"the key "bus/pool" is not spelled plainly"#),
        (Fault::NotRpc("pool must be a string"), "not JSON-RPC: pool must be a string"),
    ] {
        assert_eq!(fault.to_string(), sentence);
    }
}

#[test]
fn equal_strings_have_one_canonical_spelling() {
    for (token, body) in [
        (r#""""#, ""),
        (r#""abc é""#, "abc é"),
        (r#""\u0061\/\u00e9""#, "a/é"),
        (r#""\ud83d\ude00""#, "😀"),
        (r#""\u0022\\\u000a\u001F""#, r#"\"\\\n\u001f"#),
        (r#""\ud800\u0061""#, r"\ud800\u0061"),
    ] {
        assert_eq!(canonical(token.as_bytes()), body.as_bytes(), "{token}");
    }
    assert!(matches!(canonical(b"\"plain\""), Cow::Borrowed(b"plain")));
}

/// Runs https://github.com/nst/JSONTestSuite, if JSON_TEST_SUITE names a copy of it.
#[test]
fn the_json_test_suite_passes() {
    let Some(suite) = std::env::var_os("JSON_TEST_SUITE") else { return };
    if !Path::new(&suite).is_dir() {
        return;
    }
    let mut files = 0;
    for entry in std::fs::read_dir(Path::new(&suite).join("test_parsing")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let line = std::fs::read(&path).unwrap();
        let valid = match name.as_bytes()[0] {
            b'y' => true,
            b'n' => false,
            _ => serde_json::from_slice::<&RawValue>(&line).is_ok(),
        };
        let got = Envelope::scan(&line);
        assert_eq!(!not_json(&line), valid, "{name}: {got:?}");
        if valid && !line.trim_ascii_start().starts_with(b"{") {
            assert_eq!(got.unwrap_err().fault, Fault::NotObject, "{name}");
        }
        files += 1;
    }
    assert!(files > 300, "only {files} files");
}
