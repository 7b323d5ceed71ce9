//! Sessions that survive their worker and the bus, workers initialized ahead of use, permissions that the bus answers.

use serde_json::{Value, json};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{
    Bus, Client, bus_puppet_client, initialize, one_pool, puppets, request, run, session_of, with,
};

/// A pool of the echo agent that stores its sessions on disk.
fn echo_on_disk(more: Value) -> Value {
    let pool =
        json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo", "--state", "@dir/state"] });
    json!({ "pools": [with(pool, more)] })
}

/// An open session of the echo agent.
fn echo_session(client: &mut Client) -> String {
    client.sends(&initialize(0, json!({})));
    client.gets(0);
    client.sends(&request(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
    session_of(&answer_to(client, 1))
}

/// The answer to a request, whatever comes before it.
fn answer_to(client: &mut Client, id: u32) -> Value {
    loop {
        let message = client.receives();
        if message["id"] == id && message.get("method").is_none() {
            return message["result"].clone();
        }
    }
}

fn kill_worker(client: &mut Client) {
    let pid = client.status()["pools"][0]["workers"][0]["pid"].as_i64().expect("a pid");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
}

#[test]
fn a_session_goes_on_after_its_worker_was_killed() {
    let bus = Bus::start(echo_on_disk(json!({})));
    let mut client = bus.client();
    let session = echo_session(&mut client);
    assert_eq!(client.takes_turn(2, &session, "one").0, "one");
    for (id, text) in [(3, "two"), (4, "three")] {
        let deaths = client.status()["counters"]["worker_deaths"].as_u64();
        kill_worker(&mut client);
        bus.until("the death is known", || client.status()["counters"]["worker_deaths"].as_u64() > deaths);
        assert_eq!(client.takes_turn(id, &session, text).0, text);
    }
}

#[test]
fn modes_and_options_are_set_again_in_the_new_process() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "resume": {} } }));
    let session = client.opens(&mut puppet, "s1");
    client.sends(&request(2, "session/set_mode", json!({ "sessionId": session, "modeId": "plan" })));
    let asked = puppet.is_asked("session/set_mode");
    puppet.answers(&asked, json!({}));
    client.gets(2);
    puppet.dies_by(9);
    let mut next = bus.puppet();
    client.prompts(3, &session);
    let asked = next.is_asked("initialize");
    next.answers(&asked, json!({ "protocolVersion": 1 }));
    let asked = next.is_asked("session/resume");
    assert_eq!(asked["params"]["sessionId"], "s1");
    next.answers(&asked, json!({}));
    assert_eq!(next.is_asked("session/set_mode")["params"], json!({ "sessionId": "s1", "modeId": "plan" }));
    let asked = next.is_asked("session/prompt");
    next.ends_turn(&asked, "end_turn");
    client.gets(3);
}

#[test]
fn a_session_from_before_a_restart_of_the_bus_is_loaded_by_its_old_id() {
    let shelf = tempfile::tempdir().expect("a folder");
    let config = || {
        let args = ["agent", "echo", "--state", shelf.path().to_str().expect("UTF-8")];
        json!({ "pools": [{ "id": "echo", "command": "stdio-bus", "args": args }] })
    };
    let session = {
        let bus = Bus::start(config());
        let mut client = bus.client();
        let session = echo_session(&mut client);
        client.takes_turn(2, &session, "remember me");
        session
    };
    let bus = Bus::start(config());
    let mut client = bus.client();
    client.sends(&initialize(0, json!({})));
    client.gets(0);
    let again = json!({ "sessionId": session, "cwd": "/tmp", "mcpServers": [] });
    client.sends(&request(1, "session/load", again));
    let mut replay = String::new();
    loop {
        let message = client.receives();
        if message["id"] == 1 {
            assert!(message.get("error").is_none(), "{message}");
            break;
        }
        assert_eq!(message["params"]["sessionId"], *session, "{message}");
        replay += message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
    }
    assert_eq!(replay, "remember meremember me", "the prompt and the answer");
    assert_eq!(client.takes_turn(2, &session, "on").0, "on");
}

#[test]
fn workers_are_initialized_ahead_of_use_also_after_a_restart() {
    let state = tempfile::tempdir().expect("a folder");
    let file = state.path().join("bus.json");
    let start = || {
        Bus::plan(one_pool(1)).env("XDG_STATE_HOME", state.path().to_str().expect("UTF-8")).at(&file).start()
    };
    {
        let bus = start();
        let (mut puppet, mut client) = (bus.puppet(), bus.client());
        client.initializes(&mut puppet, json!({ "terminal": true }), json!({}));
        puppet.dies_by(9);
        let mut next = bus.puppet();
        let asked = next.is_asked("initialize");
        assert_eq!(
            asked["params"]["clientCapabilities"],
            json!({ "terminal": true }),
            "no client has asked for it"
        );
        next.answers(&asked, json!({ "protocolVersion": 1 }));
        client.has_received_nothing();
    }
    let bus = start();
    let mut puppet = bus.puppet();
    let asked = puppet.is_asked("initialize");
    assert_eq!(asked["params"]["clientCapabilities"], json!({ "terminal": true }));
    puppet.answers(&asked, json!({ "protocolVersion": 1, "n": 7 }));
    let mut client = bus.client();
    client.sends(&initialize(0, json!({ "terminal": true })));
    assert_eq!(client.gets(0)["n"], 7);
    assert!(!puppet.has_more());
}

#[test]
fn a_cold_pool_starts_with_its_first_message() {
    let pool = with(puppets("agents", 1), json!({ "warm": false }));
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut client = bus.client();
    assert_eq!(client.status()["pools"][0]["workers"], json!([]));
    client.sends(&request(1, "m", json!({})));
    let mut puppet = bus.puppet();
    puppet.is_asked("m");
}

#[test]
fn the_bus_answers_permissions_for_clients_that_cannot() {
    for (permission, expected) in [("allow", "allow"), ("deny", "reject")] {
        let bus = Bus::start(echo_on_disk(json!({ "permission": permission })));
        let mut client = bus.client();
        let session = echo_session(&mut client);
        let (text, questions) = client.takes_turn(2, &session, "/ask");
        assert!(text.contains(expected) && questions == 0, "{permission}: {text}");
    }
}

#[test]
fn check_probe_prints_what_the_agents_are_and_leaves_no_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = json!({ "pools": [{ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] }] });
    std::fs::write(folder.path().join("bus.json"), config.to_string()).expect("a file");
    let out = run(folder.path(), &["check", "--probe"], "");
    let printed = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && printed.contains("pool echo answers: Echo"), "{out:?}");
    assert!(
        printed.contains("protocol 1") && printed.contains("load") && printed.contains("resume"),
        "{printed}"
    );

    let config = json!({ "pools": [{ "id": "a", "command": "false" }, { "id": "b", "command": "cat" }],
        "limits": { "init_timeout_sec": 0.2 } });
    std::fs::write(folder.path().join("bus.json"), config.to_string()).expect("a file");
    let out = run(folder.path(), &["check", "--probe"], "");
    let printed = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(printed.contains("pools[0]: it ended (exit status: 1)"), "{printed}");
    assert!(printed.contains("pools[1]: no answer to initialize"), "{printed}");
}

#[test]
fn a_turn_that_was_lost_with_its_process_is_not_cancelled_in_the_next() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "resume": {} } }));
    let session = client.opens(&mut puppet, "s1");
    client.prompts(2, &session);
    puppet.is_asked("session/prompt");
    puppet.dies_by(9);
    client.sees_error(2, -32050, "worker_lost");
    let mut next = bus.puppet();
    client.prompts(3, &session);
    let asked = next.is_asked("initialize");
    next.answers(&asked, json!({ "protocolVersion": 1 }));
    let asked = next.is_asked("session/resume");
    next.answers(&asked, json!({}));
    let asked = next.is_asked("session/prompt");
    next.ends_turn(&asked, "end_turn");
    client.gets(3);
}

#[test]
fn a_turn_that_goes_on_behind_another_bus_is_cancelled() {
    let far = Bus::start(one_pool(1));
    let mut puppet = far.puppet();
    let args = ["connect", "--tcp", far.tcp()];
    let near = Bus::start(json!({ "pools": [{ "id": "far", "command": "stdio-bus", "args": args }] }));
    let mut client = near.client();
    client.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "resume": {} } }));
    let session = client.opens(&mut puppet, "s1");
    client.prompts(2, &session);
    let lost = puppet.is_asked("session/prompt");
    kill_worker(&mut client);
    client.sees_error(2, -32050, "worker_lost");
    client.prompts(3, &session);
    assert_eq!(puppet.is_asked("session/cancel")["params"], json!({ "sessionId": "s1" }));
    puppet.ends_turn(&lost, "cancelled");
    let asked = puppet.is_asked("session/prompt");
    puppet.ends_turn(&asked, "end_turn");
    assert_eq!(client.gets(3)["stopReason"], "end_turn");
}
