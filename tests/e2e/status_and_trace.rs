//! `status` and `trace`: the commands, and the requests that they send.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{
    Bus, Client, Connection, Log, Program, Puppet, limited, one_pool, puppets, request, run, update,
    write_token,
};

const TOKEN: &str = "kq3VbN8-hY2_fJ5tR7wXz0";

/// A running `stdio-bus trace`, and what it prints.
struct Trace {
    process: Process,
    out: Client,
}

struct Process(Child);

impl Trace {
    /// Returns once it follows the traffic.
    fn of(bus: &Bus, watcher: &mut Client, args: &[&str]) -> Trace {
        let before = watcher.status()["tracers"].as_u64();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdio-bus"));
        command.args(["trace", "--tcp", bus.tcp()]).args(args).current_dir(bus.folder());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let log = Log::of(child.stderr.take().expect("piped"));
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let out = Client::new(Connection::pipes("trace", stdout, stdin, &log));
        bus.until("it follows", || watcher.status()["tracers"].as_u64() > before);
        Trace { process: Process(child), out }
    }

    fn ends_at_ctrl_c(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.process.0.id() as i32), Signal::SIGINT).expect("it runs");
        self.process.ends()
    }
}

impl Process {
    fn ends(&mut self) -> Option<i32> {
        self.0.wait().expect("it is our child").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn works(client: &mut Client, puppet: &mut Puppet, id: u32) {
    client.sends(&request(id, "work", json!({ "secret": "pst" })));
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!("done"));
    assert_eq!(client.gets(id), "done");
}

#[test]
fn a_request_and_its_answer_are_shown_with_the_time_it_took() {
    let bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let mut trace = Trace::of(&bus, &mut client, &[]);
    works(&mut client, &mut puppet, 7);
    let (asked, answered) = (trace.out.receives(), trace.out.receives());
    let shown = ["direction", "kind", "method", "id", "pool", "worker"].map(|key| asked[key].clone());
    assert_eq!(
        Value::from(shown.to_vec()),
        json!(["client->worker", "request", "work", 7, puppet.pool(), 0])
    );
    let shown = ["direction", "kind", "id", "call", "client"].map(|key| answered[key].clone());
    assert_eq!(
        Value::from(shown.to_vec()),
        json!(["worker->client", "result", 7, asked["call"], asked["client"]])
    );
    assert!(answered["latency_us"].as_u64() > Some(0), "{answered}");
    for event in [&asked, &answered] {
        assert!(
            event["time"].as_str().is_some_and(|time| time.len() == "2026-01-31T23:59:59.123Z".len()),
            "{event}"
        );
        assert!(event["bytes"].as_u64() > Some(10) && !event.to_string().contains("pst"), "{event}");
    }
    assert_eq!(trace.ends_at_ctrl_c(), Some(0));
    bus.until("it has disconnected", || client.status()["tracers"] == 0);
}

#[test]
fn a_trace_shows_only_what_its_filters_select() {
    let bus = Bus::start(json!({ "pools": [puppets("a", 1), puppets("b", 1)], "default_pool": "a" }));
    let (mut a, mut b) = (bus.puppet_of("a"), bus.puppet_of("b"));
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.asks(1, "_bus/hello", json!({ "client": "ann" }));
    ben.asks(1, "_bus/hello", json!({ "client": "ben", "pool": "b" }));
    let mut of_b = Trace::of(&bus, &mut ann, &["--pool", "b"]);
    let mut of_ann = Trace::of(&bus, &mut ann, &["--client", "ann"]);
    works(&mut ann, &mut a, 2);
    works(&mut ben, &mut b, 3);
    works(&mut ann, &mut a, 4);
    works(&mut ben, &mut b, 5);
    let ids = |trace: &mut Trace| [(); 4].map(|()| trace.out.receives()["id"].clone());
    assert_eq!(ids(&mut of_b), [3, 3, 5, 5]);
    assert_eq!(ids(&mut of_ann), [2, 2, 4, 4]);
    let session = ann.opens(&mut a, "s1");
    let mut of_session = Trace::of(&bus, &mut ann, &["--session", &session]);
    works(&mut ann, &mut a, 6);
    a.sends(&update("s1", "x"));
    ann.is_asked("session/update");
    assert_eq!(of_session.out.receives()["method"], "session/update");
    let out = run(bus.folder(), &["trace", "--tcp", bus.tcp(), "--pool", "c"], "");
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("there is no pool \"c\""));
}

#[test]
fn payloads_are_traced_only_if_bus_json_allows_it() {
    let bus = Bus::start(one_pool(1));
    let out = run(bus.folder(), &["trace", "--tcp", bus.tcp(), "--payloads"], "");
    assert_eq!(out.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(printed.contains("payloads are shown only where bus.json says"), "{printed}");

    let mut config = one_pool(1);
    config["trace"] = json!({ "payloads": true });
    let bus = Bus::start(config);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let mut trace = Trace::of(&bus, &mut client, &["--payloads"]);
    let mut blind = Trace::of(&bus, &mut client, &[]);
    works(&mut client, &mut puppet, 1);
    assert_eq!(trace.out.receives()["payload"]["params"], json!({ "secret": "pst" }));
    assert_eq!(trace.out.receives()["payload"]["result"], "done");
    assert_eq!(blind.out.receives().get("payload"), None);
}

#[test]
fn a_trace_file_has_the_format_of_the_viewer() {
    let mut config = one_pool(1);
    config["trace"] = json!({ "payloads": true });
    let bus = Bus::start(config);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let trace = Trace::of(&bus, &mut client, &["--payloads", "--out", "turn.jsons"]);
    let path = bus.folder().join("turn.jsons");
    works(&mut client, &mut puppet, 1);
    puppet.sends(r#"{"jsonrpc":"2.0","method":"note"}"#);
    client.is_asked("note");
    // The file can be read while it grows.
    let lines = || fs::read_to_string(&path).unwrap_or_default().lines().count();
    bus.until("it is written", || lines() == 3);
    assert_eq!(trace.ends_at_ctrl_c(), Some(0));
    let events = fs::read_to_string(&path).expect("a file");
    let events: Vec<Value> = events.lines().map(|line| line.parse().expect("JSON")).collect();
    let pool = format!("{}/0", puppet.pool());
    let (asker, id) = (&events[0]["from"], &events[0]["id"]);
    let request = json!({
        "type": "request", "ts": 0.0, "protocol": "acp", "from": asker, "to": pool, "id": id, "method": "work",
        "params": { "secret": "pst" },
    });
    let response = json!({
        "type": "response", "ts": events[1]["ts"], "from": pool, "to": asker, "id": id, "is_error": false,
        "payload": "done",
    });
    assert_eq!((&events[0], &events[1], &events[2]["type"]), (&request, &response, &json!("notification")));
}

#[test]
fn a_tracer_that_does_not_read_loses_events_and_delays_no_client() {
    let bus = Bus::start(limited(1, json!({ "max_output_queue": 65536, "backpressure_timeout_sec": 0.5 })));
    let (mut ann, mut tracer, mut puppet) = (bus.client(), bus.client(), bus.puppet());
    tracer.asks(1, "_bus/trace", json!({}));
    ann.opens(&mut puppet, "s1");
    for round in 0..100 {
        for _ in 0..50 {
            puppet.sends(&update("s1", "x"));
        }
        (0..50).for_each(|_| drop(ann.is_asked("session/update")));
        works(&mut ann, &mut puppet, round);
    }
    let mut dropped = 0;
    bus.until("the count of dropped events comes", || {
        while tracer.connection.has_more() {
            let event = tracer.receives();
            match event["method"].as_str() {
                Some("_bus/dropped") => dropped += event["params"]["count"].as_u64().expect("a count"),
                other => assert_eq!(other, Some("_bus/event")),
            }
        }
        works(&mut ann, &mut puppet, 999);
        dropped > 0
    });
    assert!(dropped > 100, "{dropped}");
    assert_eq!(ann.status()["clients"], 2, "the tracer is still connected");
}

#[test]
fn a_trace_ends_with_the_bus_with_its_reader_or_without_the_token() {
    let mut bus = Bus::plan(one_pool(1)).token(TOKEN).start();
    write_token(&bus.folder().join("wrong"), "aaaaaaaaaaaaaaaaaaaaaa");
    write_token(&bus.folder().join("right"), TOKEN);
    let out = run(bus.folder(), &["trace", "--tcp", bus.tcp(), "--token-file", "wrong"], "");
    assert_eq!((out.status.code(), out.stdout.len()), (Some(77), 0));
    let mut client = bus.client();
    client.asks(1, "_bus/hello", json!({ "token": TOKEN }));
    let Trace { mut process, out } = Trace::of(&bus, &mut client, &["--token-file", "right"]);
    drop(out);
    assert_eq!(process.ends(), Some(0), "its stdout is closed, though nothing was written");
    let mut trace = Trace::of(&bus, &mut client, &["--token-file", "right"]);
    drop(client);
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    assert_eq!(trace.process.ends(), Some(69));
}

#[test]
fn a_terminal_does_not_obey_what_peers_say_and_a_pipe_gets_every_byte() {
    const STEERING: &str = "a\u{9b}2J\u{7f}\u{202e}b";
    const SHOWN: &str = r"a\u009b2J\u007f\u202eb";
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut trace = Program::plan(&["--tcp", bus.tcp()]).command_is("trace").at_terminal();
    let mut client = bus.client();
    bus.until("it is followed", || client.status()["tracers"] == 1);
    for refuses in [false, true] {
        let mut call = Program::plan(&["--tcp", bus.tcp(), STEERING]).command_is("call").at_terminal();
        let asked = puppet.is_asked(STEERING);
        if refuses {
            puppet.refuses(&asked, &json!({ "code": 1, "message": STEERING }));
        } else {
            puppet.answers(&asked, json!(STEERING));
        }
        call.shows(SHOWN);
        assert_eq!(call.ends(), i32::from(refuses));
    }
    trace.shows_so("the method", |screen| screen.replace('\n', "").contains(SHOWN));
    trace.signal(Signal::SIGINT);
    assert_eq!(trace.ends(), 0);
    let (folder, at) = (bus.folder(), bus.tcp());
    thread::scope(|scope| {
        let called = scope.spawn(|| run(folder, &["call", "--tcp", at, "m"], ""));
        let asked = puppet.is_asked("m");
        puppet.answers(&asked, json!(STEERING));
        let printed = called.join().expect("it runs").stdout;
        assert_eq!(String::from_utf8_lossy(&printed), format!("\"{STEERING}\"\n"));
    });
}

#[test]
fn status_reports_addresses_rates_latencies_and_workers() {
    let bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let session = client.opens(&mut puppet, "own");
    works(&mut client, &mut puppet, 1);
    client.sends(&request(2, "session/prompt", json!({ "sessionId": "none" })));
    client.sees_error(2, -32051, "unknown_session");
    let out = run(bus.folder(), &["status", "--json", "--tcp", bus.tcp()], "");
    let status: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(status["listening"], json!([format!("tcp://{}", bus.tcp())]));
    assert_eq!(
        (&status["latency_us"]["count"], &status["refused"]),
        (&json!(2), &json!({ "unknown_session": 1 }))
    );
    assert!(status["rates"]["requests"].as_f64() > Some(0.0), "{status}");
    let pool = &status["pools"][0];
    assert_eq!(
        (&pool["up"], &pool["sessions"], &pool["latency_us"]["count"]),
        (&json!(1), &json!(1), &json!(2))
    );
    let listed = client.asks(3, "_bus/sessions", json!({}));
    assert_eq!(
        (&listed["sessions"][0]["state"], &listed["sessions"][0]["calls"]),
        (&json!("live"), &json!(0))
    );
    assert!(!listed.to_string().contains(&session) && !status.to_string().contains(&session));
    puppet.exits(3);
    let _next = bus.puppet();
    bus.until("its exit is in the status", || {
        client.status()["pools"][0]["workers"][0]["last_exit"] == "exit 3"
    });
}
