//! Malformed lines: a client gets an error for each, a worker gets none, and neither is disconnected.

use serde_json::{Value, json};

use crate::harness::{Bus, bus_puppet_client, limited, one_pool, request, result, update};

#[test]
fn each_malformed_line_gets_one_error_and_the_connection_stays_open() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    client.has_received_nothing();
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
    client.has_received_nothing();
}

#[test]
fn a_line_over_the_limit_is_skipped_and_answered() {
    let bus = Bus::start(limited(1, json!({ "max_input_buffer": 65536 })));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.has_received_nothing();
    let long = "x".repeat(1 << 20);
    client.sends(&request(7, "work", json!({ "text": long })));
    let data = client.sees_error(7, -32600, "too_large");
    assert_eq!(data["max_input_buffer"], 65536);
    client.sends(&long);
    client.sees_error(Value::Null, -32600, "too_large");
    // This line is as long as the limit.
    let fits = request(8, "work", json!(""));
    let fits = fits.replace(r#""""#, &format!(r#""{}""#, "x".repeat(65536 - fits.len())));
    assert_eq!(fits.len(), 65536);
    client.sends(&fits);
    let asked = puppet.is_asked("work");

    // An answer over the limit fails its own call only, and the worker keeps running.
    puppet.answers(&asked, json!(long));
    client.sees_error(8, -32600, "too_large");
    puppet.asks_permission(1, &long);
    assert_eq!(puppet.gets(1)["error"]["data"]["reason"], "too_large");
    client.is_served_by(&mut puppet);
}

#[test]
fn lines_of_a_worker_that_are_no_messages_are_counted_and_dropped() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    puppet.sends_bytes(b"Loading model... 100%\n\n[1,2,3]\nnull\n{broken\n\xff\xfe\n\"id\"\n");
    puppet.sends_bytes(b"{\"neither\":\"request nor answer\"}\n");
    puppet.sends(&format!("[{}]", result(&asked["id"], json!("in a batch"))));
    puppet.answers(&asked, json!("at last"));
    assert_eq!(client.gets(1), "at last");
    let status = client.status();
    assert_eq!(status["counters"]["worker_deaths"], 0);
    assert!(status["counters"]["stray_lines"].as_u64() >= Some(7), "{status}");
}

#[test]
fn forged_answers_and_updates_of_foreign_sessions_are_dropped() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let mut ann = bus.client();
    let (session, at) = ann.opens_anywhere(&mut workers, "s1");
    workers.swap(0, at);
    let [honest, forger] = &mut workers;

    ann.prompts(2, &session);
    let turn = honest.is_asked("session/prompt");
    let bus_id = turn["id"].as_u64().expect("a number");
    // These are another worker's call, calls that do not exist, and other spellings of a call.
    for id in [
        json!(bus_id),
        json!(bus_id + 1),
        json!(0),
        json!(u64::MAX),
        json!(bus_id.to_string()),
        json!(-1),
        json!(0.5),
    ] {
        forger.answers(&json!({ "id": id }), json!("forged"));
    }
    // These sessions belong to another worker, by the bus's id and by the agent's.
    for name in ["s1", &session] {
        forger.sends(&update(name, "forged"));
        forger.asks_permission(5, name);
        forger.sees_error(5, -32051);
    }
    honest.answers(&json!({ "id": bus_id.to_string() }), json!("not quite"));
    honest.answers(&turn, json!("honest"));
    honest.answers(&turn, json!("again"));
    honest.sends(&update("s1", "after"));
    assert_eq!(ann.gets(2), "honest");
    assert_eq!(ann.reads(), update(&session, "after"));
    ann.has_received_nothing();
}

#[test]
fn a_client_cannot_answer_a_request_that_went_to_another_client() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut eve) = (bus.client(), bus.client());
    ann.opens(&mut puppet, "s1");
    puppet.asks_permission(1, "s1");
    let asked = ann.is_asked("session/request_permission");
    eve.answers(&asked, json!("allow everything"));
    eve.answers(&json!({ "id": 1 }), json!("allow everything"));
    eve.has_received_nothing();
    ann.answers(&asked, json!("no"));
    ann.answers(&asked, json!("yes"));
    assert_eq!(puppet.gets(1)["result"], "no");
    ann.sends(&request(3, "work", json!({})));
    puppet.is_asked("work");
}

#[test]
fn a_connection_that_does_not_begin_with_an_object_is_closed_without_an_answer() {
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
        // The bus may close the connection before all is sent.
        let _ = client.connection.try_send(opening.as_bytes());
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
