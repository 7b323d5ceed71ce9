//! Faults of the system: calls that fail or are interrupted, full disks, no memory, small pipes. The bus keeps serving,
//! or exits cleanly.
//!
//! strace makes the calls fail. If it is not installed or not allowed, those tests print so and pass.

use std::os::unix::net::UnixDatagram;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::harness::{
    Bus, PATIENCE, Strace, bus_puppet_client, first_asked, limited, one_pool, puppets, request, result,
    update, zombies_of,
};

const POLL: &str = "?epoll_wait,?epoll_pwait";

#[test]
fn connections_are_accepted_as_soon_as_the_system_allows_it_again() {
    for (fault, is_logged) in [
        ("error=EMFILE:when=1..2", true),
        ("error=ENFILE:when=1..2", true),
        ("error=ENOMEM:when=1", true),
        ("error=ECONNABORTED:when=1..5", false),
        ("error=EPROTO:when=1..5", false),
        ("error=EPERM:when=1..5", false),
        ("error=EINTR:when=1..5", false),
    ] {
        let (bus, mut puppet, mut first) = bus_puppet_client();
        first.has_received_nothing();
        let Some(strace) = Strace::on(&bus, "accept4", Some(fault)) else { return };
        bus.client().is_served_by(&mut puppet);
        first.is_served_by(&mut puppet);
        assert!(strace.failed() > 0, "{fault}");
        assert_eq!(bus.log.text().contains("cannot accept connections for now"), is_logged, "{fault}");
    }
}

#[test]
fn a_worker_that_the_system_refuses_to_start_is_started_later() {
    for (calls, fault) in [
        ("pipe2", "error=EMFILE:when=1"),
        ("pipe2", "error=ENFILE:when=3"),
        ("?clone,?clone3,?vfork,?fork", "error=EAGAIN:when=1"),
        ("?clone,?clone3,?vfork,?fork", "error=ENOMEM:when=1"),
    ] {
        let bus = Bus::start(json!({ "pools": [puppets("p", 1), puppets("q", 1)], "default_pool": "q" }));
        let (mut puppet, mut other) = (bus.puppet_of("p"), bus.puppet_of("q"));
        let mut client = bus.client();
        client.has_received_nothing();
        let Some(strace) = Strace::on(&bus, calls, Some(fault)) else { return };
        puppet.exits(0);
        bus.log_has("worker p/0 cannot be started");
        client.is_served_by(&mut other);
        let mut next = bus.puppet_of("p");
        assert!(strace.failed() > 0);
        client.asks_pool("p", 2, "work");
        let asked = next.is_asked("work");
        next.answers(&asked, json!({}));
        client.gets(2);
        bus.until("nothing of it is left", || zombies_of(bus.pid()).is_empty());
    }
}

#[test]
fn a_worker_whose_pipes_cannot_be_polled_is_killed_and_started_again() {
    // This is no puppet, because the test would have to accept also those that are killed at once.
    let bus = Bus::start(json!({ "pools": [{ "id": "p", "command": "sleep", "args": ["1000"] }] }));
    let mut client = bus.client();
    let mut worker = || {
        let worker = client.status()["pools"][0]["workers"][0].clone();
        if worker["state"] == "up" { worker["pid"].as_i64() } else { None }
    };
    bus.until("it runs", || worker().is_some());
    let first = worker().expect("it runs");
    let Some(strace) = Strace::on(&bus, "epoll_ctl", Some("error=ENOSPC:when=1..4")) else { return };
    kill(Pid::from_raw(first as i32), Signal::SIGKILL).expect("it runs");
    bus.log_has("worker p/0 cannot be started");
    bus.until("the next one runs", || worker().is_some_and(|pid| pid != first));
    bus.until("none of them is left", || zombies_of(bus.pid()).is_empty());
    assert!(strace.failed() > 0);
}

#[test]
fn interrupted_system_calls_are_repeated() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let calls = format!("read,write,accept4,?waitid,{POLL}");
    let Some(strace) = Strace::on(&bus, &calls, Some("error=EINTR:when=1+3")) else { return };
    let text = "x".repeat(50_000);
    for run in 0..2 {
        for _ in 0..2 {
            let mut client = bus.client();
            let session = client.opens(&mut puppet, "s1");
            for id in 0..10 {
                client.sends(&request(id, "work", json!({ "text": text })));
                let asked = puppet.is_asked("work");
                assert_eq!(asked["params"]["text"], text);
                puppet.sends(&update("s1", &text));
                puppet.answers(&asked, json!({ "text": text }));
                assert_eq!(client.reads(), update(&session, &text));
                assert_eq!(client.gets(id)["text"], text);
            }
            client.closes(&mut puppet, &session);
        }
        puppet.exits(run);
        puppet = bus.puppet();
    }
    assert!(strace.failed() > 50, "{}", strace.failed());
}

#[test]
fn a_read_after_a_spurious_wakeup_is_repeated_when_data_comes() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.has_received_nothing();
    let line = request(1, "work", json!({}));
    let Some(strace) = Strace::on(&bus, "read", Some("error=EAGAIN:when=1")) else { return };
    client.sends_bytes(&line.as_bytes()[..10]);
    bus.until("it was refused", || strace.failed() == 1);
    client.sends_bytes(&line.as_bytes()[10..]);
    client.sends("");
    puppet.is_asked("work");
}

#[test]
fn an_event_loop_that_cannot_poll_stops_the_bus_and_logs_why() {
    let mut bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    for puppet in &mut workers {
        puppet.stays();
        puppet.ignores_sigterm();
    }
    let mut client = bus.client();
    client.has_received_nothing();
    let Some(_strace) = Strace::on(&bus, POLL, Some("error=EBADF:when=1+")) else { return };
    let _ = client.connection.try_send(b"\n");
    assert_eq!(bus.exit_status().code(), Some(70));
    bus.log_has("cannot poll");
    bus.leaves_nothing();
}

#[test]
fn a_process_group_is_killed_before_its_id_can_be_reused() {
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
fn a_bus_that_cannot_write_its_state_runs_without_it() {
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
        puppet.sends("not a message, so it is logged");
        puppet.writes_stderr("this as well\n");
        client.is_served_by(&mut puppet);
    }
}

#[test]
fn a_log_that_has_reached_the_largest_file_size_does_not_stop_the_traffic() {
    let bus = Bus::plan(one_pool(1)).after("ulimit -f 1; exec 2>log").start();
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    for _ in 0..100 {
        puppet.sends("not a message, so it is logged");
        client.is_served_by(&mut puppet);
    }
    let full =
        || std::fs::metadata(bus.folder().join("log")).is_ok_and(|log| [512, 1024].contains(&log.len()));
    bus.until("the log is full", full);
    client.is_served_by(&mut puppet);
    let status = std::fs::read_to_string(format!("/proc/{}/status", puppet.pid)).expect("it runs");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("a mask");
    let ignored = u64::from_str_radix(mask, 16).expect("a mask");
    assert_eq!(ignored & 1 << (Signal::SIGXFSZ as i32 - 1), 0, "a worker has the default");
}

#[test]
fn a_bus_without_memory_exits_and_leaves_no_process() {
    let mut bus = Bus::plan(one_pool(1)).after("ulimit -v 70000").start();
    let mut puppet = bus.puppet();
    puppet.stays();
    puppet.has_a_child();
    let mut client = bus.client();
    // This is more than the memory, but less than the longest line.
    let _ = client.connection.try_send(&[b"{\"id\":\"".as_slice(), &vec![b'x'; 63 << 20]].concat());
    let status = bus.exit_status();
    assert!(!status.success(), "{status}");
    bus.leaves_nothing();
}

#[test]
fn long_lines_pass_through_pipes_of_one_page() {
    let bus = Bus::start(json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/bus.sock"] }));
    let mut puppet = bus.puppet();
    puppet.has_small_pipes();
    let mut client = bus.client();
    let text: String = (0..200_000).map(|n| format!("{n},")).collect();
    client.sends(&request(1, "work", json!({ "text": text })));
    let asked = puppet.is_asked("work");
    assert_eq!(asked["params"]["text"], text);
    puppet.sends(&update("s1", "of no client"));
    puppet.sends(&result(&asked["id"], json!(text)));
    assert_eq!(client.gets(1), text);
    client.has_received_nothing();
}

#[test]
fn several_exits_behind_one_signal_are_all_reaped() {
    let bus = Bus::start(one_pool(4));
    let workers = bus.puppets::<4>();
    let mut client = bus.client();
    client.has_received_nothing();
    bus.signal(Signal::SIGSTOP);
    for puppet in &workers {
        kill(Pid::from_raw(puppet.pid as i32), Signal::SIGKILL).expect("it runs");
    }
    bus.until("all have died", || workers.iter().all(|puppet| zombies_of(bus.pid()).contains(&puppet.pid)));
    bus.signal(Signal::SIGCONT);
    let mut next = bus.puppets::<4>();
    assert_eq!(client.status()["counters"]["worker_deaths"], 4);
    bus.until("none is left", || zombies_of(bus.pid()).is_empty());
    client.sends(&request(1, "work", json!({})));
    first_asked(&mut next).is_asked("work");
}

#[test]
fn a_service_manager_is_notified_when_the_bus_is_ready_alive_and_stopping() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket in a folder of ours");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let receive = || {
        let mut text = [0; 100];
        let count = manager.recv(&mut text).expect("the bus sends something");
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    let plan = Bus::plan(limited(1, json!({ "drain_timeout_sec": 1000 })));
    let plan = plan.env("NOTIFY_SOCKET", path.to_str().expect("UTF-8")).env("WATCHDOG_USEC", "100000");
    let mut bus = plan.start();
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    assert_eq!(receive(), "READY=1");
    // The watchdog is notified also while nothing happens.
    for _ in 0..3 {
        assert_eq!(receive(), "WATCHDOG=1");
    }
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    while receive() != "STOPPING=1" {}
    assert_eq!(receive(), "WATCHDOG=1", "the watchdog is notified until the exit");
    puppet.answers(&asked, json!({}));
    client.gets(1);
    assert_eq!(bus.exit_status().code(), Some(0));
}
