//! The folders of sessions are those of the node.

use std::fs;

use serde_json::json;

use super::{NatsServer, answer_to, edge_config, node, node_config};
use crate::harness::{Bus, request};

#[test]
fn a_folder_is_mapped_or_made_or_said_not_to_be_there() {
    let Some(nats) = NatsServer::start() else { return };
    let there = tempfile::tempdir().expect("a folder");
    let path = there.path().to_str().expect("UTF-8");
    fs::create_dir(there.path().join("work")).expect("our folder");
    let more = json!({ "map": { "/home/me": path }, "prepare": ["mkdir"] });
    let _node = node(node_config(&nats.url(), "n1", more));
    let edge = Bus::start(edge_config(&nats.url(), "e1"));
    let mut client = edge.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let open = |id: u32, cwd: &str| request(id, "session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    client.sends(&open(2, "/home/me/work"));
    assert!(answer_to(&mut client, 2)["result"]["sessionId"].is_string());
    client.sends(&open(3, "/home/me/made"));
    assert!(answer_to(&mut client, 3)["result"]["sessionId"].is_string());
    assert!(there.path().join("made").is_dir());
    client.sends(&open(4, "/home/me/no/parent"));
    let error = answer_to(&mut client, 4)["error"].clone();
    let data = &error["data"];
    assert_eq!((&error["code"], &data["reason"]), (&json!(-32060), &json!("no_workspace")));
    assert_eq!((&data["path"], &data["node"]), (&json!("/home/me/no/parent"), &json!("n1")));
    assert!(data["stderr"].as_str().is_some_and(|words| words.contains("mkdir")), "{data}");
}

#[test]
fn without_a_hook_a_missing_folder_is_an_error_that_says_what_to_do() {
    let Some((_nats, _node, edge)) = super::world() else { return };
    let mut client = edge.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    client.sends(&request(2, "session/new", json!({ "cwd": "/no/such/folder", "mcpServers": [] })));
    let message = client.receives();
    assert_eq!(message["error"]["code"], -32060, "{message}");
    let text = message["error"]["message"].as_str().expect("a message");
    assert!(text.contains("n1") && text.contains("/no/such/folder") && text.contains("prepare"), "{text}");
    // Nor does it help to send something that no agent would take.
    let odd = json!({ "cwd": "/no/such/folder", "mcpServers": [], "additionalDirectories": "x" });
    client.sends(&request(3, "session/new", odd));
    assert_eq!(answer_to(&mut client, 3)["error"]["code"], -32060);
}
