//! How long sessions are kept for a client that has left, and what their agents hear when they end.

use std::time::Duration;

use serde_json::json;

use super::{Config, Event, Limits, PoolConfig, TestBus, limited, pool};

#[test]
fn a_session_is_kept_for_a_client_that_comes_back() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    let (prompt, _) = bus.sees_request(worker, "session/prompt");
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"s1"}}"#);
    bus.sees_request(ann, "session/request_permission");
    bus.handles(Event::Broken(ann));
    bus.sees_nothing(worker);
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1","n":1}}"#);
    bus.advances(Duration::from_secs(299));
    let again = bus.client();
    bus.asks(again, 2, "session/resume", &session);
    let (wire, _) = bus.sees_request(again, "session/request_permission");
    assert_eq!(bus.sees_json(again)["params"]["n"], 1);
    let told = json!({"_meta":{"bus/turn":"running"}});
    assert_eq!(bus.sees_json(again), json!({"jsonrpc":"2.0","id":2,"result":told}));
    bus.sends(again, &format!(r#"{{"id":{wire},"result":"yes"}}"#));
    assert_eq!(bus.sees(worker), r#"{"id":5,"result":"yes"}"#);
    bus.advances(Duration::from_secs(600));
    bus.sees_nothing(worker);
    bus.sends(worker, &format!(r#"{{"id":{prompt},"result":{{}}}}"#));
    bus.is_idle();
}

#[test]
fn a_kept_session_expires_with_a_cancel_and_its_requests_are_answered() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes(worker);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.handles(Event::Broken(ann));
    bus.sends(worker, r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"s1"}}"#);
    bus.sees_nothing(worker);
    bus.advances(Duration::from_secs(301));
    bus.sees_error(worker, json!(5), "client_gone");
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    let (wire, close) = bus.sees_request(worker, "session/close");
    assert_eq!(close["params"]["sessionId"], "s1");
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    let again = bus.client();
    bus.asks(again, 2, "session/prompt", &session);
    bus.sees_error(again, json!(2), "unknown_session");
    bus.handles(Event::Broken(again));
    assert!(bus.bus.is_empty());
}

#[test]
fn a_client_that_sends_bye_leaves_nothing_behind() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    bus.opens(ann, worker, "s1");
    bus.sends(ann, r#"{"method":"_bus/bye"}"#);
    bus.handles(Event::Ended(ann));
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    assert!(bus.bus.is_empty());
}

#[test]
fn an_agent_that_closes_sessions_is_told_to_cancel_only_where_it_may_work() {
    for prompts in [0, 1, 2] {
        for closes in [false, true] {
            let mut bus = TestBus::with_workers(1);
            let (ann, worker) = (bus.acp_client(), bus.worker(0));
            let init = r#"{"protocolVersion":1,"agentCapabilities":{}}"#;
            bus.initializes_with(worker, if closes { super::INIT_RESULT } else { init });
            bus.sees(ann);
            let session = bus.opens(ann, worker, "s1");
            for id in 0..prompts {
                bus.asks(ann, id, "session/prompt", &session);
                let (wire, _) = bus.sees_request(worker, "session/prompt");
                if id == 0 {
                    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"stopReason":"end_turn"}}}}"#));
                    bus.sees_json(ann);
                }
            }
            bus.is_saved_and_restored();
            bus.sends(ann, r#"{"method":"_bus/bye"}"#);
            bus.handles(Event::Broken(ann));
            if prompts == 2 || !closes {
                assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
            }
            if closes {
                bus.answers(worker, "session/close", "{}");
            }
            bus.sees_nothing(worker);
        }
    }
}

#[test]
fn the_end_of_a_connection_counts_as_a_goodbye_if_its_hello_says_so() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    bus.sends(ann, r#"{"id":0,"method":"_bus/hello","params":{"bye":true}}"#);
    // A later hello that says nothing of it changes nothing.
    bus.sends(ann, r#"{"id":1,"method":"_bus/hello","params":{"client":"ann"}}"#);
    bus.all_unseen(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.sends(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s1"}}"#);
    let (asked, _) = bus.sees_request(ann, "session/request_permission");
    bus.sends(ann, &format!(r#"{{"id":{asked},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 7, "while it is there it is a client like any other");
    bus.asks(ann, 2, "session/prompt", &session);
    bus.sees_request(worker, "session/prompt");
    bus.handles(Event::Broken(ann));
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    let again = bus.client();
    bus.asks(again, 3, "session/resume", &session);
    let (_, resume) = bus.sees_request(worker, "session/resume");
    assert_eq!(resume["params"]["sessionId"], "s1", "the bus has not kept it, so the agent is asked");
}

#[test]
fn a_pool_says_how_long_its_sessions_are_kept() {
    let keep = |keep: Option<u64>| keep.map(Duration::from_secs);
    let kept = |id: &str, sec| PoolConfig { session_keep: keep(sec), ..pool(id, 1) };
    let limits = Limits { session_keep: Duration::from_secs(60), ..Limits::default() };
    let pools = [kept("usual", None), kept("short", Some(5)), kept("none", Some(0))];
    let mut config = Config { limits, ..Config::with_pools(pools) };
    config.default_pool = Some("usual".into());
    let mut bus = TestBus::new(config.clone());
    let leaves_turn = |bus: &mut TestBus, nth: usize, pool: &str| {
        let (client, worker) = (bus.client(), bus.worker(nth));
        bus.sends(client, &format!(r#"{{"id":0,"method":"_bus/hello","params":{{"pool":"{pool}"}}}}"#));
        bus.sees(client);
        let session = bus.opens(client, worker, "s1");
        bus.asks(client, 2, "session/prompt", &session);
        bus.sees_request(worker, "session/prompt");
        bus.handles(Event::Broken(client));
        worker
    };
    let usual = leaves_turn(&mut bus, 0, "usual");
    let short = leaves_turn(&mut bus, 1, "short");
    let none = leaves_turn(&mut bus, 2, "none");
    assert_eq!(bus.sees_json(none)["method"], "session/cancel");
    bus.sees_nothing(short);
    bus.is_saved_and_restored();
    bus.advances(Duration::from_secs(5));
    assert_eq!(bus.sees_json(short)["method"], "session/cancel");
    bus.sees_nothing(usual);
    // A reload counts for clients that leave afterwards, and the processes go on.
    config.pools[0] = kept("usual", Some(0)).into();
    bus.reloads(&config);
    bus.sees_nothing(usual);
    bus.advances(Duration::from_secs(55));
    assert_eq!(bus.sees_json(usual)["method"], "session/cancel");
    let usual = leaves_turn(&mut bus, 0, "usual");
    assert_eq!(bus.sees_json(usual)["method"], "session/cancel");
}

#[test]
fn bye_ends_the_turn_even_if_the_client_still_reads() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    let (wire, _) = bus.sees_request(worker, "session/prompt");
    bus.sends(ann, r#"{"method":"_bus/bye"}"#);
    bus.handles(Event::Ended(ann));
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"stopReason":"cancelled"}}}}"#));
    assert_eq!(bus.sees_json(ann)["result"]["stopReason"], "cancelled");
    assert!(bus.is_closed(ann) && bus.bus.is_empty());
}

#[test]
fn a_load_that_is_sent_after_bye_is_ended_once_it_is_answered() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    bus.sends(ann, r#"{"id":2,"method":"session/load","params":{"sessionId":"s1"}}"#);
    bus.sends(ann, r#"{"method":"_bus/bye"}"#);
    bus.handles(Event::Ended(ann));
    let worker = bus.worker(0);
    bus.initializes(worker);
    bus.answers(worker, "session/load", "{}");
    bus.answers(worker, "session/close", "{}");
    assert!(bus.is_closed(ann) && bus.bus.is_empty());
}

#[test]
fn a_kept_session_is_loaded_with_its_whole_replay() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    let worker = bus.worker(0);
    let init_result = r#"{"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"close":{}}}}"#;
    bus.initializes_with(worker, init_result);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.handles(Event::Broken(ann));
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1","n":1}}"#);
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 2, "session/load", &session);
    bus.answers(worker, "session/close", "{}");
    let (wire, load) = bus.sees_request(worker, "session/load");
    assert_eq!(load["params"]["sessionId"], "s1");
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1","replay":1}}"#);
    assert_eq!(bus.sees_json(again)["params"]["replay"], 1);
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"modes":1}}}}"#));
    assert_eq!(bus.sees_json(again)["id"], 2);
    // The session is open now, so the bus answers the resume itself.
    bus.asks(again, 3, "session/resume", &session);
    assert_eq!(bus.sees_json(again)["result"], json!({"modes":1}));
    bus.is_idle();
}

#[test]
fn a_kept_session_whose_agent_cannot_replay_it_is_ended_at_the_agent() {
    let mut bus = TestBus::new(limited(Limits { max_output_queue: 1000, ..Limits::default() }));
    let ann = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes(worker);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.handles(Event::Broken(ann));
    // More than the bus keeps, so that the next client must ask the agent.
    let pad = "p".repeat(1000);
    let update = format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","pad":"{pad}"}}}}"#);
    bus.sends(worker, &update);
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 2, "session/resume", &session);
    let (wire, _) = bus.sees_request(worker, "session/resume");
    bus.sends(worker, &format!(r#"{{"id":{wire},"error":{{"code":-32601,"message":"no"}}}}"#));
    assert_eq!(bus.sees_json(again)["error"]["code"], -32601);
    assert_eq!(bus.answers(worker, "session/close", "{}")["params"]["sessionId"], "s1");
    // The agent never had this one open, and hears no more of it.
    bus.asks(again, 3, "session/load", "s2");
    let (wire, _) = bus.sees_request(worker, "session/load");
    bus.sends(worker, &format!(r#"{{"id":{wire},"error":{{"code":-32002,"message":"no"}}}}"#));
    assert_eq!(bus.sees_json(again)["error"]["code"], -32002);
    bus.is_idle();
}

#[test]
fn what_an_agent_asks_while_its_kept_session_is_loaded_has_the_bound_of_what_nobody_is_asked() {
    let mut bus = TestBus::new(limited(Limits { max_output_queue: 1000, ..Limits::default() }));
    let ann = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes_with(worker, r#"{"agentCapabilities":{"loadSession":true}}"#);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.handles(Event::Broken(ann));
    let pad = "p".repeat(300);
    let ask = |id: usize| {
        let params = format!(r#"{{"sessionId":"s1","pad":"{pad}"}}"#);
        format!(r#"{{"id":{id},"method":"session/request_permission","params":{params}}}"#)
    };
    bus.sends(worker, &ask(1));
    // More than the bus keeps, so that the next client must ask the agent.
    let update = format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","pad":"{pad}"}}}}"#);
    (0..4).for_each(|_| bus.sends(worker, &update));
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 2, "session/load", &session);
    let (wire, _) = bus.sees_request(worker, "session/load");
    bus.sends(worker, &ask(2));
    bus.sees_nothing(again);
    bus.sees_nothing(worker);
    bus.sends(worker, &ask(3));
    for id in 1..=3 {
        bus.sees_error(worker, json!(id), "client_gone");
    }
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    bus.sends(worker, &ask(4));
    assert_eq!(bus.sees_json(again)["id"], 2);
    let (wire, _) = bus.sees_request(again, "session/request_permission");
    bus.sends(again, &format!(r#"{{"id":{wire},"result":"yes"}}"#));
    assert_eq!(bus.sees(worker), r#"{"id":4,"result":"yes"}"#);
    assert_eq!(bus.bus.held_bytes(), 0);
    bus.is_idle();
}
