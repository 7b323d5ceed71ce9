//! Handshakes: a process is initialized once, and by whom it was makes no difference to anybody else.

use serde_json::{Value, json};

use crate::harness::{
    Bus, initialize, limited, notification, one_pool, puppets, request, whoever_hears, with,
};

/// A message whose params are too long for a line here.
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
    // Ben comes while it is still being answered, with another order of keys and another name.
    let params = r#"{"clientInfo":{"name":"ben"},"_meta":{"x":1},"clientCapabilities":
        {"terminal":true,"fs":{"writeTextFile":false,"readTextFile":true}},"protocolVersion":1}"#;
    ben.sends(&one_line(r#"{"jsonrpc":"2.0","method":"initialize","params":@,"id":7}"#, params));
    ben.sends(&request(8, "work", json!({})));
    puppet.says(&format!(
        r#"{{ "id":{}, "result" : {{"protocolVersion":1 , "agentInfo":{{"name":"é"}}}}}}"#,
        asked["id"]
    ));
    assert_eq!(ann.reads(), r#"{ "id":"a", "result" : {"protocolVersion":1 , "agentInfo":{"name":"é"}}}"#);
    assert_eq!(ben.reads(), r#"{ "id":7, "result" : {"protocolVersion":1 , "agentInfo":{"name":"é"}}}"#);
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!({}));
    ben.gets(8);
    // And one who comes when all is done.
    let mut eve = bus.client();
    eve.sends(&initialize(
        1,
        json!({ "terminal": true, "fs": { "readTextFile": true, "writeTextFile": false } }),
    ));
    eve.gets(1);
    let session = eve.opens(&mut puppet, "s1");
    assert!(session.ends_with(".s1"), "the next that the puppet heard was session/new");
}

#[test]
fn a_second_initialize_of_a_client_is_never_forwarded() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut ann = bus.client();
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
    // A third kind finds no place while both have sessions.
    let mut eve = bus.client();
    eve.sends(&initialize(1, json!({ "fs": { "readTextFile": true } })));
    eve.sees_error(1, -32054, "busy");
}

#[test]
fn an_idle_worker_of_another_handshake_gives_way() {
    let bus = Bus::start(one_pool(1));
    let mut one = bus.puppet();
    let mut ann = bus.client();
    ann.initializes(&mut one, json!({}), json!({}));
    drop(ann);
    let mut ben = bus.client();
    ben.sends(&initialize(1, json!({ "terminal": true })));
    one.hears_the_end();
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
    // The next life is one that anybody may have.
    let mut next = bus.puppet();
    ben.sends(&request(1, "work", json!({})));
    let asked = next.is_asked("work");
    next.answers(&asked, json!({}));
    ben.gets(1);
    ann.has_heard_nothing();
}

#[test]
fn an_initialize_answered_with_an_error_is_no_start() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut ann = bus.client();
    ann.sends(&initialize(1, json!({})));
    let asked = puppet.is_asked("initialize");
    let error = json!({ "code": -32000, "message": "log in first" });
    puppet.says(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, asked["id"]));
    assert_eq!(ann.sees_error(1, -32058, "no_start")["error"], error);
    puppet.is_gone();
    ann.has_heard_nothing();
}

#[test]
fn a_worker_that_dies_during_initialize_is_lost() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut ann = bus.client();
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
    // The first client initializes one of them, and the bus the other, ahead of use.
    ann.sends(&initialize(0, json!({})));
    for _ in 0..2 {
        let puppet = whoever_hears(&mut workers);
        let asked = puppet.is_asked("initialize");
        puppet.answers(&asked, json!({ "protocolVersion": 1 }));
        puppet.is_heard();
    }
    ann.gets(0);
    for n in 0..2 {
        ann.sends(&request(1, "session/new", json!({})));
        let puppet = whoever_hears(&mut workers);
        let asked = puppet.is_asked("session/new");
        puppet.answers(&asked, json!({ "sessionId": format!("s{n}") }));
        ann.gets(1);
    }
    ann.sends(&request(2, "authenticate", json!({ "methodId": "key" })));
    for puppet in &mut workers {
        let asked = puppet.is_asked("authenticate");
        assert_eq!(asked["params"], json!({ "methodId": "key" }));
        puppet.answers(&asked, json!({ "from": puppet.pid }));
    }
    assert!(ann.gets(2)["from"].is_number());
    ann.has_heard_nothing();
    // A life that starts later hears it after its initialize, and its answer goes nowhere.
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
    ann.has_heard_nothing();
}

#[test]
fn what_a_worker_says_of_itself_is_told_to_those_who_join_later() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut ann = bus.client();
    ann.initializes(&mut puppet, json!({}), json!({}));
    let news = |state: &str| notification("_auth/status_update", json!({ "state": state }));
    puppet.says(&news("logged out"));
    puppet.says(&news("logged in"));
    for state in ["logged out", "logged in"] {
        assert_eq!(ann.reads(), news(state));
    }
    let mut ben = bus.client();
    ben.sends(&initialize(1, json!({})));
    assert_eq!(ben.gets(1), json!({ "protocolVersion": 1, "agentCapabilities": {} }));
    assert_eq!(ben.reads(), news("logged in"), "the last of them");
    ben.has_heard_nothing();
    ann.has_heard_nothing();
}

#[test]
fn who_never_initializes_is_never_mixed_with_those_who_do() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let (mut plain, mut acp) = (bus.client(), bus.client());
    plain.sends(&request(1, "work", json!({})));
    let puppet = whoever_hears(&mut workers);
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
fn a_client_that_leaves_before_initialize_is_answered_is_not_missed() {
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
