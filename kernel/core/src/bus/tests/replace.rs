//! Stories of processes that are replaced on purpose: `_bus/restart` and `_bus/drain`.

use serde_json::{Value, json};

use super::*;
use crate::limit::HAND_OVER_PIECE;

const INIT: &str = concat!(
    r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"#,
    r#""sessionCapabilities":{"close":{},"resume":{}}}}"#
);

/// A bus with one process, and a session there.
fn open(init: &str) -> (TestBus, Link, Link, String) {
    let pool = PoolConfig { share: true, max_instances: 4, ..pool("a", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, init);
    bus.sees(client);
    let session = bus.opens(client, worker, "s1");
    (bus, client, worker, session)
}

impl TestBus {
    fn replaces(&mut self, method: &str, params: Value) -> Value {
        let operator = self.client();
        self.sends(operator, &json!({ "id": 1, "method": method, "params": params }).to_string());
        self.sees_json(operator)
    }

    fn sessions_now(&mut self) -> Vec<Value> {
        let operator = self.client();
        self.sends(operator, r#"{"id":1,"method":"_bus/sessions"}"#);
        self.sees_json(operator)["result"]["sessions"].as_array().cloned().unwrap_or_default()
    }

    fn workers_of_sessions(&mut self) -> Vec<Value> {
        self.sessions_now().iter().map(|session| session["worker"].clone()).collect()
    }

    fn states(&mut self) -> Vec<Value> {
        let operator = self.client();
        self.sends(operator, r#"{"id":1,"method":"_bus/status"}"#);
        let status = self.sees_json(operator)["result"].clone();
        let workers = status["pools"][0]["workers"].as_array().cloned().unwrap_or_default();
        workers.into_iter().map(|worker| worker["state"].clone()).collect()
    }
}

#[test]
fn an_idle_session_goes_on_in_the_new_process() {
    for method in ["_bus/restart", "_bus/drain"] {
        let (mut bus, client, worker, session) = open(INIT);
        let answer = bus.replaces(method, json!({ "pool": "a" }));
        assert_eq!(answer["result"]["workers"], json!([{ "worker": 0, "pid": 1, "sessions": 1 }]));
        bus.answers(worker, "session/close", "{}");
        assert!(!bus.processes[0].stdin_open, "it may go");
        let id = bus.processes[0].worker;
        bus.handles(Event::Exited { worker: id, exit: Exit::Code(0) });
        let fresh = bus.worker(1);
        bus.initializes_with(fresh, INIT);
        let session_now = bus.sessions_now()[0].clone();
        assert_eq!((&session_now["pool"], &session_now["state"]), (&json!("a"), &json!("moved")));
        bus.asks(client, 2, "session/prompt", &session);
        bus.answers(fresh, "session/resume", "{}");
        bus.answers(fresh, "session/prompt", "{}");
        assert_eq!(bus.sees_json(client)["id"], 2);
        assert_eq!(bus.states(), [json!("up")]);
        bus.is_idle();
    }
}

#[test]
fn a_turn_is_waited_for_and_nobody_new_comes_to_the_old_process() {
    let (mut bus, client, worker, session) = open(INIT);
    bus.asks(client, 2, "session/prompt", &session);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.replaces("_bus/drain", json!({ "pool": "a", "worker": 0 }));
    let fresh = bus.worker(1);
    bus.initializes_with(fresh, INIT);
    bus.opens(client, fresh, "s2");
    assert_eq!(bus.states(), [json!("retiring"), json!("up")]);
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.answers(worker, "session/close", "{}");
    assert!(!bus.processes[0].stdin_open, "nothing is left there");
}

#[test]
fn a_restart_does_not_wait_for_ever_and_a_drain_does() {
    for (method, ends) in [("_bus/restart", true), ("_bus/drain", false)] {
        // This agent can open nothing again, so its session stays.
        let (mut bus, _client, _worker, _session) = open(r#"{"protocolVersion":1}"#);
        bus.replaces(method, json!({ "pool": "a" }));
        assert!(bus.processes[0].stdin_open, "it has a session");
        bus.advances(Limits::default().drain_timeout);
        assert_eq!(!bus.processes[0].stdin_open, ends, "{method}");
    }
}

#[test]
fn a_turn_that_takes_too_long_is_lost_and_its_session_goes_on() {
    let (mut bus, client, worker, session) = open(INIT);
    bus.asks(client, 2, "session/prompt", &session);
    bus.sees_request(worker, "session/prompt");
    bus.replaces("_bus/restart", json!({ "pool": "a" }));
    let fresh = bus.worker(1);
    bus.initializes_with(fresh, INIT);
    bus.advances(Limits::default().drain_timeout);
    let error = bus.sees_error(client, json!(2), "worker_lost");
    assert_eq!(error["message"], "the worker a/0 was restarted before it answered");
    // The old process may take its time to end, and hears nothing more.
    bus.asks(client, 3, "session/prompt", &session);
    bus.answers(fresh, "session/resume", "{}");
    bus.answers(fresh, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 3);
    bus.is_idle();
}

#[test]
fn who_asks_for_it_now_waits_for_no_turn_and_for_no_session() {
    for method in ["_bus/restart", "_bus/drain"] {
        // The second one was asked before to leave when it can.
        for asked_before in [None, Some("_bus/restart"), Some("_bus/drain")] {
            let (mut bus, client, worker, session) = open(INIT);
            bus.asks(client, 2, "session/prompt", &session);
            bus.sees_request(worker, "session/prompt");
            if let Some(before) = asked_before {
                bus.replaces(before, json!({ "pool": "a" }));
            }
            let answer = bus.replaces(method, json!({ "pool": "a", "worker": 0, "now": true }));
            assert_eq!(answer["result"]["workers"], json!([{ "worker": 0, "pid": 1, "sessions": 1 }]));
            bus.advances(Duration::ZERO);
            bus.sees_error(client, json!(2), "worker_lost");
            assert!(!bus.processes[0].stdin_open, "{method} after {asked_before:?}");
            let fresh = bus.worker(1);
            bus.initializes_with(fresh, INIT);
            bus.asks(client, 3, "session/prompt", &session);
            bus.answers(fresh, "session/resume", "{}");
            bus.answers(fresh, "session/prompt", "{}");
            assert_eq!(bus.sees_json(client)["id"], 3);
        }
    }
}

#[test]
fn processes_that_are_restarted_now_leave_one_after_the_other() {
    let mut bus = TestBus::new(Config::with_pools([pool("a", 2)]));
    let client = bus.client();
    for id in 0..2 {
        bus.sends(client, &json!({ "id": id, "method": "work" }).to_string());
    }
    bus.replaces("_bus/restart", json!({ "pool": "a", "now": true }));
    for nth in 0..2 {
        bus.advances(Duration::ZERO);
        let ended = bus.processes.iter().filter(|process| !process.stdin_open).count();
        assert_eq!(ended, nth + 1);
        let id = bus.processes[nth].worker;
        bus.handles(Event::Exited { worker: id, exit: Exit::Code(0) });
    }
    for id in 0..2 {
        bus.sees_error(client, json!(id), "worker_lost");
    }
}

#[test]
fn a_status_tells_until_when_a_process_leaves_and_sessions_whether_they_can_move() {
    for (init, movable) in [(INIT, true), (r#"{"protocolVersion":1}"#, false)] {
        let (mut bus, client, worker, session) = open(init);
        assert_eq!(bus.sessions_now()[0]["movable"], movable);
        bus.asks(client, 2, "session/prompt", &session);
        bus.sees_request(worker, "session/prompt");
        bus.replaces("_bus/restart", json!({ "pool": "a" }));
        bus.advances(Duration::from_secs(10));
        let operator = bus.client();
        let status = bus.asks_for(operator, "_bus/status", json!({}))["result"].clone();
        let workers = &status["pools"][0]["workers"];
        let limit = Limits::default().drain_timeout.as_secs();
        assert_eq!(
            (&workers[0]["state"], &workers[0]["leaves_in_sec"]),
            (&json!("retiring"), &json!(limit - 10))
        );
        assert_eq!(workers[1]["leaves_in_sec"], Value::Null);
    }
}

#[test]
fn who_waits_for_the_next_process_of_a_worker_goes_on_to_wait() {
    let (mut bus, client, _, session) = open(INIT);
    bus.crashes(0);
    bus.asks(client, 2, "session/prompt", &session);
    let answer = bus.replaces("_bus/restart", json!({ "pool": "a" }));
    assert_eq!(answer["result"]["workers"], json!([]));
    bus.advances(std::time::Duration::from_secs(1));
    let next = bus.worker(1);
    bus.initializes_with(next, INIT);
    bus.answers(next, "session/resume", "{}");
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.is_idle();
}

#[test]
fn processes_are_restarted_one_after_the_other() {
    let mut bus = TestBus::new(Config::with_pools([pool("a", 2)]));
    bus.replaces("_bus/restart", json!({ "pool": "a" }));
    for nth in 0..2 {
        let closed: Vec<bool> = bus.processes.iter().map(|process| !process.stdin_open).collect();
        assert_eq!(closed.iter().filter(|closed| **closed).count(), nth + 1, "{closed:?}");
        let id = bus.processes[nth].worker;
        bus.handles(Event::Exited { worker: id, exit: Exit::Code(0) });
    }
    assert_eq!(bus.processes.len(), 4);
    assert_eq!(bus.states(), [json!("up"), json!("up")]);
}

#[test]
fn a_worker_without_a_process_does_not_hurry_the_others() {
    let mut bus = TestBus::new(Config::with_pools([pool("a", 3)]));
    bus.crashes(0);
    bus.replaces("_bus/restart", json!({ "pool": "a" }));
    let is_open = |nth: usize| bus.processes[nth].stdin_open;
    assert_eq!((is_open(1), is_open(2)), (false, true));
}

#[test]
fn an_agent_that_cannot_close_leaves_with_all_its_sessions() {
    let (mut bus, client, worker, first) =
        open(r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}"#);
    bus.opens(client, worker, "s2");
    bus.asks(client, 2, "session/prompt", &first);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.replaces("_bus/drain", json!({ "pool": "a" }));
    let workers = bus.workers_of_sessions();
    assert_eq!(workers, [json!(0), json!(0)], "the other one could be open in two processes");
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    assert!(!bus.processes[0].stdin_open, "both have left it");
    assert_eq!(bus.workers_of_sessions(), [Value::Null, Value::Null]);
}

#[test]
fn a_drain_does_not_wait_for_a_restart() {
    let mut bus = TestBus::new(Config::with_pools([pool("a", 1), pool("b", 1)]));
    bus.replaces("_bus/restart", json!({ "pool": "a" }));
    bus.replaces("_bus/drain", json!({ "pool": "b" }));
    assert!(bus.processes.iter().take(2).all(|process| !process.stdin_open));
}

#[test]
fn what_is_not_there_cannot_be_replaced() {
    let mut bus = TestBus::with_workers(1);
    for (params, reason) in [
        (json!({ "pool": "no" }), "unknown_pool"),
        (json!({ "pool": "agents", "worker": 7 }), "invalid"),
        (json!({}), "invalid"),
    ] {
        assert_eq!(bus.replaces("_bus/restart", params)["error"]["data"]["reason"], reason);
    }
}

#[test]
fn many_sessions_leave_in_pieces_and_those_that_rest_later_follow() {
    let pool = PoolConfig { max_sessions: 10_000, max_instances: 4, ..pool("a", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, INIT);
    bus.sees(client);
    let sessions: Vec<_> =
        (0..4 * HAND_OVER_PIECE).map(|nth| bus.opens(client, worker, &format!("s{nth}"))).collect();
    bus.asks(client, 2, "session/prompt", &sessions[7]);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.replaces("_bus/drain", json!({ "pool": "a", "worker": 0 }));
    let closings = |bus: &mut TestBus| std::mem::take(bus.unseen.entry(worker).or_default()).len();
    let first = closings(&mut bus);
    assert!(0 < first && first < sessions.len() - HAND_OVER_PIECE, "the rest waits: {first}");
    bus.advances(Duration::ZERO);
    assert_eq!(first + closings(&mut bus), sessions.len() - 1, "all but the session that has a turn");
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    assert_eq!(closings(&mut bus), 1, "its turn has ended");
}

#[test]
fn a_worker_that_leaves_with_many_busy_sessions_looks_at_them_now_and_then() {
    let pool = PoolConfig { max_sessions: 10_000, max_instances: 4, ..pool("a", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, INIT);
    bus.sees(client);
    let mut turns = Vec::new();
    for nth in 0..HAND_OVER_PIECE + 1 {
        let session = bus.opens(client, worker, &format!("s{nth}"));
        bus.asks(client, 2, "session/prompt", &session);
        turns.push(bus.sees_request(worker, "session/prompt").0);
    }
    bus.replaces("_bus/drain", json!({ "pool": "a", "worker": 0 }));
    bus.advances(Duration::ZERO);
    for turn in &turns[..10] {
        bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    }
    bus.sees_nothing(worker);
    bus.advances(Duration::from_millis(100));
    assert_eq!(bus.unseen[&worker].len(), 10, "they are asked to be closed together");
}
