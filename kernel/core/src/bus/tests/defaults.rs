//! What the bus does for clients that come in all kinds: refusals of an agent that pass as they are, closings that are
//! waited for, processes that are recycled, and errors that say what to do.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, INITIALIZE, Limits, Link, PoolConfig, TestBus, pool};

const OTHER: &str = r#"{"id":"i","method":"initialize","params":{"protocolVersion":2}}"#;

fn status(bus: &mut TestBus) -> Value {
    let asks = bus.client();
    bus.sends(asks, r#"{"id":"status","method":"_bus/status"}"#);
    let status = bus.sees_json(asks)["result"].clone();
    bus.handles(Event::Broken(asks));
    status
}

/// The worker reads `initialize` and refuses it.
fn refuses(bus: &mut TestBus, worker: Link) {
    let (id, _) = bus.sees_request(worker, "initialize");
    bus.sends(
        worker,
        &format!(r#"{{ "id":{id}, "error":{{"code":-32602, "message":"version 1 only","data":[1.0]}}}}"#),
    );
}

const REFUSAL: &str = r#"{ "id":"i", "error":{"code":-32602, "message":"version 1 only","data":[1.0]}}"#;

#[test]
fn a_refused_initialize_passes_as_it_is_and_takes_nobody_down() {
    let mut bus = TestBus::with_workers(1);
    for nth in 0..20 {
        let client = bus.client();
        bus.sends(client, OTHER);
        let worker = bus.worker(nth);
        refuses(&mut bus, worker);
        assert_eq!(bus.sees(client), REFUSAL);
        // It is replaced at once, without a backoff.
        assert!(!bus.processes[nth].stdin_open && !bus.processes[nth].signalled);
        bus.handles(Event::Exited { worker: bus.processes[nth].worker, exit: crate::api::Exit::Code(1) });
        assert_eq!(bus.processes.len(), nth + 2);
    }
    let client = bus.acp_client();
    let worker = bus.worker(20);
    bus.initializes(worker);
    assert_eq!(bus.sees_json(client)["result"]["protocolVersion"], 1);
    let status = status(&mut bus);
    assert_eq!(
        (&status["counters"]["worker_deaths"], &status["counters"]["recycled"]),
        (&json!(0), &json!(20))
    );
    let pool = &status["pools"][0];
    assert_eq!(
        (&pool["restarts"], &pool["recycled"], &pool["last_recycled"]),
        (&json!(0), &json!(20), &json!("initialize refused"))
    );
    assert_eq!(
        (&pool["workers"][0]["last_exit"], &pool["workers"][0]["last_words"]),
        (&Value::Null, &Value::Null)
    );
    bus.is_idle();
}

#[test]
fn who_was_refused_can_still_speak_as_before() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.acp_client();
    let one = bus.worker(0);
    bus.initializes(one);
    bus.sees(client);
    let session = bus.opens(client, one, "s1");
    // The other process was warm for the handshake of before.
    let two = bus.worker(1);
    bus.initializes(two);
    bus.sends(client, OTHER);
    assert!(!bus.processes[1].stdin_open);
    bus.crashes(1);
    let three = bus.worker(2);
    // What it sends behind its initialize is not for a process that refuses it.
    bus.sends(client, r#"{"id":5,"method":"session/new","params":{}}"#);
    refuses(&mut bus, three);
    assert_eq!(bus.sees(client), REFUSAL);
    let error = bus.sees_error(client, json!(5), "no_start");
    assert_eq!(error["data"]["error"]["code"], -32602);
    assert!(!error["message"].as_str().unwrap().contains("stuck"), "{error}");
    bus.asks(client, 6, "session/prompt", &session);
    bus.answers(one, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 6);
    bus.sends(client, r#"{"id":7,"method":"logout"}"#);
    bus.answers(one, "logout", "{}");
    assert_eq!(bus.sees_json(client)["id"], 7);
    bus.is_idle();
}

#[test]
fn a_client_that_never_initialized_well_is_one_that_does_not_initialize() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    bus.sends(client, OTHER);
    let one = bus.worker(0);
    refuses(&mut bus, one);
    bus.sees(client);
    bus.sends(client, r#"{"id":1,"method":"work"}"#);
    bus.crashes(0);
    let two = bus.worker(1);
    bus.answers(two, "work", "{}");
    assert_eq!(bus.sees_json(client)["id"], 1);
    bus.is_idle();
}

#[test]
fn a_handshake_that_is_refused_is_not_used_to_warm_up() {
    let mut bus = TestBus::unstarted(Config::with_pools([pool("agents", 1)]));
    bus.shell.bus.remember("agents", br#"{"protocolVersion":2}"#);
    bus.act();
    let worker = bus.worker(0);
    refuses(&mut bus, worker);
    bus.crashes(0);
    let next = bus.worker(1);
    bus.sees_nothing(next);
}

/// A client with two sessions says goodbye, and its agent has not closed them yet.
fn closing(bus: &mut TestBus) -> (Link, [String; 2]) {
    let ann = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes(worker);
    bus.sees(ann);
    bus.opens(ann, worker, "s1");
    bus.opens(ann, worker, "s2");
    bus.sends(ann, r#"{"method":"_bus/bye"}"#);
    bus.handles(Event::Broken(ann));
    let closings = [(); 2].map(|()| bus.sees_request(worker, "session/close").0);
    (worker, closings)
}

#[test]
fn a_client_with_other_capabilities_waits_for_closings_that_the_bus_has_asked_for() {
    let mut bus = TestBus::with_workers(1);
    let (worker, [first, second]) = closing(&mut bus);
    let ben = bus.client();
    bus.sends(ben, OTHER);
    bus.sends(ben, r#"{"id":2,"method":"session/new","params":{}}"#);
    bus.sees_nothing(ben);
    bus.sends(worker, &format!(r#"{{"id":{first},"result":{{}}}}"#));
    assert!(bus.processes[0].stdin_open, "it has not closed the second one");
    // What it still says is for nobody.
    bus.sends(worker, r#"{"method":"_auth/status","params":{}}"#);
    bus.sends(worker, r#"{"id":1,"method":"_ask/any","params":{}}"#);
    bus.sends(worker, &format!(r#"{{"id":{second},"result":{{}}}}"#));
    assert!(!bus.processes[0].stdin_open);
    bus.handles(Event::Exited { worker: bus.processes[0].worker, exit: crate::api::Exit::Code(0) });
    let next = bus.worker(1);
    bus.initializes(next);
    assert_eq!(bus.sees_json(ben)["id"], "i");
    bus.answers(next, "session/new", r#"{"sessionId":"s"}"#);
    assert_eq!(bus.sees_json(ben)["id"], 2);
    let status = status(&mut bus);
    assert_eq!(status["counters"]["worker_deaths"], 0);
    assert_eq!(status["pools"][0]["last_recycled"], "other capabilities");
    bus.is_idle();
}

#[test]
fn closings_that_are_never_answered_are_waited_for_ten_seconds() {
    let mut bus = TestBus::with_workers(1);
    let (_, _) = closing(&mut bus);
    bus.advances(Duration::from_secs(4));
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"work"}"#);
    bus.advances(Duration::from_millis(5999));
    assert!(bus.processes[0].stdin_open);
    bus.advances(Duration::from_millis(1));
    assert!(!bus.processes[0].stdin_open);
    bus.crashes(0);
    let next = bus.worker(1);
    bus.answers(next, "work", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 1);
    assert_eq!(status(&mut bus)["calls"], 0);
    bus.is_idle();
}

#[test]
fn what_waits_for_closings_is_not_lost_if_the_process_dies_meanwhile() {
    let mut bus = TestBus::with_workers(1);
    let (_, _) = closing(&mut bus);
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"work"}"#);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.answers(next, "work", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 1);
    assert_eq!(status(&mut bus)["counters"]["worker_deaths"], 1);
    bus.is_idle();
}

#[test]
fn a_process_that_was_promised_to_a_client_that_has_left_serves_the_next_one() {
    let mut bus = TestBus::with_workers(1);
    let (worker, closings) = closing(&mut bus);
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"work"}"#);
    bus.sends(ben, r#"{"method":"note"}"#);
    bus.handles(Event::Broken(ben));
    let cat = bus.client();
    bus.sends(cat, OTHER);
    bus.sees_nothing(cat);
    for id in closings {
        bus.sends(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    bus.handles(Event::Exited { worker: bus.processes[0].worker, exit: crate::api::Exit::Code(0) });
    let next = bus.worker(1);
    bus.initializes(next);
    assert_eq!(bus.sees_json(cat)["id"], "i");
    let status = status(&mut bus);
    assert_eq!((&status["calls"], &status["held_bytes"]), (&json!(0), &json!(0)));
    bus.is_idle();
}

#[test]
fn busy_names_the_pool_its_processes_and_the_key_to_raise() {
    let full = PoolConfig { max_sessions: 1, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([full]));
    let (ann, ben) = (bus.acp_client(), bus.client());
    let worker = bus.worker(0);
    bus.initializes(worker);
    bus.sees(ann);
    bus.opens(ann, worker, "s1");
    bus.sends(ann, r#"{"id":1,"method":"session/new","params":{}}"#);
    let error = bus.sees_error(ann, json!(1), "busy");
    assert_eq!(
        error["data"],
        json!({ "reason": "busy", "pool": "agents", "processes": 1, "raise": "max_sessions" })
    );
    bus.sends(ben, r#"{"id":1,"method":"work"}"#);
    let error = bus.sees_error(ben, json!(1), "busy");
    assert_eq!(error["data"]["raise"], "max_instances");
    let message = "every worker of the pool agents is at max_sessions (1) or serves clients with other capabilities; \
        it has 1 process: raise max_instances of the pool";
    assert_eq!(error["message"], message);
}

#[test]
fn every_error_that_the_end_of_a_process_causes_shows_its_last_words() {
    let limits = Limits { max_restarts: 0, ..Limits::default() };
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([pool("agents", 1)]) });
    let client = bus.client();
    let worker = bus.worker(0);
    bus.sends(client, r#"{"id":1,"method":"work"}"#);
    bus.sees_request(worker, "work");
    let id = bus.processes[0].worker;
    bus.shell.bus.stderr_received(id, b"Traceback:\n  \x1b[31mno key\n");
    bus.crashes(0);
    let words = "Traceback:\n  \\u{1b}[31mno key";
    assert_eq!(bus.sees_error(client, json!(1), "worker_lost")["data"]["stderr"], words);
    bus.sends(client, r#"{"id":2,"method":"work"}"#);
    assert_eq!(bus.sees_error(client, json!(2), "pool_down")["data"]["stderr"], words);

    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    bus.sends(client, INITIALIZE);
    let id = bus.processes[0].worker;
    bus.shell.bus.stderr_received(id, b"waiting for the network");
    bus.advances(Duration::from_secs(31));
    assert_eq!(bus.sees_error(client, json!(0), "no_start")["data"]["stderr"], "waiting for the network");
}

#[test]
fn processes_that_the_bus_ends_on_purpose_are_recycled_and_faults_are_deaths() {
    let mut bus = TestBus::new(Config::with_pools([pool("agents", 1)]));
    let changed = PoolConfig { args: vec!["new".to_owned()], ..pool("agents", 1) };
    bus.reloads(&Config::with_pools([changed]));
    bus.crashes(0);
    let after = status(&mut bus);
    assert_eq!((&after["counters"]["recycled"], &after["counters"]["worker_deaths"]), (&json!(1), &json!(0)));
    assert_eq!(after["pools"][0]["last_recycled"], "reload");
    // This one was not asked to end.
    bus.crashes(1);
    let after = status(&mut bus);
    assert_eq!((&after["counters"]["recycled"], &after["counters"]["worker_deaths"]), (&json!(1), &json!(1)));
    assert_eq!(after["pools"][0]["workers"][0]["last_exit"], "signal 9");
}

#[test]
fn a_process_that_was_up_for_five_seconds_is_back_at_once() {
    let mut bus = TestBus::with_workers(1);
    bus.advances(Duration::from_secs(5));
    bus.crashes(0);
    bus.advances(Duration::ZERO);
    assert_eq!(bus.processes.len(), 2);
    bus.crashes(1);
    bus.advances(Duration::from_millis(99));
    assert_eq!(bus.processes.len(), 2);
    bus.advances(Duration::from_millis(1));
    assert_eq!(bus.processes.len(), 3);
}
