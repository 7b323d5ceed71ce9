//! ACP: handshakes, sessions and the places of their ids, and requests of agents.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, INITIALIZE, Limits, PoolConfig, TestBus, pool};
use crate::config::Mode;

#[test]
fn a_worker_is_initialized_once_and_later_clients_get_its_answer() {
    let mut bus = TestBus::with_workers(1);
    let worker = bus.worker(0);
    let ann = bus.acp_client();
    let ben = bus.client();
    let params = r#"{"clientCapabilities":{"terminal":true},"protocolVersion":1,"clientInfo":{"name":"x"}}"#;
    bus.sends(ben, &format!(r#"{{"method":"initialize","params":{params},"id":"b"}}"#));
    bus.initializes(worker);
    assert_eq!(bus.sees_json(ann)["id"], 0);
    assert_eq!(bus.sees_json(ben)["id"], "b");
    bus.sends(worker, r#"{"method":"_auth/status_update","params":{"n":1}}"#);
    bus.sends(worker, r#"{"method":"_auth/status_update","params":{"n":2}}"#);
    for client in [ann, ben] {
        assert_eq!(bus.all_unseen(client).len(), 2, "it is about the whole process");
    }
    let carl = bus.acp_client();
    assert_eq!(bus.sees_json(carl)["result"]["protocolVersion"], 1);
    assert_eq!(bus.sees_json(carl)["params"]["n"], 2);
    bus.sends(ann, INITIALIZE);
    assert_eq!(bus.sees_json(ann)["result"]["protocolVersion"], 1);
    bus.sees_nothing(worker);
    bus.advances(Duration::from_secs(60));
    assert_eq!(bus.processes.len(), 1, "the worker was not restarted");
}

#[test]
fn other_capabilities_replace_an_idle_worker_and_are_refused_by_a_busy_one() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    let first = bus.worker(0);
    bus.initializes(first);
    bus.sees(ann);
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"initialize","params":{"protocolVersion":1}}"#);
    assert!(!bus.processes[0].stdin_open);
    bus.crashes(0);
    let second = bus.worker(1);
    bus.initializes(second);
    assert_eq!(bus.sees_json(ben)["id"], 1);
    bus.opens(ben, second, "s1");
    bus.sends(ann, r#"{"id":2,"method":"session/new","params":{}}"#);
    bus.sees_error(ann, json!(2), "busy");
}

#[test]
fn a_worker_whose_handshake_fails_is_stopped() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let worker = bus.worker(0);
    bus.sees_request(worker, "initialize");
    bus.advances(Duration::from_secs(31));
    bus.sees_error(client, json!(0), "no_start");
    assert_eq!(bus.signals.len(), 1);

    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    bus.crashes(0);
    bus.sees_error(client, json!(0), "worker_lost");
}

#[test]
fn equal_session_ids_of_two_workers_are_kept_apart() {
    let mut bus = TestBus::with_workers(2);
    let (ann, ben) = (bus.client(), bus.client());
    let (one, two) = (bus.worker(0), bus.worker(1));
    let sessions = [
        bus.opens(ann, one, "s1"),
        bus.opens(ben, two, "s1"),
        bus.opens(ann, one, "s2"),
        bus.opens(ben, two, "s2"),
    ];
    for (n, session) in sessions.iter().enumerate() {
        assert_eq!(session.split_once('.').map(|(tag, _)| tag.len()), Some(13));
        let (owner, other, worker) = if n % 2 == 0 { (ann, ben, one) } else { (ben, ann, two) };
        bus.asks(owner, 1, "session/prompt", session);
        let (wire, request) = bus.sees_request(worker, "session/prompt");
        let agent = request["params"]["sessionId"].clone();
        assert_eq!(agent, format!("s{}", n / 2 + 1));
        bus.sends(
            worker,
            &format!(r#"{{"method":"session/update","params":{{"sessionId":{agent},"update":{{}}}}}}"#),
        );
        assert_eq!(bus.sees_json(owner)["params"]["sessionId"], **session);
        bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
        assert_eq!(bus.sees_json(owner)["id"], 1);
        bus.asks(other, 2, "session/prompt", session);
        let foreign = bus.sees_error(other, json!(2), "unknown_session");
        bus.asks(other, 2, "session/prompt", "nonsense");
        assert_eq!(
            bus.sees_error(other, json!(2), "unknown_session"),
            foreign,
            "the client cannot tell them apart"
        );
        bus.asks(owner, 3, "session/prompt", "s1");
        bus.sees_error(owner, json!(3), "unknown_session");
    }
    bus.is_idle();
}

#[test]
fn answers_to_agents_requests_go_back_to_the_agent_that_sent_them() {
    let mut bus = TestBus::with_workers(4);
    let mut asked = Vec::new();
    for nth in 0..4 {
        let (client, worker) = (bus.client(), bus.worker(nth));
        let session = bus.opens(client, worker, "s1");
        bus.sends(
            worker,
            r#"{"id":0,"method":"session/request_permission","params":{"sessionId":"s1","n":1}}"#,
        );
        let (wire, request) = bus.sees_request(client, "session/request_permission");
        assert_eq!(request["params"]["sessionId"], session);
        asked.push((client, worker, wire));
    }
    for (nth, (client, worker, wire)) in asked.iter().enumerate().rev() {
        let other = asked[(nth + 1) % 4].0;
        bus.sends(other, &format!(r#"{{"id":{wire},"result":"stolen"}}"#));
        bus.sees_nothing(*worker);
        bus.sends(*client, &format!(r#"{{"id":{wire},"result":{nth}}}"#));
        assert_eq!(bus.sees(*worker), format!(r#"{{"id":0,"result":{nth}}}"#));
    }
    bus.is_idle();
}

#[test]
fn an_agent_gets_an_error_for_an_invalid_answer() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "s1");
    bus.sends(worker, r#"{"id":5,"method":"terminal/create","params":{"sessionId":"s1"}}"#);
    let (wire, _) = bus.sees_request(client, "terminal/create");
    bus.sends(client, &format!(r#"{{"id":{wire},"result":1,"error":{{}}}}"#));
    bus.sees_error(client, Value::Null, "invalid");
    bus.sees_error(worker, json!(5), "invalid");
    bus.is_idle();
}

#[test]
fn early_updates_wait_for_the_answer_that_opens_their_session() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    for client in [ann, ben] {
        bus.sends(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    }
    let (of_ann, _) = bus.sees_request(worker, "session/new");
    let (of_ben, _) = bus.sees_request(worker, "session/new");
    for agent in ["b", "a", "unknown", "b"] {
        bus.sends(worker, &format!(r#"{{"method":"session/update","params":{{"sessionId":"{agent}"}}}}"#));
    }
    bus.sends(worker, r#"{"id":7,"method":"fs/read_text_file","params":{"sessionId":"unknown"}}"#);
    bus.sends(worker, &format!(r#"{{"id":{of_ben},"result":{{"sessionId":"b"}}}}"#));
    let session = bus.sees_json(ben)["result"]["sessionId"].clone();
    assert_eq!(bus.sees_json(ben)["params"]["sessionId"], session);
    assert_eq!(bus.sees_json(ben)["params"]["sessionId"], session);
    bus.sees_nothing(ann);
    bus.sends(worker, &format!(r#"{{"id":{of_ann},"result":{{"sessionId":"a"}}}}"#));
    bus.sees(ann);
    bus.sees_json(ann);
    bus.sees_error(worker, json!(7), "unknown_session");
    bus.is_idle();
}

#[test]
fn a_session_id_that_is_in_use_cannot_be_opened_again() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.opens(ann, worker, "s1");
    bus.sends(ben, r#"{"id":1,"method":"session/new","params":{}}"#);
    bus.answers(worker, "session/new", r#"{"sessionId":"s1"}"#);
    bus.sees_error(ben, json!(1), "invalid");
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1"}}"#);
    bus.sees_json(ann);
    bus.is_idle();
}

#[test]
fn cancel_requests_are_translated_both_ways() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "s1");
    bus.sends(client, r#"{"id":"mine","method":"slow"}"#);
    let (wire, _) = bus.sees_request(worker, "slow");
    bus.sends(client, r#"{"method":"$/cancel_request","params":{"requestId":"mine"}}"#);
    assert_eq!(
        bus.sees(worker),
        format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{wire}}}}}"#)
    );
    bus.sends(client, r#"{"method":"$/cancel_request","params":{"requestId":"other"}}"#);
    bus.sees_nothing(worker);
    bus.sends(worker, r#"{"id":"theirs","method":"terminal/create","params":{"sessionId":"s1"}}"#);
    let (wire, _) = bus.sees_request(client, "terminal/create");
    bus.sends(worker, r#"{"method":"$/cancel_request","params":{"requestId":"theirs"}}"#);
    assert_eq!(bus.sees_json(client)["params"]["requestId"].to_string(), wire);
}

#[test]
fn an_elicitation_finds_its_client_by_request_and_by_id() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.opens(ben, worker, "s");
    bus.sends(ann, r#"{"id":"login","method":"work"}"#);
    let (wire, _) = bus.sees_request(worker, "work");
    bus.sends(
        worker,
        &format!(
            r#"{{"id":1,"method":"elicitation/create","params":{{"requestId":{wire},"elicitationId":"e"}}}}"#
        ),
    );
    assert_eq!(bus.sees_json(ann)["params"]["requestId"], "login");
    bus.sends(worker, r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#);
    assert_eq!(bus.sees_json(ann)["method"], "elicitation/complete");
    bus.sees_nothing(ben);
    bus.sends(worker, r#"{"id":2,"method":"elicitation/create","params":{"requestId":99}}"#);
    bus.sees_error(worker, json!(2), "invalid");
}

#[test]
fn an_elicitation_under_an_id_of_the_agents_own_reaches_the_only_client() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let asks = r#"{"id":1,"method":"elicitation/create","params":{"requestId":"own","elicitationId":"e"}}"#;
    bus.sends(worker, asks);
    bus.sees_error(worker, json!(1), "invalid");
    let session = bus.opens(ann, worker, "s");
    bus.sends(worker, asks);
    let (wire, asked) = bus.sees_request(ann, "elicitation/create");
    assert_eq!(asked["params"]["requestId"], "own");
    bus.sends(worker, r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#);
    assert_eq!(bus.sees_json(ann)["method"], "elicitation/complete");
    bus.sends(ann, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 1);
    // Once the session may be meant of a client that is away, nobody else is asked.
    bus.handles(Event::Broken(ann));
    let ben = bus.client();
    bus.opens(ben, worker, "t");
    bus.sends(worker, asks);
    bus.sees_error(worker, json!(1), "invalid");
    bus.asks(ben, 2, "session/resume", &session);
    bus.sees(ben);
    bus.sends(worker, asks);
    bus.sees_request(ben, "elicitation/create");
}

#[test]
fn a_sessionless_request_goes_to_the_only_client_or_is_refused() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    bus.opens(ann, worker, "s1");
    bus.sends(worker, r#"{"id":1,"method":"craft/drain"}"#);
    bus.sees_request(ann, "craft/drain");
    let ben = bus.client();
    bus.opens(ben, worker, "s2");
    bus.sends(worker, r#"{"id":2,"method":"craft/drain"}"#);
    assert_eq!(bus.sees_json(worker)["error"]["code"], -32601);
    bus.sees_nothing(ann);
    bus.sees_nothing(ben);
}

#[test]
fn authenticate_reaches_every_worker_and_workers_that_start_later() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.acp_client();
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.initializes(one);
    bus.sees(client);
    bus.opens(client, one, "s1");
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    bus.initializes(two);
    bus.sees_request(two, "session/new");
    bus.sends(client, r#"{"id":2,"method":"authenticate","params":{"methodId":"m"}}"#);
    for worker in [one, two] {
        bus.answers(worker, "authenticate", "{}");
    }
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.crashes(1);
    bus.sees_error(client, json!(1), "worker_lost");
    bus.advances(Duration::from_secs(1));
    let third = bus.worker(2);
    bus.sends(client, r#"{"id":3,"method":"session/new","params":{}}"#);
    bus.initializes(third);
    bus.sees_request(third, "authenticate");
    bus.sees_request(third, "session/new");
    bus.sees_nothing(client);
}

#[test]
fn a_list_shows_the_clients_own_ids_and_hides_sessions_of_others() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let mine = bus.opens(ann, worker, "a");
    bus.opens(ben, worker, "b");
    for (listed, shown) in [
        (
            r#"[{"sessionId":"b"},{"sessionId":"a","t":1},{"sessionId":"old"}]"#,
            json!([{"sessionId":mine,"t":1},{"sessionId":"old"}]),
        ),
        (r#"[{"sessionId":"a"} , {"sessionId":"b"}]"#, json!([{"sessionId":mine}])),
        (r#"[{"sessionId":"b"}]"#, json!([])),
        (
            r#"[{"sessionId":"old"},{"sessionId":"b"},{"sessionId":"a"}]"#,
            json!([{"sessionId":"old"},{"sessionId":mine}]),
        ),
    ] {
        bus.sends(ann, r#"{"id":1,"method":"session/list"}"#);
        let (wire, _) = bus.sees_request(worker, "session/list");
        bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"sessions":{listed}}}}}"#));
        assert_eq!(bus.sees_json(ann)["result"]["sessions"], shown);
    }
}

#[test]
fn a_session_stays_hidden_from_a_client_with_the_same_id_in_another_pool() {
    let pools = Config::with_pools([pool("a", 1), pool("b", 1)]);
    let mut bus = TestBus::new(Config { default_pool: Some("a".into()), ..pools });
    let (ann, ben, here, there) = (bus.client(), bus.client(), bus.worker(0), bus.worker(1));
    bus.sends(ann, r#"{"id":1,"method":"session/load","params":{"sessionId":"s","_meta":{"bus/pool":"b"}}}"#);
    bus.answers(there, "session/load", "{}");
    bus.sees_json(ann);
    bus.sends(ben, r#"{"id":1,"method":"session/new"}"#);
    bus.answers(here, "session/new", r#"{"sessionId":"s"}"#);
    bus.sees_json(ben);
    bus.sends(ann, r#"{"id":2,"method":"session/list"}"#);
    bus.answers(here, "session/list", r#"{"sessions":[{"sessionId":"s"}]}"#);
    assert_eq!(bus.sees_json(ann)["result"]["sessions"], json!([]), "that session is of ben");
}

#[test]
fn an_earlier_session_is_loaded_under_the_id_that_the_client_uses() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    for name in ["abcdefghijklm.old", "raw"] {
        bus.asks(ann, 1, "session/load", name);
        let (wire, request) = bus.sees_request(worker, "session/load");
        let agent = request["params"]["sessionId"].clone();
        assert_eq!(agent, name.strip_prefix("abcdefghijklm.").unwrap_or(name));
        bus.sends(worker, &format!(r#"{{"method":"session/update","params":{{"sessionId":{agent}}}}}"#));
        assert_eq!(bus.sees_json(ann)["params"]["sessionId"], name, "the replay comes before the answer");
        bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"sessionId":{agent}}}}}"#));
        assert_eq!(bus.sees_json(ann)["result"]["sessionId"], name);
    }
    let ben = bus.client();
    bus.sends(ben, r#"{"id":1,"method":"session/load","params":{"sessionId":"raw"}}"#);
    bus.sees_error(ben, json!(1), "unknown_session");
    bus.sends(ben, r#"{"id":2,"method":"session/load","params":{"sessionId":"bad"}}"#);
    let (wire, _) = bus.sees_request(worker, "session/load");
    bus.sends(worker, &format!(r#"{{"id":{wire},"error":{{"code":-32002,"message":"no"}}}}"#));
    assert_eq!(bus.sees_json(ben)["error"]["code"], -32002);
    bus.sends(ben, r#"{"id":3,"method":"session/prompt","params":{"sessionId":"bad"}}"#);
    bus.sees_error(ben, json!(3), "unknown_session");
    bus.is_idle();
}

#[test]
fn a_closed_session_is_unknown_and_a_forked_one_is_new() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/fork", &session);
    let (wire, request) = bus.sees_request(worker, "session/fork");
    assert_eq!(request["params"]["sessionId"], "s1");
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"sessionId":"s2"}}}}"#));
    let fork = bus.sees_json(ann)["result"]["sessionId"].as_str().expect("an id").to_owned();
    bus.asks(ann, 2, "session/close", &session);
    bus.answers(worker, "session/close", "{}");
    bus.sees(ann);
    bus.asks(ann, 3, "session/prompt", &session);
    bus.sees_error(ann, json!(3), "unknown_session");
    bus.asks(ann, 4, "session/prompt", &fork);
    assert_eq!(bus.sees_json(worker)["params"]["sessionId"], "s2");
}

#[test]
fn a_dedicated_worker_serves_one_client_and_stops_with_it() {
    let dedicated = PoolConfig { mode: Mode::Dedicated, max_instances: 2, ..pool("agents", 1) };
    let limits = Limits { session_keep: Duration::ZERO, ..Limits::default() };
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([dedicated]) });
    let (ann, ben) = (bus.client(), bus.client());
    bus.sends(ann, r#"{"id":1,"method":"m"}"#);
    bus.sends(ben, r#"{"id":1,"method":"m"}"#);
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.sees_request(one, "m");
    bus.sees_request(two, "m");
    bus.sends(one, r#"{"id":1,"method":"roots/list"}"#);
    bus.sees_request(ann, "roots/list");
    let carl = bus.client();
    bus.sends(carl, r#"{"id":1,"method":"m"}"#);
    bus.sees_error(carl, json!(1), "busy");
    bus.handles(Event::Broken(ann));
    assert!(!bus.processes[0].stdin_open, "its process stops");
    assert_eq!(bus.sees_json(one)["error"]["data"]["reason"], Value::from("client_gone"));
    bus.crashes(0);
    bus.sends(carl, r#"{"id":2,"method":"m"}"#);
    let third = bus.worker(2);
    bus.sees_request(third, "m");
}

#[test]
fn a_cancel_that_is_a_request_reaches_the_agent_as_the_notification_of_the_protocol() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 7, "session/prompt", &session);
    let (prompt, _) = bus.sees_request(worker, "session/prompt");
    bus.sends(
        ann,
        &format!(r#"{{"id":"c","method":"session/cancel","params":{{"x":1,"sessionId":"{session}"}}}}"#),
    );
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "x": 1, "sessionId": "s1" } });
    assert_eq!(bus.sees_json(worker), cancel);
    assert_eq!(bus.sees_json(ann), json!({ "jsonrpc": "2.0", "id": "c", "result": {} }));
    bus.sends(worker, &format!(r#"{{"id":{prompt},"result":{{"stopReason":"cancelled"}}}}"#));
    assert_eq!(bus.sees_json(ann)["id"], 7);
    // A session that is not the client's cannot be cancelled so.
    let ben = bus.client();
    bus.asks(ben, 8, "session/cancel", &session);
    bus.sees_error(ben, json!(8), "unknown_session");
    bus.sees_nothing(worker);
    bus.is_idle();
}
