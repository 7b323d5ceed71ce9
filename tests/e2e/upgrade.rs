//! The process of the bus becomes another program, and nobody notices.

mod carried;
mod killed;
mod refused;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{
    BUS, Bus, Client, Web, bus_puppet_client, children_of, initialize, is_gone, looks_again, one_pool,
    open_fds, puppets, request, run, session_of, update, zombies_of,
};

/// Has the bus become its own program, and checks that it is the same process.
fn upgrades(bus: &Bus) -> Value {
    let told = bus.client().asks(1, "_bus/upgrade", json!({}));
    assert_eq!(told["pid"], bus.pid());
    assert_eq!((&told["version"], &told["from"]), (&json!(env!("CARGO_PKG_VERSION")), &told["version"]));
    assert!(told["pause_us"].as_u64().is_some_and(|pause| pause > 0), "{told}");
    told
}

fn upgraded_count(client: &mut Client) -> u64 {
    client.status()["upgraded"]["count"].as_u64().unwrap_or_default()
}

#[test]
fn a_turn_with_an_open_question_goes_on() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.sends(&update("s1", "before"));
    puppet.asks_permission(9, "s1");
    let told = upgrades(&bus);
    assert_eq!((&told["clients"], &told["sessions"], &told["turns"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!(client.receives()["params"]["update"]["text"], "before");
    let asked = client.is_asked("session/request_permission");
    upgrades(&bus);
    client.answers(&asked, json!("yes"));
    assert_eq!(puppet.gets(9)["result"], "yes");
    puppet.sends(&update("s1", "after"));
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(client.receives()["params"]["update"]["text"], "after");
    assert_eq!(client.gets(2)["stopReason"], "end_turn");
    let status = bus.client().status();
    assert_eq!(status["upgraded"]["count"], 2);
    assert_eq!(status["pools"][0]["workers"][0]["pid"], puppet.pid);
    assert_eq!(status["pools"][0]["restarts_total"], 0);
    bus.log_has("upgraded from");
}

#[test]
fn half_lines_of_both_sides_are_whole_afterwards() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let line = request(1, "work", json!({ "text": "ä\u{1F600}".repeat(2000) })) + "\n";
    // The cuts are within a character, within a number and within a name.
    let (first, rest) = line.as_bytes().split_at(1001);
    let (second, third) = rest.split_at(5003);
    for part in [first, second] {
        client.sends_bytes(part);
        upgrades(&bus);
    }
    client.sends_bytes(third);
    let asked = puppet.is_asked("work");
    assert_eq!(asked["params"]["text"].as_str().map(|text| text.chars().count()), Some(4000));
    let answer =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":\"{}\"}}\n", asked["id"], "x".repeat(300_000));
    let (first, rest) = answer.as_bytes().split_at(12);
    let (second, third) = rest.split_at(200_000);
    for part in [first, second] {
        puppet.sends_bytes(part);
        bus.until("the bus has it", || {
            part.len() < 1000 || bus.client().status()["held_bytes"].as_u64() > Some(1000)
        });
        upgrades(&bus);
    }
    puppet.sends_bytes(third);
    assert_eq!(client.gets(1).as_str().map(str::len), Some(300_000));
}

#[test]
fn what_waits_for_a_slow_reader_arrives_whole_and_in_order() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    let text = "y".repeat(10_000);
    // More than the kernel buffers, less than the bus holds.
    for number in 0..200 {
        puppet.sends(&update("s1", &format!("{number} {text}")));
    }
    puppet.is_read();
    upgrades(&bus);
    upgrades(&bus);
    puppet.sends(&update("s1", "last"));
    for number in 0..200 {
        let said = client.receives()["params"]["update"]["text"].clone();
        assert_eq!(said, format!("{number} {text}"));
    }
    assert_eq!(client.receives()["params"]["update"]["text"], "last");
}

#[test]
fn what_waits_for_a_slow_worker_arrives_whole_and_in_order() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    puppet.stops_reading();
    let text = "z".repeat(10_000);
    for number in 0..100 {
        client.sends(&request(number + 10, "work", json!({ "text": text })));
    }
    upgrades(&bus);
    puppet.reads_again();
    for _ in 0..100 {
        let asked = puppet.is_asked("work");
        assert_eq!(asked["params"]["text"], text);
        puppet.answers(&asked, json!({}));
    }
    for number in 0..100 {
        client.gets(number + 10);
    }
}

#[test]
fn workers_that_start_or_end_meanwhile_are_known() {
    let bus = Bus::start(one_pool(3));
    let mut workers = bus.puppets::<3>();
    let child = workers[1].has_a_child();
    let gone = workers[0].pid;
    workers[0].dies_by(9);
    upgrades(&bus);
    // It is replaced, whether the exit came before or after the moment of the change.
    let replaced = bus.puppet();
    assert!(replaced.pid != gone);
    upgrades(&bus);
    assert!(zombies_of(bus.pid()).is_empty());
    workers[1].dies_by(9);
    bus.until("its child is gone too", || is_gone(child));
    bus.puppet();
    let mut client = bus.client();
    bus.until("all are up", || client.status()["pools"][0]["up"] == 3);
}

#[test]
fn guests_go_on() {
    let (bus, mut puppet, mut owner) = bus_puppet_client();
    let session = owner.opens(&mut puppet, "s1");
    let mut guest = bus.client();
    let listed = guest.asks(1, "_bus/sessions", json!({}));
    guest.asks(2, "_bus/attach", json!({ "session": listed["sessions"][0]["session"] }));
    owner.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    upgrades(&bus);
    puppet.sends(&update("s1", "to both"));
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(owner.receives()["params"]["update"]["text"], "to both");
    owner.gets(2);
    loop {
        let heard = guest.receives();
        if heard["params"]["update"]["text"] == "to both" {
            break;
        }
    }
    // Who joins after the change gets what was said before it.
    upgrades(&bus);
    let mut late = bus.client();
    late.sends(&request(1, "_bus/attach", json!({ "session": listed["sessions"][0]["session"] })));
    let heard: Vec<Value> = std::iter::from_fn(|| Some(late.receives()).filter(|it| it["id"] != 1)).collect();
    assert!(heard.iter().any(|line| line["params"]["update"]["text"] == "to both"), "{heard:?}");
    assert_eq!(owner.status()["upgraded"]["count"], 2);
}

#[test]
fn ten_times_in_a_row_nothing_piles_up() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    upgrades(&bus);
    bus.until("the one that was asked is gone", || children_of(bus.pid()).len() == 2);
    let fds = open_fds(bus.pid());
    for number in 0..10 {
        client.prompts(number + 10, &session);
        let turn = puppet.is_asked("session/prompt");
        upgrades(&bus);
        puppet.ends_turn(&turn, "end_turn");
        client.gets(number + 10);
    }
    assert_eq!(upgraded_count(&mut client), 11);
    // The worker and the guard; a client that has just left may still be there.
    bus.until("only its children are left", || children_of(bus.pid()).len() == 2);
    bus.until("as many files are open as before", || open_fds(bus.pid()) <= fds);
    assert!(zombies_of(bus.pid()).is_empty());
}

#[test]
fn an_upgraded_bus_stops_as_any_other_and_leaves_nothing() {
    let sockets =
        json!({ "pools": [puppets("a", 1)], "listen": ["tcp://127.0.0.1:0", "unix://@dir/bus.sock"] });
    let mut bus = Bus::start(sockets);
    let _puppet = bus.puppet();
    upgrades(&bus);
    let socket = bus.folder().join("bus.sock");
    assert!(socket.exists() && bus.folder().join(".bus.sock.lock").exists());
    bus.client_at(1).status();
    // The lock is still held, so that a second bus is kept out.
    let second = run(bus.folder(), &["serve", "--config", "bus.json"], "");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another bus already runs there"), "{said}");
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    bus.leaves_nothing();
    assert!(!socket.exists() && !bus.folder().join(".bus.sock.lock").exists());
}

#[test]
fn signals_have_it_reload_upgrade_and_stop() {
    let (mut bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    bus.signal(Signal::SIGUSR2);
    bus.log_has("upgraded from");
    bus.until("it is counted", || upgraded_count(&mut client) == 1);
    bus.signal(Signal::SIGHUP);
    bus.log_has("the configuration was reloaded");
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    bus.leaves_nothing();
}

#[test]
fn a_client_on_stdin_and_stdout_goes_on() {
    let mut bus = Bus::plan(one_pool(1)).stdio().start();
    let mut client = bus.stdio();
    let mut puppet = bus.puppet();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    let told = client.asks(3, "_bus/upgrade", json!({}));
    assert_eq!((&told["clients"], &told["turns"]), (&json!(0), &json!(1)));
    puppet.ends_turn(&turn, "end_turn");
    client.gets(2);
    drop(client);
    assert_eq!(bus.exit_status().code(), Some(0));
}

#[test]
fn the_token_is_still_asked_for() {
    let config = json!({ "pools": [puppets("a", 1)], "auth": { "token_file": "token" } });
    let bus = Bus::plan(config).token("a-secret-token-of-sufficient-length").start();
    let mut client = bus.client();
    let hello = json!({ "token": "a-secret-token-of-sufficient-length" });
    client.asks(1, "_bus/hello", hello.clone());
    client.asks(2, "_bus/upgrade", json!({}));
    assert_eq!(client.status()["upgraded"]["count"], 1);
    let mut stranger = bus.client();
    stranger.sends(&request(1, "_bus/status", json!({})));
    stranger.sees_error(1, -32056, "unauthorized");
    let mut other = bus.client();
    other.asks(1, "_bus/hello", hello);
}

#[test]
fn the_command_says_in_one_line_what_went_on() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    let config = bus.config_path();
    let config = config.to_str().unwrap();
    let said = |args: &[&str]| {
        let at = ["--config", config, "--tcp", bus.tcp()];
        let output = run(bus.folder(), &[args, &at].concat(), "");
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let (pid, version) = (bus.pid(), env!("CARGO_PKG_VERSION"));
    let (code, out, err) = said(&["upgrade", "--check"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        format!("the bus (pid {pid}) could become {version}: 1 client, 1 session and 0 turns would go on\n")
    );
    assert_eq!(upgraded_count(&mut client), 0);
    let (code, out, err) = said(&["upgrade", BUS]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let expected = format!(
        "the bus (pid {pid}) is {version} now: 1 client, 1 session and 0 turns went on, nobody was served for "
    );
    assert!(out.starts_with(&expected) && out.ends_with(" ms\n"), "{out}");
    let (_, out, _) = said(&["status"]);
    assert!(out.contains(&format!("\nupgraded from {version} ")), "{out}");
}

#[test]
fn a_file_that_was_replaced_is_what_the_bus_becomes() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    // A link to the program, as package managers make them.
    let binary = bus.folder().join("next");
    std::os::unix::fs::symlink(BUS, &binary).unwrap();
    let told = client.asks(5, "_bus/upgrade", json!({ "binary": binary }));
    assert_eq!(told["pid"], bus.pid());
    let named = fs::read(format!("/proc/{}/cmdline", bus.pid())).unwrap();
    assert!(named.starts_with(binary.to_str().unwrap().as_bytes()), "{}", String::from_utf8_lossy(&named));
    upgrades(&bus);
    client.is_served_by(&mut puppet);
}

#[test]
fn a_bus_whose_configuration_is_broken_by_now_goes_on_with_the_old_one() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    bus.rewrite_text("{ broken");
    upgrades(&bus);
    client.is_served_by(&mut puppet);
    bus.rewrite(&json!({ "pools": [puppets("a", 1), puppets("b", 1)] }));
    bus.signal(Signal::SIGHUP);
    bus.puppet_of("b");
}

#[test]
fn over_the_web_only_an_admin_upgrades_and_nobody_names_the_program() {
    let config = json!({ "pools": [puppets("a", 1)], "web": { "listen": "http://127.0.0.1:0" } });
    let bus = Bus::start(config);
    let (mut puppet, mut client) = (bus.puppet(), bus.client());
    let session = client.opens(&mut puppet, "s1");
    client.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    let web = Web::of(&bus);
    let mut control = web.socket(&web.token("control"));
    assert_eq!(control.asks(1, "_bus/upgrade", json!({}))["error"]["code"], -32061);
    let mut admin = web.socket(&web.token("admin"));
    assert_eq!(admin.asks(1, "_bus/upgrade", json!({ "binary": BUS }))["error"]["code"], -32061);
    let door = admin.asks(2, "_bus/status", json!({}))["result"]["web"]["pid"].clone();
    assert_eq!(admin.asks(3, "_bus/upgrade", json!({}))["result"]["pid"], bus.pid());
    // The door stays while somebody works: these are the same connections.
    let mut id = 3;
    loop {
        id += 1;
        let status = admin.asks(id, "_bus/status", json!({}))["result"].clone();
        assert_eq!((&status["web"]["pid"], &status["web"]["state"]), (&door, &json!("up")));
        let at = status["upgraded"]["at_us"].as_u64().expect("a time") / 1_000_000;
        if status["uptime_sec"].as_u64() > Some(at + 2) {
            break;
        }
        looks_again();
    }
    puppet.ends_turn(&turn, "end_turn");
    client.gets(2);
    for mut socket in [control, admin] {
        assert_eq!(socket.ends().map(|frame| u16::from(frame.code)), Some(1012));
    }
    bus.until("another door is open", || {
        let shown = client.status()["web"].clone();
        shown["state"] == "up" && shown["pid"] != door && shown["restarts"] == 0
    });
}

#[test]
fn the_writer_of_transcripts_is_replaced_and_lacks_nothing() {
    let config = json!({
        "pools": [{ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] }],
        "history": { "folder": "@dir/history" },
    });
    let bus = Bus::start(config);
    let mut client = bus.client();
    let history = |client: &mut Client| client.status()["history"].clone();
    bus.until("it is open", || history(&mut client)["state"] == "up");
    let writer = history(&mut client)["pid"].clone();
    client.sends(&initialize(1, json!({})));
    client.gets(1);
    let session = session_of(&client.asks(2, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
    client.takes_turn(3, &session, "before");
    upgrades(&bus);
    client.takes_turn(4, &session, "meanwhile");
    bus.until("another one is open", || {
        let shown = history(&mut client);
        shown["state"] == "up" && shown["pid"] != writer
    });
    client.takes_turn(5, &session, "after");
    bus.until("all of it is written", || {
        let written = text_below(&bus.folder().join("history"));
        ["before", "meanwhile", "after"].iter().all(|said| written.contains(said))
    });
    assert_eq!(history(&mut client)["counted"]["missed"].as_u64().unwrap_or_default(), 0);
}

/// All text files in a folder and the folders in it.
fn text_below(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let text = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => text_below(&entry.path()),
        _ => fs::read_to_string(entry.path()).unwrap_or_default(),
    });
    text.collect()
}
