//! What a newcomer stumbled over, each once. That shells complete: completions.rs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
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

#[test]
fn ide_writes_settings_that_start_the_bus_and_says_what_has_changed() {
    let folder = folder_with(&json!({ "pools": [puppets("a", 1)] }).to_string());
    let home = folder.path().join("home");
    let ide = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdio-bus"));
        command.arg("ide").args(args).current_dir(folder.path()).env_remove("STDIO_BUS_CONFIG");
        let out = command.env("HOME", &home).env_remove("XDG_CONFIG_HOME").output().expect("it runs");
        (out.status.code(), text(&out))
    };
    let zed = home.join(".config/zed/settings.json");
    fs::create_dir_all(zed.parent().expect("a folder")).expect("the folder is ours");
    let old = "// mine\n{ \"theme\": \"One\" /* dark */ }\n";
    fs::write(&zed, old).expect("the folder is ours");
    let (code, said) = ide(&["zed", "--pool", "a", "--write"]);
    let backup = zed.with_file_name("settings.json.before-stdio-bus");
    assert_eq!(
        (code, said.trim_end()),
        (
            Some(0),
            &*format!(
                "{}: added \"stdio Bus (a)\" in \"agent_servers\"; the old file is {}",
                zed.display(),
                backup.display()
            )
        )
    );
    assert_eq!(fs::read_to_string(&backup).expect("a copy"), old);
    let new = fs::read_to_string(&zed).expect("it is there");
    assert!(new.starts_with("// mine\n{") && new.contains("/* dark */"), "{new}");
    // What was written starts a connect that finds this configuration from any folder.
    let plain = new.replace("// mine", "").replace("/* dark */", "");
    let settings: Value = plain.parse().expect("JSON");
    let server = &settings["agent_servers"]["stdio Bus (a)"];
    let config = folder.path().join("bus.json");
    assert_eq!(server["args"], json!(["connect", "--config", config, "--pool", "a"]));
    // Once more changes nothing, and neither does a mistake.
    let (code, said) = ide(&["zed", "--pool", "a", "--write"]);
    assert!(code == Some(0) && said.contains("already; nothing was changed"), "{said}");
    assert_eq!(fs::read_to_string(&zed).expect("it is there"), new);
    let (code, said) = ide(&["zed", "--pool", "nope", "--write"]);
    assert!(code != Some(0) && said.contains("no pool \"nope\""), "{said}");
    fs::write(&zed, "{ \"theme\" }").expect("the folder is ours");
    let (code, said) = ide(&["zed", "--write"]);
    assert!(
        code == Some(1) && said.contains("line 1, column") && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&zed).expect("it is there"), "{ \"theme\" }");
    // Files that are not there yet, and a file that is named.
    for (name, file) in [("jetbrains", ".jetbrains/acp.json"), ("acpx", ".acpx/config.json")] {
        let (code, said) = ide(&[name, "--write"]);
        assert!(code == Some(0) && said.contains("the file is new") && home.join(file).exists(), "{said}");
    }
    let named = home.join("my.json");
    let (code, said) = ide(&["vscode", &format!("--write={}", named.display())]);
    assert!(
        code == Some(0) && fs::read_to_string(&named).expect("it is there").contains("acp.agents"),
        "{said}"
    );
    // A program cannot change a program.
    for name in ["codecompanion", "agent-shell"] {
        let (code, said) = ide(&[name, "--write"]);
        assert!(code == Some(1) && said.contains(&format!("`stdio-bus ide {name}` prints")), "{said}");
    }
}
