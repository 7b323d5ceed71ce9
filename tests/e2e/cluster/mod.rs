//! Many machines over NATS: an edge, a node and a real nats-server, each of which is killed, stopped and started again.
//!
//! They are played where $BUS_NATS_SERVER names a nats-server: tests/cluster/run installs one.

mod accounts;
mod carrier;
mod deaths;
mod folders;
mod forged;
mod hostile_edge;
mod hostile_node;
mod namespaces;
mod network;
mod nodes;
#[path = "../../../bench/src/port.rs"]
mod port;
mod proxy;
mod raw;
mod server;
mod upgrade;
mod use_it;

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, PATIENCE, looks_again, session_of};
use port::free_port;
use server::NatsServer;

/// The configuration of a node that offers the pool `echo`, with more of these keys in `cluster`.
fn node_config(url: &str, name: &str, more: Value) -> Value {
    let mut cluster = json!({ "url": url, "offer": ["echo"], "insecure": true });
    merge(&mut cluster, more);
    let args = ["agent", "echo", "--state", "@dir/state"];
    json!({
        "name": name,
        "pools": [{ "id": "echo", "command": "stdio-bus", "args": args }],
        "cluster": cluster,
    })
}

/// The configuration of an edge whose pool `echo` is in the cluster.
fn edge_config(url: &str, name: &str) -> Value {
    json!({
        "name": name,
        "pools": [{ "id": "echo", "from": "cluster" }],
        "cluster": { "url": url },
    })
}

/// Whether tests are played that wait for more than half a minute: `tests/cluster/run --all`.
fn plays_all() -> bool {
    let all = std::env::var_os("BUS_CLUSTER_ALL").is_some();
    if !all {
        eprintln!("SKIPPED: it takes long; tests/cluster/run --all plays it");
    }
    all
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}

/// A node whose link is up.
fn node(config: Value) -> Bus {
    let node = Bus::start(config);
    becomes_linked(&node);
    node
}

fn becomes_linked(node: &Bus) {
    let mut client = node.client();
    node.until("the link is up", || client.status()["link"]["state"] == "up");
}

/// A server, a node n1 and an edge e1.
fn world() -> Option<(NatsServer, Bus, Bus)> {
    let nats = NatsServer::start()?;
    let node = node(node_config(&nats.url(), "n1", json!({})));
    let edge = Bus::start(edge_config(&nats.url(), "e1"));
    Some((nats, node, edge))
}

/// A client that has initialized and opened a session.
fn with_session(edge: &Bus) -> (Client, String) {
    let mut client = edge.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let opened = client.asks(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }));
    (client, session_of(&opened))
}

/// The process that links a node to the cluster.
fn link_of(node: &Bus) -> u32 {
    let status = node.client().status();
    status["link"]["pid"].as_u64().unwrap_or_else(|| panic!("no link: {status}")) as u32
}

/// The first process of the only pool of a bus.
fn worker_of(bus: &Bus) -> u32 {
    let status = bus.client().status();
    let pid = &status["pools"][0]["workers"][0]["pid"];
    pid.as_u64().unwrap_or_else(|| panic!("no worker: {status}")) as u32
}

fn signals(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).expect("it runs");
}

/// The next answer to this id, whatever it is; what is not for this id is skipped.
fn answer_to(client: &mut Client, id: u32) -> Value {
    let deadline = Instant::now() + PATIENCE * 2;
    loop {
        let message = client.receives();
        if message["id"] == id && message.get("method").is_none() {
            return message;
        }
        assert!(Instant::now() < deadline, "no answer to {id}");
    }
}

/// Prompts until it is answered well again, and returns how long that took.
fn recovers(client: &mut Client, session: &str, first_id: u32) -> Duration {
    let start = Instant::now();
    for id in first_id.. {
        client.prompts(id, session);
        let answer = answer_to(client, id);
        if answer["result"]["stopReason"] == "end_turn" {
            break;
        }
        assert!(start.elapsed() < PATIENCE * 2, "it does not recover: {answer}");
        looks_again();
    }
    start.elapsed()
}
