//! Many clients and workers that are killed, all at once: each request still gets exactly one answer.

use std::collections::BTreeMap;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, request, session_of};

const CLIENTS: u32 = 6;
const REQUESTS: u32 = 300;

#[test]
fn every_request_gets_one_answer_while_workers_are_killed() {
    let echo = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo", "--chunks", "3"],
        "instances": 3, "max_sessions": 1000 });
    let bus = Bus::start(json!({ "pools": [echo], "limits": { "max_restarts": 1000 } }));
    let mut watcher = bus.client();
    let clients: Vec<_> = (0..CLIENTS).map(|_| bus.client()).collect();
    let clients: Vec<_> =
        clients.into_iter().map(|mut client| thread::spawn(move || send_requests(&mut client))).collect();
    for _ in 0..3 {
        bus.until("all three are up", || pids(&watcher.status()).len() == 3);
        for pid in pids(&watcher.status()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    for client in clients {
        let reasons = client.join().expect("each was answered once");
        let known = ["ok", "worker_lost", "unknown_session"];
        assert!(reasons.keys().all(|reason| known.contains(&reason.as_str())), "{reasons:?}");
    }
    let status = watcher.status();
    assert_eq!((&status["calls"], &status["counters"]["stray_answers"]), (&json!(0), &json!(0)), "{status}");
}

fn pids(status: &Value) -> Vec<i32> {
    let workers = status["pools"][0]["workers"].as_array().expect("workers");
    let up = workers.iter().filter(|worker| worker["state"] == "up");
    up.filter_map(|worker| worker["pid"].as_i64()?.try_into().ok()).collect()
}

/// Sends requests of all kinds, a few at a time, and counts their outcomes.
fn send_requests(client: &mut Client) -> BTreeMap<String, u32> {
    let mut outcomes = BTreeMap::new();
    let mut session = String::from("none yet");
    for round in 0..REQUESTS / 5 {
        let first = round * 5;
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "one two three" }] });
        client.sends(&request(first, "session/prompt", prompt));
        client.sends(&request(first + 1, "session/new", json!({ "cwd": "/", "mcpServers": [] })));
        for id in first + 2..first + 5 {
            client.sends(&request(id, "any/method", json!({ "id": id })));
        }
        let mut waiting: Vec<u32> = (first..first + 5).collect();
        while !waiting.is_empty() {
            let message = client.receives();
            if message.get("method").is_some() {
                continue;
            }
            let id = message["id"].as_u64().expect("an id of ours") as u32;
            let at = waiting.iter().position(|waits| *waits == id).expect("an answer that is waited for");
            waiting.swap_remove(at);
            let outcome = match message.get("error") {
                Some(error) => error["data"]["reason"].as_str().unwrap_or("no reason"),
                None => "ok",
            };
            *outcomes.entry(outcome.to_owned()).or_default() += 1;
            if id == first + 1 && outcome == "ok" {
                session = session_of(&message["result"]);
            }
        }
    }
    outcomes
}
