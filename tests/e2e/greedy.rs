//! Clients that take all that they can get: the bus counts what they make it keep, and others are served beside them.

use std::fs;
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::json;

use crate::harness::{Bus, Client, Puppet, limited, one_pool, puppets, request};

const TOKEN: &str = "kq3VbN8-hY2_fJ5tR7wXz0";
const MIB: usize = 1 << 20;

/// The memory that the bus has now, in bytes.
fn resident_bytes(bus: &Bus) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", bus.pid())).expect("the bus runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

fn held_bytes(watcher: &mut Client) -> usize {
    watcher.status()["held_bytes"].as_u64().expect("a number") as usize
}

/// Lets a client do its worst, and compares how the bus has grown with what it says that it holds. The client leaves
/// in the end, and nothing may be held for it.
fn does_its_worst(what: &str, at_least: usize, worst: impl FnOnce(&Bus, &mut Puppet) -> Vec<Client>) {
    let of_agent = matches!(what, "notifications" | "elicitations");
    let bus = Bus::start(limited(1, json!({ "session_keep_sec": 0 })));
    let mut puppet = bus.puppet();
    let mut watcher = bus.client();
    let before = (held_bytes(&mut watcher), resident_bytes(&bus)).1;
    let clients = worst(&bus, &mut puppet);
    let held = held_bytes(&mut watcher);
    let grown = resident_bytes(&bus).saturating_sub(before);
    assert!(held >= at_least, "{what}: {held} bytes are held, at least {at_least} are kept");
    // Tables and the allocator take something too, which keeps some of the memory of long lines.
    assert!(grown < 3 * held + 32 * MIB, "{what}: {held} bytes are held, and the bus has grown by {grown}");
    clients.into_iter().for_each(Client::breaks);
    bus.until("they are gone", || watcher.status()["clients"] == 1);
    if of_agent {
        puppet.exits(0);
    }
    bus.until("nothing is held", || held_bytes(&mut watcher) == 0);
}

fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[test]
fn what_clients_make_the_bus_keep_is_bounded_and_counted() {
    does_its_worst("names", 0, |bus, _| {
        let greedy = |_| {
            let mut client = bus.client();
            client.sends(&request(1, "_bus/hello", json!({ "client": long(8 * MIB) })));
            client.sees_error(1, -32600, "invalid");
            client.sends(&request(1, "_bus/hello", json!({ "client": long(60_000) })));
            client.gets(1);
            client
        };
        (0..8).map(greedy).collect()
    });
    does_its_worst("handshakes", 64 * 50_000, |bus, puppet| {
        let greedy = |_| {
            let mut client = bus.client();
            client.sends(&request(1, "initialize", json!({ "x": long(100_000) })));
            client.sees_error(1, -32600, "invalid");
            client.sends(&request(2, "initialize", json!({ "x": long(64_000) })));
            client
        };
        let clients = (0..64).map(greedy).collect();
        let asked = puppet.is_asked("initialize");
        puppet.answers(&asked, json!({}));
        clients
    });
    does_its_worst("labels", 1000 * 8000, |bus, puppet| {
        let mut client = bus.client();
        for label in 0..1000 {
            let label = format!("{label}{}", long(4000));
            client.sends(&json!({ "jsonrpc": "2.0", "method": "note", "sessionId": label }).to_string());
            puppet.is_asked("note");
        }
        vec![client]
    });
    does_its_worst("ids", 400 * 4000, |bus, puppet| {
        let mut client = bus.client();
        for id in 0..400 {
            let id = format!("{id}{}", long(4000));
            client.sends(&json!({ "jsonrpc": "2.0", "id": id, "method": "hang" }).to_string());
            puppet.is_asked("hang");
        }
        vec![client]
    });
}

#[test]
fn what_agents_make_the_bus_keep_is_bounded_and_counted() {
    does_its_worst("notifications", 15 * 60_000, |bus, puppet| {
        let mut client = bus.client();
        client.is_served_by(puppet);
        for method in 0..64 {
            let line = json!({ "jsonrpc": "2.0", "method": format!("_n{method}"), "params": long(60_000) });
            puppet.sends(&line.to_string());
            client.receives();
        }
        vec![client]
    });
    does_its_worst("elicitations", 200 * 4000, |bus, puppet| {
        let mut client = bus.client();
        client.opens(puppet, "s1");
        for id in 0..400 {
            let params = json!({ "sessionId": "s1", "elicitationId": format!("{id}{}", long(4000)) });
            puppet.sends(&request(id, "elicitation/create", params));
            let asked = client.is_asked("elicitation/create");
            client.answers(&asked, json!({ "action": "decline" }));
            puppet.gets(id);
        }
        vec![client]
    });
}

#[test]
fn a_modest_client_is_never_busy_beside_those_that_take_all_calls() {
    let bus = Bus::start(limited(1, json!({ "max_calls": 64, "max_clients": 16 })));
    let mut puppet = bus.puppet();
    let mut modest = bus.client();
    for _ in 0..3 {
        let mut crowd: Vec<Client> = (0..3).map(|_| bus.client()).collect();
        for greedy in &mut crowd {
            for id in 0..70 {
                greedy.sends(&request(id, "hang", json!({})));
            }
            // The last one is refused, so all were read.
            let mut taken = 69;
            while greedy.receives()["id"] != 69 {
                taken -= 1;
            }
            (0..taken).for_each(|_| drop(puppet.is_asked("hang")));
        }
        modest.is_served_by(&mut puppet);
        crowd.into_iter().for_each(Client::breaks);
        bus.until("they are gone", || modest.status()["clients"] == 1);
        modest.is_served_by(&mut puppet);
    }
    assert!(modest.status()["calls"].as_u64() <= Some(8), "what they left behind is forgotten");
}

#[test]
fn a_modest_client_is_never_busy_beside_lines_that_do_not_end() {
    let limits = json!({ "max_held_bytes": 8 * MIB, "max_input_buffer": 4 * MIB });
    let bus = Bus::start(limited(1, limits));
    let mut puppet = bus.puppet();
    let mut modest = bus.client();
    let begun = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":"{}"#, long(4 * MIB - 100));
    let mut crowd = Vec::new();
    for _ in 0..20 {
        let mut greedy = bus.client();
        greedy.sends_bytes(begun.as_bytes());
        crowd.push(greedy);
        modest.is_served_by(&mut puppet);
        assert!(held_bytes(&mut modest) <= 8 * MIB);
    }
    for greedy in &mut crowd {
        greedy.sends("\"}");
    }
    // Which of them are given up depends on who is read first.
    bus.until("those that were given up hear so", || modest.status()["refused"]["busy"].as_u64() >= Some(15));
}

#[test]
fn one_client_leaves_sessions_to_others() {
    let mut pool = puppets("p", 1);
    pool["max_sessions"] = json!(8);
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut puppet = bus.puppet();
    let (mut greedy, mut modest) = (bus.client(), bus.client());
    modest.has_received_nothing();
    for session in 0..6 {
        greedy.opens(&mut puppet, &format!("g{session}"));
    }
    greedy.sends(&request(1, "session/new", json!({})));
    greedy.sees_error(1, -32054, "busy");
    modest.opens(&mut puppet, "m");
}

/// Connects from this address of this machine.
fn connects_from(address: [u8; 4], port: u16) -> OwnedFd {
    let stream =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let [a, b, c, d] = address;
    bind(std::os::fd::AsRawFd::as_raw_fd(&stream), &SockaddrIn::new(a, b, c, d, 0))
        .expect("a loopback address");
    connect(std::os::fd::AsRawFd::as_raw_fd(&stream), &SockaddrIn::new(127, 0, 0, 1, port))
        .expect("the bus listens");
    stream
}

#[test]
fn strangers_that_flood_push_out_nobody_from_elsewhere() {
    let bus = Bus::plan(one_pool(1)).token(TOKEN).start();
    let port: u16 = bus.tcp().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut slow: Vec<Client> = (0..10).map(|_| bus.client()).collect();
    // Many times as many as have room, all from another address.
    let strangers: Vec<OwnedFd> = (0..1000).map(|_| connects_from([127, 0, 0, 77], port)).collect();
    for client in &mut slow {
        client.sends(&request(1, "_bus/hello", json!({ "token": TOKEN })));
        assert_eq!(client.gets(1)["bus"], "stdio-bus");
    }
    drop(strangers);
}
