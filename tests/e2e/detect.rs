//! Tests `detect` with a PATH that has only shell scripts in place of the CLIs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, write_script};

/// Writes a script that logs its arguments.
fn logging_script(folder: &Path, name: &str, script: &str) {
    let log = folder.join("log").display().to_string();
    write_script(folder, name, &format!("echo \"${{0##*/}} $*\" >> {log}\n{script}"));
}

fn detect(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(BUS);
    command.arg("detect").args(args).current_dir(folder).env_clear();
    command.env("XDG_RUNTIME_DIR", folder).env("PATH", folder).env("HOME", folder).output().expect("it runs")
}

fn found(out: &Output, id: &str) -> Value {
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    all.as_array().expect("a list").iter().find(|runtime| runtime["id"] == id).expect(id).clone()
}

fn folder_with_clis() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let claude = r#"case "$1" in
        --version) echo '2.1.0 (Claude Code)';;
        auth) exit 1;;
        -p) read line; echo '{"type":"control_response","response":{"response":{"models":[{"value":"big"}]}}}';;
    esac"#;
    let gemini = r#"case "$1" in
        --version) echo 0.61.0;;
        --acp) read a; read b; echo '{"id":1,"result":{}}';
            echo '{"id":2,"result":{"models":{"availableModels":[{"modelId":"flash","name":"Flash"}]}}}';;
    esac"#;
    logging_script(folder.path(), "claude", claude);
    logging_script(folder.path(), "gemini", gemini);
    logging_script(folder.path(), "kimi", "echo 'kimi-cli is no longer maintained'");
    logging_script(folder.path(), "codex", "echo broken >&2; exit 1");
    logging_script(folder.path(), "goose", "exit 127");
    // Both names are in the table, but this fx is a JSON viewer.
    logging_script(folder.path(), "fx", "echo 35.0.0; echo 'Usage: fx FILE'");
    logging_script(folder.path(), "pool", "test $1 = --help && echo 'pool acp: speaks ACP' || echo 1.0.0");
    let qoder = r#"case "$1" in
        --version) echo 1.1.52;;
        --acp) read a; read b; echo '{"id":2,"error":{"code":-32000,"message":"Authentication required"}}';;
    esac"#;
    logging_script(folder.path(), "qodercli", qoder);
    fs::write(folder.path().join("qwen"), "no program").expect("a file");
    folder
}

#[test]
fn each_cli_is_reported_with_its_pool_and_a_failure_concerns_only_one() {
    let folder = folder_with_clis();
    let out = detect(folder.path(), &["--json", "--models"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let claude = found(&out, "claude");
    assert_eq!(claude["version"], "2.1.0");
    assert_eq!(claude["logged_in"], false);
    assert_eq!(claude["models"], json!([{ "id": "big", "name": "big" }]));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let args = ["agent", "cli", "--runtime", "claude", "--program", &at("claude")];
    let adapter = json!({ "id": "claude", "command": "stdio-bus", "args": args, "warm": false });
    assert_eq!(claude["pool"], adapter);
    let gemini = found(&out, "gemini");
    let pool = json!({ "id": "gemini", "command": at("gemini"), "args": ["--acp"], "warm": false });
    assert_eq!(gemini["pool"], pool);
    assert_eq!(gemini["models"][0]["id"], "flash");
    // Gemini opens a session, and qoder demands a login.
    assert_eq!((&gemini["logged_in"], &found(&out, "qoder")["logged_in"]), (&json!(true), &json!(false)));
    assert_eq!(found(&out, "pool")["available"], true);
    assert_eq!((&gemini["verified"], &found(&out, "goose")["verified"]), (&json!(true), &json!(false)));
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let finds_codex = |one: &&Value| one["id"].as_str().is_some_and(|id| id.starts_with("codex"));
    assert_eq!(all.as_array().expect("a list").iter().filter(finds_codex).count(), 1);
    for (id, reason) in [
        ("codex", "`--version` fails (exit 1): broken"),
        ("kimi", "stub"),
        ("goose", "127"),
        ("qwen", "not installed"),
        ("hermes", "pip install"),
        ("fx", "another program"),
    ] {
        let absent = found(&out, id);
        assert_eq!(absent["available"], false, "{absent}");
        assert!(absent["reason"].as_str().is_some_and(|text| text.contains(reason)), "{absent}");
        assert_eq!(absent["pool"], Value::Null);
    }
    let log = fs::read_to_string(folder.path().join("log")).expect("they ran");
    assert!(log.lines().all(|line| line.trim_end().contains(' ')), "a program ran without arguments: {log}");
}

#[test]
fn the_program_that_was_found_is_the_one_that_runs() {
    let folder = TempDir::new().expect("a folder");
    logging_script(folder.path(), "fast-agent", "echo 0.10.46");
    logging_script(folder.path(), "pi", "echo 'a coding agent 1.2.3'");
    let out = detect(folder.path(), &["--json"]);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let expected = json!({ "id": "fast-agent", "command": at("fast-agent"), "args": ["acp"], "warm": false });
    assert_eq!(found(&out, "fast-agent")["pool"], expected);
    let pi = found(&out, "pi");
    assert_eq!((&pi["available"], &pi["pool"]), (&json!(false), &json!(null)));
    assert!(pi["reason"].as_str().is_some_and(|why| why.contains("pi-acp or npx")), "{pi}");
    logging_script(folder.path(), "npx", "");
    let pool = json!({ "id": "pi", "command": at("npx"), "args": ["-y", "pi-acp"], "warm": false });
    assert_eq!(found(&detect(folder.path(), &["--json"]), "pi")["pool"], pool);
    logging_script(folder.path(), "pi-acp", "");
    let pool = json!({ "id": "pi", "command": at("pi-acp"), "args": [], "warm": false });
    assert_eq!(found(&detect(folder.path(), &["--json"]), "pi")["pool"], pool);
    let agent =
        r#"read a; echo '{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":"I was started"}}'; read b"#;
    logging_script(folder.path(), "fast-agent", agent);
    let mut run = Command::new(BUS);
    run.args(["run", "--once", "fast-agent", "hi"]).current_dir(folder.path()).env_clear();
    let said = run.env("PATH", folder.path()).env("HOME", folder.path()).output().expect("it runs").stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("I was started"), "{said}");
}

#[test]
fn write_adds_the_missing_pools_and_keeps_the_rest() {
    let folder = folder_with_clis();
    let before = "{ \"pools\": [ {\"id\":\"claude\", \"command\":\"mine\"} ] }";
    fs::write(folder.path().join("bus.json"), before).expect("a file");
    let out = detect(folder.path(), &["--write", "--here"]);
    assert!(out.status.success());
    assert!(String::from_utf8_lossy(&out.stdout).contains("not here: "), "a table");
    assert_eq!(
        String::from_utf8_lossy(&out.stderr),
        "bus.json: added gemini, pool, qoder; clients that name no pool get claude (\"default_pool\", which is \
         new); `stdio-bus serve` runs the bus\n"
    );
    let written = fs::read_to_string(folder.path().join("bus.json")).expect("a file");
    assert!(written.starts_with("{ \"pools\": [ {\"id\":\"claude\", \"command\":\"mine\"},"), "{written}");
    assert!(written.ends_with("  ],\n  \"default_pool\": \"claude\" }"), "{written}");
    let again = detect(folder.path(), &["--write", "--here"]);
    assert_eq!(String::from_utf8_lossy(&again.stderr), "bus.json: nothing to add\n");
}

#[test]
fn a_codex_with_a_provider_of_its_own_is_not_logged_out() {
    let folder = TempDir::new().expect("a folder");
    logging_script(folder.path(), "codex", "[ \"$1\" = --version ] && echo 0.166.0");
    let logged_in = || found(&detect(folder.path(), &["--json"]), "codex")["logged_in"].clone();
    assert_eq!(logged_in(), false);
    fs::create_dir(folder.path().join(".codex")).expect("a folder");
    let config =
        "model_provider = \"local\"\n[model_providers.local]\nbase_url = \"http://127.0.0.1:1/v1\"\n";
    fs::write(folder.path().join(".codex/config.toml"), config).expect("a file");
    assert_eq!(logged_in(), Value::Null);
}

#[test]
fn who_has_no_cli_is_told_of_several_and_of_none_twice() {
    let folder = TempDir::new().expect("a folder");
    let out = detect(folder.path(), &[]);
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    let (_, examples) = told.split_once("Install one, for example:\n").expect("examples");
    let mut commands: Vec<_> =
        examples.lines().filter_map(|line| line.split_once('#')).map(|it| it.0).collect();
    assert_eq!(commands.len(), 4, "{told}");
    commands.sort_unstable();
    commands.dedup();
    assert_eq!(commands.len(), 4, "{told}");
}

#[test]
fn a_row_of_the_user_is_found_and_an_invalid_one_is_refused() {
    let folder = folder_with_clis();
    logging_script(folder.path(), "mine", "echo 1.2.3");
    let rows = r#"[{"id":"mine","name":"Mine","binaries":["mine"],"acp":{"args":["talk"]}}]"#;
    fs::create_dir_all(folder.path().join(".config/stdio-bus")).expect("a folder");
    let file = folder.path().join(".config/stdio-bus/runtimes.json");
    fs::write(&file, rows).expect("a file");
    let mine = found(&detect(folder.path(), &["--json"]), "mine");
    let program = folder.path().join("mine").display().to_string();
    assert_eq!(mine["pool"], json!({ "id": "mine", "command": program, "args": ["talk"], "warm": false }));
    fs::write(&file, rows.replace("talk\"]", "talk\"],\"way\":1")).expect("a file");
    let out = detect(folder.path(), &[]);
    assert_eq!(out.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&out.stderr).contains("runtimes.json: unknown field `way`"));
}
