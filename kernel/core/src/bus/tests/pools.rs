//! The settings of a pool: permissions, warm workers, and its size.

use std::time::Duration;

use serde_json::json;

use super::{Config, Event, Limits, PoolConfig, TestBus, pool};
use crate::config::{Permission, Program};
use crate::id::Link;

const PERMISSION_REQUEST: &str = r#"{"id":3,"method":"session/request_permission","params":{"sessionId":"s1","options":[
    {"optionId":"ra","kind":"reject_always"},{"optionId":"aa","kind":"allow_always"},
    {"optionId":"ao","kind":"allow_once"}]}}"#;

#[test]
fn the_bus_answers_permission_requests_if_the_pool_says_so() {
    for (permission, chosen) in [(Permission::Allow, "ao"), (Permission::Deny, "ra")] {
        let mut bus = TestBus::new(Config::with_pools([PoolConfig { permission, ..pool("agents", 1) }]));
        let (client, worker) = (bus.client(), bus.worker(0));
        bus.opens(client, worker, "s1");
        bus.sends(worker, &PERMISSION_REQUEST.replace('\n', ""));
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
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { warm: false, ..pool("agents", 1) }]));
    assert!(bus.processes.is_empty());
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let worker = bus.worker(0);
    bus.sees_request(worker, "m");
}

#[test]
fn new_workers_are_initialized_like_the_latest_client() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.acp_client();
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.initializes(one);
    bus.sees(client);
    bus.initializes(two);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let third = bus.worker(2);
    bus.initializes(third);
    let (pool_id, params) = bus.shell.bus.take_handshakes().expect("a new handshake").remove(0);
    assert_eq!(pool_id, "agents");
    assert!(bus.shell.bus.take_handshakes().is_none());

    let mut next = TestBus::unstarted(Config::with_pools([pool("agents", 1)]));
    next.shell.bus.remember(&pool_id, &params);
    next.act();
    let worker = next.worker(0);
    next.initializes(worker);
    let client = next.acp_client();
    assert_eq!(next.sees_json(client)["id"], 0, "at once");
    next.sees_nothing(worker);
}

#[test]
fn a_cached_handshake_that_crashes_a_worker_is_not_used_again() {
    let mut bus = TestBus::unstarted(Config::with_pools([pool("agents", 1)]));
    bus.shell.bus.remember("agents", br#"{"protocolVersion":99}"#);
    bus.act();
    let worker = bus.worker(0);
    bus.sees_request(worker, "initialize");
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.sees_nothing(next);
}

#[test]
fn a_pool_grows_when_it_is_full_and_shrinks_when_it_is_idle() {
    let idle = Some(Duration::from_secs(60));
    let growing = PoolConfig { max_instances: 2, max_sessions: 1, idle, ..pool("agents", 1) };
    let limits = Limits { session_keep: Duration::ZERO, ..Limits::default() };
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([growing]) });
    let (ann, ben, carl) = (bus.client(), bus.client(), bus.client());
    let one = bus.worker(0);
    bus.opens(ann, one, "s1");
    bus.sends(ben, r#"{"id":"open","method":"session/new","params":{}}"#);
    let two = bus.worker(1);
    bus.answers(two, "session/new", r#"{"sessionId":"s1"}"#);
    bus.sees(ben);
    bus.sends(carl, r#"{"id":1,"method":"session/new","params":{}}"#);
    bus.sees_error(carl, json!(1), "busy");
    bus.handles(Event::Broken(ben));
    bus.advances(Duration::from_secs(59));
    assert!(bus.processes[1].stdin_open);
    bus.advances(Duration::from_secs(1));
    assert!(!bus.processes[1].stdin_open && bus.processes[0].stdin_open);
    bus.handles(Event::Broken(ann));
    bus.advances(Duration::from_secs(600));
    assert!(bus.processes[0].stdin_open, "one is kept");
}

/// `initialize` of a client with one capability of this name.
fn initialize_with(capability: &str) -> String {
    let params = format!(r#"{{"protocolVersion":1,"clientCapabilities":{{"{capability}":true}}}}"#);
    format!(r#"{{"id":0,"method":"initialize","params":{params}}}"#)
}

#[test]
fn a_default_pool_has_a_process_for_each_of_eight_kinds_of_clients() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    let mut clients = vec![bus.client()];
    let first = bus.worker(0);
    bus.opens(clients[0], first, "s");
    for nth in 1..8 {
        let client = bus.client();
        bus.sends(client, &initialize_with(&format!("c{nth}")));
        let worker = bus.worker(nth);
        bus.initializes(worker);
        bus.sees(client);
        bus.opens(client, worker, "s");
        clients.push(client);
    }
    assert_eq!(bus.processes.len(), 8);
    let ninth = bus.client();
    bus.sends(ninth, &initialize_with("c8"));
    bus.sees_error(ninth, json!(0), "busy");
    for (nth, client) in clients.into_iter().enumerate() {
        let worker = bus.worker(nth);
        bus.opens(client, worker, "again");
    }
}

/// The client is initialized with this many capabilities in turn, and opens a session with each.
fn takes_kinds(bus: &mut TestBus, client: Link, count: usize) {
    for nth in 0..count {
        bus.sends(client, &initialize_with(&format!("c{nth}")));
        let worker = bus.worker(nth);
        bus.initializes(worker);
        bus.sees(client);
        bus.opens(client, worker, "s");
    }
}

#[test]
fn a_client_that_takes_process_after_process_leaves_some_for_others() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    let (greedy, modest) = (bus.client(), bus.client());
    takes_kinds(&mut bus, greedy, 6);
    bus.sends(greedy, &initialize_with("c6"));
    let error = bus.sees_error(greedy, json!(0), "busy");
    assert_eq!(error["data"]["raise"], "max_instances", "{error}");
    assert_eq!(bus.processes.len(), 6);
    // It is what it was, and goes on.
    let latest = bus.worker(5);
    bus.opens(greedy, latest, "one more");
    bus.sends(modest, &initialize_with("modest"));
    let worker = bus.worker(6);
    bus.initializes(worker);
    bus.sees(modest);
    bus.opens(modest, worker, "s");
}

#[test]
fn a_client_that_is_alone_may_have_all_processes() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    let alone = bus.client();
    takes_kinds(&mut bus, alone, 8);
    bus.sends(alone, &initialize_with("c8"));
    bus.sees_error(alone, json!(0), "busy");
}

#[test]
fn a_process_that_can_be_freed_is_left_to_others_as_well() {
    let two = PoolConfig { max_instances: 2, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([two]));
    let (greedy, modest) = (bus.client(), bus.client());
    bus.sends(modest, &initialize_with("modest"));
    let (first, id) = (bus.worker(0), json!(0));
    bus.initializes(first);
    bus.sees(modest);
    bus.sends(greedy, &initialize_with("c0"));
    let second = bus.worker(1);
    bus.initializes(second);
    bus.sees(greedy);
    bus.opens(greedy, second, "s");
    bus.sends(greedy, &initialize_with("c1"));
    bus.sees_error(greedy, id, "busy");
    assert!(bus.processes[0].stdin_open, "it has no work, and is for whoever comes");
    bus.opens(modest, first, "s");
}

#[test]
fn a_process_whose_clients_have_left_is_left_to_others_as_well() {
    let two = PoolConfig { max_instances: 2, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([two]));
    let (gone, greedy, modest) = (bus.client(), bus.client(), bus.client());
    for (nth, client) in [gone, greedy].into_iter().enumerate() {
        bus.sends(client, &initialize_with(&format!("c{nth}")));
        let worker = bus.worker(nth);
        bus.initializes(worker);
        bus.sees(client);
        bus.opens(client, worker, &format!("s{nth}"));
    }
    bus.handles(Event::Broken(gone));
    // Its session is kept, and its process would do for this one.
    bus.sends(greedy, &initialize_with("c0"));
    bus.sees_error(greedy, json!(0), "busy");
    bus.sends(modest, &initialize_with("modest"));
    assert!(!bus.processes[0].stdin_open, "it is replaced");
}

#[test]
fn a_pool_that_cannot_be_started_does_not_try_with_more_processes() {
    let mut bus = TestBus::unstarted(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    bus.shell.can_spawn = false;
    bus.act();
    let client = bus.client();
    for id in 0..10 {
        bus.sends(client, &format!(r#"{{"id":{id},"method":"work","params":{{}}}}"#));
        bus.sees_error(client, json!(id), "pool_down");
    }
    bus.sends(client, r#"{"id":"status","method":"_bus/status"}"#);
    let workers = bus.sees_json(client)["result"]["pools"][0]["workers"].as_array().map(Vec::len);
    assert_eq!(workers, Some(1));
}

#[test]
fn what_was_started_for_a_guest_goes_five_minutes_after_its_last_session() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let one = bus.worker(0);
    bus.initializes(one);
    bus.sees(ann);
    bus.opens(ann, one, "a");
    bus.sends(ben, &initialize_with("b"));
    let two = bus.worker(1);
    bus.initializes(two);
    bus.sees(ben);
    bus.opens(ben, two, "b");
    bus.handles(Event::Broken(ben));
    // His session is kept for five minutes, and after that the process for another five.
    bus.advances(Duration::from_secs(300));
    bus.answers(two, "session/close", "{}");
    bus.advances(Duration::from_secs(299));
    assert!(bus.processes[1].stdin_open);
    bus.advances(Duration::from_secs(1));
    assert!(!bus.processes[1].stdin_open && bus.processes[0].stdin_open);
}

#[test]
fn a_process_above_instances_that_crashed_under_its_guest_is_not_kept_for_ever() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let one = bus.worker(0);
    bus.initializes(one);
    bus.sees(ann);
    bus.opens(ann, one, "a");
    bus.sends(ben, r#"{"id":1,"method":"work","params":{}}"#);
    let two = bus.worker(1);
    bus.sees_request(two, "work");
    bus.crashes(1);
    bus.sees_error(ben, json!(1), "worker_lost");
    bus.advances(Duration::from_secs(1));
    let again = bus.worker(2);
    bus.initializes(again);
    bus.advances(Duration::from_secs(600));
    assert!(!bus.processes[2].stdin_open && bus.processes[0].stdin_open);
}

#[test]
fn requests_without_a_session_set_one_idle_alarm_and_begin_the_idle_time_anew() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let one = bus.worker(0);
    bus.initializes(one);
    bus.sees(ann);
    bus.opens(ann, one, "a");
    bus.sends(ben, &initialize_with("b"));
    let two = bus.worker(1);
    bus.initializes(two);
    bus.sees(ben);
    for id in 1..100 {
        bus.advances(Duration::from_secs(100));
        bus.sends(ben, &format!(r#"{{"id":{id},"method":"work","params":{{}}}}"#));
        bus.answers(two, "work", "{}");
        bus.sees(ben);
    }
    assert!(bus.processes[1].stdin_open, "it has had something to do every now and then");
    bus.advances(Duration::from_secs(300));
    assert!(!bus.processes[1].stdin_open);
    assert_eq!(bus.bus.next_alarm().map(|at| at > bus.now), Some(true));
}

#[test]
fn a_connected_client_comes_before_kept_sessions() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    let first = bus.worker(0);
    bus.initializes(first);
    bus.sees(ann);
    bus.opens(ann, first, "s1");
    bus.handles(Event::Broken(ann));
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"initialize","params":{"protocolVersion":1}}"#);
    assert!(!bus.processes[0].stdin_open, "its only session has no client");
    bus.crashes(0);
    let second = bus.worker(1);
    bus.initializes(second);
    assert_eq!(bus.sees_json(ben)["id"], 1);
}

#[test]
fn a_kept_session_makes_room_for_a_new_one() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { max_sessions: 2, ..pool("agents", 1) }]));
    let (ann, ben, carl, worker) = (bus.client(), bus.client(), bus.client(), bus.worker(0));
    bus.opens(ann, worker, "a");
    bus.opens(ben, worker, "b");
    bus.handles(Event::Broken(ann));
    bus.sends(carl, r#"{"id":1,"method":"session/new","params":{}}"#);
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    bus.answers(worker, "session/new", r#"{"sessionId":"c"}"#);
    bus.sees(carl);
    bus.sends(carl, r#"{"id":2,"method":"session/new","params":{}}"#);
    bus.sees_error(carl, json!(2), "busy");
}

#[test]
fn a_worker_that_is_only_warming_up_is_not_busy_for_another_handshake() {
    let mut bus = TestBus::unstarted(Config::with_pools([pool("agents", 1)]));
    bus.shell.bus.remember("agents", br#"{"protocolVersion":1}"#);
    bus.act();
    let worker = bus.worker(0);
    bus.sees_request(worker, "initialize");
    let client = bus.acp_client();
    bus.sees_nothing(client);
    bus.crashes(0);
    let next = bus.worker(1);
    bus.initializes(next);
    assert_eq!(bus.sees_json(client)["id"], 0);
    bus.is_idle();
}
