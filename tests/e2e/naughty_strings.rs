//! Strings that have broken other programs: each is sent as a prompt, a method, a key and an id, byte for byte.
//!
//! `NAUGHTY_STRINGS` names a file with more of them: a JSON array, such as the Big List of Naughty Strings.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::harness::bus_puppet_client;

/// Strings that look like something else, or are hard to print, count, fold or quote.
const TEXTS: &[&str] = &[
    "",
    " ",
    "null",
    "undefined",
    "true",
    "NaN",
    "-Infinity",
    "0x7f",
    "1e999",
    "-0",
    "00",
    "1/0",
    "9007199254740993",
    "123456789012345678901234567890",
    "()",
    "{}",
    "[]",
    "{\"id\":1}",
    "\"},{\"id\":1,\"method\":\"x\"",
    "\\",
    "\\\\\"",
    "\\u0000",
    "a\nb",
    "a\r\nb",
    "\t\u{b}\u{c}",
    "\0",
    "\u{1}\u{2}\u{1f}\u{7f}",
    "\u{80}\u{85}\u{9f}",
    "\u{feff}bom",
    "\u{fffe}\u{ffff}",
    "\u{2028}\u{2029}",
    "\u{200b}\u{200d}\u{2060}",
    "\u{202e}backwards\u{202c}",
    "\u{1b}[31mred\u{1b}[0m",
    "é e\u{301}",
    "Ω≈ç√∫˜µ≤≥÷",
    "ﬁ ſtraße İıK",
    "田中さん 社會科學 울란바토르",
    "مرحبا שלום",
    "هذا‎ mixed עברית",
    "Z\u{35c}\u{322}a\u{31b}lgo\u{325}\u{330}",
    "👩‍👩‍👧 🏳️‍🌈 🇫🇷",
    "𝕳𝖊𝖑𝖑𝖔 \u{10ffff}",
    "'; DROP TABLE calls; --",
    "<script>alert('x')</script>",
    "${HOME} $(reboot) `id` %s%n %d",
    "../../../../etc/passwd",
    "C:\\con\\nul",
    "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "Content-Length: 12\r\n\r\n",
    "data: {\"id\":1}\n\n",
    "-- --help --version",
    "*",
    "%00%0a",
    "&lt;&#x41;&amp;",
    "=1+1",
    "__proto__",
    "constructor",
    "sessionId",
    "_meta",
];

#[test]
fn every_naughty_text_arrives_as_it_was_sent() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    for text in texts() {
        let text = json!(text);
        // A key that is named like a routing key would be a duplicate, which is refused; another test covers that.
        let key = format!("k{}", text.as_str().expect("a text"));
        let params = json!({ "prompt": [{ "type": "text", "text": text }], "more": { key: text } });
        let line = format!(r#"{{"jsonrpc":"2.0","id":{text},"method":"work","params":{params}}}"#);
        client.sends(&line);
        let received = puppet.reads();
        let question: Value = serde_json::from_str(&received).expect("JSON");
        assert_eq!(
            received,
            line.replacen(&format!(r#""id":{text}"#), &format!(r#""id":{}"#, question["id"]), 1)
        );
        puppet.answers(&question, json!({ "said": text }));
        assert_eq!(client.reads(), format!(r#"{{"jsonrpc":"2.0","id":{text},"result":{{"said":{text}}}}}"#));
    }
    client.has_received_nothing();
}

#[test]
fn every_naughty_text_can_be_a_method() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    for text in texts().into_iter().filter(|text| !text.starts_with("_bus/")) {
        let method = json!(text);
        client.sends(&format!(r#"{{"jsonrpc":"2.0","id":"q","method":{method}}}"#));
        // A method is compared as bytes, so it must be spelled without escapes.
        if method.to_string().contains('\\') {
            client.sees_error(Value::Null, -32600, "invalid");
            continue;
        }
        let question = puppet.is_asked(&text);
        puppet.answers(&question, json!({}));
        assert_eq!(client.gets("q"), json!({}));
    }
}

fn texts() -> BTreeSet<String> {
    let mut texts: BTreeSet<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    if let Some(file) = std::env::var_os("NAUGHTY_STRINGS") {
        let list = fs::read(&file).expect("the file that NAUGHTY_STRINGS names");
        texts.extend(serde_json::from_slice::<Vec<String>>(&list).expect("an array of texts"));
    }
    texts
}
