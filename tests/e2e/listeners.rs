//! Listeners other than TCP: a Unix socket, and the bus's own stdin and stdout.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Bus, one_pool, puppets, request, run};

#[test]
fn a_bus_on_stdio_serves_one_client_and_exits_with_it() {
    let mut bus = Bus::plan(one_pool(1)).stdio().start();
    let mut puppet = bus.puppet();
    let mut client = bus.stdio();
    client.has_received_nothing();
    client.sends(&request(1, "work", json!({})));
    client.sends(&request(2, "work", json!({})));
    client.half_closes();
    let (one, two) = (puppet.is_asked("work"), puppet.is_asked("work"));
    puppet.answers(&two, json!("two"));
    puppet.answers(&one, json!("one"));
    assert_eq!(client.gets(2), "two");
    assert_eq!(client.gets(1), "one");
    client.is_closed();
    assert_eq!(bus.exit_status().code(), Some(0));
}

#[test]
fn stdin_and_stdout_may_be_files() {
    let folder = TempDir::new().expect("a temporary folder");
    let config = r#"{"pools":[{"id":"p","command":"stdio-bus","args":["agent","echo"]}]}"#;
    fs::write(folder.path().join("bus.json"), config).expect("a file");
    let lines = format!("{}\n{}", request(1, "one", json!({})), request(2, "two", json!({})));
    fs::write(folder.path().join("in"), lines).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdio-bus"));
    command.args(["serve", "--stdio"]).current_dir(&folder).stderr(Stdio::null());
    command.stdin(File::open(folder.path().join("in")).expect("a file"));
    command.stdout(File::create(folder.path().join("out")).expect("a file"));
    assert_eq!(command.status().expect("it runs").code(), Some(0));
    let out = fs::read_to_string(folder.path().join("out")).expect("a file");
    let methods: Vec<Value> = out.lines().map(|line| line.parse().expect("JSON")).collect();
    let methods: Vec<_> = methods.iter().map(|answer| (&answer["id"], &answer["result"]["method"])).collect();
    assert_eq!(methods, [(&json!(1), &json!("one")), (&json!(2), &json!("two"))]);
}

#[test]
fn a_unix_socket_is_for_its_user_only_and_is_removed_when_the_bus_exits() {
    let mut bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/bus.sock"] }));
    let path = bus.folder().join("bus.sock");
    let about = fs::metadata(&path).expect("a socket");
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.is_served_by(&mut puppet);
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    assert!(!path.exists() && !bus.folder().join(".bus.sock.lock").exists());
}

#[test]
fn a_socket_file_that_was_deleted_is_back_after_a_reload_and_clients_stay_connected() {
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/run/bus.sock"] }));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.has_received_nothing();
    let folder = bus.folder().join("run");
    let wipes: [&dyn Fn(); 2] = [&|| fs::remove_file(folder.join("bus.sock")).expect("a socket"), &|| {
        fs::remove_dir_all(&folder).expect("a folder");
    }];
    for wipe in wipes {
        wipe();
        bus.signal(Signal::SIGHUP);
        bus.until("the socket is back", || folder.join("bus.sock").exists());
        client.is_served_by(&mut puppet);
        bus.client().has_received_nothing();
    }
    bus.log_has("is no longer there");
}

#[test]
fn a_socket_file_is_replaced_only_if_its_bus_is_dead() {
    let config = json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/bus.sock"] });
    let bus = Bus::start(config);
    let path = bus.folder().join("bus.sock");
    let second = run(bus.folder(), &["serve"], "");
    assert_eq!(second.status.code(), Some(75), "another bus runs there");
    let printed = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(printed.contains(&format!("a bus runs there already, as process {}", bus.pid())), "{printed}");
    bus.client().has_received_nothing();
    bus.signal(Signal::SIGKILL);
    bus.leaves_nothing();
    assert!(path.exists(), "a killed process cannot clean up");
    let next =
        Bus::start(json!({ "pools": [puppets("p", 1)], "listen": [format!("unix://{}", path.display())] }));
    next.client().has_received_nothing();
}

#[test]
fn a_regular_file_at_the_path_of_the_socket_is_not_touched() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("precious");
    fs::write(&path, "data").expect("a file");
    fs::write(
        folder.path().join("bus.json"),
        r#"{"pools":[{"id":"p","command":"stdio-bus","args":["agent","echo"]}]}"#,
    )
    .expect("a file");
    let out = run(folder.path(), &["serve", "--unix", "precious"], "");
    assert_ne!(out.status.code(), Some(0), "{out:?}");
    assert!(out.stdout.is_empty());
    assert!(String::from_utf8_lossy(&out.stderr).contains("precious"), "{out:?}");
    assert_eq!(fs::read_to_string(&path).expect("still there"), "data");
}
