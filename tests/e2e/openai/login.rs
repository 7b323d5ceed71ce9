//! `agent openai --login`: a key that is tried, kept for its user, and used from then on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::KEY;
use super::server::Server;
use crate::harness::{BUS, request};

/// Answers the questions of the login by a pipe.
fn log_in(home: &Path, answers: &str) -> Output {
    let mut command = Command::new(BUS);
    command.args(["agent", "openai", "--login"]).env_clear().env("HOME", home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().unwrap().write_all(answers.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_login_is_tried_and_kept_and_the_agent_uses_it() {
    let (server, home) = (Server::start(), tempfile::tempdir().unwrap());
    server.lists(json!({ "data": [{ "id": "only-model" }] }));
    let done = log_in(home.path(), &format!("{}\n{KEY}\n", server.url));
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success() && told.contains("takes the key"), "{told}");
    assert!(done.stdout.is_empty() && !told.contains(KEY), "{told}");
    let file = home.path().join(".config/stdio-bus/openai-login.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut command = Command::new(BUS);
    command.args(["agent", "openai", "--state"]).arg(home.path().join("state"));
    command.env_clear().env("HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut agent = command.spawn().expect("it starts");
    let mut stdin = agent.stdin.take().unwrap();
    let terminal = json!({ "protocolVersion": 1, "clientCapabilities": { "auth": { "terminal": true } } });
    writeln!(stdin, "{}", request(1, "initialize", terminal)).unwrap();
    writeln!(stdin, "{}", request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }))).unwrap();
    drop(stdin);
    let said = String::from_utf8(agent.wait_with_output().expect("it ends").stdout).unwrap();
    assert!(said.contains(r#""args":["--login"]"#), "the login is offered: {said}");
    assert!(said.contains("only-model"), "the endpoint of the login is asked: {said}");
}

#[test]
fn a_login_that_cannot_work_changes_nothing_and_says_why() {
    let home = tempfile::tempdir().unwrap();
    for (answers, why) in [
        ("\n\n", "no key was given"),
        ("ftp://nowhere\nsecret-key\n", "ftp://nowhere"),
        ("http://127.0.0.1:1/v1\nsecret-key\n", "127.0.0.1:1"),
    ] {
        let done = log_in(home.path(), answers);
        let told = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && told.contains(why), "{told}");
        assert!(!told.contains("secret-key"), "{told}");
    }
    assert!(!home.path().join(".config").exists());
}
