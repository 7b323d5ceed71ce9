//! How a bus stops, and how its workers start.

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::harness::{Bus, is_gone, limited, one_pool, request, zombies_of};

#[test]
fn sigterm_lets_a_turn_finish_and_refuses_new_requests() {
    let mut bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let mut client = bus.client();
    let (session, at) = client.opens_anywhere(&mut workers, "s1");
    let puppet = &mut workers[at];
    client.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    bus.signal(Signal::SIGTERM);
    bus.log_has("stopping");
    client.prompts(3, &session);
    client.sees_error(3, -32055, "stopping");
    client.sends(&request(4, "session/new", json!({})));
    client.sees_error(4, -32055, "stopping");
    // Requests that belong to the turn are still forwarded.
    puppet.asks_permission(9, "s1");
    let asked = client.is_asked("session/request_permission");
    client.answers(&asked, json!("yes"));
    assert_eq!(puppet.gets(9)["result"], "yes");
    puppet.ends_turn(&turn, "end_turn");
    client.gets(2);
    client.is_closed();
    assert_eq!(bus.exit_status().code(), Some(0));
    bus.leaves_nothing();
}

#[test]
fn no_client_is_accepted_while_the_bus_stops() {
    let mut bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    bus.signal(Signal::SIGINT);
    bus.log_has("stopping");
    assert!(std::net::TcpStream::connect(bus.tcp()).is_err());
    puppet.answers(&asked, json!({}));
    client.gets(1);
    assert_eq!(bus.exit_status().code(), Some(0));
}

#[test]
fn a_turn_that_exceeds_the_drain_timeout_gets_an_error() {
    let mut bus = Bus::start(limited(1, json!({ "drain_timeout_sec": 0.2 })));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    client.sees_error(1, -32055, "stopping");
    client.is_closed();
    assert_eq!(bus.exit_status().code(), Some(0));
}

#[test]
fn a_second_signal_stops_at_once_whatever_the_workers_do() {
    let mut bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let grandchild = puppet.has_a_child();
    puppet.stays();
    puppet.ignores_sigterm();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    bus.log_has("stopping");
    bus.signal(Signal::SIGINT);
    client.sees_error(1, -32055, "stopping");
    assert_eq!(bus.exit_status().code(), Some(0));
    assert!(is_gone(puppet.pid) && is_gone(grandchild));
    bus.leaves_nothing();
}

#[test]
fn after_a_kill_of_the_bus_no_process_is_left_within_two_seconds() {
    let mut bus = Bus::start(one_pool(3));
    let mut workers = bus.puppets::<3>();
    let mut pids = vec![bus.pid()];
    for puppet in &mut workers {
        pids.extend([puppet.pid, puppet.has_a_child()]);
        puppet.stays();
        puppet.ignores_sigterm();
    }
    // The mark of a process can be read only a moment after its start.
    bus.until("all are found", || pids.iter().all(|pid| bus.survivors().contains(pid)));
    assert!(bus.survivors().len() > pids.len(), "the orphan guard is one more");
    bus.signal(Signal::SIGKILL);
    bus.leaves_nothing();
    bus.exit_status();
}

#[cfg(target_os = "linux")]
#[test]
fn a_child_that_left_its_process_group_is_killed_with_the_bus() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut bus = Bus::start(one_pool(1));
        let mut puppet = bus.puppet();
        let left = puppet.has_a_detached_child();
        bus.until("it leads a session", || {
            nix::unistd::getsid(Some(Pid::from_raw(left as i32))).is_ok_and(|sid| sid.as_raw() == left as i32)
        });
        bus.signal(signal);
        bus.exit_status();
        bus.leaves_nothing();
    }
}

#[test]
fn an_orphan_guard_that_was_killed_is_replaced() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    puppet.stays();
    let guard = || bus.survivors().into_iter().find(|pid| ![bus.pid(), puppet.pid].contains(pid));
    let first = guard().expect("a guard");
    kill(Pid::from_raw(first as i32), Signal::SIGKILL).expect("it runs");
    bus.until("there is another orphan guard", || guard().is_some_and(|pid| pid != first));
    bus.until("the first one is reaped", || zombies_of(bus.pid()).is_empty());
    bus.signal(Signal::SIGKILL);
    bus.leaves_nothing();
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_kills_by_the_name_of_the_bus_does_not_kill_its_guard() {
    let bus = Bus::start(one_pool(1));
    let puppet = bus.puppet();
    let guard = bus.survivors().into_iter().find(|pid| ![bus.pid(), puppet.pid].contains(pid));
    let guard = guard.expect("a guard");
    // killall compares the first, pkill -f searches the second.
    let about = |file: &str| std::fs::read_to_string(format!("/proc/{guard}/{file}")).unwrap_or_default();
    bus.until("it has its own name", || about("comm") == "sbus-guard\n");
    assert_eq!(about("cmdline"), "sbus-guard\0internal-guard\0");
}

#[cfg(target_os = "linux")]
#[test]
fn the_next_bus_ends_what_a_bus_left_that_was_killed_with_its_guard() {
    let mut first = Bus::start(one_pool(1));
    let mut puppet = first.puppet();
    let left = [puppet.has_a_child(), puppet.has_a_detached_child()];
    first.until("all are found", || left.iter().all(|pid| first.survivors().contains(pid)));
    let known = [first.pid(), puppet.pid, left[0], left[1]];
    let guard = first.survivors().into_iter().find(|pid| !known.contains(pid)).expect("a guard");
    // A stopped bus does not replace its guard.
    first.signal(Signal::SIGSTOP);
    kill(Pid::from_raw(guard as i32), Signal::SIGKILL).expect("it runs");
    first.signal(Signal::SIGKILL);
    first.exit_status();
    first.until("its own processes are gone", || is_gone(guard) && is_gone(puppet.pid));
    assert!(left.iter().all(|pid| !is_gone(*pid)), "nobody is there to end them");
    let marks = first.folder().join("stdio-bus/marks");
    let state = first.folder().to_str().expect("UTF-8");
    let mut living = Bus::plan(one_pool(1)).env("XDG_STATE_HOME", state).start();
    first.leaves_nothing();
    // A third one leaves the second alone, because that lives.
    let mut bystander = living.puppet();
    let mut third = Bus::plan(one_pool(1)).env("XDG_STATE_HOME", state).start();
    third.puppet();
    let files = || std::fs::read_dir(&marks).expect("the folder of the marks").count();
    third.until("only the living have a mark", || files() == 2);
    living.client().is_served_by(&mut bystander);
    for bus in [&mut living, &mut third] {
        bus.signal(Signal::SIGTERM);
        assert_eq!(bus.exit_status().code(), Some(0));
    }
    assert_eq!(files(), 0);
}

#[test]
fn a_suspended_worker_does_not_keep_the_bus_from_exiting() {
    let mut bus = Bus::start(one_pool(1));
    let puppet = bus.puppet();
    kill(Pid::from_raw(puppet.pid as i32), Signal::SIGSTOP).expect("it runs");
    bus.signal(Signal::SIGTERM);
    bus.log_has("stopping");
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    assert!(is_gone(puppet.pid));
}

#[test]
fn a_worker_inherits_three_pipes_and_no_other_fd() {
    let prelude = "ulimit -S -c 7; exec 7</dev/null 9>/dev/null";
    let plan = Bus::plan(one_pool(1)).after(prelude).env("STDIO_BUS_CONFIG", "x").env("STDIO_BUS_OTHER", "y");
    let plan = plan.env("NOTIFY_SOCKET", "/x").env("LISTEN_FDS", "0").env("WATCHDOG_USEC", "1");
    let bus = plan.env("FOR_ALL", "z").start();
    let about = bus.puppet().about;
    assert_eq!(about["fds"], json!([0, 1, 2]));
    // A shell counts in blocks of 512 bytes, and may not be allowed to raise the limit.
    if getrlimit(Resource::RLIMIT_CORE).is_ok_and(|(_, hard)| hard >= 7 * 512) {
        assert_eq!(about["core_bytes"], 7 * 512);
    }
    assert_eq!(about["group"], about["pid"], "it leads its own process group");
    assert_eq!(about["ppid"], bus.pid());
    assert_eq!(about["env"]["FOR_ALL"], "z");
    let names = about["env"].as_object().expect("an object").keys();
    let private = ["STDIO_BUS_", "NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_"];
    let ours: Vec<_> = names.filter(|name| private.iter().any(|word| name.starts_with(word))).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

#[test]
fn a_worker_inherits_no_blocked_or_ignored_signal() {
    // This is no puppet, because a Rust program ignores SIGPIPE before it could report that.
    let pool = json!({ "id": "p", "command": "sleep", "args": ["1000"] });
    let bus = Bus::plan(json!({ "pools": [pool] })).after("trap '' USR1 PIPE QUIT HUP").start();
    let mut client = bus.client();
    let mut pid = json!(null);
    bus.until("the worker has started", || {
        pid = client.status()["pools"][0]["workers"][0]["pid"].clone();
        !pid.is_null()
    });
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    for mask in ["SigBlk", "SigIgn"] {
        let line = status.lines().find(|line| line.starts_with(mask));
        assert_eq!(line, Some(format!("{mask}:\t{:016x}", 0).as_str()));
    }
}
