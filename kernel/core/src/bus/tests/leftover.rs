//! Long work is done in pieces, and others are served in between.

use std::time::Duration;

use serde_json::json;

use super::{Config, Event, Link, PoolConfig, TestBus, limited, pool};
use crate::config::Limits;
use crate::limit::{PENDING_REQUESTS, WORK_PIECE};

impl TestBus {
    fn asks_often(&mut self, client: Link, count: usize) {
        for id in 0..count {
            self.sends(client, &format!(r#"{{"id":{id},"method":"ask"}}"#));
        }
    }

    fn is_work_left(&self) -> bool {
        self.bus.next_alarm() == Some(self.now)
    }

    /// How many sessions `_bus/status` counts.
    fn sessions(&mut self, client: Link) -> u64 {
        self.sends(client, r#"{"id":"count","method":"_bus/status"}"#);
        self.sees_json(client)["result"]["sessions"].as_u64().expect("a number")
    }
}

#[test]
fn the_labels_of_a_client_that_has_left_go_in_pieces() {
    let mut bus = TestBus::with_workers(1);
    let (greedy, modest, worker) = (bus.client(), bus.client(), bus.worker(0));
    for nth in 0..3 * WORK_PIECE {
        bus.sends(greedy, &format!(r#"{{"method":"note","sessionId":"label {nth}"}}"#));
        bus.sees(worker);
    }
    bus.handles(Event::Broken(greedy));
    assert!(bus.is_work_left() && bus.is_closed(greedy));
    let left = bus.sessions(modest);
    assert!(left > 0 && left < 3 * WORK_PIECE as u64, "{left}");
    bus.sends(modest, r#"{"id":1,"method":"ask"}"#);
    bus.answers(worker, "ask", "true");
    assert_eq!(bus.sees_json(modest)["result"], true);
    bus.advances(Duration::ZERO);
    assert!(!bus.is_work_left());
    assert_eq!(bus.sessions(modest), 0);
}

#[test]
fn the_calls_of_a_dead_worker_are_answered_in_pieces_and_once() {
    let mut bus = TestBus::new(Config::with_pools([pool("agents", 1), pool("others", 1)]));
    let (greedy, modest) = (bus.client(), bus.client());
    for (client, name) in [(greedy, "agents"), (modest, "others")] {
        bus.sends(client, &format!(r#"{{"id":"hi","method":"_bus/hello","params":{{"pool":"{name}"}}}}"#));
        bus.sees(client);
    }
    let count = 3 * WORK_PIECE;
    bus.asks_often(greedy, count);
    bus.crashes(0);
    assert!(bus.is_work_left());
    bus.sends(modest, r#"{"id":1,"method":"ask"}"#);
    let other = bus.worker(1);
    bus.answers(other, "ask", "true");
    assert_eq!(bus.sees_json(modest)["result"], true);
    // The next process cannot answer what the last one was asked.
    bus.advances(Duration::from_secs(1));
    for id in 0..count {
        bus.sees_error(greedy, json!(id), "worker_lost");
    }
    bus.sees_nothing(greedy);
    assert_eq!(bus.bus.calls_in_flight(), 0);
}

#[test]
fn a_session_of_a_dead_worker_is_lost_when_it_is_used() {
    let many = pool("agents", 1);
    let config = Config::with_pools([PoolConfig { max_sessions: 2_000, ..many }]);
    let mut bus = TestBus::new(config);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    let sessions: Vec<_> =
        (0..2 * WORK_PIECE).map(|nth| bus.opens(client, worker, &format!("s{nth}"))).collect();
    bus.crashes(0);
    assert!(bus.is_work_left());
    bus.asks(client, 1, "session/prompt", sessions.last().expect("a session"));
    let error = bus.sees_error(client, json!(1), "unknown_session");
    assert_eq!(error["data"]["lost"], true);
    bus.advances(Duration::ZERO);
    bus.is_idle();
}

#[test]
fn a_long_chain_of_subagents_ends_with_its_client() {
    let many = pool("agents", 1);
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { max_sessions: 1_000, ..many }]));
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    bus.opens(client, worker, "child 0");
    let length = 5 * WORK_PIECE;
    for nth in 0..length {
        let update = format!(r#"{{"sessionUpdate":"subagent_update","sessionId":"child {}"}}"#, nth + 1);
        let params = format!(r#"{{"sessionId":"child {nth}","update":{update}}}"#);
        bus.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
        bus.sees(client);
    }
    bus.sends(client, r#"{"method":"_bus/bye"}"#);
    bus.handles(Event::Ended(client));
    bus.advances(Duration::ZERO);
    let told = 2 * length + 1;
    let ended = (0..told).filter(|_| bus.sees(worker).contains("session/c")).count();
    assert_eq!(ended, told, "each is closed, and what a subagent may do is cancelled");
    bus.sees_nothing(worker);
}

#[test]
fn many_sessions_that_were_left_together_end_in_pieces() {
    let many = pool("agents", 1);
    let limits = Limits { session_keep: Duration::from_secs(5), ..Limits::default() };
    let pools = Config::with_pools([PoolConfig { max_sessions: 2_000, ..many }]);
    let mut bus = TestBus::new(Config { limits, ..pools });
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    for nth in 0..2 * WORK_PIECE {
        bus.opens(client, worker, &format!("s{nth}"));
    }
    let other = bus.client();
    bus.handles(Event::Broken(client));
    bus.advances(Duration::ZERO);
    assert_eq!(bus.sessions(other), 2 * WORK_PIECE as u64);
    bus.shell.now += Duration::from_secs(5);
    bus.handles(Event::Alarm);
    let left = bus.sessions(other);
    assert!(left > 0 && left < 2 * WORK_PIECE as u64, "{left}");
    bus.advances(Duration::ZERO);
    assert_eq!(bus.sessions(other), 0);
}

#[test]
fn an_agent_cannot_ask_its_owner_without_end() {
    let mut bus = TestBus::new(limited(Limits::default()));
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    bus.opens(client, worker, "s");
    let ask = |nth: usize| format!(r#"{{"id":{nth},"method":"fs/read","params":{{"sessionId":"s"}}}}"#);
    let mut asked = Vec::new();
    for nth in 0..PENDING_REQUESTS {
        bus.sends(worker, &ask(nth));
        asked.push(bus.sees_request(client, "fs/read").0);
    }
    bus.sends(worker, &ask(PENDING_REQUESTS));
    bus.sees_error(worker, json!(PENDING_REQUESTS), "busy");
    bus.sends(client, &format!(r#"{{"id":{},"result":1}}"#, asked[7]));
    assert_eq!(bus.sees_json(worker)["id"], 7);
    bus.sends(worker, &ask(PENDING_REQUESTS + 1));
    bus.sees_request(client, "fs/read");
}

#[test]
fn a_session_that_is_opened_elsewhere_is_not_lost_with_the_calls_of_its_last_process() {
    const INIT: &str =
        r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"close":{},"resume":{}}}}"#;
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let first = bus.worker(0);
    bus.initializes_with(first, INIT);
    bus.sees(client);
    let session = bus.opens(client, first, "s1");
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let second = bus.worker(1);
    bus.initializes_with(second, INIT);
    bus.asks_often(client, 2 * WORK_PIECE);
    bus.asks(client, 9_001, "session/prompt", &session);
    bus.unseen.remove(&second);
    // It dies while it opens the session. Its calls fail in pieces, the one that opens the session last.
    bus.crashes(1);
    assert!(bus.is_work_left());
    bus.asks(client, 9_002, "session/prompt", &session);
    bus.advances(Duration::from_secs(5));
    let answered = bus.unseen.remove(&client).unwrap_or_default();
    assert!(answered.iter().any(|line| line.contains("9001")), "the prompt of the lost process fails");
    let next = answered.iter().find(|line| line.contains("9002"));
    assert_eq!(next, None, "it waits for the next process");
    let third = bus.worker(2);
    bus.initializes_with(third, INIT);
    bus.answers(third, "session/resume", "{}");
    bus.answers(third, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 9_002);
}

#[test]
fn what_waits_for_a_session_that_cannot_be_opened_again_is_answered_in_pieces() {
    const INIT: &str = r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}"#;
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let first = bus.worker(0);
    bus.initializes_with(first, INIT);
    bus.sees(client);
    let session = bus.opens(client, first, "s1");
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let second = bus.worker(1);
    bus.initializes_with(second, INIT);
    let count = 3 * WORK_PIECE as u32;
    for id in 0..count {
        bus.asks(client, id, "session/set_mode", &session);
    }
    bus.sees_request(second, "session/resume");
    bus.crashes(1);
    assert!(bus.is_work_left());
    bus.advances(Duration::ZERO);
    for id in 0..count {
        bus.sees_error(client, json!(id), "worker_lost");
    }
    bus.sees_nothing(client);
    bus.is_idle();
}
