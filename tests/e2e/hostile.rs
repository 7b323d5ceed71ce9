//! Those who should not be at the door at all: browsers, other protocols, other users; and what they try to leave
//! behind in the log.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::thread;
use std::{fs, net};

use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::harness::{BUS, Bus, one_pool, puppets, request, write_token};

const TOKEN: &str = "kq3VbN8-hY2_fJ5tR7wXz0";
const NOBODY: u32 = 65_534;

/// A number like any other; the same at every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }
}

/// What the bus says to somebody who says this and then waits for the end.
fn reply(mut socket: impl Read + Write, said: &[u8]) -> Vec<u8> {
    // The bus may be quicker to close it than we are to say it all.
    let _ = socket.write_all(said);
    let mut heard = Vec::new();
    let _ = socket.read_to_end(&mut heard);
    heard
}

#[test]
fn of_all_first_bytes_only_a_brace_goes_on_and_none_of_25600_lines_reaches_a_worker() {
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/bus.sock"] }));
    let mut puppet = bus.puppet();
    let path = bus.folder().join("bus.sock");
    let evil = request(1, "evil", json!({}));
    thread::scope(|scope| {
        for quarter in 0..4_u8 {
            let (path, evil) = (&path, &evil);
            scope.spawn(move || {
                let mut dice = Dice(quarter.into());
                for first in (0..=255_u8).filter(|first| first % 4 == quarter) {
                    for _ in 0..100 {
                        let length = dice.roll() % 48;
                        // Never a good line by chance: white space alone before the next one would be none at all.
                        let mut said = vec![first, b'!'];
                        said.extend((0..length).map(|_| dice.roll()));
                        said.extend_from_slice(format!("\n{evil}\n").as_bytes());
                        let heard = reply(UnixStream::connect(path).expect("the bus listens"), &said);
                        assert!(heard.is_empty(), "{said:?} was answered {heard:?}");
                    }
                }
            });
        }
    });
    let mut client = bus.client();
    client.sends(&request(1, "good", json!({})));
    puppet.is_asked("good");
}

/// What a headless Chromium has really sent, as tests/interop/browser.mjs records it: fetch, forms, images, frames, an
/// event stream, a WebSocket, TLS. Where the page had a say, it says this.
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
    // A letter is a byte.
    let bytes = |text: String| text.replace(line, says).chars().map(|letter| letter as u8).collect();
    recorded.into_iter().chain(other).map(bytes).collect()
}

#[test]
fn a_browser_gets_not_a_byte_whatever_a_page_makes_it_say() {
    for token in [false, true] {
        let plan = Bus::plan(one_pool(1));
        let bus = if token { plan.token(TOKEN).start() } else { plan.start() };
        let mut puppet = bus.puppet();
        // Even a page that knows the token.
        let hello = request(1, "_bus/hello", json!({ "token": TOKEN }));
        let evil = format!("{hello}\n{}", request(2, "evil", json!({})));
        for said in browsers(&evil) {
            let heard = reply(net::TcpStream::connect(bus.tcp()).expect("the bus listens"), &said);
            assert!(heard.is_empty(), "{:?} was answered {heard:?}", String::from_utf8_lossy(&said));
        }
        let mut client = bus.client();
        client.sends(&hello);
        client.gets(1);
        client.sends(&request(2, "good", json!({})));
        puppet.is_asked("good");
    }
}

/// One run of the binary by another user.
fn as_nobody(args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string(), "--clear-groups", BUS]);
    command.args(args).current_dir("/").env_clear();
    command.output().expect("setpriv runs")
}

/// Whether another user can be played here; if not, why is printed.
fn can_be_nobody() -> bool {
    let works = geteuid().is_root() && as_nobody(&["--version"]).status.success();
    if !works {
        println!("skipped: this needs root, setpriv, and a binary that others can run");
    }
    works
}

#[test]
fn another_user_is_turned_away_at_every_door_even_with_the_token() {
    if !can_be_nobody() {
        return;
    }
    let doors = ["tcp://127.0.0.1:0", "unix://@dir/bus.sock", "tcp://[::1]:0"];
    for token in [false, true] {
        let plan = Bus::plan(json!({ "pools": [puppets("p", 1)], "listen": doors }));
        let bus = if token { plan.token(TOKEN).start() } else { plan.start() };
        let mut puppet = bus.puppet();
        let stolen = bus.folder().join("stolen");
        write_token(&stolen, TOKEN);
        std::os::unix::fs::chown(&stolen, Some(NOBODY), None).expect("root");
        let open = |path: &str, mode| {
            fs::set_permissions(bus.folder().join(path), fs::Permissions::from_mode(mode)).expect("ours");
        };
        // As if somebody had opened what the bus has closed.
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
fn another_process_of_the_same_user_cannot_look_into_the_bus() {
    if !can_be_nobody() {
        return;
    }
    // A bus of that user, and another process of the same user that would like to know.
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

#[test]
fn the_log_has_no_control_characters_and_nothing_of_what_is_said() {
    let bus = Bus::plan(one_pool(1)).env("RUST_LOG", "trace").start();
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    let ugly = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\nFAKE line\u{9b}31m\u{202e}";
    let canary = "canary-5f3a";
    client.sends(&request(1, "_bus/hello", json!({ "client": ugly, "token": canary })));
    client.gets(1);
    let spelled = Value::from(format!("{ugly}{canary}"));
    let params = json!({ "clientInfo": { "name": ugly }, "prompt": canary });
    // A method that is spelled with escapes is refused; one without them goes through, whatever letters it has.
    client.sends(&format!(r#"{{"jsonrpc":"2.0","id":{spelled},"method":{spelled},"params":{params}}}"#));
    client.sees_error(Value::Null, -32600, "invalid");
    let method = format!("\u{9b}31m\u{202e}\u{2028}{canary}");
    client.sends(&format!(r#"{{"jsonrpc":"2.0","id":{spelled},"method":"{method}","params":{params}}}"#));
    let asked = puppet.hears();
    puppet.says_bytes(format!("stray {ugly}{canary}\n{{\"{canary}\n").as_bytes());
    puppet.answers(&asked, json!(canary));
    client.hears();
    client.sends(&format!("{{\"{canary}"));
    client.hears();
    client.sends(&request(3, "_bus/hello", json!({ "pool": format!("{ugly}{canary}") })));
    client.hears();
    puppet.exits(1);
    bus.log_has("exited");
    client.has_heard_nothing();
    let log = bus.log.text();
    assert!(log.chars().all(|letter| letter == '\n' || !letter.is_control()), "{log:?}");
    assert!(!log.contains(canary) && !log.lines().any(|line| line.starts_with("FAKE")), "{log}");
}
