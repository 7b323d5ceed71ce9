//! Who a bus is to NATS: a certificate of the server that is checked, JWTs of accounts, and what another account sees.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{NatsServer, edge_config, node, node_config, with_session};
use crate::harness::{BUS, Bus, run, write_token};

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
        assert!(words.contains("certificate"), "{words}");
    }
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
