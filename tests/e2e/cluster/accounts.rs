//! Who a bus is to NATS: a certificate of the server that is checked, JWTs of accounts, and what another account sees.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::nodes::{EDGE_KEY, NODE_KEY};
use super::{NatsServer, answer_to, edge_config, node, node_config, with_session};
use crate::harness::{BUS, Bus, Program, prompt, run, write_token};

/// Files that were made for these tests: an authority and a certificate of it, an operator with two accounts, a user of
/// the first for a node and an edge, and one of the second.
pub(super) fn file(name: &str) -> String {
    format!("{}/tests/e2e/cluster/files/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn tls() -> String {
    format!("tls {{ cert_file: \"{}\", key_file: \"{}\" }}", file("cert.pem"), file("key.pem"))
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config["cluster"][key] = value;
    config
}

#[test]
fn a_server_with_tls_is_believed_only_with_a_certificate_of_the_authority() {
    let Some(nats) = NatsServer::start_with(&tls()) else { return };
    let url = format!("tls://localhost:{}", nats.port);
    let _node = node(node_config(&url, "n1", json!({ "ca": file("ca.pem") })));
    let edge = Bus::start(with(edge_config(&url, "e1"), "ca", json!(file("ca.pem"))));
    let (mut client, session) = with_session(&edge);
    assert_eq!(client.takes_turn(3, &session, "in secret").0.trim(), "in secret");
    // The system's authorities do not know it, and a certificate of somebody else is none of it.
    for args in
        [&["nodes", "--url", &url][..], &["nodes", "--url", &url, "--ca", &file("../../web/cert.pem")]]
    {
        let refused = run(nats.folder(), args, "");
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(69), "{words}");
        assert!(words.contains("certificate") && words.contains("cluster.ca"), "{words}");
    }
}

#[test]
fn three_nodes_and_an_edge_find_each_other_with_keys_that_the_command_has_made_and_tls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let makes = |name: &str, flag: Option<&str>| {
        let file = format!("keys/{name}.nk");
        let mut args = vec!["nodes", "--new-key", &file, "--name", name];
        args.extend(flag);
        run(folder.path(), &args, "")
    };
    let made = |name: &str, flag: Option<&str>| -> (PathBuf, String) {
        let made = makes(name, flag);
        let words = String::from_utf8(made.stdout).expect("UTF-8");
        let (_, user) = words.split_once("users = [ ... ] }:\n").unwrap_or_else(|| panic!("{words}"));
        (folder.path().join(format!("keys/{name}.nk")), user.to_owned())
    };
    let names = ["n1", "n2", "n3"];
    let nodes = names.map(|name| made(name, None));
    let (key, user) = made("e1", Some("--edge"));
    let users: String = nodes.iter().map(|(_, user)| user.as_str()).chain([&*user]).collect();
    let settings = format!("{}\nauthorization {{ users = [\n{users}] }}", tls());
    let Some(nats) = NatsServer::start_with(&settings) else { return };
    let url = format!("tls://localhost:{}", nats.port);
    let ca = file("ca.pem");
    let at = |(name, (key, _)): (&&str, &(PathBuf, String))| {
        node(node_config(&url, name, json!({ "ca": ca, "nkey": key })))
    };
    let _nodes: Vec<Bus> = names.iter().zip(&nodes).map(at).collect();
    let edge = Bus::start(with(with(edge_config(&url, "e1"), "ca", json!(ca)), "nkey", json!(key)));
    let (mut client, session) = with_session(&edge);
    assert_eq!(client.takes_turn(3, &session, "in secret").0.trim(), "in secret");
    let key_file = key.to_str().expect("UTF-8");
    let args = ["nodes", "--json", "--url", &url, "--ca", &ca, "--nkey", key_file, "--name", "e1"];
    edge.until("all are listed", || {
        let listed: Value = serde_json::from_slice(&run(folder.path(), &args, "").stdout).unwrap_or_default();
        let listed = listed.as_array().into_iter().flatten().filter_map(|node| node["name"].as_str());
        let mut listed: Vec<&str> = listed.collect();
        listed.sort_unstable();
        listed == names
    });
    let args = ["--watch=0.1", "--url", &url, "--ca", &ca, "--nkey", key_file, "--name", "e1"];
    let mut watch = Program::plan(&args).command_is("nodes").at_terminal();
    watch.clears();
    watch.shows_so("each in a row", |screen| names.iter().all(|name| screen.contains(&format!("\n{name} "))));
    // A key is never written over, and is somebody's.
    let before = fs::read(&key).expect("it is there");
    for (name, code) in [("e1", 73), ("n.1", 2)] {
        let refused = makes(name, None);
        assert_eq!(refused.status.code(), Some(code), "{}", String::from_utf8_lossy(&refused.stderr));
    }
    assert_eq!(run(folder.path(), &["nodes", "--new-key", "x.nk"], "").status.code(), Some(2));
    assert!(fs::read(&key).expect("it is there") == before && !folder.path().join("x.nk").exists());
}

#[test]
fn a_creds_file_lets_in_and_another_account_sees_nothing() {
    let settings = fs::read_to_string(file("accounts.conf")).expect("our file");
    let Some(nats) = NatsServer::start_with(&settings) else { return };
    let creds = |name: &str| -> PathBuf {
        let path = nats.folder().join(name);
        write_token(&path, &fs::read_to_string(file(name)).expect("our file"));
        path
    };
    let (ours, theirs) = (creds("e1.creds"), creds("e2.creds"));
    let _node = node(node_config(&nats.url(), "n1", json!({ "creds": creds("n1.creds") })));
    let edge = Bus::start(with(edge_config(&nats.url(), "e1"), "creds", json!(ours)));
    let (mut client, session) = with_session(&edge);
    assert_eq!(client.takes_turn(3, &session, "with a JWT").0.trim(), "with a JWT");
    let nodes = |creds: Option<&PathBuf>| {
        let mut args = vec!["nodes".to_owned(), "--json".to_owned(), "--url".to_owned(), nats.url()];
        args.extend(creds.map(|path| format!("--creds={}", path.display())));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(nats.folder(), &args, "")
    };
    let seen: Value = serde_json::from_slice(&nodes(Some(&ours)).stdout).expect("JSON");
    assert_eq!(seen[0]["name"], "n1");
    let unseen: Value = serde_json::from_slice(&nodes(Some(&theirs)).stdout).expect("JSON");
    assert_eq!(unseen, json!([]));
    assert_eq!(nodes(None).status.code(), Some(77));
    // Nor can the other account open a pipe to a node whose name it knows.
    let mut worker = Command::new(BUS);
    worker.args(["agent", "nats", "--pool", "echo", "--url", &nats.url(), "--creds"]).arg(theirs);
    let refused = worker.env("STDIO_BUS_NODE", "n1").stdin(Stdio::null()).output().expect("it runs");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(69) && words.contains("node n1 does not answer"), "{words}");
}

#[test]
fn credentials_that_are_renewed_count_from_the_next_connection_on() {
    let settings = fs::read_to_string(file("accounts.conf")).expect("our file");
    let Some(mut nats) = NatsServer::start_with(&settings) else { return };
    let creds = |name: &str| fs::read_to_string(file(name)).expect("our file");
    let ours = nats.folder().join("e1.creds");
    write_token(&ours, &creds("e1.creds"));
    // The node is a user of another account, until its file is another one.
    let path = nats.folder().join("n1.creds");
    write_token(&path, &creds("e2.creds"));
    let node = node(node_config(&nats.url(), "n1", json!({ "creds": path })));
    let url = nats.url();
    let folder = nats.folder().to_owned();
    let seen = || -> Value {
        let args = ["nodes", "--json", "--url", &url, "--creds", ours.to_str().expect("UTF-8")];
        serde_json::from_slice(&run(&folder, &args, "").stdout).unwrap_or_default()
    };
    assert_eq!(seen(), json!([]));
    write_token(&path, &creds("n1.creds"));
    nats.restart();
    node.until("it is there for its own account", || seen()[0]["name"] == "n1");
}

#[test]
fn a_node_that_nats_does_not_let_in_says_so_until_its_key_is_good() {
    let knows = |key: &str| format!("authorization {{ users = [ {{ nkey: {key} }} ] }}");
    let Some(mut nats) = NatsServer::start_with(&knows(EDGE_KEY[1])) else { return };
    let path = nats.folder().join("n1.nk");
    write_token(&path, EDGE_KEY[0]);
    let node = node(node_config(&nats.url(), "n1", json!({ "nkey": path })));
    let link = || node.client().status()["link"].clone();
    let pid = link()["pid"].clone();
    nats.dies();
    nats.is_told(&knows(NODE_KEY[1]));
    nats.comes_back();
    node.until("it says why it waits", || {
        let words = link()["last_words"].as_str().unwrap_or_default().to_owned();
        link()["state"] == "waiting" && words.contains("does not let us in")
    });
    // A file that is only half written does not end it.
    write_token(&path, &NODE_KEY[0][..20]);
    node.log_has("the credentials that were read before are used");
    write_token(&path, NODE_KEY[0]);
    node.until("it is up again", || link()["state"] == "up");
    assert_eq!(link()["pid"], pid, "it is the same process");
}

#[test]
fn a_reload_lets_the_calls_in_flight_end_before_the_link_is_another() {
    let Some(nats) = NatsServer::start() else { return };
    let mut file = node_config(&nats.url(), "n1", json!({}));
    file["pools"][0]["args"] = json!(["agent", "echo", "--chunks", "20", "--delay-ms", "100"]);
    let node = node(file.clone());
    let mut edge = Bus::start(edge_config(&nats.url(), "e1"));
    let (mut client, session) = with_session(&edge);
    let link = || node.client().status()["link"].clone();
    let pid = link()["pid"].clone();
    client.sends(&prompt(3, &session));
    client.is_asked("session/update");
    file["cluster"]["zone"] = json!("eu");
    node.rewrite(&file);
    node.client().asks(1, "_bus/reload", json!({}));
    let words = link()["last_words"].as_str().unwrap_or_default().to_owned();
    assert!(words.contains("bus.json has changed") && link()["pid"] == pid, "{words}");
    let answer = answer_to(&mut client, 3);
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    // With the edge its pipe is gone, and what has changed counts.
    edge.signal(Signal::SIGTERM);
    edge.signal(Signal::SIGTERM);
    edge.exit_status();
    node.until("the next link is up", || link()["pid"] != pid && link()["state"] == "up");
    let listed = run(node.folder(), &["nodes", "--url", &nats.url(), "--json"], "");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!((&listed[0]["name"], &listed[0]["zone"]), (&json!("n1"), &json!("eu")));
    assert_eq!(link()["last_words"], Value::Null);
}
