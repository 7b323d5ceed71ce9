//! The command line and the example configurations.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, Bus, initialize, one_pool, request, run, session_of};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn folder_with(bus_json: &str) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    fs::write(folder.path().join("bus.json"), bus_json).expect("a file");
    folder
}

fn stdout(out: &std::process::Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn stderr(out: &std::process::Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn the_default_configuration_serves_a_whole_turn() {
    let bus = Bus::plan_with_file(Path::new(ROOT).join("bus.json")).start();
    let mut client = bus.client();
    client.sends(&initialize(0, json!({ "fs": { "readTextFile": true } })));
    assert_eq!(client.gets(0)["protocolVersion"], 1);
    client.sends(&request(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
    let opened = loop {
        let message = client.receives();
        if message["id"] == 1 {
            break message["result"].clone();
        }
    };
    let session = session_of(&opened);
    assert_eq!(
        client.takes_turn(2, &session, "Say this back, please."),
        ("Say this back, please.".to_owned(), 0)
    );
    let (text, questions) = client.takes_turn(3, &session, "/ask");
    assert!(!text.is_empty() && questions == 1, "{text}");
    let echoed = client.asks(4, "any/method", json!({ "a": [1] }));
    assert_eq!(echoed, json!({ "echo": { "a": [1] }, "method": "any/method" }));
}

#[test]
fn serve_in_the_root_of_the_repository_finds_its_configuration() {
    let out = run(Path::new(ROOT), &["check"], "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("echo"));
}

#[test]
fn a_configuration_of_stdio_bus_2_0_3_runs_unchanged() {
    let bus = Bus::start(json!({
        "pools": [
            { "id": "echo", "command": env!("CARGO_BIN_EXE_stdio-bus"), "args": ["agent", "echo"], "instances": 2 },
        ],
        "limits": { "max_input_buffer": 1048576, "max_output_queue": 4194304, "max_restarts": 5,
            "restart_window_sec": 60, "drain_timeout_sec": 30, "backpressure_timeout_sec": 60 }
    }));
    let mut client = bus.client();
    client
        .sends(r#"{"jsonrpc":"2.0","id":"1","method":"tools/list","sessionId":"client-1","params":{"x":1}}"#);
    let answer = client.receives();
    assert_eq!((&answer["id"], &answer["result"]["echo"]), (&json!("1"), &json!({ "x": 1 })));
}

#[test]
fn every_command_finds_the_configuration_of_the_user_in_any_folder() {
    let (home, elsewhere) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let of_user = home.path().join("stdio-bus");
    fs::create_dir(&of_user).expect("a folder");
    fs::write(of_user.join("bus.json"), CONFIG_WITH_REMARKS).expect("a file");
    let runs = |args: &[&str]| {
        let mut command = std::process::Command::new(BUS);
        command.args(args).current_dir(elsewhere.path()).env_remove("STDIO_BUS_CONFIG");
        command.env("XDG_CONFIG_HOME", home.path()).env("XDG_STATE_HOME", home.path());
        command.env("XDG_RUNTIME_DIR", home.path());
        command.stdin(std::process::Stdio::null());
        command.output().expect("it runs")
    };
    let out = runs(&["check"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).starts_with(&format!("{}: good\n", of_user.join("bus.json").display())));
    assert!(stdout(&out).contains("pool of-the-user"), "{}", stdout(&out));
    // Nobody listens there, and so they have read where the bus would be.
    for args in [&["status"][..], &["call", "x"], &["trace"], &["connect"], &["run", "--pool", "p", "hi"]] {
        let out = runs(args);
        assert!(stderr(&out).contains("127.0.0.1:1"), "{args:?}: {}", stderr(&out));
    }
    let out = runs(&["ide", "zed", "--pool", "of-the-user"]);
    assert!(stdout(&out).contains(of_user.to_str().expect("UTF-8")), "{}", stdout(&out));
    // A file in the folder comes first.
    fs::write(elsewhere.path().join("bus.json"), r#"{"pools":[{"id":"here","command":"x"}]}"#)
        .expect("a file");
    assert!(stdout(&runs(&["check"])).contains("pool here"));
}

/// As the configurations of stdio_bus have them, and with what else people write.
const CONFIG_WITH_REMARKS: &str = "\u{feff}// of the user
{
  \"_comment\": \"everything\",
  \"listen\": [\"tcp://127.0.0.1:1\"], /* nobody may listen there */
  \"pools\": [
    { \"id\": \"of-the-user\", \"command\": \"stdio-bus\", \"args\": [\"agent\", \"echo\"], },
  ],
  \"limits\": { \"_comment_max_restarts\": \"few\", \"max_restarts\": 5, },
}
";

#[test]
fn check_prints_what_would_run_or_every_fault_with_its_place() {
    let good = folder_with(r#"{"pools":[{"id":"e","command":"stdio-bus","args":["agent","echo"]}]}"#);
    let out = run(good.path(), &["check"], "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let bad = folder_with(
        r#"{"pools":[{"id":"e","comand":"x","instances":-1},{"id":"e","command":"x"}],"limit":{}}"#,
    );
    let out = run(bad.path(), &["check"], "");
    assert_eq!(out.status.code(), Some(1));
    for place in ["pools[0].comand", "pools[0].instances", "pools[1].id", "limit", "limits"] {
        assert!(stderr(&out).contains(place), "{place} in {}", stderr(&out));
    }
    let out = run(bad.path(), &["serve", "--tcp", "127.0.0.1:0"], "");
    assert_eq!(out.status.code(), Some(78));
    assert!(out.stdout.is_empty() && stderr(&out).contains("pools[0].comand"));
}

#[test]
fn the_exit_code_tells_what_kind_of_failure_it_was() {
    let folder = folder_with(r#"{"pools":[{"id":"e","command":"stdio-bus","args":["agent","echo"]}]}"#);
    let empty = TempDir::new().expect("a temporary folder");
    for (place, args, code) in [
        (&folder, vec!["--help"], 0),
        (&folder, vec!["--version"], 0),
        (&folder, vec!["help", "serve"], 0),
        (&folder, vec!["schema"], 0),
        (&folder, vec!["no-such-command"], 2),
        (&folder, vec!["serve", "--no-such-flag"], 2),
        (&folder, vec!["serve", "--tcp", "nonsense"], 2),
        (&folder, vec!["call"], 2),
        (&folder, vec!["call", "m", "{not json"], 2),
        (&folder, vec!["run"], 2),
        (&folder, vec!["ide", "no-such-ide"], 2),
        (&folder, vec!["agent", "cli", "--runtime", "no-such-cli"], 2),
        (&folder, vec!["completions", "no-such-shell"], 2),
        (&folder, vec!["man", "agent", "no-such-agent"], 2),
        (&folder, vec!["status", "--unix", "/nowhere/at/all"], 69),
        (&folder, vec!["call", "--unix", "/nowhere/at/all", "m"], 69),
        (&folder, vec!["trace", "--unix", "/nowhere/at/all"], 69),
        (&folder, vec!["connect", "--unix", "/nowhere/at/all"], 69),
        (&folder, vec!["run", "--pool", "e", "--unix", "/nowhere/at/all", "hi"], 69),
        (&folder, vec!["run", "no-such-agent", "hi"], 1),
        (&folder, vec!["token", "bus.json"], 73),
        (&folder, vec!["man", "--dir", "bus.json"], 73),
        (&empty, vec!["serve"], 78),
        (&empty, vec!["status"], 78),
        (&empty, vec!["call", "m"], 78),
        (&empty, vec!["trace"], 78),
        (&empty, vec!["connect"], 78),
        (&empty, vec!["run", "--pool", "e"], 78),
        (&empty, vec!["ide", "zed"], 78),
        (&empty, vec!["check"], 1),
        (&empty, vec!["serve", "--config", "missing.json"], 78),
    ] {
        let out = run(place.path(), &args, "");
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}{}", stdout(&out), stderr(&out));
        let printed = if code == 0 { stdout(&out) } else { stderr(&out) };
        assert!(!printed.is_empty(), "{args:?} prints nothing");
        let next = match code {
            69 => "start one with `stdio-bus start`",
            78 if !args.contains(&"missing.json") => "--config PATH",
            _ => "",
        };
        assert!(printed.contains(next), "{args:?} does not print what to do: {printed}");
        assert!(!printed.contains("stdio-bus: stdio-bus:"), "{printed}");
    }
}

#[test]
fn rows_of_agent_clis_that_cannot_be_read_are_a_bad_configuration() {
    let folder = folder_with("{}");
    for args in [&["detect"][..], &["agent", "cli", "--runtime", "claude"]] {
        let mut command = std::process::Command::new(crate::harness::BUS);
        command.args(args).env("XDG_STATE_HOME", folder.path());
        let out = command.env("STDIO_BUS_RUNTIMES", folder.path().join("none.json")).output();
        let out = out.expect("the binary starts");
        assert_eq!(out.status.code(), Some(78), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains("none.json"), "{}", stderr(&out));
    }
}

#[test]
fn the_version_names_the_commit_if_there_is_one() {
    let printed = stdout(&run(Path::new(ROOT), &["--version"], ""));
    let version = env!("CARGO_PKG_VERSION");
    let git = std::process::Command::new("git").args(["-C", ROOT, "rev-parse", "HEAD"]).output();
    let commit = git.ok().filter(|git| git.status.success() && Path::new(ROOT).join(".git").exists());
    let expected = match commit {
        Some(git) => format!("stdio-bus {version} ({})\n", &stdout(&git)[..9]),
        None => format!("stdio-bus {version}\n"),
    };
    assert_eq!(printed, expected);
}

#[test]
fn every_command_has_a_manual_page_and_shell_completions() {
    let folder = TempDir::new().expect("a temporary folder");
    let out = run(folder.path(), &["man", "--dir", "pages"], "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    for (page, args) in
        [("stdio-bus.1", &["man"][..]), ("stdio-bus-agent-openai.1", &["man", "agent", "openai"])]
    {
        let written = fs::read_to_string(folder.path().join("pages").join(page)).expect("a page");
        assert!(written.contains(".SH EXAMPLES"), "{written}");
        assert_eq!(stdout(&run(folder.path(), args, "")), written);
    }
    // Those of bash, zsh and fish ask the program: completions.rs presses Tab.
    for shell in ["elvish", "powershell"] {
        let script = stdout(&run(folder.path(), &["completions", shell], ""));
        assert!(script.contains("connect") && script.contains("token-file"), "{shell}");
        assert!(!script.contains("detached"), "{shell} offers a command that only the bus itself runs");
    }
}

#[test]
fn a_listener_that_cannot_be_opened_is_a_failure() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = taken.local_addr().expect("an address").to_string();
    let folder = folder_with(r#"{"pools":[{"id":"e","command":"stdio-bus","args":["agent","echo"]}]}"#);
    let out = run(folder.path(), &["serve", "--tcp", &at], "");
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(out.stdout.is_empty() && stderr(&out).contains(&at), "{}", stderr(&out));
}

#[test]
fn call_and_status_query_a_running_bus() {
    let echo = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"], "instances": 2 });
    let bus = Bus::start(json!({ "pools": [echo] }));
    let at = ["--tcp", bus.tcp()];
    let out = run(bus.folder(), &[&["call"][..], &at, &["any/method", r#"{"a":1}"#]].concat(), "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(
        stdout(&out).parse::<Value>().expect("JSON"),
        json!({ "echo": { "a": 1 }, "method": "any/method" })
    );
    let out = run(bus.folder(), &[&["call"][..], &at, &["any/method", "-"]].concat(), "[1]");
    assert_eq!(stdout(&out).parse::<Value>().expect("JSON")["echo"], json!([1]));
    let out = run(bus.folder(), &[&["call"][..], &at, &["--pool", "none", "m"]].concat(), "");
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("unknown_pool"), "{}", stderr(&out));
    let out = run(bus.folder(), &[&["status"][..], &at].concat(), "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("echo"));
    let out = run(bus.folder(), &[&["status", "--json"][..], &at].concat(), "");
    let status: Value = stdout(&out).parse().expect("JSON");
    assert_eq!(status["pools"][0]["workers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn commands_find_the_address_of_the_bus_in_bus_json() {
    let mut config = one_pool(1);
    config["listen"] = json!(["unix://@dir/bus.sock"]);
    let bus = Bus::start(config);
    let out = run(bus.folder(), &["status", "--json"], "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let out = run(Path::new("/"), &["status", "--unix", &bus.addresses[0]["unix://".len()..]], "");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
}
