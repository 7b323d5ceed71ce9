//! The token: clients that send it are served, others are rejected, and it appears nowhere.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Output;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Bus, one_pool, peak_kib, puppets, request, run, skips, write_token};

const TOKEN: &str = "kq3VbN8-hY2_fJ5tR7wXz0";
const OTHER: &str = "aaaaaaaaaaaaaaaaaaaaaa";

fn both_listeners() -> Value {
    json!({ "pools": [puppets("p", 1)], "listen": ["tcp://127.0.0.1:0", "unix://@dir/bus.sock"] })
}

fn hello(id: u32, token: &str) -> String {
    request(id, "_bus/hello", json!({ "token": token }))
}

fn output(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr].concat()).into_owned()
}

/// A folder with a token file and a bus.json that names it and has these further keys.
fn folder_with(keys: &str) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    write_token(&folder.path().join("token"), TOKEN);
    let echo = r#""pools":[{"id":"p","command":"stdio-bus","args":["agent","echo"]}]"#;
    fs::write(folder.path().join("bus.json"), format!("{{{echo}{keys}}}")).expect("a file");
    folder
}

#[test]
fn every_listener_accepts_only_clients_with_the_token() {
    let bus = Bus::plan(both_listeners()).token(TOKEN).start();
    let mut puppet = bus.puppet();
    for listener in [0, 1] {
        let evil = request(8, "evil", json!({}));
        let openings = [
            (request(7, "initialize", json!({ "protocolVersion": 1 })), json!(7)),
            (hello(7, OTHER), json!(7)),
            (request(7, "_bus/hello", json!({})), json!(7)),
            (request(7, "_bus/status", json!({})), json!(7)),
            (r#"{"jsonrpc":"2.0","method":"evil"}"#.to_owned(), Value::Null),
        ];
        for (opening, id) in openings {
            let mut client = bus.client_at(listener);
            client.sends(&format!("{opening}\n{}\n{evil}", hello(9, TOKEN)));
            client.sees_error(id, -32056, "unauthorized");
            client.is_closed();
        }
        let mut client = bus.client_at(listener);
        client.sends(&hello(1, TOKEN));
        assert_eq!(client.gets(1)["bus"], "stdio-bus");
        client.is_served_by(&mut puppet);
    }
}

#[test]
fn a_client_on_stdio_needs_no_token() {
    let mut bus = Bus::plan(one_pool(1)).token(TOKEN).stdio().start();
    let mut puppet = bus.puppet();
    bus.stdio().is_served_by(&mut puppet);
}

#[test]
fn a_connection_without_a_token_gets_one_error_after_five_seconds_and_is_closed() {
    let bus = Bus::plan(one_pool(1)).token(TOKEN).start();
    let mut silent = bus.client();
    let mut slow = bus.client();
    slow.sends_bytes(&hello(1, TOKEN).as_bytes()[..20]);
    for client in [&mut silent, &mut slow] {
        client.sees_error(Value::Null, -32056, "unauthorized");
        client.is_closed();
    }
}

#[test]
fn a_reload_reads_a_new_token_and_connected_clients_stay() {
    let bus = Bus::plan(one_pool(1)).token(TOKEN).start();
    let mut puppet = bus.puppet();
    let mut old = bus.client();
    old.sends(&hello(1, TOKEN));
    old.gets(1);
    let file = bus.folder().join("token");
    write_token(&file, OTHER);
    bus.signal(Signal::SIGHUP);
    bus.log_has("the configuration was reloaded");
    old.is_served_by(&mut puppet);
    let mut late = bus.client();
    late.sends(&hello(1, TOKEN));
    late.sees_error(1, -32056, "unauthorized");
    let mut new = bus.client();
    new.sends(&hello(1, OTHER));
    new.gets(1);
    new.is_served_by(&mut puppet);
    // A file that others can read is refused, and the last good token stays in force.
    write_token(&file, TOKEN);
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
    bus.signal(Signal::SIGHUP);
    bus.log_has("reload refused");
    bus.log_has("(mode 0644): chmod 600");
    let mut new = bus.client();
    new.sends(&hello(1, OTHER));
    new.gets(1);
    new.is_served_by(&mut puppet);
}

#[test]
fn a_token_file_or_bus_json_that_others_could_read_or_change_is_refused() {
    let keys = r#","auth":{"token_file":"token"},"listen":["unix://bus.sock"]"#;
    let refused = |spoil: &dyn Fn(&Path), why: &str| {
        let folder = folder_with(keys);
        spoil(folder.path());
        for (command, code) in
            [("serve", 78), ("check", 1), ("status", if why.contains("bus.json") { 78 } else { 69 })]
        {
            let out = run(folder.path(), &[command], "");
            assert_eq!(out.status.code(), Some(code), "{command}: {}", output(&out));
            assert!(code == 69 || output(&out).contains(why), "{command}: {}", output(&out));
        }
    };
    let mode = |name: &'static str, mode: u32| {
        move |folder: &Path| {
            fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).expect("ours");
        }
    };
    refused(&mode("token", 0o640), "token (mode 0640): chmod 600");
    refused(&mode("bus.json", 0o666), "bus.json: everybody may write to it");
    refused(
        &|folder| fs::remove_file(folder.join("token")).expect("ours"),
        "token, create it with `stdio-bus token`",
    );
    refused(&|folder| write_token(&folder.join("token"), "short"), "does not hold a token");
    if !geteuid().is_root() {
        return skips("root, who alone can give a file away");
    }
    let give =
        |name: &'static str| move |folder: &Path| chown(folder.join(name), Some(65_534), None).expect("root");
    refused(&give("token"), "it belongs to uid 65534");
    refused(&give("bus.json"), "bus.json: it belongs to uid 65534");
}

#[test]
fn listeners_off_loopback_need_a_token() {
    let folder = folder_with("");
    for flag in ["0.0.0.0:0", "[::]:0"] {
        let out = run(folder.path(), &["serve", "--tcp", flag], "");
        assert_eq!(out.status.code(), Some(78), "{}", output(&out));
        assert!(output(&out).contains("create one with `stdio-bus token`"), "{}", output(&out));
    }
    let open = json!({ "pools": [puppets("p", 1)], "listen": ["tcp://0.0.0.0:0"] });
    let folder = folder_with(r#","listen":["tcp://0.0.0.0:9000"]"#);
    let out = run(folder.path(), &["serve"], "");
    assert_eq!(out.status.code(), Some(78));
    assert!(output(&out).contains("listen[0]: tcp://0.0.0.0:9000 is not on loopback"), "{}", output(&out));
    let bus = Bus::plan(open.clone()).token(TOKEN).start();
    bus.log_has("others may read the token");
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&hello(1, TOKEN));
    client.gets(1);
    client.is_served_by(&mut puppet);
    // A reload without a token is refused too.
    bus.rewrite(&open);
    bus.signal(Signal::SIGHUP);
    bus.log_has("reload refused");
    let mut late_client = bus.client();
    late_client.sends(&request(1, "evil", json!({})));
    late_client.sees_error(1, -32056, "unauthorized");
}

#[test]
fn commands_find_the_token_and_report_what_is_wrong_with_it() {
    let bus = Bus::plan(json!({ "pools": [{ "id": "e", "command": "stdio-bus", "args": ["agent", "echo"] }],
        "listen": ["unix://@dir/bus.sock"] }))
    .token(TOKEN)
    .start();
    let elsewhere = TempDir::new().expect("a temporary folder");
    let socket = bus.folder().join("bus.sock");
    let socket = socket.to_str().expect("UTF-8");
    let file = bus.folder().join("token");
    let file = file.to_str().expect("UTF-8");
    let hi = format!("{}\n", request(1, "hi", json!({})));
    for command in [&["status"][..], &["call", "hi"], &["connect"]] {
        let found = run(bus.folder(), command, &hi);
        assert_eq!(found.status.code(), Some(0), "{command:?}: {}", output(&found));
        let named = [command, &["--unix", socket, "--token-file", file]].concat();
        let out = run(elsewhere.path(), &named, &hi);
        assert_eq!(out.status.code(), Some(0), "{command:?}: {}", output(&out));
        assert!(!output(&out).contains(TOKEN));
        let without = run(elsewhere.path(), &[command, &["--unix", socket]].concat(), &hi);
        assert_eq!(without.status.code(), Some(77), "{command:?}: {}", output(&without));
        assert!(
            output(&without).contains("asks for a token: name its file with --token-file"),
            "{}",
            output(&without)
        );
        write_token(&elsewhere.path().join("wrong"), OTHER);
        let wrong =
            run(elsewhere.path(), &[command, &["--unix", socket, "--token-file", "wrong"]].concat(), &hi);
        assert_eq!(wrong.status.code(), Some(77), "{command:?}: {}", output(&wrong));
        assert!(output(&wrong).contains("refuses the token of wrong"), "{}", output(&wrong));
    }
    let ide = run(elsewhere.path(), &["ide", "zed", "--unix", socket, "--token-file", file], "");
    assert!(output(&ide).contains(&format!(r#""--token-file", "{file}""#)), "{}", output(&ide));
    // The error is not the one that would make an IDE start the login of the agent.
    let out = run(elsewhere.path(), &["connect", "--unix", socket], &hi);
    let answer: Value = serde_json::from_slice(&out.stdout).expect("one answer");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32056)));
}

#[test]
fn token_writes_a_token_file_and_does_not_print_it() {
    let folder = TempDir::new().expect("a temporary folder");
    let out = run(folder.path(), &["token", "deep/down/token"], "");
    assert_eq!(out.status.code(), Some(0), "{}", output(&out));
    let path = folder.path().join("deep/down/token");
    let token = fs::read_to_string(&path).expect("it was made");
    assert!(!output(&out).contains(token.trim()));
    let printed = output(&out);
    assert!(
        printed.contains(r#""auth": { "token_file": ""#) && printed.contains(r#"deep/down/token" }"#),
        "{printed}"
    );
    let again = run(folder.path(), &["token", "deep/down/token"], "");
    assert_eq!(again.status.code(), Some(73), "{}", output(&again));
    assert_eq!(fs::read_to_string(&path).expect("still there"), token);
    let shown = run(folder.path(), &["token", "deep/down/token", "--force", "--show"], "");
    assert_eq!(String::from_utf8_lossy(&shown.stdout), fs::read_to_string(&path).expect("a new one"));
    assert_ne!(fs::read_to_string(&path).expect("a new one"), token);
}

#[test]
fn the_token_appears_in_no_log_status_or_process() {
    let bus = Bus::plan(both_listeners()).env("RUST_LOG", "trace").token(TOKEN).start();
    let puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&hello(1, TOKEN));
    client.gets(1);
    let mut bad = bus.client();
    bad.sends(&hello(1, &format!("{TOKEN}x")));
    bad.sees_error(1, -32056, "unauthorized");
    let status = client.status().to_string();
    bus.log_has("turned away without the token");
    assert!(
        !puppet.about.to_string().contains(TOKEN),
        "neither in the arguments nor in the environment of a worker"
    );
    assert!(!status.contains(TOKEN) && !bus.log.text().contains(TOKEN));
    for process in bus.survivors().into_iter().chain([bus.pid()]) {
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&text).contains(TOKEN), "{process} {file}");
        }
    }
}

#[test]
fn guessed_tokens_are_refused_and_cost_no_memory() {
    let bus = Bus::plan(one_pool(1)).token(TOKEN).start();
    let mut puppet = bus.puppet();
    let guess = |n: usize| {
        let mut client = bus.client();
        // Each guess has the right length and differs only in the last characters.
        client.sends(&hello(1, &format!("{}{n:04}", &TOKEN[..TOKEN.len() - 4])));
        client.sees_error(1, -32056, "unauthorized");
        client.is_closed();
    };
    (0..200).for_each(guess);
    let before = peak_kib(bus.pid());
    (200..2000).for_each(guess);
    assert!(peak_kib(bus.pid()) < before + 4096, "{before} KiB became {} KiB", peak_kib(bus.pid()));
    let mut client = bus.client();
    client.sends(&hello(1, TOKEN));
    client.gets(1);
    client.is_served_by(&mut puppet);
    assert_eq!(client.status()["counters"]["unauthorized"], 2000);
}

#[test]
fn a_thousand_silent_connections_keep_no_client_out() {
    let mut config = both_listeners();
    config["limits"] = json!({ "max_clients": 5 });
    let bus = Bus::plan(config).token(TOKEN).start();
    let mut puppet = bus.puppet();
    let mut good = bus.client();
    good.sends(&hello(1, TOKEN));
    good.gets(1);
    let mut silent = Vec::new();
    for n in 0..1000 {
        silent.push(bus.client());
        if n % 100 == 99 {
            good.is_served_by(&mut puppet);
            let mut next = bus.client();
            next.sends(&hello(1, TOKEN));
            next.gets(1);
            next.is_served_by(&mut puppet);
        }
    }
    // The oldest connections were closed with an error to make room.
    silent[0].sees_error(Value::Null, -32054, "busy");
    silent[0].is_closed();
    assert!(good.status()["clients"].as_u64() <= Some(5));
}
