//! Stories of sessions that somebody else looks at and closes: what is told of them, and `_bus/close`.

use serde_json::{Value, json};

use super::*;

const INIT: &str =
    r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"close":{}}}}"#;

/// A bus with a session of the first of two clients.
fn owned() -> (TestBus, Link, Link, Link, String) {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { share: true, ..pool("agents", 1) }]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "a1");
    (bus, ann, ben, worker, session)
}

fn close(session: &str) -> String {
    json!({ "id": "close", "method": "_bus/close", "params": { "session": session } }).to_string()
}

impl TestBus {
    fn hears_all(&mut self, link: Link) -> Vec<Value> {
        let lines = self.unseen.remove(&link).unwrap_or_default();
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn is_told_to_close(&mut self, worker: Link) {
        self.answers(worker, "session/close", "{}");
    }
}

#[test]
fn a_session_is_closed_by_its_label_whoever_owns_it() {
    let (mut bus, ann, ben, worker, session) = owned();
    bus.sends(ben, &close("s1"));
    bus.is_told_to_close(worker);
    assert_eq!(bus.sees_json(ben)["result"], json!({}));
    bus.asks(ann, 2, "session/prompt", &session);
    bus.sees_error(ann, json!(2), "unknown_session");
    for unknown in ["s1", "s77", "no"] {
        bus.sends(ben, &close(unknown));
        bus.sees_error(ben, json!("close"), "unknown_session");
    }
    bus.is_idle();
}

#[test]
fn what_an_agent_still_says_of_a_session_that_it_closes_is_for_nobody_else() {
    let (mut bus, _ann, watcher, worker, session) = owned();
    let ben = bus.acp_client();
    bus.sees(ben);
    bus.opens(ben, worker, "b1");
    bus.sends(watcher, &close(&session));
    bus.sends(
        worker,
        r#"{"method":"session/update","params":{"sessionId":"b1","update":{"sessionId":"a1"}}}"#,
    );
    bus.sees(ben);
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"a1","update":{}}}"#);
    bus.sees_nothing(ben);
    bus.is_told_to_close(worker);
}

#[test]
fn its_turn_is_cancelled_and_its_questions_are_withdrawn() {
    let (mut bus, ann, ben, worker, session) = owned();
    bus.asks(ann, 2, "session/prompt", &session);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.sends(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"a1"}}"#);
    let asked = bus.sees_json(ann)["id"].clone();
    bus.sends(ben, &close(&session));
    assert_eq!(bus.sees_json(worker)["error"]["data"]["reason"], "client_gone");
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    bus.is_told_to_close(worker);
    let withdrawn = bus.sees_json(ann);
    assert_eq!(
        (&withdrawn["method"], &withdrawn["params"]["requestId"]),
        (&json!("$/cancel_request"), &asked)
    );
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{"stopReason":"cancelled"}}}}"#));
    assert_eq!(bus.sees_json(ann)["result"]["stopReason"], "cancelled");
    assert_eq!(bus.sees_json(ben)["result"], json!({}));
    // An answer that was on its way is swallowed.
    bus.sends(ann, &json!({ "id": asked, "result": {} }).to_string());
    bus.sees_nothing(worker);
    bus.is_idle();
}

#[test]
fn guests_are_told_and_a_session_that_is_being_loaded_is_left_alone() {
    let (mut bus, ann, ben, worker, session) = owned();
    bus.sends(ben, r#"{"id":1,"method":"_bus/attach","params":{"session":"s1"}}"#);
    bus.sees(ben);
    bus.sees(ben);
    bus.asks(ann, 3, "session/load", &session);
    bus.sends(ben, &close("s1"));
    bus.sees_error(ben, json!("close"), "busy");
    bus.answers(worker, "session/load", "{}");
    assert_eq!(bus.sees_json(ann)["id"], 3);
    bus.sends(ben, &close("s1"));
    bus.is_told_to_close(worker);
    let told = bus.sees_json(ben);
    assert_eq!((&told["method"], &told["params"]["event"]), (&json!("_bus/session"), &json!("ended")));
    assert_eq!(bus.sees_json(ben)["result"], json!({}));
    bus.is_idle();
}

#[test]
fn a_prompt_that_waits_in_a_session_that_is_being_opened_again_is_answered_once() {
    let (mut bus, ann, ben, _, session) = owned();
    bus.sends(ben, r#"{"id":1,"method":"_bus/attach","params":{"session":"s1"}}"#);
    bus.sees(ben);
    bus.sees(ben);
    bus.crashes(0);
    bus.asks(ann, 2, "session/prompt", &session);
    bus.asks(ben, 3, "session/prompt", &session);
    bus.sends(ben, &close("s1"));
    for (client, id) in [(ann, 2), (ben, 3)] {
        let heard = bus.hears_all(client);
        let answers: Vec<_> = heard.iter().filter(|line| line["id"] == id).collect();
        assert_eq!(answers.len(), 1, "{heard:?}");
        assert_eq!(answers[0]["error"]["data"]["reason"], "unknown_session", "{heard:?}");
    }
    bus.is_idle();
}

#[test]
fn a_label_is_forgotten() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"method":"note","sessionId":"mine"}"#);
    bus.sees(worker);
    bus.sends(client, &close("s1"));
    assert_eq!(bus.sees_json(client)["result"], json!({}));
    bus.sends(client, r#"{"id":1,"method":"_bus/sessions"}"#);
    assert_eq!(bus.sees_json(client)["result"]["sessions"], Value::Array(Vec::new()));
    bus.is_idle();
}

#[test]
fn who_joins_is_told_the_modes_as_they_are_now() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { share: true, ..pool("agents", 1) }]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    bus.sends(ann, r#"{"id":1,"method":"session/new","params":{"cwd":"/srv"}}"#);
    let modes = r#"{"currentModeId":"ask","availableModes":[]}"#;
    bus.answers(worker, "session/new", &format!(r#"{{"sessionId":"a1","modes":{modes}}}"#));
    bus.sees(ann);
    let update = r#"{"sessionUpdate":"current_mode_update","currentModeId":"code"}"#;
    let params = format!(r#"{{"sessionId":"a1","update":{update}}}"#);
    bus.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
    bus.sees(ann);
    bus.sends(ben, r#"{"id":1,"method":"_bus/attach","params":{"session":"s1","history":"none"}}"#);
    let result = bus.sees_json(ben)["result"].clone();
    assert_eq!((&result["pool"], &result["folder"]), (&json!("agents"), &json!("/srv")));
    assert_eq!(result["modes"]["currentModeId"], "code");
}

#[test]
fn an_open_question_is_told_by_its_title() {
    for shares in [true, false] {
        let mut bus = TestBus::new(Config::with_pools([PoolConfig { share: shares, ..pool("a", 1) }]));
        let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
        bus.opens(ann, worker, "a1");
        bus.sends(ben, r#"{"id":1,"method":"_bus/trace"}"#);
        bus.sees(ben);
        let call = r#"{"toolCallId":"t","title":"rm -rf /srv"}"#;
        let params = format!(r#"{{"sessionId":"a1","toolCall":{call}}}"#);
        bus.sends(worker, &format!(r#"{{"id":7,"method":"session/request_permission","params":{params}}}"#));
        bus.sees(ann);
        let title = if shares { json!("rm -rf /srv") } else { Value::Null };
        assert_eq!(bus.sees_json(ben)["params"]["title"], title);
        bus.sends(ben, r#"{"id":2,"method":"_bus/sessions"}"#);
        let session = bus.sees_json(ben)["result"]["sessions"][0].clone();
        assert_eq!((&session["questions"], &session["asked"]), (&json!(1), &title));
    }
}
