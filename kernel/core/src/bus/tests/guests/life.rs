//! Guests where the life of a process or of the bus ends, or begins anew.

use std::time::Duration;

use serde_json::json;

use super::{INIT, shared, shared_with, user};
use crate::api::Event;
use crate::bus::tests::{TestBus, pool};
use crate::config::{Config, Limits, PoolConfig};
use crate::id::Link;
use crate::limit::WORK_PIECE;

#[test]
fn a_session_that_nobody_owns_moves_to_a_process_for_whoever_takes_it() {
    let pool = PoolConfig { share: true, max_instances: 2, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    let other = json!({"protocolVersion": 1, "clientCapabilities": {}});
    bus.sends(ben, &json!({"id": 0, "method": "initialize", "params": other}).to_string());
    let second = bus.worker(1);
    bus.initializes_with(second, INIT);
    bus.sees(ben);
    let take = json!({"id": 1, "method": "_bus/take", "params": {"session": session}}).to_string();
    bus.sends(ben, &take);
    bus.sees_error(ben, json!(1), "busy");
    bus.handles(Event::Broken(ann));
    bus.sends(ben, &take);
    bus.answers(worker, "session/close", "{}");
    bus.answers(second, "session/resume", "{}");
    assert_eq!(bus.sees_json(ben), json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    bus.prompts(ben, 2, &session, "here now");
    bus.answers(second, "session/prompt", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 2);
    bus.is_idle();
}

/// Ann has a turn, and a prompt of Ben's waits.
fn busy() -> (TestBus, Link, Link, Link, String, String) {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    bus.prompts(ann, 2, &session, "first");
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    assert_eq!(bus.hears(ben, &session), user("first"));
    bus.prompts(ben, 3, &session, "second");
    (bus, ann, ben, worker, session, turn)
}

#[test]
fn a_stop_lets_the_turns_of_all_finish() {
    let (mut bus, ann, ben, worker, session, turn) = busy();
    bus.handles(Event::Stop);
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(ann)["id"], 2);
    assert_eq!(bus.hears(ann, &session), user("second"));
    bus.answers(worker, "session/prompt", "{}");
    assert_eq!(bus.sees_json(ben)["result"], json!({}));
}

#[test]
fn a_stop_that_waits_no_longer_answers_what_runs_and_what_waits() {
    let (mut bus, ann, ben, ..) = busy();
    bus.handles(Event::Stop);
    bus.handles(Event::Stop);
    bus.sees_error(ann, json!(2), "stopping");
    bus.sees_error(ben, json!(3), "stopping");
}

#[test]
fn a_guest_that_loads_a_session_without_an_owner_owns_it() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session, "history": "none"}));
    bus.hears_event(ben, "attached");
    // The owner leaves the session by the name that the protocol proposes, and stays connected.
    bus.asks(ann, 1, "session/detach", &session);
    assert_eq!(bus.sees_json(ann), json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    assert_eq!(bus.hears_event(ben, "owner")["owner"], json!(null));
    bus.asks(ben, 2, "session/resume", &session);
    assert_eq!(bus.sees_json(ben)["id"], 2);
    bus.sends(worker, r#"{"id":3,"method":"fs/read_text_file","params":{"sessionId":"s1"}}"#);
    let (id, _) = bus.sees_request(ben, "fs/read_text_file");
    bus.sends(ben, &format!(r#"{{"id":{id},"result":{{"content":""}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 3);
    bus.asks(ann, 4, "session/prompt", &session);
    bus.sees_error(ann, json!(4), "unknown_session");
    bus.is_idle();
}

#[test]
fn agents_of_the_second_version_tell_prompts_themselves_and_turns_end_when_they_say_so() {
    let pool = PoolConfig { share: true, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let initialize =
        json!({"id": 0, "method": "initialize", "params": {"protocolVersion": 2, "capabilities": {}}});
    bus.sends(ann, &initialize.to_string());
    bus.initializes_with(
        worker,
        r#"{"protocolVersion":2,"info":{"name":"a"},"capabilities":{"session":{}}}"#,
    );
    bus.sees(ann);
    bus.sends(ben, &initialize.to_string());
    bus.sees(ben);
    let session = bus.opens(ann, worker, "s1");
    bus.attaches(ben, &json!({"session": session, "history": "none"}));
    bus.hears_event(ben, "attached");
    bus.prompts(ann, 1, &session, "first");
    bus.hears_event(ben, "turn");
    let state = |state: &str| {
        let update = json!({"sessionUpdate": "state_update", "state": state});
        json!({"method": "session/update", "params": {"sessionId": "s1", "update": update}}).to_string()
    };
    bus.sends(worker, &state("running"));
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(ann);
    bus.sees(ann);
    assert_eq!(bus.hears(ben, &session).0, "state_update", "and no prompt, which the agent tells");
    // The prompt is answered, and the turn goes on: another's waits.
    bus.prompts(ben, 2, &session, "second");
    bus.hears_event(ben, "queued");
    bus.sees_nothing(worker);
    bus.sends(worker, &state("idle"));
    bus.answers(worker, "session/prompt", "{}");
}

#[test]
fn a_question_of_an_owner_that_leaves_in_pieces_is_answered_once() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.permission(worker, 7);
    bus.sees_request(ann, "session/request_permission");
    for id in 0..3 * WORK_PIECE {
        bus.sends(ann, &format!(r#"{{"id":{id},"method":"ask"}}"#));
        bus.sees(worker);
    }
    bus.handles(Event::Broken(ann));
    assert_eq!(bus.bus.next_alarm(), Some(bus.now), "it has not let everything go");
    let joined = bus.attaches(ben, &json!({"session": session}));
    assert!(joined["owner"].is_null(), "{joined}");
    let (of_ben, _) = bus.sees_request(ben, "session/request_permission");
    let choice = r#"{"outcome":{"outcome":"selected","optionId":"yes"}}"#;
    bus.sends(ben, &format!(r#"{{"id":{of_ben},"result":{choice}}}"#));
    let answer = bus.sees_json(worker);
    assert_eq!((&answer["id"], &answer["result"]["outcome"]["optionId"]), (&json!(7), &json!("yes")));
    bus.advances(Duration::ZERO);
    bus.sees_nothing(worker);
}

#[test]
fn a_guest_that_does_not_keep_up_is_told_that_a_session_has_ended() {
    let (mut bus, ann, ben, worker, session) =
        shared_with(Limits { max_output_queue: 4096, ..Limits::default() });
    bus.attaches(ben, &json!({"session": session}));
    bus.hears_event(ben, "attached");
    bus.stops_reading(ben);
    for id in 0..40 {
        bus.sends(ben, &json!({"id": id, "method": "_bus/hello", "params": {}}).to_string());
    }
    bus.asks(ann, 1, "session/close", &session);
    bus.answers(worker, "session/close", "{}");
    bus.reads_again(ben);
    for id in 0..40 {
        assert_eq!(bus.sees_json(ben)["id"], id);
    }
    bus.hears_event(ben, "ended");
}

#[test]
fn a_guest_that_vanishes_is_named() {
    let (mut bus, _, ben, _, session) = shared();
    bus.attaches(ben, &json!({"session": "s1"}));
    let cem = bus.acp_client();
    bus.sees(cem);
    bus.sends(cem, r#"{"id":0,"method":"_bus/hello","params":{"client":"cem"}}"#);
    bus.attaches(cem, &json!({"session": "s1"}));
    bus.all_unseen(ben);
    bus.handles(Event::Broken(cem));
    let left = bus.hears_event(ben, "detached");
    assert_eq!((&left["client"], &left["session"]), (&json!("cem"), &json!(session)));
}
