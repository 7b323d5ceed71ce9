//! Tests the scan of long lines against the scanner and the partial scan.

use std::path::PathBuf;

use super::*;
use crate::wire::oracle::LineGenerator;

fn agrees(line: &[u8], pieces: &[usize]) {
    let shown = || String::from_utf8_lossy(&line[..line.len().min(2000)]);
    assert_eq!(LongScan::scan(line, pieces), Envelope::scan(line), "{pieces:?} of {}", shown());
    // What is known of the line when it is given up is known at any time.
    let (mut scan, mut partial, mut fed) = (LongScan::default(), PartialScan::default(), 0);
    for piece in pieces.iter().cycle() {
        let end = line.len().min(fed + piece);
        scan.feed(&line[..end]);
        partial.feed(&line[fed..end]);
        let result = |partial: &PartialScan| {
            let id = partial.id().map(<[u8]>::to_vec);
            let start = id.is_some().then(|| partial.id_start());
            (id, start, partial.is_answer(), partial.is_request(), partial.bytes_fed())
        };
        assert_eq!(result(&scan.partial(&line[..end])), result(&partial), "{} of {}", end, shown());
        fed = end;
        if fed == line.len() {
            break;
        }
    }
}

#[test]
fn every_chunking_gives_the_result_of_the_scanner() {
    let mut lines = LineGenerator::new(0x5eed_0003);
    for _ in 0..if cfg!(miri) { 2 } else { 500 } {
        let line = lines.next_line();
        (1..=64).for_each(|piece| agrees(&line, &[piece]));
        agrees(&line, &[line.len()]);
    }
}

#[test]
fn it_agrees_with_the_scanner() {
    let mut lines = LineGenerator::new(0x5eed_0004);
    let count = if cfg!(miri) { 100 } else { 50_000 };
    let mut valid = 0;
    for round in 0..count {
        let line = lines.next_line();
        valid += usize::from(Envelope::scan(&line).is_ok());
        agrees(&line, &[1 + round % 13, 1 + round % 7, 1 + round % 31]);
    }
    assert!(valid > count / 20, "only {valid} valid lines");
}

#[test]
fn it_agrees_on_every_beginning_of_a_line_and_on_every_changed_byte() {
    let line = concat!(
        r#" {"jsonrpc":"2.0","id":"a\"\u00e9","sessionId":null,"method":"m/é\/","params":{"sessionId":"\ud83d\ude00","#,
        r#""requestId":-1.50e+7,"_meta":{"x":[{},[],[0,-0,12.5E-2,true,false,null]],"bus/pool":"q"},"#,
        r#""update":{"sessionId":"c"},"sessionid_":{"sessionId":1},"pa\u0072ams":0}} "#,
    );
    for end in 0..=line.len() {
        agrees(&line.as_bytes()[..end], &[1]);
        agrees(&line.as_bytes()[..end], &[5, 17]);
    }
    for at in 0..line.len() {
        for byte in *b"\"\\{}[]:,0-.eE+tfnu \r\x0c\x00\x1f\x7f\x80\xc3\xff" {
            let mut changed = line.as_bytes().to_vec();
            changed[at] = byte;
            agrees(&changed, &[at.max(1)]);
            agrees(&changed, &[7, 1, 60]);
        }
    }
}

#[test]
fn keys_are_taken_for_fields_as_the_scanner_takes_them() {
    let key = |key: &str| agrees(format!(r#"{{"{key}":1,"method":"m"}}"#).as_bytes(), &[3]);
    let escaped = |name: &str| name.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<String>();
    for name in ["id", "ID", "Id", "method", "Method", "paramſ", "params", "ſessionId", "x", ""] {
        key(name);
        key(&escaped(name));
        key(&format!("{}x", escaped(name)));
    }
    let elicitation = |key: &str| format!(r#"{{"method":"m","params":{{"{key}":"e"}}}}"#);
    for name in ["elicitationId", "ELICITATIONID", "elicitationIds"] {
        agrees(elicitation(name).as_bytes(), &[2]);
        agrees(elicitation(&escaped(name)).as_bytes(), &[2]);
    }
}

#[test]
fn the_depth_is_bounded_as_in_the_scanner() {
    for depth in [DEPTH_MAX - 3, DEPTH_MAX - 2, DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for line in [nested.clone(), format!(r#"{{"method":"m","params":{{"update":{nested}}},"id":7}}"#)]
            {
                agrees(line.as_bytes(), &[1]);
                agrees(line.as_bytes(), &[100]);
            }
        }
    }
}

/// Runs https://github.com/nst/JSONTestSuite, if JSON_TEST_SUITE names a copy of it.
#[test]
fn the_json_test_suite_has_the_same_results() {
    let Some(suite) = std::env::var_os("JSON_TEST_SUITE").map(PathBuf::from) else { return };
    if !suite.is_dir() {
        return;
    }
    let mut files = 0;
    for entry in std::fs::read_dir(suite.join("test_parsing")).unwrap() {
        let line = std::fs::read(entry.unwrap().path()).unwrap();
        let inside = [b"{\"method\":\"m\",\"params\":", &line[..], b"}"].concat();
        for pieces in [1, 2, 3, 100] {
            agrees(&line, &[pieces]);
            agrees(&inside, &[pieces]);
        }
        files += 1;
    }
    assert!(files > 300, "only {files} files");
}

#[test]
fn long_texts_and_characters_that_are_cut_in_two_are_checked() {
    for text in ["x", "é", "\u{1f600}", r"\n", r"\u00e9", "é\\\"", "\u{ff}\u{ff}\u{ff}a"] {
        let line = format!(r#"{{"id":1,"result":"{}"}}"#, text.repeat(3000));
        let mut broken = line.clone().into_bytes();
        broken[7000.min(line.len() - 3)] = 0xff;
        for piece in [1, 15, 16, 17, 1000, 4099] {
            agrees(line.as_bytes(), &[piece]);
            agrees(&broken, &[piece]);
        }
    }
}

#[test]
fn an_id_that_occurs_twice_is_followed_as_the_partial_scan_follows_it() {
    for line in [
        r#"{"id":"s","id":123"456,","error":{}}"#,
        r#"{"id":1,"id":"a"b","result":1}x"#,
        r#"{"id":12x,"result":1}"#,
        r#"{"id":{"id":1},"id":-1.5e"#,
    ] {
        agrees(line.as_bytes(), &[1]);
        agrees(line.as_bytes(), &[7, 2]);
    }
}

#[test]
fn blank_lines_are_known() {
    let mut scan = LongScan::default();
    assert!(scan.is_blank());
    scan.feed(b" \t");
    assert!(scan.is_blank() && scan.is_space());
    scan.feed(b" \t\x0c");
    assert!(scan.is_blank() && !scan.is_space());
    scan.feed(b" \t\x0c1");
    assert!(!scan.is_blank());
    assert_eq!(scan.partial(b" \t\x0c1 ").bytes_fed(), 5);
}
