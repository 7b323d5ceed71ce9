//! Guests where the life of a process or of the bus ends, or begins anew.

use serde_json::json;

use super::{INIT, shared, user};
use crate::api::Event;
use crate::bus::tests::{TestBus, pool};
use crate::config::{Config, PoolConfig};
use crate::id::Link;

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
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
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
