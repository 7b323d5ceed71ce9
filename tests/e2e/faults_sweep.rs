//! Every system call of the event loop fails once, with every error that it may have: the bus keeps serving and does
//! not spin.
//!
//! strace makes the calls fail; without it the test is skipped, and says so with --nocapture. `BUS_FAULTS=20` fails
//! each of the first twenty calls instead of only the first, which takes minutes.

use std::env;
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Bus, PATIENCE, Strace, initialize, open_fds, request};

/// Calls and the errors that they may return. EAGAIN is not among them, because strace cannot make the readiness event
/// that follows it.
const FAULTS: [(&str, &str); 13] = [
    ("accept4", "EMFILE ENFILE ENOMEM ENOBUFS ECONNABORTED EPROTO EPERM EINTR"),
    ("read", "EINTR EIO ECONNRESET"),
    ("write", "EINTR EPIPE ECONNRESET EIO"),
    ("pipe2", "EMFILE ENFILE"),
    ("?clone,?clone3,?vfork,?fork", "EAGAIN ENOMEM"),
    ("?epoll_wait,?epoll_pwait", "EINTR"),
    ("epoll_ctl", "ENOMEM ENOSPC"),
    ("?waitid", "EINTR"),
    ("kill", "EPERM ESRCH"),
    ("openat", "ENOSPC EMFILE EACCES"),
    ("fcntl", "EMFILE ENOLCK"),
    ("sendto", "ENOBUFS EINTR"),
    ("recvfrom", "EINTR"),
];

#[test]
fn the_bus_keeps_serving_whichever_system_call_fails() {
    let times: u32 = env::var("BUS_FAULTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for (calls, errors) in FAULTS {
        for error in errors.split(' ') {
            if !survives(calls, error, times) {
                return;
            }
        }
    }
}

/// False: strace cannot be used here.
fn survives(calls: &str, error: &str, times: u32) -> bool {
    // A dedicated pool starts and ends one process in each round. A third one would be kept, with its fds.
    let echo = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"], "mode": "dedicated",
        "instances": 2, "max_instances": 2 });
    let limits = json!({ "session_keep_sec": 0, "max_restarts": 1000 });
    let bus = Bus::start(json!({ "pools": [echo], "limits": limits }));
    // The bus, its orphan guard and two workers.
    bus.until("all run", || bus.survivors().len() == 4);
    let before = open_fds(bus.pid());
    for nth in 1..=times {
        let fault = format!("error={error}:when={nth}");
        let Some(_strace) = Strace::on(&bus, calls, Some(&fault)) else { return false };
        is_served(&bus);
        is_served(&bus);
    }
    is_served(&bus);
    bus.until("no fd is left over", || open_fds(bus.pid()) <= before);
    bus.becomes_idle();
    true
}

/// A client can initialize, open a session and send a request. A client that the fault has hit may be closed or get an
/// error, but a later one is served.
fn is_served(bus: &Bus) {
    let deadline = Instant::now() + PATIENCE;
    while !has_a_turn(bus) {
        assert!(Instant::now() < deadline, "no client is served any more\n{}", bus.log.text());
    }
}

fn has_a_turn(bus: &Bus) -> bool {
    let mut client = bus.client();
    let lines = [
        initialize(1, json!({})),
        request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] })),
        request(3, "any/method", json!({ "n": 3 })),
    ];
    lines.iter().all(|line| {
        let sent = client.connection.try_send(format!("{line}\n").as_bytes()).is_ok();
        sent && loop {
            let Some(line) = client.connection.line_or_end() else { return false };
            let message: Value = serde_json::from_slice(&line).expect("JSON");
            if message.get("method").is_none() {
                break message.get("result").is_some();
            }
        }
    })
}
