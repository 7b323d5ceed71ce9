//! Who is in the cluster, and who may be.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::raw::RawNats;
use super::{
    NatsServer, answer_to, becomes_linked, edge_config, link_of, node, node_config, signals, with_session,
    world,
};
use crate::harness::{Bus, request, run, write_token};

#[test]
fn nodes_are_listed_with_what_they_have() {
    let Some((nats, node, edge)) = world() else { return };
    let (_client, _) = with_session(&edge);
    let _second = super::node(node_config(&nats.url(), "n2", json!({ "zone": "eu" })));
    let url = nats.url();
    let listed = || -> Value {
        let printed = run(node.folder(), &["nodes", "--url", &url, "--json"], "");
        serde_json::from_slice(&printed.stdout).expect("JSON")
    };
    // The figures are a second old at most.
    node.until("the session is counted", || listed()[0]["sessions"] == 1);
    let all = listed();
    let names: Vec<_> =
        all.as_array().expect("a list").iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["n1", "n2"]);
    assert_eq!((&all[0]["pipes"], &all[1]["zone"]), (&json!(1), &json!("eu")));
    assert!(all[1]["room"].as_u64().unwrap() > 0);
    let table = run(node.folder(), &["nodes", "--url", &url], "");
    let text = String::from_utf8(table.stdout).expect("UTF-8");
    assert!(text.starts_with("NODE") && text.lines().count() == 3, "{text}");
}

#[test]
fn where_no_node_answers_it_is_said_what_to_do() {
    let Some(nats) = NatsServer::start() else { return };
    let printed = run(nats.folder(), &["nodes", "--url", &nats.url()], "");
    assert_eq!(printed.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&printed.stderr).contains("\"offer\""));
    let nowhere = run(nats.folder(), &["nodes", "--url", "nats://127.0.0.1:1"], "");
    assert_eq!(nowhere.status.code(), Some(69));
    assert!(
        String::from_utf8_lossy(&nowhere.stderr).contains("no NATS server answers at nats://127.0.0.1:1")
    );
    let edge = Bus::start(edge_config(&nats.url(), "e1"));
    let mut client = edge.client();
    client.sends(&request(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })));
    let answer = answer_to(&mut client, 1);
    let words = answer["error"].to_string();
    assert!(words.contains("no node offers the pool"), "{answer}");
}

#[test]
fn of_two_nodes_with_one_name_the_first_keeps_it_and_is_not_disturbed() {
    let Some((nats, mut first, edge)) = world() else { return };
    let (mut client, session) = with_session(&edge);
    client.takes_turn(3, &session, "before");
    let second = Bus::start(node_config(&nats.url(), "n1", json!({ "zone": "second" })));
    let waits = |times: u64| {
        second.until("the second one says that it waits", || {
            let link = second.client().status()["link"].clone();
            let words = link["last_words"].as_str().unwrap_or_default().to_owned();
            link["state"] == "waiting" && words.contains("had it first") && link["restarts"] == times
        });
    };
    waits(0);
    // However often it is started, the calls of the first one go on.
    signals(link_of(&second), Signal::SIGKILL);
    waits(1);
    assert_eq!(client.takes_turn(4, &session, "still here").0.trim(), "still here");
    let listed = || -> Value {
        let printed = run(second.folder(), &["nodes", "--url", &nats.url(), "--json"], "");
        serde_json::from_slice(&printed.stdout).expect("JSON")
    };
    let all = listed();
    assert_eq!((all.as_array().map(Vec::len), &all[0]["zone"]), (Some(1), &Value::Null));
    // The next link of the first one has the name, and not the one that waits for it.
    signals(link_of(&first), Signal::SIGKILL);
    first.until("the first one has the name again", || listed()[0]["zone"] == Value::Null);
    becomes_linked(&first);
    first.signal(Signal::SIGTERM);
    first.signal(Signal::SIGTERM);
    first.exit_status();
    becomes_linked(&second);
    assert_eq!(listed()[0]["zone"], "second");
}

#[test]
fn a_node_tells_itself_to_drain_with_its_own_key() {
    let Some(nats) = NatsServer::start_with(&documented_permissions()) else { return };
    let of_node = nats.folder().join("n17.nk");
    write_token(&of_node, NODE_KEY[0]);
    let node = node(node_config(&nats.url(), "n17", json!({ "nkey": of_node })));
    let config = node.config_path();
    let config = config.to_str().expect("UTF-8");
    let told = |flag: &str| run(node.folder(), &["nodes", "--config", config, flag, "n17"], "");
    let said = told("--drain");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "n17 takes no new sessions\n", "{said:?}");
    assert_eq!(told("--undrain").status.code(), Some(0));
}

#[test]
fn a_node_that_drains_keeps_its_sessions_and_gets_no_new_ones() {
    let Some(nats) = NatsServer::start() else { return };
    let first = node(node_config(&nats.url(), "n1", json!({ "edges_drain": true })));
    let edge = Bus::start(edge_config(&nats.url(), "e1"));
    let (mut client, session) = with_session(&edge);
    let url = nats.url();
    let told = |args: &[&str]| run(first.folder(), &[&["nodes", "--url", &url], args].concat(), "");
    let said = told(&["--drain", "n1"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "n1 takes no new sessions\n");
    edge.until("the edge has heard it", || {
        edge.client().status()["pools"][0]["workers"][0]["drain"] == json!(true)
    });
    let _second = node(node_config(&url, "n2", json!({})));
    assert_eq!(client.takes_turn(3, &session, "goes on").0.trim(), "goes on");
    let (mut other, elsewhere) = with_session(&edge);
    assert!(elsewhere.contains(".n2~"), "{elsewhere}");
    assert_eq!(other.takes_turn(3, &elsewhere, "and here").0.trim(), "and here");
    let listed: Value = serde_json::from_slice(&told(&["--json"]).stdout).expect("JSON");
    assert_eq!((&listed[0]["drain"], &listed[0]["room"]), (&json!(true), &json!(0)));
    told(&["--undrain", "n1"]);
    edge.until("the edge has heard it", || {
        edge.client().status()["pools"][0]["workers"][0]["drain"] == json!(false)
    });
    assert_eq!(told(&["--drain", "n9"]).status.code(), Some(69));
}

#[test]
fn a_node_without_a_name_is_called_after_its_machine_and_its_sessions_are_found_again() {
    let Some(nats) = NatsServer::start() else { return };
    let mut file = node_config(&nats.url(), "", json!({}));
    file.as_object_mut().expect("an object").remove("name");
    let node = node(file);
    let mut edge = Bus::start(edge_config(&nats.url(), "e1"));
    let (mut client, session) = with_session(&edge);
    client.takes_turn(3, &session, "before");
    let listed = || -> Value {
        let printed = run(node.folder(), &["nodes", "--url", &nats.url(), "--json"], "");
        serde_json::from_slice(&printed.stdout).expect("JSON")
    };
    let name = listed()[0]["name"].as_str().expect("a name").to_owned();
    assert!(session.contains(&format!(".{name}~")), "{session}: {name}");
    // Another life of the edge knows the session by its id alone.
    edge.signal(Signal::SIGTERM);
    edge.signal(Signal::SIGTERM);
    edge.exit_status();
    node.until("the pipe of the edge is gone", || listed()[0]["pipes"] == 0);
    let edge = Bus::start(edge_config(&nats.url(), "e1"));
    let mut client = edge.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let load = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    client.sends(&request(2, "session/load", load));
    let loaded = answer_to(&mut client, 2);
    assert!(loaded["result"].is_object(), "{loaded}");
    assert_eq!(client.takes_turn(3, &session, "after").0.trim(), "after");
}

#[test]
fn a_request_of_another_version_is_answered_at_once_with_both() {
    let Some((nats, _node, _edge)) = world() else { return };
    let mut raw = RawNats::connect(&nats);
    let request = json!({ "do": "open", "version": "9.1", "pool": { "id": "echo" } });
    let answer: Value =
        serde_json::from_slice(&raw.asks("bus.v1.open.n1", request.to_string().as_bytes())).expect("JSON");
    let why = answer["refused"].as_str().unwrap_or_default();
    assert!(why.contains("9.1") && why.contains(env!("CARGO_PKG_VERSION")), "{answer}");
}

#[test]
fn the_nats_tool_sees_nodes() {
    let Some((nats, _node, _edge)) = world() else { return };
    let mut raw = RawNats::connect(&nats);
    for (verb, kind) in [("PING", "ping"), ("INFO", "info"), ("STATS", "stats")] {
        let answer: Value =
            serde_json::from_slice(&raw.asks(&format!("$SRV.{verb}.stdio-bus"), b"")).expect("JSON");
        assert_eq!(answer["type"], format!("io.nats.micro.v1.{kind}_response"));
        assert_eq!(answer["metadata"]["node"], "n1");
    }
}

/// A key of a node and one of an edge, made for this test: their seeds, and what the server knows of them.
pub(super) const NODE_KEY: [&str; 2] = [
    "SUAJBDBTAFYHENFG5DSGLO6BAMEUGMXMUOEKJ2VANQFYXJENMDZVCYSOXM",
    "UCS3YWSF3NVSFP3UK3DORVCALDRWTRYXODQMEF5YQPNTSED6L4BDKRT2",
];
pub(super) const EDGE_KEY: [&str; 2] = [
    "SUAGC4MHWC6Z6XVPLJMRYDUUAVJVMYKX5W7O5TQACGRAXCTI4NQO3X4Q4M",
    "UDMJBQAF2DRCNWVIGOKAXCND2RJMEQB2L5U4C727QMLWL7XNNT7K6W3K",
];

/// The permissions of docs/SECURITY.md, word for word, with the keys of this test.
pub(super) fn documented_permissions() -> String {
    let documented = include_str!("../../../docs/SECURITY.md");
    let block =
        documented.split("```").find(|block| block.contains("bus.v1.ask.*")).expect("the permissions");
    block.trim_start_matches("text").replace("KEY_OF_N17", NODE_KEY[1]).replace("KEY_OF_E3", EDGE_KEY[1])
}

#[test]
fn the_permissions_of_the_documentation_are_enough_and_keep_others_out() {
    let Some(nats) = NatsServer::start_with(&documented_permissions()) else { return };
    let key = |name: &str, seed: &str| {
        let path = nats.folder().join(name);
        write_token(&path, seed);
        path
    };
    let (of_node, of_edge) = (key("n17.nk", NODE_KEY[0]), key("e3.nk", EDGE_KEY[0]));
    let _node = node(node_config(&nats.url(), "n17", json!({ "nkey": of_node })));
    let mut file = edge_config(&nats.url(), "e3");
    file["cluster"]["nkey"] = json!(of_edge);
    let edge = Bus::start(file);
    let (mut client, session) = with_session(&edge);
    assert_eq!(client.takes_turn(3, &session, "with a key").0.trim(), "with a key");
    // Whoever has no key does not come in, and a node may not open pipes.
    let run = |args: &[&str]| run(nats.folder(), &[args, &["--url", &nats.url()]].concat(), "");
    let refused = run(&["nodes"]);
    assert_eq!(refused.status.code(), Some(77), "{}", String::from_utf8_lossy(&refused.stderr));
    let as_node = run(&[
        "agent",
        "nats",
        "--pool",
        "echo",
        "--name",
        "n17",
        "--nkey",
        of_node.to_str().expect("UTF-8"),
    ]);
    let words = String::from_utf8_lossy(&as_node.stderr).into_owned();
    assert!(words.contains("Permissions Violation"), "{words}");
    fs::set_permissions(&of_edge, fs::Permissions::from_mode(0o644)).expect("our file");
    let readable = run(&["nodes", "--nkey", of_edge.to_str().expect("UTF-8")]);
    assert!(String::from_utf8_lossy(&readable.stderr).contains("chmod 600"));
}

#[test]
fn off_loopback_there_is_tls_or_nothing() {
    let Some(nats) = NatsServer::start_with("") else { return };
    // The address leads to this machine, but is not one of loopback.
    let printed = run(nats.folder(), &["nodes", "--url", &format!("nats://0.0.0.0:{}", nats.port)], "");
    assert_eq!(printed.status.code(), Some(69));
    let words = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(words.contains("TLS"), "{words}");
}
