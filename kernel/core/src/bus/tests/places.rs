//! Pools whose workers are at nodes: where sessions go, and what happens while a node is away.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, Exit, Link, PoolConfig, TestBus, pool};

const RESUMES: &str = r#"{"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}"#;
const TAG: &str = "abcdefghijklm";

fn at_nodes(nodes: &[&str]) -> PoolConfig {
    let nodes = nodes.iter().map(|node| Arc::from(*node)).collect();
    PoolConfig { nodes, max_instances: 4, ..pool("claude", 1) }
}

fn edge(nodes: &[&str]) -> TestBus {
    TestBus::new(Config { name: Some("e1".into()), ..Config::with_pools([at_nodes(nodes)]) })
}

impl TestBus {
    /// The newest process for this node.
    fn nth_at(&self, node: &str) -> usize {
        let found = self.processes.iter().rposition(|process| self.bus.node(process.worker) == Some(node));
        found.unwrap_or_else(|| panic!("no process was started for {node}"))
    }

    fn at(&self, node: &str) -> Link {
        self.worker(self.nth_at(node))
    }

    fn exits(&mut self, nth: usize, code: i32) {
        let worker = self.processes[nth].worker;
        self.handles(Event::Exited { worker, exit: Exit::Code(code) });
    }

    /// A client with a session at this node of two, whose bus is called like the node.
    fn session_at(&mut self, node: &str) -> (Link, String) {
        let client = self.acp_client();
        for node in ["n17", "n18"] {
            if !self.unseen.get(&self.at(node)).is_none_or(|lines| lines.is_empty()) {
                self.initializes_with(self.at(node), RESUMES);
            }
        }
        self.sees(client);
        for name in ["a", "b"] {
            self.sends(client, r#"{"id":"open","method":"session/new","params":{"cwd":"/"}}"#);
            for at in ["n17", "n18"] {
                if self
                    .unseen
                    .get(&self.at(at))
                    .is_some_and(|lines| lines.front().is_some_and(|line| line.contains("initialize")))
                {
                    self.initializes_with(self.at(at), RESUMES);
                }
                if self.unseen.get(&self.at(at)).is_some_and(|lines| !lines.is_empty()) {
                    let result = format!(r#"{{"sessionId":"{at}~{TAG}.{name}"}}"#);
                    self.answers(self.at(at), "session/new", &result);
                }
            }
            let answer = self.sees_json(client);
            let id = answer["result"]["sessionId"].as_str().expect("a session id").to_owned();
            if id.contains(&format!(".{node}~")) {
                return (client, id);
            }
        }
        panic!("sessions are spread over the nodes")
    }
}

#[test]
fn each_node_has_a_process_and_new_sessions_are_spread_over_them() {
    let mut bus = edge(&["n17", "n18", "n19"]);
    assert_eq!(bus.processes.len(), 3);
    let client = bus.client();
    let mut taken = [0; 3];
    for nth in 0..9 {
        bus.sends(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
        let asked = |at: &str| bus.unseen.get(&bus.at(at)).is_some_and(|lines| !lines.is_empty());
        let at = ["n17", "n18", "n19"].iter().position(|at| asked(at)).expect("one is asked");
        taken[at] += 1;
        let worker = bus.at(["n17", "n18", "n19"][at]);
        bus.answers(worker, "session/new", &format!(r#"{{"sessionId":"s{nth}"}}"#));
        bus.sees(client);
    }
    assert_eq!(taken, [3, 3, 3]);
    bus.is_idle();
}

#[test]
fn a_node_that_drains_or_is_full_gets_no_new_session() {
    let mut bus = edge(&["n17", "n18", "n19"]);
    let client = bus.client();
    bus.sends(bus.at("n17"), r#"{"method":"_bus/worker","params":{"drain":true}}"#);
    bus.sends(bus.at("n18"), r#"{"method":"_bus/worker","params":{"room":1}}"#);
    for (at, name) in [("n19", "a"), ("n19", "b"), ("n19", "c")] {
        bus.opens(client, bus.at(at), name);
    }
    bus.sends(bus.at("n19"), r#"{"method":"_bus/worker","params":{"room":0}}"#);
    bus.opens(client, bus.at("n18"), "d");
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
    bus.sees_error(client, json!(1), "busy");
    // The node that drains still serves what lives there.
    bus.asks(client, 2, "session/load", &format!("n17~{TAG}.s"));
    bus.answers(bus.at("n17"), "session/load", "{}");
    bus.sees(client);
    // Its process is not replaced by another at the same node.
    bus.advances(Duration::from_secs(60));
    assert_eq!(bus.processes.len(), 3);
    bus.is_idle();
}

#[test]
fn an_id_that_names_a_node_goes_to_that_node() {
    let inner = format!("n18~{TAG}.s");
    let deep = format!("n18~{TAG}.m1~{TAG}.s");
    let ids = [
        (inner.clone(), &inner),
        (format!("e1~{TAG}.{inner}"), &inner),
        (format!("e2~{TAG}.{inner}"), &inner),
        (format!("{TAG}.{inner}"), &inner),
        (format!("e3~{TAG}.e2~{TAG}.{inner}"), &inner),
        (deep.clone(), &deep),
        (format!("e2~{TAG}.{deep}"), &deep),
    ];
    for (id, agent) in ids {
        for method in ["session/load", "session/resume", "session/fork", "session/delete"] {
            let mut bus = edge(&["n17", "n18"]);
            let client = bus.client();
            bus.asks(client, 1, method, &id);
            let worker = bus.at("n18");
            let result = if method == "session/fork" { r#"{"sessionId":"f"}"# } else { "{}" };
            let request = bus.answers(worker, method, result);
            assert_eq!(request["params"]["sessionId"], **agent, "{id}");
            assert_eq!(bus.sees_json(client)["error"], Value::Null);
            bus.is_idle();
        }
    }
}

#[test]
fn an_id_of_a_node_that_the_pool_does_not_have_is_refused() {
    let mut bus = edge(&["n17", "n18"]);
    let client = bus.client();
    bus.asks(client, 1, "session/load", &format!("e1~{TAG}.n19~{TAG}.s"));
    let error = bus.sees_error(client, json!(1), "node_lost");
    assert_eq!((&error["code"], &error["data"]["node"]), (&json!(-32059), &json!("n19")), "{error}");
    bus.is_idle();
}

#[test]
fn a_session_whose_node_is_away_says_so_and_is_good_again_when_it_is_back() {
    let (code, said) = (69, "exited with code 69");
    let mut bus = edge(&["n17", "n18"]);
    let (client, session) = bus.session_at("n18");
    bus.exits(bus.nth_at("n18"), code);
    bus.advances(Duration::from_millis(1));
    bus.asks(client, 1, "session/prompt", &session);
    let error = bus.sees_error(client, json!(1), "node_lost");
    assert_eq!((&error["code"], &error["data"]["node"]), (&json!(-32059), &json!("n18")), "{error}");
    assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    for method in ["session/load", "session/resume"] {
        bus.asks(client, 1, method, &session);
        bus.sees_error(client, json!(1), "node_lost");
    }
    // New sessions go elsewhere.
    for nth in 0..3 {
        bus.sends(client, r#"{"id":2,"method":"session/new","params":{"cwd":"/"}}"#);
        bus.answers(bus.at("n17"), "session/new", &format!(r#"{{"sessionId":"x{nth}"}}"#));
        bus.sees(client);
    }
    let sessions = bus.asks_bus(client, "_bus/sessions")["sessions"].clone();
    assert!(sessions.as_array().unwrap().iter().any(|it| it["state"] == "lost" && it["node"] == "n18"));
    bus.advances(Duration::from_secs(1));
    bus.asks(client, 3, "session/prompt", &session);
    bus.initializes_with(bus.at("n18"), RESUMES);
    let resume = bus.answers(bus.at("n18"), "session/resume", "{}");
    assert!(resume["params"]["sessionId"].as_str().unwrap().starts_with("n18~"));
    bus.answers(bus.at("n18"), "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 3);
    bus.is_idle();
}

#[test]
fn who_waits_for_a_node_that_does_not_answer_is_served_by_another() {
    let mut bus = edge(&["n17", "n18"]);
    let client = bus.acp_client();
    let first =
        if bus.unseen.get(&bus.at("n17")).is_some_and(|lines| !lines.is_empty()) { "n17" } else { "n18" };
    let other = if first == "n17" { "n18" } else { "n17" };
    // ssh says nothing and exits.
    bus.exits(bus.nth_at(first), 255);
    bus.initializes_with(bus.at(other), RESUMES);
    assert_eq!(bus.sees_json(client)["id"], 0);
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
    bus.answers(bus.at(other), "session/new", r#"{"sessionId":"s"}"#);
    bus.sees(client);
    bus.unseen.clear();
    bus.is_idle();
}

#[test]
fn the_message_says_why_a_node_cannot_be_reached() {
    let ends_with = |bus: &mut TestBus, nth: usize, words: &[u8], code: i32| {
        let worker = bus.processes[nth].worker;
        bus.shell.bus.stderr_received(worker, words);
        bus.exits(nth, code);
    };
    let refused = b"ssh: connect to host n18\n\x1b[2JConnection refused\x07\n";
    let mut bus = edge(&["n17", "n18"]);
    let (client, session) = bus.session_at("n18");
    bus.asks(client, 1, "session/prompt", &session);
    let nth = bus.nth_at("n18");
    ends_with(&mut bus, nth, refused, 69);
    let error = bus.sees_error(client, json!(1), "node_lost");
    assert!(error["message"].as_str().unwrap().ends_with(" ([2JConnection refused)"), "{error}");
    bus.advances(Duration::from_millis(1));
    bus.asks(client, 2, "session/prompt", &session);
    let error = bus.sees_error(client, json!(2), "node_lost");
    assert!(error["message"].as_str().unwrap().ends_with(" ([2JConnection refused)"), "{error}");

    let finds = PoolConfig { finds_nodes: true, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"initialize"}"#);
    ends_with(&mut bus, 0, b"stdio-bus: no node offers the pool\n", 75);
    let error = bus.sees_error(client, json!(1), "pool_down");
    let said = "no worker of the pool claude can be started: exited with code 75 (no node offers the pool)";
    assert_eq!((&error["message"], &error["data"]["cause"]), (&json!(said), &json!("exited with code 75")));
}

#[test]
fn an_initialize_ends_with_an_error_if_no_node_answers() {
    let mut bus = edge(&["n17", "n18"]);
    let client = bus.acp_client();
    for _ in 0..8 {
        for nth in 0..bus.processes.len() {
            bus.exits(nth, 255);
        }
        bus.advances(Duration::from_millis(150));
        if bus.unseen.get(&client).is_some_and(|lines| !lines.is_empty()) {
            break;
        }
    }
    bus.sees_error(client, json!(0), "node_lost");
    // All of them are away, so nobody can be served.
    for nth in 0..bus.processes.len() {
        bus.exits(nth, 255);
    }
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
    bus.sees_error(client, json!(1), "pool_down");
}

#[test]
fn a_turn_whose_pipe_was_lost_goes_on_at_its_node() {
    let mut bus = edge(&["n17", "n18"]);
    let (client, session) = bus.session_at("n18");
    bus.asks(client, 1, "session/prompt", &session);
    bus.crashes(bus.nth_at("n18"));
    let error = bus.sees_error(client, json!(1), "worker_lost");
    assert_eq!(
        (&error["data"]["node"], &error["data"]["turn"]),
        (&json!("n18"), &json!("running")),
        "{error}"
    );
    bus.advances(Duration::from_secs(1));
    bus.asks(client, 2, "session/prompt", &session);
    bus.initializes_with(bus.at("n18"), RESUMES);
    bus.answers(bus.at("n18"), "session/resume", r#"{"_meta":{"bus/turn":"running"}}"#);
    // It would stand in the way of the next one.
    assert_eq!(bus.sees_json(bus.at("n18"))["method"], "session/cancel");
    bus.answers(bus.at("n18"), "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 2);
}

/// All that a peer was sent and has not been looked at.
fn sees_all(bus: &mut TestBus, link: Link) -> Vec<Value> {
    let count = bus.unseen.get(&link).map_or(0, |lines| lines.len());
    (0..count).map(|_| bus.sees_json(link)).collect()
}

fn tells_gap(lines: &[Value]) -> bool {
    lines.iter().any(|line| line["method"] == "_bus/session" && line["params"]["event"] == "gap")
}

#[test]
fn a_turn_whose_pipe_was_lost_is_joined_by_a_load_and_the_gap_is_told() {
    let mut bus = edge(&["n17", "n18"]);
    let (client, session) = bus.session_at("n18");
    bus.sends(client, r#"{"id":"hi","method":"_bus/hello","params":{"events":true}}"#);
    bus.sees(client);
    bus.asks(client, 1, "session/prompt", &session);
    bus.crashes(bus.nth_at("n18"));
    let lines = sees_all(&mut bus, client);
    assert!(lines.iter().any(|line| line["error"]["data"]["turn"] == "running"), "{lines:?}");
    bus.advances(Duration::from_secs(1));
    bus.asks(client, 2, "session/load", &session);
    assert!(tells_gap(&sees_all(&mut bus, client)));
    bus.initializes_with(bus.at("n18"), RESUMES);
    bus.answers(bus.at("n18"), "session/resume", r#"{"_meta":{"bus/turn":"running"}}"#);
    // It is not cancelled.
    bus.answers(bus.at("n18"), "session/load", r#"{"_meta":{"bus/turn":"running"}}"#);
    let answer = bus.sees_json(client);
    assert_eq!((&answer["id"], &answer["result"]["_meta"]["bus/turn"]), (&json!(2), &json!("running")));
    bus.sees_nothing(bus.at("n18"));
}

#[test]
fn a_prompt_after_a_lost_pipe_is_told_of_the_gap() {
    let mut bus = edge(&["n17", "n18"]);
    let (client, session) = bus.session_at("n18");
    bus.asks(client, 1, "session/prompt", &session);
    bus.crashes(bus.nth_at("n18"));
    bus.sees_error(client, json!(1), "worker_lost");
    bus.sends(client, r#"{"id":"hi","method":"_bus/hello","params":{"events":true}}"#);
    bus.sees(client);
    bus.advances(Duration::from_secs(1));
    bus.asks(client, 2, "session/prompt", &session);
    bus.initializes_with(bus.at("n18"), RESUMES);
    bus.answers(bus.at("n18"), "session/resume", "{}");
    assert!(tells_gap(&sees_all(&mut bus, client)));
}

#[test]
fn a_bus_that_was_started_again_tells_the_gap_of_a_turn_that_runs() {
    let mut bus = edge(&["n17", "n18"]);
    let (client, _) = bus.session_at("n18");
    bus.sends(client, r#"{"id":"hi","method":"_bus/hello","params":{"events":true}}"#);
    bus.sees(client);
    for (id, running, is_told) in [(2, r#"{"_meta":{"bus/turn":"running"}}"#, true), (3, "{}", false)] {
        bus.asks(client, id, "session/load", &format!("{TAG}.n18~{TAG}.old{id}"));
        bus.answers(bus.at("n18"), "session/load", running);
        if is_told {
            assert_eq!(bus.sees_json(client)["params"]["event"], "gap");
        }
        assert_eq!(bus.sees_json(client)["id"], id);
    }
}

#[test]
fn a_session_that_another_bus_cannot_open_now_is_not_given_up() {
    let mut bus = edge(&["n17", "n18"]);
    let (client, session) = bus.session_at("n18");
    bus.crashes(bus.nth_at("n18"));
    bus.advances(Duration::from_secs(1));
    bus.asks(client, 1, "session/prompt", &session);
    bus.initializes_with(bus.at("n18"), RESUMES);
    let error = r#"{"code":-32059,"message":"m1 is away","data":{"reason":"node_lost","node":"m1"}}"#;
    for _ in ["session/resume", "session/load"] {
        let request = bus.sees_json(bus.at("n18"));
        bus.sends(bus.at("n18"), &format!(r#"{{"id":{},"error":{error}}}"#, request["id"]));
    }
    let heard = bus.sees_error(client, json!(1), "node_lost");
    assert_eq!((&heard["data"]["node"], &heard["message"]), (&json!("m1"), &json!("m1 is away")), "{heard}");
    bus.asks(client, 2, "session/prompt", &session);
    bus.answers(bus.at("n18"), "session/load", "{}");
    bus.answers(bus.at("n18"), "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.is_idle();
}

#[test]
fn a_second_kind_of_client_gets_a_process_a_node_and_no_more() {
    let mut bus = edge(&["n17", "n18"]);
    let plain = bus.client();
    for (at, name) in [("n17", "a"), ("n18", "b")] {
        bus.opens(plain, bus.at(at), name);
    }
    let client = bus.acp_client();
    for _ in 0..4 {
        bus.sends(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
    }
    assert_eq!(bus.processes.len(), 4);
    for node in ["n17", "n18"] {
        let worker = bus.at(node);
        bus.initializes(worker);
        for nth in 0..2 {
            bus.answers(worker, "session/new", &format!(r#"{{"sessionId":"{node}{nth}"}}"#));
        }
    }
    bus.unseen.clear();
    bus.is_idle();
}

#[test]
fn a_pool_that_finds_its_nodes_starts_a_process_for_the_one_that_is_wanted() {
    let finds = PoolConfig { finds_nodes: true, max_instances: 3, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    let client = bus.client();
    bus.sends(bus.worker(0), r#"{"method":"_bus/worker","params":{"node":"n17","room":9}}"#);
    bus.asks(client, 1, "session/load", &format!("n17~{TAG}.s"));
    bus.answers(bus.worker(0), "session/load", "{}");
    bus.sees(client);
    // Nobody is at n18.
    bus.asks(client, 2, "session/load", &format!("n18~{TAG}.s"));
    assert_eq!(bus.nth_at("n18"), 1);
    bus.exits(1, 69);
    let error = bus.sees_error(client, json!(2), "node_lost");
    assert_eq!(error["data"]["node"], "n18");
    bus.asks(client, 3, "session/load", &format!("n18~{TAG}.s"));
    bus.sees_error(client, json!(3), "node_lost");
    // It is not looked for any longer, and can be wanted again.
    bus.advances(Duration::from_secs(1));
    assert_eq!(bus.processes.len(), 2);
    assert_eq!(bus.asks_bus(client, "_bus/status")["pools"][0]["workers"].as_array().unwrap().len(), 1);
    bus.asks(client, 4, "session/load", &format!("n18~{TAG}.s"));
    bus.answers(bus.at("n18"), "session/load", "{}");
    bus.sees(client);
    bus.unseen.clear();
    bus.is_idle();
}

#[test]
fn a_session_of_a_node_whose_process_is_replaced_waits_for_one_at_the_same_node() {
    let finds = PoolConfig { finds_nodes: true, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    let client = bus.client();
    bus.sends(bus.worker(0), r#"{"method":"_bus/worker","params":{"node":"n17","drain":true}}"#);
    bus.advances(Duration::from_secs(6));
    assert!(!bus.processes[0].stdin_open);
    bus.asks(client, 1, "session/load", &format!("n17~{TAG}.s"));
    bus.crashes(0);
    assert_eq!(bus.nth_at("n17"), 1);
    bus.answers(bus.at("n17"), "session/load", "{}");
    assert_eq!(bus.sees_json(client)["id"], 1);
    bus.unseen.clear();
    bus.is_idle();
}

#[test]
fn a_pool_that_finds_no_node_looks_for_one_again_and_again() {
    let finds = PoolConfig { finds_nodes: true, max_instances: 3, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    for nth in 0..20 {
        assert_eq!(bus.processes.len(), nth + 1);
        bus.exits(nth, 75);
        bus.advances(Duration::from_secs(10));
    }
    // One that may not look is not started again and again.
    bus.exits(20, 78);
    bus.advances(Duration::from_secs(1));
    assert_eq!(bus.processes.len(), 21);
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"hi"}"#);
    bus.sees_error(client, json!(1), "pool_down");
}

#[test]
fn who_wants_a_pool_that_has_found_no_node_hears_so_at_once_until_it_looks_again() {
    let finds = PoolConfig { finds_nodes: true, max_instances: 3, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"initialize"}"#);
    bus.sends(client, r#"{"id":2,"method":"session/new"}"#);
    bus.exits(0, 75);
    let error = bus.sees_error(client, json!(1), "pool_down");
    assert_eq!(error["data"]["cause"], "exited with code 75");
    // It waits for some more tries, which follow soon.
    for nth in 1..4 {
        bus.advances(Duration::from_secs(1));
        bus.exits(nth, 75);
    }
    bus.sees_error(client, json!(2), "pool_down");
    bus.advances(Duration::from_secs(1));
    bus.exits(4, 75);
    bus.sends(client, r#"{"id":3,"method":"session/new"}"#);
    bus.sees_error(client, json!(3), "pool_down");
    assert_eq!(bus.processes.len(), 5, "no other process would find one");
    bus.advances(Duration::from_secs(2));
    bus.sends(client, r#"{"id":4,"method":"session/new"}"#);
    let worker = bus.worker(5);
    bus.sends(worker, r#"{"method":"_bus/worker","params":{"node":"n17","room":1}}"#);
    bus.answers(worker, "initialize", "{}");
    bus.answers(worker, "session/new", r#"{"sessionId":"s"}"#);
    bus.sees(client);
    bus.unseen.clear();
    bus.is_idle();
}

#[test]
fn a_pool_whose_only_node_is_full_grows_no_further_when_it_has_found_no_other() {
    let finds = PoolConfig { finds_nodes: true, max_instances: 3, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    let client = bus.client();
    let worker = bus.worker(0);
    bus.sends(worker, r#"{"method":"_bus/worker","params":{"node":"n17","room":1}}"#);
    bus.sends(client, r#"{"id":1,"method":"session/new"}"#);
    bus.answers(worker, "session/new", r#"{"sessionId":"s"}"#);
    bus.sees(client);
    bus.sends(client, r#"{"id":2,"method":"session/new"}"#);
    for nth in 1..6 {
        bus.exits(nth, 75);
        bus.advances(Duration::from_secs(1));
    }
    bus.sees_error(client, json!(2), "pool_down");
    bus.sends(client, r#"{"id":3,"method":"session/new"}"#);
    bus.sees_error(client, json!(3), "busy");
    assert_eq!(bus.processes.len(), 6);
}

#[test]
fn ids_of_many_unknown_nodes_start_no_more_processes_than_the_pool_may_have() {
    let finds = PoolConfig { finds_nodes: true, max_instances: 3, ..pool("claude", 1) };
    let mut bus = TestBus::new(Config::with_pools([finds]));
    let client = bus.client();
    for nth in 0..20 {
        bus.asks(client, nth, "session/load", &format!("x{nth}~{TAG}.s"));
    }
    assert_eq!(bus.processes.len(), 3);
    // The one that had nothing to do makes room for a third node.
    bus.exits(0, 0);
    assert_eq!(bus.nth_at("x2"), 3);
    for nth in 1..4 {
        bus.exits(nth, 69);
    }
    // A slot whose node is away makes room for another node.
    bus.asks(client, 99, "session/load", &format!("n17~{TAG}.s"));
    bus.advances(Duration::from_secs(1));
    bus.answers(bus.at("n17"), "session/load", "{}");
    bus.unseen.clear();
    bus.is_idle();
}

#[test]
fn a_reload_changes_the_nodes() {
    let mut bus = edge(&["n17", "n18"]);
    let client = bus.client();
    let session = bus.opens(client, bus.at("n17"), "s");
    bus.reloads(&Config { name: Some("e1".into()), ..Config::with_pools([at_nodes(&["n18", "n19"])]) });
    assert_eq!((bus.processes.len(), bus.nth_at("n19")), (3, 2));
    // What lives at n17 goes on, and nothing new goes there.
    bus.asks(client, 1, "session/prompt", &session);
    bus.answers(bus.at("n17"), "session/prompt", "{}");
    bus.sees(client);
    for name in ["a", "b"] {
        bus.sends(client, r#"{"id":2,"method":"session/new","params":{"cwd":"/"}}"#);
        let at = if name == "a" { "n18" } else { "n19" };
        bus.answers(bus.at(at), "session/new", &format!(r#"{{"sessionId":"{name}"}}"#));
        bus.sees(client);
    }
    bus.asks(client, 3, "session/close", &session);
    bus.answers(bus.at("n17"), "session/close", "{}");
    bus.sees(client);
    assert!(!bus.processes[0].stdin_open);
}
