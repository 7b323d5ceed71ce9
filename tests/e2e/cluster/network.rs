//! Lines between machines: slow ones, ones that hang, and a leaf node that dials out for a whole site.

use std::time::Duration;

use serde_json::json;

use super::carrier::{loses_nothing, talkative_node};
use super::proxy::{Line, Proxy};
use super::{NatsServer, edge_config, free_port, with_session};
use crate::harness::{Bus, run, time_passes};

#[test]
fn a_slow_line_that_hangs_for_a_while_loses_nothing() {
    let Some(nats) = NatsServer::start() else { return };
    let _node = talkative_node(&nats.url());
    let line = Line { delay: Duration::from_millis(40), bytes_per_sec: 4_000_000 };
    let proxy = Proxy::start(nats.port, line);
    let edge = Bus::start(edge_config(&proxy.url(), "e1"));
    let (mut client, session) = with_session(&edge);
    loses_nothing(&mut client, &session, 10, || {});
    loses_nothing(&mut client, &session, 11, || {
        proxy.cut(true);
        // Longer than the other end waits before it is suspect.
        time_passes(Duration::from_secs(8));
        proxy.cut(false);
    });
}

#[test]
fn a_site_behind_a_leaf_node_is_used_like_any_other() {
    let port = free_port().expect("a free port");
    let Some(hub) = NatsServer::start_with(&format!("leafnodes {{ listen: \"127.0.0.1:{port}\" }}")) else {
        return;
    };
    let remote =
        format!("leafnodes {{ remotes: [{{ url: \"nats-leaf://127.0.0.1:{port}\" }}], reconnect: 1 }}");
    let Some(mut leaf) = NatsServer::start_with(&remote) else { return };
    let node = talkative_node(&leaf.url());
    let edge = Bus::start(edge_config(&hub.url(), "e1"));
    let url = hub.url();
    edge.until("the leaf node has joined", || {
        run(edge.folder(), &["nodes", "--url", &url, "--json"], "").stdout.starts_with(b"[{")
    });
    let (mut client, session) = with_session(&edge);
    loses_nothing(&mut client, &session, 10, || {});
    loses_nothing(&mut client, &session, 11, || leaf.restart());
    assert_eq!(node.client().status()["pools"][0]["sessions"], json!(1));
}
