//! What one client may take of what is for all.

use std::time::Duration;

use serde_json::json;

use super::{Config, Event, Limits, Link, TestBus, limited, pool};
use crate::limit::{ABANDONED_PART, LINE_BYTES_PER_SEC, LINE_BYTES_WHEN_FULL};

impl TestBus {
    fn with_calls(max_calls: usize) -> TestBus {
        TestBus::new(limited(Limits { max_calls, ..Limits::default() }))
    }

    /// The client asks until it is refused. Returns how many of its requests are in flight then.
    fn takes_all_calls(&mut self, client: Link, worker: Link) -> usize {
        for id in 0.. {
            self.sends(client, &format!(r#"{{"id":{id},"method":"hang"}}"#));
            if self.unseen.get(&client).is_some_and(|lines| !lines.is_empty()) {
                let error = self.sees_error(client, json!(id), "busy");
                assert!(error["message"].as_str().is_some_and(|message| message.starts_with("max_calls (")));
                return id;
            }
            self.sees_request(worker, "hang");
        }
        unreachable!("max_calls is finite")
    }

    fn is_served(&mut self, client: Link, worker: Link) {
        self.sends(client, r#"{"id":"modest","method":"m"}"#);
        self.answers(worker, "m", "1");
        assert_eq!(self.sees_json(client)["result"], 1);
    }
}

#[test]
fn one_client_may_have_most_of_the_calls_and_others_the_rest() {
    let mut bus = TestBus::with_calls(1024);
    let worker = bus.worker(0);
    let clients: Vec<_> = (0..20).map(|_| bus.client()).collect();
    let taken: Vec<_> = clients.iter().map(|client| bus.takes_all_calls(*client, worker)).collect();
    assert_eq!(
        taken[..6],
        [576, 144, 36, 9, 3, 1],
        "three quarters of what is left outside of the last quarter"
    );
    assert!(taken.iter().sum::<usize>() < 800);
    let modest = bus.client();
    bus.is_served(modest, worker);
}

#[test]
fn a_client_alone_may_have_all_of_a_few_calls() {
    for (max_calls, taken) in [(1, 1), (2, 2), (3, 3), (4, 3), (8, 5)] {
        let mut bus = TestBus::with_calls(max_calls);
        let (client, worker) = (bus.client(), bus.worker(0));
        assert_eq!(bus.takes_all_calls(client, worker), taken, "of {max_calls}");
    }
}

#[test]
fn what_a_client_left_behind_counts_for_nobody_and_is_forgotten_at_last() {
    let mut bus = TestBus::with_calls(64);
    let (modest, worker) = (bus.client(), bus.worker(0));
    for _ in 0..10 {
        let greedy = bus.client();
        assert_eq!(bus.takes_all_calls(greedy, worker), 36);
        bus.handles(Event::Broken(greedy));
        assert_eq!(bus.bus.calls_abandoned(), 64 / ABANDONED_PART);
        assert_eq!(bus.bus.calls_in_flight(), 0);
    }
    bus.is_served(modest, worker);
    bus.crashes(0);
    assert_eq!(bus.bus.calls_abandoned(), 0);
}

#[test]
fn a_session_that_opens_for_a_client_that_has_left_is_closed_whatever_else_was_left() {
    let mut bus = TestBus::with_calls(16);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    let (id, _) = bus.sees_request(worker, "session/new");
    bus.takes_all_calls(client, worker);
    bus.handles(Event::Broken(client));
    bus.sends(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"s1"}}}}"#));
    bus.sees_request(worker, "session/close");
}

#[test]
fn lines_that_are_not_finished_leave_room_for_others() {
    let limits = Limits { max_held_bytes: 1 << 20, max_input_buffer: 1 << 20, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (modest, worker) = (bus.client(), bus.worker(0));
    let begun = format!(r#"{{"id":7,"method":"m","params":"{}"#, "x".repeat(600_000));
    let greedy: Vec<_> = (0..30).map(|_| bus.client()).collect();
    for client in &greedy {
        // It comes in pieces, as all lines do.
        for piece in begun.as_bytes().chunks(30_000) {
            bus.sends_bytes(*client, piece);
        }
        assert!(bus.bus.held_bytes() <= 1 << 20);
        bus.is_served(modest, worker);
    }
    for client in greedy {
        bus.sends(client, "\"}");
        let error = bus.sees_error(client, json!(7), "busy");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("no room for a line")));
    }
    assert_eq!(bus.bus.held_bytes(), 0);
}

#[test]
fn while_too_much_is_held_the_longest_line_is_given_up() {
    let limits = Limits { max_held_bytes: 200_000, max_input_buffer: 200_000, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (long, short, last) = (bus.client(), bus.client(), bus.client());
    let begins =
        |bytes: usize| format!(r#"{{"id":1,"method":"m","params":"{}"#, "x".repeat(bytes)).into_bytes();
    bus.sends_bytes(long, &begins(90_000));
    bus.sends_bytes(short, &begins(LINE_BYTES_WHEN_FULL - 1000));
    bus.sends_bytes(last, &begins(LINE_BYTES_WHEN_FULL - 1000));
    assert!(bus.bus.held_bytes() < 135_000);
    for client in [short, last] {
        bus.sends(client, "\"}");
    }
    let worker = bus.worker(0);
    bus.sees_request(worker, "m");
    bus.sees_request(worker, "m");
    bus.sends(long, "\"}");
    bus.sees_error(long, json!(1), "busy");
}

#[test]
fn a_client_alone_may_fill_the_bus_with_one_line() {
    let limits = Limits { max_held_bytes: 200_000, max_input_buffer: 200_000, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends_bytes(client, br#"{"id":1,"method":"m","params":""#);
    for _ in 0..19 {
        bus.sends_bytes(client, &[b'x'; 10_000]);
    }
    bus.sends(client, "\"}");
    bus.sees_request(worker, "m");
}

#[test]
fn a_line_that_only_dribbles_has_a_deadline_from_its_first_byte() {
    let mut bus = TestBus::with_workers(1);
    let (dribbles, large, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.sends_bytes(large, br#"{"id":1,"method":"m","params":""#);
    bus.sends_bytes(dribbles, b"{");
    for _ in 0..7 {
        bus.advances(Duration::from_secs(10));
        if !bus.is_closed(dribbles) {
            bus.sends_bytes(dribbles, b" ");
        }
        bus.sends_bytes(large, &vec![b'x'; 10 * LINE_BYTES_PER_SEC]);
    }
    assert!(bus.is_closed(dribbles));
    assert!(!bus.is_closed(large), "it comes fast enough");
    bus.advances(Duration::from_secs(50));
    bus.sends(large, "\"}");
    bus.sees_request(worker, "m");
}

#[test]
fn one_of_several_clients_leaves_sessions_of_a_pool_to_others() {
    let mut config = Config::with_pools([pool("agents", 1)]);
    std::sync::Arc::make_mut(&mut config.pools[0]).max_sessions = 16;
    let mut bus = TestBus::new(config);
    let (greedy, modest, worker) = (bus.client(), bus.client(), bus.worker(0));
    for session in 0..12 {
        bus.opens(greedy, worker, &format!("g{session}"));
    }
    bus.sends(greedy, r#"{"id":1,"method":"session/new","params":{}}"#);
    let error = bus.sees_error(greedy, json!(1), "busy");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("the last 4 of 16 sessions of the pool agents"), "{message}");
    for session in 0..3 {
        bus.opens(modest, worker, &format!("m{session}"));
    }
    // Alone it may have all of them.
    bus.handles(Event::Broken(modest));
    bus.opens(greedy, worker, "g12");
}

#[test]
fn a_fork_needs_a_place_too() {
    let mut config = Config::with_pools([pool("agents", 1)]);
    std::sync::Arc::make_mut(&mut config.pools[0]).max_sessions = 1;
    let mut bus = TestBus::new(config);
    let (client, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(client, worker, "s1");
    bus.asks(client, 1, "session/fork", &session);
    bus.sees_error(client, json!(1), "busy");
}

#[test]
fn what_one_client_makes_the_bus_keep_leaves_room_for_others() {
    let limits = Limits { max_held_bytes: 1 << 20, max_input_buffer: 1 << 16, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (greedy, modest, worker) = (bus.client(), bus.client(), bus.worker(0));
    let long = "x".repeat(4000);
    for nth in 0..300 {
        bus.sends(greedy, &format!(r#"{{"method":"note","sessionId":"{nth}{long}"}}"#));
        bus.sends(greedy, &format!(r#"{{"id":"{nth}{long}","method":"hang"}}"#));
    }
    assert!(bus.bus.held_bytes() <= 1 << 20);
    let refused = bus.sees_json(greedy);
    assert_eq!(refused["error"]["data"]["reason"], "busy");
    bus.unseen.remove(&worker);
    bus.is_served(modest, worker);
}

#[test]
fn a_client_that_will_send_nothing_more_makes_room_for_others() {
    let mut bus = TestBus::new(limited(Limits { max_clients: 2, max_calls: 4, ..Limits::default() }));
    let (first, second, worker) = (bus.client(), bus.client(), bus.worker(0));
    for client in [first, second] {
        bus.sends(client, r#"{"id":1,"method":"hang"}"#);
        bus.sees_request(worker, "hang");
        assert!(bus.connects().is_none(), "those who may still send keep their places");
    }
    bus.handles(Event::Ended(first));
    assert!(!bus.is_closed(first), "it waits for its answer as long as nobody needs its place");
    let third = bus.client();
    bus.act();
    assert!(bus.is_closed(first));
    bus.takes_all_calls(third, worker);
    bus.handles(Event::Ended(second));
    bus.sends(third, r#"{"id":"more","method":"hang"}"#);
    bus.sees_request(worker, "hang");
    assert!(bus.is_closed(second), "its calls are needed");
}

#[test]
fn what_one_client_lets_wait_for_a_worker_leaves_room_for_others() {
    let mut bus = TestBus::new(limited(Limits { max_output_queue: 10_000, ..Limits::default() }));
    let (greedy, modest, worker) = (bus.client(), bus.client(), bus.worker(0));
    let initialize = r#"{"id":"init","method":"initialize","params":{"protocolVersion":1,"v":1}}"#;
    bus.sends(greedy, initialize);
    let (init, _) = bus.sees_request(worker, "initialize");
    let long = "x".repeat(900);
    for id in 0..20 {
        bus.sends(greedy, &format!(r#"{{"id":{id},"method":"m","params":"{long}"}}"#));
    }
    let refused = bus.sees_json(greedy);
    assert_eq!(refused["error"]["message"], "too much of its own waits for the worker to be ready");
    bus.unseen.remove(&greedy);
    for _ in 0..1000 {
        bus.sends(greedy, initialize);
        bus.sends(greedy, r#"{"method":"$/cancel_request","params":{"requestId":0}}"#);
    }
    assert!(bus.bus.held_bytes() < 10_000, "neither do requests to initialize and cancels fill it");
    bus.unseen.remove(&greedy);
    bus.sends(modest, initialize);
    bus.sends(modest, r#"{"id":1,"method":"modest"}"#);
    bus.sends(worker, &format!(r#"{{"id":{init},"result":{{"protocolVersion":1}}}}"#));
    assert_eq!(bus.sees_json(modest)["id"], "init");
    while bus.sees_json(worker)["method"] != "modest" {}
    assert_eq!(bus.bus.held_bytes(), 0);
}

#[test]
fn what_an_agent_asks_and_nobody_answers_has_a_bound_in_bytes() {
    let limits = Limits { max_held_bytes: 1 << 20, max_input_buffer: 1 << 18, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "s1");
    let long = "x".repeat(50_000);
    let ask = |id: usize| {
        let params = format!(r#"{{"sessionId":"s1","text":"{long}"}}"#);
        format!(r#"{{"id":{id},"method":"ask","params":{params}}}"#)
    };
    for id in 0..30 {
        bus.sends(worker, &ask(id));
    }
    assert!(bus.bus.held_bytes() <= 1 << 19, "the client has read them all, and half of the room is left");
    let refused = bus.sees_json(worker);
    assert_eq!(refused["error"]["data"]["reason"], "busy");
    let question = bus.sees_json(client);
    bus.sends(client, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    bus.unseen.remove(&worker);
    bus.sends(worker, &ask(99));
    assert!(!bus.unseen.contains_key(&worker), "there is room for one again");
}
