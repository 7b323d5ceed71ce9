//! A node that becomes another program: its link is replaced, but not under a pipe.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{NatsServer, becomes_linked, edge_config, link_of, node, node_config, with_session};
use crate::harness::{Bus, looks_again};

#[test]
fn the_link_of_a_node_is_replaced_when_no_pipe_is_open() {
    let Some(nats) = NatsServer::start() else { return };
    let node = node(node_config(&nats.url(), "n1", json!({})));
    let upgrades = || node.client().asks(1, "_bus/upgrade", json!({}));
    let is_replaced = |link: u32| {
        node.until("another link is open", || {
            let shown = node.client().status()["link"].clone();
            shown["state"] == "up" && shown["pid"] != link && shown["restarts"] == 0
        });
    };
    let first = link_of(&node);
    upgrades();
    is_replaced(first);
    let mut edge = Bus::start(edge_config(&nats.url(), "e1"));
    let (mut client, session) = with_session(&edge);
    // The link has not told its bus of the pipe yet, which it does every five seconds.
    let second = link_of(&node);
    upgrades();
    loop {
        let status = node.client().status();
        assert_eq!(status["link"]["pid"], second, "it stays while a pipe is open");
        let at = status["upgraded"]["at_us"].as_u64().expect("a time") / 1_000_000;
        // Whether it can be replaced is looked at twice in a second.
        if status["uptime_sec"].as_u64() > Some(at + 2) {
            break;
        }
        looks_again();
    }
    assert_eq!(client.takes_turn(3, &session, "goes on").0.trim(), "goes on");
    drop(client);
    edge.signal(Signal::SIGTERM);
    edge.exit_status();
    is_replaced(second);
    becomes_linked(&node);
}
