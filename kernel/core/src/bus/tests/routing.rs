//! Routing of plain JSON-RPC: ids, bytes, labels and pools.

use serde_json::{Value, json};

use super::{Config, Event, Limits, TestBus, limited, pool};

#[test]
fn a_request_that_was_not_written_cannot_be_answered() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let waiting = String::from_utf8_lossy(&bus.bus.to_send(worker)).into_owned();
    let id = serde_json::from_str::<serde_json::Value>(&waiting).expect("a request")["id"].clone();
    bus.sends(worker, &format!(r#"{{"id":{id},"result":"guessed"}}"#));
    bus.sees_nothing(client);
    bus.reads_again(worker);
    bus.answers(worker, "m", "\"read\"");
    assert_eq!(bus.sees_json(client)["result"], "read");
    bus.is_idle();
}

#[test]
fn an_id_that_is_used_twice_is_answered_twice() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"one"}"#);
    bus.sends(client, r#"{"id":1,"method":"two"}"#);
    let (one, two) = (bus.sees_request(worker, "one").0, bus.sees_request(worker, "two").0);
    bus.sends(client, r#"{"method":"$/cancel_request","params":{"requestId":1}}"#);
    assert_eq!(bus.sees_json(worker)["params"]["requestId"].to_string(), two);
    for (wire, result) in [(two, 2), (one, 1)] {
        bus.sends(worker, &format!(r#"{{"id":{wire},"result":{result}}}"#));
        assert_eq!(bus.sees_json(client), json!({"id": 1, "result": result}));
    }
    bus.is_idle();
}

#[test]
fn equal_ids_of_six_clients_are_kept_apart() {
    let mut bus = TestBus::with_workers(1);
    let worker = bus.worker(0);
    let clients: Vec<_> = (0..6).map(|_| bus.client()).collect();
    let mut wires = Vec::new();
    for (n, client) in clients.iter().enumerate() {
        bus.sends(*client, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"work","params":{n}}}"#));
        wires.push(bus.sees_request(worker, "work").0);
    }
    for (n, wire) in wires.iter().enumerate().rev() {
        bus.sends(worker, &format!(r#"{{"jsonrpc":"2.0","id":{wire},"result":{n}}}"#));
        assert_eq!(bus.sees(clients[n]), format!(r#"{{"jsonrpc":"2.0","id":1,"result":{n}}}"#));
    }
    bus.is_idle();
}

#[test]
fn ids_come_back_as_spelled_and_other_bytes_are_unchanged() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    for id in [r#""x""#, "0", "-0", "1.0", "1e2", "18446744073709551616", r#""\u0041""#, r#""""#] {
        let odd =
            r#"  {"params" : {"a":[1, 2e0],"id":7,"n":{"sessionId":"x"}} ,"method":"m",   "z\n":0, "id":"#;
        bus.sends(client, &format!("{odd}{id}}}"));
        let seen = bus.sees(worker);
        let wire = seen
            .strip_prefix(odd)
            .and_then(|rest| rest.strip_suffix('}'))
            .expect("all other bytes are unchanged");
        bus.sends(worker, &format!(r#"{{"id": {wire} , "result": {{"id":1}}}}"#));
        assert_eq!(bus.sees(client), format!(r#"{{"id": {id} , "result": {{"id":1}}}}"#));
    }
    bus.is_idle();
}

#[test]
fn every_chunking_of_the_same_bytes_has_the_same_effect() {
    for size in 1..20 {
        let mut bus = TestBus::with_workers(1);
        let (client, worker) = (bus.client(), bus.worker(0));
        let stream = b"{\"id\":1,\"method\":\"a\"}\r\n\n{\"id\":2,\"method\":\"b\"}\n";
        for chunk in stream.chunks(size) {
            bus.sends_bytes(client, chunk);
        }
        bus.sees_request(worker, "a");
        bus.sees_request(worker, "b");
        bus.sees_nothing(worker);
    }
}

#[test]
fn malformed_lines_are_answered_and_the_connection_stays_open() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":0,"method":"hello"}"#);
    bus.sees_request(worker, "hello");
    for (line, reason) in [
        ("garbage", "parse"),
        (r#"{"id":1,"#, "parse"),
        (r#"[{"id":1,"method":"m"}]"#, "invalid"),
        (r#"{"id":1,"id":2,"method":"m"}"#, "invalid"),
        (r#"{"id":1,"method":"m","params":{"sessionId":"a","session\u0049d":"b"}}"#, "invalid"),
        (r#"{"id":null,"method":"m"}"#, "invalid"),
        (r#"{"nothing":1}"#, "invalid"),
    ] {
        bus.sends(client, line);
        bus.sees_error(client, Value::Null, reason);
    }
    bus.sees_nothing(worker);
    bus.sends(client, r#"{"id":9,"method":"on"}"#);
    bus.sees_request(worker, "on");
}

#[test]
fn a_client_that_does_not_begin_with_json_is_closed_without_an_answer() {
    for first in [
        "GET / HTTP/1.1\r\n\r\n{\"id\":1,\"method\":\"m\"}\n",
        "\x16\x03\x01\n",
        " \n [1]\n",
        "{oops}\n{\"id\":1,\"method\":\"m\"}\n",
    ] {
        let mut bus = TestBus::with_workers(1);
        let (client, worker) = (bus.client(), bus.worker(0));
        bus.sends_bytes(client, first.as_bytes());
        assert!(bus.is_closed(client), "{first:?}");
        bus.sees_nothing(client);
        bus.sees_nothing(worker);
    }
}

#[test]
fn a_line_over_the_limit_is_skipped_and_answered() {
    let limits = Limits { max_input_buffer: 2048, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (client, worker) = (bus.client(), bus.worker(0));
    let long = "x".repeat(4000);
    bus.sends(client, &format!(r#"{{"id":5,"method":"m","params":"{long}"}}"#));
    bus.sees_error(client, json!(5), "too_large");
    bus.sends(client, r#"{"id":6,"method":"m"}"#);
    let (wire, _) = bus.sees_request(worker, "m");
    bus.sends(worker, &format!(r#"{{"result":"{long}","id":{wire}}}"#));
    bus.sees_error(client, json!(6), "too_large");
    bus.is_idle();
}

#[test]
fn labels_are_pinned_unique_and_restored() {
    let mut bus = TestBus::with_workers(2);
    let (ann, ben) = (bus.client(), bus.client());
    bus.sends(ann, r#"{"id":1,"sessionId":"mine","method":"m"}"#);
    bus.sends(ben, r#"{"id":1,"sessionId":"mine","method":"m"}"#);
    let (a, b) = (bus.worker(0), bus.worker(1));
    let (of_ann, of_ben) = (bus.sees_json(a), bus.sees_json(b));
    assert_ne!(of_ann["sessionId"], of_ben["sessionId"]);
    bus.sends(a, &format!(r#"{{"method":"progress","sessionId":{}}}"#, of_ann["sessionId"]));
    assert_eq!(bus.sees(ann), r#"{"method":"progress","sessionId":"mine"}"#);
    bus.sends(a, &format!(r#"{{"method":"progress","sessionId":{}}}"#, of_ben["sessionId"]));
    bus.sees_nothing(ben);
    bus.sends(ann, r#"{"id":2,"sessionId":"mine","method":"again"}"#);
    bus.sees_request(a, "again");
    bus.sends(a, &format!(r#"{{"id":{},"result":1,"sessionId":{}}}"#, of_ann["id"], of_ann["sessionId"]));
    assert_eq!(bus.sees(ann), r#"{"id":1,"result":1,"sessionId":"mine"}"#);
}

#[test]
fn a_pool_is_chosen_by_the_message_the_hello_or_the_default() {
    let mut config = Config::with_pools([pool("one", 1), pool("two", 1)]);
    let mut bus = TestBus::new(config.clone());
    let (one, two) = (bus.worker(0), bus.worker(1));
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let error = bus.sees_error(client, json!(1), "unknown_pool");
    assert_eq!(error["data"]["pools"], json!(["one", "two"]));
    bus.sends(client, r#"{"id":2,"pool":"two","method":"m"}"#);
    bus.sees_request(two, "m");
    bus.sends(client, r#"{"id":3,"method":"_bus/hello","params":{"pool":"one","client":"test"}}"#);
    assert_eq!(bus.sees_json(client)["result"]["pools"], json!(["one", "two"]));
    bus.sends(client, r#"{"id":4,"method":"m"}"#);
    bus.sees_request(one, "m");
    bus.sends(client, r#"{"id":5,"method":"session/new","params":{"_meta":{"bus/pool":"two"}}}"#);
    bus.sees_request(two, "session/new");
    bus.sends(client, r#"{"id":6,"pool":"three","method":"m"}"#);
    bus.sees_error(client, json!(6), "unknown_pool");

    config.default_pool = Some("two".into());
    let mut bus = TestBus::new(config);
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let two = bus.worker(1);
    bus.sees_request(two, "m");
}

#[test]
fn a_half_closed_client_gets_its_answers() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends_bytes(client, br#"{"id":1,"method":"a"}"#);
    bus.handles(Event::Ended(client));
    assert!(!bus.is_closed(client));
    let (wire, _) = bus.sees_request(worker, "a");
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":1}}"#));
    assert_eq!(bus.sees(client), r#"{"id":1,"result":1}"#);
    assert!(bus.is_closed(client));
    bus.is_idle();
}

#[test]
fn a_worker_can_answer_only_its_own_requests() {
    let mut bus = TestBus::with_workers(2);
    let (client, one, two) = (bus.client(), bus.worker(0), bus.worker(1));
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let (wire, _) = bus.sees_request(one, "m");
    for forged in [
        format!(r#"{{"id":{wire},"result":"two"}}"#),
        r#"{"id":1,"result":0}"#.into(),
        r#"{"id":"1","result":0}"#.into(),
        r#"{"id":null,"error":{}}"#.into(),
    ] {
        bus.sends(two, &forged);
    }
    bus.sees_nothing(client);
    bus.sends(one, "stray print");
    bus.sends(one, &format!(r#"{{"id":{wire},"result":"one"}}"#));
    bus.sends(one, &format!(r#"{{"id":{wire},"result":"twice"}}"#));
    assert_eq!(bus.sees_json(client)["result"], "one");
    bus.is_idle();
}

#[test]
fn an_invalid_answer_is_replaced_by_an_error() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let (wire, _) = bus.sees_request(worker, "m");
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":1,"error":{{}}}}"#));
    bus.sees_error(client, json!(1), "invalid");
    bus.is_idle();
}

#[test]
fn status_shows_pools_and_workers() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"_bus/status"}"#);
    let status = bus.sees_json(client);
    assert_eq!(status["result"]["pools"][0]["workers"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["result"]["pools"][0]["workers"][0]["state"], "up");
    bus.sends(client, r#"{"id":2,"method":"_bus/nonsense"}"#);
    bus.sees_error(client, json!(2), "no_method");
}
