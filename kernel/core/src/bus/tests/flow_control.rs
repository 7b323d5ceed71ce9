//! Flow control: which peers are paused, and for how long.

use std::time::Duration;

use serde_json::json;

use super::{Event, Limits, Link, TestBus, limited};

fn small() -> Limits {
    Limits { max_output_queue: 1000, backpressure_timeout: Duration::from_secs(10), ..Limits::default() }
}

fn long(method: &str, session: &str) -> String {
    let filler = "x".repeat(400);
    format!(r#"{{"method":"{method}","params":{{"sessionId":"{session}","filler":"{filler}"}}}}"#)
}

impl TestBus {
    /// A client sends requests with the ids from 1 to `count`, of which three fill a queue.
    fn sends_long_requests(&mut self, client: Link, count: u32) {
        let filler = "x".repeat(400);
        for id in 1..=count {
            self.sends(client, &format!(r#"{{"id":{id},"method":"m","params":"{filler}"}}"#));
        }
    }
}

#[test]
fn a_worker_that_does_not_read_pauses_its_clients_and_is_then_stopped() {
    let mut bus = TestBus::new(limited(small()));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    bus.sends_long_requests(client, 4);
    assert!(!bus.bus.wants_read(client));
    bus.advances(Duration::from_secs(9));
    bus.sees_nothing(client);
    bus.advances(Duration::from_secs(1));
    for id in 1..=3 {
        bus.sees_error(client, json!(id), "busy");
    }
    assert!(bus.bus.wants_read(client));
    // The fourth line was not handled while the client was paused; it waits for the next life.
    bus.sees_nothing(client);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.sees_request(next, "m");
}

#[test]
fn a_request_for_the_next_process_outlives_the_stall_of_the_last() {
    let limits = Limits { silence_timeout: Some(Duration::from_secs(5)), ..small() };
    let mut bus = TestBus::new(limited(limits));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    bus.sends_long_requests(client, 3);
    // The process is stopped for its silence, and its queue is still full when the time for that is over as well.
    bus.advances(Duration::from_secs(5));
    bus.advances(Duration::from_secs(5));
    bus.sees_nothing(client);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    for _ in 1..=3 {
        bus.sees_request(next, "m");
    }
}

#[test]
fn a_worker_that_reads_again_gets_everything_in_order() {
    let mut bus = TestBus::new(limited(small()));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    let filler = "x".repeat(400);
    for id in 1..=6 {
        bus.sends(client, &format!(r#"{{"id":{id},"method":"m{id}","params":"{filler}"}}"#));
    }
    bus.reads_again(worker);
    for id in 1..=6 {
        bus.sees_request(worker, &format!("m{id}"));
    }
    assert!(bus.bus.wants_read(client));
}

#[test]
fn a_worker_is_read_while_it_reads_its_backlog() {
    let mut bus = TestBus::new(limited(small()));
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.sends_long_requests(client, 3);
    // Its own answer releases more than its queue may hold. It may have to write before it can read on.
    bus.stops_reading(worker);
    bus.initializes(worker);
    assert!(bus.bus.wants_read(worker), "a worker does not pause itself");
    bus.reads_again(worker);
    for _ in 1..=3 {
        bus.sees_request(worker, "m");
    }
}

#[test]
fn a_client_that_does_not_read_pauses_only_a_worker_of_its_own() {
    let mut bus = TestBus::new(limited(small()));
    let (stalled, worker) = (bus.client(), bus.worker(0));
    bus.opens(stalled, worker, "s1");
    bus.stops_reading(stalled);
    for _ in 0..3 {
        bus.sends(worker, &long("session/update", "s1"));
    }
    assert!(!bus.bus.wants_read(worker));
    bus.advances(Duration::from_secs(10));
    assert!(bus.is_closed(stalled), "it read nothing for backpressure_timeout");
    assert!(bus.bus.wants_read(worker));
}

#[test]
fn a_client_that_does_not_read_delays_others_for_a_moment_at_most() {
    let mut bus = TestBus::new(limited(small()));
    let (stalled, other, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.opens(stalled, worker, "s1");
    bus.opens(other, worker, "s2");
    bus.stops_reading(stalled);
    for _ in 0..8 {
        bus.sends(worker, &long("session/update", "s1"));
        assert!(bus.bus.wants_read(worker), "up to four times the limit");
        bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s2"}}"#);
        bus.sees_json(other);
    }
    for _ in 0..4 {
        bus.sends(worker, &long("session/update", "s1"));
    }
    assert!(!bus.bus.wants_read(worker));
    bus.advances(Duration::from_secs(1));
    assert!(bus.is_closed(stalled) && bus.bus.wants_read(worker));
}

#[test]
fn a_client_that_sends_requests_without_reading_is_not_read() {
    let mut bus = TestBus::new(limited(small()));
    let client = bus.client();
    bus.stops_reading(client);
    for id in 0..20 {
        bus.sends(client, &format!(r#"{{"id":{id},"method":"_bus/status"}}"#));
    }
    assert!(!bus.bus.wants_read(client));
    bus.reads_again(client);
    for id in 0..20 {
        assert_eq!(bus.sees_json(client)["id"], id);
    }
}

#[test]
fn limits_are_answered_busy() {
    let limits = Limits { max_calls: 2, max_clients: 1, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let client = bus.client();
    assert!(bus.connects().is_none());
    for id in 1..=3 {
        bus.sends(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    bus.sees_error(client, json!(3), "busy");
    let worker = bus.worker(0);
    bus.sees(worker);
    bus.sees(worker);
    bus.sends(worker, r#"{"id":4,"method":"_ask"}"#);
    bus.sees_error(worker, json!(4), "busy");
    bus.sees_nothing(client);
}

#[test]
fn any_number_of_clients_that_do_not_read_cannot_fill_the_bus() {
    let limits = Limits { max_held_bytes: 100_000, max_output_queue: 20_000, ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    let (other, worker) = (bus.client(), bus.worker(0));
    bus.opens(other, worker, "other");
    let stalled: Vec<_> = (0..30).map(|_| bus.client()).collect();
    for (n, client) in stalled.iter().enumerate() {
        bus.opens(*client, worker, &format!("s{n}"));
        bus.stops_reading(*client);
    }
    // The updates have a megabyte in all, and each one is for a client that does not read.
    for turn in 0..2400 {
        if !bus.bus.wants_read(worker) {
            bus.advances(Duration::from_secs(1));
        }
        assert!(bus.bus.wants_read(worker), "the worker is paused for a moment at most");
        bus.sends(worker, &long("session/update", &format!("s{}", turn % stalled.len())));
        assert!(bus.bus.held_bytes() <= 100_000);
    }
    bus.sends(other, r#"{"id":1,"method":"m"}"#);
    bus.answers(worker, "m", "{}");
    assert_eq!(bus.sees_json(other)["id"], 1);
}

#[test]
fn a_client_that_reads_slowly_is_not_closed() {
    let mut bus = TestBus::new(limited(small()));
    let (slow, worker) = (bus.client(), bus.worker(0));
    bus.opens(slow, worker, "s1");
    bus.stops_reading(slow);
    for _ in 0..100 {
        while bus.bus.wants_read(worker) {
            bus.sends(worker, &long("session/update", "s1"));
        }
        bus.reads(slow, 300);
        bus.advances(Duration::from_secs(9));
    }
    assert!(!bus.is_closed(slow));
}

#[test]
fn a_client_that_leaves_a_line_unfinished_is_closed() {
    let mut bus = TestBus::new(limited(small()));
    let (slow, stuck, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.sends(stuck, r#"{"id":1,"method":"m"}"#);
    bus.sees_request(worker, "m");
    let line = format!(r#"{{"id":1,"method":"m","params":"{}"}}"#, "x".repeat(100));
    for byte in line.bytes() {
        bus.sends_bytes(slow, &[byte]);
        bus.advances(Duration::from_secs(1));
    }
    bus.sends(slow, "");
    bus.sees_request(worker, "m");
    bus.sends_bytes(stuck, br#"{"id":2,"#);
    bus.advances(Duration::from_secs(59));
    assert!(!bus.is_closed(stuck));
    bus.advances(Duration::from_secs(1));
    assert!(bus.is_closed(stuck) && !bus.is_closed(slow));
    bus.sees_nothing(worker);
    assert_eq!(bus.bus.held_bytes(), 0);
    bus.sends_bytes(slow, br#"{"id":2,"#);
    bus.advances(Duration::from_secs(600));
    assert!(!bus.is_closed(slow), "it is the only client");
    bus.client();
    bus.advances(Duration::from_secs(60));
    assert!(bus.is_closed(slow));
}

#[test]
fn a_paused_client_is_not_closed_for_an_unfinished_line() {
    let limits = Limits { backpressure_timeout: Duration::from_secs(300), ..small() };
    let mut bus = TestBus::new(limited(limits));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    bus.sends_long_requests(client, 3);
    bus.sends_bytes(client, br#"{"id":4,"#);
    assert!(!bus.bus.wants_read(client));
    bus.advances(Duration::from_secs(200));
    assert!(!bus.is_closed(client));
    bus.reads_again(worker);
    bus.sends(client, r#""method":"m"}"#);
    for _ in 1..=4 {
        bus.sees_request(worker, "m");
    }
}

#[test]
fn lines_of_a_paused_client_are_delivered_after_it_has_left() {
    let mut bus = TestBus::new(limited(small()));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    let filler = "x".repeat(400);
    for n in 1..=6 {
        bus.sends(client, &format!(r#"{{"method":"m{n}","params":"{filler}"}}"#));
    }
    assert!(!bus.bus.wants_read(client));
    bus.sends_bytes(client, br#"{"method":"broken off"}"#);
    bus.handles(Event::Broken(client));
    assert!(bus.is_closed(client));
    bus.reads_again(worker);
    for n in 1..=6 {
        assert_eq!(bus.sees_json(worker)["method"], format!("m{n}"));
    }
    bus.is_idle();
}
