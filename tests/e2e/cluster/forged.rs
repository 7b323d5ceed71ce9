//! Frames of others: repeated, changed, or made up. None of them reaches a client or an agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use super::raw::RawNats;
use super::{with_session, world};

#[test]
fn frames_that_are_repeated_changed_or_made_up_change_nothing() {
    let Some((nats, _node, edge)) = world() else { return };
    let mut listener = RawNats::connect(&nats);
    listener.subscribes("bus.v1.p.>", 1);
    let mut forger = RawNats::connect(&nats);
    let done = Arc::new(AtomicBool::new(false));
    let is_done = done.clone();
    let forging = thread::spawn(move || {
        let mut count = 0_usize;
        while !is_done.load(Ordering::Relaxed) {
            let heard = listener.hears();
            let mut frame = heard.payload;
            if frame.first() != Some(&1) {
                continue;
            }
            count += 1;
            // It hears its own as well, so it does not repeat everything.
            if count.is_multiple_of(3) {
                forger.publishes(&heard.subject, &frame);
            }
            if count.is_multiple_of(4) {
                let at = count % frame.len();
                frame[at] ^= 0x55;
                forger.publishes(&heard.subject, &frame);
                forger.publishes(&heard.subject, &frame[..at]);
                forger.publishes(&heard.subject, b"");
            }
        }
        count
    });
    let (mut client, session) = with_session(&edge);
    let text = "all of this, and in this order ".repeat(200);
    for id in 10..40 {
        assert_eq!(client.takes_turn(id, &session, &text).0.trim(), text.trim());
    }
    done.store(true, Ordering::Relaxed);
    // One more, so that the listener hears something and ends.
    client.takes_turn(50, &session, "the end");
    assert!(forging.join().expect("it has not failed") > 60);
}

#[test]
fn an_address_or_a_request_that_is_made_up_is_harmless() {
    let Some((nats, _node, edge)) = world() else { return };
    let mut raw = RawNats::connect(&nats);
    let open = |pool: &str, addr: &str| {
        let who = json!({ "do": "open", "pool": pool, "edge": "e1", "boot": "x", "pid": 1, "addr": addr });
        let mut request = who;
        (request["pipe"], request["window"], request["max_frame"]) = (json!("1"), json!(1), json!(1));
        request.to_string()
    };
    let gone = json!({ "do": "gone", "edge": "e1", "boot": "x", "pids": [1] }).to_string();
    let other = open("other", "e.e1.AAAAAAAAAAAAAAAAAAAAAA");
    for request in ["", "x", "[]", r#"{"do":"open"}"#, &gone, &open("echo", "e.e1.>"), &other] {
        raw.publishes("bus.v1.open.n1", request.as_bytes());
    }
    let answer = raw.asks("bus.v1.open.n1", open("echo", "e.>.*").as_bytes());
    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
    assert!(answer["refused"].is_string(), "{answer}");
    let (mut client, session) = with_session(&edge);
    assert_eq!(client.takes_turn(3, &session, "still here").0.trim(), "still here");
}
