//! `otel`: a small collector of our own sees the turns, tool calls and questions of a bus.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, PATIENCE, Program, ProgramPlan, one_pool, request, update_of};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Takes every request, by OTLP in JSON, and hands over its spans.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    let (spans_tx, spans) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let spans_tx = spans_tx.clone();
            thread::spawn(move || serve(&stream.expect("a connection"), &spans_tx));
        }
    });
    (url, spans)
}

fn serve(mut stream: &TcpStream, spans: &Sender<Value>) {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
        if line != "\r\n" {
            continue;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("the whole body");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans") {
            let mut span = span.clone();
            span["resource"] = body["resourceSpans"][0]["resource"].clone();
            let _ = spans.send(span);
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    }
}

fn plan(bus: &Bus, url: &str) -> ProgramPlan {
    let args = ["--tcp", bus.tcp(), "--endpoint", url];
    Program::plan(&args).command_is("otel").env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
}

fn is_followed(bus: &Bus, client: &mut Client) {
    bus.until("somebody follows the traffic", || client.status()["tracers"] == 1);
}

/// The spans up to the one of this name.
fn until(spans: &Receiver<Value>, name: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last: &Value| last["name"] != name) {
        match spans.recv_timeout(PATIENCE) {
            Ok(span) => seen.push(span),
            Err(_) => panic!("waited for {name}, and saw {seen:?}"),
        }
    }
    seen
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("no {name} among {spans:?}"))
}

#[test]
fn a_collector_sees_a_turn_with_its_tool_call_and_its_question() {
    let (url, spans) = collector();
    let bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    client.initializes(&mut puppet, json!({}), json!({}));
    let session = client.opens(&mut puppet, "s1");
    let otel = plan(&bus, &url).with_pipes();
    is_followed(&bus, &mut client);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let prompt = json!([{ "type": "text", "text": "SECRET" }]);
    let params = json!({ "sessionId": session, "prompt": prompt, "_meta": { "traceparent": parent } });
    client.sends(&request(5, "session/prompt", params));
    let turn = puppet.is_asked("session/prompt");
    assert_eq!(turn["params"]["_meta"]["traceparent"], parent, "the agent hears it too");
    let tool = json!({ "sessionUpdate": "tool_call", "toolCallId": "t1", "title": "SECRET", "kind": "execute",
        "status": "pending" });
    puppet.sends(&update_of("s1", tool));
    client.receives();
    let asked =
        json!({ "sessionId": "s1", "toolCall": { "toolCallId": "t1", "title": "SECRET" }, "options": [] });
    puppet.sends(&request(7, "session/request_permission", asked));
    let question = client.is_asked("session/request_permission");
    client.answers(&question, json!({ "outcome": { "outcome": "cancelled" } }));
    puppet.receives();
    let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": "failed" });
    puppet.sends(&update_of("s1", done));
    client.receives();
    puppet.ends_turn(&turn, "end_turn");
    client.gets(5);
    let seen = until(&spans, "invoke_agent p");
    let [turn, tool, question] = ["invoke_agent p", "execute_tool execute", "session/request_permission"]
        .map(|name| named(&seen, name));
    assert_eq!((&turn["traceId"], &turn["parentSpanId"]), (&json!(TRACE), &json!("b7ad6b7169203331")));
    assert_eq!((&tool["traceId"], &tool["parentSpanId"]), (&json!(TRACE), &turn["spanId"]));
    assert_eq!((&question["traceId"], &question["parentSpanId"]), (&json!(TRACE), &tool["spanId"]));
    assert_eq!((&tool["status"]["code"], turn.get("status")), (&json!(2), None));
    let service = json!({ "key": "service.name", "value": { "stringValue": "stdio-bus" } });
    assert!(turn["resource"]["attributes"].as_array().is_some_and(|all| all.contains(&service)), "{turn}");
    assert!(!seen.iter().any(|span| span.to_string().contains("SECRET")), "{seen:?}");
    drop(otel);
}

#[test]
fn a_turn_that_a_crash_has_cut_is_an_error_and_the_next_one_is_seen() {
    let (url, spans) = collector();
    let bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let otel = plan(&bus, &url).with_pipes();
    is_followed(&bus, &mut client);
    for turn in 0..2 {
        let session = client.opens(&mut puppet, &format!("s{turn}"));
        client.prompts(5 + turn, &session);
        let asked = puppet.is_asked("session/prompt");
        if turn == 1 {
            puppet.ends_turn(&asked, "end_turn");
            client.gets(6);
            break;
        }
        puppet.exits(1);
        client.sees_error(5, -32050, "worker_lost");
        puppet = bus.puppet();
    }
    let cut = until(&spans, "invoke_agent p");
    assert_eq!(cut.last().map(|span| &span["status"]["message"]), Some(&json!("worker_lost")));
    assert_eq!(until(&spans, "invoke_agent p").last().and_then(|span| span.get("status")), None);
    otel.signal(Signal::SIGINT);
    otel.log_has("were dropped");
}

#[test]
fn it_outlives_a_collector_that_is_away_and_a_bus_that_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    drop(listener);
    let mut bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let mut otel = plan(&bus, &url).with_pipes();
    is_followed(&bus, &mut client);
    let session = client.opens(&mut puppet, "s1");
    otel.log_has("does not take spans");
    client.prompts(5, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.ends_turn(&turn, "end_turn");
    client.gets(5);
    bus.signal(Signal::SIGTERM);
    assert!(bus.exit_status().success());
    otel.log_has("waiting for the bus");
    otel.signal(Signal::SIGTERM);
    assert_eq!(otel.ends(), 0);
    otel.log_has("0 spans were sent");
}

#[test]
fn what_is_wrong_with_it_is_said_at_once() {
    let bus = Bus::start(one_pool(1));
    for (plan, says) in [
        (plan(&bus, "ftp://collector"), "is not the URL of a collector"),
        (plan(&bus, "http://127.0.0.1:9").env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"), "http/json"),
    ] {
        let mut otel = plan.with_pipes();
        otel.log_has(says);
        assert_eq!(otel.ends(), 1);
    }
}
