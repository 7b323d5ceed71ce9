//! What works without a word in bus.json: a pool that only names its command serves every kind of client.

use serde_json::{Value, json};

use crate::harness::{Bus, Client, initialize, puppets, run, session_of, with};

/// A pool that says nothing but what runs in it.
fn echo() -> Value {
    json!({ "pools": [{ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] }] })
}

/// A client with these capabilities that has a session of its own and has been answered in it.
fn at_work(bus: &Bus, capabilities: Value) -> (Client, String) {
    let mut client = bus.client();
    client.sends(&initialize(0, capabilities));
    client.gets(0);
    client.asks_for_session(1);
    let session = loop {
        let message = client.receives();
        if message["id"] == 1 {
            break session_of(&message["result"]);
        }
    };
    assert_eq!(client.takes_turn(2, &session, "hello").0, "hello");
    (client, session)
}

#[test]
fn all_kinds_of_clients_share_a_pool_that_only_names_its_command() {
    let bus = Bus::start(echo());
    let fs = json!({ "readTextFile": true, "writeTextFile": true });
    let (mut editor, first) = at_work(&bus, json!({ "fs": fs }));
    let (mut other, second) = at_work(&bus, json!({ "fs": fs, "terminal": true }));
    // It never initializes.
    let mut plain = bus.client();
    assert_eq!(plain.asks(1, "any/method", json!({ "a": 1 }))["echo"], json!({ "a": 1 }));
    let config = bus.config_path();
    let config = config.to_str().expect("UTF-8");
    let address = bus.addresses[0].as_str();
    let at = ["--tcp", address.strip_prefix("tcp://").expect("a TCP listener")];
    let out =
        run(bus.folder(), &[&["run", "--config", config, "--pool", "echo"], &at[..], &["hi"]].concat(), "");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "hi\n", "{}", String::from_utf8_lossy(&out.stderr));
    let out = run(bus.folder(), &[&["call", "any/method", r#"{"b":2}"#], &at[..]].concat(), "");
    assert!(
        String::from_utf8_lossy(&out.stdout).contains(r#""b""#),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    for (client, session) in [(&mut editor, first), (&mut other, second)] {
        assert_eq!(client.takes_turn(3, &session, "still here").0, "still here");
    }
    let pool = &plain.status()["pools"][0];
    assert_eq!(pool["max_instances"], 8);
    assert!(pool["up"].as_u64() >= Some(3), "{pool}");
}

#[test]
fn a_process_for_a_guest_is_stopped_when_it_has_had_no_session_for_idle_sec() {
    let pool = with(puppets("p", 1), json!({ "max_instances": 8, "idle_sec": 0.2 }));
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut one = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.initializes(&mut one, json!({}), json!({}));
    ann.opens(&mut one, "a");
    ben.sends(&initialize(0, json!({ "terminal": true })));
    let mut two = bus.puppet();
    let asked = two.is_asked("initialize");
    two.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": {} }));
    ben.gets(0);
    two.stdin_ends();
    two.is_gone();
    // The next one of his is started when he needs it.
    ben.asks_for_session("1");
    let mut three = bus.puppet();
    let asked = three.is_asked("initialize");
    three.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": {} }));
    let asked = three.is_asked("session/new");
    three.answers(&asked, json!({ "sessionId": "b" }));
    ben.gets(1);
    ann.opens(&mut one, "a2");
}
