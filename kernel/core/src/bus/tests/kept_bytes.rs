//! What peers make the bus keep beside lines: each thing has a limit, counts as held, and goes with its owner.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Event, Link, TestBus};
use crate::limit::{
    ALARMS_KEPT, CLIENT_NAME_BYTES, ELICITATIONS, INIT_RESULT_BYTES, NAME_BYTES, OPENING_BYTES,
    STICKY_NOTIFICATION_BYTES, STICKY_NOTIFICATIONS_MAX, UNCOUNTED_BYTES,
};

impl TestBus {
    fn held(&self) -> usize {
        self.bus.held_bytes()
    }

    fn leaves(&mut self, client: Link) {
        self.handles(Event::Broken(client));
    }

    /// Two clients on one worker that offers `session/resume`, the first with an open session.
    fn with_session() -> (TestBus, Link, Link, String) {
        let mut bus = TestBus::with_workers(1);
        let (client, worker) = (bus.acp_client(), bus.worker(0));
        bus.initializes_with(
            worker,
            r#"{"agentCapabilities":{"sessionCapabilities":{"resume":{},"close":{}}}}"#,
        );
        bus.sees_json(client);
        let session = bus.opens(client, worker, "s1");
        (bus, client, worker, session)
    }
}

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[test]
fn usual_peers_make_the_bus_hold_nothing() {
    let (mut bus, client, worker, session) = TestBus::with_session();
    bus.sends(client, r#"{"id":1,"method":"_bus/hello","params":{"client":"zed"}}"#);
    bus.sees_json(client);
    bus.asks(client, 2, "session/set_mode", &session);
    bus.answers(worker, "session/set_mode", "{}");
    bus.sees_json(client);
    assert_eq!(bus.held(), 0);
}

#[test]
fn a_long_client_name_is_cut_at_a_character() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    let name = "é".repeat(CLIENT_NAME_BYTES);
    bus.sends(client, &json!({ "id": 1, "method": "_bus/hello", "params": { "client": name } }).to_string());
    bus.sees_json(client);
    bus.sends(client, r#"{"id":2,"method":"m","sessionId":"mine"}"#);
    bus.sends(client, r#"{"id":3,"method":"_bus/sessions"}"#);
    let shown = bus.sees_json(client)["result"]["sessions"][0]["client"].clone();
    assert_eq!(shown, "é".repeat(CLIENT_NAME_BYTES / 2));
}

#[test]
fn errors_repeat_only_the_beginning_of_a_long_name() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    let long = text(100_000);
    bus.sends(client, &format!(r#"{{"id":1,"method":"_bus/{long}"}}"#));
    bus.sends(client, &format!(r#"{{"id":2,"method":"_bus/hello","params":{{"pool":"{long}"}}}}"#));
    for _ in 0..2 {
        assert!(bus.sees(client).len() < 1000);
    }
}

#[test]
fn the_params_of_initialize_have_a_limit_and_count() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let initialize = |bytes: usize| {
        let params = format!(r#"{{"protocolVersion":1,"x":"{}"}}"#, text(bytes));
        format!(r#"{{"id":1,"method":"initialize","params":{params}}}"#)
    };
    bus.sends(client, &initialize(OPENING_BYTES));
    let error = bus.sees_error(client, json!(1), "invalid");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("65536 bytes")), "{error}");
    bus.sees_nothing(worker);
    bus.sends(client, &initialize(OPENING_BYTES - 100));
    bus.initializes(worker);
    bus.sees_json(client);
    assert!(bus.held() >= OPENING_BYTES - 100 - UNCOUNTED_BYTES);
    bus.leaves(client);
    assert_eq!(bus.held(), 0);
}

#[test]
fn a_worker_that_answers_initialize_at_length_does_not_start() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, &format!(r#"{{"x":"{}"}}"#, text(INIT_RESULT_BYTES)));
    bus.sees_error(client, json!(0), "no_start");
}

#[test]
fn labels_count_and_go_with_their_client() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    for label in 0..100 {
        let name = format!("{label}{}", text(NAME_BYTES - 10));
        bus.sends(client, &format!(r#"{{"method":"note","sessionId":"{name}"}}"#));
    }
    assert!(bus.held() > 200 * (NAME_BYTES - 10), "each is kept twice: {}", bus.held());
    bus.leaves(client);
    assert_eq!(bus.held(), 0);
}

#[test]
fn long_ids_of_calls_count_until_the_answer() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let id = text(NAME_BYTES - 2);
    bus.sends(client, &format!(r#"{{"id":"{id}","method":"m"}}"#));
    assert_eq!(bus.held(), NAME_BYTES);
    bus.answers(worker, "m", "1");
    assert_eq!((bus.held(), bus.sees_json(client)["id"].clone()), (0, json!(id)));
    // A worker has the same limit.
    let long = format!(r#"{{"id":"{id}xx","method":"fs/read_text_file","params":{{}}}}"#);
    bus.sends(worker, &long);
    assert_eq!(bus.sees_json(worker)["error"]["data"]["reason"], "invalid");
}

#[test]
fn all_settings_of_a_session_have_one_limit() {
    let (mut bus, client, worker, session) = TestBus::with_session();
    for option in 0..64 {
        let params = json!({ "sessionId": session, "configId": option.to_string(), "value": text(30_000) });
        let set = json!({ "id": option, "method": "session/set_config_option", "params": params });
        bus.sends(client, &set.to_string());
        bus.answers(worker, "session/set_config_option", "{}");
        bus.sees_json(client);
    }
    assert!((50_000..OPENING_BYTES).contains(&bus.held()), "{}", bus.held());
    bus.asks(client, 99, "session/close", &session);
    bus.answers(worker, "session/close", "{}");
    bus.sees_json(client);
    assert_eq!(bus.held(), 0);
}

#[test]
fn the_params_of_a_call_that_opens_a_session_count() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(client);
    let before = bus.held();
    bus.sends(
        client,
        &json!({ "id": 1, "method": "session/new", "params": { "cwd": text(50_000) } }).to_string(),
    );
    assert!(bus.held() > before + 50_000);
    let request = bus.sees_json(worker);
    bus.leaves(client);
    assert!(bus.held() <= before, "nobody will open it again");
    bus.sends(worker, &json!({ "id": request["id"], "result": { "sessionId": "s1" } }).to_string());
    bus.sees_request(worker, "session/close");
}

#[test]
fn elicitations_have_a_limit_and_count() {
    let (mut bus, client, worker, _) = TestBus::with_session();
    let ask = |id: usize, name: &str| {
        let params = json!({ "sessionId": "s1", "elicitationId": name, "message": "?" });
        json!({ "id": id, "method": "elicitation/create", "params": params }).to_string()
    };
    bus.sends(worker, &ask(0, &text(NAME_BYTES)));
    assert_eq!(bus.sees_json(worker)["error"]["data"]["reason"], "invalid");
    for id in 1..=2 * ELICITATIONS {
        bus.sends(worker, &ask(id, &format!("{id}{}", text(4000))));
        let asked = bus.sees_json(client);
        bus.sends(client, &json!({ "id": asked["id"], "result": {} }).to_string());
        bus.sees_json(worker);
    }
    let all = ELICITATIONS * 4000;
    assert!((all - UNCOUNTED_BYTES..all + (16 << 10)).contains(&bus.held()), "{}", bus.held());
    bus.crashes(0);
    assert_eq!(bus.held(), 0);
}

#[test]
fn sticky_notifications_count_and_go_with_their_process() {
    let (mut bus, client, worker, _) = TestBus::with_session();
    for method in 0..2 * STICKY_NOTIFICATIONS_MAX {
        let text = text(STICKY_NOTIFICATION_BYTES - 100);
        bus.sends(worker, &json!({ "method": format!("_n{method}"), "params": text }).to_string());
        bus.sees_json(client);
    }
    let all = STICKY_NOTIFICATIONS_MAX * (STICKY_NOTIFICATION_BYTES - 100);
    assert!((all - UNCOUNTED_BYTES..all + (16 << 10)).contains(&bus.held()), "{}", bus.held());
    bus.crashes(0);
    assert_eq!(bus.held(), 0);
}

#[test]
fn broadcasts_count_as_long_as_their_pool() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, &json!({ "id": 1, "method": "authenticate", "params": text(50_000) }).to_string());
    bus.answers(worker, "authenticate", "{}");
    bus.sees_json(client);
    assert!(bus.held() > 40_000);
    bus.leaves(client);
    assert!(bus.held() > 40_000, "the next worker needs it");
}

#[test]
fn filters_of_a_trace_have_a_limit() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    for (bytes, reason) in [(NAME_BYTES + 1, json!("invalid")), (NAME_BYTES, Value::Null)] {
        let params = json!({ "client": text(bytes), "session": text(bytes) });
        bus.sends(client, &json!({ "id": 1, "method": "_bus/trace", "params": params }).to_string());
        assert_eq!(bus.sees_json(client)["error"]["data"]["reason"], reason);
    }
    assert_eq!(bus.held(), 2 * NAME_BYTES - UNCOUNTED_BYTES);
    bus.leaves(client);
    assert_eq!(bus.held(), 0);
}

#[test]
fn clients_that_come_and_go_leave_no_alarms() {
    let mut bus = TestBus::with_workers(1);
    for _ in 0..3 * ALARMS_KEPT {
        let client = bus.client();
        bus.sends_bytes(client, b"{");
        bus.leaves(client);
    }
    assert!(bus.bus.alarms_set() <= ALARMS_KEPT);
}

#[test]
fn what_waits_counts_with_its_envelope() {
    let (mut bus, client, worker, _) = TestBus::with_session();
    bus.leaves(client);
    let update = r#"{"method":"u","params":{"sessionId":"s1"}}"#;
    for _ in 0..1000 {
        bus.sends(worker, update);
    }
    assert!(bus.held() > 1000 * (update.len() + 100), "{}", bus.held());
    bus.advances(Duration::from_secs(300));
    bus.sends(worker, r#"{"method":"u","params":{"sessionId":"s1"}}"#);
    bus.answers(worker, "session/close", "{}");
    assert_eq!(bus.held(), 0);
}
