//! Sessions whose client has left: kept until it returns, or ended at once.

use serde_json::json;

use crate::harness::{Bus, Client, Puppet, bus_puppet_client, limited, one_pool, request, update};

/// Waits until the bus knows that all but this client have left.
fn is_alone(bus: &Bus, client: &mut Client) {
    bus.until("the others have left", || client.status()["clients"] == 1);
}

/// A client opens a session, starts a turn, gets a permission request and leaves.
fn leaves_during_turn(bus: &Bus, puppet: &mut Puppet, other: &mut Client) -> (String, serde_json::Value) {
    let mut ann = bus.client();
    let session = ann.opens(puppet, "s1");
    ann.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.sends(&update("s1", "before"));
    assert_eq!(ann.reads(), update(&session, "before"));
    puppet.asks_permission(r#""before""#, "s1");
    ann.is_asked("session/request_permission");
    ann.breaks();
    is_alone(bus, other);
    (session, turn)
}

#[test]
fn a_new_connection_resumes_a_session_that_was_left_during_a_turn() {
    for method in ["session/resume", "session/load"] {
        let (bus, mut puppet, mut ben) = bus_puppet_client();
        let (session, turn) = leaves_during_turn(&bus, &mut puppet, &mut ben);
        puppet.sends(&update("s1", "missed"));
        puppet.asks_permission(r#""after""#, "s1");
        puppet.is_read();
        ben.has_received_nothing();
        ben.sends(&request(5, method, json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })));
        let (mut missed, mut questions) = (0, Vec::new());
        loop {
            let message = ben.receives();
            if message["id"] == 5 && message.get("method").is_none() {
                assert!(message.get("result").is_some(), "{message}");
                break;
            }
            assert_eq!(message["params"]["sessionId"], json!(session));
            match message["method"].as_str() {
                Some("session/update") => {
                    assert_eq!(message["params"]["update"]["text"], "missed");
                    missed += 1;
                }
                _ => questions.push(message),
            }
        }
        assert_eq!((missed, questions.len()), (1, 2));
        for (question, id) in questions.iter().zip(["before", "after"]) {
            ben.answers(question, json!({ "to": id }));
            assert_eq!(puppet.gets(id)["result"], json!({ "to": id }));
        }
        puppet.sends(&update("s1", "live"));
        assert_eq!(ben.reads(), update(&session, "live"));
        // The answer to the turn was for the client that has left.
        puppet.ends_turn(&turn, "end_turn");
        ben.prompts(6, &session);
        let asked = puppet.is_asked("session/prompt");
        puppet.ends_turn(&asked, "end_turn");
        ben.gets(6);
        ben.has_received_nothing();
    }
}

#[test]
fn an_offline_session_is_listed_but_must_be_resumed_before_use() {
    let (bus, mut puppet, mut ben) = bus_puppet_client();
    let (session, _) = leaves_during_turn(&bus, &mut puppet, &mut ben);
    ben.prompts(1, &session);
    ben.sees_error(1, -32051, "unknown_session");
    ben.sends(&request(2, "session/list", json!({})));
    let asked = puppet.is_asked("session/list");
    puppet.answers(&asked, json!({ "sessions": [{ "sessionId": "s1" }] }));
    assert_eq!(ben.gets(2), json!({ "sessions": [{ "sessionId": session }] }));
}

#[test]
fn when_an_offline_session_expires_its_requests_are_answered_and_the_agent_is_notified() {
    let bus = Bus::start(limited(1, json!({ "session_keep_sec": 0.2 })));
    let mut puppet = bus.puppet();
    let mut ben = bus.client();
    let (session, _) = leaves_during_turn(&bus, &mut puppet, &mut ben);
    puppet.sees_error("before", -32057);
    assert_eq!(puppet.is_asked("session/cancel")["params"], json!({ "sessionId": "s1" }));
    ben.prompts(1, &session);
    ben.sees_error(1, -32051, "unknown_session");
    // Later requests of the agent are answered too.
    puppet.asks_permission(1, "s1");
    assert!(puppet.gets(1).get("error").is_some());
}

#[test]
fn no_session_is_kept_if_that_is_off_or_the_client_sent_bye() {
    for (keep_sec, says_bye) in [(0, false), (300, true)] {
        for (closes, during_turn) in [(false, true), (true, true), (true, false)] {
            let bus = Bus::start(limited(1, json!({ "session_keep_sec": keep_sec })));
            let mut puppet = bus.puppet();
            let mut ann = bus.client();
            let offers = if closes { json!({ "sessionCapabilities": { "close": {} } }) } else { json!({}) };
            ann.initializes(&mut puppet, json!({}), offers);
            let session = ann.opens(&mut puppet, "s1");
            if says_bye {
                ann.sends(r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#);
            }
            if during_turn {
                ann.prompts(1, &session);
                puppet.is_asked("session/prompt");
                ann.breaks();
            } else {
                ann.has_received_nothing();
                drop(ann);
            }
            if during_turn {
                assert_eq!(puppet.is_asked("session/cancel")["params"], json!({ "sessionId": "s1" }));
            }
            if closes {
                let asked = puppet.is_asked("session/close");
                assert_eq!(asked["params"], json!({ "sessionId": "s1" }));
                puppet.answers(&asked, json!({}));
            }
        }
    }
}

#[test]
fn a_session_can_be_resumed_after_its_client_closed_its_socket_during_a_turn() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.asks_permission(1, "s1");
    ann.is_asked("session/request_permission");
    drop(ann);
    bus.until("the session is free", || {
        ben.sends(&request(2, "session/resume", json!({ "sessionId": session, "cwd": "/" })));
        let answer = ben.receives();
        if answer["method"] == "session/request_permission" {
            ben.answers(&answer, json!("yes"));
            ben.gets(2);
            return true;
        }
        assert_eq!(answer["error"]["code"], -32051, "{answer}");
        false
    });
    assert_eq!(puppet.gets(1)["result"], "yes");
    puppet.sends(&update("s1", "word"));
    assert_eq!(ben.reads(), update(&session, "word"));
    puppet.answers(&turn, json!({}));
    ben.has_received_nothing();
}

#[test]
fn a_request_to_a_half_closed_client_is_answered_when_its_session_expires() {
    let bus = Bus::start(limited(1, json!({ "session_keep_sec": 0.2 })));
    let mut puppet = bus.puppet();
    let mut ann = bus.client();
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.asks_permission(1, "s1");
    ann.is_asked("session/request_permission");
    ann.half_closes();
    puppet.sees_error(1, -32057);
    puppet.asks_permission(2, "s1");
    puppet.sees_error(2, -32057);
    // The client still gets the updates of its own turn.
    puppet.sends(&update("s1", "word"));
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(ann.reads(), update(&session, "word"));
    ann.gets(1);
    ann.is_closed();
}

#[test]
fn a_request_to_a_client_that_sent_bye_is_answered_at_once() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.asks_permission(1, "s1");
    ann.is_asked("session/request_permission");
    ann.sends(r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#);
    ann.half_closes();
    puppet.sees_error(1, -32057);
    puppet.ends_turn(&turn, "cancelled");
    ann.gets(1);
    ann.is_closed();
    assert_eq!(puppet.is_asked("session/cancel")["params"]["sessionId"], "s1");
}

#[test]
fn a_request_in_a_session_that_is_not_kept_is_answered_when_its_client_half_closes() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    ann.sends(r#"{"jsonrpc":"2.0","id":1,"method":"work","sessionId":"mine"}"#);
    let turn = puppet.is_asked("work");
    let question = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ask","sessionId":{}}}"#, turn["sessionId"]);
    puppet.sends(&question);
    ann.is_asked("ask");
    puppet.sends(&request(2, "_vendor/ask", json!({})));
    ann.is_asked("_vendor/ask");
    ann.half_closes();
    for id in [1, 2] {
        puppet.sees_error(id, -32057);
    }
    puppet.sends(&question);
    puppet.sees_error(1, -32057);
    puppet.answers(&turn, json!({}));
    ann.gets(1);
    ann.is_closed();
}
