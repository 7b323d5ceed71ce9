//! Limits: what exceeds them is refused with an error, never silently.

use serde_json::{Value, json};

use crate::harness::{Bus, limited, puppets, request, with};

#[test]
fn one_client_too_many_gets_an_error() {
    let bus = Bus::start(limited(1, json!({ "max_clients": 2 })));
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.has_received_nothing();
    ben.has_received_nothing();
    let mut eve = bus.client();
    eve.sees_error(Value::Null, -32054, "busy");
    eve.is_closed();
    drop(ben);
    bus.until("there is room again", || ann.status()["clients"] == 1);
    bus.client().has_received_nothing();
}

#[test]
fn a_client_that_says_nothing_more_makes_room_for_another() {
    let bus = Bus::start(limited(1, json!({ "max_clients": 2, "max_calls": 2 })));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    ann.half_closes();
    ben.has_received_nothing();
    // It has its answer as long as nobody needs its place.
    puppet.answers(&asked, json!({}));
    ann.gets(1);
    ann.is_closed();
    let mut ann = bus.client();
    for id in 1..=2 {
        ann.sends(&request(id, "work", json!({})));
    }
    puppet.is_asked("work");
    ann.half_closes();
    bus.until("the bus knows", || ben.status()["calls"] == 2);
    let mut eve = bus.client();
    ann.is_closed();
    eve.sends(&request(3, "work", json!({})));
    puppet.is_asked("work");
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!({}));
    eve.gets(3);
}

#[test]
fn one_call_too_many_is_answered_busy() {
    let bus = Bus::start(limited(1, json!({ "max_calls": 2 })));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    for id in 1..=2 {
        client.sends(&request(id, "work", json!({})));
    }
    let asked = puppet.is_asked("work");
    client.sends(&request(3, "work", json!({})));
    client.sees_error(3, -32054, "busy");
    puppet.answers(&asked, json!({}));
    client.gets(1);
    client.sends(&request(4, "work", json!({})));
    puppet.is_asked("work");
    assert_eq!(puppet.is_asked("work")["method"], "work");
}

#[test]
fn sessions_above_the_limit_of_a_process_need_another_process() {
    let pool = with(puppets("p", 1), json!({ "max_instances": 2, "max_sessions": 1 }));
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut one = bus.puppet();
    let mut client = bus.client();
    let first = client.opens(&mut one, "s1");
    assert!(!bus.has_another_puppet());
    client.sends(&request(1, "session/new", json!({})));
    let mut two = bus.puppet();
    let asked = two.is_asked("session/new");
    two.answers(&asked, json!({ "sessionId": "s1" }));
    client.gets(1);
    client.sends(&request(2, "session/new", json!({})));
    client.sees_error(2, -32054, "busy");
    client.closes(&mut one, &first);
    client.opens(&mut one, "s2");
}

#[test]
fn a_worker_that_is_silent_for_too_long_is_replaced() {
    let bus = Bus::start(limited(1, json!({ "silence_timeout_sec": 0.3 })));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    puppet.is_asked("work");
    client.sees_error(1, -32050, "worker_lost");
    let mut next = bus.puppet();
    client.is_served_by(&mut next);
}
