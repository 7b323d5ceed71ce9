//! Garbage: an error for the client that sent it, a shrug at the worker that did, and no harm to anybody.

use serde_json::{Value, json};

use crate::harness::{Bus, limited, one_pool, request, result, update, whoever_hears};

#[test]
fn each_malformed_line_gets_one_error_and_the_connection_lives() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.has_heard_nothing();
    let deep = "[".repeat(200_000);
    let lines: [(&[u8], i32, &str); 18] = [
        (b"garbage", -32700, "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"wo", -32700, "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\"}}", -32700, "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":01,\"method\":\"work\"}", -32700, "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\",\"params\":\"\xff\"}", -32700, "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\",\"params\":\"\t\"}", -32700, "parse"),
        (b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\"}", -32700, "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\"}\0", -32700, "parse"),
        (deep.as_bytes(), -32700, "parse"),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\"}]", -32600, "invalid"),
        (b"[]", -32600, "invalid"),
        (b"42", -32600, "invalid"),
        (b"\"text\"", -32600, "invalid"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"work\"}", -32600, "invalid"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"method\":\"b\"}", -32600, "invalid"),
        (b"{\"jsonrpc\":\"2.0\",\"\\u0069d\":1,\"method\":\"work\"}", -32600, "invalid"),
        (
            b"{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{\"sessionId\":\"a\",\"sessionId\":\"b\"}}",
            -32600,
            "invalid",
        ),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{\"session\\u0049d\":\"a\"}}", -32600, "invalid"),
    ];
    for (line, code, reason) in lines {
        client.sends_bytes(line);
        client.sends_bytes(b"\n");
        client.sees_error(Value::Null, code, reason);
    }
    client.sends(&request(1, "good", json!({})));
    let asked = puppet.is_asked("good");
    puppet.answers(&asked, json!({}));
    client.gets(1);
    client.has_heard_nothing();
}

#[test]
fn a_line_over_the_limit_is_skipped_and_answered() {
    let bus = Bus::start(limited(1, json!({ "max_input_buffer": 65536 })));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.has_heard_nothing();
    let long = "x".repeat(1 << 20);
    client.sends(&request(7, "work", json!({ "text": long })));
    let data = client.sees_error(7, -32600, "too_large");
    assert_eq!(data["max_input_buffer"], 65536);
    client.sends(&long);
    client.sees_error(Value::Null, -32600, "too_large");
    // As long as it may be, to the byte.
    let fits = request(8, "work", json!(""));
    let fits = fits.replace(r#""""#, &format!(r#""{}""#, "x".repeat(65536 - fits.len())));
    assert_eq!(fits.len(), 65536);
    client.sends(&fits);
    let asked = puppet.is_asked("work");

    // An answer over the limit fails its one call, and the worker lives.
    puppet.answers(&asked, json!(long));
    client.sees_error(8, -32600, "too_large");
    puppet.asks_permission(1, &long);
    assert_eq!(puppet.gets(1)["error"]["data"]["reason"], "too_large");
    client.sends(&request(9, "work", json!({})));
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!({}));
    client.gets(9);
}

#[test]
fn a_worker_that_prints_is_forgiven() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    puppet.says_bytes(b"Loading model... 100%\n\n[1,2,3]\nnull\n{broken\n\xff\xfe\n\"id\"\n");
    puppet.says_bytes(b"{\"neither\":\"request nor answer\"}\n");
    puppet.says(&format!("[{}]", result(&asked["id"], json!("in a batch"))));
    puppet.answers(&asked, json!("at last"));
    assert_eq!(client.gets(1), "at last");
    let status = client.status();
    assert_eq!(status["counters"]["worker_deaths"], 0);
    assert!(status["counters"]["stray_lines"].as_u64() >= Some(7), "{status}");
}

#[test]
fn forged_answers_and_foreign_sessions_go_nowhere() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let mut ann = bus.client();
    ann.sends(&request(1, "session/new", json!({})));
    let honest = whoever_hears(&mut workers);
    let asked = honest.is_asked("session/new");
    honest.answers(&asked, json!({ "sessionId": "s1" }));
    let pid = honest.pid;
    let session = ann.gets(1)["sessionId"].as_str().expect("a session").to_owned();
    workers.sort_by_key(|puppet| puppet.pid != pid);
    let [honest, forger] = &mut workers;

    ann.prompts(2, &session);
    let turn = honest.is_asked("session/prompt");
    let wire = turn["id"].as_u64().expect("a number");
    // Another worker's call, calls that do not exist, other spellings of one that does.
    for id in [
        json!(wire),
        json!(wire + 1),
        json!(0),
        json!(u64::MAX),
        json!(wire.to_string()),
        json!(-1),
        json!(0.5),
    ] {
        forger.answers(&json!({ "id": id }), json!("forged"));
    }
    // Sessions of another worker, by either name.
    for name in ["s1", &session] {
        forger.says(&update(name, "forged"));
        forger.asks_permission(5, name);
        forger.sees_error(5, -32051);
    }
    honest.answers(&json!({ "id": wire.to_string() }), json!("not quite"));
    honest.answers(&turn, json!("honest"));
    honest.answers(&turn, json!("again"));
    honest.says(&update("s1", "after"));
    assert_eq!(ann.gets(2), "honest");
    assert_eq!(ann.reads(), update(&session, "after"));
    ann.has_heard_nothing();
}

#[test]
fn a_client_cannot_answer_what_it_was_not_asked() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut eve) = (bus.client(), bus.client());
    ann.opens(&mut puppet, "s1");
    puppet.asks_permission(1, "s1");
    let asked = ann.is_told("session/request_permission");
    eve.answers(&asked, json!("allow everything"));
    eve.answers(&json!({ "id": 1 }), json!("allow everything"));
    eve.has_heard_nothing();
    ann.answers(&asked, json!("no"));
    ann.answers(&asked, json!("yes"));
    assert_eq!(puppet.gets(1)["result"], "no");
    ann.sends(&request(3, "work", json!({})));
    puppet.is_asked("work");
}

#[test]
fn who_does_not_begin_with_an_object_is_closed_without_a_word() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let evil = request(1, "evil", json!({}));
    let openings = [
        format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{evil}\n"),
        format!("\n \r\n[{evil}]\n{evil}\n"),
        format!("{{not json}}\n{evil}\n"),
        format!("{{\"jsonrpc\":\"2.0\",\n{evil}\n"),
        format!("\"text\"\n{evil}\n"),
        format!("\u{16}\u{3}\u{1}\n{evil}\n"),
    ];
    for opening in openings {
        let mut client = bus.client();
        // The bus may be quicker to close it than we are to say it all.
        let _ = client.wire.try_send(opening.as_bytes());
        client.is_closed();
    }
    let mut client = bus.client();
    client.sends(&request(1, "good", json!({})));
    puppet.is_asked("good");
}

#[test]
fn a_browser_is_closed_at_its_first_byte() {
    let bus = Bus::start(one_pool(1));
    let mut client = bus.client();
    client.sends_bytes(b"G");
    client.is_closed();
}
