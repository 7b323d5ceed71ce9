//! The daily commands: `sessions close`, `logs`, `reload`, `restart`, `drain` and `stop`, and what `status` tells of
//! processes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{BUS, Bus, Program, bus_puppet_client, one_pool, puppets, run};

fn command(bus: &Bus, args: &[&str]) -> Output {
    run(bus.folder(), &[args, &["--tcp", bus.tcp()]].concat(), "")
}

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn sessions_have_their_folder_title_and_client_and_can_be_closed() {
    let bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let info = json!({ "protocolVersion": 1, "clientInfo": { "name": "zed" } });
    client.sends(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info }).to_string());
    let asked = puppet.is_asked("initialize");
    puppet.answers(&asked, json!({ "protocolVersion": 1 }));
    client.gets(1);
    let session = client.opens(&mut puppet, "s1");
    let update = json!({ "sessionUpdate": "session_info_update", "title": "Fix the build" });
    let params = json!({ "sessionId": "s1", "update": update });
    puppet.sends(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }).to_string());
    client.receives();
    let shown = stdout(&command(&bus, &["sessions"]));
    assert!(shown.contains("zed") && shown.contains("Fix the build"), "{shown}");
    let listed: Value = serde_json::from_str(&stdout(&command(&bus, &["sessions", "--json"]))).unwrap();
    assert_eq!((&listed[0]["title"], &listed[0]["client"]), (&json!("Fix the build"), &json!("zed")));
    assert!(listed[0]["folder"].is_string(), "{listed}");
    let out = command(&bus, &["sessions", "close", "s9"]);
    assert!(!out.status.success() && stderr(&out).contains("there are s1 of zed"), "{}", stderr(&out));
    let out = command(&bus, &["sessions", "close", "s1"]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(stdout(&out), "s1 is closed\n");
    client.prompts(3, &session);
    client.sees_error(3, -32051, "unknown_session");
}

#[test]
fn a_status_tells_the_process_of_the_bus_and_what_workers_use() {
    let (bus, _puppet, mut client) = bus_puppet_client();
    let status = client.status();
    assert_eq!((&status["pid"], status["config"].is_string()), (&json!(bus.pid()), true));
    let worker = &status["pools"][0]["workers"][0];
    if cfg!(target_os = "linux") {
        assert!(worker["rss_bytes"].as_u64() > Some(100_000), "{worker}");
        assert!(worker["cpu_percent"].as_f64() >= Some(0.0), "{worker}");
    }
    let shown = stdout(&command(&bus, &["status"]));
    assert!(shown.contains(&format!("pid {}", bus.pid())) && shown.contains("MEMORY"), "{shown}");
    let at = bus.tcp();
    let mut watch = Program::plan(&["--watch=0.1", "--tcp", at]).command_is("status").at_terminal();
    for _ in 0..2 {
        watch.shows(", 1 client, ");
        watch.clears();
    }
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plan = Program::plan(&["--watch=0.1", "--tcp", at]).command_is("status").env(name, value);
        // In CI, where terminals count as able.
        let mut watch = plan.env("CI", "true").at_terminal();
        watch.shows_so("an empty line between two tables", |screen| screen.contains("\n\nstdio-bus "));
    }
}

#[test]
fn logs_print_the_stderr_of_workers_also_of_those_that_have_ended() {
    let (bus, mut puppet, _client) = bus_puppet_client();
    puppet.writes_stderr("Error: KEY is not set\n    at x.js:1\n\u{1b}[31mred");
    puppet.exits(1);
    let mut next = bus.puppet();
    bus.until("it is told", || stdout(&command(&bus, &["logs", "p/0"])).contains("red"));
    let told = stdout(&command(&bus, &["logs"]));
    assert!(told.contains("p/0: Error: KEY is not set\n") && told.contains("p/0:     at x.js:1\n"), "{told}");
    assert_eq!(stdout(&command(&bus, &["logs", "p", "-n", "1"])).lines().count(), 1);
    let none = command(&bus, &["logs", "p", "-n", "0"]);
    assert!(none.status.success() && none.stdout.is_empty() && none.stderr.is_empty(), "{none:?}");
    for (args, why) in [(["logs", "q"], "no pool"), (["logs", "p/7"], "no worker 7")] {
        let out = command(&bus, &args);
        assert!(!out.status.success() && stderr(&out).contains(why), "{}", stderr(&out));
    }
    let mut follow = Program::plan(&["-f", "-n", "1", "--tcp", bus.tcp()]).command_is("logs").at_terminal();
    follow.shows("red");
    next.writes_stderr("later\n");
    follow.shows("p/0: later");
}

#[test]
fn what_prints_again_and_again_ends_with_its_reader() {
    let (bus, mut puppet, _client) = bus_puppet_client();
    puppet.writes_stderr("a line\n");
    bus.until("it is told", || stdout(&command(&bus, &["logs"])).contains("a line"));
    // Nothing more is printed within the first minute, or ever.
    for args in [&["status", "--watch=0.1"][..], &["status", "--watch=600", "--json"], &["logs", "-f"]] {
        let mut command = Command::new(BUS);
        command.args(args).args(["--tcp", bus.tcp()]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let mut ended = None;
        bus.until("it ends", || {
            ended = child.try_wait().expect("it is our child");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(0), "{args:?}");
    }
}

#[test]
fn a_reload_says_what_has_changed_or_what_is_wrong() {
    let (bus, _puppet, mut client) = bus_puppet_client();
    assert_eq!(stdout(&command(&bus, &["reload"])), "nothing has changed\n");
    bus.rewrite(&json!({ "pools": [puppets("p", 1), puppets("q", 1)], "default_pool": "p" }));
    let told = stdout(&command(&bus, &["reload"]));
    assert_eq!(told, "pool q: new\ndefault_pool\n");
    bus.puppet_of("q");
    bus.rewrite_text(r#"{"pools":[{"id":"p","comand":"x"}]}"#);
    let out = command(&bus, &["reload"]);
    assert_eq!(out.status.code(), Some(78));
    assert!(
        stderr(&out).contains("comand") && stderr(&out).contains("old configuration"),
        "{}",
        stderr(&out)
    );
    assert_eq!(client.status()["pools"].as_array().map(Vec::len), Some(2));
}

#[test]
fn stop_waits_until_the_bus_is_gone() {
    let (mut bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(5, &session);
    let turn = puppet.is_asked("session/prompt");
    let mut stop = Program::plan(&["--tcp", bus.tcp()]).command_is("stop").at_terminal();
    stop.shows("waiting for 1 call in flight");
    puppet.answers(&turn, json!({}));
    client.gets(5);
    stop.shows(&format!("the bus (pid {}) has stopped", bus.pid()));
    assert_eq!(stop.ends(), 0);
    assert!(bus.exit_status().success());
    let out = command(&bus, &["stop"]);
    assert_eq!(out.status.code(), Some(69), "{}", stderr(&out));
}

#[test]
fn an_interrupt_of_a_stop_that_waits_stops_the_bus_at_once() {
    let (mut bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(5, &session);
    puppet.is_asked("session/prompt");
    let mut stop = Program::plan(&["--tcp", bus.tcp()]).command_is("stop").at_terminal();
    stop.shows("Ctrl-C stops the bus at");
    stop.types("\x03");
    client.sees_error(5, -32055, "stopping");
    stop.shows("has stopped");
    assert_eq!(stop.ends(), 0);
    assert!(bus.exit_status().success());
}

#[test]
fn stop_now_does_not_wait_for_calls() {
    let (mut bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(5, &session);
    puppet.is_asked("session/prompt");
    let out = command(&bus, &["stop", "--now"]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(bus.exit_status().success());
    client.sees_error(5, -32055, "stopping");
}

#[test]
fn restart_and_drain_replace_a_process_and_its_session_goes_on() {
    let offers = json!({ "loadSession": true, "sessionCapabilities": { "close": {} } });
    let bus = Bus::start(one_pool(1));
    let (mut client, mut old) = (bus.client(), bus.puppet());
    client.initializes(&mut old, json!({}), offers.clone());
    let session = client.opens(&mut old, "s1");
    for (id, name, more) in [(1, "restart", &[][..]), (2, "drain", &["--wait"])] {
        let args = [&["p", "--tcp", bus.tcp()], more].concat();
        let mut waiting = Program::plan(&args).command_is(name).at_terminal();
        let asked = old.is_asked("session/close");
        let mut fresh = bus.puppet();
        let initialize = fresh.is_asked("initialize");
        fresh.answers(&initialize, json!({ "protocolVersion": 1, "agentCapabilities": offers }));
        let listed: Value = serde_json::from_str(&stdout(&command(&bus, &["sessions", "--json"]))).unwrap();
        assert_eq!((&listed[0]["pool"], &listed[0]["worker"]), (&json!("p"), &Value::Null), "{listed}");
        old.answers(&asked, json!({}));
        old.stdin_ends();
        waiting.shows(&format!("(pid {}) has ended", old.pid));
        assert_eq!(waiting.ends(), 0);
        client.prompts(id, &session);
        let load = fresh.is_asked("session/load");
        fresh.answers(&load, json!({}));
        let turn = fresh.is_asked("session/prompt");
        fresh.answers(&turn, json!({ "stopReason": "end_turn" }));
        client.gets(id);
        old = fresh;
    }
    let out = command(&bus, &["restart", "nope"]);
    assert!(!out.status.success() && stderr(&out).contains("no pool \"nope\""), "{}", stderr(&out));
}

#[test]
fn who_waits_for_a_process_is_told_for_which_session_and_now_does_not_wait() {
    for (name, more, limit) in
        [("restart", &[][..], "for at most "), ("drain", &["--wait"], "until they end")]
    {
        let mut config = one_pool(1);
        config["limits"] = json!({ "drain_timeout_sec": 600 });
        let bus = Bus::start(config);
        let (mut client, mut old) = (bus.client(), bus.puppet());
        client.initializes(&mut old, json!({}), json!({}));
        let session = client.opens(&mut old, "s1");
        client.prompts(5, &session);
        old.is_asked("session/prompt");
        let args = [&["p", "--tcp", bus.tcp()], more].concat();
        let mut waiting = Program::plan(&args).command_is(name).at_terminal();
        waiting.shows("p/0 waits for 1 session, ");
        waiting.shows(limit);
        waiting.shows("a turn is running");
        waiting.shows(&format!("`stdio-bus {name} p --now` does not wait"));
        let mut fresh = bus.puppet();
        let asked = fresh.is_asked("initialize");
        fresh.answers(&asked, json!({ "protocolVersion": 1 }));
        // The worker that leaves already is meant as well as the one that is there for it now.
        let mut hurried = Program::plan(&["p/0", "--now", "--tcp", bus.tcp()]).command_is(name).at_terminal();
        old.stdin_ends();
        client.sees_error(5, -32050, "worker_lost");
        assert_eq!(hurried.ends(), 0);
        waiting.shows(&format!("(pid {}) has ended", old.pid));
        assert_eq!(waiting.ends(), 0);
    }
}

#[test]
fn a_restart_tells_that_it_waits_for_an_idle_session_which_cannot_move() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.initializes(&mut puppet, json!({}), json!({}));
    client.opens(&mut puppet, "s1");
    let mut waiting = Program::plan(&["p", "--tcp", bus.tcp()]).command_is("restart").at_terminal();
    waiting.shows("idle, and no other process can continue it");
    let out = command(&bus, &["sessions", "close", "s1"]);
    assert!(out.status.success(), "{}", stderr(&out));
    // That is how an agent that cannot close sessions hears of the end of one.
    puppet.is_asked("session/cancel");
    puppet.stdin_ends();
    waiting.shows("has ended");
    assert_eq!(waiting.ends(), 0);
}
