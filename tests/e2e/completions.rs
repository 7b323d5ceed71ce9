//! Completions in real shells: each is started at a terminal, and Tab is pressed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::harness::{BUS, Bus, Client, Program, puppets, run, skips};

const TAB: &str = "\t";
/// Ctrl-U clears the line.
const CLEAR: &str = "\x15";

/// How a shell is started without the user's settings, and takes the completions from a file.
struct Shell {
    name: &'static str,
    args: &'static [&'static str],
    takes: &'static str,
}

const BASH: Shell = Shell { name: "bash", args: &["--norc", "--noprofile", "-i"], takes: "source ./script" };
const ZSH: Shell = Shell {
    name: "zsh",
    args: &["-f", "-i"],
    takes: "PS1='$ '; autoload -Uz compinit; compinit -u -D; source ./script",
};
const FISH: Shell = Shell {
    name: "fish",
    args: &["--no-config", "--private", "-i"],
    takes: "function fish_prompt; echo '$ '; end; source ./script",
};

/// Starts the shell with the completions loaded. `None`: the shell is not installed.
fn start(shell: &Shell) -> Option<Program> {
    let found = Command::new(shell.name).arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        skips(shell.name);
        return None;
    }
    let plan = Program::plan(shell.args).program_is(shell.name);
    let folder = plan.folder().to_owned();
    let home = folder.to_str().expect("UTF-8");
    let script = run(&folder, &["completions", shell.name], "");
    assert!(script.status.success() && script.stderr.is_empty());
    fs::write(folder.join("script"), script.stdout).expect("the folder is ours");
    fs::write(folder.join("only-file"), "").expect("the folder is ours");
    let programs = Path::new(BUS).parent().expect("a folder").display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let plan = plan.env("PATH", &path).env("HOME", home).env("XDG_CONFIG_HOME", home);
    let plan =
        plan.env("XDG_DATA_HOME", home).env("XDG_STATE_HOME", home).env("PS1", "$ ").env("HISTFILE", "");
    let mut program = plan.at_terminal();
    program.resizes(24, 200);
    program.types(&format!("{}; echo lo''aded\n", shell.takes));
    program.shows("loaded");
    program.clears();
    Some(program)
}

/// Types this and Tab, and waits until the line has become that.
fn completes(shell: &mut Program, typed: &str, line: &str) {
    shell.types(&format!("{typed}{TAB}"));
    shell.shows(line);
    shell.types(CLEAR);
    shell.clears();
}

/// A bus with a session of this label.
fn bus_with_session() -> (Bus, Client, String) {
    let bus = Bus::start(json!({ "pools": [puppets("gemini-pro", 1), puppets("other", 1)] }));
    let mut client = bus.client();
    client.asks(1, "_bus/hello", json!({ "pool": "gemini-pro", "client": "tester" }));
    let mut puppet = bus.puppet_of("gemini-pro");
    client.opens(&mut puppet, "agents-own-id");
    let listed = client.asks(9, "_bus/sessions", json!({}));
    let label = listed["sessions"][0]["session"].as_str().expect("a label").to_owned();
    (bus, client, label)
}

/// A bus that knows a node.
fn bus_with_node() -> Bus {
    let pool = json!({ "id": "far", "command": "cat", "env": { "AT": "{node}" }, "nodes": ["node-17"] });
    Bus::start(json!({ "listen": ["unix://@dir/bus.sock"], "pools": [pool] }))
}

fn tab_is_pressed_in(shell: &Shell) {
    let Some(mut program) = start(shell) else { return };
    let (bus, _client, label) = bus_with_session();
    let at = bus.tcp().to_owned();
    completes(&mut program, "stdio-bus sess", "stdio-bus sessions ");
    completes(&mut program, "stdio-bus sessions cl", "stdio-bus sessions close ");
    completes(&mut program, "stdio-bus status --js", "stdio-bus status --json ");
    completes(&mut program, "stdio-bus run ech", "stdio-bus run echo ");
    completes(&mut program, "stdio-bus --config on", "stdio-bus --config only-file");
    // What the bus alone knows.
    completes(&mut program, &format!("stdio-bus run --tcp {at} --pool g"), "--pool gemini-pro ");
    completes(&mut program, &format!("stdio-bus trace --tcp={at} --pool=g"), "--pool=gemini-pro ");
    completes(&mut program, &format!("stdio-bus logs --tcp {at} gemini-pro/"), " gemini-pro/0 ");
    completes(&mut program, &format!("stdio-bus run --tcp {at} --attach "), &format!("--attach {label} "));
    let edge = bus_with_node();
    let config = edge.config_path().display().to_string();
    completes(&mut program, &format!("stdio-bus nodes --config {config} --drain n"), "--drain node-17 ");
    // Without a bus, Tab does nothing, and the shell goes on.
    drop(bus);
    program.types(&format!("stdio-bus run --tcp {at} --attach {TAB}{CLEAR}echo no''thing\n"));
    program.shows("nothing");
    program.types("exit\n");
    program.ends();
}

#[test]
fn bash_completes_commands_options_and_names_of_the_bus() {
    tab_is_pressed_in(&BASH);
}

#[test]
fn zsh_completes_commands_options_and_names_of_the_bus() {
    tab_is_pressed_in(&ZSH);
}

#[test]
fn fish_completes_commands_options_and_names_of_the_bus() {
    tab_is_pressed_in(&FISH);
}

#[test]
fn what_can_follow_is_said_without_a_bus_and_without_a_word_on_stderr() {
    let folder = tempfile::TempDir::with_prefix("complete").expect("a temporary folder");
    let config = r#"{"listen": ["unix://none.sock"], "pools": [{"id": "one", "command": "x"}]} // good"#;
    fs::write(folder.path().join("bus.json"), config).expect("the folder is ours");
    let follows = |words: &[&str]| {
        let out = run(folder.path(), &[&["internal-complete", "--", "stdio-bus"][..], words].concat(), "");
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        String::from_utf8(out.stdout).expect("UTF-8")
    };
    // bus.json knows its pools, but neither sessions nor nodes.
    assert_eq!(follows(&["run", "--pool", ""]), "words\none\t\n");
    assert_eq!(follows(&["run", "--attach", ""]), "words\n");
    assert_eq!(follows(&["run", "--cwd", ""]), "dirs\n");
    assert_eq!(follows(&["check", "--config", ""]), "files\n");
    assert!(follows(&["run", "gem"]).contains("gemini\t"), "{}", follows(&["run", "gem"]));
    assert!(follows(&["agent", "cli", "--runtime", "cl"]).contains("claude\t"));
    assert!(follows(&["agent", ""]).contains("\necho\t"));
    // Options come with a dash, or where nothing else can follow.
    assert!(!follows(&[""]).contains("\n-") && follows(&[""]).contains("\nstatus\t"));
    assert!(follows(&["status", ""]).contains("\n--json\t"));
    assert!(!follows(&[""]).contains("internal"), "only the bus itself runs these");
    assert_eq!(run(folder.path(), &["internal-complete"], "").stdout, b"");
}
