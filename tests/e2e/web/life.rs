//! The life of the door: it starts and ends with the bus, and is started again when it dies.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{bus_with_door, echo_with};
use crate::harness::{BUS, Bus, Client, Web, is_gone};

fn status(client: &mut Client) -> Value {
    client.asks(1, "_bus/status", json!({}))["web"].clone()
}

#[test]
fn the_door_is_seen_in_the_status_and_ends_with_the_bus() {
    let mut bus = bus_with_door();
    let (pid, mut socket) = {
        let web = Web::of(&bus);
        let shown = status(&mut bus.client());
        assert_eq!((&shown["state"], &shown["listening"]), (&json!("up"), &json!(web.url)));
        (shown["pid"].as_u64().expect("a process") as u32, web.socket(&web.token("admin")))
    };
    socket.opens_session();
    bus.signal(Signal::SIGTERM);
    let frame = socket.ends().expect("a close frame");
    // The bus closes the connection, and then the door.
    assert!([1012, 1001].contains(&u16::from(frame.code)), "{frame:?}");
    assert!(bus.exit_status().success());
    assert!(is_gone(pid));
}

#[test]
fn a_door_that_is_killed_is_opened_again_and_knows_its_tokens() {
    let bus = bus_with_door();
    let (token, pid) = {
        let web = Web::of(&bus);
        let mut socket = web.socket(&web.token("admin"));
        let pid =
            socket.asks(1, "_bus/status", json!({}))["result"]["web"]["pid"].as_i64().expect("a process");
        let token = web.token("control");
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
        assert_eq!(socket.ends(), None);
        (token, pid)
    };
    let web = Web::of(&bus);
    let mut socket = web.socket(&token);
    let shown = socket.asks(1, "_bus/status", json!({}))["result"]["web"].clone();
    assert_eq!(
        (&shown["state"], &shown["restarts"], &shown["last_exit"]),
        (&json!("up"), &json!(1), &json!("signal 9"))
    );
    assert_ne!(shown["pid"].as_i64(), Some(pid));
}

#[test]
fn a_port_that_is_taken_is_said_and_the_bus_runs() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = format!("http://{}", taken.local_addr().expect("an address"));
    let bus = Bus::start(echo_with(json!({ "listen": at })));
    bus.log_has(&format!("the web door cannot open: cannot listen at {at}: another bus or"));
    let mut client = bus.client();
    bus.until("the door rests", || {
        let shown = status(&mut client);
        shown["state"] == "resting"
            && shown["last_words"].as_str().is_some_and(|why| why.contains("already listens there"))
    });
    let out = crate::harness::run(bus.folder(), &["status", "--tcp", bus.tcp()], "");
    assert!(String::from_utf8_lossy(&out.stdout).contains("\nweb "), "{out:?}");
    // It is tried again, and opens when the port is free.
    drop(taken);
    assert_eq!(bus.web_door(), at);
}

#[test]
fn a_reload_moves_the_door_and_can_take_it_away() {
    let bus = bus_with_door();
    let mut socket = {
        let web = Web::of(&bus);
        web.socket(&web.token("admin"))
    };
    let mut config = echo_with(json!({ "listen": "http://[::1]:0" }));
    config["listen"] = json!([bus.addresses[0]]);
    bus.rewrite(&config);
    bus.signal(Signal::SIGHUP);
    assert_eq!(u16::from(socket.ends().expect("a close frame").code), 1001);
    assert!(bus.web_door().starts_with("http://[::1]:"));
    config.as_object_mut().expect("an object").remove("web");
    bus.rewrite(&config);
    bus.signal(Signal::SIGHUP);
    let mut client = bus.client();
    bus.until("there is no door", || status(&mut client).is_null());
}

#[test]
fn after_a_kill_of_the_bus_no_door_is_left() {
    let mut bus = bus_with_door();
    bus.web_door();
    bus.signal(Signal::SIGKILL);
    bus.exit_status();
    bus.leaves_nothing();
}

#[test]
fn a_bus_on_stdio_or_told_so_has_no_door() {
    let mut bus = Bus::plan(echo_with(json!({ "listen": "http://127.0.0.1:0" }))).stdio().start();
    let mut client = bus.stdio();
    assert_eq!(status(&mut client), Value::Null);
    bus.log_has("the web door is not opened");
}

#[test]
fn a_second_door_that_closes_leaves_the_first_one_to_be_found() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let link = || {
        let link = String::from_utf8(web.command(&["url"]).stdout).expect("text");
        link.split_once("/#c=").expect("a link").0.to_owned()
    };
    let mut command = Command::new(BUS);
    command.args(["web", "--listen", "http://127.0.0.1:0", "--tcp", bus.tcp(), "--config"]);
    command.arg(bus.config_path()).env("XDG_STATE_HOME", bus.folder());
    let mut second = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut line = String::new();
    BufReader::new(second.stdout.take().expect("piped")).read_line(&mut line).expect("it opens");
    let at: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(at["listening"], json!(link()), "the newest is named");
    kill(Pid::from_raw(second.id() as i32), Signal::SIGTERM).expect("it runs");
    assert!(second.wait().expect("our child").success());
    assert_eq!(link(), web.url);
}
