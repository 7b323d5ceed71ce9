//! What goes on in the next program although nobody sees it: traces, logins, the history of restarts, and what a
//! service manager has given.

use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::upgrades;
use crate::harness::{
    Bus, Client, Connection, Log, PATIENCE, bus_puppet_client, limited, one_pool, request, run,
};
use crate::listeners::{ended, folder_with_config, started_with_socket};

const TOKEN: &str = "kq3VbN8-hY2_fJ5tR7wXz0";

#[test]
fn a_trace_goes_on_and_lacks_nothing() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let mut tracer = bus.client();
    tracer.asks(1, "_bus/trace", json!({}));
    let mut next = |kind: &str| {
        let event = tracer.is_asked("_bus/event")["params"].clone();
        assert_eq!((&event["kind"], &event["id"]), (&json!(kind), &json!(7)), "{event}");
        event
    };
    client.sends(&request(7, "work", json!({})));
    let asked = puppet.is_asked("work");
    let request = next("request");
    upgrades(&bus);
    puppet.answers(&asked, json!({}));
    client.gets(7);
    let answer = next("result");
    for key in ["call", "client", "pool", "worker"] {
        assert_eq!(answer[key], request[key], "{key}");
    }
    assert!(answer["at_us"].as_u64() > request["at_us"].as_u64(), "the clock goes on");
    assert!(answer["latency_us"].as_u64() > Some(0), "{answer}");
}

/// The lines that a command prints of this bus.
fn printed(bus: &Bus, command: &str) -> Vec<String> {
    let output = run(bus.folder(), &[command, "--tcp", bus.tcp()], "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn what_was_counted_and_what_workers_wrote_to_stderr_goes_on() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    for id in 1..=20 {
        client.sends(&request(id, "work", json!({})));
        let asked = puppet.is_asked("work");
        match id % 4 {
            0 => puppet.refuses(&asked, &json!({ "code": -32000, "message": "no" })),
            _ => puppet.answers(&asked, json!({})),
        }
        client.receives();
    }
    client.sends(r#"{"jsonrpc":"2.0","id":21,"method":"session/prompt","params":{"sessionId":"unknown"}}"#);
    client.sees_error(21, -32051, "unknown_session");
    puppet.writes_stderr("the first line\n\u{e4} sec");
    bus.until("it is told", || !printed(&bus, "logs").is_empty());
    bus.until("nobody else is there", || client.status()["clients"] == 1);
    let figures = printed(&bus, "metrics");
    let count = |of: u32| format!("stdio_bus_request_duration_seconds_count{{pool=\"p\"}} {of}");
    assert!(figures.contains(&count(20)), "{figures:?}");
    // A client that asks for it would be counted as well.
    bus.signal(Signal::SIGUSR2);
    bus.log_has("upgraded from");
    bus.until("nobody else is there", || client.status()["clients"] == 1);
    let after = printed(&bus, "metrics");
    assert_eq!(after.len(), figures.len());
    let parts =
        |line: &str| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse::<f64>()));
    for (line, before) in after.iter().zip(&figures) {
        // Whoever asks for the figures is a client too, and time goes on.
        if before.contains("_total{side=\"client\"") || before.starts_with("stdio_bus_up_seconds ") {
            let (Some((name, Ok(value))), Some((named, Ok(was)))) = (parts(line), parts(before)) else {
                panic!("{before} became {line}");
            };
            assert!(name == named && value >= was, "{before} became {line}");
        } else {
            assert_eq!(line, before);
        }
    }
    client.is_served_by(&mut puppet);
    assert!(printed(&bus, "metrics").contains(&count(21)));
    puppet.writes_stderr("ond\nlast\n");
    bus.until("it is told", || printed(&bus, "logs").len() == 3);
    let logs = printed(&bus, "logs");
    // The time comes first.
    let texts: Vec<&str> = logs.iter().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert_eq!(texts, ["p/0: the first line", "p/0: \u{e4} second", "p/0: last"]);
    client.sends(&request(30, "work", json!({})));
    puppet.is_asked("work");
    puppet.exits(3);
    let lost = client.sees_error(30, -32050, "worker_lost");
    assert_eq!(lost["stderr"], "the first line\n\u{e4} second\nlast");
}

#[test]
fn a_client_that_has_not_shown_its_token_yet_still_has_to() {
    let bus = Bus::plan(one_pool(1)).token(TOKEN).start();
    let mut puppet = bus.puppet();
    let hello = |token: &str| request(1, "_bus/hello", json!({ "token": token }));
    let (mut slow, mut silent, mut stranger) = (bus.client(), bus.client(), bus.client());
    let line = hello(TOKEN) + "\n";
    let (first, rest) = line.as_bytes().split_at(30);
    slow.sends_bytes(first);
    let mut admin = bus.client();
    admin.sends(&hello(TOKEN));
    admin.gets(1);
    assert_eq!(admin.asks(2, "_bus/upgrade", json!({}))["pid"], bus.pid());
    slow.sends_bytes(rest);
    assert_eq!(slow.gets(1)["bus"], "stdio-bus");
    slow.is_served_by(&mut puppet);
    stranger.sends(&hello("aaaaaaaaaaaaaaaaaaaaaa"));
    stranger.sees_error(1, -32056, "unauthorized");
    // Its time goes on as well.
    silent.sees_error(Value::Null, -32056, "unauthorized");
    silent.is_closed();
}

#[test]
fn what_a_worker_may_still_restart_is_not_more_afterwards() {
    let bus = Bus::start(limited(1, json!({ "max_restarts": 2, "restart_window_sec": 1000 })));
    let mut client = bus.client();
    for death in 0..3 {
        let mut puppet = bus.puppet();
        client.is_served_by(&mut puppet);
        puppet.exits(3);
        bus.until("it is known", || client.status()["counters"]["worker_deaths"] == death + 1);
        // It waits for its next start, or has had all of them.
        upgrades(&bus);
    }
    client.sends(&request(1, "work", json!({})));
    let data = client.sees_error(1, -32053, "pool_down");
    assert!(data["cause"].as_str().is_some_and(|cause| cause.contains("code 3")), "{data}");
    let status = client.status();
    assert_eq!(status["upgraded"]["count"], 3);
    assert_eq!(status["pools"][0]["broken"], 1, "{status}");
    assert!(!bus.has_another_puppet());
}

#[test]
fn a_service_manager_hears_of_every_upgrade_and_is_answered_as_before() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket in a folder of ours");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let receive = || {
        let mut text = [0; 100];
        let count = manager.recv(&mut text).expect("the bus sends something");
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    let plan = Bus::plan(one_pool(1)).env("NOTIFY_SOCKET", path.to_str().expect("UTF-8"));
    let mut bus = plan.start();
    let _puppet = bus.puppet();
    assert_eq!(receive(), "READY=1");
    for _ in 0..2 {
        upgrades(&bus);
        let told = receive();
        let clock = told.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("both in one message");
        assert!(clock.parse::<u64>().is_ok_and(|clock| clock > 0), "{told}");
        assert_eq!(receive(), "READY=1");
    }
    bus.signal(Signal::SIGTERM);
    assert_eq!(receive(), "STOPPING=1");
    assert_eq!(bus.exit_status().code(), Some(0));
}

#[test]
fn a_socket_of_a_service_manager_is_served_by_the_next_program_and_is_left_to_the_manager() {
    let (folder, path) = folder_with_config();
    let listener = UnixListener::bind(&path).expect("a socket");
    let bus = started_with_socket(folder.path(), listener.try_clone().expect("a descriptor"));
    let connect = || {
        let socket = UnixStream::connect(&path).expect("it listens");
        Client::new(Connection::socket("client", socket, &Log::default()))
    };
    let mut client = connect();
    for count in 1..=2 {
        assert_eq!(client.asks(1, "_bus/upgrade", json!({}))["pid"], bus.id());
        assert_eq!(connect().status()["upgraded"]["count"], count);
    }
    // The addresses were told once, and the socket is not removed.
    let printed = ended(bus);
    assert_eq!(printed, format!("{}\n", json!({ "listening": format!("unix://{}", path.display()) })));
    drop(connect());
    assert!(path.exists());
}
