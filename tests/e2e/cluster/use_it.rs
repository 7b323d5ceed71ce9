//! What users do: sessions on another machine, long lines, clients that do not read.

use serde_json::json;

use super::{NatsServer, edge_config, node, node_config, with_session, world};
use crate::harness::{Bus, prompt, request};

#[test]
fn a_pool_of_another_machine_is_used_like_any_other() {
    let Some((_nats, node, edge)) = world() else { return };
    let (mut client, session) = with_session(&edge);
    assert!(session.starts_with("e1~"), "{session}");
    assert_eq!(client.takes_turn(3, &session, "hello there").0.trim(), "hello there");
    let status = client.status();
    assert_eq!(status["pools"][0]["sessions"], 1, "{status}");
    assert_eq!(status["pools"][0]["workers"][0]["node"], "n1", "{status}");
    let mut local = node.client();
    let status = local.status();
    assert_eq!(status["link"]["state"], "up");
    assert_eq!(status["pools"][0]["sessions"], 1);
    // The link tells its bus every five seconds.
    node.until("the link has told of its pipe", || {
        let counted = &local.status()["link"]["counted"];
        (&counted["node"], &counted["pipes"]) == (&json!("n1"), &json!(1))
            && counted["frames"].as_u64() > Some(3)
    });
}

#[test]
fn a_session_is_found_again_by_its_id_from_any_edge() {
    let Some((nats, _node, edge)) = world() else { return };
    let (mut client, session) = with_session(&edge);
    client.takes_turn(3, &session, "one");
    drop(client);
    let (_, agent_id) = session.split_once('.').expect("a tag");
    let other = Bus::start(edge_config(&nats.url(), "e2"));
    let mut client = other.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    // The other edge knows nothing of it but its id, which says where it lives.
    client.sends(&request(2, "session/load", json!({ "sessionId": agent_id, "cwd": "/", "mcpServers": [] })));
    let answer = super::answer_to(&mut client, 2);
    assert!(answer.get("result").is_some(), "{answer}");
}

#[test]
fn long_lines_pass_in_both_directions() {
    let Some(nats) = NatsServer::start() else { return };
    // Without optimisation the checksums take their time.
    let long = if cfg!(debug_assertions) { 8 << 20 } else { 64 << 20 };
    let limits =
        json!({ "max_input_buffer": 2 * long, "max_output_queue": 2 * long, "max_held_bytes": 16 * long });
    let [mut node_file, mut edge_file] =
        [node_config(&nats.url(), "n1", json!({})), edge_config(&nats.url(), "e1")];
    node_file["limits"] = limits.clone();
    edge_file["limits"] = limits;
    node_file["pools"][0]["args"] = json!(["agent", "echo", "--chunks", "1"]);
    let (_node, edge) = (node(node_file), Bus::start(edge_file));
    let (mut client, session) = with_session(&edge);
    let text = "x".repeat(long);
    let (echoed, _) = client.takes_turn(3, &session, &text);
    assert!(echoed.trim() == text, "{} bytes came back", echoed.len());
}

#[test]
fn a_server_that_takes_only_short_messages_is_enough() {
    for most in ["64KB", "8KB"] {
        let Some(nats) = NatsServer::start_with(&format!("max_payload: {most}")) else { return };
        let _node = node(node_config(&nats.url(), "n1", json!({})));
        let edge = Bus::start(edge_config(&nats.url(), "e1"));
        let (mut client, session) = with_session(&edge);
        let text = "word ".repeat(100_000);
        assert_eq!(client.takes_turn(3, &session, &text).0.trim(), text.trim());
    }
}

#[test]
fn a_client_that_never_reads_harms_nobody_else() {
    let Some(nats) = NatsServer::start() else { return };
    let mut file = node_config(&nats.url(), "n1", json!({}));
    file["pools"][0]["args"] = json!(["agent", "echo", "--chunks", "600", "--chunk-bytes", "10000"]);
    let (_node, edge) = (node(file), Bus::start(edge_config(&nats.url(), "e1")));
    let (mut silent, first) = with_session(&edge);
    // 30 MB of answers that nobody takes.
    for id in 10..15 {
        silent.sends(&prompt(id, &first));
    }
    let (mut other, second) = with_session(&edge);
    let (text, _) = other.takes_turn(3, &second, "hi");
    assert_eq!(text.len(), 600 * 10_000);
    drop(silent);
}
