//! What the system does wrong: calls that fail or are interrupted, full disks, no memory, small pipes. The bus goes
//! on, or ends cleanly.
//!
//! Failing calls are made by strace; where that is not installed or not allowed, those tests say so and pass.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::harness::{
    Bus, Client, PATIENCE, Puppet, Strace, limited, one_pool, puppets, request, result, update,
    whoever_hears, zombies_of,
};

const POLL: &str = "?epoll_wait,?epoll_pwait";

fn is_served(client: &mut Client, puppet: &mut Puppet) {
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!({}));
    client.gets(1);
}

#[test]
fn connections_are_taken_when_the_system_can_again() {
    for (fault, told) in [
        ("error=EMFILE:when=1..2", true),
        ("error=ENFILE:when=1..2", true),
        ("error=ENOMEM:when=1", true),
        ("error=ECONNABORTED:when=1..5", false),
        ("error=EPROTO:when=1..5", false),
        ("error=EPERM:when=1..5", false),
        ("error=EINTR:when=1..5", false),
    ] {
        let bus = Bus::start(one_pool(1));
        let mut puppet = bus.puppet();
        let mut first = bus.client();
        first.has_heard_nothing();
        let Some(strace) = Strace::on(&bus, "accept4", Some(fault)) else { return };
        is_served(&mut bus.client(), &mut puppet);
        is_served(&mut first, &mut puppet);
        assert!(strace.failed() > 0, "{fault}");
        assert_eq!(bus.log.text().contains("no connection can be taken for now"), told, "{fault}");
    }
}

#[test]
fn a_start_that_the_system_refuses_is_tried_again() {
    for (calls, fault) in [
        ("pipe2", "error=EMFILE:when=1"),
        ("pipe2", "error=ENFILE:when=3"),
        ("?clone,?clone3,?vfork,?fork", "error=EAGAIN:when=1"),
        ("?clone,?clone3,?vfork,?fork", "error=ENOMEM:when=1"),
    ] {
        let bus = Bus::start(json!({ "pools": [puppets("p", 1), puppets("q", 1)], "default_pool": "q" }));
        let (mut puppet, mut other) = (bus.puppet_of("p"), bus.puppet_of("q"));
        let mut client = bus.client();
        client.has_heard_nothing();
        let Some(strace) = Strace::on(&bus, calls, Some(fault)) else { return };
        puppet.exits(0);
        bus.log_has("worker p/0 cannot be started");
        is_served(&mut client, &mut other);
        let mut next = bus.puppet_of("p");
        assert!(strace.failed() > 0);
        client.sends(r#"{"jsonrpc":"2.0","id":2,"method":"work","pool":"p"}"#);
        let asked = next.is_asked("work");
        next.answers(&asked, json!({}));
        client.gets(2);
        bus.until("nothing of it is left", || zombies_of(bus.pid()).is_empty());
    }
}

#[test]
fn a_process_that_cannot_be_listened_to_is_ended_and_started_again() {
    // Not a puppet: the test would meet those that are ended at once, too.
    let bus = Bus::start(json!({ "pools": [{ "id": "p", "command": "sleep", "args": ["1000"] }] }));
    let mut client = bus.client();
    let mut worker = || {
        let worker = client.status()["pools"][0]["workers"][0].clone();
        worker["pid"].as_i64().filter(|_| worker["state"] == "up")
    };
    bus.until("it runs", || worker().is_some());
    let first = worker().expect("it runs");
    let Some(strace) = Strace::on(&bus, "epoll_ctl", Some("error=ENOSPC:when=1..4")) else { return };
    kill(Pid::from_raw(first as i32), Signal::SIGKILL).expect("it lives");
    bus.log_has("worker p/0 cannot be started");
    bus.until("the next one runs", || worker().is_some_and(|pid| pid != first));
    bus.until("none of them is left", || zombies_of(bus.pid()).is_empty());
    assert!(strace.failed() > 0);
}

#[test]
fn interrupted_calls_are_made_again() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let calls = format!("read,write,accept4,?waitid,{POLL}");
    let Some(strace) = Strace::on(&bus, &calls, Some("error=EINTR:when=1+3")) else { return };
    let text = "x".repeat(50_000);
    for life in 0..2 {
        for _ in 0..2 {
            let mut client = bus.client();
            let session = client.opens(&mut puppet, "s1");
            for id in 0..10 {
                client.sends(&request(id, "work", json!({ "text": text })));
                let asked = puppet.is_asked("work");
                assert_eq!(asked["params"]["text"], text);
                puppet.says(&update("s1", &text));
                puppet.answers(&asked, json!({ "text": text }));
                assert_eq!(client.reads(), update(&session, &text));
                assert_eq!(client.gets(id)["text"], text);
            }
            client.sends(&request(99, "session/close", json!({ "sessionId": session })));
            let asked = puppet.is_asked("session/close");
            puppet.answers(&asked, json!({}));
            client.gets(99);
        }
        puppet.exits(life);
        puppet = bus.puppet();
    }
    assert!(strace.failed() > 50, "{}", strace.failed());
}

#[test]
fn a_call_that_had_nothing_after_all_is_made_again_when_there_is_more() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.has_heard_nothing();
    let line = request(1, "work", json!({}));
    let Some(strace) = Strace::on(&bus, "read", Some("error=EAGAIN:when=1")) else { return };
    client.sends_bytes(&line.as_bytes()[..10]);
    bus.until("it was refused", || strace.failed() == 1);
    client.sends_bytes(&line.as_bytes()[10..]);
    client.sends("");
    puppet.is_asked("work");
}

#[test]
fn a_loop_that_cannot_poll_ends_everything_and_says_so() {
    let mut bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    for puppet in &mut workers {
        puppet.stays();
        puppet.ignores_sigterm();
    }
    let mut client = bus.client();
    client.has_heard_nothing();
    let Some(_strace) = Strace::on(&bus, POLL, Some("error=EBADF:when=1+")) else { return };
    let _ = client.wire.try_send(b"\n");
    assert_eq!(bus.exit_status().code(), Some(70));
    bus.log_has("cannot poll");
    bus.leaves_nothing_within(Duration::from_secs(2));
}

#[test]
fn a_group_is_killed_before_its_number_can_be_anothers() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let Some(strace) = Strace::on(&bus, "kill,wait4,?waitid", None) else { return };
    puppet.exits(0);
    bus.puppet();
    let seen = strace.seen();
    let at = |what: String| seen.find(&what).unwrap_or_else(|| panic!("no {what} in\n{seen}"));
    let killed = at(format!("kill(-{}, SIGKILL)", puppet.pid));
    assert!(killed < at(format!("wait4({}", puppet.pid)), "{seen}");
}

#[test]
fn a_state_that_cannot_be_written_is_done_without() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let Some(strace) = Strace::on(&bus, "openat", Some("error=ENOSPC:when=1+")) else { return };
    let mut client = bus.client();
    client.initializes(&mut puppet, json!({}), json!({}));
    bus.until("it was tried", || strace.failed() > 0);
    client.opens(&mut puppet, "s1");
    assert!(!bus.folder().join("stdio-bus").join("handshakes.json").exists());
}

#[test]
fn a_log_on_a_full_disk_does_not_stop_the_traffic() {
    let bus = Bus::plan(one_pool(1)).after("exec 2>/dev/full").start();
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    for _ in 0..100 {
        puppet.says("not a message, so it is logged");
        puppet.mutters("this as well\n");
        is_served(&mut client, &mut puppet);
    }
}

#[test]
fn a_bus_without_memory_ends_and_leaves_nothing() {
    let mut bus = Bus::plan(one_pool(1)).after("ulimit -v 70000").start();
    let mut puppet = bus.puppet();
    puppet.stays();
    puppet.has_a_child();
    let mut client = bus.client();
    // Longer than what there is, though not than what a line may be.
    let _ = client.wire.try_send(&[b"{\"id\":\"".as_slice(), &vec![b'x'; 63 << 20]].concat());
    let status = bus.exit_status();
    assert!(!status.success(), "{status}");
    bus.leaves_nothing_within(Duration::from_secs(2));
}

#[test]
fn long_lines_cross_pipes_and_sockets_of_a_page() {
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/bus.sock"] }));
    let mut puppet = bus.puppet();
    puppet.has_small_pipes();
    let mut client = bus.client();
    let text: String = (0..200_000).map(|n| format!("{n},")).collect();
    client.sends(&request(1, "work", json!({ "text": text })));
    let asked = puppet.is_asked("work");
    assert_eq!(asked["params"]["text"], text);
    puppet.says(&update("s1", "of nobody"));
    puppet.says(&result(&asked["id"], json!(text)));
    assert_eq!(client.gets(1), text);
    client.has_heard_nothing();
}

#[test]
fn several_exits_that_come_as_one_signal_are_all_collected() {
    let bus = Bus::start(one_pool(4));
    let workers = bus.puppets::<4>();
    let mut client = bus.client();
    client.has_heard_nothing();
    bus.signal(Signal::SIGSTOP);
    for puppet in &workers {
        kill(Pid::from_raw(puppet.pid as i32), Signal::SIGKILL).expect("it lives");
    }
    bus.until("all have died", || workers.iter().all(|puppet| zombies_of(bus.pid()).contains(&puppet.pid)));
    bus.signal(Signal::SIGCONT);
    let mut next = bus.puppets::<4>();
    assert_eq!(client.status()["counters"]["worker_deaths"], 4);
    bus.until("none is left", || zombies_of(bus.pid()).is_empty());
    client.sends(&request(1, "work", json!({})));
    whoever_hears(&mut next).is_asked("work");
}

#[test]
fn a_service_manager_hears_when_the_bus_is_ready_turns_and_stops() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket in a folder of ours");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let hears = || {
        let mut text = [0; 100];
        let count = manager.recv(&mut text).expect("the bus says something");
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    let plan = Bus::plan(limited(1, json!({ "drain_timeout_sec": 1000 })));
    let plan = plan.env("NOTIFY_SOCKET", path.to_str().expect("UTF-8")).env("WATCHDOG_USEC", "100000");
    let mut bus = plan.start();
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    assert_eq!(hears(), "READY=1");
    // Also while nothing happens.
    for _ in 0..3 {
        assert_eq!(hears(), "WATCHDOG=1");
    }
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    while hears() != "STOPPING=1" {}
    assert_eq!(hears(), "WATCHDOG=1", "it goes on until the end");
    puppet.answers(&asked, json!({}));
    client.gets(1);
    assert_eq!(bus.exit_status().code(), Some(0));
}
