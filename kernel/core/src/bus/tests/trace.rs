//! Tracing: what tracers are sent, and that tracers delay no other peer.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, Link, TestBus, limited, pool};
use crate::config::Limits;
use crate::limit::{NAME_BYTES, TRACE_PAYLOAD_BYTES, TRACE_SPAN_BYTES, TRACERS};

impl TestBus {
    fn tracer(&mut self, params: &str) -> Link {
        let tracer = self.client();
        let answer = self.traces(tracer, params);
        assert!(answer["result"]["at_us"].is_u64(), "{answer}");
        tracer
    }

    fn traces(&mut self, tracer: Link, params: &str) -> Value {
        self.sends(tracer, &format!(r#"{{"id":"trace","method":"_bus/trace","params":{params}}}"#));
        self.sees_json(tracer)
    }

    /// The params of the next event.
    fn event(&mut self, tracer: Link) -> Value {
        let event = self.sees_json(tracer);
        assert_eq!((&event["method"], event.get("id")), (&json!("_bus/event"), None), "{event}");
        event["params"].clone()
    }

    /// The next events: direction, and method or kind.
    fn events<const N: usize>(&mut self, tracer: Link) -> [String; N] {
        std::array::from_fn(|_| {
            let event = self.event(tracer);
            let what = event["method"].as_str().or(event["kind"].as_str()).unwrap_or_default();
            format!("{} {what}", event["direction"].as_str().unwrap_or_default())
        })
    }
}

fn with_payloads() -> Config {
    Config { trace_payloads: true, ..Config::with_pools([pool("agents", 1)]) }
}

#[test]
fn a_request_and_its_answer_are_traced_with_the_latency() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let tracer = bus.tracer("{}");
    bus.advances(Duration::from_millis(5));
    bus.sends(client, r#"{"id":"mine","method":"work"}"#);
    let asked = bus.event(tracer);
    bus.advances(Duration::from_micros(1500));
    bus.answers(worker, "work", "true");
    let answered = bus.event(tracer);
    assert_eq!(bus.sees_json(client), json!({ "jsonrpc": "2.0", "id": "mine", "result": true }));
    let call = asked["call"].clone();
    let expected = json!({
        "at_us": 5000, "direction": "client->worker", "kind": "request", "method": "work", "id": "mine", "call": call,
        "client": asked["client"], "pool": "agents", "worker": 0, "bytes": 29,
    });
    assert_eq!(asked, expected);
    let expected = json!({
        "at_us": 6500, "direction": "worker->client", "kind": "result", "id": "mine", "call": call,
        "client": asked["client"], "pool": "agents", "worker": 0, "bytes": answered["bytes"], "latency_us": 1500,
    });
    assert_eq!(answered, expected);
    bus.is_idle();
}

#[test]
fn a_whole_conversation_is_traced_in_order() {
    let mut bus = TestBus::with_workers(1);
    let (tracer, worker) = (bus.tracer("{}"), bus.worker(0));
    let ann = bus.acp_client();
    bus.initializes(worker);
    bus.sees(ann);
    let id = bus.opens(ann, worker, "own");
    let prompt = format!(r#"{{"id":1,"method":"session/prompt","params":{{"sessionId":"{id}"}}}}"#);
    bus.sends(ann, &prompt);
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"own","update":{}}}"#);
    bus.sends(worker, r#"{"id":7,"method":"fs/read_text_file","params":{"sessionId":"own"}}"#);
    bus.sees(ann);
    let (asked, _) = bus.sees_request(ann, "fs/read_text_file");
    bus.sends(ann, &format!(r#"{{"id":{asked},"result":{{"content":""}}}}"#));
    let heard = bus.events::<6>(tracer);
    let handshake = [
        "client->worker initialize",
        "bus->worker initialize",
        "worker->bus result",
        "bus->client result",
        "client->worker session/new",
        "worker->client result",
    ];
    let mut sorted = heard.clone();
    sorted.sort();
    let mut expected = handshake.map(str::to_owned);
    expected.sort();
    assert_eq!(sorted, expected, "{heard:?}");
    let turn: [Value; 4] = std::array::from_fn(|_| bus.event(tracer));
    let traced = turn.each_ref().map(|event| (&event["direction"], &event["session"]));
    let label = json!("s1");
    let [out, back] = ["client->worker", "worker->client"].map(Value::from);
    assert_eq!(traced, [(&out, &label), (&back, &label), (&back, &label), (&out, &label)]);
    assert_eq!((&turn[3]["id"], &turn[3]["call"]), (&json!(7), &turn[2]["call"]));
    bus.crashes(0);
    bus.sees_error(ann, json!(1), "worker_lost");
    let lost = bus.event(tracer);
    assert_eq!(
        (&lost["direction"], &lost["code"], &lost["reason"]),
        (&json!("bus->client"), &json!(-32050), &json!("worker_lost"))
    );
    assert!(lost["latency_us"].is_u64(), "{lost}");
}

#[test]
fn a_trace_has_what_spans_need_and_nothing_of_what_is_said() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    let id = bus.opens(client, worker, "own");
    let tracer = bus.tracer("{}");
    let secret = "\"text\":\"SECRET\",\"title\":\"SECRET\",\"rawInput\":{\"status\":\"SECRET\"}";
    let meta = r#""_meta":{"traceparent":"00-0a-0b-01","tracestate":"a=1"}"#;
    bus.sends(
        client,
        &format!(r#"{{"id":1,"method":"session/prompt","params":{{"sessionId":"{id}",{meta},{secret}}}}}"#),
    );
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    let long = "x".repeat(TRACE_SPAN_BYTES);
    for update in [
        format!(r#""sessionUpdate":"tool_call","toolCallId":"t1","kind":"read","status":"pending",{secret}"#),
        format!(r#"{secret},"status":"completed","toolCallId":"t1","sessionUpdate":"tool_call_update""#),
        format!(r#""sessionUpdate":"agent_message_chunk","toolCallId":"t1","status":"x",{secret}"#),
        r#""sessionUpdate":"state_update","state":"idle","stopReason":"end_turn""#.to_owned(),
        format!(r#""sessionUpdate":"tool_call","toolCallId":"{long}","kind":7"#),
    ] {
        let params = format!(r#"{{"sessionId":"own","update":{{{update}}}}}"#);
        bus.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
    }
    let tool = format!(r#"{{"toolCallId":"t1",{secret}}}"#);
    let params = format!(r#"{{"sessionId":"own","toolCall":{tool}}}"#);
    bus.sends(worker, &format!(r#"{{"id":7,"method":"session/request_permission","params":{params}}}"#));
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{"stopReason":"refusal",{secret}}}}}"#));
    let keys = ["traceparent", "tracestate", "update", "tool", "tool_kind", "state", "stop"];
    let traced: [Vec<String>; 8] = std::array::from_fn(|_| {
        let mut event = bus.event(tracer);
        let told: Vec<_> =
            keys.iter().filter_map(|key| Some(format!("{key}={}", event.get(key)?.as_str()?))).collect();
        // Only a question has a title, and only where sessions may be shared.
        event.as_object_mut().unwrap().remove("title");
        assert!(!event.to_string().contains("SECRET"), "{event}");
        told
    });
    let expected: [&[&str]; 8] = [
        &["traceparent=00-0a-0b-01", "tracestate=a=1"],
        &["update=tool_call", "tool=t1", "tool_kind=read", "state=pending"],
        &["update=tool_call_update", "tool=t1", "state=completed"],
        &["update=agent_message_chunk"],
        &["update=state_update", "state=idle", "stop=end_turn"],
        &["update=tool_call"],
        &["tool=t1"],
        &["stop=refusal"],
    ];
    assert_eq!(traced, expected);
}

#[test]
fn a_trace_repeats_no_long_code_and_no_long_method() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let tracer = bus.tracer("{}");
    for (code, traced) in [(json!(-32000), json!(-32000)), (json!(vec![1; 10_000]), Value::Null)] {
        bus.sends(client, r#"{"id":1,"method":"work"}"#);
        bus.event(tracer);
        let (wire, _) = bus.sees_request(worker, "work");
        bus.sends(worker, &format!(r#"{{"id":{wire},"error":{{"code":{code},"message":"no"}}}}"#));
        assert_eq!(bus.sees_json(client)["error"]["code"], code, "it is passed on as it is");
        assert_eq!(bus.event(tracer)["code"], traced);
    }
    for (length, is_traced) in [(NAME_BYTES, true), (NAME_BYTES + 1, false)] {
        bus.sends(client, &json!({ "method": "m".repeat(length) }).to_string());
        bus.sees(worker);
        assert_eq!(bus.event(tracer).get("method").is_some(), is_traced);
    }
}

#[test]
fn filters_select_a_client_a_pool_or_a_session() {
    let pools = vec![pool("a", 1), pool("b", 1)];
    let mut bus = TestBus::new(Config { default_pool: Some("a".into()), ..Config::with_pools(pools) });
    let (ann, ben) = (bus.client(), bus.client());
    bus.sends(ann, r#"{"id":0,"method":"_bus/hello","params":{"client":"ann"}}"#);
    bus.sends(ben, r#"{"id":0,"method":"_bus/hello","params":{"client":"ben","pool":"b"}}"#);
    bus.sees(ann);
    bus.sees(ben);
    let [of_ann, of_b] = [r#"{"client":"ann"}"#, r#"{"pool":"b"}"#].map(|params| bus.tracer(params));
    let (a, b) = (bus.worker(0), bus.worker(1));
    let id = bus.opens(ann, a, "one");
    let [by_label, by_id] = [r#"{"session":"s1"}"#.to_owned(), format!(r#"{{"session":"{id}"}}"#)]
        .map(|params| bus.tracer(&params));
    bus.asks(ann, 1, "session/prompt", &id);
    bus.sends(ann, r#"{"id":2,"method":"other"}"#);
    bus.sends(ben, r#"{"id":3,"method":"work"}"#);
    bus.answers(b, "work", "1");
    bus.sees(ben);
    for tracer in [by_label, by_id] {
        assert_eq!(bus.events::<1>(tracer), ["client->worker session/prompt"]);
        bus.sees_nothing(tracer);
    }
    assert_eq!(
        bus.events::<4>(of_ann).join(", "),
        "client->worker session/new, worker->client result, client->worker session/prompt, client->worker other"
    );
    assert_eq!(bus.events::<2>(of_b), ["client->worker work", "worker->client result"]);
    [of_ann, of_b].iter().for_each(|tracer| bus.sees_nothing(*tracer));
    bus.traces(of_ann, r#"{"pool":"b"}"#);
    bus.sends(ann, r#"{"id":4,"method":"other"}"#);
    bus.sees_nothing(of_ann);
    let unknown = bus.traces(of_ann, r#"{"pool":"c"}"#);
    assert_eq!(unknown["error"]["data"]["reason"], "unknown_pool");
    let odd = bus.traces(of_ann, r#"{"pool":7}"#);
    assert_eq!(odd["error"]["data"]["reason"], "invalid");
}

#[test]
fn payloads_are_traced_only_if_the_configuration_allows_it() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    let refused = bus.traces(client, r#"{"payloads":true}"#);
    assert_eq!(refused["error"]["data"]["reason"], "invalid");
    assert!(
        refused["error"]["message"]
            .as_str()
            .is_some_and(|why| why.contains(r#""trace": {"payloads": true}"#))
    );
    bus.sends(client, r#"{"id":1,"method":"m","params":{"secret":1}}"#);
    bus.sees_nothing(client);

    let mut bus = TestBus::new(with_payloads());
    let (client, seeing, blind) = (bus.client(), bus.tracer(r#"{"payloads":true}"#), bus.tracer("{}"));
    let line = r#"{"id":1,"method":"m","params":{"secret": 1.0}}"#;
    bus.sends(client, line);
    assert!(bus.sees(seeing).ends_with(&format!(r#","payload":{line}}}}}"#)), "byte for byte");
    assert_eq!(bus.event(blind).get("payload"), None);
    let pad = "x".repeat(TRACE_PAYLOAD_BYTES);
    bus.sends(client, &format!(r#"{{"id":1,"method":"m","params":"{pad}"}}"#));
    let long = bus.event(seeing);
    assert_eq!((long.get("payload"), &long["payload_too_large"]), (None, &json!(true)));
    bus.reloads(&Config { trace_payloads: false, ..with_payloads() });
    bus.sends(client, line);
    assert_eq!(bus.event(seeing).get("payload"), None, "payloads are no longer traced");
}

#[test]
fn a_tracer_that_does_not_read_loses_events_and_pauses_nobody() {
    let small = Limits { max_output_queue: 4096, ..Limits::default() };
    let mut bus = TestBus::new(limited(small));
    let (client, worker, tracer) = (bus.client(), bus.worker(0), bus.tracer("{}"));
    bus.stops_reading(tracer);
    for _ in 0..500 {
        bus.sends(client, r#"{"id":1,"method":"m"}"#);
        bus.answers(worker, "m", "1");
        bus.sees(client);
    }
    assert!(bus.bus.to_send(tracer).len() <= 4096);
    assert!(bus.bus.wants_read(client) && bus.bus.wants_read(worker));
    bus.advances(Duration::from_secs(1000));
    assert!(!bus.is_closed(tracer), "it delays no other peer");
    bus.reads_again(tracer);
    let mut traced = 0;
    while bus.unseen.get(&tracer).is_some_and(|lines| !lines.is_empty()) {
        bus.event(tracer);
        traced += 1;
    }
    assert!(traced > 5);
    bus.sends(client, r#"{"method":"n"}"#);
    let dropped = bus.sees_json(tracer);
    let expected =
        json!({ "jsonrpc": "2.0", "method": "_bus/dropped", "params": { "count": 1000 - traced } });
    assert_eq!(dropped, expected);
    assert_eq!(bus.events::<1>(tracer), ["client->worker n"]);
    bus.sends(client, r#"{"method":"n"}"#);
    assert_eq!(bus.events::<1>(tracer), ["client->worker n"], "the count is sent once");
}

#[test]
fn requests_to_the_bus_are_not_traced_and_tracers_are_limited() {
    let mut bus = TestBus::with_workers(1);
    let tracers: Vec<_> = (0..TRACERS).map(|_| bus.tracer("{}")).collect();
    let late = bus.client();
    assert_eq!(bus.traces(late, "{}")["error"]["data"]["reason"], "busy");
    // The refusal is traced like every answer of the bus.
    assert!(tracers.iter().all(|tracer| bus.events::<1>(*tracer) == ["bus->client error"]));
    bus.sends(late, r#"{"id":1,"method":"_bus/status"}"#);
    bus.sends(late, r#"{"id":1,"method":"_bus/hello"}"#);
    bus.sees(late);
    bus.sees(late);
    tracers.iter().for_each(|tracer| bus.sees_nothing(*tracer));
    bus.handles(Event::Broken(tracers[0]));
    assert!(bus.traces(late, "{}")["result"].is_object(), "a tracer has left");
    bus.handles(Event::Ended(tracers[1]));
    assert!(bus.is_closed(tracers[1]), "a half-closed tracer is closed");
    bus.sends(late, r#"{"id":1,"method":"m"}"#);
    bus.sees_nothing(tracers[0]);
    assert_eq!(bus.events::<1>(tracers[2]), ["client->worker m"]);
}
