//! Pools: which one a message goes to, and what happens to those that cannot start.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Bus, puppets, request, session_of};

fn two_pools(default: Option<&str>) -> Value {
    let mut config = json!({ "pools": [puppets("a", 1), puppets("b", 1)] });
    if let Some(default) = default {
        config["default_pool"] = json!(default);
    }
    config
}

#[test]
fn a_client_goes_to_the_default_pool_unless_it_names_another() {
    let bus = Bus::start(two_pools(Some("b")));
    let (mut a, mut b) = (bus.puppet_of("a"), bus.puppet_of("b"));
    let mut client = bus.client();
    client.is_served_by(&mut b);
    let hello = client.asks(2, "_bus/hello", json!({ "pool": "a", "client": "test" }));
    assert_eq!(hello["bus"], "stdio-bus");
    assert_eq!(hello["pools"], json!(["a", "b"]));
    assert!(hello["version"].is_string());
    client.is_served_by(&mut a);
    client.sends(&request(3, "_bus/hello", json!({ "pool": "c" })));
    assert_eq!(client.sees_error(3, -32052, "unknown_pool")["pools"], json!(["a", "b"]));
    client.is_served_by(&mut a);
}

#[test]
fn without_a_default_pool_the_error_lists_the_pools() {
    let bus = Bus::start(two_pools(None));
    let mut b = bus.puppet_of("b");
    let mut client = bus.client();
    for method in ["work", "initialize", "session/new", "authenticate"] {
        client.sends(&request(1, method, json!({})));
        assert_eq!(client.sees_error(1, -32052, "unknown_pool")["pools"], json!(["a", "b"]));
    }
    client.asks_pool("b", 2, "work");
    let asked = b.is_asked("work");
    b.answers(&asked, json!({}));
    client.gets(2);
    client.asks_pool("c", 3, "work");
    client.sees_error(3, -32052, "unknown_pool");
}

#[test]
fn a_listener_may_be_bound_to_a_pool() {
    let mut config = two_pools(Some("a"));
    config["listen"] =
        json!(["tcp://127.0.0.1:0", "tcp://localhost:0?pool=b", "unix://@dir/bus.sock?pool=b"]);
    let bus = Bus::start(config);
    let (mut a, mut b) = (bus.puppet_of("a"), bus.puppet_of("b"));
    bus.client_at(0).is_served_by(&mut a);
    bus.client_at(1).is_served_by(&mut b);
    bus.client_at(2).is_served_by(&mut b);
}

#[test]
fn one_connection_holds_sessions_in_several_pools() {
    let bus = Bus::start(two_pools(Some("a")));
    let (mut a, mut b) = (bus.puppet_of("a"), bus.puppet_of("b"));
    let mut client = bus.client();
    let in_a = client.opens(&mut a, "s1");
    client.sends(&request(2, "session/new", json!({ "cwd": "/", "_meta": { "bus/pool": "b", "x": 1 } })));
    let asked = b.is_asked("session/new");
    b.answers(&asked, json!({ "sessionId": "s1" }));
    let in_b = session_of(&client.gets(2));
    for (session, puppet) in [(&in_b, &mut b), (&in_a, &mut a)] {
        client.prompts(3, session);
        let asked = puppet.is_asked("session/prompt");
        puppet.answers(&asked, json!({}));
        client.gets(3);
    }
    client.sends(&request(4, "session/load", json!({ "sessionId": "old", "_meta": { "bus/pool": "b" } })));
    b.is_asked("session/load");
    client.sends(&request(5, "session/new", json!({ "_meta": { "bus/pool": "c" } })));
    client.sees_error(5, -32052, "unknown_pool");
}

#[test]
fn a_program_that_does_not_exist_takes_down_its_own_pool_only() {
    let nowhere = json!({ "id": "nowhere", "command": "/no/such/program" });
    let not_in_path = json!({ "id": "not-in-path", "command": "no-such-program-anywhere" });
    let bus = Bus::start(json!({ "pools": [nowhere, not_in_path, puppets("p", 1)], "default_pool": "p" }));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    for pool in ["nowhere", "not-in-path"] {
        for method in ["work", "initialize", "session/new"] {
            client.asks_pool(pool, 1, method);
            let data = client.sees_error(1, -32053, "pool_down");
            assert_eq!(data["pool"], pool);
            assert!(data["cause"].as_str().is_some_and(|cause| cause.contains("No such file")), "{data}");
        }
    }
    bus.client().is_served_by(&mut puppet);
}

#[test]
fn a_crash_loop_ends_soon_and_requests_are_answered_at_once() {
    let script = "echo started >> starts; echo why >&2; exit 3";
    let loops = json!({ "id": "loops", "command": "sh", "args": ["-c", script], "cwd": "@dir" });
    let limits = json!({ "max_restarts": 2, "restart_window_sec": 1000 });
    let bus =
        Bus::start(json!({ "pools": [loops, puppets("p", 1)], "limits": limits, "default_pool": "loops" }));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    bus.until("the pool is down", || {
        client.sends(&request(1, "work", json!({})));
        let error = client.receives()["error"].clone();
        assert!(error["code"] == -32050 || error["code"] == -32053, "{error}");
        error["data"]["reason"] == "pool_down"
    });
    for _ in 0..20 {
        client.sends(&request(2, "work", json!({})));
        let data = client.sees_error(2, -32053, "pool_down");
        assert!(data["cause"].as_str().is_some_and(|cause| cause.contains("code 3")), "{data}");
    }
    let starts = fs::read_to_string(bus.folder().join("starts")).expect("it was started");
    assert_eq!(starts.lines().count(), 3, "the first start and two more");
    client.asks(3, "_bus/hello", json!({ "pool": "p" }));
    client.is_served_by(&mut puppet);
}

#[test]
fn a_pool_has_its_own_working_directory_and_environment() {
    let strict = json!({ "id": "p", "command": env!("CARGO_BIN_EXE_puppet"), "args": ["@sock", "p", "x y"],
        "cwd": "@dir", "env": { "OWN": "1", "FROM": "<${GIVEN}>" }, "inherit_env": ["GIVEN"] });
    let bus = Bus::plan(json!({ "pools": [strict] })).env("GIVEN", "g").env("SECRET", "s").start();
    let about = bus.puppet().about;
    assert_eq!(about["args"][2], "x y", "no shell has split it");
    assert_eq!(about["cwd"], json!(bus.folder().canonicalize().expect("it exists")));
    let env = about["env"].as_object().expect("an object");
    assert_eq!((&env["OWN"], &env["FROM"], &env["GIVEN"]), (&json!("1"), &json!("<g>"), &json!("g")));
    assert_eq!(env.get("SECRET"), None);
}
