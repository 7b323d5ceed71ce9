//! Stories of processes that are replaced on purpose: `_bus/restart` and `_bus/drain`.

use serde_json::{Value, json};

use super::*;

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
