//! A bus that is saved in the middle of everything goes on as if nothing had happened.

use std::time::Duration;

use serde_json::json;

use super::{TestBus, pool};
use crate::config::{Config, Limits, PoolConfig};
use crate::upgrade::{self, LeftLogs, Wish};
use crate::{Action, Bus};

impl TestBus {
    pub(super) fn is_saved_and_restored(&mut self) {
        let saved = self.bus.save().expect("the state can be written");
        self.shell.bus = Bus::restore(&saved, &LeftLogs::default()).expect("what was saved can be read");
        self.bus.check_invariants();
    }
}

#[test]
fn half_lines_calls_sessions_and_questions_go_on() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, r#"{"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}"#);
    bus.sees_json(client);
    let session = bus.opens(client, worker, "s1");
    bus.asks(client, 2, "session/prompt", &session);
    let (prompt, _) = bus.sees_request(worker, "session/prompt");
    let question = json!({"id": 7, "method": "session/request_permission", "params": {"sessionId": "s1"}});
    let line = format!("{question}\n");
    let (first, second) = line.as_bytes().split_at(30);
    bus.sends_bytes(worker, first);
    bus.is_saved_and_restored();
    bus.sends_bytes(worker, second);
    let (asked, params) = bus.sees_request(client, "session/request_permission");
    assert_eq!(params["params"]["sessionId"], session);
    bus.is_saved_and_restored();
    bus.sends(client, &format!(r#"{{"id":{asked},"result":{{"ok":1}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 7);
    bus.stops_reading(client);
    bus.sends(worker, &format!(r#"{{"id":{prompt},"result":{{"stopReason":"end_turn"}}}}"#));
    bus.is_saved_and_restored();
    bus.reads_again(client);
    assert_eq!(bus.sees_json(client)["id"], 2);
}

/// A bus of the first version, saved in the middle of everything. A program that cannot read it cannot take the place
/// of that version; `GOLDEN=write` makes it anew.
pub(super) const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bus/tests/saved-1.bin");

#[test]
fn what_the_first_version_has_saved_goes_on() {
    let limits = Limits { session_keep: Duration::from_secs(60), ..Limits::default() };
    let shared = PoolConfig { share: true, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([shared]) });
    let (ann, ben, worker) = (bus.acp_client(), bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, r#"{"agentCapabilities":{"sessionCapabilities":{"resume":{},"list":{}}}}"#);
    bus.sees_json(ann);
    bus.sees_json(ben);
    let session = bus.opens(ann, worker, "s1");
    bus.sends(worker, &update(r#"{"sessionUpdate":"current_mode_update","currentModeId":"plan"}"#));
    bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    bus.all_unseen(ben);
    bus.asks(ann, 2, "session/prompt", &session);
    let (prompt, _) = bus.sees_request(worker, "session/prompt");
    bus.asks(ben, 3, "session/prompt", &session);
    bus.sends(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s1"}}"#);
    bus.all_unseen(ann);
    let asked = bus.all_unseen(ben);
    let asked = asked.iter().find(|line| line["method"] == "session/request_permission").expect("a question");
    bus.sends(ann, r#"{"id":4,"method":"own","sessionId":"label"}"#);
    let (labelled, _) = bus.sees_request(worker, "own");
    bus.stops_reading(ann);
    bus.sends(
        worker,
        &update(r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}"#),
    );
    bus.sends_bytes(ann, br#"{"id":5,"method":"#);

    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(KEPT, bus.bus.save().unwrap()).unwrap();
    }
    bus.shell.bus =
        Bus::restore(&std::fs::read(KEPT).unwrap(), &LeftLogs::default()).expect("the first version is read");
    bus.bus.check_invariants();

    bus.all_unseen(ben);
    bus.sends(ben, &format!(r#"{{"id":{},"result":{{"ok":1}}}}"#, asked["id"]));
    assert_eq!(bus.sees_json(worker), json!({"id": 7, "result": {"ok": 1}}));
    bus.sends_bytes(ann, b"\"session/list\"}\n");
    bus.answers(worker, "session/list", r#"{"sessions":[{"sessionId":"s1"}]}"#);
    bus.sends(worker, &format!(r#"{{"id":{labelled},"result":{{}}}}"#));
    bus.sends(worker, &format!(r#"{{"id":{prompt},"result":{{"stopReason":"end_turn"}}}}"#));
    bus.sees_request(worker, "session/prompt");
    bus.reads_again(ann);
    let heard = bus.all_unseen(ann);
    let answer = |id: u32| heard.iter().find(|line| line["id"] == id && line["method"].is_null());
    assert_eq!(answer(2).expect("its turn")["result"]["stopReason"], "end_turn");
    assert_eq!(answer(5).expect("its list")["result"]["sessions"], json!([{"sessionId": session}]));
    assert!(answer(4).is_some(), "{heard:?}");
    assert!(heard.iter().any(|line| line["params"]["update"]["content"]["text"] == "a"), "{heard:?}");
}

fn update(update: &str) -> String {
    format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#)
}

#[test]
fn who_asks_for_an_upgrade_is_answered_by_the_next_program() {
    let mut bus = TestBus::with_workers(1);
    let (client, other, worker) = (bus.acp_client(), bus.client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees_json(client);
    let session = bus.opens(client, worker, "s1");
    bus.asks(client, 2, "session/prompt", &session);
    bus.sees_request(worker, "session/prompt");
    let asks = |bus: &mut TestBus, line: &str| {
        let now = bus.shell.now;
        bus.shell.bus.received(other, line.as_bytes(), now);
    };
    asks(&mut bus, "{\"id\":7,\"method\":\"_bus/upgrade\",\"params\":{\"binary\":\"/b\"}}\n");
    assert_eq!(bus.shell.bus.next_action(), Some(Action::Upgrade));
    assert_eq!(upgrade::wish(&bus.shell.bus), Some(&Wish { binary: Some("/b".to_owned()), check: false }));
    asks(&mut bus, "{\"id\":8,\"method\":\"_bus/upgrade\"}\n");
    bus.act();
    bus.sees_error(other, json!(8), "busy");
    bus.is_saved_and_restored();
    upgrade::done(&mut bus.shell.bus, "0.0.9", Duration::from_millis(12), Duration::from_secs(60));
    bus.act();
    let answer = bus.sees_json(other);
    assert_eq!(answer["id"], 7);
    let told = json!({
        "pid": null, "clients": 1, "sessions": 1, "turns": 1,
        "version": env!("CARGO_PKG_VERSION"), "from": "0.0.9", "pause_us": 12_000,
    });
    assert_eq!(answer["result"], told);
    let upgraded = json!({ "count": 1, "from": "0.0.9", "at_us": 60_000_000, "pause_us": 12_000 });
    assert_eq!(bus.asks_for(other, "_bus/status", json!({}))["result"]["upgraded"], upgraded);
    assert_eq!(upgrade::wish(&bus.shell.bus), None);
    asks(&mut bus, "{\"id\":9,\"method\":\"_bus/upgrade\",\"params\":{\"check\":true}}\n");
    bus.act();
    bus.sees_error(other, json!(9), "invalid");
    asks(&mut bus, "{\"method\":\"_bus/upgrade\"}\n");
    bus.act();
    bus.sees_nothing(other);
}

#[test]
fn what_is_no_state_is_refused_with_a_reason() {
    let saved = TestBus::with_workers(1).bus.save().unwrap();
    let fault = |bytes: &[u8]| Bus::restore(bytes, &LeftLogs::default()).err().expect("it cannot be read");
    assert_eq!(fault(b"{}"), "this is not the state of a bus");
    assert_eq!(fault(&saved[..18]), "the state is cut short");
    let said = fault(&saved[..saved.len() - 1]);
    assert!(said.starts_with("the state has "), "{said}");
    let mut newer = saved.clone();
    newer[16] = 9;
    let said = fault(&newer);
    assert!(said.starts_with("the state is of version 9, and this program reads version 1: "), "{said}");
    assert!(said.contains("`stdio-bus drain`"), "{said}");
    assert!(upgrade::unread_version(9, &(2..=4)).contains("reads versions 2 to 4: "));
    for at in (28..saved.len()).step_by(7) {
        let mut broken = saved.clone();
        broken[at] ^= 0xff;
        // It may still be a state, but it never panics.
        drop(Bus::restore(&broken, &LeftLogs::default()));
    }
}
