//! Stories of lists of sessions: from several processes, in pages, with the names that the client uses.

use serde_json::{Value, json};

use super::*;
use crate::bus::lists::CHANGE_BYTES;
use crate::config::Mode;
use crate::limit::{BATCH_BYTES, LIST_BYTES};

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

/// A client with a session in each of so many processes of one node and one store, in the order in which they are
/// asked, and its names for these sessions.
fn at_one_node<const N: usize>() -> (TestBus, Link, [Link; N], [String; N]) {
    let mut bus = TestBus::with_workers(N as u32);
    let client = bus.client();
    let mut all: Vec<_> =
        (0..N).map(|at| (bus.worker(at), bus.opens(client, bus.worker(at), &format!("own{at}")))).collect();
    bus.sends(client, r#"{"method":"which"}"#);
    all.sort_by_key(|(worker, _)| bus.all_unseen(*worker).is_empty());
    let (workers, names): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (bus, client, workers.try_into().expect("all"), names.try_into().expect("all"))
}

#[test]
fn every_process_of_one_node_is_asked_once() {
    let (mut bus, client, workers, _) = at_one_node::<3>();
    lists(&mut bus, client, &json!({"cwd": "/a"}));
    let rows = [
        r#"{"sessionId":"a"},{"sessionId":"b"}"#,
        r#"{"sessionId":"b"},{"sessionId":"c"}"#,
        r#"{"sessionId":"a"}"#,
    ];
    for (worker, rows) in workers.into_iter().zip(rows) {
        assert!(bus.all_unseen(client).is_empty(), "it is not whole");
        let list = format!(r#"{{"sessions":[{rows}]}}"#);
        assert_eq!(bus.answers(worker, "session/list", &list)["params"], json!({"cwd": "/a"}));
    }
    assert_eq!(listed(&mut bus, client), (vec!["a".into(), "b".into(), "c".into()], Value::Null));
    bus.is_idle();
}

#[test]
fn behind_the_first_page_a_process_whose_store_was_listed_adds_what_it_has_open() {
    let (mut bus, client, [first, second], [_, own]) = at_one_node();
    let all = |cursor: &str| {
        let rows = r#"{"sessionId":"a"},{"sessionId":"own0"},{"sessionId":"own1"},{"sessionId":"b"}"#;
        format!(r#"{{"sessions":[{rows}],"nextCursor":{cursor}}}"#)
    };
    lists(&mut bus, client, &json!({}));
    bus.answers(first, "session/list", &all(r#""more""#));
    let (ids, cursor) = listed(&mut bus, client);
    assert_eq!(ids.len(), 4);
    lists(&mut bus, client, &json!({"cursor": cursor}));
    bus.answers(first, "session/list", r#"{"sessions":[{"sessionId":"c"}]}"#);
    bus.answers(second, "session/list", &all(r#""more""#));
    let (ids, cursor) = listed(&mut bus, client);
    assert_eq!(ids, ["c", &own]);
    // Its further pages as well.
    lists(&mut bus, client, &json!({"cursor": cursor}));
    let asked = bus.answers(second, "session/list", r#"{"sessions":[{"sessionId":"c"},{"sessionId":"d"}]}"#);
    assert_eq!(asked["params"]["cursor"], "more");
    assert_eq!(listed(&mut bus, client), (vec![], Value::Null));
    bus.is_idle();
}

#[test]
fn an_agent_that_does_not_list_is_asked_only_if_it_is_the_first() {
    for (lists_too, count) in [(json!({"list": {}}), 1), (json!({}), 0)] {
        let mut bus = TestBus::with_workers(2);
        let client = bus.acp_client();
        let result = json!({"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": lists_too}});
        let workers = [bus.worker(0), bus.worker(1)];
        bus.initializes_with(workers[0], &result.to_string());
        bus.sees(client);
        bus.opens(client, workers[0], "s0");
        bus.sends(client, r#"{"id":"open","method":"session/new","params":{"cwd":"/"}}"#);
        bus.initializes_with(workers[1], &result.to_string());
        bus.answers(workers[1], "session/new", r#"{"sessionId":"s1"}"#);
        bus.sees(client);
        lists(&mut bus, client, &json!({}));
        let first =
            workers.into_iter().find(|worker| bus.unseen.get(worker).is_some_and(|lines| !lines.is_empty()));
        let first = first.expect("one is asked");
        bus.answers(first, "session/list", r#"{"sessions":[]}"#);
        let second = workers.into_iter().find(|worker| *worker != first).expect("another");
        assert_eq!(bus.all_unseen(second).len(), count);
    }
}

#[test]
fn a_change_of_a_list_reaches_the_clients_of_every_process_of_its_store() {
    let mut bus = TestBus::with_workers(2);
    let (clients, workers) = ([bus.client(), bus.client()], [bus.worker(0), bus.worker(1)]);
    let names = [0, 1].map(|at| bus.opens(clients[at], workers[at], &format!("s{at}")));
    for worker in workers {
        bus.sends(worker, r#"{"method":"session/list_changed","params":{}}"#);
        for client in clients {
            assert_eq!(bus.sees_json(client)["method"], "session/list_changed");
        }
        let rows = r#"[{"sessionId":"s0"},{"sessionId":"s1"},{"sessionId":"old"}]"#;
        let params = format!(r#"{{"removed":["s0","s1","z"],"sessions":{rows}}}"#);
        bus.sends(worker, &format!(r#"{{"method":"_session/list/changes","params":{params}}}"#));
        let told = clients.map(|client| bus.sees_json(client)["params"].clone());
        let rows = |name: &String| json!([{"sessionId": name}, {"sessionId": "old"}]);
        assert_eq!(told[0], json!({"removed": [names[0], "s1", "z"], "sessions": rows(&names[0])}));
        assert_eq!(told[1], json!({"removed": ["s0", names[1], "z"], "sessions": rows(&names[1])}));
    }
    // A client that does not read misses it, and holds up nobody.
    bus.stops_reading(clients[1]);
    let long =
        json!({"method": "_session/list/changes", "params": {"x": "x".repeat(CHANGE_BYTES / 2 - 100)}});
    let before = bus.bus.counters.dropped_notifications;
    for _ in 0..40 {
        bus.sends(workers[0], &long.to_string());
        bus.sees(clients[0]);
        assert!(bus.bus.wants_read(workers[0]));
    }
    assert!(bus.bus.counters.dropped_notifications > before);
}

#[test]
fn a_change_of_a_list_is_for_nobody_whose_list_is_another() {
    let mut bus = TestBus::with_workers(2);
    let (ann, ben) = (bus.acp_client(), bus.client());
    bus.sends(ben, &INITIALIZE.replace("terminal", "other"));
    let (first, second) = (bus.worker(0), bus.worker(1));
    for (worker, client, name) in [(first, ann, "one"), (second, ben, "two")] {
        let result = format!(r#"{{"protocolVersion":1,"agentInfo":{{"name":"{name}"}}}}"#);
        bus.initializes_with(worker, &result);
        bus.sees(client);
    }
    for (worker, hears, other) in [(first, ann, ben), (second, ben, ann)] {
        for method in ["session/list_changed", "_session/list/changes"] {
            bus.sends(worker, &format!(r#"{{"method":"{method}","params":{{}}}}"#));
            assert_eq!(bus.sees_json(hears)["method"], method);
            bus.sees_nothing(other);
        }
    }
}

#[test]
fn a_session_that_was_closed_is_listed_as_the_agent_names_it_and_opened_by_either_name() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.acp_client(), bus.worker(0));
    let can = json!({"loadSession": true, "sessionCapabilities": {"close": {}, "list": {}}});
    bus.initializes_with(worker, &json!({"protocolVersion": 1, "agentCapabilities": can}).to_string());
    bus.sees(client);
    let tagged = bus.opens(client, worker, "feat-1");
    let listed_as = |bus: &mut TestBus| {
        lists(bus, client, &json!({}));
        bus.answers(worker, "session/list", r#"{"sessions":[{"sessionId":"feat-1"}]}"#);
        listed(bus, client).0
    };
    assert_eq!(listed_as(&mut bus), [&*tagged]);
    for name in [&*tagged, "feat-1"] {
        bus.asks(client, 1, "session/close", &tagged);
        bus.answers(worker, "session/close", "{}");
        bus.sees(client);
        // The name of the bus went with the session: another client never heard it, and a later bus does not know it.
        assert_eq!(listed_as(&mut bus), ["feat-1"]);
        bus.asks(client, 2, "session/load", name);
        assert_eq!(bus.answers(worker, "session/load", "{}")["params"]["sessionId"], "feat-1");
        bus.sees(client);
        assert_eq!(listed_as(&mut bus), [name], "an open session has the name that its client uses");
    }
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
fn a_list_is_answered_and_a_change_is_told_only_up_to_a_length() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "own");
    let rows = |title: usize| json!({"sessions": [{"sessionId": "a", "title": "x".repeat(title)}]});
    for (title, is_carried) in [(LIST_BYTES - 1000, true), (LIST_BYTES, false)] {
        lists(&mut bus, client, &json!({}));
        bus.answers(worker, "session/list", &rows(title).to_string());
        match is_carried {
            true => assert_eq!(listed(&mut bus, client).0, ["a"]),
            false => {
                let error = bus.sees_error(client, json!("list"), "too_large");
                assert_eq!(error["data"]["limit"], LIST_BYTES);
            }
        }
        bus.sends(worker, &json!({"method": "_session/list/changes", "params": rows(title)}).to_string());
        assert_eq!(bus.all_unseen(client).len(), usize::from(is_carried));
    }
    assert_eq!((bus.bus.counters.too_large, bus.bus.counters.dropped_notifications), (1, 1));
    bus.is_idle();
}

#[test]
fn what_is_no_object_is_no_row() {
    for (rows, shown) in [
        (r#"[1,"own0",{"sessionId":"a"},null,{"sessionId":"b"},[{}]]"#, vec!["a", "b"]),
        (r#"[1,"a"]"#, vec![]),
        (r#"[{"sessionId":"a"}]"#, vec!["a"]),
    ] {
        // One process, whose list is passed on, and the first of two, whose list is put together with another.
        let (mut bus, client, [worker]) = client_of();
        bus.all_unseen(worker);
        lists(&mut bus, client, &json!({}));
        bus.answers(worker, "session/list", &format!(r#"{{"sessions":{rows}}}"#));
        assert_eq!(listed(&mut bus, client).0, shown);
        let (mut bus, client, [first, second]) = client_of();
        lists(&mut bus, client, &json!({}));
        bus.answers(first, "session/list", &format!(r#"{{"sessions":{rows}}}"#));
        bus.answers(second, "session/list", r#"{"sessions":[]}"#);
        assert_eq!(listed(&mut bus, client).0, shown);
    }
}

#[test]
fn several_sessions_are_asked_for_up_to_a_length_and_ids_that_stay_keep_their_bytes() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let mine = bus.opens(client, worker, "a");
    let asks =
        |ids: &str| format!(r#"{{"id":1,"method":"_session/batch_get","params":{{"sessionIds":[{ids}]}}}}"#);
    bus.sends(client, &asks(&format!(r#""{mine}","\u006fld""#)));
    assert!(bus.sees(worker).contains(r#"["a","\u006fld"]"#));
    bus.sends(client, &asks(&vec!["\"\""; BATCH_BYTES / 3].join(",")));
    bus.sees_error(client, json!(1), "invalid");
    bus.sees_nothing(worker);
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
    // One that has closed its output says nothing more.
    let (mut bus, client, [first, second]) = client_of();
    bus.handles(Event::Ended(second));
    lists(&mut bus, client, &json!({}));
    bus.answers(first, "session/list", r#"{"sessions":[{"sessionId":"a"}]}"#);
    assert_eq!(listed(&mut bus, client), (vec!["a".into()], Value::Null));
    bus.sees_nothing(second);
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

#[test]
fn a_client_that_never_initializes_gets_its_list_from_a_process_that_is_there() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { max_instances: 4, ..pool("agents", 1) }]));
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(ann);
    // The pool does not share, so what is Ann's is no concern of others.
    bus.opens(ann, worker, "hers");
    let ben = bus.client();
    lists(&mut bus, ben, &json!({}));
    let rows = r#"{"sessionId":"hers","title":"secret"},{"sessionId":"old"}"#;
    bus.answers(worker, "session/list", &format!(r#"{{"sessions":[{rows}],"nextCursor":"2"}}"#));
    let (rows, cursor) = listed(&mut bus, ben);
    assert_eq!((rows, bus.processes.len()), (vec!["old".into()], 1));
    lists(&mut bus, ben, &json!({ "cursor": cursor }));
    let asked = bus.answers(worker, "session/list", r#"{"sessions":[{"sessionId":"older"}]}"#);
    assert_eq!(asked["params"]["cursor"], "2");
    assert_eq!(listed(&mut bus, ben), (vec!["older".into()], Value::Null));
    // It is no client of that process: what the agent says of itself is Ann's alone.
    bus.sends(worker, r#"{"method":"_vendor/ready","params":{}}"#);
    assert_eq!(bus.sees_json(ann)["method"], "_vendor/ready");
    bus.sees_nothing(ben);
    // Anything else of his needs a process that is like him, and that one then has his lists as well.
    bus.sends(ben, r#"{"id":1,"method":"_agent/ping"}"#);
    let own = bus.worker(1);
    bus.answers(own, "_agent/ping", "{}");
    bus.sees(ben);
    lists(&mut bus, ben, &json!({}));
    bus.answers(own, "session/list", r#"{"sessions":[]}"#);
    listed(&mut bus, ben);
    bus.is_idle();
}

#[test]
fn a_process_with_variables_or_of_the_second_version_lists_for_its_own_clients_alone() {
    let others = [
        r#"{"protocolVersion":1,"clientCapabilities":{},"_meta":{"bus/env":{"HOME":"/home/ann"}}}"#,
        r#"{"protocolVersion":2,"capabilities":{}}"#,
        r#"["odd"]"#,
    ];
    for params in others {
        let config = Config::with_pools([PoolConfig { max_instances: 4, ..pool("agents", 1) }]);
        let mut bus = TestBus::new(config);
        let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
        bus.sends(ann, &format!(r#"{{"id":0,"method":"initialize","params":{params}}}"#));
        bus.initializes(worker);
        bus.sees(ann);
        lists(&mut bus, ben, &json!({}));
        bus.sees_nothing(worker);
        bus.answers(bus.worker(1), "session/list", r#"{"sessions":[{"sessionId":"a"}]}"#);
        assert_eq!(listed(&mut bus, ben).0, ["a"]);
    }
}
