//! Peers that should not connect at all: browsers, other protocols, other users; and what they try to write into the
//! log.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::{fs, net};

use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::harness::{
    BUS, Bus, children_of, command_line, one_pool, puppets, request, run, skips, write_token,
};

const TOKEN: &str = "kq3VbN8-hY2_fJ5tR7wXz0";
const NOBODY: u32 = 65_534;

/// A generator of random bytes that are the same in every run.
struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }
}

/// All bytes that the bus answers to these bytes until it closes the connection.
fn reply(mut socket: impl Read + Write, sent: &[u8]) -> Vec<u8> {
    // The bus may close the connection before all is sent.
    let _ = socket.write_all(sent);
    let mut received = Vec::new();
    let _ = socket.read_to_end(&mut received);
    received
}

#[test]
fn only_connections_that_begin_with_a_brace_are_read_and_none_of_25600_lines_reaches_a_worker() {
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/bus.sock"] }));
    let mut puppet = bus.puppet();
    let path = bus.folder().join("bus.sock");
    let evil = request(1, "evil", json!({}));
    thread::scope(|scope| {
        for quarter in 0..4_u8 {
            let (path, evil) = (&path, &evil);
            scope.spawn(move || {
                let mut random = Random(quarter.into());
                for first in (0..=255_u8).filter(|first| first % 4 == quarter) {
                    for _ in 0..100 {
                        let length = random.byte() % 48;
                        // The `!` keeps the line from being valid, or blank, by chance.
                        let mut sent = vec![first, b'!'];
                        sent.extend((0..length).map(|_| random.byte()));
                        sent.extend_from_slice(format!("\n{evil}\n").as_bytes());
                        let received = reply(UnixStream::connect(path).expect("the bus listens"), &sent);
                        assert!(received.is_empty(), "{sent:?} was answered {received:?}");
                    }
                }
            });
        }
    });
    let mut client = bus.client();
    client.sends(&request(1, "good", json!({})));
    puppet.is_asked("good");
}

/// What a headless Chromium sends, as tests/interop/browser.mjs has recorded it: fetch, forms, images, frames, an event
/// stream, a WebSocket, TLS. `says` replaces what the page could choose.
fn browsers(says: &str) -> Vec<Vec<u8>> {
    let recorded: Vec<String> =
        serde_json::from_str(include_str!("browser.json")).expect("one text a connection");
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"evil/from_a_page","params":{}}"#;
    assert!(recorded.iter().any(|text| text.contains(line)));
    let other = [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "EHLO x\r\n",
        "\0\u{1}\0\u{8}!\u{12}\u{a4}B\n",
        "\u{16}\u{3}\u{1}\n",
    ];
    let other = other.map(|opening| format!("{opening}{line}\n"));
    // Each character stands for one byte.
    let bytes = |text: String| text.replace(line, says).chars().map(|letter| letter as u8).collect();
    recorded.into_iter().chain(other).map(bytes).collect()
}

#[test]
fn a_browser_gets_no_byte_whatever_a_page_makes_it_send() {
    for token in [false, true] {
        let plan = Bus::plan(one_pool(1));
        let bus = if token { plan.token(TOKEN).start() } else { plan.start() };
        let mut puppet = bus.puppet();
        // The page even knows the token.
        let hello = request(1, "_bus/hello", json!({ "token": TOKEN }));
        let evil = format!("{hello}\n{}", request(2, "evil", json!({})));
        for sent in browsers(&evil) {
            let received = reply(net::TcpStream::connect(bus.tcp()).expect("the bus listens"), &sent);
            assert!(received.is_empty(), "{:?} was answered {received:?}", String::from_utf8_lossy(&sent));
        }
        let mut client = bus.client();
        client.sends(&hello);
        client.gets(1);
        client.sends(&request(2, "good", json!({})));
        puppet.is_asked("good");
    }
}

/// Runs the binary as another user.
fn as_nobody(args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string(), "--clear-groups", BUS]);
    command.args(args).current_dir("/").env_clear();
    command.output().expect("setpriv runs")
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the test can run programs as another user. Prints why if not.
fn can_be_nobody() -> bool {
    let works = geteuid().is_root() && as_nobody(&["--version"]).status.success();
    if !works {
        skips("root, setpriv, and a binary that others can run");
    }
    works
}

#[test]
fn another_user_is_rejected_at_every_listener_even_with_the_token() {
    if !can_be_nobody() {
        return;
    }
    let listeners = ["tcp://127.0.0.1:0", "unix://@dir/bus.sock", "tcp://[::1]:0"];
    for token in [false, true] {
        let plan = Bus::plan(json!({ "pools": [puppets("p", 1)], "listen": listeners }));
        let bus = if token { plan.token(TOKEN).start() } else { plan.start() };
        let mut puppet = bus.puppet();
        let stolen = bus.folder().join("stolen");
        write_token(&stolen, TOKEN);
        std::os::unix::fs::chown(&stolen, Some(NOBODY), None).expect("root");
        let open = |path: &str, mode| {
            fs::set_permissions(bus.folder().join(path), fs::Permissions::from_mode(mode)).expect("ours");
        };
        // The socket is made accessible to all, although the bus has restricted it.
        open("", 0o755);
        open("bus.sock", 0o666);
        for address in &bus.addresses {
            let (flag, place) = match address.strip_prefix("tcp://") {
                Some(place) => ("--tcp", place),
                None => ("--unix", &address["unix://".len()..]),
            };
            let token_file = ["--token-file", stolen.to_str().expect("UTF-8")];
            for args in [&["call", "evil", flag, place][..], &["status", flag, place]] {
                let out = as_nobody(&[args, &token_file[..]].concat());
                assert_eq!(out.status.code(), Some(69), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
                assert!(out.stdout.is_empty());
            }
        }
        let mut client = bus.client();
        client.sends(&request(1, "_bus/hello", json!({ "token": TOKEN })));
        client.gets(1);
        client.sends(&request(2, "good", json!({})));
        puppet.is_asked("good");
    }
}

#[test]
fn no_client_shows_its_token_to_a_program_of_another_user() {
    if !can_be_nobody() {
        return;
    }
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let own = |name: &str| std::os::unix::fs::chown(path(name), Some(NOBODY), Some(NOBODY)).expect("root");
    write_token(&folder.path().join("theirs"), "bbbbbbbbbbbbbbbbbbbbbb");
    write_token(&folder.path().join("ours"), TOKEN);
    let config = json!({
        "pools": [{ "id": "p", "command": "stdio-bus", "args": ["agent", "echo"] }],
        "listen": ["tcp://127.0.0.1:0", format!("unix://{}", path("bus.sock")), "tcp://[::1]:0"],
        "auth": { "token_file": path("theirs") },
    });
    fs::write(path("bus.json"), config.to_string()).expect("a file");
    for name in ["", "theirs", "bus.json"] {
        own(name);
    }
    let mut bus = Command::new("setpriv");
    bus.args(["--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string(), "--clear-groups", BUS]);
    bus.args(["serve", "--config", &path("bus.json")]).current_dir("/").env_clear();
    bus.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut bus = Killed(bus.spawn().expect("setpriv runs"));
    let mut lines = BufReader::new(bus.0.stdout.take().expect("piped")).lines();
    let mut place = || {
        let line: Value =
            serde_json::from_str(&lines.next().expect("a line").expect("a line")).expect("JSON");
        line["listening"].as_str().expect("an address").to_owned()
    };
    let places = [place(), place(), place()];
    let ours = path("ours");
    let initialize = request(1, "initialize", json!({ "protocolVersion": 1 })) + "\n";
    for place in &places {
        let (flag, place) = match place.strip_prefix("tcp://") {
            Some(place) => ("--tcp", place),
            None => ("--unix", &place["unix://".len()..]),
        };
        let commands =
            [&["call", "m"][..], &["status"], &["trace"], &["connect"], &["run", "--pool", "p", "x"]];
        for command in commands {
            let args = [command, &[flag, place, "--token-file", &ours]].concat();
            let out = run(folder.path(), &args, &initialize);
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(77), "{args:?}: {said}");
            assert!(said.contains("a program of uid 65534 listens at"), "{args:?}: {said}");
        }
    }
    let at = places[0].strip_prefix("tcp://").expect("TCP");
    let status = as_nobody(&["status", "--json", "--tcp", at, "--token-file", &path("theirs")]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["counters"]["unauthorized"], 0, "no token was shown: {status}");
}

#[test]
fn off_loopback_the_token_alone_decides() {
    if !can_be_nobody() {
        return;
    }
    let open = json!({ "pools": [puppets("p", 1)], "listen": ["tcp://0.0.0.0:0"] });
    let bus = Bus::plan(open).token(TOKEN).start();
    let place = bus.tcp().replace("0.0.0.0", "127.0.0.1");
    let theirs = bus.folder().join("theirs");
    fs::set_permissions(bus.folder(), fs::Permissions::from_mode(0o755)).expect("ours");
    write_token(&theirs, TOKEN);
    std::os::unix::fs::chown(&theirs, Some(NOBODY), None).expect("root");
    let file = theirs.to_str().expect("UTF-8");
    assert_eq!(as_nobody(&["status", "--tcp", &place, "--token-file", file]).status.code(), Some(0));
    assert_eq!(as_nobody(&["status", "--tcp", &place]).status.code(), Some(77));
}

#[test]
fn another_process_of_the_same_user_cannot_read_the_memory_of_the_bus() {
    if !can_be_nobody() {
        return;
    }
    // This starts a bus as another user, and a process of the same user that tries to read its memory.
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let config = folder.path().join("bus.json");
    fs::write(&config, r#"{"pools":[{"id":"p","command":"sleep","args":["1000"]}]}"#).expect("a file");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let look = r#"exec 3<&0; "$0" serve --tcp 127.0.0.1:0 --config "$1" <&3 | { read line
        for at in /proc/[0-9]*; do
            case "$(tr '\0' ' ' < $at/cmdline 2>/dev/null)" in "$0 serve"*"$1"*)
                cat $at/environ >/dev/null 2>&1 && echo readable
                head -c 1 $at/mem >/dev/null 2>&1 && echo readable
                kill ${at#/proc/} 2>/dev/null;; esac
        done; echo looked; }"#;
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        &NOBODY.to_string(),
        "--regid",
        &NOBODY.to_string(),
        "--clear-groups",
        "sh",
        "-c",
        look,
    ]);
    let out = command.arg(BUS).arg(&config).current_dir("/").output().expect("setpriv runs");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "looked\n", "{}", String::from_utf8_lossy(&out.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn the_processes_beside_the_bus_have_nothing_of_its_secrets_in_their_environment() {
    // Nobody listens there, so the link is started again and again.
    let free = net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let config = json!({
        "name": "n", "pools": [puppets("p", 1)], "web": { "listen": "http://127.0.0.1:0" },
        "cluster": { "url": format!("nats://{free}"), "offer": ["p"], "insecure": true },
    });
    let bus = Bus::plan(config).env("AGENT_KEY", "canary-77aa").start();
    for arguments in ["internal-guard", "web --supervised", "link --supervised"] {
        let mut environ = Vec::new();
        bus.until(arguments, || {
            let found = children_of(bus.pid()).into_iter().find(|pid| command_line(*pid).contains(arguments));
            match found.map(|pid| fs::read(format!("/proc/{pid}/environ"))) {
                Some(Ok(read)) => environ = read,
                // Only root may read it.
                Some(Err(error)) => return error.kind() == std::io::ErrorKind::PermissionDenied,
                None => {}
            }
            !environ.is_empty()
        });
        assert!(!String::from_utf8_lossy(&environ).contains("canary-77aa"), "{arguments}");
    }
}

#[test]
fn the_log_has_no_control_characters_and_no_message_content() {
    let bus = Bus::plan(one_pool(1)).env("RUST_LOG", "trace").start();
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    let ugly = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\nFAKE line\u{9b}31m\u{202e}";
    let canary = "canary-5f3a";
    client.sends(&request(1, "_bus/hello", json!({ "client": ugly, "token": canary })));
    client.gets(1);
    let spelled = Value::from(format!("{ugly}{canary}"));
    let params = json!({ "clientInfo": { "name": ugly }, "prompt": canary });
    // A method that is spelled with escapes is refused; one without them is forwarded, whatever characters it has.
    client.sends(&format!(r#"{{"jsonrpc":"2.0","id":{spelled},"method":{spelled},"params":{params}}}"#));
    client.sees_error(Value::Null, -32600, "invalid");
    let method = format!("\u{9b}31m\u{202e}\u{2028}{canary}");
    client.sends(&format!(r#"{{"jsonrpc":"2.0","id":{spelled},"method":"{method}","params":{params}}}"#));
    let asked = puppet.receives();
    puppet.sends_bytes(format!("stray {ugly}{canary}\n{{\"{canary}\n").as_bytes());
    puppet.answers(&asked, json!(canary));
    client.receives();
    client.sends(&format!("{{\"{canary}"));
    client.receives();
    client.sends(&request(3, "_bus/hello", json!({ "pool": format!("{ugly}{canary}") })));
    client.receives();
    puppet.exits(1);
    bus.log_has("exited");
    client.has_received_nothing();
    let log = bus.log.text();
    assert!(log.chars().all(|letter| letter == '\n' || !letter.is_control()), "{log:?}");
    assert!(!log.contains(canary) && !log.lines().any(|line| line.starts_with("FAKE")), "{log}");
}
