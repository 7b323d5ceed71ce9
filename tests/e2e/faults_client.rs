//! Faults of clients: they leave, send half a line, flood, answer no request. No other client may notice.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::{
    Bus, PATIENCE, bus_puppet_client, limited, notification, one_pool, puppets, request, time_passes, update,
};

#[test]
fn late_answers_for_a_client_that_has_left_are_dropped() {
    let bus = Bus::start(limited(1, json!({ "session_keep_sec": 0 })));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    ann.sends(&request(2, "work", json!({})));
    let work = puppet.is_asked("work");
    ann.breaks();
    assert_eq!(puppet.is_asked("session/cancel")["params"]["sessionId"], "s1");
    ben.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    assert!(
        asked["id"] != turn["id"] && asked["id"] != work["id"],
        "a request that is still in flight keeps its id"
    );
    for late in [&turn, &work] {
        puppet.answers(late, json!("for ann"));
    }
    puppet.answers(&asked, json!("for ben"));
    assert_eq!(ben.gets(1), "for ben");
    assert_eq!(ben.status()["calls"], 0);
}

#[test]
fn a_partial_line_of_a_broken_connection_is_dropped() {
    let (bus, mut puppet, mut ben) = bus_puppet_client();
    let line = request(1, "evil", json!({ "text": "x".repeat(9000) }));
    // The last of them is complete, but has no newline.
    for part in 1..=10 {
        let mut ann = bus.client();
        ann.has_received_nothing();
        ann.sends_bytes(&line.as_bytes()[..line.len() * part / 10]);
        ann.breaks();
    }
    bus.until("they are gone", || ben.status()["clients"] == 1);
    ben.sends(&request(1, "good", json!({})));
    puppet.is_asked("good");
    assert_eq!(ben.status()["held_bytes"], 0);
}

#[test]
fn answers_to_no_request_are_counted_and_dropped() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    for id in 0..500 {
        client.answers(&json!({ "id": id }), json!("unasked"));
    }
    assert_eq!(client.status()["counters"]["stray_answers"], 500);
    client.sends(&request(1, "good", json!({})));
    puppet.is_asked("good");
}

#[test]
fn hundreds_of_clients_that_connect_at_once_are_all_accepted() {
    let bus = Bus::start(one_pool(1));
    let place: SocketAddr = bus.tcp().parse().expect("an address");
    // A suspended bus cannot accept, so the backlog of the listener must be long enough.
    bus.signal(Signal::SIGSTOP);
    let crowd: Vec<_> = (0..500)
        .map(|_| TcpStream::connect_timeout(&place, PATIENCE).expect("the queue has room for it"))
        .collect();
    bus.signal(Signal::SIGCONT);
    let mut watcher = bus.client();
    bus.until("all are in", || watcher.status()["clients"] == crowd.len() + 1);
}

#[test]
fn a_cancel_that_crosses_the_answer_leaves_exactly_one_answer() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    let cancels = [
        notification("session/cancel", json!({ "sessionId": session })),
        notification("$/cancel_request", json!({ "requestId": 1 })),
    ];
    client.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    // The agent answers before it reads the cancellation.
    puppet.ends_turn(&turn, "end_turn");
    puppet.is_read();
    cancels.iter().for_each(|cancel| client.sends(cancel));
    assert_eq!(client.gets(1)["stopReason"], "end_turn");
    client.has_received_nothing();
    puppet.is_asked("session/cancel");

    client.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    cancels.iter().for_each(|cancel| client.sends(cancel));
    puppet.is_asked("session/cancel");
    assert_eq!(puppet.is_asked("$/cancel_request")["params"]["requestId"], turn["id"]);
    puppet.ends_turn(&turn, "cancelled");
    assert_eq!(client.gets(1)["stopReason"], "cancelled");
    client.has_received_nothing();
}

#[test]
fn a_flood_of_notifications_to_a_slow_worker_stops_the_reading_of_its_sender() {
    let limits = json!({ "max_output_queue": 65536, "backpressure_timeout_sec": 1000 });
    let config = json!({ "pools": [puppets("p", 1), puppets("q", 1)], "limits": limits, "default_pool": "p",
        "listen": ["unix://@dir/bus.sock"] });
    let bus = Bus::start(config);
    let (mut quick, mut slow) = (bus.puppet_of("p"), bus.puppet_of("q"));
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.has_received_nothing();
    slow.stops_reading();
    let text = "x".repeat(1000);
    let note = |n: usize| {
        format!(r#"{{"jsonrpc":"2.0","method":"note","pool":"q","params":{{"n":{n},"text":"{text}"}}}}"#)
    };
    let flood: String = (0..2000).map(|n| note(n) + "\n").collect();
    let mut rest = flood.as_bytes();
    bus.until("ann is no longer read", || {
        let sent = ann.connection.send_some(rest).expect("it is open");
        rest = &rest[sent..];
        ben.has_received_nothing();
        sent == 0
    });
    assert!(!rest.is_empty(), "two megabytes are more than all buffers together hold");
    let held = ben.status()["held_bytes"].as_u64().expect("a number");
    assert!(held < 256 << 10, "{held} bytes are held");
    ben.is_served_by(&mut quick);
    slow.reads_again();
    let rest = rest.to_vec();
    let sending = thread::spawn(move || ann.sends_bytes(&rest));
    for n in 0..2000 {
        assert_eq!(slow.is_asked("note")["params"]["n"], n);
    }
    sending.join().expect("all was taken");
}

#[test]
fn a_bus_that_was_suspended_closes_no_client_as_stalled() {
    let bus = Bus::start(limited(1, json!({ "max_output_queue": 65536, "backpressure_timeout_sec": 5 })));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.opens(&mut puppet, "s1");
    let word = update("s1", &"x".repeat(32 << 10));
    let mut held = None;
    bus.until("ann has more to take than she may", || {
        let goes_on = puppet.floods(&word);
        let before = std::mem::replace(&mut held, ben.status()["held_bytes"].as_u64());
        // More waits for ann than the limit, or did: the queue counts as full until it has shrunk well below it.
        !goes_on && held == before && held > Some(0)
    });
    bus.signal(Signal::SIGSTOP);
    // This sleep is the time in which ann reads nothing; the test waits for no event.
    time_passes(Duration::from_millis(5200));
    assert!(ann.connection.takes_all() > 0);
    bus.signal(Signal::SIGCONT);
    assert_eq!(ben.status()["clients"], 2);
    assert!(ann.connection.exactly(100_000).is_some(), "she receives the rest");
}
