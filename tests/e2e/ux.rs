//! What a newcomer stumbled over, each once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Bus, one_pool, puppets, run};

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A folder with this bus.json.
fn folder_with(config: &str) -> TempDir {
    let folder = TempDir::with_prefix("ux").expect("a temporary folder");
    fs::write(folder.path().join("bus.json"), config).expect("the folder is ours");
    fs::set_permissions(folder.path().join("bus.json"), fs::Permissions::from_mode(0o600))
        .expect("it is ours");
    folder
}

#[test]
fn bash_completes_what_stands_behind_a_command() {
    let binary = env!("CARGO_BIN_EXE_stdio-bus");
    let script = format!(
        "source <({binary} completions bash); COMP_WORDS=(stdio-bus run --); COMP_CWORD=2; \
         _stdio__bus stdio-bus -- run; echo \"${{COMPREPLY[@]}}\""
    );
    let Ok(out) = Command::new("bash").args(["-c", &script]).output() else { return };
    assert!(text(&out).contains("--pool"), "{}", text(&out));
}

#[test]
fn a_token_that_is_there_is_shown() {
    let folder = TempDir::with_prefix("ux").expect("a temporary folder");
    let shows = || text(&run(folder.path(), &["token", "--show", "t"], ""));
    let made = shows();
    assert!(made.trim().len() > 30 && shows() == made, "{made}");
}

#[test]
fn ide_prints_no_settings_that_cannot_work() {
    let two = json!({ "pools": [puppets("a", 1), puppets("b", 1)] }).to_string();
    let folder = folder_with(&two);
    for (args, why) in [(&["ide", "zed", "--pool", "nope"][..], "no pool"), (&["ide", "zed"], "which pool?")]
    {
        let out = run(folder.path(), args, "");
        assert!(
            !out.status.success() && text(&out).contains(why) && text(&out).contains("a, b"),
            "{}",
            text(&out)
        );
        assert!(out.stdout.is_empty(), "{}", text(&out));
    }
    assert!(run(folder.path(), &["ide", "zed", "--pool", "b"], "").status.success());
}

#[test]
fn a_pool_that_is_not_there_is_named_in_a_sentence() {
    let bus = Bus::start(one_pool(1));
    let out = run(bus.folder(), &["run", "--once", "--pool", "nope", "--tcp", bus.tcp(), "x"], "");
    assert!(!out.status.success() && text(&out).contains("no pool \"nope\""), "{}", text(&out));
    assert!(!text(&out).contains("jsonrpc") && !text(&out).contains("\"code\""), "{}", text(&out));
}

#[test]
fn hidden_commands_are_suggested_to_nobody() {
    let out = run(Path::new("/"), &["upgrade"], "");
    assert!(!text(&out).contains("guard"), "{}", text(&out));
}

#[test]
fn a_mistake_in_the_configuration_has_its_line_and_a_mark() {
    let folder = folder_with("{\n  \"pools\": [\n    { \"id\": \"a\" \"command\": \"x\" }\n  ]\n}\n");
    let told = text(&run(folder.path(), &["check"], ""));
    assert!(told.contains("bus.json:3:17: "), "{told}");
    assert!(told.contains("\n      { \"id\": \"a\" \"command\": \"x\" }\n                  ^"), "{told}");
    let empty = folder_with("");
    assert!(text(&run(empty.path(), &["check"], "")).contains("bus.json: the file is empty"));
    let dir = text(&run(empty.path(), &["check", "--config", "."], ""));
    assert!(dir.contains("it is a folder"), "{dir}");
}

#[test]
fn handshakes_of_configurations_that_are_gone_are_forgotten() {
    let state = TempDir::with_prefix("ux").expect("a temporary folder");
    let of_bus = state.path().join("stdio-bus");
    fs::create_dir(&of_bus).expect("the folder is ours");
    let old = of_bus.join("handshakes%no%such%folder%bus.json");
    fs::write(&old, "{}").expect("the folder is ours");
    let _bus = Bus::plan(one_pool(1)).env("XDG_STATE_HOME", state.path().to_str().expect("UTF-8")).start();
    assert!(!old.exists());
}
