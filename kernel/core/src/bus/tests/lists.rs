//! Stories of lists of sessions: from several processes, in pages, with the names that the client uses.

use serde_json::{Value, json};

use super::*;
use crate::config::Mode;

/// A client that uses so many processes, each at a node of its own, in the order in which they are asked.
fn client_of<const N: usize>() -> (TestBus, Link, [Link; N]) {
    let mut bus = TestBus::with_workers(N as u32);
    let client = bus.client();
    let mut workers = [client; N];
    for (at, worker) in workers.iter_mut().enumerate() {
        *worker = bus.worker(at);
        bus.opens(client, *worker, &format!("own{at}"));
        bus.sends(
            *worker,
            &json!({"method": "_bus/worker", "params": {"node": format!("n{at}")}}).to_string(),
        );
    }
    bus.sends(client, r#"{"method":"which"}"#);
    workers.sort_by_key(|worker| bus.all_unseen(*worker).is_empty());
    (bus, client, workers)
}

fn lists(bus: &mut TestBus, client: Link, params: &Value) {
    bus.sends(client, &json!({"id": "list", "method": "session/list", "params": params}).to_string());
}

/// What a client is answered: the ids, and the cursor.
fn listed(bus: &mut TestBus, client: Link) -> (Vec<String>, Value) {
    let answer = bus.sees_json(client);
    assert_eq!(answer["id"], "list", "{answer}");
    let rows = answer["result"]["sessions"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let ids = rows.iter().map(|row| row["sessionId"].as_str().unwrap().to_owned());
    (ids.collect(), answer["result"]["nextCursor"].clone())
}

#[test]
fn a_list_has_the_sessions_of_every_node_once() {
    let (mut bus, client, workers) = client_of::<3>();
    lists(&mut bus, client, &json!({"cwd": "/a"}));
    let rows = [r#"{"sessionId":"a"},{"sessionId":"b"}"#, r#"{"sessionId":"b"}"#, r#"{"sessionId":"c"}"#];
    for (worker, rows) in workers.into_iter().zip(rows) {
        assert!(bus.all_unseen(client).is_empty(), "it is not whole");
        let list = format!(r#"{{"sessions":[{rows}],"nextCursor":null}}"#);
        assert_eq!(bus.answers(worker, "session/list", &list)["params"], json!({"cwd": "/a"}));
    }
    assert_eq!(listed(&mut bus, client), (vec!["a".into(), "b".into(), "c".into()], Value::Null));
    bus.is_idle();
}

#[test]
fn of_the_processes_of_one_node_one_is_asked() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.client();
    let workers = [bus.worker(0), bus.worker(1)];
    for worker in workers {
        bus.opens(client, worker, "own");
    }
    lists(&mut bus, client, &json!({}));
    let asked = workers.map(|worker| bus.all_unseen(worker).into_iter().next());
    let at = asked.iter().position(Option::is_some).expect("one is asked");
    assert!(asked[1 - at].is_none(), "{asked:?}");
    let list = asked[at].as_ref().expect("a request");
    bus.sends(
        workers[at],
        &json!({"id": list["id"], "result": {"sessions": [{"sessionId": "a"}]}}).to_string(),
    );
    assert_eq!(listed(&mut bus, client), (vec!["a".into()], Value::Null));
    bus.is_idle();
}

#[test]
fn a_process_that_has_further_pages_is_asked_for_them_before_the_next() {
    let (mut bus, client, [first, second]) = client_of();
    lists(&mut bus, client, &json!({"cwd": "/a"}));
    bus.answers(first, "session/list", r#"{"sessions":[{"sessionId":"a"}],"nextCursor":"p\"2"}"#);
    let (ids, cursor) = listed(&mut bus, client);
    assert_eq!(ids, ["a"]);
    lists(&mut bus, client, &json!({"cwd": "/a", "cursor": cursor}));
    let asked = bus.answers(first, "session/list", r#"{"sessions":[{"sessionId":"b"}]}"#);
    assert_eq!(asked["params"], json!({"cwd": "/a", "cursor": "p\"2"}), "its own cursor, as it wrote it");
    let asked = bus.answers(second, "session/list", r#"{"sessions":[{"sessionId":"c"}]}"#);
    assert_eq!(asked["params"], json!({"cwd": "/a"}));
    assert_eq!(listed(&mut bus, client), (vec!["b".into(), "c".into()], Value::Null));
    // A cursor that no bus wrote is the agent's.
    lists(&mut bus, client, &json!({"cursor": "bus.x"}));
    let asked = bus.answers(first, "session/list", r#"{"sessions":[]}"#);
    assert_eq!(asked["params"]["cursor"], "bus.x");
    bus.answers(second, "session/list", r#"{"sessions":[]}"#);
    bus.sees(client);
    lists(&mut bus, client, &json!({"cursor": "bus.0-0.77-77."}));
    bus.sees_error(client, json!("list"), "invalid");
    bus.is_idle();
}

#[test]
fn a_long_list_is_not_gathered_in_one() {
    let (mut bus, client, [first, second]) = client_of();
    lists(&mut bus, client, &json!({}));
    let row = json!({"sessionId": "a", "title": "x".repeat(300 << 10)});
    bus.answers(first, "session/list", &json!({"sessions": [row], "_meta": {"k": 1}}).to_string());
    let (ids, cursor) = listed(&mut bus, client);
    assert_eq!(ids, ["a"]);
    lists(&mut bus, client, &json!({"cursor": cursor}));
    let asked = bus.answers(second, "session/list", r#"{"sessions":[{"sessionId":"b"}]}"#);
    assert_eq!(asked["params"], json!({"cursor": null}));
    assert_eq!(listed(&mut bus, client), (vec!["b".into()], Value::Null));
    bus.is_idle();
}

#[test]
fn a_process_that_refuses_or_dies_leaves_one_answer() {
    let refusal = r#"{"code":-32601,"message":"no lists"}"#;
    for refuses in [[true, false], [false, true], [true, true]] {
        let (mut bus, client, workers) = client_of::<2>();
        lists(&mut bus, client, &json!({}));
        for (worker, refuses) in workers.into_iter().zip(refuses) {
            let (wire, _) = bus.sees_request(worker, "session/list");
            let outcome = match refuses {
                true => format!(r#""error":{refusal}"#),
                false => r#""result":{"sessions":[{"sessionId":"a"}]}"#.to_owned(),
            };
            bus.sends(worker, &format!(r#"{{"id":{wire},{outcome}}}"#));
        }
        if refuses == [true, true] {
            assert_eq!(bus.sees_json(client)["error"]["code"], -32601);
        } else {
            assert_eq!(listed(&mut bus, client), (vec!["a".into()], Value::Null));
        }
        bus.is_idle();
    }
    let (mut bus, client, [first, second]) = client_of();
    lists(&mut bus, client, &json!({}));
    bus.answers(first, "session/list", r#"{"sessions":[{"sessionId":"a"}]}"#);
    bus.sees_request(second, "session/list");
    let at = usize::from(second == bus.worker(1));
    bus.crashes(at);
    bus.sees_error(client, json!("list"), "worker_lost");
    assert!(bus.all_unseen(client).is_empty());
}

#[test]
fn the_processes_of_other_clients_are_not_asked() {
    let dedicated = PoolConfig { mode: Mode::Dedicated, ..pool("agents", 2) };
    let mut bus = TestBus::new(Config::with_pools([dedicated]));
    let (ann, ben) = (bus.client(), bus.client());
    for (client, at) in [(ann, 0), (ben, 1)] {
        bus.sends(client, r#"{"id":0,"method":"session/new"}"#);
        let worker = bus.worker(at);
        bus.answers(worker, "session/new", r#"{"sessionId":"s"}"#);
        bus.sees(client);
    }
    lists(&mut bus, ann, &json!({}));
    let worker = bus.worker(0);
    bus.answers(worker, "session/list", r#"{"sessions":[{"sessionId":"old"}]}"#);
    assert_eq!(listed(&mut bus, ann).0, ["old"]);
    bus.is_idle();
}

#[test]
fn a_row_names_the_session_that_it_was_forked_from_as_the_client_does() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { share: false, ..pool("agents", 1) }]));
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let (mine, _) = (bus.opens(ann, worker, "a"), bus.opens(ben, worker, "b"));
    let rows =
        r#"[{"sessionId":"f","forkedFrom":"a"},{"sessionId":"g","_meta":{"x":{"forkedFrom":"a"},"y":1}},
        {"forkedFrom":"b","sessionId":"h"},{"sessionId":"a","forkedFrom":"gone"}]"#
            .replace('\n', "");
    let shown = json!([
        {"sessionId":"f","forkedFrom":mine},
        {"sessionId":"g","_meta":{"x":{"forkedFrom":mine},"y":1}},
        // The id that another client uses for its own session is not told.
        {"sessionId":"h","forkedFrom":"b"},
        {"sessionId":mine,"forkedFrom":"gone"},
    ]);
    lists(&mut bus, ann, &json!({}));
    bus.answers(worker, "session/list", &format!(r#"{{"sessions":{rows}}}"#));
    assert_eq!(bus.sees_json(ann)["result"]["sessions"], shown);
    // Several are asked for by the names that the client uses, and a list that has changed has them too.
    bus.sends(
        ann,
        &json!({"id": 1, "method": "_session/batch_get", "params": {"sessionIds": [mine, "old", 7]}})
            .to_string(),
    );
    let asked = bus.answers(worker, "_session/batch_get", &format!(r#"{{"sessions":{rows}}}"#));
    assert_eq!(asked["params"]["sessionIds"], json!(["a", "old", 7]));
    assert_eq!(bus.sees_json(ann)["result"]["sessions"], shown);
    bus.sends(
        worker,
        &format!(
            r#"{{"method":"_session/list/changes","params":{{"removed":["a","z"],"sessions":{rows}}}}}"#
        ),
    );
    let told = bus.sees_json(ann);
    assert_eq!(told["params"], json!({"removed": [mine, "z"], "sessions": shown}));
    let others = bus.sees_json(ben)["params"]["sessions"].to_string();
    assert!(!others.contains(&mine), "{others}");
    // What would take long for all of them is for none.
    let long = json!({"removed": [], "sessions": [{"sessionId": "a", "title": "x".repeat(200 << 10)}]});
    bus.sends(worker, &json!({"method": "_session/list/changes", "params": long}).to_string());
    bus.is_idle();
}

#[test]
fn an_error_that_answers_a_list_names_the_session_as_the_client_does() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.client(), bus.worker(0));
    let mine = bus.opens(ann, worker, "a");
    lists(&mut bus, ann, &json!({}));
    let (wire, _) = bus.sees_request(worker, "session/list");
    bus.sends(
        worker,
        &format!(r#"{{"id":{wire},"error":{{"code":1,"message":"","data":{{"sessionId":"a"}}}}}}"#),
    );
    assert_eq!(bus.sees_json(ann)["error"]["data"]["sessionId"], mine.as_str());
}

#[test]
fn the_second_version_has_its_own_code_for_a_session_that_is_not_known() {
    for (version, code) in [(1, -32051), (2, -32002)] {
        let mut bus = TestBus::with_workers(1);
        let (client, worker) = (bus.client(), bus.worker(0));
        bus.sends(
            client,
            &json!({"id": 0, "method": "initialize", "params": {"protocolVersion": version}}).to_string(),
        );
        bus.initializes_with(worker, &json!({"protocolVersion": version}).to_string());
        bus.sees(client);
        bus.asks(client, 1, "session/prompt", r#"a\"b"#);
        let error = bus.sees_json(client)["error"].take();
        assert_eq!(
            (error["code"].as_i64(), &error["data"]["reason"]),
            (Some(code), &json!("unknown_session"))
        );
        let named = &error["data"]["sessionId"];
        assert_eq!(named == "a\"b", version == 2, "{error}");
    }
}
