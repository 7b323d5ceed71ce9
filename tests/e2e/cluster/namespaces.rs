//! Two machines with a cable between them: network namespaces, joined by a pair of virtual interfaces that can be cut.
//!
//! That needs root and `ip` of iproute2; where they are not there, it is said.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::accounts::{file, tls};
use super::carrier::{loses_nothing, talkative_config};
use super::server::Place;
use super::{
    NatsServer, answer_to, becomes_linked, edge_config, node_config, plays_all, recovers, with_session,
};
use crate::harness::{Bus, looks_again, prompt, run, skips, time_passes};

/// The address of the server, which its certificate has.
const HUB: &str = "10.77.19.1";
const SITE: &str = "10.77.19.2";

struct Cable {
    hub: String,
    site: String,
}

impl Cable {
    /// `None`: this user or machine has no network namespaces.
    fn lay() -> Option<Cable> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("bus-{}-{number}-{end}", std::process::id());
        let cable = Cable { hub: name("hub"), site: name("site") };
        let (hub, site) = (&*cable.hub, &*cable.site);
        for namespace in [hub, site] {
            if let Err(why) = ip(&["netns", "add", namespace]) {
                skips(format_args!("network namespaces, which need root and iproute2: {why}"));
                return None;
            }
        }
        for args in [
            &["link", "add", "cable", "netns", hub, "type", "veth", "peer", "name", "cable", "netns", site][..],
            &["-n", hub, "address", "add", &format!("{HUB}/24"), "dev", "cable"],
            &["-n", site, "address", "add", &format!("{SITE}/24"), "dev", "cable"],
            &["-n", hub, "link", "set", "lo", "up"],
            &["-n", site, "link", "set", "lo", "up"],
            &["-n", hub, "link", "set", "cable", "up"],
            &["-n", site, "link", "set", "cable", "up"],
        ] {
            ip(args).expect("the namespaces are ours");
        }
        Some(cable)
    }

    fn cut(&self, is_cut: bool) {
        ip(&["-n", &self.site, "link", "set", "cable", if is_cut { "down" } else { "up" }]).expect("ours");
    }

    fn at(&self, host: &'static str, namespace: &str) -> Place {
        Place { host, inside: Some(namespace.to_owned()) }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in [&self.hub, &self.site] {
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(args).output().map_err(|error| error.to_string())?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()) }
}

/// Clients come from outside, by a Unix socket.
fn inside(namespace: &str, mut config: Value) -> Bus {
    config["listen"] = json!(["unix://@dir/bus.sock"]);
    Bus::plan(config).inside(namespace).start()
}

/// A server with TLS at the hub, an edge beside it, and a node at the other end of the cable.
fn machines(cable: &Cable, mut node_file: Value) -> Option<(NatsServer, Bus, Bus)> {
    let nats = NatsServer::start_at(&tls(), cable.at(HUB, &cable.hub))?;
    let url = format!("tls://{HUB}:{}", nats.port);
    let mut edge_file = edge_config(&url, "e1");
    for config in [&mut node_file, &mut edge_file] {
        config["cluster"]["url"] = json!(url);
        config["cluster"]["ca"] = json!(file("ca.pem"));
    }
    let node = inside(&cable.site, node_file);
    becomes_linked(&node);
    Some((nats, node, inside(&cable.hub, edge_file)))
}

#[test]
fn a_cable_that_is_cut_for_a_while_loses_nothing() {
    let Some(cable) = Cable::lay() else { return };
    let Some((_nats, _node, edge)) = machines(&cable, talkative_config("")) else { return };
    let (mut client, session) = with_session(&edge);
    loses_nothing(&mut client, &session, 10, || {
        cable.cut(true);
        // Longer than the other end waits before it is suspect.
        time_passes(Duration::from_secs(7));
        cable.cut(false);
    });
}

#[test]
fn a_cable_that_stays_cut_is_an_error_within_35_s_and_the_session_goes_on_when_it_is_back() {
    if !plays_all() {
        return;
    }
    let Some(cable) = Cable::lay() else { return };
    let mut file = node_config("", "n1", json!({}));
    file["pools"][0]["args"] =
        json!(["agent", "echo", "--state", "@dir/state", "--chunks", "20", "--delay-ms", "500"]);
    let Some((_nats, _node, edge)) = machines(&cable, file) else { return };
    let (mut client, session) = with_session(&edge);
    client.sends(&prompt(10, &session));
    client.is_asked("session/update");
    cable.cut(true);
    let cut = Instant::now();
    let mut watcher = edge.client();
    while watcher.status()["counters"]["worker_deaths"] == 0 {
        assert!(cut.elapsed() < Duration::from_secs(35), "no error in 35 s\n{}", edge.log.text());
        looks_again();
    }
    let answer = answer_to(&mut client, 10);
    let (data, took) = (&answer["error"]["data"], cut.elapsed());
    assert_eq!((&data["reason"], &data["node"]), (&json!("worker_lost"), &json!("n1")), "{answer}");
    assert!(took > Duration::from_secs(25), "{took:?} after the cut: {answer}");
    // It is said as long as the node is away.
    client.sends(&prompt(11, &session));
    let answer = answer_to(&mut client, 11);
    assert_eq!(answer["error"]["data"]["reason"], "node_lost", "{answer}");
    cable.cut(false);
    recovers(&mut client, &session, 20);
}

#[test]
fn a_site_that_only_dials_out_is_reached_over_its_leaf_node() {
    let Some(cable) = Cable::lay() else { return };
    let listen = format!("leafnodes {{ listen: \"{HUB}:7422\" }}");
    let Some(hub) = NatsServer::start_at(&listen, cable.at("127.0.0.1", &cable.hub)) else { return };
    let remote = format!("leafnodes {{ remotes: [{{ url: \"nats-leaf://{HUB}:7422\" }}], reconnect: 1 }}");
    let Some(leaf) = NatsServer::start_at(&remote, cable.at("127.0.0.1", &cable.site)) else { return };
    let node = inside(&cable.site, talkative_config(&leaf.url()));
    becomes_linked(&node);
    let edge = inside(&cable.hub, edge_config(&hub.url(), "e1"));
    let sees_it = || {
        let url = hub.url();
        let seen = Command::new("ip")
            .args(["netns", "exec", &cable.hub, crate::harness::BUS, "nodes", "--json", "--url", &url])
            .output();
        seen.expect("ip runs").stdout.starts_with(b"[{")
    };
    edge.until("the leaf node has joined", sees_it);
    let (mut client, session) = with_session(&edge);
    loses_nothing(&mut client, &session, 10, || {});
    // Nothing of the site listens where the hub could reach it.
    let from_outside = run(edge.folder(), &["nodes", "--url", &leaf.url()], "");
    assert_eq!(from_outside.status.code(), Some(69));
}
