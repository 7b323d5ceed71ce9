//! Handshakes: a process is initialized once, and clients with the same capabilities share it.

use serde_json::{Value, json};

use crate::harness::{
    Bus, bus_puppet_client, first_asked, initialize, limited, notification, one_pool, puppets, request, with,
};

/// A message with params that are written over several lines here.
fn one_line(message: &str, params: &str) -> String {
    message.replace('@', &params.replace('\n', ""))
}

#[test]
fn equal_capabilities_share_a_worker_that_is_initialized_once() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let params = r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":false},
        "terminal":true},"clientInfo":{"name":"ann","version":"1"}}"#;
    ann.sends(&one_line(r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":@}"#, params));
    let asked = puppet.is_asked("initialize");
    assert_eq!(asked["params"]["clientCapabilities"]["terminal"], true);
    // Ben initializes before the answer comes, with another order of keys and another client name.
    let params = r#"{"clientInfo":{"name":"ben"},"_meta":{"x":1},"clientCapabilities":
        {"terminal":true,"fs":{"writeTextFile":false,"readTextFile":true}},"protocolVersion":1}"#;
    ben.sends(&one_line(r#"{"jsonrpc":"2.0","method":"initialize","params":@,"id":7}"#, params));
    ben.sends(&request(8, "work", json!({})));
    puppet.sends(&format!(
        r#"{{ "id":{}, "result" : {{"protocolVersion":1 , "agentInfo":{{"name":"é"}}}}}}"#,
        asked["id"]
    ));
    assert_eq!(ann.reads(), r#"{ "id":"a", "result" : {"protocolVersion":1 , "agentInfo":{"name":"é"}}}"#);
    assert_eq!(ben.reads(), r#"{ "id":7, "result" : {"protocolVersion":1 , "agentInfo":{"name":"é"}}}"#);
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!({}));
    ben.gets(8);
    // Eve initializes after the answer has come.
    let mut eve = bus.client();
    eve.sends(&initialize(
        1,
        json!({ "terminal": true, "fs": { "readTextFile": true, "writeTextFile": false } }),
    ));
    eve.gets(1);
    let session = eve.opens(&mut puppet, "s1");
    assert!(session.ends_with(".s1"), "the next message of the puppet was session/new");
}

#[test]
fn a_second_initialize_of_a_client_is_never_forwarded() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let first = ann.initializes(&mut puppet, json!({}), json!({ "loadSession": true }));
    for n in 1..4 {
        ann.sends(&initialize(n, json!({})));
        assert_eq!(ann.gets(n), first);
    }
    ann.opens(&mut puppet, "s1");
}

#[test]
fn other_capabilities_get_another_worker() {
    let pool = with(puppets("p", 1), json!({ "max_instances": 2 }));
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut one = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.initializes(&mut one, json!({}), json!({}));
    ann.opens(&mut one, "s1");
    ben.sends(&initialize(1, json!({ "terminal": true })));
    let mut two = bus.puppet();
    let asked = two.is_asked("initialize");
    assert_eq!(asked["params"]["clientCapabilities"], json!({ "terminal": true }));
    two.answers(&asked, json!({ "protocolVersion": 1 }));
    ben.gets(1);
    ben.opens(&mut two, "s1");
    ann.opens(&mut one, "s2");
    // There is no worker for a third set of capabilities while both have sessions.
    let mut eve = bus.client();
    eve.sends(&initialize(1, json!({ "fs": { "readTextFile": true } })));
    eve.sees_error(1, -32054, "busy");
}

#[test]
fn an_idle_worker_with_another_handshake_is_replaced() {
    let bus = Bus::start(one_pool(1));
    let mut one = bus.puppet();
    let mut ann = bus.client();
    ann.initializes(&mut one, json!({}), json!({}));
    drop(ann);
    let mut ben = bus.client();
    ben.sends(&initialize(1, json!({ "terminal": true })));
    one.stdin_ends();
    let mut two = bus.puppet();
    let asked = two.is_asked("initialize");
    assert_eq!(asked["params"]["clientCapabilities"], json!({ "terminal": true }));
    two.answers(&asked, json!({ "protocolVersion": 1 }));
    ben.gets(1);
}

#[test]
fn a_worker_that_never_answers_initialize_is_killed() {
    let bus = Bus::start(limited(1, json!({ "init_timeout_sec": 0.3 })));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.sends(&initialize(1, json!({})));
    ann.sends(&request(2, "session/new", json!({})));
    puppet.is_asked("initialize");
    ann.sees_error(1, -32058, "no_start");
    ann.sees_error(2, -32058, "no_start");
    puppet.is_gone();
    // The next process has no handshake yet.
    let mut next = bus.puppet();
    ben.is_served_by(&mut next);
    ann.has_received_nothing();
}

#[test]
fn a_refused_initialize_passes_as_it_is_and_takes_nobody_down() {
    let bus = Bus::start(one_pool(1));
    let mut ann = bus.client();
    let refusal = r#""error": {"code":-32602,"message":"only version 1", "data":{"supported":[1.0]}}"#;
    // More of them than restarts are allowed.
    for n in 0..8 {
        let mut puppet = bus.puppet();
        let mut ben = bus.client();
        ben.sends(&request(n, "initialize", json!({ "protocolVersion": 2 })));
        let asked = puppet.is_asked("initialize");
        puppet.sends(&format!(r#"{{"id":{},{refusal}}}"#, asked["id"]));
        assert_eq!(ben.reads(), format!(r#"{{"id":{n},{refusal}}}"#));
        puppet.stdin_ends();
        puppet.is_gone();
    }
    let mut puppet = bus.puppet();
    ann.initializes(&mut puppet, json!({}), json!({}));
    ann.opens(&mut puppet, "s1");
    let status = ann.status();
    assert_eq!(
        (&status["counters"]["worker_deaths"], &status["counters"]["recycled"]),
        (&json!(0), &json!(8))
    );
    assert_eq!(status["pools"][0]["last_recycled"], "initialize refused");
    bus.log_has("worker p/0 recycled (initialize refused)");
    assert!(!bus.log.text().contains("stuck"), "{}", bus.log.text());
}

#[test]
fn a_connection_whose_initialize_was_refused_can_initialize_again() {
    let (bus, mut puppet, mut ann) = bus_puppet_client();
    ann.sends(&request(1, "initialize", json!({ "protocolVersion": 2 })));
    let asked = puppet.is_asked("initialize");
    puppet.refuses(&asked, &json!({ "code": -32000, "message": "no" }));
    assert_eq!(ann.receives()["error"], json!({ "code": -32000, "message": "no" }));
    puppet.stdin_ends();
    puppet.is_gone();
    let mut next = bus.puppet();
    ann.initializes(&mut next, json!({}), json!({}));
    ann.opens(&mut next, "s1");
}

#[test]
fn a_worker_that_dies_during_initialize_is_lost() {
    let (bus, mut puppet, mut ann) = bus_puppet_client();
    ann.sends(&initialize(1, json!({})));
    puppet.is_asked("initialize");
    puppet.exits(4);
    assert_eq!(ann.sees_error(1, -32050, "worker_lost")["exit"], json!({ "code": 4 }));
    let mut next = bus.puppet();
    ann.sends(&initialize(2, json!({})));
    let asked = next.is_asked("initialize");
    next.answers(&asked, json!({ "protocolVersion": 1 }));
    ann.gets(2);
}

#[test]
fn authenticate_reaches_every_worker_of_the_handshake_and_those_that_start_later() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let mut ann = bus.client();
    // The client initializes one of them, and the bus initializes the other ahead of use.
    ann.sends(&initialize(0, json!({})));
    for _ in 0..2 {
        let puppet = first_asked(&mut workers);
        let asked = puppet.is_asked("initialize");
        puppet.answers(&asked, json!({ "protocolVersion": 1 }));
        puppet.is_read();
    }
    ann.gets(0);
    for n in 0..2 {
        ann.opens_anywhere(&mut workers, &format!("s{n}"));
    }
    ann.sends(&request(2, "authenticate", json!({ "methodId": "key" })));
    for puppet in &mut workers {
        let asked = puppet.is_asked("authenticate");
        assert_eq!(asked["params"], json!({ "methodId": "key" }));
        puppet.answers(&asked, json!({ "from": puppet.pid }));
    }
    assert!(ann.gets(2)["from"].is_number());
    ann.has_received_nothing();
    // A process that starts later gets it after its initialize, and its answer is dropped.
    workers[0].exits(0);
    let mut next = bus.puppet();
    ann.sends(&request(3, "session/new", json!({})));
    let asked = next.is_asked("initialize");
    next.answers(&asked, json!({ "protocolVersion": 1 }));
    let asked = next.is_asked("authenticate");
    assert_eq!(asked["params"], json!({ "methodId": "key" }));
    next.answers(&asked, json!({}));
    let asked = next.is_asked("session/new");
    next.answers(&asked, json!({ "sessionId": "s9" }));
    ann.gets(3);
    ann.has_received_nothing();
}

#[test]
fn sticky_notifications_are_sent_to_clients_that_initialize_later() {
    let (bus, mut puppet, mut ann) = bus_puppet_client();
    ann.initializes(&mut puppet, json!({}), json!({}));
    let status = |state: &str| notification("_auth/status_update", json!({ "state": state }));
    puppet.sends(&status("logged out"));
    puppet.sends(&status("logged in"));
    for state in ["logged out", "logged in"] {
        assert_eq!(ann.reads(), status(state));
    }
    let mut ben = bus.client();
    ben.sends(&initialize(1, json!({})));
    assert_eq!(ben.gets(1), json!({ "protocolVersion": 1, "agentCapabilities": {} }));
    assert_eq!(ben.reads(), status("logged in"), "the last notification");
    ben.has_received_nothing();
    ann.has_received_nothing();
}

#[test]
fn a_client_that_never_initializes_shares_no_worker_with_one_that_does() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let (mut plain, mut acp) = (bus.client(), bus.client());
    plain.sends(&request(1, "work", json!({})));
    let puppet = first_asked(&mut workers);
    let (asked, pid) = (puppet.is_asked("work"), puppet.pid);
    acp.sends(&initialize(1, json!({})));
    let other = workers.iter_mut().find(|puppet| puppet.pid != pid).expect("there are two");
    let asked_too: Value = other.is_asked("initialize");
    other.answers(&asked_too, json!({ "protocolVersion": 1 }));
    acp.gets(1);
    let puppet = workers.iter_mut().find(|puppet| puppet.pid == pid).expect("there are two");
    puppet.answers(&asked, json!({}));
    plain.gets(1);
}

#[test]
fn a_client_may_leave_before_its_initialize_is_answered() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.sends(&initialize(1, json!({})));
    let asked = puppet.is_asked("initialize");
    ann.breaks();
    bus.until("ann has left", || ben.status()["clients"] == 1);
    puppet.answers(&asked, json!({ "protocolVersion": 1 }));
    ben.sends(&initialize(1, json!({})));
    ben.gets(1);
    ben.opens(&mut puppet, "s1");
}
