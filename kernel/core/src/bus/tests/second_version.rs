//! Subagents' sessions, and ACP's second version: what is told of sessions beside their own lines.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Event, TestBus};
use crate::id::Link;

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","#,
    r#""params":{"protocolVersion":2,"info":{"name":"x","version":"1"},"capabilities":{"x":{"y":true}}}}"#
);
const GREETING: &str =
    r#"{"protocolVersion":2,"info":{"name":"a","version":"1"},"capabilities":{"session":{}}}"#;

/// A client and a worker that speak ACP's second version, and a session.
fn second_version(bus: &mut TestBus) -> (Link, Link, String) {
    let (ann, worker) = (bus.client(), bus.worker(0));
    bus.sends(ann, INITIALIZE);
    bus.greets_with(worker, GREETING);
    bus.sees_json(ann);
    let session = bus.opens(ann, worker, "s");
    (ann, worker, session)
}

fn update(session: &str, update: &str) -> String {
    format!(r#"{{"method":"session/update","params":{{"sessionId":"{session}","update":{update}}}}}"#)
}

fn state(session: &str, state: &str) -> String {
    update(session, &format!(r#"{{"sessionUpdate":"state_update","state":"{state}"}}"#))
}

fn announces(parent: &str, child: &str) -> String {
    update(parent, &format!(r#"{{"sessionUpdate":"subagent_update","sessionId":"{child}"}}"#))
}

fn takes_up(bus: &mut TestBus, session: &str) -> Link {
    let again = bus.client();
    bus.sends(
        again,
        &format!(r#"{{"id":9,"method":"session/resume","params":{{"sessionId":"{session}"}}}}"#),
    );
    again
}

#[test]
fn a_child_session_belongs_to_the_owner_of_its_parent() {
    let mut bus = TestBus::with(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.opens(ben, worker, "q");
    bus.sends(worker, &announces("p", "c"));
    let update = bus.sees_json(ann);
    assert_eq!(update["params"]["sessionId"], parent);
    let child = update["params"]["update"]["sessionId"].clone();
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"c"}}"#);
    assert_eq!(bus.sees_json(ann)["params"]["sessionId"], child);
    bus.sees_nothing(ben);
}

#[test]
fn a_child_that_is_announced_while_the_owner_is_away_is_kept_with_its_parent() {
    let mut bus = TestBus::with(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.happens(Event::Broken(ann));
    bus.sends(worker, &announces("p", "c"));
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"c"}}"#);
    bus.sends(worker, &update("p", r#"{"n":1}"#));
    bus.sees_nothing(worker);
    let again = takes_up(&mut bus, &parent);
    let child = bus.sees_json(again)["params"]["update"]["sessionId"].clone();
    assert_ne!(child, "c");
    let (wire, asked) = bus.sees_request(again, "session/request_permission");
    assert_eq!(asked["params"]["sessionId"], child);
    assert_eq!(bus.sees_json(again)["params"]["update"]["n"], 1, "in the order it was said");
    assert_eq!(bus.sees_json(again)["id"], 9);
    bus.sends(again, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 5);
    bus.sends(again, &format!(r#"{{"method":"session/cancel","params":{{"sessionId":{child}}}}}"#));
    assert_eq!(bus.sees_json(worker)["params"]["sessionId"], "c");
    bus.is_idle();
}

#[test]
fn children_go_with_their_parent_to_whoever_takes_it_up() {
    let mut bus = TestBus::with(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.sends(worker, &announces("p", "c"));
    let child = bus.sees_json(ann)["params"]["update"]["sessionId"].clone();
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"c"}}"#);
    bus.sees_request(ann, "session/request_permission");
    bus.happens(Event::Broken(ann));
    let again = takes_up(&mut bus, &parent);
    let (_, asked) = bus.sees_request(again, "session/request_permission");
    assert_eq!(asked["params"]["sessionId"], child);
    assert_eq!(bus.sees_json(again)["id"], 9);
}

#[test]
fn a_child_that_is_taken_up_alone_takes_along_what_was_said_in_it() {
    let mut bus = TestBus::with(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.sends(worker, &announces("p", "c"));
    let child = bus.sees_json(ann)["params"]["update"]["sessionId"].as_str().expect("a name").to_owned();
    bus.happens(Event::Broken(ann));
    for (session, n) in [("p", 1), ("c", 2), ("p", 3)] {
        bus.sends(worker, &update(session, &format!(r#"{{"n":{n}}}"#)));
    }
    let one = takes_up(&mut bus, &child);
    assert_eq!(bus.sees_json(one)["params"]["update"]["n"], 2);
    assert_eq!(bus.sees_json(one)["id"], 9);
    let other = takes_up(&mut bus, &parent);
    assert_eq!(bus.sees_json(other)["params"]["update"]["n"], 1);
    assert_eq!(bus.sees_json(other)["params"]["update"]["n"], 3);
    assert_eq!(bus.sees_json(other)["id"], 9);
    bus.sends(worker, &update("c", "{}"));
    assert_eq!(bus.sees_json(one)["params"]["sessionId"], child);
    bus.is_idle();
}

#[test]
fn what_a_child_says_before_its_parent_is_open_waits_for_both() {
    let mut bus = TestBus::with(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    bus.sends(ann, r#"{"id":1,"method":"session/new"}"#);
    let (open, _) = bus.sees_request(worker, "session/new");
    bus.sends(worker, &announces("p", "c"));
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"c"}}"#);
    bus.sends(worker, &format!(r#"{{"id":{open},"result":{{"sessionId":"p"}}}}"#));
    assert_eq!(bus.sees_json(ann)["id"], 1);
    let child = bus.sees_json(ann)["params"]["update"]["sessionId"].clone();
    let (_, asked) = bus.sees_request(ann, "session/request_permission");
    assert_eq!(asked["params"]["sessionId"], child);
}

#[test]
fn capabilities_of_either_version_make_a_handshake() {
    let mut bus = TestBus::with(1);
    second_version(&mut bus);
    let ben = bus.client();
    bus.sends(ben, &INITIALIZE.replace(r#""y":true"#, r#""y":true,"z":1"#));
    bus.sees_error(ben, json!(0), "busy");
}

#[test]
fn a_stop_waits_for_a_turn_that_no_call_is_in_flight_for() {
    let mut bus = TestBus::with(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.sends(ann, &format!(r#"{{"id":1,"method":"session/prompt","params":{{"sessionId":"{session}"}}}}"#));
    bus.answers(worker, "session/prompt", r#"{"messageId":"m"}"#);
    bus.sees_json(ann);
    bus.sends(worker, &state("s", "running"));
    bus.happens(Event::Stop);
    assert!(bus.processes[0].stdin_open, "the turn goes on");
    bus.sends(worker, &state("s", "idle"));
    assert!(!bus.processes[0].stdin_open);
    for told in ["running", "idle"] {
        assert_eq!(bus.sees_json(ann)["params"]["update"]["state"], told);
    }
}

#[test]
fn a_turn_that_outlasts_the_stop_is_ended_by_the_bus() {
    let mut bus = TestBus::with(1);
    let (ann, worker, _) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.happens(Event::Stop);
    bus.passes(Duration::from_secs(600));
    assert_eq!(ended(&mut bus, ann)["data"]["reason"], "stopping");
}

#[test]
fn a_turn_ends_with_its_agent() {
    let mut bus = TestBus::with(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.crashes(0);
    assert_eq!(ended(&mut bus, ann)["data"]["reason"], "worker_lost");
    bus.passes(Duration::from_secs(1));
    bus.sends(ann, &format!(r#"{{"id":1,"method":"session/prompt","params":{{"sessionId":"{session}"}}}}"#));
    let next = bus.worker(1);
    bus.greets_with(next, GREETING);
    let (resume, asked) = bus.sees_request(next, "session/resume");
    assert_eq!(asked["params"], json!({"cwd":"/","sessionId":"s"}));
    bus.sends(next, &state("s", "idle"));
    assert_eq!(bus.sees_json(ann)["params"]["update"]["state"], "idle");
    bus.sends(next, &format!(r#"{{"id":{resume},"result":{{}}}}"#));
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(ann)["id"], 1);
    bus.is_idle();
}

/// The bus says that the turn has failed: why.
fn ended(bus: &mut TestBus, client: Link) -> Value {
    let told = bus.sees_json(client)["params"]["update"].clone();
    assert_eq!(told["sessionUpdate"], "state_update");
    assert_eq!([&told["state"], &told["stopReason"]], ["idle", "error"]);
    told["error"].clone()
}

#[test]
fn whoever_takes_up_a_session_hears_how_it_stands() {
    let mut bus = TestBus::with(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.happens(Event::Broken(ann));
    bus.sends(worker, &state("s", "requires_action"));
    let again = bus.client();
    bus.sends(again, INITIALIZE);
    bus.sees_json(again);
    bus.sends(
        again,
        &format!(r#"{{"id":9,"method":"session/resume","params":{{"sessionId":"{session}"}}}}"#),
    );
    for _ in 0..2 {
        assert_eq!(bus.sees_json(again)["params"]["update"]["state"], "requires_action");
    }
    assert_eq!(bus.sees_json(again)["id"], 9);
}

#[test]
fn a_kept_session_is_resumed_with_a_replay_where_one_is_asked_for() {
    let mut bus = TestBus::with(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.happens(Event::Broken(ann));
    bus.sends(worker, &update("s", r#"{"n":1}"#));
    let again = bus.client();
    bus.sends(again, INITIALIZE);
    bus.sees_json(again);
    let params = format!(r#"{{"sessionId":"{session}","cwd":"/","replayFrom":{{"type":"start"}}}}"#);
    bus.sends(again, &format!(r#"{{"id":9,"method":"session/resume","params":{params}}}"#));
    bus.answers(worker, "session/close", "{}");
    let asked = bus.answers(worker, "session/resume", "{}");
    assert_eq!(asked["params"]["replayFrom"]["type"], "start");
    assert_eq!(bus.sees_json(again)["id"], 9, "all of it is the agent's to tell");
    bus.crashes(0);
    bus.passes(Duration::from_secs(1));
    bus.sends(
        again,
        &format!(r#"{{"id":1,"method":"session/prompt","params":{{"sessionId":"{session}"}}}}"#),
    );
    let next = bus.worker(1);
    bus.greets_with(next, GREETING);
    let (_, asked) = bus.sees_request(next, "session/resume");
    assert_eq!(asked["params"], json!({"cwd":"/","sessionId":"s"}), "the client has heard it all");
}

#[test]
fn other_sessions_are_named_as_their_owner_knows_them() {
    let mut bus = TestBus::with(1);
    let (ann, worker, one) = second_version(&mut bus);
    let two = bus.opens(ann, worker, "t");
    let ben = bus.client();
    bus.sends(ben, INITIALIZE);
    bus.sees_json(ben);
    bus.opens(ben, worker, "u");
    bus.sends(
        worker,
        &update("s", r#"{"senderSessionId":"s","recipientSessionId":"t","x":{"sessionId":"t"}}"#),
    );
    let told = bus.sees_json(ann)["params"]["update"].clone();
    assert_eq!(told, json!({"senderSessionId":one,"recipientSessionId":two,"x":{"sessionId":"t"}}));
    bus.sends(worker, &update("s", r#"{"background":[{"sessionId":"t"},{"sessionId":"u"}]}"#));
    let told = bus.sees_json(ann)["params"]["update"]["background"].clone();
    assert_eq!(told, json!([{"sessionId":two},{"sessionId":"u"}]), "of another's it knows nothing");
    bus.sends(ann, &format!(r#"{{"id":1,"method":"session/status","params":{{"sessionId":"{one}"}}}}"#));
    bus.answers(worker, "session/status", r#"{"state":{"background":[{"sessionId":"t"}]}}"#);
    assert_eq!(bus.sees_json(ann)["result"]["state"]["background"][0]["sessionId"], two);
    bus.sends(ann, &format!(r#"{{"id":2,"method":"session/prompt","params":{{"sessionId":"{one}"}}}}"#));
    let (wire, _) = bus.sees_request(worker, "session/prompt");
    let error = r#"{"code":-32002,"message":"no session s","data":{"sessionId":"s"}}"#;
    bus.sends(worker, &format!(r#"{{"id":{wire},"error":{error}}}"#));
    assert_eq!(bus.sees_json(ann)["error"]["data"]["sessionId"], one);
}
