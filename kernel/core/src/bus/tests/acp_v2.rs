//! Sessions of subagents, and ACP's second version: turn states, replays and ids of other sessions in a line.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, PoolConfig, TestBus, pool};
use crate::id::Link;
use crate::limit::{CHILDREN_TIMES, NAME_BYTES};

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","#,
    r#""params":{"protocolVersion":2,"info":{"name":"x","version":"1"},"capabilities":{"x":{"y":true}}}}"#
);
const INIT_RESULT: &str =
    r#"{"protocolVersion":2,"info":{"name":"a","version":"1"},"capabilities":{"session":{}}}"#;

/// A client and a worker of ACP's second version, and their session.
fn second_version(bus: &mut TestBus) -> (Link, Link, String) {
    let (ann, worker) = (bus.client(), bus.worker(0));
    bus.sends(ann, INITIALIZE);
    bus.initializes_with(worker, INIT_RESULT);
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

/// A new client resumes the session.
fn resumes(bus: &mut TestBus, session: &str) -> Link {
    let again = bus.client();
    bus.asks(again, 9, "session/resume", session);
    again
}

#[test]
fn a_child_session_belongs_to_the_owner_of_its_parent() {
    let mut bus = TestBus::with_workers(1);
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
fn where_there_are_more_child_sessions_than_are_known_a_list_shows_only_what_is_known() {
    let few = PoolConfig { max_sessions: 2, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([few]));
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.opens(ann, worker, "p");
    let own = bus.opens(ben, worker, "q");
    let lists = |bus: &mut TestBus| {
        bus.sends(ben, r#"{"id":1,"method":"session/list"}"#);
        let entries = ["q", "c0", "last", "old"].map(|id| format!(r#"{{"sessionId":"{id}"}}"#)).join(",");
        bus.answers(worker, "session/list", &format!(r#"{{"sessions":[{entries}]}}"#));
        let shown = bus.sees_json(ben)["result"]["sessions"].take();
        shown.as_array().into_iter().flatten().map(|entry| entry["sessionId"].to_string()).collect::<Vec<_>>()
    };
    let quoted = |id: &str| format!("{id:?}");
    // Those that nobody has opened are for all.
    assert_eq!(lists(&mut bus), [quoted(&own), quoted("c0"), quoted("last"), quoted("old")]);
    for nth in 0..2 * CHILDREN_TIMES - 2 {
        bus.sends(worker, &announces("p", &format!("c{nth}")));
        bus.sees(ann);
    }
    assert_eq!(lists(&mut bus), [quoted(&own), quoted("last"), quoted("old")]);
    // This one is not known any more, so it cannot be told from the old ones.
    bus.sends(worker, &announces("p", "last"));
    bus.sees(ann);
    assert_eq!(lists(&mut bus), [quoted(&own)]);
}

#[test]
fn a_child_whose_name_is_too_long_to_be_kept_is_not_listed_for_others() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.opens(ann, worker, "p");
    let long = "c".repeat(NAME_BYTES + 1);
    bus.sends(worker, &announces("p", &long));
    bus.sees(ann);
    bus.sends(ben, r#"{"id":1,"method":"session/list"}"#);
    bus.answers(worker, "session/list", &format!(r#"{{"sessions":[{{"sessionId":"{long}"}}]}}"#));
    assert_eq!(bus.sees_json(ben)["result"]["sessions"], json!([]));
}

#[test]
fn a_child_announced_while_its_owner_is_away_is_kept_with_its_parent() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.handles(Event::Broken(ann));
    bus.sends(worker, &announces("p", "c"));
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"c"}}"#);
    bus.sends(worker, &update("p", r#"{"n":1}"#));
    bus.sees_nothing(worker);
    let again = resumes(&mut bus, &parent);
    let child = bus.sees_json(again)["params"]["update"]["sessionId"].clone();
    assert_ne!(child, "c");
    let (wire, asked) = bus.sees_request(again, "session/request_permission");
    assert_eq!(asked["params"]["sessionId"], child);
    assert_eq!(bus.sees_json(again)["params"]["update"]["n"], 1, "in the order of the lines");
    assert_eq!(bus.sees_json(again)["id"], 9);
    bus.sends(again, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 5);
    bus.sends(again, &format!(r#"{{"method":"session/cancel","params":{{"sessionId":{child}}}}}"#));
    assert_eq!(bus.sees_json(worker)["params"]["sessionId"], "c");
    bus.is_idle();
}

#[test]
fn children_go_with_their_parent_to_the_client_that_resumes_it() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.sends(worker, &announces("p", "c"));
    let child = bus.sees_json(ann)["params"]["update"]["sessionId"].clone();
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"c"}}"#);
    bus.sees_request(ann, "session/request_permission");
    bus.handles(Event::Broken(ann));
    let again = resumes(&mut bus, &parent);
    let (_, asked) = bus.sees_request(again, "session/request_permission");
    assert_eq!(asked["params"]["sessionId"], child);
    assert_eq!(bus.sees_json(again)["id"], 9);
}

#[test]
fn a_child_that_is_resumed_alone_brings_its_own_updates() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let parent = bus.opens(ann, worker, "p");
    bus.sends(worker, &announces("p", "c"));
    let child = bus.sees_json(ann)["params"]["update"]["sessionId"].as_str().expect("a name").to_owned();
    bus.handles(Event::Broken(ann));
    for (session, n) in [("p", 1), ("c", 2), ("p", 3)] {
        bus.sends(worker, &update(session, &format!(r#"{{"n":{n}}}"#)));
    }
    let one = resumes(&mut bus, &child);
    assert_eq!(bus.sees_json(one)["params"]["update"]["n"], 2);
    assert_eq!(bus.sees_json(one)["id"], 9);
    let other = resumes(&mut bus, &parent);
    assert_eq!(bus.sees_json(other)["params"]["update"]["n"], 1);
    assert_eq!(bus.sees_json(other)["params"]["update"]["n"], 3);
    assert_eq!(bus.sees_json(other)["id"], 9);
    bus.sends(worker, &update("c", "{}"));
    assert_eq!(bus.sees_json(one)["params"]["sessionId"], child);
    bus.is_idle();
}

#[test]
fn lines_of_a_child_wait_until_its_parent_is_open() {
    let mut bus = TestBus::with_workers(1);
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
fn the_capabilities_of_version_two_are_part_of_a_handshake() {
    let mut bus = TestBus::with_workers(1);
    second_version(&mut bus);
    let ben = bus.client();
    bus.sends(ben, &INITIALIZE.replace(r#""y":true"#, r#""y":true,"z":1"#));
    bus.sees_error(ben, json!(0), "busy");
}

#[test]
fn a_stop_waits_for_a_turn_without_a_call_in_flight() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.asks(ann, 1, "session/prompt", &session);
    bus.answers(worker, "session/prompt", r#"{"messageId":"m"}"#);
    bus.sees_json(ann);
    bus.sends(worker, &state("s", "running"));
    bus.handles(Event::Stop);
    assert!(bus.processes[0].stdin_open, "the turn goes on");
    bus.sends(worker, &state("s", "idle"));
    assert!(!bus.processes[0].stdin_open);
    for state in ["running", "idle"] {
        assert_eq!(bus.sees_json(ann)["params"]["update"]["state"], state);
    }
}

#[test]
fn a_turn_that_outlasts_the_stop_is_ended_by_the_bus() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker, _) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.handles(Event::Stop);
    bus.advances(Duration::from_secs(600));
    assert_eq!(turn_failed(&mut bus, ann)["data"]["reason"], "stopping");
}

#[test]
fn a_turn_ends_with_its_agent() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.crashes(0);
    assert_eq!(turn_failed(&mut bus, ann)["data"]["reason"], "worker_lost");
    bus.advances(Duration::from_secs(1));
    bus.asks(ann, 1, "session/prompt", &session);
    let next = bus.worker(1);
    bus.initializes_with(next, INIT_RESULT);
    let (resume, asked) = bus.sees_request(next, "session/resume");
    assert_eq!(asked["params"], json!({"cwd":"/","sessionId":"s"}));
    bus.sends(next, &state("s", "idle"));
    assert_eq!(bus.sees_json(ann)["params"]["update"]["state"], "idle");
    bus.sends(next, &format!(r#"{{"id":{resume},"result":{{}}}}"#));
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(ann)["id"], 1);
    bus.is_idle();
}

#[test]
fn a_turn_that_goes_on_without_its_worker_is_cancelled() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.crashes(0);
    turn_failed(&mut bus, ann);
    bus.advances(Duration::from_secs(1));
    bus.asks(ann, 1, "session/prompt", &session);
    let next = bus.worker(1);
    bus.initializes_with(next, INIT_RESULT);
    let (resume, _) = bus.sees_request(next, "session/resume");
    bus.sends(next, &state("s", "running"));
    assert_eq!(bus.sees_json(ann)["params"]["update"]["state"], "running");
    bus.sends(next, &format!(r#"{{"id":{resume},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(next)["method"], "session/cancel");
    bus.sees_request(next, "session/prompt");
}

/// The bus tells the client that its turn has failed. Returns the error.
fn turn_failed(bus: &mut TestBus, client: Link) -> Value {
    let update = bus.sees_json(client)["params"]["update"].clone();
    assert_eq!(update["sessionUpdate"], "state_update");
    assert_eq!([&update["state"], &update["stopReason"]], ["idle", "error"]);
    update["error"].clone()
}

#[test]
fn a_client_that_resumes_a_session_gets_its_turn_state() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.sends(worker, &state("s", "running"));
    bus.sees_json(ann);
    bus.handles(Event::Broken(ann));
    bus.sends(worker, &state("s", "requires_action"));
    let again = bus.client();
    bus.sends(again, INITIALIZE);
    bus.sees_json(again);
    bus.asks(again, 9, "session/resume", &session);
    for _ in 0..2 {
        assert_eq!(bus.sees_json(again)["params"]["update"]["state"], "requires_action");
    }
    assert_eq!(bus.sees_json(again)["id"], 9);
}

#[test]
fn a_kept_session_is_resumed_with_a_replay_on_request() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker, session) = second_version(&mut bus);
    bus.handles(Event::Broken(ann));
    bus.sends(worker, &update("s", r#"{"n":1}"#));
    let again = bus.client();
    bus.sends(again, INITIALIZE);
    bus.sees_json(again);
    let params = format!(r#"{{"sessionId":"{session}","cwd":"/","replayFrom":{{"type":"start"}}}}"#);
    bus.sends(again, &format!(r#"{{"id":9,"method":"session/resume","params":{params}}}"#));
    bus.answers(worker, "session/close", "{}");
    let asked = bus.answers(worker, "session/resume", "{}");
    assert_eq!(asked["params"]["replayFrom"]["type"], "start");
    assert_eq!(bus.sees_json(again)["id"], 9, "the agent replays everything");
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    bus.asks(again, 1, "session/prompt", &session);
    let next = bus.worker(1);
    bus.initializes_with(next, INIT_RESULT);
    let (_, asked) = bus.sees_request(next, "session/resume");
    assert_eq!(asked["params"], json!({"cwd":"/","sessionId":"s"}), "the client has seen the replay");
}

#[test]
fn ids_of_other_sessions_are_translated_for_their_owner() {
    let mut bus = TestBus::with_workers(1);
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
    let translated = bus.sees_json(ann)["params"]["update"].clone();
    assert_eq!(translated, json!({"senderSessionId":one,"recipientSessionId":two,"x":{"sessionId":"t"}}));
    bus.sends(worker, &update("s", r#"{"background":[{"sessionId":"t"},{"sessionId":"u"}]}"#));
    let background = bus.sees_json(ann)["params"]["update"]["background"].clone();
    assert_eq!(background, json!([{"sessionId":two},{"sessionId":"u"}]), "the id of ben's session stays");
    bus.asks(ann, 1, "session/status", &one);
    bus.answers(worker, "session/status", r#"{"state":{"background":[{"sessionId":"t"}]}}"#);
    assert_eq!(bus.sees_json(ann)["result"]["state"]["background"][0]["sessionId"], two);
    bus.asks(ann, 2, "session/prompt", &one);
    let (wire, _) = bus.sees_request(worker, "session/prompt");
    let error = r#"{"code":-32002,"message":"no session s","data":{"sessionId":"s"}}"#;
    bus.sends(worker, &format!(r#"{{"id":{wire},"error":{error}}}"#));
    assert_eq!(bus.sees_json(ann)["error"]["data"]["sessionId"], one);
}
