//! Listeners other than TCP of its own: a Unix socket, stdin and stdout, and sockets of a service manager.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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
    command.args(["serve", "--stdio"]).current_dir(&folder).env("XDG_STATE_HOME", folder.path());
    command.stderr(Stdio::null());
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
    assert!(printed.contains(&format!("another bus already runs there (pid {})", bus.pid())), "{printed}");
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

/// A bus in this folder to which a service manager passes this socket as descriptor 3.
pub(crate) fn started_with_socket(folder: &Path, socket: impl Into<OwnedFd>) -> Child {
    let script = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" serve 3<&0 0</dev/null"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_stdio-bus")]).current_dir(folder).env("HOME", folder);
    command.stdin(Stdio::from(socket.into())).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("a shell")
}

/// A folder with a bus.json that names a Unix socket in it, and the path of that socket.
pub(crate) fn folder_with_config() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("bus.sock");
    let config = json!({
        "listen": [format!("unix://{}", path.display())],
        "pools": [{ "id": "p", "command": "stdio-bus", "args": ["agent", "echo"] }],
    });
    fs::write(folder.path().join("bus.json"), config.to_string()).expect("a file");
    (folder, path)
}

/// Ends the bus as a service manager does, and returns what it has printed.
pub(crate) fn ended(mut bus: Child) -> String {
    let pid = Pid::from_raw(i32::try_from(bus.id()).expect("a process id"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    let mut printed = String::new();
    bus.stdout.take().expect("piped").read_to_string(&mut printed).expect("UTF-8");
    assert_eq!(bus.wait().expect("it ends").code(), Some(0));
    printed
}

/// Sends a request and returns the result.
fn answer(mut socket: impl Read + Write) -> Value {
    writeln!(socket, "{}", request(1, "hi", json!({}))).expect("it listens");
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).expect("an answer");
    line.parse::<Value>().expect("JSON")["result"]["method"].clone()
}

#[test]
fn a_socket_of_a_service_manager_is_used_in_place_of_one_of_its_own_and_is_left_to_it() {
    let (folder, path) = folder_with_config();
    let listener = UnixListener::bind(&path).expect("a socket");
    // Somebody connects before there is a bus.
    let early = UnixStream::connect(&path).expect("it listens");
    let bus = started_with_socket(folder.path(), listener.try_clone().expect("a descriptor"));
    assert_eq!(answer(early), "hi");
    let printed = ended(bus);
    assert_eq!(printed, format!("{}\n", json!({ "listening": format!("unix://{}", path.display()) })));
    let late = UnixStream::connect(&path).expect("it is still there");
    let bus = started_with_socket(folder.path(), listener);
    assert_eq!(answer(late), "hi");
    ended(bus);
}

#[test]
fn a_tcp_socket_of_a_service_manager_is_used_beside_the_addresses_of_bus_json() {
    let (folder, path) = folder_with_config();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let at = listener.local_addr().expect("it is bound");
    let early = TcpStream::connect(at).expect("it listens");
    let bus = started_with_socket(folder.path(), listener);
    assert_eq!(answer(early), "hi");
    assert_eq!(answer(UnixStream::connect(&path).expect("it listens there too")), "hi");
    assert!(ended(bus).contains(&format!("tcp://{at}")));
    assert!(TcpStream::connect(at).is_err() && !path.exists());
}

#[test]
fn what_is_no_socket_of_a_service_manager_is_refused() {
    let folder = TempDir::new().expect("a temporary folder");
    let config = r#"{"pools":[{"id":"p","command":"stdio-bus","args":["agent","echo"]}]}"#;
    fs::write(folder.path().join("bus.json"), config).expect("a file");
    let (connection, _other) = UnixStream::pair().expect("a pair");
    let file = File::open("/dev/null").expect("a file");
    for socket in [OwnedFd::from(connection), file.into()] {
        let bus = started_with_socket(folder.path(), socket);
        assert_eq!(bus.wait_with_output().expect("it ends").status.code(), Some(1));
    }
}

#[test]
fn a_configuration_can_come_from_an_open_file_descriptor() {
    let folder = TempDir::new().expect("a folder");
    let config = r#"{"version": "2", "transport": {"framing": "ndjson", "protocol": "json"},
        "pools": [{"id": "p", "description": "mine", "command": "stdio-bus", "args": ["agent", "echo"]}]}"#;
    fs::write(folder.path().join("given"), config).expect("a file");
    let line = request(1, "one", json!({}));
    let script = format!("printf '%s\\n' '{line}' | \"$0\" serve --config-fd 3 --stdio 3< given");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_stdio-bus")]).current_dir(&folder);
    let out = command.env("XDG_STATE_HOME", folder.path()).output().expect("it runs");
    let answer: Value = serde_json::from_slice(&out.stdout).expect("an answer");
    assert_eq!((&answer["id"], &answer["result"]["method"]), (&json!(1), &json!("one")));
    // What is ignored is said.
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(log.contains("version: ignored") && log.contains("pools[0].description: ignored"), "{log}");
    let bad = Command::new("sh")
        .args(["-c", "\"$0\" serve --config-fd 3 3< /dev/null", env!("CARGO_BIN_EXE_stdio-bus")])
        .output()
        .expect("it runs");
    assert_eq!(bad.status.code(), Some(78), "{}", String::from_utf8_lossy(&bad.stderr));
}
