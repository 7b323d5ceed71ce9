//! Tests of bus.json as a whole: what is accepted, and what is refused with which message.

mod keys;

use std::collections::BTreeSet;
use std::env::VarError;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use kernel_core::config::*;

use super::*;

const GONE: &str = "the environment variable GONE is not set; set it where the bus is started";
const NO_ID: &str = "missing: the name of the pool";

fn variable(name: &str) -> Result<String, VarError> {
    match name {
        "HOME" => Ok("/home/ann".to_owned()),
        "MY_TOKEN" => Ok("s3cret".to_owned()),
        _ => Err(VarError::NotPresent),
    }
}

fn token(path: &Path) -> Result<String, String> {
    match path.to_str() {
        Some("/home/ann/token") => Ok("the token of ann".to_owned()),
        _ => Err(format!("there is no {}", path.display())),
    }
}

fn resolver() -> Resolver<'static> {
    Resolver { folder: Path::new("/srv/bus"), variable: &variable, token: &token }
}

pub(super) fn parse(text: &str) -> Result<Config, Vec<(String, String)>> {
    let pair = |error: ConfigError| (error.path, error.message);
    parse::config(text, resolver()).map_err(|errors| errors.into_iter().map(pair).collect())
}

/// Asserts that the text has exactly these errors.
fn refuses(text: &str, errors: &[(&str, &str)]) {
    let found = parse(text).err().unwrap_or_default();
    let found = found.iter().map(|(path, message)| (path.as_str(), message.as_str())).collect::<Vec<_>>();
    assert_eq!(found, errors, "{text}");
}

/// The text of a file with one pool that has these further keys.
fn with_pool(keys: &str) -> String {
    format!(r#"{{"pools":[{{"id":"a","command":"agent"{keys}}}]}}"#)
}

pub(super) fn with_top(keys: &str) -> String {
    format!(r#"{{"pools":[{{"id":"a","command":"x"}},{{"id":"b","command":"x"}}]{keys}}}"#)
}

fn with_limits(keys: &str) -> String {
    with_top(&format!(r#","limits":{{{keys}}}"#))
}

#[test]
fn the_smallest_file_gets_every_default() {
    let config = parse(r#"{"pools":[{"id":"a","command":"agent"}]}"#).unwrap();
    let pool = PoolConfig::new("a", Program::InPath("agent".to_owned()));
    let listen = vec![Address::Tcp { host: "127.0.0.1".into(), port: 9000 }.into()];
    let (pools, limits, history) = (vec![pool.into()], Limits::default(), Some(HistoryConfig::default()));
    let expected = Config { listen, pools, limits, history, ..Config::with_pools([]) };
    assert_eq!(config, expected);
}

#[test]
fn max_instances_is_at_least_eight_and_at_least_instances_unless_it_is_given() {
    let pool = |keys: &str| {
        let config = parse(&format!(r#"{{"pools":[{{"id":"a","command":"agent"{keys}}}]}}"#)).unwrap();
        (config.pools[0].max_instances, config.pools[0].idle.map(|idle| idle.as_secs()))
    };
    assert_eq!(pool(""), (8, Some(300)));
    assert_eq!(pool(r#","instances":7"#), (8, Some(300)));
    assert_eq!(pool(r#","instances":9,"idle_sec":60"#), (9, Some(60)));
    assert_eq!(pool(r#","max_instances":1,"idle_sec":0"#), (1, None));
}

#[test]
fn a_pool_keeps_sessions_as_long_as_the_limits_say_unless_it_says_it_itself() {
    let keep = |keys: &str| {
        let config = parse(&format!(r#"{{"pools":[{{"id":"a","command":"agent"{keys}}}]}}"#)).unwrap();
        config.pools[0].session_keep
    };
    assert_eq!(keep(""), None);
    assert_eq!(keep(r#","session_keep_sec":0"#), Some(Duration::ZERO));
    assert_eq!(keep(r#","session_keep_sec":1.5"#), Some(Duration::from_millis(1500)));
}

#[test]
fn comments_last_commas_and_a_byte_order_mark_change_nothing() {
    let text = "\u{feff}// mine\n{\n  /* the one\n     agent */ \"pools\": [\n    \
        { \"id\": \"a\", \"command\": \"agent\", }, // not: { \"id\": \"b\" }\n  ],\n}\n";
    assert_eq!(parse(text).unwrap(), parse(&with_pool("")).unwrap());
    // An error stands where it does in the file.
    let place = |text: &str| parse(text).unwrap_err()[0].1.split(':').next().map(str::to_owned);
    assert_eq!(place("// é\n{ /* x */ \"pools\": [,] }").as_deref(), Some("line 2, column 21"));
    assert_eq!(place("{ /* never").as_deref(), Some("line 1, column 3"));
}

#[test]
fn keys_that_begin_with_an_underscore_are_remarks() {
    let text = r#"{"_comment":"x","_comment":["y"],"_":{"pools":1,"pools":2},
        "pools":[{"_why":1,"id":"a","command":"agent","env":{"_JAVA_OPTIONS":"-Xmx1g"}}],
        "limits":{"_comment_max_restarts":"few"},"trace":{"_":0},
        "listen":["tcp://127.0.0.1:9000"]}"#;
    let config = parse(text).unwrap();
    assert_eq!(config.pools[0].env["_JAVA_OPTIONS"], "-Xmx1g", "a variable is none");
    let twice = text.replace(r#""env":{"#, r#""env":{"_JAVA_OPTIONS":"","#);
    assert_eq!(parse(&twice).unwrap_err().len(), 1, "not even one that stands there twice");
    let auth = with_top(r#","auth":{"_comment":"soon"}"#);
    assert_eq!(parse(&auth).unwrap_err(), [("auth.token_file".to_owned(), "missing".to_owned())]);
}

#[test]
fn a_full_file_is_read_completely() {
    let config = parse(
        r#"{
          "$schema": "docs/bus.schema.json",
          "listen": ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "unix://bus.sock?pool=claude", "stdio:"],
          "default_pool": "echo",
          "pools": [
            { "id": "echo", "command": "stdio-bus", "args": ["agent", "echo", ""], "instances": 2 },
            { "id": "claude", "command": "./bin/claude", "instances": 1, "max_instances": 4, "mode": "dedicated",
              "max_sessions": 16, "cwd": "~/work", "env": { "KEY": "value", "TOKEN": "a ${MY_TOKEN} $${X}" },
              "inherit_env": ["PATH", "HOME"] },
            { "id": "bare", "command": "~/bin/agent", "cwd": "sub", "inherit_env": false }
          ],
          "limits": {
            "max_input_buffer": 1024, "max_output_queue": 2048, "backpressure_timeout_sec": 0.5, "max_restarts": 0,
            "restart_window_sec": 1, "max_restart_delay_sec": 0.02, "init_timeout_sec": 2, "silence_timeout_sec": 3,
            "drain_timeout_sec": 0, "session_keep_sec": 0, "max_clients": 1, "max_calls": 1e3,
            "max_held_bytes": 1024, "session_log_bytes": 0, "max_log_bytes": 4096
          },
          "trace": { "payloads": true }
        }"#,
    )
    .unwrap();
    let urls = config.listen.iter().map(Listen::to_string).collect::<Vec<_>>();
    assert_eq!(
        urls,
        ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "unix:///srv/bus/bus.sock?pool=claude", "stdio:"]
    );
    assert_eq!(config.default_pool.as_deref(), Some("echo"));
    let [echo, claude, bare] = &config.pools[..] else { panic!("three pools") };
    assert_eq!(echo.program, Program::ThisBinary);
    assert_eq!(echo.args, ["agent", "echo", ""]);
    assert_eq!((echo.instances, echo.max_instances), (2, 8));
    assert_eq!(claude.program, Program::At("/srv/bus/bin/claude".into()));
    assert_eq!((claude.instances, claude.max_instances, claude.max_sessions), (1, 4, 16));
    assert_eq!(claude.mode, Mode::Dedicated);
    assert_eq!(claude.cwd.as_deref(), Some(Path::new("/home/ann/work")));
    assert_eq!((&*claude.env["KEY"], &*claude.env["TOKEN"]), ("value", "a s3cret ${X}"));
    assert_eq!(claude.inherit_env, InheritEnv::Only(vec!["PATH".to_owned(), "HOME".to_owned()]));
    assert_eq!(bare.program, Program::At("/home/ann/bin/agent".into()));
    assert_eq!(bare.cwd.as_deref(), Some(Path::new("/srv/bus/sub")));
    assert_eq!(bare.inherit_env, InheritEnv::Nothing);
    let limits = Limits {
        max_input_buffer: 1024,
        max_output_queue: 2048,
        backpressure_timeout: Duration::from_millis(500),
        max_restarts: 0,
        restart_window: Duration::from_secs(1),
        max_restart_delay: Duration::from_millis(20),
        init_timeout: Duration::from_secs(2),
        silence_timeout: Some(Duration::from_secs(3)),
        drain_timeout: Duration::ZERO,
        session_keep: Duration::ZERO,
        max_clients: 1,
        max_calls: 1000,
        max_held_bytes: 1024,
        session_log_bytes: 0,
        max_log_bytes: 4096,
        ..Limits::default()
    };
    assert_eq!((&config.limits, config.trace_payloads), (&limits, true));
}

#[test]
fn a_file_of_stdio_bus_2_0_3_is_accepted_unchanged() {
    let config = parse(
        r#"{
          "pools": [{ "id": "acp-worker", "command": "/usr/bin/node", "args": ["./worker.js"], "instances": 4 }],
          "limits": {
            "max_input_buffer": 1048576, "max_output_queue": 4194304, "max_restarts": 5,
            "restart_window_sec": 60, "drain_timeout_sec": 30, "backpressure_timeout_sec": 60
          }
        }"#,
    )
    .unwrap();
    let pool = &config.pools[0];
    assert_eq!((&pool.program, pool.instances), (&Program::At("/usr/bin/node".into()), 4));
    assert_eq!(config.limits, Limits { max_input_buffer: 1 << 20, ..Limits::default() });
}

#[test]
fn text_that_is_no_json_object_is_refused_with_line_and_column() {
    refuses("", &[("$", "the file is empty; `stdio-bus detect --write` fills it")]);
    let shown = "line 2, column 15: expected value\n    \"pools\": [1,,]\n                ^";
    refuses("{\n  \"pools\": [1,,]\n}", &[("$", shown)]);
    refuses("{} {}", &[("$", "line 1, column 4: trailing characters\n  {} {}\n     ^")]);
    refuses("# no\n{}", &[("$", "line 1, column 1: expected value\n  # no\n  ^")]);
    refuses("[]", &[("$", "must be an object, not a list")]);
    refuses("null", &[("$", "must be an object, not null")]);
    refuses(&"[".repeat(1000), &[("$", "line 1, column 128: recursion limit exceeded")]);
}

#[test]
fn an_error_of_the_top_level_is_reported() {
    let top = [
        (r#","pool":1"#, "pool", r#"unknown key, did you mean "pools"?"#),
        (r#","defaultPool":"a""#, "defaultPool", r#"unknown key, did you mean "default_pool"?"#),
        (
            r#","warm":true"#,
            "warm",
            concat!(
                r#"unknown key, the known ones are "$schema", "name", "listen", "auth", "default_pool", "pools", "#,
                r#""limits", "trace", "web", "cluster", "history", "notify""#
            ),
        ),
        (r#","auth":"token""#, "auth", "must be an object, not a string"),
        (r#","auth":{}"#, "auth.token_file", "missing"),
        (r#","auth":{"tokenFile":"t"}"#, "auth.tokenFile", r#"unknown key, did you mean "token_file"?"#),
        (r#","auth":{"token_file":""}"#, "auth.token_file", "must not be empty"),
        (r#","auth":{"token_file":"t"}"#, "auth.token_file", "there is no /srv/bus/t"),
        (r#","trace":true"#, "trace", "must be an object, not true"),
        (r#","trace":{"payload":true}"#, "trace.payload", r#"unknown key, did you mean "payloads"?"#),
        (r#","trace":{"payloads":1}"#, "trace.payloads", "must be true or false, not 1"),
        (r#","$schema":1"#, "$schema", "must be a string, not 1"),
        (r#","limits":[]"#, "limits", "must be an object, not a list"),
        (r#","limits":{},"limits":{}"#, "limits", "this key occurs more than once"),
        (r#","default_pool":"c""#, "default_pool", r#"there is no pool "c", the pools are "a", "b""#),
        (r#","default_pool":"""#, "default_pool", "must not be empty"),
        (r#","default_pool":["a"]"#, "default_pool", "must be a string, not a list"),
        (r#","listen":"stdio:""#, "listen", "must be a list, not a string"),
        (r#","listen":[]"#, "listen", "must not be empty"),
        (r#","listen":[9000]"#, "listen[0]", "must be a string, not 9000"),
        (r#","listen":["stdio:?pool=c"]"#, "listen[0]", r#"there is no pool "c", the pools are "a", "b""#),
        (r#","listen":["stdio:","stdio:?pool=a"]"#, "listen[1]", "listen[0] has the address stdio: already"),
        (
            r#","listen":["tcp://[::1]:1","stdio:","tcp://[0::1]:1"]"#,
            "listen[2]",
            "listen[0] has the address tcp://[::1]:1 already",
        ),
        (
            r#","listen":["stdio:","tcp://0.0.0.0:9000"]"#,
            "listen[1]",
            "tcp://0.0.0.0:9000 is not on loopback: without a token whoever reaches it could run commands here; \
             create one with `stdio-bus token` and name its file in auth.token_file",
        ),
        (r#","listen":["unix://a\u0000b"]"#, "listen[0]", "must not hold a NUL character"),
    ];
    for (keys, path, message) in top {
        refuses(&with_top(keys), &[(path, message)]);
    }
    refuses("{}", &[("pools", super::parse::NO_POOLS)]);
    refuses(r#"{"pools":[]}"#, &[("pools", "must not be empty")]);
    refuses(r#"{"pools":{}}"#, &[("pools", "must be a list, not an object")]);
    refuses(r#"{"pools":["echo"]}"#, &[("pools[0]", "must be an object, not a string")]);
}

#[test]
fn an_error_of_a_pool_is_reported() {
    let known = concat!(
        r#"unknown key, the known ones are "id", "command", "args", "nodes", "from", "mode", "instances", "max_"#,
        r#"instances", "max_sessions", "warm", "idle_sec", "session_keep_sec", "permission", "store", "share", "#,
        r#""history", "cwd", "env", "inherit_env""#
    );
    let name = r#"the name of a variable must not be empty or hold "=" or NUL"#;
    let instances = "must be a whole number from 1 to 65536, not";
    let cases = [
        (r#","instnces":2"#, "pools[0].instnces", r#"unknown key, did you mean "instances"?"#),
        (r#","warm":1"#, "pools[0].warm", "must be true or false, not 1"),
        (
            r#","session_keep_sec":"long""#,
            "pools[0].session_keep_sec",
            "must be a number from 0 to 31536000, not a string",
        ),
        (r#","idle_sec":-1"#, "pools[0].idle_sec", "must be a number from 0 to 31536000, not -1"),
        (
            r#","permission":"maybe""#,
            "pools[0].permission",
            r#"must be "ask" or "allow" or "deny", not "maybe""#,
        ),
        (r#","store":"""#, "pools[0].store", "must not be empty"),
        (r#","store":1"#, "pools[0].store", "must be a string, not 1"),
        (r#","a b":1"#, r#"pools[0]["a b"]"#, known),
        (r#","args":[],"args":[]"#, "pools[0].args", "this key occurs more than once"),
        (r#","args":"-y""#, "pools[0].args", "must be a list, not a string"),
        (r#","args":["a",1]"#, "pools[0].args[1]", "must be a string, not 1"),
        (r#","args":["a\u0000"]"#, "pools[0].args[0]", "must not hold a NUL character"),
        (r#","mode":"solo""#, "pools[0].mode", r#"must be "shared" or "dedicated", not "solo""#),
        (r#","mode":1"#, "pools[0].mode", r#"must be "shared" or "dedicated", not 1"#),
        (r#","instances":0"#, "pools[0].instances", &format!("{instances} 0")),
        (r#","instances":-1"#, "pools[0].instances", &format!("{instances} -1")),
        (r#","instances":1.5"#, "pools[0].instances", &format!("{instances} 1.5")),
        (r#","instances":"2""#, "pools[0].instances", &format!("{instances} a string")),
        (r#","instances":null"#, "pools[0].instances", &format!("{instances} null")),
        (
            r#","instances":99999999999999999999"#,
            "pools[0].instances",
            &format!("{instances} 100000000000000000000"),
        ),
        (r#","max_instances":0,"instances":1"#, "pools[0].max_instances", &format!("{instances} 0")),
        (
            r#","instances":4,"max_instances":2"#,
            "pools[0].max_instances",
            "must be at least instances (4), not 2",
        ),
        (r#","max_sessions":0"#, "pools[0].max_sessions", "must be a whole number from 1 to 1048576, not 0"),
        (r#","cwd":"""#, "pools[0].cwd", "must not be empty"),
        (r#","cwd":"a\u0000""#, "pools[0].cwd", "must not hold a NUL character"),
        (r#","cwd":false"#, "pools[0].cwd", "must be a string, not false"),
        (r#","env":["A=1"]"#, "pools[0].env", "must be an object, not a list"),
        (r#","env":{"A":1}"#, "pools[0].env.A", "must be a string, not 1"),
        (r#","env":{"":"x"}"#, r#"pools[0].env[""]"#, name),
        (r#","env":{"A=B":"x"}"#, r#"pools[0].env["A=B"]"#, name),
        (r#","env":{"A":"s3cret\u0000"}"#, "pools[0].env.A", "must not hold a NUL character"),
        (r#","env":{"A":"1","A":"2"}"#, "pools[0].env.A", "this key occurs more than once"),
        (r#","env":{"A":"s3cret${GONE}"}"#, "pools[0].env.A", GONE),
        (
            r#","env":{"A":"s3cret${GONE"}"#,
            "pools[0].env.A",
            r#""${" without its "}" (a plain "${" is written "$${")"#,
        ),
        (r#","inherit_env":"PATH""#, "pools[0].inherit_env", "must be true, false or a list, not a string"),
        (r#","inherit_env":["PATH",true]"#, "pools[0].inherit_env[1]", "must be a string, not true"),
        (r#","inherit_env":["PATH","A=B"]"#, "pools[0].inherit_env[1]", name),
    ];
    for (keys, path, message) in cases {
        refuses(&with_pool(keys), &[(path, message)]);
    }
}

#[test]
fn a_pool_without_a_good_name_or_command_is_refused() {
    let spelling = "is not 1 to 64 letters, digits, dots, underscores and dashes";
    let long = "x".repeat(65);
    let cases = [
        (r#"{"command":"x"}"#, "pools[0].id", NO_ID),
        (r#"{"id":"a"}"#, "pools[0].command", "missing: the program that the pool runs"),
        (r#"{"id":"","command":"x"}"#, "pools[0].id", "must not be empty"),
        (r#"{"id":7,"command":"x"}"#, "pools[0].id", "must be a string, not 7"),
        (r#"{"id":"a b","command":"x"}"#, "pools[0].id", &format!("\"a b\" {spelling}")),
        (r#"{"id":"ä","command":"x"}"#, "pools[0].id", &format!("\"ä\" {spelling}")),
        (&format!(r#"{{"id":"{long}","command":"x"}}"#), "pools[0].id", &format!("{long:?} {spelling}")),
        (r#"{"id":"a","command":""}"#, "pools[0].command", "must not be empty"),
        (r#"{"id":"a","command":["x"]}"#, "pools[0].command", "must be a string, not a list"),
        (r#"{"id":"a","command":"x\u0000"}"#, "pools[0].command", "must not hold a NUL character"),
        (r#"{"id":"a","command":".."}"#, "pools[0].command", r#"".." is a folder"#),
    ];
    for (pool, path, message) in cases {
        refuses(&format!(r#"{{"pools":[{pool}]}}"#), &[(path, message)]);
    }
    let twins = r#"{"pools":[{"id":"a","command":"x"},{"id":"b","command":"x"},{"id":"a","command":"x"}]}"#;
    refuses(twins, &[("pools[2].id", r#"pools[0] has the id "a" already"#)]);
    // `default_pool` may mean the pool without an id, so it is not reported.
    refuses(r#"{"default_pool":"a","pools":[{"command":"x"}]}"#, &[("pools[0].id", NO_ID)]);
}

#[test]
fn an_error_of_a_limit_is_reported() {
    let above = "must be a number above 0 and up to 31536000, not 0";
    let seconds = "must be a number from 0 to 31536000, not";
    let buffer = "must be a whole number from 1024 to 1073741824, not";
    let count = "must be a whole number from 1 to 1048576, not";
    let cases = [
        (r#""max_restart":1"#, "limits.max_restart", r#"unknown key, did you mean "max_restarts"?"#),
        (r#""init_timeout":1"#, "limits.init_timeout", r#"unknown key, did you mean "init_timeout_sec"?"#),
        (r#""max_input_buffer":1023"#, "limits.max_input_buffer", &format!("{buffer} 1023")),
        (r#""max_input_buffer":1073741825"#, "limits.max_input_buffer", &format!("{buffer} 1073741825")),
        (r#""max_input_buffer":"64M""#, "limits.max_input_buffer", &format!("{buffer} a string")),
        (r#""max_output_queue":0"#, "limits.max_output_queue", &format!("{buffer} 0")),
        (r#""backpressure_timeout_sec":0"#, "limits.backpressure_timeout_sec", above),
        (r#""restart_window_sec":0"#, "limits.restart_window_sec", above),
        (r#""max_restart_delay_sec":0"#, "limits.max_restart_delay_sec", above),
        (r#""init_timeout_sec":0"#, "limits.init_timeout_sec", above),
        (r#""init_timeout_sec":-1"#, "limits.init_timeout_sec", &format!("{seconds} -1")),
        (r#""silence_timeout_sec":-0.5"#, "limits.silence_timeout_sec", &format!("{seconds} -0.5")),
        (r#""drain_timeout_sec":"30s""#, "limits.drain_timeout_sec", &format!("{seconds} a string")),
        (r#""session_keep_sec":1e300"#, "limits.session_keep_sec", &format!("{seconds} 1e300")),
        (r#""max_restarts":-1"#, "limits.max_restarts", "must be a whole number from 0 to 1000000, not -1"),
        (r#""max_clients":0"#, "limits.max_clients", &format!("{count} 0")),
        (r#""max_calls":0"#, "limits.max_calls", &format!("{count} 0")),
        (r#""max_calls":1048577"#, "limits.max_calls", &format!("{count} 1048577")),
        (
            r#""max_held_bytes":2048,"max_input_buffer":4096"#,
            "limits.max_held_bytes",
            "must be at least max_input_buffer (4096), not 2048",
        ),
    ];
    for (keys, path, message) in cases {
        refuses(&with_limits(keys), &[(path, message)]);
    }
    assert_eq!(parse(&with_limits(r#""silence_timeout_sec":0"#)).unwrap().limits, Limits::default());
}

#[test]
fn all_errors_are_reported_at_once_one_per_line() {
    let text = r#"{
      "listen": ["tcp://example.org:1", "stdio:?pool=gone"],
      "pools": [
        { "id": "a", "command": "x", "instances": 0, "env": { "TOKEN": "${GONE}", "TOKEN": "" } },
        { "id": "a", "comand": "x", "instnces": 2 }
      ],
      "limits": { "max_calls": true },
      "lmits": {}
    }"#;
    let errors = super::parse(text, Path::new("/srv/bus")).unwrap_err();
    let expected = r#"
bus.json: pools[0].env.TOKEN: this key occurs more than once
bus.json: lmits: unknown key, did you mean "limits"?
bus.json: pools[0].instances: must be a whole number from 1 to 65536, not 0
bus.json: pools[0].env.TOKEN: the environment variable GONE is not set; set it where the bus is started
bus.json: pools[1].comand: unknown key, did you mean "command"?
bus.json: pools[1].instnces: unknown key, did you mean "instances"?
bus.json: pools[1].command: missing: the program that the pool runs
bus.json: pools[1].id: pools[0] has the id "a" already
bus.json: listen[0]: host "example.org" is neither an IP address nor localhost
bus.json: listen[1]: there is no pool "gone", the pools are "a", "a"
bus.json: limits.max_calls: must be a whole number from 1 to 1048576, not true"#;
    assert_eq!(errors.to_string(), expected.trim_start());
}

#[test]
fn the_debug_output_of_a_pool_shows_no_secrets() {
    let config = parse(&with_pool(r#","env":{"TOKEN":"${MY_TOKEN}"}"#)).unwrap();
    let printed = format!("{config:?}");
    assert!(printed.contains("TOKEN") && !printed.contains("s3cret"), "{printed}");
}

#[test]
fn with_a_token_the_bus_may_listen_off_loopback_and_the_token_is_not_printed() {
    let text = r#","listen":["tcp://0.0.0.0:9000"],"auth":{"token_file":"~/token"}"#;
    let config = parse(&with_top(text)).unwrap();
    let auth = config.auth.as_ref().unwrap();
    assert_eq!(auth.token_file, Path::new("/home/ann/token"));
    assert!(auth.digest.admits("the token of ann") && !auth.digest.admits("the token of ben"));
    assert!(!format!("{config:?}").contains("of ann"));
}

#[test]
fn a_client_reads_the_addresses_of_a_file_that_could_not_be_served_here() {
    let text = r#"{"listen":["unix://bus.sock"],"pools":[{"id":"a","env":{"T":"${GONE}"}}],"new_key":1,
                   "auth":{"token_file":"gone"}}"#;
    let config = parse::client_config(text, resolver()).unwrap();
    assert_eq!(config.listen, [Listen::from(Address::Unix("/srv/bus/bus.sock".into()))]);
    assert_eq!(
        config.token_file.as_deref(),
        Some(Path::new("/srv/bus/gone")),
        "whether the file exists is checked later"
    );
    let default = parse::client_config("{}", resolver()).unwrap();
    assert_eq!((default.listen[0].to_string().as_str(), default.token_file), ("tcp://127.0.0.1:9000", None));
    assert_eq!(parse::client_config("[]", resolver()).unwrap_err()[0].path, "$");
    assert_eq!(parse::client_config(r#"{"listen":[1]}"#, resolver()).unwrap_err()[0].path, "listen[0]");
    assert_eq!(parse::client_config(r#"{"auth":[1]}"#, resolver()).unwrap_err()[0].path, "auth");
}

#[test]
fn the_bus_json_of_the_repository_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let config = super::load(&root.join("bus.json")).unwrap();
    assert_eq!(config.pools[0].program, Program::ThisBinary);
}

#[test]
fn the_web_door_has_an_address_a_certificate_and_names() {
    let web = |keys: &str| parse(&with_top(&format!(r#","web":{{{keys}}}"#)));
    assert_eq!(web("").unwrap().web.unwrap().to_string(), "http://127.0.0.1:9001");
    let door = web(
        r#""listen":"https://0.0.0.0:9443","tls":{"cert":"c.pem","key":"~/k.pem"},"hosts":["Bus.example"],
            "origins":["https://bus.example:8443"],"push":"full""#,
    );
    let door = door.unwrap().web.unwrap();
    assert_eq!(door.push, PushText::Full);
    let tls = door.tls.unwrap();
    assert_eq!((tls.cert, tls.key), ("/srv/bus/c.pem".into(), "/home/ann/k.pem".into()));
    assert_eq!([door.hosts, door.origins].concat(), ["bus.example", "https://bus.example:8443"]);
    for (keys, path, message) in [
        (r#""listen":"http://0.0.0.0:1""#, "web.listen", "is not on loopback"),
        (r#""listen":"https://127.0.0.1:1""#, "web.listen", "https needs a certificate"),
        (r#""tls":{"cert":"c","key":"k"}"#, "web.listen", "must be https://"),
        (r#""listen":"https://127.0.0.1:1","tls":{"cert":"c"}"#, "web.tls.key", "missing"),
        (r#""hosts":["*"]"#, "web.hosts[0]", "is not a host"),
        (r#""origins":["https://a/b"]"#, "web.origins[0]", "is not an origin"),
        (r#""push":"all""#, "web.push", "neither plain nor full"),
        (r#""port":1"#, "web.port", "unknown key"),
    ] {
        let errors = web(keys).unwrap_err();
        assert!(
            errors.len() == 1 && errors[0].0 == path && errors[0].1.contains(message),
            "{keys}: {errors:?}"
        );
    }
}

pub(super) fn schema_json() -> Value {
    serde_json::from_str(&schema()).unwrap()
}
