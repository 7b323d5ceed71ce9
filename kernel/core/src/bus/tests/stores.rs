//! Pools whose agents keep their sessions in one place have one set of sessions.

use std::sync::Arc;

use serde_json::json;

use super::*;

/// The answer to `initialize` of an agent of this name that loads and closes sessions.
fn init_result(name: &str) -> String {
    let capabilities = r#"{"loadSession":true,"sessionCapabilities":{"close":{},"resume":{},"list":{}}}"#;
    format!(r#"{{"agentInfo":{{"name":"{name}"}},"agentCapabilities":{capabilities}}}"#)
}

/// A client that names a pool for a request about this session.
fn through(pool: &str, id: u32, method: &str, session: &str) -> String {
    format!(r#"{{"id":{id},"method":"{method}","pool":"{pool}","params":{{"sessionId":"{session}"}}}}"#)
}

fn initialize_in(pool: &str) -> String {
    INITIALIZE.replace(r#""method""#, &format!(r#""pool":"{pool}","method""#))
}

/// The pools "one" and "two", each with one worker that calls its agent so, and two clients that have initialized in
/// both.
fn two_pools(names: [&str; 2]) -> (TestBus, Link, Link) {
    let config =
        Config { default_pool: Some("one".into()), ..Config::with_pools([pool("one", 1), pool("two", 1)]) };
    two_pools_of(config, names)
}

fn two_pools_of(config: Config, names: [&str; 2]) -> (TestBus, Link, Link) {
    let mut bus = TestBus::new(config);
    let (ann, ben) = (bus.client(), bus.client());
    for (nth, of) in ["one", "two"].iter().enumerate() {
        bus.sends(ann, &initialize_in(of));
        let worker = bus.worker(nth);
        bus.initializes_with(worker, &init_result(names[nth]));
        bus.sees(ann);
        bus.sends(ben, &initialize_in(of));
        bus.sees(ben);
    }
    (bus, ann, ben)
}

#[test]
fn a_live_session_does_not_exist_for_others_through_any_pool_of_its_store() {
    let (mut bus, ann, ben) = two_pools(["agent", "agent"]);
    let (one, two) = (bus.worker(0), bus.worker(1));
    let session = bus.opens(ann, one, "s1");
    bus.sends(ben, r#"{"id":1,"method":"session/list","pool":"two"}"#);
    bus.answers(two, "session/list", r#"{"sessions":[{"sessionId":"s1"},{"sessionId":"s0"}]}"#);
    assert_eq!(bus.sees_json(ben)["result"]["sessions"], json!([{"sessionId":"s0"}]));
    for method in ["session/load", "session/resume", "session/fork", "session/delete"] {
        for name in [&*session, "s1", "abcdefghijklm.s1"] {
            bus.sends(ben, &through("two", 2, method, name));
            bus.sees_error(ben, json!(2), "unknown_session");
        }
    }
    // Its owner sees it, and it is the same session.
    bus.sends(ann, r#"{"id":3,"method":"session/list","pool":"two"}"#);
    bus.answers(two, "session/list", r#"{"sessions":[{"sessionId":"s1"}]}"#);
    assert_eq!(bus.sees_json(ann)["result"]["sessions"], json!([{"sessionId":session}]));
    bus.sends(ann, &through("two", 4, "session/resume", &session));
    assert_eq!(bus.sees_json(ann)["id"], 4);
    bus.sees_nothing(two);
    bus.is_idle();
}

#[test]
fn a_kept_session_goes_on_in_its_process_whichever_pool_of_its_store_is_asked() {
    for by_agent_id in [false, true] {
        let (mut bus, ann, ben) = two_pools(["agent", "agent"]);
        let (one, two) = (bus.worker(0), bus.worker(1));
        let session = bus.opens(ann, one, "s1");
        bus.handles(Event::Broken(ann));
        bus.sends(ben, r#"{"id":1,"method":"session/list","pool":"two"}"#);
        bus.answers(two, "session/list", r#"{"sessions":[{"sessionId":"s1"}]}"#);
        assert_eq!(bus.sees_json(ben)["result"]["sessions"], json!([{"sessionId":session}]));
        let name = if by_agent_id { "s1" } else { &*session };
        bus.sends(ben, &through("two", 2, "session/resume", name));
        assert_eq!(bus.sees_json(ben)["id"], 2);
        bus.asks(ben, 3, "session/prompt", name);
        assert_eq!(bus.answers(one, "session/prompt", "{}")["params"]["sessionId"], "s1");
        assert_eq!(bus.sees_json(ben)["id"], 3);
        bus.sees_nothing(two);
        bus.is_idle();
    }
}

#[test]
fn a_kept_session_is_deleted_in_its_process_whichever_pool_is_asked() {
    let (mut bus, ann, ben) = two_pools(["agent", "agent"]);
    let one = bus.worker(0);
    bus.opens(ann, one, "s1");
    bus.handles(Event::Broken(ann));
    bus.sends(ben, &through("two", 1, "session/delete", "s1"));
    bus.answers(one, "session/delete", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 1);
    bus.is_idle();
}

#[test]
fn a_lost_session_stays_hidden_and_is_opened_again_in_its_own_pool() {
    let (mut bus, ann, ben) = two_pools(["agent", "agent"]);
    let one = bus.worker(0);
    let session = bus.opens(ann, one, "s1");
    bus.crashes(0);
    bus.sends(ben, &through("two", 1, "session/load", "s1"));
    bus.sees_error(ben, json!(1), "unknown_session");
    bus.advances(Duration::from_secs(1));
    bus.asks(ann, 2, "session/prompt", &session);
    let again = bus.worker(2);
    bus.initializes_with(again, &init_result("agent"));
    bus.answers(again, "session/resume", "{}");
    bus.answers(again, "session/prompt", "{}");
    assert_eq!(bus.sees_json(ann)["id"], 2);
    bus.is_idle();
}

#[test]
fn the_same_id_in_two_stores_is_two_sessions() {
    let (mut bus, ann, ben) = two_pools(["agent", "other"]);
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.asks(ann, 1, "session/load", "old");
    bus.answers(one, "session/load", "{}");
    assert_eq!(bus.sees_json(ann)["result"], json!({}));
    // The client uses the name already, and is told another.
    for (id, result) in [(2, r#"{"modes":1}"#), (3, "null")] {
        bus.sends(ann, &through("two", id, "session/load", "old"));
        bus.answers(two, "session/load", result);
        let answer = bus.sees_json(ann);
        let name = answer["result"]["sessionId"].as_str().expect("a name of its own").to_owned();
        assert!(name.ends_with(".old"), "{answer}");
        bus.asks(ann, 4, "session/prompt", &name);
        assert_eq!(bus.answers(two, "session/prompt", "{}")["params"]["sessionId"], "old");
        bus.sees(ann);
        bus.sends(two, r#"{"method":"session/update","params":{"sessionId":"old"}}"#);
        assert_eq!(bus.sees_json(ann)["params"]["sessionId"], json!(name));
    }
    bus.asks(ann, 5, "session/prompt", "old");
    bus.answers(one, "session/prompt", "{}");
    bus.sees(ann);
    // Each is hidden in its own store only.
    bus.sends(ben, r#"{"id":1,"method":"session/list","pool":"two"}"#);
    bus.answers(two, "session/list", r#"{"sessions":[{"sessionId":"old"}]}"#);
    assert_eq!(bus.sees_json(ben)["result"]["sessions"], json!([]));
    bus.is_idle();
}

#[test]
fn a_list_gives_a_name_of_its_own_to_what_another_store_calls_alike() {
    let (mut bus, ann, _) = two_pools(["agent", "other"]);
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.asks(ann, 1, "session/load", "old");
    bus.answers(one, "session/load", "{}");
    bus.sees(ann);
    bus.sends(ann, r#"{"id":2,"method":"session/list","pool":"two"}"#);
    bus.answers(two, "session/list", r#"{"sessions":[{"sessionId":"old"}]}"#);
    let listed = bus.sees_json(ann)["result"]["sessions"][0]["sessionId"].as_str().unwrap().to_owned();
    assert!(listed.len() > "old".len() && listed.ends_with(".old"), "{listed}");
    bus.sends(ann, &through("two", 3, "session/load", &listed));
    assert_eq!(bus.answers(two, "session/load", "{}")["params"]["sessionId"], "old");
    assert_eq!(bus.sees_json(ann)["result"], json!({}), "the client knows its name");
}

#[test]
fn the_key_store_joins_and_parts_pools() {
    let stored = |id: &str, store: &str| PoolConfig { store: Some(Arc::from(store)), ..pool(id, 1) };
    for (stores, names, is_one) in
        [(["x", "x"], ["agent", "other"], true), (["x", "y"], ["agent", "agent"], false)]
    {
        let pools = [stored("one", stores[0]), stored("two", stores[1])];
        let config = Config { default_pool: Some("one".into()), ..Config::with_pools(pools) };
        let (mut bus, ann, ben) = two_pools_of(config, names);
        let (one, two) = (bus.worker(0), bus.worker(1));
        bus.opens(ann, one, "s1");
        bus.sends(ben, &through("two", 1, "session/load", "s1"));
        if is_one {
            bus.sees_error(ben, json!(1), "unknown_session");
        } else {
            bus.answers(two, "session/load", "{}");
            assert_eq!(bus.sees_json(ben)["id"], 1);
        }
        bus.is_idle();
    }
}

#[test]
fn what_waits_for_the_first_process_of_a_pool_is_routed_again_when_its_store_is_known() {
    let cold = PoolConfig { warm: false, ..pool("two", 1) };
    let config = Config { default_pool: Some("one".into()), ..Config::with_pools([pool("one", 1), cold]) };
    let mut bus = TestBus::new(config);
    let (ann, ben, carl) = (bus.acp_client(), bus.acp_client(), bus.acp_client());
    let one = bus.worker(0);
    bus.initializes_with(one, &init_result("agent"));
    for client in [ann, ben, carl] {
        bus.sees(client);
    }
    let live = bus.opens(ann, one, "s1");
    let kept = bus.opens(carl, one, "s2");
    bus.handles(Event::Broken(carl));
    // Nobody knows yet whether the two pools have one store.
    for (id, method) in [(1, "session/load"), (2, "session/fork"), (3, "session/delete")] {
        bus.sends(ben, &through("two", id, method, "s1"));
    }
    bus.sends(ben, &through("two", 4, "session/resume", "s2"));
    bus.sends(ben, &through("two", 5, "session/load", "s3"));
    bus.asks(ben, 6, "session/prompt", "s3");
    bus.sends(ann, &through("two", 7, "session/resume", &live));
    assert_eq!(bus.sees_json(ann)["id"], 7);
    let two = bus.worker(1);
    bus.initializes_with(two, &init_result("agent"));
    for id in [1, 2, 3] {
        bus.sees_error(ben, json!(id), "unknown_session");
    }
    assert_eq!(bus.sees_json(ben)["id"], 4, "the kept one goes on where it is");
    assert_eq!(bus.answers(two, "session/load", "{}")["params"]["sessionId"], "s3");
    assert_eq!(bus.sees_json(ben)["id"], 5);
    assert_eq!(bus.answers(two, "session/prompt", "{}")["params"]["sessionId"], "s3");
    assert_eq!(bus.sees_json(ben)["id"], 6);
    bus.asks(ben, 8, "session/prompt", "s2");
    bus.answers(one, "session/prompt", "{}");
    bus.sees(ben);
    assert_ne!(kept, "s2");
    bus.is_idle();
}

#[test]
fn what_waits_in_one_pool_is_routed_again_when_another_turns_out_to_have_its_store() {
    let stored = PoolConfig { store: Some(Arc::from("agent")), warm: false, ..pool("two", 1) };
    let config = Config { default_pool: Some("one".into()), ..Config::with_pools([pool("one", 2), stored]) };
    let mut bus = TestBus::new(config);
    let ann = bus.client();
    bus.opens(ann, bus.worker(0), "s1");
    let ben = bus.acp_client();
    bus.sends(ben, &through("two", 1, "session/load", "s1"));
    bus.initializes_with(bus.worker(1), &init_result("agent"));
    bus.sees_error(ben, json!(1), "unknown_session");
    assert_eq!(bus.sees_json(ben)["id"], 0);
    bus.initializes_with(bus.worker(2), &init_result("agent"));
    bus.is_idle();
}

#[test]
fn what_waits_counts_for_its_client_also_after_it_was_looked_at_again() {
    let stored = PoolConfig { store: Some(Arc::from("agent")), warm: false, ..pool("two", 1) };
    let limits = Limits { max_output_queue: 1000, ..Limits::default() };
    let config =
        Config { default_pool: Some("one".into()), limits, ..Config::with_pools([pool("one", 1), stored]) };
    let mut bus = TestBus::new(config);
    let (ann, ben) = (bus.acp_client(), bus.acp_client());
    let pad = "p".repeat(800);
    bus.sends(ben, &through("two", 1, "session/load", &pad));
    bus.initializes_with(bus.worker(0), &init_result("agent"));
    bus.sees(ann);
    bus.sees(ben);
    bus.sends(ben, &through("two", 2, "session/load", "s2"));
    bus.sees_error(ben, json!(2), "busy");
    bus.sends(ann, &through("two", 3, "session/load", "s3"));
    bus.initializes_with(bus.worker(1), &init_result("agent"));
    for client in [ben, ann] {
        bus.answers(bus.worker(1), "session/load", "{}");
        bus.sees(client);
    }
    bus.is_idle();
}

#[test]
fn an_agent_cannot_open_a_session_under_an_id_that_its_store_has() {
    let (mut bus, ann, ben) = two_pools(["agent", "agent"]);
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.opens(ann, one, "s1");
    bus.sends(ben, r#"{"id":1,"method":"session/new","pool":"two","params":{"cwd":"/"}}"#);
    bus.answers(two, "session/new", r#"{"sessionId":"s1"}"#);
    bus.sees_error(ben, json!(1), "invalid");
    bus.answers(two, "session/close", "{}");
    // Nor announce one.
    bus.sends(ben, r#"{"id":2,"method":"session/new","pool":"two","params":{"cwd":"/"}}"#);
    bus.answers(two, "session/new", r#"{"sessionId":"s2"}"#);
    bus.sees(ben);
    let update = r#"{"sessionUpdate":"subagent","sessionId":"s1"}"#;
    bus.sends(
        two,
        &format!(r#"{{"method":"session/update","params":{{"sessionId":"s2","update":{update}}}}}"#),
    );
    assert_eq!(bus.sees_json(ben)["params"]["update"]["sessionId"], "s1");
    bus.sends(two, r#"{"method":"session/update","params":{"sessionId":"s1"}}"#);
    bus.sees_nothing(ben);
    bus.is_idle();
}

#[test]
fn agents_that_keep_no_sessions_may_use_the_same_ids() {
    let config =
        Config { default_pool: Some("one".into()), ..Config::with_pools([pool("one", 1), pool("two", 1)]) };
    let mut bus = TestBus::new(config);
    let ann = bus.acp_client();
    let one = bus.worker(0);
    bus.initializes_with(one, r#"{"agentInfo":{"name":"simple"}}"#);
    bus.sees(ann);
    bus.opens(ann, one, "1");
    bus.sends(ann, &initialize_in("two"));
    let two = bus.worker(1);
    bus.initializes_with(two, r#"{"agentInfo":{"name":"simple"}}"#);
    bus.sees(ann);
    bus.sends(ann, r#"{"id":2,"method":"session/new","pool":"two","params":{"cwd":"/"}}"#);
    bus.answers(two, "session/new", r#"{"sessionId":"1"}"#);
    assert!(bus.sees_json(ann)["result"]["sessionId"].is_string());
    bus.is_idle();
}

#[test]
fn a_pool_whose_program_changes_has_the_store_of_its_new_agent() {
    let (mut bus, ann, ben) = two_pools(["agent", "agent"]);
    let one = bus.worker(0);
    bus.opens(ann, one, "s1");
    let other = PoolConfig { args: vec!["other".to_owned()], ..pool("two", 1) };
    let config = Config { default_pool: Some("one".into()), ..Config::with_pools([pool("one", 1), other]) };
    bus.reloads(&config);
    bus.sends(ben, &through("two", 1, "session/load", "s1"));
    let new = bus.worker(2);
    bus.initializes_with(new, &init_result("other"));
    bus.answers(new, "session/load", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 1);
    bus.is_idle();
}

#[test]
fn a_client_that_asks_two_pools_for_one_session_before_their_store_is_known_gets_it_once() {
    let cold = PoolConfig { warm: false, ..pool("two", 1) };
    let config = Config { default_pool: Some("one".into()), ..Config::with_pools([pool("one", 1), cold]) };
    let mut bus = TestBus::new(config);
    let ann = bus.acp_client();
    let one = bus.worker(0);
    bus.initializes_with(one, &init_result("agent"));
    bus.sees(ann);
    bus.asks(ann, 1, "session/load", "old");
    bus.answers(one, "session/load", "{}");
    bus.sees(ann);
    // It would be another session if the pools had different stores, and would have another name.
    bus.sends(ann, &through("two", 2, "session/load", "old"));
    let two = bus.worker(1);
    bus.initializes_with(two, &init_result("agent"));
    bus.answers(one, "session/load", "{}");
    assert_eq!(bus.sees_json(ann)["id"], 2);
    bus.sees_nothing(two);
    bus.is_idle();
}
