//! The figures of a bus for Prometheus: by the door, by a command, and served by one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::bus_with_door;
use crate::harness::{BUS, PATIENCE, Web, run, skips};

const WANTED: [&str; 3] = [
    "stdio_bus_up_seconds ",
    "stdio_bus_workers{pool=\"echo\",state=\"up\"} 1",
    "# TYPE stdio_bus_clients gauge",
];

fn has_figures(text: &str) {
    for wanted in WANTED {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

#[test]
fn the_door_has_them_for_those_with_a_token() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let bearer = format!("Authorization: Bearer {}", web.token("observe"));
    let metrics = web.http("GET", "/metrics", &[&bearer], "");
    assert_eq!(
        (metrics.status, metrics.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    has_figures(&metrics.body);
}

#[test]
fn what_the_alerts_ask_for_is_among_them() {
    let bus = bus_with_door();
    let printed = run(bus.folder(), &["metrics", "--tcp", bus.tcp()], "");
    let printed = String::from_utf8_lossy(&printed.stdout);
    let rules = include_str!("../../../ops/prometheus/alerts.yml");
    let names = rules.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    let names: Vec<&str> = names.filter(|word| word.starts_with("stdio_bus_")).collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(printed.contains(&format!("# TYPE {name} ")), "{name}\n{printed}");
    }
    assert!(printed.contains("stdio_bus_limit{of=\"held_bytes\"} "), "{printed}");
}

#[test]
fn a_command_prints_them_as_promtool_wants_them() {
    let bus = bus_with_door();
    let printed = run(bus.folder(), &["metrics", "--tcp", bus.tcp()], "");
    assert!(printed.status.success(), "{printed:?}");
    has_figures(&String::from_utf8_lossy(&printed.stdout));
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        skips("promtool");
        return;
    };
    promtool.stdin.take().expect("it is piped").write_all(&printed.stdout).expect("it reads");
    let said = promtool.wait_with_output().expect("it ends");
    assert!(said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
}

#[test]
fn a_command_serves_them_until_it_is_ended() {
    let bus = bus_with_door();
    let mut command = Command::new(BUS);
    command.args(["metrics", "--listen", "127.0.0.1:0", "--tcp", bus.tcp()]).stdout(Stdio::piped());
    let mut server = command.spawn().expect("the binary starts");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
    let listening: Value = serde_json::from_str(&line).expect("JSON");
    let url = listening["listening"].as_str().expect("a URL");
    let host = url.strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics")).expect("a URL");
    let get = |path: &str, method: &str| {
        let mut socket = TcpStream::connect(host).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let answer = get("/metrics", "GET");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    has_figures(&answer);
    assert!(get("/", "GET").starts_with("HTTP/1.1 404 "));
    assert!(get("/metrics", "POST").starts_with("HTTP/1.1 405 "));
    drop(bus);
    assert!(get("/metrics", "GET").starts_with("HTTP/1.1 503 "), "the bus is gone");
    kill(Pid::from_raw(server.id() as i32), Signal::SIGTERM).expect("it runs");
    assert!(server.wait().expect("it ends").success());
}
