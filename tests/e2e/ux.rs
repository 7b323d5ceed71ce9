//! What a newcomer stumbled over, each once. That shells complete: completions.rs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Bus, one_pool, puppets, request, run};

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
fn who_names_no_pool_of_several_is_told_how_to_name_one() {
    let bus = Bus::start(json!({ "pools": [puppets("a", 1), puppets("b", 1)] }));
    let line = format!("{}\n", request(1, "initialize", json!({ "protocolVersion": 1 })));
    let out = run(bus.folder(), &["connect", "--tcp", bus.tcp()], &line);
    let said = text(&out);
    assert!(said.contains("name one with --pool") && said.contains("default_pool in bus.json"), "{said}");
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
                "{}: added \"stdio Bus (a)\" in \"agent_servers\"; the file as it was before stdio Bus is {}",
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
    let (code, said) = ide(&["acpx", "--pool", "a", "--write"]);
    let acpx = fs::read_to_string(home.join(".acpx/config.json")).expect("it is there");
    assert!(code == Some(0) && acpx.contains("\"bus\"") && acpx.contains("\"bus-a\""), "{said}{acpx}");
    let named = home.join("my.json");
    let (code, said) = ide(&["vscode", &format!("--write={}", named.display())]);
    assert!(
        code == Some(0) && fs::read_to_string(&named).expect("it is there").contains("acp.agents"),
        "{said}"
    );
    let (code, said) = ide(&["vscode", "--write=~/yours.json"]);
    assert!(code == Some(0) && home.join("yours.json").exists(), "no shell expands it\n{said}");
    // A program cannot change a program.
    for name in ["codecompanion", "agent-shell"] {
        let (code, said) = ide(&[name, "--write"]);
        assert!(code == Some(1) && said.contains(&format!("`stdio-bus ide {name}` prints")), "{said}");
    }
}

#[test]
fn ide_needs_no_pool_where_there_is_a_default_one() {
    let two = json!({ "pools": [puppets("a", 1), puppets("b", 1)], "default_pool": "b" }).to_string();
    let out = run(folder_with(&two).path(), &["ide", "zed"], "");
    assert!(out.status.success() && text(&out).contains("agent_servers"), "{}", text(&out));
}

#[test]
fn no_example_overwrites_a_file_with_other_settings_in_it() {
    let help = text(&run(Path::new("/"), &["ide", "--help"], ""));
    assert!(help.contains("Examples:") && !help.contains(" > "), "{help}");
}

#[test]
fn an_agent_that_is_not_installed_is_said_so_once() {
    let folder = TempDir::with_prefix("ux").expect("a temporary folder");
    // One behind the adapter, one that speaks ACP itself; neither waits for a prompt.
    for (args, names) in [(&["run", "claude", "hi"][..], "claude"), (&["run", "gemini"], "gemini")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdio-bus"));
        command.args(args).stdin(Stdio::null()).current_dir(folder.path()).env("PATH", folder.path());
        let out = command.env("HOME", folder.path()).output().expect("it runs");
        let said = text(&out);
        assert_eq!(said.matches("npm").count(), 1, "{said}");
        assert_eq!(said.matches(&format!("is not installed: no {names}")).count(), 1, "{said}");
        assert!(!out.status.success(), "{said}");
    }
}

#[test]
fn the_status_of_an_idle_bus_does_not_count_itself_and_has_no_raw_keys() {
    let bus = Bus::start(one_pool(1));
    let said = text(&run(bus.folder(), &["status", "--tcp", bus.tcp()], ""));
    assert!(said.contains("0 clients") || said.contains("no clients"), "{said}");
    assert!(!said.contains("1 client") && !said.contains("1 answers"), "{said}");
    assert!(!said.contains("worker_deaths") && !said.contains("malformed_lines"), "{said}");
}

#[test]
fn only_the_bus_is_installed() {
    let manifest = include_str!("../../Cargo.toml");
    let puppet =
        manifest.split("[[bin]]").find(|bin| bin.contains("name = \"puppet\"")).expect("it is there");
    assert!(puppet.contains("required-features = "), "cargo install would install the puppet of the tests");
}

#[test]
fn every_mistake_has_its_line_and_a_program_its_guess() {
    let folder = folder_with(
        "{\n  \"pools\": [\n    { \"id\": \"a\", \"command\": \"claud\" },\n    { \"id\": \"b\", \"command\": \"x -y \
         @a/b\" }\n  ]\n}\n",
    );
    let out = run(folder.path(), &["check"], "");
    let (shown, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(
        said.contains(
            "bus.json:3:29: pools[0].command: \"claud\" is not found in PATH; did you mean \"claude\"?"
        ),
        "{said}"
    );
    assert!(
        said.contains("bus.json:4:29: pools[1].command: ") && said.contains("arguments go into \"args\""),
        "{said}"
    );
    assert!(!shown.contains("not found"), "it is said once\n{shown}");
    let folder = folder_with("{\n  \"pools\": [\n    { \"id\": \"a\", \"comand\": \"x\" }\n  ]\n}\n");
    for command in ["check", "serve"] {
        let said = text(&run(folder.path(), &[command], ""));
        assert!(
            said.contains("bus.json:3:28: pools[0].comand: unknown key, did you mean \"command\"?"),
            "{said}"
        );
        assert!(said.contains("bus.json:3:5: pools[0].command: missing"), "{said}");
    }
}

#[test]
fn what_only_a_shell_expands_is_warned_of_and_runs() {
    let args = json!(["agent", "echo", "--delay-ms=0"]);
    let echo = json!({ "id": "e", "command": "stdio-bus", "args": args, "env": { "DIR": "~/x" } });
    let folder = folder_with(&json!({ "pools": [echo] }).to_string());
    let out = run(folder.path(), &["check"], "");
    assert_eq!(out.status.code(), Some(0));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("warning: pools[0].env.DIR: ~ is not expanded here; write ${HOME}"), "{said}");
    let bus = Bus::start(json!({ "pools": [echo] }));
    bus.log_has("pools[0].env.DIR: ~ is not expanded here; write ${HOME}");
}

#[test]
fn detect_says_how_to_install_an_agent_where_there_is_none() {
    let folder = TempDir::with_prefix("ux").expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdio-bus"));
    command.arg("detect").current_dir(folder.path()).env("PATH", folder.path()).env("HOME", folder.path());
    let said = text(&command.env_remove("XDG_CONFIG_HOME").output().expect("it runs"));
    assert!(said.contains("not here: claude") && said.contains("npm install -g "), "{said}");
}
