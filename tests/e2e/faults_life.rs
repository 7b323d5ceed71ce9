//! Faults in the life of a bus: too many reloads, reloads that fail, signals in the wrong order, an abort. No process
//! is ever left behind and no change is ever half done.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, Connection, limited, one_pool, open_fds, puppets, request};

fn config(pools: &[Value], drain_sec: f64) -> Value {
    json!({ "pools": pools, "default_pool": "p", "limits": { "drain_timeout_sec": drain_sec } })
}

#[test]
fn a_removed_pool_finishes_its_calls_until_the_drain_timeout() {
    let both = [puppets("p", 1), puppets("q", 1)];
    for in_time in [true, false] {
        let drain_sec = if in_time { 1000.0 } else { 0.2 };
        let bus = Bus::start(config(&both, drain_sec));
        let (mut kept, mut removed) = (bus.puppet_of("p"), bus.puppet_of("q"));
        let mut client = bus.client();
        client.sends(&request(1, "session/new", json!({ "_meta": { "bus/pool": "q" } })));
        let asked = removed.is_asked("session/new");
        removed.answers(&asked, json!({ "sessionId": "s1" }));
        let session = client.gets(1)["sessionId"].as_str().expect("a session").to_owned();
        client.prompts(2, &session);
        let turn = removed.is_asked("session/prompt");
        bus.rewrite(&config(&both[..1], drain_sec));
        bus.signal(Signal::SIGHUP);
        bus.log_has("pool q is no longer declared");
        client.sends(&request(3, "session/new", json!({ "_meta": { "bus/pool": "q" } })));
        if in_time {
            client.sees_error(3, -32052, "unknown_pool");
            removed.ends_turn(&turn, "end_turn");
            assert_eq!(client.gets(2)["stopReason"], "end_turn");
        } else {
            let answers = [client.receives(), client.receives()];
            let reason = |id: u32| {
                let answer = answers.iter().find(|answer| answer["id"] == id);
                answer.map(|answer| answer["error"]["data"]["reason"].clone())
            };
            assert_eq!(reason(3), Some(json!("unknown_pool")), "{answers:?}");
            assert_eq!(reason(2), Some(json!("stopping")), "{answers:?}");
            removed.stdin_ends();
            removed.is_gone();
            bus.until("the session is lost", || {
                client.prompts(4, &session);
                client.receives()["error"]["data"]["lost"] == true
            });
        }
        client.is_served_by(&mut kept);
    }
}

#[test]
fn a_hundred_reloads_leave_one_process_and_no_fd_behind() {
    let bus = Bus::start(one_pool(1));
    let mut watcher = bus.client();
    let mut puppet = bus.puppet();
    watcher.is_served_by(&mut puppet);
    let before = open_fds(bus.pid());
    for n in 0..100 {
        let mut changed = puppets("p", 1);
        changed["args"] = json!(["@sock", "p", n.to_string()]);
        bus.rewrite(&json!({ "pools": [changed] }));
        bus.signal(Signal::SIGHUP);
    }
    let mut newest = bus.puppet();
    while newest.about["args"][2] != "99" {
        newest = bus.puppet();
    }
    watcher.is_served_by(&mut newest);
    bus.until("no fd is left over", || open_fds(bus.pid()) <= before);
    // The bus, its orphan guard and one worker.
    bus.until("no process is left over", || bus.survivors().len() == 3);
}

#[test]
fn a_reload_whose_listener_cannot_be_opened_changes_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = format!("tcp://{}", taken.local_addr().expect("an address"));
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/one"] }));
    let mut puppet = bus.puppet();
    let pools = json!([puppets("p", 1), puppets("q", 1)]);
    bus.rewrite(&json!({ "pools": pools, "listen": ["unix://@dir/two", place] }));
    bus.signal(Signal::SIGHUP);
    bus.log_has("reload refused");
    bus.client().is_served_by(&mut puppet);
    assert!(!bus.folder().join("two").exists(), "the listener that could be opened is closed again");
    assert!(!bus.has_another_puppet());
}

#[test]
fn a_reload_that_fails_does_not_close_a_socket_whose_file_was_moved() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = format!("tcp://{}", taken.local_addr().expect("an address"));
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/one"] }));
    let mut puppet = bus.puppet();
    let moved = bus.folder().join("moved");
    std::fs::rename(bus.folder().join("one"), &moved).expect("it is there");
    bus.rewrite(&json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/one", place] }));
    bus.signal(Signal::SIGHUP);
    bus.log_has("reload refused");
    let still_open = UnixStream::connect(&moved).expect("it listens");
    Client::new(Connection::socket("client", still_open, &bus.log)).is_served_by(&mut puppet);
    bus.rewrite(&json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/one"] }));
    bus.signal(Signal::SIGHUP);
    bus.log_has("the configuration was reloaded");
    bus.client().is_served_by(&mut puppet);
    assert!(UnixStream::connect(&moved).is_err(), "it was replaced");
}

#[test]
fn a_stop_wins_over_any_number_of_reloads() {
    let mut bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    bus.log_has("stopping");
    bus.rewrite(&json!({ "pools": [puppets("p", 1), puppets("q", 1)] }));
    for _ in 0..100 {
        bus.signal(Signal::SIGHUP);
    }
    client.has_received_nothing();
    puppet.answers(&asked, json!({}));
    client.gets(1);
    assert_eq!(bus.exit_status().code(), Some(0));
    assert!(!bus.log.text().contains("the configuration was reloaded"));
    assert!(!bus.has_another_puppet());
}

#[test]
fn a_worker_in_backoff_is_not_started_when_the_bus_stops() {
    let script = "echo started >> @dir/starts; exit 3";
    let crashes = json!({ "id": "crashes", "command": "sh", "args": ["-c", script] });
    let mut bus = Bus::start(json!({ "pools": [crashes] }));
    bus.log_has("exited with code 3");
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    let log = bus.log.text();
    let after = log.split("stopping:").nth(1).expect("it was logged");
    assert!(!after.contains("started, pid"), "{log}");
}

#[test]
fn a_worker_that_ignores_everything_does_not_keep_the_bus_from_exiting() {
    let mut bus = Bus::start(limited(1, json!({ "drain_timeout_sec": 0.1 })));
    let mut puppet = bus.puppet();
    puppet.stays();
    puppet.ignores_sigterm();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    client.sees_error(1, -32055, "stopping");
    assert_eq!(bus.exit_status().code(), Some(0));
    bus.leaves_nothing();
}

#[test]
fn after_an_abort_no_process_is_left_within_two_seconds() {
    let mut bus = Bus::plan(one_pool(2)).after("ulimit -c 0").start();
    let mut workers = bus.puppets::<2>();
    for puppet in &mut workers {
        puppet.has_a_child();
        puppet.stays();
        puppet.ignores_sigterm();
    }
    // A panic ends in an abort.
    bus.signal(Signal::SIGABRT);
    assert!(!bus.exit_status().success());
    bus.leaves_nothing();
}
