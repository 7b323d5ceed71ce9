//! What comes through the door: the console, and ACP over WebSocket.

use std::path::Path;

use serde_json::json;
use tungstenite::{Bytes, Message};

use super::bus_with_door;
use crate::harness::{Bus, Web, request};

#[test]
fn the_default_configuration_opens_a_door_and_prints_a_link() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bus = Bus::plan_with_file(root.join("bus.json")).start();
    let web = Web::of(&bus);
    bus.log_has(&format!("stdio-bus: open {}/#c=", web.url));
    let log = bus.log.text();
    let code = log.split_once("/#c=").expect("a link").1.split(' ').next().expect("a code").to_owned();
    let page = web.http("GET", "/", &[], "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let token: serde_json::Value = serde_json::from_str(&web.login(&code).body).expect("a token");
    assert_eq!(token["scope"], "admin");
    let mut socket = web.socket(token["token"].as_str().expect("a token"));
    let session = socket.opens_session();
    assert_eq!(socket.takes_turn(2, &session, "Hello."), ("Hello.".to_owned(), 0));
}

#[test]
fn a_turn_with_a_question_goes_through_a_websocket_and_the_answer_is_written_down() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut socket = web.socket(&web.token("control"));
    let session = socket.opens_session();
    let (said, questions) = socket.takes_turn(2, &session, "/ask");
    assert!(!said.is_empty() && questions == 1, "{said}");
    bus.log_has("INFO  audit] token ");
    bus.log_has(" (control) from 127.0.0.1:");
    bus.log_has(" answered session/request_permission for ");
    assert!(!bus.log.text().contains(&session), "no session id is in the log");
}

#[test]
fn a_browser_shows_its_token_as_a_subprotocol_and_is_given_the_other_one() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("admin");
    let offered = format!("acp.v1, bearer.{token}");
    let headers = [("Sec-WebSocket-Protocol", offered.as_str()), ("Origin", &web.url)];
    let mut socket = web.try_socket("/acp", &headers).expect("a WebSocket");
    assert_eq!(socket.protocol.as_deref(), Some("acp.v1"));
    assert_eq!(socket.asks(1, "_bus/status", json!({}))["result"]["bus"], "stdio-bus");
    assert_eq!(web.socket(&token).protocol, None, "none is volunteered");
}

#[test]
fn the_url_binds_a_connection_to_a_pool() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("admin");
    let mut socket = web.socket_at("/acp?pool=other", &token);
    socket.opens_session();
    let sessions = socket.asks(5, "_bus/sessions", json!({}));
    assert_eq!(sessions["result"]["sessions"][0]["pool"], "other");
    let bearer = format!("Bearer {token}");
    let absent = web.try_socket("/acp?pool=absent", &[("Authorization", &bearer)]);
    assert_eq!(absent.err(), Some(404));
}

#[test]
fn frames_may_hold_white_space_or_several_messages_and_pings_are_kept_from_agents() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut socket = web.socket(&web.token("admin"));
    let ask = |id: u32| request(id, "any/method", json!({ "a": id }));
    socket.sends("{\"jsonrpc\":\"2.0\",\"method\":\"$/ping\"}\n");
    socket.socket.send(Message::Binary(Bytes::from_static(b"{}"))).expect("it is ignored");
    socket.sends(&format!("{}\n{}\n", ask(1), ask(2)));
    for id in [1, 2] {
        assert_eq!(socket.receives()["result"]["echo"]["a"], id);
    }
    socket.sends("{\n \"jsonrpc\": \"2.0\",\r\n \"id\": 3,\n \"method\": \"any/method\"\n}");
    assert_eq!(socket.receives()["id"], 3);
    socket.sends("{oops");
    assert_eq!(socket.receives()["error"]["code"], -32_700);
    socket.socket.send(Message::Ping(Bytes::from_static(b"x"))).expect("an open WebSocket");
    assert_eq!(socket.socket.read().expect("a pong"), Message::Pong(Bytes::from_static(b"x")));
}

#[test]
fn a_connection_that_begins_with_no_message_is_told_so_and_goes_on() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    for scope in ["observe", "admin"] {
        let token = web.token(scope);
        for (frame, code) in [("{oops", -32_700), ("[]", -32_600), ("5", -32_600)] {
            let mut socket = web.socket(&token);
            socket.sends(frame);
            assert_eq!(socket.receives()["error"]["code"], code, "{scope} {frame}");
            assert_eq!(socket.asks(1, "_bus/status", json!({}))["result"]["bus"], "stdio-bus");
        }
    }
}

#[test]
fn a_long_message_passes_whole_in_both_directions() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut socket = web.socket(&web.token("admin"));
    let text = "é✓".repeat(1 << 20);
    let answer = socket.asks(1, "any/method", json!({ "text": text }));
    assert!(answer["result"]["echo"]["text"] == text.as_str());
}

#[test]
fn a_session_outlives_its_websocket_and_is_taken_up_again() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("control");
    let session = web.socket(&token).opens_session();
    let mut again = web.socket(&token);
    again.opens_session();
    let params = json!({ "sessionId": session, "cwd": "/tmp", "mcpServers": [] });
    let loaded = again.asks(3, "session/load", params);
    assert!(loaded.get("result").is_some(), "{loaded}");
    assert_eq!(again.takes_turn(4, &session, "Still there?").0, "Still there?");
}
