//! What another bus can do through a pipe: use one pool, and sessions that it has opened or knows the ids of.

use serde_json::json;

use super::*;

/// Two pools that share their sessions, and a client of the first that is a pipe.
fn with_pipe() -> (TestBus, Link) {
    let shared = |id: &str| PoolConfig { share: true, ..pool(id, 1) };
    let mut bus = TestBus::new(Config::with_pools([shared("offered"), shared("own")]));
    let pipe = bus.client();
    bus.sends(pipe, r#"{"id":1,"method":"_bus/hello","params":{"pool":"offered","role":"pipe"}}"#);
    bus.sees(pipe);
    (bus, pipe)
}

fn initializes(bus: &mut TestBus, client: Link) {
    bus.sends(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
}

/// The result of a request, whatever comes before it.
fn answer_to(bus: &mut TestBus, client: Link, id: u32) -> Value {
    loop {
        let line = bus.sees_json(client);
        if line["id"] == id {
            assert!(line.get("result").is_some(), "{line}");
            return line["result"].clone();
        }
    }
}

#[test]
fn a_pipe_has_no_method_that_shows_or_changes_the_bus() {
    let (mut bus, pipe) = with_pipe();
    for method in
        ["hello", "status", "restart", "drain", "logs", "reload", "stop", "trace", "sessions", "close", "bye"]
    {
        bus.sends(pipe, &format!(r#"{{"id":2,"method":"_bus/{method}","params":{{"pool":"own"}}}}"#));
        bus.sees_error(pipe, json!(2), "no_method");
    }
    bus.client();
}

#[test]
fn a_pipe_reaches_no_other_pool() {
    let (mut bus, pipe) = with_pipe();
    initializes(&mut bus, pipe);
    bus.initializes(bus.worker(0));
    bus.sees(pipe);
    for named in [r#""pool":"own""#, r#""params":{"_meta":{"bus/pool":"own"}}"#, r#""pool":"none""#] {
        bus.sends(pipe, &format!(r#"{{"id":2,"method":"session/new",{named}}}"#));
        let error = bus.sees_error(pipe, json!(2), "unknown_pool");
        assert_eq!(error["data"]["pools"], json!(["offered"]), "what else there is is not said");
    }
    bus.sends(pipe, r#"{"id":3,"method":"work","pool":"own"}"#);
    bus.sees_error(pipe, json!(3), "unknown_pool");
    bus.sees_nothing(bus.worker(1));
    bus.sends(pipe, r#"{"id":4,"method":"session/new","pool":"offered"}"#);
    bus.sees_request(bus.worker(0), "session/new");
}

#[test]
fn a_pipe_knows_a_session_of_another_only_by_its_whole_id() {
    let (mut bus, pipe) = with_pipe();
    let worker = bus.worker(0);
    let local = bus.client();
    bus.sends(local, r#"{"id":1,"method":"_bus/hello","params":{"pool":"offered"}}"#);
    bus.sees(local);
    for client in [local, pipe] {
        initializes(&mut bus, client);
    }
    bus.initializes(worker);
    bus.sees(local);
    bus.sees(pipe);
    let session = bus.opens(local, worker, "agents-own");
    let (_, agent) = session.split_once('.').expect("a tag");
    let forged = format!("aaaaaaaaaaaaa.{agent}");
    for (id, name) in (10..).zip(["s0", "s1", "s2", agent, &forged]) {
        for method in ["_bus/attach", "_bus/take", "_bus/detach", "session/attach"] {
            bus.asks(pipe, id, method, name);
            bus.sees_error(pipe, json!(id), "unknown_session");
        }
    }
    for (id, name) in (20..).zip([agent, &forged]) {
        for method in ["session/load", "session/resume", "session/delete", "session/fork"] {
            bus.asks(pipe, id, method, name);
            bus.sees_error(pipe, json!(id), "unknown_session");
        }
    }
    bus.sees_nothing(worker);
    bus.asks(pipe, 30, "session/load", &session);
    answer_to(&mut bus, pipe, 30);
}

#[test]
fn a_list_shows_a_pipe_no_open_session_of_others() {
    let (mut bus, pipe) = with_pipe();
    let worker = bus.worker(0);
    let local = bus.client();
    bus.sends(local, r#"{"id":1,"method":"_bus/hello","params":{"pool":"offered"}}"#);
    bus.sees(local);
    for client in [local, pipe] {
        initializes(&mut bus, client);
    }
    bus.initializes(worker);
    bus.sees(local);
    bus.sees(pipe);
    bus.opens(local, worker, "of-local");
    let own = bus.opens(pipe, worker, "of-pipe");
    bus.sends(pipe, r#"{"id":5,"method":"session/list","params":{}}"#);
    let listed = r#"{"sessions":[{"sessionId":"of-local"},{"sessionId":"of-pipe"},{"sessionId":"past"}]}"#;
    bus.answers(worker, "session/list", listed);
    let shown = answer_to(&mut bus, pipe, 5);
    assert_eq!(shown["sessions"], json!([{ "sessionId": own }, { "sessionId": "past" }]));
}
