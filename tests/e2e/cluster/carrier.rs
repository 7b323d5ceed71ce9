//! What becomes of a session while NATS is killed, stopped and replaced: nothing.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    NatsServer, answer_to, edge_config, free_port, link_of, node, node_config, signals, with_session,
    worker_of,
};
use crate::harness::{Bus, Client, prompt, request, time_passes};

/// How much an agent says in a turn here.
const CHUNKS: usize = 3000;
const CHUNK_BYTES: usize = 2000;

/// A node whose agent says so much in a turn that it takes a while.
fn talkative(url: &str) -> (Bus, Bus) {
    (talkative_node(url), Bus::start(edge_config(url, "e1")))
}

pub(super) fn talkative_node(url: &str) -> Bus {
    node(talkative_config(url))
}

pub(super) fn talkative_config(url: &str) -> Value {
    let mut file = node_config(url, "n1", json!({}));
    file["pools"][0]["args"] = talkative_args();
    file
}

fn talkative_args() -> Value {
    json!(["agent", "echo", "--chunks", CHUNKS.to_string(), "--chunk-bytes", CHUNK_BYTES.to_string()])
}

/// The agent repeats this until it has said enough. Its length has no divisor in common with that of a chunk and is
/// more than the number of chunks, so no two chunks of a turn are alike.
fn counted() -> String {
    (0..1000).map(|number| format!("{number:04} ")).collect::<String>() + "."
}

/// All bytes of a turn arrive once and in order, whatever is done meanwhile.
pub(super) fn loses_nothing(client: &mut Client, session: &str, id: u32, meanwhile: impl FnOnce()) {
    let text = counted();
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    client.sends(&request(id, "session/prompt", params));
    let mut expected = text.chars().cycle();
    // The first words are there, so the rest is on its way.
    let mut meanwhile = Some(meanwhile);
    let mut chunks = 0;
    let answer = loop {
        let message = client.receives();
        let update = &message["params"]["update"];
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => {
                let next: String = expected.by_ref().take(CHUNK_BYTES).collect();
                assert_eq!(update["content"]["text"], next, "chunk {chunks}");
                chunks += 1;
            }
            Some(_) => {}
            None => break message,
        }
        if chunks > 0
            && let Some(meanwhile) = meanwhile.take()
        {
            meanwhile();
        }
    };
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(chunks, CHUNKS);
}

#[test]
fn a_server_that_is_killed_and_started_again_loses_nothing() {
    let Some(mut nats) = NatsServer::start() else { return };
    let (_node, edge) = talkative(&nats.url());
    let (mut client, session) = with_session(&edge);
    for id in 10..14 {
        loses_nothing(&mut client, &session, id, || nats.restart());
    }
}

#[test]
fn a_server_that_hangs_for_a_while_loses_nothing() {
    let Some(nats) = NatsServer::start() else { return };
    let (_node, edge) = talkative(&nats.url());
    let (mut client, session) = with_session(&edge);
    loses_nothing(&mut client, &session, 10, || {
        nats.signal(Signal::SIGSTOP);
        // Longer than the pings of the clients wait.
        time_passes(Duration::from_secs(9));
        nats.signal(Signal::SIGCONT);
    });
}

#[test]
fn a_link_or_a_worker_that_hangs_for_a_while_loses_nothing() {
    let Some(nats) = NatsServer::start() else { return };
    let (node, edge) = talkative(&nats.url());
    let (mut client, session) = with_session(&edge);
    for (id, pid) in [(10, link_of(&node)), (11, worker_of(&edge))] {
        loses_nothing(&mut client, &session, id, || {
            signals(pid, Signal::SIGSTOP);
            // Longer than the other end waits before it is suspect.
            time_passes(Duration::from_secs(7));
            signals(pid, Signal::SIGCONT);
        });
    }
}

#[test]
fn servers_that_are_replaced_one_after_the_other_cost_no_error() {
    let ports = [(); 3].map(|()| free_port().expect("a free port"));
    let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ");
    let started = ports.map(|port| {
        NatsServer::start_with(&format!(
            "cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n\
             lame_duck_duration: \"30s\"\nlame_duck_grace_period: \"1s\""
        ))
    });
    let [Some(first), Some(second), Some(third)] = started else { return };
    let mut servers = [first, second, third];
    let urls = servers.iter().map(NatsServer::url).collect::<Vec<_>>();
    let mut file = node_config("", "n1", json!({ "url": urls }));
    file["pools"][0]["args"] = talkative_args();
    let mut edge = edge_config("", "e1");
    edge["cluster"]["url"] = json!(urls);
    let (_node, edge) = (node(file), Bus::start(edge));
    let (mut client, session) = with_session(&edge);
    for (index, server) in servers.iter_mut().enumerate() {
        let id = 10 + index as u32;
        loses_nothing(&mut client, &session, id, || {
            // Lame duck mode: it tells its clients to go, and stops.
            server.signal(Signal::SIGUSR2);
            server.ends();
            server.comes_back();
        });
    }
    client.sends(&prompt(20, &session));
    assert_eq!(answer_to(&mut client, 20)["result"]["stopReason"], "end_turn");
}
