//! What becomes of a session when one of the processes between client and agent is killed: one error, and then it
//! goes on.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    NatsServer, answer_to, becomes_linked, edge_config, link_of, node, node_config, plays_all, recovers,
    signals, with_session, worker_of, world,
};
use crate::harness::{Bus, prompt};

/// Without word from the other side, a pipe is given up only after this long.
const SILENCE: Duration = Duration::from_secs(30);

/// An agent that takes its time.
fn slow(url: &str) -> serde_json::Value {
    let mut file = node_config(url, "n1", json!({}));
    file["pools"][0]["args"] =
        json!(["agent", "echo", "--state", "@dir/state", "--chunks", "20", "--delay-ms", "200"]);
    file
}

#[test]
fn a_worker_that_is_killed_costs_one_error_and_its_session_goes_on() {
    let Some((_nats, _node, edge)) = world() else { return };
    let (mut client, session) = with_session(&edge);
    client.takes_turn(3, &session, "before");
    signals(worker_of(&edge), Signal::SIGKILL);
    // Its pipe is not waited for: the node hears that its process is gone.
    let took = recovers(&mut client, &session, 10);
    assert!(took < SILENCE, "{took:?}");
}

#[test]
fn a_link_that_is_killed_is_noticed_by_the_next_one() {
    let Some(nats) = NatsServer::start() else { return };
    let (node, edge) = (node(slow(&nats.url())), Bus::start(edge_config(&nats.url(), "e1")));
    let (mut client, session) = with_session(&edge);
    client.sends(&prompt(3, &session));
    client.is_asked("session/update");
    let start = Instant::now();
    signals(link_of(&node), Signal::SIGKILL);
    let answer = answer_to(&mut client, 3);
    assert_eq!(answer["error"]["data"]["reason"], "worker_lost", "{answer}");
    assert!(start.elapsed() < SILENCE, "{:?}", start.elapsed());
    recovers(&mut client, &session, 10);
}

#[test]
fn a_link_that_is_killed_again_and_again_is_soon_there_to_say_so() {
    let Some((_nats, node, edge)) = world() else { return };
    let (mut client, session) = with_session(&edge);
    for round in 0..5 {
        recovers(&mut client, &session, 10 + 100 * round);
        signals(link_of(&node), Signal::SIGKILL);
        node.until("the next link is up", || {
            let link = node.client().status()["link"].clone();
            link["restarts"] == round + 1 && link["state"] == "up"
        });
    }
    let log = node.log.text();
    assert!(log.contains("it is started again in 50ms"), "{log}");
    assert!(!log.contains("it is started again in 100ms"), "nobody waits longer:\n{log}");
    recovers(&mut client, &session, 1000);
}

#[test]
fn a_node_whose_bus_hangs_is_given_up_and_used_again_when_it_goes_on() {
    if !plays_all() {
        return;
    }
    let Some(nats) = NatsServer::start() else { return };
    let (node, edge) = (node(slow(&nats.url())), Bus::start(edge_config(&nats.url(), "e1")));
    let (mut client, session) = with_session(&edge);
    client.sends(&prompt(3, &session));
    client.is_asked("session/update");
    node.signal(Signal::SIGSTOP);
    let answer = answer_to(&mut client, 3);
    node.signal(Signal::SIGCONT);
    assert_eq!(answer["error"]["data"]["reason"], "worker_lost", "{answer}");
    assert!(answer["error"].to_string().contains("has not answered for 30s"), "{answer}");
    recovers(&mut client, &session, 10);
}

#[test]
fn a_node_whose_bus_is_killed_says_so_at_once_and_is_good_again_when_it_is_back() {
    let Some(nats) = NatsServer::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = slow(&nats.url());
    file["pools"][0]["args"][3] = json!(folder.path());
    let node = node(file.clone());
    let edge = Bus::start(edge_config(&nats.url(), "e1"));
    let (mut client, session) = with_session(&edge);
    client.takes_turn(3, &session, "before");
    client.sends(&prompt(4, &session));
    client.is_asked("session/update");
    let start = Instant::now();
    node.signal(Signal::SIGKILL);
    let answer = answer_to(&mut client, 4);
    assert!(answer["error"].is_object(), "{answer}");
    assert!(start.elapsed() < SILENCE, "{:?}", start.elapsed());
    drop(node);
    // While it is away, every request is answered.
    client.sends(&prompt(5, &session));
    let answer = answer_to(&mut client, 5);
    assert!(answer["error"].is_object(), "{answer}");
    let node = Bus::start(file);
    becomes_linked(&node);
    recovers(&mut client, &session, 10);
}

#[test]
fn an_edge_that_is_started_again_finds_its_sessions_free() {
    let Some(nats) = NatsServer::start() else { return };
    let node = node(node_config(&nats.url(), "n1", json!({})));
    // It is the same edge, because it has the same file and listens where no other can.
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = edge_config(&nats.url(), "e1");
    file["listen"] = json!([format!("unix://{}/sock", folder.path().display())]);
    let edge = || Bus::plan(file.clone()).at(&folder.path().join("bus.json")).start();
    let first = edge();
    let (mut client, session) = with_session(&first);
    client.takes_turn(3, &session, "before");
    first.signal(Signal::SIGKILL);
    drop((client, first));
    let edge = edge();
    let mut client = edge.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let load = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    client.sends(&crate::harness::request(2, "session/load", load));
    let answer = answer_to(&mut client, 2);
    assert!(answer.get("result").is_some(), "{answer}");
    let mut local = node.client();
    node.until("the old pipe is gone", || local.status()["clients"] == 3);
}

#[test]
fn edges_of_one_name_leave_each_other_alone() {
    let Some(nats) = NatsServer::start() else { return };
    let _node = node(slow(&nats.url()));
    // Without a name both are called after this machine.
    let mut unnamed = edge_config(&nats.url(), "");
    unnamed.as_object_mut().expect("an object").remove("name");
    for file in [unnamed, edge_config(&nats.url(), "e1")] {
        let edges = [Bus::start(file.clone()), Bus::start(file)];
        let (mut ann, at_first) = with_session(&edges[0]);
        ann.sends(&prompt(3, &at_first));
        ann.is_asked("session/update");
        let (mut ben, at_second) = with_session(&edges[1]);
        ben.sends(&prompt(3, &at_second));
        for client in [&mut ann, &mut ben] {
            let answer = answer_to(client, 3);
            assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        }
    }
}

#[test]
fn a_node_that_is_stopped_tells_its_edges_at_once() {
    let Some(nats) = NatsServer::start() else { return };
    let (mut node, edge) = (node(slow(&nats.url())), Bus::start(edge_config(&nats.url(), "e1")));
    let (mut client, session) = with_session(&edge);
    client.sends(&prompt(3, &session));
    client.is_asked("session/update");
    // The first signal lets the turn end, the second does not wait for it.
    node.signal(Signal::SIGTERM);
    node.signal(Signal::SIGTERM);
    let start = Instant::now();
    let answer = answer_to(&mut client, 3);
    assert!(start.elapsed() < SILENCE, "{answer}");
    node.exit_status();
    node.leaves_nothing();
}
