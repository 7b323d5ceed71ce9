//! Forty mistakes that a user makes. Each message names the file or the option, the place, and what to do instead.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Bus, run};

/// A text of bus.json, and what `check` says of it: the place, and the cure.
const IN_BUS_JSON: [(&str, &str, &str); 40] = [
    ("", "bus.json: ", "`stdio-bus detect --write` fills it"),
    (r#"{"pools": [@]"#, "bus.json:1:41: ", "a } is missing"),
    ("{\"pools\": [@\n\n", "bus.json:1:40: ", "a ] is missing"),
    (r#"{"pools": [{"id": "a"#, "bus.json:1:21: ", "a \" is missing"),
    (r#"{"pools": [{"id": "a" "command": "sh"}]}"#, "bus.json:1:23: ", "expected `,` or `}`"),
    ("[]", "bus.json: ", "must be an object"),
    ("{}", "bus.json: pools", r#""pools": [{"id": "echo""#),
    (r#"{"pool": [@]}"#, "bus.json:1:10: pool", r#"did you mean "pools"?"#),
    (r#"{"pools": {}}"#, "bus.json:1:11: pools", "must be a list"),
    (r#"{"pools": []}"#, "bus.json:1:11: pools", "must not be empty"),
    (r#"{"pools": [{"id": "a"}]}"#, "bus.json:1:12: pools[0].command", "the program that the pool runs"),
    (r#"{"pools": [{"command": "sh"}]}"#, "bus.json:1:12: pools[0].id", "the name of the pool"),
    (r#"{"pools": [{"id": "a", "cmd": "sh"}]}"#, "pools[0].cmd", r#"did you mean "command"?"#),
    (r#"{"pools": [{"id": "a", "arguments": []}]}"#, "pools[0].arguments", r#"did you mean "args"?"#),
    (r#"{"pools": [{"name": "a"}]}"#, "pools[0].name", r#"did you mean "id"?"#),
    (r#"{"pools": [{"id": "a", "workdir": "."}]}"#, "pools[0].workdir", r#"did you mean "cwd"?"#),
    (r#"{"pools": [{"id": "a", "instnces": 1}]}"#, "pools[0].instnces", r#"did you mean "instances"?"#),
    (r#"{"pools": [{"id": "a", "args": "-c"}]}"#, "pools[0].args", "must be a list, not a string"),
    (r#"{"pools": [{"id": "a b"}]}"#, "pools[0].id", "letters, digits, dots, underscores and dashes"),
    (r#"{"pools": [@, @]}"#, "pools[1].id", r#"pools[0] has the id "a" already"#),
    (r#"{"pools": [{"id": "a", "command": "npx -y x"}]}"#, "pools[0].command", r#"arguments go into "args""#),
    (r#"{"pools": [{"id": "a", "command": "claud"}]}"#, "pools[0].command", r#"did you mean "claude"?"#),
    (r#"{"pools": [{"id": "a", "command": "./bus.json"}]}"#, "pools[0].command", "`chmod +x "),
    (r#"{"pools": [{"id": "a", "command": "sh", "cwd": "gone"}]}"#, "pools[0].cwd", "/gone: No such file"),
    (r#"{"pools": [{"id": "a", "instances": 0}]}"#, "pools[0].instances", "a whole number from 1 to 65536"),
    (
        r#"{"pools": [{"id": "a", "instances": 4, "max_instances": 2}]}"#,
        "max_instances",
        "at least instances (4)",
    ),
    (r#"{"pools": [{"id": "a", "mode": "share"}]}"#, "pools[0].mode", r#""shared" or "dedicated""#),
    (
        r#"{"pools": [{"id": "a", "permission": "yes"}]}"#,
        "pools[0].permission",
        r#""ask" or "allow" or "deny""#,
    ),
    (r#"{"pools": [{"id": "a", "env": {"A": 1}}]}"#, "pools[0].env.A", "must be a string"),
    (
        r#"{"pools": [{"id": "a", "env": {"A": "${NOPE_1}"}}]}"#,
        "pools[0].env.A",
        "set it where the bus is started",
    ),
    (
        r#"{"pools": [{"id": "a", "command": "cat", "args": ["~/x"]}]}"#,
        "pools[0].args[0]",
        "no shell expands it; write",
    ),
    (r#"{"pools": [@], "default_pool": "b"}"#, "default_pool", r#"the pools are "a""#),
    (r#"{"pools": [@], "listen": "tcp://127.0.0.1:1"}"#, "listen", "must be a list"),
    (r#"{"pools": [@], "listen": ["127.0.0.1:1"]}"#, "listen[0]", "tcp://HOST:PORT, unix:///PATH or stdio:"),
    (r#"{"pools": [@], "listen": ["tcp://0.0.0.0:1"]}"#, "listen[0]", "create one with `stdio-bus token`"),
    (r#"{"pools": [@], "listen": ["tcp://127.0.0.1:99999"]}"#, "listen[0]", "a number from 0 to 65535"),
    (r#"{"pools": [@], "auth": {"token_file": "t"}}"#, "auth.token_file", "create it with `stdio-bus token`"),
    (r#"{"pools": [@], "limits": {"max_client": 1}}"#, "limits.max_client", r#"did you mean "max_clients"?"#),
    (
        r#"{"pools": [@], "web": {"listen": "http://0.0.0.0:1"}}"#,
        "web.listen",
        "with a certificate in web.tls",
    ),
    (
        r#"{"pools": [@], "web": {"listen": "https://127.0.0.1:1"}}"#,
        "web.listen",
        "web.tls.cert and web.tls.key",
    ),
];

/// A command line, and what is said of it.
const ON_COMMAND_LINE: [(&[&str], &str, &str); 7] = [
    (
        &["check", "--config", "gone.json"],
        "gone.json: ",
        "`stdio-bus detect --write --config gone.json` creates it",
    ),
    (&["check", "--config", "."], ".: ", "name the file in it"),
    (&["status", "--tcp", "localhost"], "'--tcp <HOST:PORT>'", "such as 127.0.0.1:9000"),
    (&["status", "--tcp", "127.0.0.1:1"], "tcp://127.0.0.1:1", "start one with `stdio-bus start`"),
    (&["status", "--port", "1"], "tcp://127.0.0.1:1", "start one with `stdio-bus start`"),
    (&["web", "url", "--scope", "all"], "'--scope <SCOPE>'", "observe, approve, control or admin"),
    (&["strt"], "'strt'", "'start'"),
];

/// A command line, and what is said of it where a bus with the pools `a`, `b` and `dead` runs, with no default pool and
/// without a web door.
const AT_RUNNING_BUS: [(&[&str], &str, &str); 7] = [
    (&["sessions", "close", "s99"], "there is no session s99", "`stdio-bus sessions` lists them"),
    (&["run", "--attach", "s99"], "there is no session s99", "`stdio-bus sessions` lists them"),
    (&["connect", "--attach", "s99"], "there is no session s99", "`stdio-bus sessions` lists them"),
    (&["web", "url"], "this bus has no web door", "/bus.json or start with --web"),
    (&["trace", "--pool", "nope"], "stdio-bus: there is no pool \"nope\"", "the pools are a, b, dead"),
    (&["run", "--pool", "nope", "hi"], "there is no pool \"nope\"", "the pools are a, b, dead"),
    (&["run", "--pool", "dead", "hi"], "no key", "; `stdio-bus logs dead` says more"),
];

fn said(folder: &Path, args: &[&str]) -> String {
    let out = run(folder, args, "");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn each_mistake_is_told_with_its_place_and_its_cure() {
    let folder = TempDir::with_prefix("mistakes").expect("a temporary folder");
    let mut wrong = Vec::new();
    for (text, place, cure) in IN_BUS_JSON {
        let text = text.replace('@', r#"{"id": "a", "command": "sh"}"#);
        fs::write(folder.path().join("bus.json"), &text).expect("the folder is ours");
        let told = said(folder.path(), &["check"]);
        let is_good =
            |line: &str| line.starts_with("bus.json") && line.contains(place) && line.contains(cure);
        if !told.lines().any(is_good) {
            wrong.push(format!("{text}\n  should name {place:?} and {cure:?}, but says\n{told}"));
        }
    }
    fs::remove_file(folder.path().join("bus.json")).expect("it is there");
    for (args, place, cure) in ON_COMMAND_LINE {
        let told = said(folder.path(), args);
        if !(told.contains(place) && told.contains(cure)) {
            wrong.push(format!("{args:?}\n  should name {place:?} and {cure:?}, but says\n{told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_running_bus_refuses_is_told_with_the_cure() {
    let echo =
        |id: &str| json!({ "id": id, "command": "stdio-bus", "args": ["agent", "echo"], "warm": false });
    let dead =
        json!({ "id": "dead", "command": "sh", "args": ["-c", "echo no key >&2; exit 1"], "warm": false });
    let bus = Bus::start(json!({ "listen": ["tcp://127.0.0.1:0"], "pools": [echo("a"), echo("b"), dead] }));
    let mut wrong = Vec::new();
    for (args, place, cure) in AT_RUNNING_BUS {
        let told = said(bus.folder(), args);
        if !(told.contains(place) && told.contains(cure)) {
            wrong.push(format!("{args:?}\n  should name {place:?} and {cure:?}, but says\n{told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_word_in_rust_log_is_told_once() {
    let config = json!({ "listen": ["tcp://127.0.0.1:0"],
        "pools": [{ "id": "a", "command": "stdio-bus", "args": ["agent", "echo"], "warm": false }] });
    let bus = Bus::plan(config).env("RUST_LOG", "debgu").start();
    bus.log_has("RUST_LOG: \"debgu\" selects nothing; did you mean \"debug\"?");
}

#[test]
fn a_syntax_error_is_shown_with_a_mark_below_its_place() {
    let folder = TempDir::with_prefix("mistakes").expect("a temporary folder");
    fs::write(folder.path().join("bus.json"), "{\"pools\": [\n  {\"id\": 1\n").expect("the folder is ours");
    let told = said(folder.path(), &["check"]);
    let expected = "bus.json:2:11: the file ends too early: a } is missing\n    {\"id\": 1\n            ^\n";
    assert_eq!(told, expected);
}
