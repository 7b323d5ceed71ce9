//! What a pool declares: permissions, warm workers, how it grows and shrinks.

use std::time::Duration;

use serde_json::json;

use super::{Event, Limits, TestBus, config, pool};
use crate::config::Permission;

const ASKS: &str = r#"{"id":3,"method":"session/request_permission","params":{"sessionId":"s1","options":[
    {"optionId":"ra","kind":"reject_always"},{"optionId":"aa","kind":"allow_always"},
    {"optionId":"ao","kind":"allow_once"}]}}"#;

#[test]
fn the_bus_answers_permissions_where_the_pool_says_so() {
    for (permission, chosen) in [(Permission::Allow, "ao"), (Permission::Deny, "ra")] {
        let mut of = pool("agents", 1);
        of.permission = permission;
        let mut bus = TestBus::of(config(vec![of], Limits::default()));
        let (client, worker) = (bus.client(), bus.worker(0));
        bus.opens(client, worker, "s1");
        bus.sends(worker, &ASKS.replace('\n', ""));
        assert_eq!(
            bus.sees_json(worker)["result"],
            json!({"outcome":{"outcome":"selected","optionId":chosen}})
        );
        bus.sees_nothing(client);
        bus.sends(
            worker,
            r#"{"id":4,"method":"session/request_permission","params":{"sessionId":"s1","options":[]}}"#,
        );
        bus.sees_request(client, "session/request_permission");
    }
}

#[test]
fn a_cold_pool_starts_when_it_is_needed() {
    let mut of = pool("agents", 1);
    of.warm = false;
    let mut bus = TestBus::of(config(vec![of], Limits::default()));
    assert!(bus.processes.is_empty());
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let worker = bus.worker(0);
    bus.sees_request(worker, "m");
}

#[test]
fn fresh_workers_are_initialized_as_the_newest_client_did() {
    let mut bus = TestBus::with(2);
    let client = bus.acp_client();
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.greets(one);
    bus.sees(client);
    bus.greets(two);
    bus.crashes(0);
    bus.passes(Duration::from_secs(1));
    let third = bus.worker(2);
    bus.greets(third);
    let (pool, params) = bus.bus.take_handshakes().expect("news").remove(0);
    assert_eq!(pool, "agents");
    assert!(bus.bus.take_handshakes().is_none());

    let mut next = TestBus::unstarted(config(vec![super::pool("agents", 1)], Limits::default()));
    next.bus.remember(&pool, &params);
    next.act();
    let worker = next.worker(0);
    next.greets(worker);
    let client = next.acp_client();
    assert_eq!(next.sees_json(client)["id"], 0, "at once");
    next.sees_nothing(worker);
}

#[test]
fn a_handshake_that_kills_is_not_tried_ahead_again() {
    let mut bus = TestBus::unstarted(config(vec![pool("agents", 1)], Limits::default()));
    bus.bus.remember("agents", br#"{"protocolVersion":99}"#);
    bus.act();
    let worker = bus.worker(0);
    bus.sees_request(worker, "initialize");
    bus.crashes(0);
    bus.passes(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.sees_nothing(next);
}

#[test]
fn a_pool_grows_when_it_is_full_and_shrinks_when_it_is_idle() {
    let mut of = pool("agents", 1);
    (of.max_instances, of.max_sessions, of.idle) = (2, 1, Some(Duration::from_secs(60)));
    let mut bus = TestBus::of(config(vec![of], Limits { session_keep: Duration::ZERO, ..Limits::default() }));
    let (ann, ben, carl) = (bus.client(), bus.client(), bus.client());
    let one = bus.worker(0);
    bus.opens(ann, one, "s1");
    bus.sends(ben, r#"{"id":"open","method":"session/new","params":{}}"#);
    let two = bus.worker(1);
    bus.answers(two, "session/new", r#"{"sessionId":"s1"}"#);
    bus.sees(ben);
    bus.sends(carl, r#"{"id":1,"method":"session/new","params":{}}"#);
    bus.sees_error(carl, json!(1), "busy");
    bus.happens(Event::Broken(ben));
    bus.passes(Duration::from_secs(59));
    assert!(bus.processes[1].stdin_open);
    bus.passes(Duration::from_secs(1));
    assert!(!bus.processes[1].stdin_open && bus.processes[0].stdin_open);
    bus.happens(Event::Broken(ann));
    bus.passes(Duration::from_secs(600));
    assert!(bus.processes[0].stdin_open, "one is kept");
}

#[test]
fn those_who_are_here_come_before_those_who_may_come_back() {
    let mut bus = TestBus::with(1);
    let ann = bus.acp_client();
    let first = bus.worker(0);
    bus.greets(first);
    bus.sees(ann);
    bus.opens(ann, first, "s1");
    bus.happens(Event::Broken(ann));
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"initialize","params":{"protocolVersion":1}}"#);
    assert!(!bus.processes[0].stdin_open, "its only session was left behind");
    bus.crashes(0);
    let second = bus.worker(1);
    bus.greets(second);
    assert_eq!(bus.sees_json(ben)["id"], 1);
    bus.bus.check_invariants();
}

#[test]
fn a_session_that_was_left_makes_room_for_a_new_one() {
    let mut of = pool("agents", 1);
    of.max_sessions = 2;
    let mut bus = TestBus::of(config(vec![of], Limits::default()));
    let (ann, ben, carl, worker) = (bus.client(), bus.client(), bus.client(), bus.worker(0));
    bus.opens(ann, worker, "a");
    bus.opens(ben, worker, "b");
    bus.happens(Event::Broken(ann));
    bus.sends(carl, r#"{"id":1,"method":"session/new","params":{}}"#);
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    bus.answers(worker, "session/new", r#"{"sessionId":"c"}"#);
    bus.sees(carl);
    bus.sends(carl, r#"{"id":2,"method":"session/new","params":{}}"#);
    bus.sees_error(carl, json!(2), "busy");
}

#[test]
fn a_client_of_another_kind_does_not_find_a_worker_that_is_only_warming_up_busy() {
    let mut bus = TestBus::unstarted(config(vec![pool("agents", 1)], Limits::default()));
    bus.bus.remember("agents", br#"{"protocolVersion":1}"#);
    bus.act();
    let worker = bus.worker(0);
    bus.sees_request(worker, "initialize");
    let client = bus.acp_client();
    bus.sees_nothing(client);
    bus.crashes(0);
    let next = bus.worker(1);
    bus.greets(next);
    assert_eq!(bus.sees_json(client)["id"], 0);
    bus.is_idle();
}
