//! Stories of what an operator asks: what processes use, what they wrote to stderr, a reload, a stop.

use serde_json::{Value, json};

use super::*;
use crate::limit::{RELOADS_WAITING, USAGE_EVERY};

impl TestBus {
    pub(super) fn asks_for(&mut self, client: Link, method: &str, params: Value) -> Value {
        self.sends(client, &json!({ "id": 1, "method": method, "params": params }).to_string());
        self.sees_json(client)
    }
}

#[test]
fn a_status_tells_what_processes_use() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    bus.shell.bus.runs_as(4711, Some("/srv/bus.json".to_owned()), Some("abc"));
    let status = bus.asks_for(client, "_bus/status", json!({}))["result"].clone();
    assert_eq!((&status["pid"], &status["config"]), (&json!(4711), &json!("/srv/bus.json")));
    assert_eq!(status["commit"], "abc");
    let worker = &status["pools"][0]["workers"][0];
    assert_eq!((&worker["rss_bytes"], &worker["cpu_percent"]), (&json!(1 << 20), &json!(12.5)));
}

#[test]
fn processes_are_measured_once_for_all_who_ask_and_not_too_often() {
    let mut bus = TestBus::with_workers(1);
    let clients = [bus.client(), bus.client()];
    let asks = |bus: &mut TestBus| {
        for client in clients {
            let line = b"{\"id\":1,\"method\":\"_bus/status\"}\n";
            bus.shell.bus.received(client, line, bus.shell.now);
        }
        let mut measures = 0;
        while let Some(action) = bus.shell.bus.next_action() {
            if action == Action::Measure {
                measures += 1;
                bus.shell.bus.measured([], bus.shell.now);
            }
        }
        for client in clients {
            let bytes = bus.shell.bus.to_send(client).len();
            assert!(bytes > 0, "every status is answered");
            bus.shell.bus.sent(client, bytes, bus.shell.now);
        }
        measures
    };
    assert_eq!([asks(&mut bus), asks(&mut bus)], [1, 0]);
    bus.advances(USAGE_EVERY);
    assert_eq!(asks(&mut bus), 1);
    bus.is_idle();
}

#[test]
fn a_reload_is_answered_when_the_shell_is_done() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    for (outcome, expected) in [
        (Ok(&["pool a: args".to_owned()][..]), json!({ "changed": ["pool a: args"] })),
        (Err("a: x\nb: y"), json!(["a: x", "b: y"])),
    ] {
        for id in 0..=RELOADS_WAITING {
            let line = format!("{{\"id\":{id},\"method\":\"_bus/reload\"}}\n");
            bus.shell.bus.received(client, line.as_bytes(), bus.shell.now);
        }
        let mut reloads = 0;
        while let Some(action) = bus.shell.bus.next_action() {
            if action == Action::Reload {
                reloads += 1;
                bus.shell.bus.reloaded(outcome, bus.shell.now);
            }
        }
        assert_eq!(reloads, 1);
        let bytes = bus.shell.bus.to_send(client).to_vec();
        bus.shell.bus.sent(client, bytes.len(), bus.shell.now);
        let answers: Vec<Value> =
            bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(answers.len(), RELOADS_WAITING + 1);
        assert_eq!(answers[0]["error"]["data"]["reason"], "busy", "one too many asked");
        let answer = &answers[1];
        let told = if outcome.is_ok() { &answer["result"] } else { &answer["error"]["data"]["errors"] };
        assert_eq!(*told, expected);
    }
    bus.is_idle();
}

#[test]
fn a_stop_is_that_of_a_signal_and_a_second_one_does_not_wait() {
    let mut bus = TestBus::with_workers(1);
    let (client, operator, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":7,"method":"work"}"#);
    bus.sees(worker);
    let stopping = bus.asks_for(operator, "_bus/stop", json!({}));
    assert_eq!(stopping["result"]["calls"], 1);
    bus.sends(client, r#"{"id":8,"method":"more"}"#);
    bus.sees_error(client, json!(8), "stopping");
    bus.asks_for(operator, "_bus/stop", json!({}));
    bus.sees_nothing(client);
    bus.sends(operator, r#"{"id":2,"method":"_bus/reload"}"#);
    bus.sees_error(operator, json!(2), "stopping");
    bus.asks_for(operator, "_bus/stop", json!({ "now": true }));
    bus.sees_error(client, json!(7), "stopping");
}

#[test]
fn a_stop_tells_how_many_calls_it_waits_for() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    bus.opens(client, worker, "s1");
    // It does not wait for what an agent has asked.
    bus.sends(worker, r#"{"id":3,"method":"fs/read_text_file","params":{"sessionId":"s1"}}"#);
    let operator = bus.client();
    assert_eq!(bus.asks_for(operator, "_bus/stop", json!({}))["result"]["calls"], 0);
}

#[test]
fn stderr_is_kept_for_people_also_of_a_process_that_has_ended() {
    let mut bus = TestBus::new(Config::with_pools([pool("a", 1), pool("b", 1)]));
    let client = bus.client();
    let worker = bus.processes[0].worker;
    bus.shell.bus.stderr_received(worker, b"one\ntwo \xff\nunfinished");
    bus.crashes(0);
    let answer = bus.asks_for(client, "_bus/logs", json!({ "pool": "a" }))["result"].clone();
    let texts: Vec<&str> =
        answer["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["one", "two \u{fffd}", "unfinished"]);
    assert_eq!((&answer["lines"][0]["pool"], &answer["lines"][0]["worker"]), (&json!("a"), &json!(0)));
    let later = json!({ "from": answer["next"] });
    assert_eq!(bus.asks_for(client, "_bus/logs", later)["result"]["lines"], json!([]));
    assert_eq!(bus.asks_for(client, "_bus/logs", json!({ "lines": 1 }))["result"]["lines"][0]["line"], 2);
    for (wrong, reason) in [
        (json!({ "pool": "c" }), "unknown_pool"),
        (json!({ "pool": "a", "worker": 7 }), "invalid"),
        (json!({ "worker": 0 }), "invalid"),
    ] {
        let error = bus.asks_for(client, "_bus/logs", wrong);
        assert_eq!(error["error"]["data"]["reason"], reason, "{error}");
    }
}
