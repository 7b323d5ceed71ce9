//! What works without a word in bus.json: a pool that only names its command serves every kind of client.

use serde_json::{Value, json};

use crate::harness::{
    Bus, Client, bus_puppet_client, initialize, notification, one_pool, puppets, request, run, session_of,
    with,
};

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

#[test]
fn a_client_with_other_capabilities_waits_for_sessions_that_are_being_closed() {
    let bus = Bus::start(one_pool(1));
    let mut one = bus.puppet();
    let mut ann = bus.client();
    ann.initializes(&mut one, json!({}), json!({ "sessionCapabilities": { "close": {} } }));
    ann.opens(&mut one, "s1");
    ann.sends(&notification("_bus/bye", json!({})));
    drop(ann);
    let closing = one.is_asked("session/close");
    let mut ben = bus.client();
    ben.sends(&request(1, "work", json!({})));
    ben.has_received_nothing();
    one.answers(&closing, json!({}));
    one.stdin_ends();
    one.is_gone();
    let mut two = bus.puppet();
    let asked = two.is_asked("work");
    two.answers(&asked, json!({ "done": true }));
    assert_eq!(ben.gets(1), json!({ "done": true }));
    let status = ben.status();
    assert_eq!(
        (&status["counters"]["worker_deaths"], &status["counters"]["recycled"]),
        (&json!(0), &json!(1))
    );
    let worker = &status["pools"][0]["workers"][0];
    assert_eq!(
        (&worker["last_recycled"], &worker["last_exit"]),
        (&json!("other capabilities"), &json!(null))
    );
    let out = run(bus.folder(), &["status", "--tcp", bus.tcp()], "");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("recycled: other capabilities") && text.contains("1 recycled"), "{text}");
}

#[test]
fn busy_says_what_to_raise_and_the_log_says_it_once_a_minute() {
    let (bus, mut puppet, mut ann) = bus_puppet_client();
    ann.initializes(&mut puppet, json!({}), json!({}));
    ann.opens(&mut puppet, "s1");
    let mut ben = bus.client();
    for n in 0..3 {
        ben.sends(&request(n, "work", json!({})));
        let data = ben.sees_error(n, -32054, "busy");
        assert_eq!(data, json!({ "reason": "busy", "pool": "p", "processes": 1, "raise": "max_instances" }));
    }
    bus.log_has("it has 1 process: raise max_instances of the pool");
    assert_eq!(bus.log.text().matches("raise max_instances").count(), 1);
}

#[test]
fn errors_show_what_the_agent_wrote_last() {
    let script = "i=0; while [ $i -lt 30 ]; do echo line $i >&2; i=$((i+1)); done; \
        printf '\\033[31mno key\\n' >&2; read x; exit 3";
    let agent = json!({ "id": "a", "command": "sh", "args": ["-c", script] });
    let bus = Bus::start(json!({ "pools": [agent], "limits": { "max_restarts": 0 } }));
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    let lost = client.sees_error(1, -32050, "worker_lost");
    let said = lost["stderr"].as_str().expect("text");
    assert!(said.starts_with("line 11\nline 12\n") && said.ends_with("line 29\n\\u{1b}[31mno key"), "{said}");
    client.sends(&request(2, "work", json!({})));
    assert_eq!(client.sees_error(2, -32053, "pool_down")["stderr"], said);
    let out = run(bus.folder(), &["call", "work", "--tcp", bus.tcp()], "");
    assert!(String::from_utf8_lossy(&out.stderr).contains(r"line 29\n\\u{1b}[31mno key"));
    let config = bus.config_path();
    let config = config.to_str().expect("UTF-8");
    let out = run(
        bus.folder(),
        &["run", "--once", "--pool", "a", "--tcp", bus.tcp(), "--config", config, "hi"],
        "",
    );
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("\n| line 29\n| \\u{1b}[31mno key"), "{text}");
}
