//! Prompts are answered and cancelled, and do not disturb each other.

use std::time::Duration;

use serde_json::json;

use super::super::Options;
use super::{Client, seconds};

#[test]
fn a_prompt_comes_back_in_chunks_before_its_response() {
    let mut client = Client::new();
    let session = client.session();
    let text = "One two three four five six seven eight nine ten.";
    let id = client.prompt(&session, text);
    assert_eq!(client.received.last().unwrap()["id"], id);
    assert_eq!(client.stop_reason(id).unwrap(), "end_turn");
    let chunks = client.chunks(&session);
    assert!(chunks.len() > 1);
    assert_eq!(chunks.concat(), text);
    assert_eq!(client.echo(&session, ""), [""]);
    assert_eq!(client.echo(&session, "/unknown command").concat(), "/unknown command");
}

#[test]
fn links_and_embedded_files_are_echoed_and_images_are_not() {
    let mut client = Client::new();
    let session = client.session();
    let prompt = json!([
        { "type": "resource_link", "name": "a", "uri": "file:///a" },
        { "type": "image", "data": "AAAA", "mimeType": "image/png" },
        { "type": "resource", "resource": { "uri": "file:///b", "text": "inside" } },
        { "type": "text", "text": "typed" },
    ]);
    let id = client.request("session/prompt", json!({ "sessionId": session, "prompt": prompt }));
    assert_eq!(client.stop_reason(id).unwrap(), "end_turn");
    assert_eq!(client.chunks(&session).concat(), "file:///a\ninside\ntyped");
}

#[test]
fn options_set_the_number_size_and_delay_of_chunks() {
    let mut client = Client::with(Options {
        chunks: Some(3),
        chunk_bytes: Some(10),
        delay: seconds(0.5),
        ..Options::default()
    });
    let session = client.session();
    let id = client.prompt(&session, "hi");
    assert_eq!(client.chunks(&session), ["hihihihihi"]);
    client.advance(seconds(0.4));
    assert_eq!(client.chunks(&session).len(), 0);
    client.advance(seconds(0.1));
    assert_eq!(client.chunks(&session).len(), 1);
    assert_eq!(client.stop_reason(id), None);
    client.advance(seconds(0.5));
    assert_eq!(client.chunks(&session).len(), 1);
    assert_eq!(client.stop_reason(id).unwrap(), "end_turn");

    let mut none = Client::with(Options { chunks: Some(0), ..Options::default() });
    let session = none.session();
    assert!(none.echo(&session, "hi").is_empty());
}

#[test]
fn a_long_turn_pauses_for_other_turns() {
    let mut client =
        Client::with(Options { chunks: Some(40), chunk_bytes: Some(1 << 17), ..Options::default() });
    let (one, two) = (client.session(), client.session());
    let (first, second) = (client.prompt(&one, "a"), client.prompt(&two, "b"));
    let (mut ones, mut twos) = (client.chunks(&one).len(), client.chunks(&two).len());
    assert!(ones < 20 && twos < 20, "one line is not held up by all of a long turn");
    let mut order = Vec::new();
    while client.agent.next_wake().is_some() {
        client.advance(Duration::ZERO);
        let new_chunks = (client.chunks(&one).len(), client.chunks(&two).len());
        order.push(new_chunks.0 > 0);
        ones += new_chunks.0;
        twos += new_chunks.1;
    }
    assert_eq!((ones, twos), (40, 40));
    assert!(client.stop_reason(first).is_some() && client.stop_reason(second).is_some());
    assert!(order[..4] == [true, false, true, false], "{order:?}");
}

#[test]
fn pipelined_prompts_of_one_session_do_not_collide() {
    let mut client = Client::with(Options { chunks: Some(100), ..Options::default() });
    let session = client.session();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "hi" }] });
    let line = json!({ "id": null, "method": "session/prompt", "params": prompt }).to_string();
    for _ in 0..20 {
        client.agent.line(line.as_bytes(), client.now);
    }
    let answers = client.agent.writer.bytes().split(|&byte| byte == b'\n');
    assert_eq!(answers.filter(|line| line.ends_with(b"\"end_turn\"}}")).count(), 20);
}

#[test]
fn a_slow_session_never_delays_another() {
    let mut client = Client::new();
    let (slow, quick) = (client.session(), client.session());
    let turn = client.prompt(&slow, "/slow 2.5");
    assert_eq!(client.echo(&quick, "hello").concat(), "hello");
    client.advance(seconds(1.0));
    assert_eq!(client.echo(&quick, "still here").concat(), "still here");
    client.advance(seconds(1.0));
    assert_eq!(client.chunks(&slow), [".", "."]);
    assert_eq!(client.stop_reason(turn), None);
    client.advance(seconds(0.5));
    assert_eq!(client.chunks(&slow), ["That took 2.5 s.\n"]);
    assert_eq!(client.stop_reason(turn).unwrap(), "end_turn");
    assert_eq!(client.agent.next_wake(), None);
}

#[test]
fn thousands_of_sessions_run_at_the_same_time() {
    let mut client = Client::new();
    let sessions: Vec<_> = (0..2000).map(|_| client.session()).collect();
    let turns: Vec<_> = sessions.iter().map(|session| client.prompt(session, "/slow 0.5")).collect();
    client.advance(seconds(0.5));
    while client.agent.next_wake().is_some() {
        client.advance(Duration::ZERO);
    }
    assert_eq!(client.received.iter().filter(|message| message.get("result").is_some()).count(), turns.len());
}

#[test]
fn a_second_prompt_is_refused_while_a_turn_runs() {
    let mut client = Client::new();
    let session = client.session();
    let turn = client.prompt(&session, "/slow 1");
    let second = client.prompt(&session, "hi");
    assert_eq!(client.response_to(second).unwrap()["error"]["code"], -32600);
    client.advance(seconds(1.0));
    assert!(client.stop_reason(turn).is_some());
    assert_eq!(client.chunks(&session), ["That took 1 s.\n"]);
    assert_eq!(client.echo(&session, "now").concat(), "now");
}

#[test]
fn a_cancelled_turn_stops_and_responds() {
    let mut client = Client::new();
    let session = client.session();
    let turn = client.prompt(&session, "/slow 60");
    client.notify("session/cancel", json!({ "sessionId": session }));
    assert_eq!(client.stop_reason(turn).unwrap(), "cancelled");
    client.advance(seconds(100.0));
    assert!(client.received.is_empty());
    client.notify("session/cancel", json!({ "sessionId": session }));
    client.notify("session/cancel", json!({ "sessionId": "nobody" }));
    client.notify("session/cancel", json!({}));
    assert!(client.received.is_empty());
    assert_eq!(client.result("session/cancel", json!({ "sessionId": session })), json!({}));
    assert_eq!(client.echo(&session, "on").concat(), "on");
}

#[test]
fn a_cancelled_request_is_answered_with_an_error() {
    let mut client = Client::new();
    let (session, other) = (client.session(), client.session());
    let (turn, bystander) = (client.prompt(&session, "/slow 60"), client.prompt(&other, "/slow 1"));
    client.notify("$/cancel_request", json!({ "requestId": "nothing" }));
    client.notify("$/cancel_request", json!({ "requestId": turn }));
    assert_eq!(client.response_to(turn).unwrap()["error"]["code"], -32800);
    client.advance(seconds(1.0));
    assert_eq!(client.stop_reason(bystander).unwrap(), "end_turn");
}
