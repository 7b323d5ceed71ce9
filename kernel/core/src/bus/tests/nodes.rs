//! Buses with names, and pools whose workers are on other machines.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Link, TestBus, pool};

const LOADS: &str = r#"{"agentCapabilities":{"loadSession":true}}"#;

fn named(name: &str) -> Config {
    Config { name: Some(name.into()), ..Config::with_pools([pool("agents", 1)]) }
}

#[test]
fn the_ids_of_a_bus_with_a_name_begin_with_it() {
    let mut bus = TestBus::new(named("n17"));
    let client = bus.client();
    let session = bus.opens(client, bus.worker(0), "s1");
    assert!(session.starts_with("n17~") && session.ends_with(".s1"), "{session}");
    bus.asks(client, 1, "session/prompt", &session);
    let request = bus.answers(bus.worker(0), "session/prompt", "{}");
    assert_eq!(request["params"]["sessionId"], "s1");
    bus.sees(client);
    bus.sends(bus.worker(0), r#"{"method":"session/update","params":{"sessionId":"s1"}}"#);
    assert_eq!(bus.sees_json(client)["params"]["sessionId"], session);
    assert_eq!(bus.asks_bus(client, "_bus/status")["name"], "n17");
    bus.is_idle();
}

#[test]
fn an_id_finds_its_session_after_a_restart_whatever_the_bus_was_called() {
    let ids = ["n17~abcdefghijklm.s1", "abcdefghijklm.s1", "old~abcdefghijklm.s1", "s1"];
    for id in ids {
        let mut bus = TestBus::new(named("n17"));
        let client = bus.acp_client();
        bus.initializes_with(bus.worker(0), LOADS);
        bus.sees(client);
        bus.asks(client, 1, "session/load", id);
        let load = bus.answers(bus.worker(0), "session/load", "{}");
        assert_eq!(load["params"]["sessionId"], "s1");
        bus.sees(client);
        bus.asks(client, 2, "session/prompt", id);
        bus.answers(bus.worker(0), "session/prompt", "{}");
        assert_eq!(bus.sees_json(client)["id"], 2);
        bus.is_idle();
    }
}

#[test]
fn the_ids_of_buses_behind_each_other_lose_one_name_at_a_time() {
    let mut bus = TestBus::new(named("e1"));
    let client = bus.acp_client();
    bus.initializes_with(bus.worker(0), LOADS);
    bus.sees(client);
    let inner = "n17~abcdefghijklm.m1~abcdefghijklm.s1";
    bus.asks(client, 1, "session/load", &format!("e1~abcdefghijklm.{inner}"));
    assert_eq!(bus.answers(bus.worker(0), "session/load", "{}")["params"]["sessionId"], inner);
    bus.sees(client);
    bus.is_idle();
}

#[test]
fn a_reload_does_not_rename_the_bus() {
    let mut bus = TestBus::new(named("n17"));
    bus.reloads(&named("n18"));
    let client = bus.client();
    let session = bus.opens(client, bus.worker(0), "s1");
    assert!(session.starts_with("n17~"), "{session}");
}

impl TestBus {
    fn tells(&mut self, worker: Link, params: &str) {
        self.sends(worker, &format!(r#"{{"jsonrpc":"2.0","method":"_bus/worker","params":{params}}}"#));
    }

    /// What `_bus/status` shows of the nth worker of the first pool.
    fn shows_worker(&mut self, client: Link, nth: usize) -> Value {
        self.asks_bus(client, "_bus/status")["pools"][0]["workers"][nth].clone()
    }

    fn wants_session(&mut self, client: Link, id: u32) {
        self.sends(client, &format!(r#"{{"id":{id},"method":"session/new","params":{{"cwd":"/"}}}}"#));
    }
}

#[test]
fn a_worker_that_tells_its_room_gets_no_more_sessions_than_that() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "s0");
    bus.tells(worker, r#"{"node":"n17","room":2}"#);
    let shown = bus.shows_worker(client, 0);
    assert_eq!((&shown["node"], &shown["room"], &shown["drain"]), (&json!("n17"), &json!(2), &json!(false)));
    let second = bus.opens(client, worker, "s1");
    bus.opens(client, worker, "s2");
    bus.wants_session(client, 3);
    let error = bus.sees_error(client, json!(3), "busy");
    assert!(error["message"].as_str().unwrap().contains("has no room"), "{error}");
    // A session that ends leaves its place, and null means as many as the pool says.
    bus.asks(client, 4, "session/close", &second);
    bus.answers(worker, "session/close", "{}");
    bus.sees(client);
    bus.opens(client, worker, "s3");
    bus.tells(worker, r#"{"room":null}"#);
    assert_eq!(bus.shows_worker(client, 0)["room"], 61);
    bus.opens(client, worker, "s4");
    bus.is_idle();
}

#[test]
fn a_new_session_goes_where_the_most_room_is() {
    let mut bus = TestBus::with_workers(3);
    let client = bus.client();
    let workers = [0, 1, 2].map(|nth| bus.worker(nth));
    for (worker, room) in workers.into_iter().zip([1, 5, 3]) {
        bus.tells(worker, &format!(r#"{{"room":{room}}}"#));
    }
    let mut taken = [0; 3];
    for name in 'a'..='i' {
        bus.wants_session(client, 1);
        let at = workers.iter().position(|it| bus.unseen.get(it).is_some_and(|lines| !lines.is_empty()));
        let at = at.expect("somebody is asked");
        bus.answers(workers[at], "session/new", &format!(r#"{{"sessionId":"{name}"}}"#));
        bus.sees(client);
        taken[at] += 1;
        let room = |at: usize| [1, 5, 3][at] - taken[at];
        assert!((0..3).all(|other| room(other) <= room(at) + 1), "{taken:?}");
    }
    assert_eq!(taken, [1, 5, 3]);
    bus.wants_session(client, 1);
    bus.sees_error(client, json!(1), "busy");
    bus.is_idle();
}

#[test]
fn a_worker_that_drains_keeps_its_sessions_and_gets_no_new_one() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.client();
    let (one, two) = (bus.worker(0), bus.worker(1));
    let session = bus.opens(client, one, "s0");
    bus.tells(one, r#"{"drain":true}"#);
    assert_eq!(bus.shows_worker(client, 0)["state"], "draining");
    for name in ["s1", "s2", "s3"] {
        bus.opens(client, two, name);
    }
    bus.asks(client, 1, "session/fork", &session);
    bus.sees_error(client, json!(1), "busy");
    bus.asks(client, 2, "session/prompt", &session);
    bus.answers(one, "session/prompt", "{}");
    bus.sees(client);
    bus.tells(one, r#"{"drain":false}"#);
    bus.opens(client, one, "s4");
    bus.is_idle();
}

#[test]
fn a_worker_that_drains_and_has_no_session_is_replaced_but_not_at_once_after_its_start() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.tells(worker, r#"{"drain":true}"#);
    bus.wants_session(client, 1);
    bus.sees_error(client, json!(1), "busy");
    bus.advances(Duration::from_secs(4));
    assert!(bus.processes[0].stdin_open);
    bus.advances(Duration::from_secs(2));
    assert!(!bus.processes[0].stdin_open);
    bus.crashes(0);
    let next = bus.worker(1);
    bus.opens(client, next, "s1");
    assert_eq!(bus.shows_worker(client, 0)["last_recycled"], "drained");
    bus.is_idle();
}

#[test]
fn nothing_that_a_worker_tells_of_itself_does_harm_or_reaches_a_client() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(client, worker, "s0");
    let long = "n".repeat(5000);
    for params in [
        r#"{"sessionId":"s0","room":1e400}"#,
        r#"{"room":-1}"#,
        r#"{"room":1.5}"#,
        r#"{"room":"7"}"#,
        r#"{"drain":"yes","node":{}}"#,
        r#"{"node":"not a name"}"#,
        r#"{"node":"n~1","node":"n2"}"#,
        "[1,2]",
        "null",
        &format!(r#"{{"node":"n1","x":"{long}"}}"#),
    ] {
        bus.tells(worker, params);
    }
    let shown = bus.shows_worker(client, 0);
    assert_eq!((&shown["node"], &shown["room"], &shown["drain"]), (&json!(null), &json!(63), &json!(false)));
    bus.tells(worker, r#"{"sessionId":"s0","node":"n1","room":18446744073709551615}"#);
    bus.tells(worker, r#"{"node":"n2"}"#);
    let shown = bus.shows_worker(client, 0);
    assert_eq!((&shown["node"], &shown["room"]), (&json!("n1"), &json!(1 << 20)));
    bus.sends(worker, r#"{"id":1,"method":"_bus/worker","params":{"sessionId":"s0"}}"#);
    bus.sees_error(worker, json!(1), "invalid");
    bus.sees_nothing(client);
    bus.asks(client, 2, "session/prompt", &session);
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(client);
    bus.is_idle();
}

#[test]
fn what_a_process_tells_of_itself_ends_with_it() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    bus.tells(bus.worker(0), r#"{"node":"n17","room":0,"drain":true}"#);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let shown = bus.shows_worker(client, 0);
    assert_eq!((&shown["node"], &shown["room"], &shown["drain"]), (&json!(null), &json!(64), &json!(false)));
    bus.opens(client, bus.worker(1), "s1");
    bus.is_idle();
}
