//! Faults of workers: they exit, stop in the middle of a line, answer nonsense, cannot be started. Each call still gets
//! one answer, and the pool serves again.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::{
    Bus, bus_puppet_client, cpu_ticks, first_asked, initialize, is_gone, is_stopped, one_pool, puppets,
    puppets_after, request, result, update,
};

#[test]
fn a_worker_that_exits_while_idle_is_replaced_and_its_sessions_are_lost() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    puppet.exits(0);
    let mut next = bus.puppet();
    client.prompts(1, &session);
    assert_eq!(client.sees_error(1, -32051, "unknown_session")["lost"], true);
    client.opens(&mut next, "s1");
}

#[test]
fn a_partial_line_of_a_dead_worker_is_dropped() {
    let bus = Bus::start(one_pool(1));
    let mut client = bus.client();
    let text = "x".repeat(100_000);
    for part in [1, 50, 99] {
        let mut puppet = bus.puppet();
        let session = client.opens(&mut puppet, "s1");
        client.prompts(1, &session);
        let turn = puppet.is_asked("session/prompt");
        puppet.sends(&update("s1", "whole"));
        let broken = match part {
            50 => update("s1", &text),
            _ => result(&turn["id"], json!(text)),
        };
        puppet.sends_bytes(&broken.as_bytes()[..broken.len() * part / 100]);
        puppet.dies_by(Signal::SIGKILL as i32);
        assert_eq!(client.reads(), update(&session, "whole"));
        client.sees_error(1, -32050, "worker_lost");
        client.has_received_nothing();
    }
}

#[test]
fn a_forked_child_of_a_worker_is_killed_with_it() {
    let forks = puppets_after("(sleep 1000 & echo $! > @dir/forked.$$)", "p");
    let bus = Bus::start(json!({ "pools": [forks] }));
    let mut puppet = bus.puppet();
    let file = bus.folder().join(format!("forked.{}", puppet.pid));
    let forked: u32 = fs::read_to_string(file).expect("it was forked").trim().parse().expect("a pid");
    assert!(!is_gone(forked));
    puppet.exits(0);
    bus.until("it has exited too", || is_gone(forked));
    bus.puppet();
}

#[test]
fn a_suspended_worker_that_owes_an_answer_is_continued_so_that_it_can_exit() {
    // A killed process could not report that it was asked to exit.
    let script = "trap 'echo asked > @dir/asked; exit' TERM; kill -STOP $$; while read line; do :; done";
    let pool = json!({ "id": "p", "command": "sh", "args": ["-c", script] });
    let bus = Bus::start(json!({ "pools": [pool], "limits": { "silence_timeout_sec": 0.3 } }));
    let mut client = bus.client();
    let mut pid = json!(null);
    bus.until("it has stopped itself", || {
        pid = client.status()["pools"][0]["workers"][0]["pid"].clone();
        pid.as_u64().is_some_and(|pid| is_stopped(pid as u32))
    });
    client.sends(&request(1, "work", json!({})));
    client.sees_error(1, -32050, "worker_lost");
    bus.until("it was asked to exit", || bus.folder().join("asked").exists());
}

#[test]
fn an_invalid_answer_becomes_an_error_for_its_caller() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let nonsense: [&[u8]; 6] = [
        b"{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":\"\xff\"}",
        b"{\"jsonrpc\":\"2.0\",\"result\":\"\xff\",\"id\":@}",
        b"{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":1,\"error\":{\"code\":1,\"message\":\"both\"}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":@}",
        b"{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":1,\"result\":2}",
        b"{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":[1,2}",
    ];
    for (n, line) in nonsense.into_iter().enumerate() {
        client.sends(&request(n, "work", json!({})));
        let id = puppet.is_asked("work")["id"].to_string();
        let at = line.iter().position(|byte| *byte == b'@').expect("an id");
        puppet.sends_bytes(&[&line[..at], id.as_bytes(), &line[at + 1..], b"\n"].concat());
        client.sees_error(n, -32600, "invalid");
    }
    assert_eq!(client.status()["counters"]["worker_deaths"], 0);
}

#[test]
fn a_program_that_cannot_be_run_takes_only_its_pool_down_and_says_why() {
    let broken = [
        ("no-right", json!({ "command": "@dir/no-right" }), "Permission denied"),
        ("no-interpreter", json!({ "command": "@dir/no-interpreter" }), "No such file"),
        ("no-folder", json!({ "command": "cat", "cwd": "/no/such/folder" }), "/no/such/folder"),
    ];
    let mut pools = vec![puppets("p", 1)];
    for (id, pool, _) in &broken {
        let mut pool = pool.clone();
        (pool["id"], pool["warm"]) = (json!(id), json!(false));
        pools.push(pool);
    }
    let bus = Bus::start(json!({ "pools": pools, "default_pool": "p" }));
    for (name, mode) in [("no-right", 0o644), ("no-interpreter", 0o755)] {
        let path = bus.folder().join(name);
        fs::write(&path, "#!/no/such/program\n").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a file of ours");
    }
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    for (id, _, reason) in &broken {
        client.asks_pool(id, 1, "work");
        let data = client.sees_error(1, -32053, "pool_down");
        assert!(data["cause"].as_str().is_some_and(|cause| cause.contains(reason)), "{data}");
    }
    client.sends(&request(2, "work", json!({})));
    puppet.is_asked("work");
}

#[test]
fn a_worker_that_closed_its_stderr_works_as_usual() {
    let bus = Bus::start(json!({ "pools": [puppets_after("exec 2>&-", "p")] }));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    let before = cpu_ticks(bus.pid());
    for _ in 0..100 {
        client.is_served_by(&mut puppet);
    }
    assert!(cpu_ticks(bus.pid()) - before < 50);
}

#[test]
fn a_session_id_that_an_agent_gives_twice_is_refused_and_the_first_session_goes_on() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    for client in [&mut ben, &mut ann] {
        client.sends(&request(1, "session/new", json!({})));
        let asked = puppet.is_asked("session/new");
        puppet.answers(&asked, json!({ "sessionId": "s1" }));
        client.sees_error(1, -32600, "invalid");
    }
    puppet.sends(&update("s1", "word"));
    assert_eq!(ann.reads(), update(&session, "word"));
    ann.prompts(2, &session);
    puppet.is_asked("session/prompt");
    ben.has_received_nothing();
}

#[test]
fn the_oom_killer_prefers_a_worker_to_the_bus() {
    let bus = Bus::start(one_pool(1));
    let puppet = bus.puppet();
    let score = |pid: u32| -> i32 {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
        text.trim().parse().expect("a number")
    };
    bus.until("it is known", || score(puppet.pid) == (score(bus.pid()) + 100).min(1000));
}

#[test]
fn workers_of_a_pool_may_answer_initialize_differently() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let offers = [json!({ "loadSession": true }), json!({ "loadSession": false })];
    ann.sends(&initialize(0, json!({})));
    let first = first_asked(&mut workers);
    let asked = first.is_asked("initialize");
    first.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": offers[0] }));
    let pid = first.pid;
    assert_eq!(ann.gets(0)["agentCapabilities"], offers[0]);
    workers.sort_by_key(|puppet| puppet.pid != pid);
    let [one, two] = &mut workers;
    // The second process is initialized ahead of use, and answers differently.
    let asked = two.is_asked("initialize");
    two.answers(&asked, json!({ "protocolVersion": 2, "agentCapabilities": offers[1] }));
    two.is_read();
    ann.opens(one, "s1");
    ben.sends(&initialize(0, json!({})));
    let offered = ben.gets(0)["agentCapabilities"].clone();
    assert!(offers.contains(&offered), "one of the two, unchanged: {offered}");
    ben.opens(two, "s1");
}
