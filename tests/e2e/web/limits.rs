//! What one peer cannot do to the door: be slow, be long, be many, or speak something else.

use std::io::{ErrorKind, Read, Write};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;

use super::{bus_with_door, echo_with};
use crate::harness::{BUS, Bus, PATIENCE, Web, peak_kib, skips};

/// Connections that one token may have.
const PER_TOKEN: usize = 1024;

pub(super) fn pid_of_door(bus: &Bus) -> u32 {
    bus.client().asks(1, "_bus/status", json!({}))["web"]["pid"].as_u64().expect("a process") as u32
}

#[test]
fn whoever_says_nothing_or_drips_is_closed() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let beginnings = ["", "G", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nHost: x\r\n"];
    let slow = beginnings.map(|sent| {
        let mut socket = web.connect();
        socket.write_all(sent.as_bytes()).expect("the door listens");
        socket
    });
    for (mut socket, sent) in slow.into_iter().zip(beginnings) {
        let mut answer = Vec::new();
        let ended = socket.read_to_end(&mut answer);
        assert!(
            !matches!(&ended, Err(error) if error.kind() == ErrorKind::WouldBlock),
            "after {sent:?} it is open for {PATIENCE:?}"
        );
    }
}

#[test]
fn a_crowd_that_shows_no_token_keeps_nobody_out() {
    let config = echo_with(json!({ "listen": "http://127.0.0.1:0" }));
    // So many files are enough for some forty connections, of which twenty may be those of strangers.
    let bus = Bus::plan(config).after("ulimit -n 150").start();
    let web = Web::of(&bus);
    let mut known = web.socket(&web.token("observe"));
    let mut crowd: Vec<_> = (0..60).map(|_| web.connect()).collect();
    assert_eq!(web.http("GET", "/healthz", &[], "").status, 200);
    // The oldest has given way before it was silent for too long.
    let began = std::time::Instant::now();
    assert!(matches!(crowd[0].read(&mut [0; 1]), Ok(0) | Err(_)));
    assert!(began.elapsed().as_secs() < 8, "it was only silent for too long");
    assert!(known.asks(1, "_bus/status", json!({})).get("result").is_some());
}

#[test]
fn heads_and_bodies_have_a_limit() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let long = format!("X-Long: {}", "x".repeat(20_000));
    assert_eq!(web.http("GET", "/healthz", &[&long], "").status, 431);
    let many: Vec<String> = (0..100).map(|number| format!("X-{number}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(web.http("GET", "/healthz", &many, "").status, 431);
    let body = json!({ "code": "x".repeat(10_000) }).to_string();
    assert_eq!(web.http("POST", "/login", &["Content-Type: application/json"], &body).status, 413);
    // With two lengths the chunks count, and the connection is closed.
    let both = ["Transfer-Encoding: chunked", "Content-Type: application/json"];
    assert_eq!(web.http("POST", "/login", &both, "0\r\n\r\n").status, 400);
    assert_eq!(web.http("GET", "/healthz", &[], "").status, 200);
}

#[test]
fn a_token_has_a_bounded_number_of_connections() {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if hard < 4 * PER_TOKEN as u64 || setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard).is_err() {
        skips("a higher limit of open files");
        return;
    }
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("control");
    let mut sockets: Vec<_> = (0..PER_TOKEN).map(|_| web.socket(&token)).collect();
    let bearer = format!("Bearer {token}");
    let another = || web.try_socket("/acp", &[("Authorization", &bearer)]).err();
    assert_eq!(another(), Some(429));
    drop(web.socket(&web.token("control")));
    sockets.pop();
    bus.until("there is room again", || another().is_none());
}

#[test]
fn a_client_that_does_not_read_fills_neither_the_door_nor_the_bus() {
    let mut config = echo_with(json!({ "listen": "http://127.0.0.1:0" }));
    config["pools"][0]["args"] = json!(["agent", "echo", "--chunks", "2000", "--chunk-bytes", "50000"]);
    let bus = Bus::start(config);
    let web = Web::of(&bus);
    let mut socket = web.socket(&web.token("control"));
    let session = socket.opens_session();
    let pid = pid_of_door(&bus);
    let before = peak_kib(pid);
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
    socket.sends(&crate::harness::request(2, "session/prompt", prompt));
    let mut other = bus.client();
    // As soon as its queue is full, the bus reads no further from the agent.
    bus.until("the client is behind", || {
        other.asks(1, "_bus/status", json!({}))["held_bytes"].as_u64().is_some_and(|bytes| bytes > 3 << 20)
    });
    let grown = peak_kib(pid) - before;
    assert!(grown < 16 << 10, "the door has grown by {grown} KiB");
    let (answer, updates) = socket.gets(2);
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    let bytes: usize = updates.iter().map(|update| update.to_string().len()).sum();
    assert!(bytes > 50 << 20, "{bytes}");
}

#[test]
fn another_user_is_turned_away() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut command = std::process::Command::new("setpriv");
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        BUS,
        "status",
        "--tcp",
        web.host(),
    ]);
    let ran = command.current_dir("/").env_clear().output();
    if !nix::unistd::geteuid().is_root() || ran.is_err() {
        skips("root and setpriv");
        return;
    }
    bus.log_has("was turned away: it belongs to another user");
}

#[test]
fn whoever_cannot_prompt_cannot_send_long_messages() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut socket = web.socket(&web.token("approve"));
    // The door may close while it is still being sent.
    let _ = socket.socket.send(tungstenite::Message::text("x".repeat(2 << 20)));
    let frame = socket.ends();
    assert!(frame.is_none_or(|frame| u16::from(frame.code) == 1009));
    assert!(web.socket(&web.token("approve")).asks(1, "_bus/status", json!({})).get("result").is_some());
}
