//! Slow and silent peers: they cost bounded memory and delay no other peer.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Bus, bus_puppet_client, cpu_ticks, limited, one_pool, open_fds, peak_kib, puppets, request, time_passes,
    update,
};

#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_delays_no_other_client() {
    let bus = Bus::start(limited(1, json!({ "max_output_queue": 65536 })));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.opens(&mut puppet, "s1");
    // With ann as its only client, the bus could just pause the worker.
    ben.opens(&mut puppet, "s2");
    let before = peak_kib(bus.pid());
    let text = "x".repeat(32 << 10);
    // Ann reads none of these 20 MiB.
    for n in 0..20 {
        for _ in 0..32 {
            puppet.sends(&update("s1", &text));
        }
        ben.sends(&request(n, "work", json!({})));
        let asked = puppet.is_asked("work");
        puppet.answers(&asked, json!(n));
        assert_eq!(ben.gets(n), n);
    }
    let grown = peak_kib(bus.pid()) - before;
    assert!(grown < 4 << 10, "the bus has grown by {grown} KiB");
    assert_eq!(ben.status()["clients"], 1, "a client that reads nothing is disconnected in the end");
}

#[test]
fn a_worker_that_never_reads_pauses_its_clients_until_they_get_errors() {
    let bus = Bus::start(limited(1, json!({ "max_output_queue": 65536, "backpressure_timeout_sec": 0.5 })));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    puppet.stops_reading();
    let text = "x".repeat(10 << 10);
    for n in 0..60 {
        ann.sends(&request(n, "work", json!({ "text": text })));
    }
    let held = ben.status()["held_bytes"].as_u64().expect("a number");
    assert!(held < 256 << 10, "{held} bytes are held");
    // Requests that the first process did not begin to read are answered `busy` or move to the next process.
    let mut next = bus.puppet();
    let mut answers = std::collections::BTreeMap::<u64, String>::new();
    bus.until("each is answered", || {
        if next.has_more() {
            let asked = next.is_asked("work");
            next.answers(&asked, json!("late"));
        }
        while ann.connection.has_more() {
            let answer = ann.receives();
            let what = answer.pointer("/error/data/reason").unwrap_or(&answer["result"]);
            let twice = answers
                .insert(answer["id"].as_u64().expect("an id"), what.as_str().expect("text").to_owned());
            assert_eq!(twice, None);
        }
        answers.len() == 60
    });
    let count = |what: &str| answers.values().filter(|answer| *answer == what).count();
    assert!(count("busy") > 0, "{answers:?}");
    assert!(count("late") > 0, "{answers:?}");
    assert_eq!(count("busy") + count("late") + count("worker_lost"), 60, "{answers:?}");
    ann.has_received_nothing();
}

#[test]
fn a_half_closed_client_gets_all_its_answers() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(1, &session);
    client.sends(&request(2, "work", json!({})));
    // The last line has no newline, but is complete.
    client.sends_bytes(request(3, "work", json!({})).as_bytes());
    client.half_closes();
    let asked: Vec<Value> = (0..3).map(|_| puppet.receives()).collect();
    puppet.sends(&update("s1", "word"));
    for question in asked.iter().rev() {
        puppet.answers(question, json!({}));
    }
    assert_eq!(client.reads(), update(&session, "word"));
    for id in [3, 2, 1] {
        client.gets(id);
    }
    client.is_closed();
}

#[test]
fn waiting_costs_no_processor_time() {
    let limits = json!({ "max_output_queue": 65536, "backpressure_timeout_sec": 1000 });
    let config =
        json!({ "pools": [puppets("p", 1), puppets("q", 1)], "limits": limits, "default_pool": "p" });
    let bus = Bus::start(config);
    let (mut writes, mut never_reads) = (bus.puppet_of("p"), bus.puppet_of("q"));
    // There are a worker that does not read, a client that does not read, and a half-closed client.
    never_reads.stops_reading();
    let (mut ann, mut ben, mut eve) = (bus.client(), bus.client(), bus.client());
    for id in 0..20 {
        let text = "x".repeat(20 << 10);
        ann.sends(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","pool":"q","params":"{text}"}}"#));
    }
    ben.opens(&mut writes, "s1");
    eve.asks_pool("q", 1, "work");
    eve.half_closes();
    let mut watcher = bus.client();
    let word = update("s1", &"x".repeat(32 << 10));
    bus.until("all stand still", || {
        let held = watcher.status()["held_bytes"].as_u64();
        let before = cpu_ticks(bus.pid());
        let goes_on = writes.floods(&word);
        time_passes(Duration::from_millis(50));
        !goes_on && held > Some(128 << 10) && cpu_ticks(bus.pid()) == before
    });
    bus.becomes_idle();
}

#[test]
fn a_worker_that_floods_stderr_delays_no_client() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let before = peak_kib(bus.pid());
    for _ in 0..64 {
        puppet.writes_stderr(&"x".repeat(64 << 10));
    }
    client.is_served_by(&mut puppet);
    let grown = peak_kib(bus.pid()) - before;
    assert!(grown < 2 << 10, "the bus has grown by {grown} KiB");
}

#[test]
fn clients_do_not_use_up_the_fds_that_workers_need() {
    let bus = Bus::plan(one_pool(1)).after("ulimit -n 60").start();
    let mut puppet = bus.puppet();
    let mut first = bus.client();
    first.has_received_nothing();
    let mut crowd: Vec<_> = (0..80).map(|_| bus.client()).collect();
    let mut last = crowd.pop().expect("one of them");
    last.sees_error(Value::Null, -32054, "busy");
    last.is_closed();
    bus.becomes_idle();
    for _ in 0..3 {
        puppet.exits(0);
        puppet = bus.puppet();
        first.is_served_by(&mut puppet);
    }
    drop(crowd);
    bus.until("there is room again", || first.status()["clients"] == 1);
    bus.client().has_received_nothing();
}

#[test]
fn clients_that_come_and_go_leave_no_fd_and_no_session_behind() {
    let bus = Bus::start(one_pool(1));
    let mut watcher = bus.client();
    let mut puppet = bus.puppet();
    watcher.has_received_nothing();
    let before = open_fds(bus.pid());
    for n in 0..200 {
        let mut client = bus.client();
        match n % 5 {
            0 => drop(client),
            1 => client.breaks(),
            2 => client.sends_bytes(b"{\"jsonrpc\":\"2.0\",\"id\":1,"),
            3 => client.sends_bytes(b"GET / HTTP/1.1"),
            _ => {
                let session = client.opens(&mut puppet, &format!("s{n}"));
                client.closes(&mut puppet, &session);
            }
        }
    }
    for _ in 0..2 {
        puppet.exits(0);
        puppet = bus.puppet();
    }
    bus.until("all is as before", || {
        let status = watcher.status();
        open_fds(bus.pid()) == before
            && (&status["clients"], &status["sessions"], &status["calls"])
                == (&json!(1), &json!(0), &json!(0))
    });
    assert!(watcher.status()["held_bytes"].as_u64() < Some(1024));
}

#[test]
fn a_stderr_that_is_never_read_does_not_stop_the_traffic() {
    let echo = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] });
    let bus = Bus::plan(json!({ "pools": [echo] })).env("RUST_LOG", "trace").ignores_stderr().start();
    let mut client = bus.client();
    for batch in 0..50 {
        for n in 0..100 {
            client.sends(&request(batch * 100 + n, "any/thing", json!({ "n": n })));
        }
        // A line that is no message makes the bus log at every level.
        client.sends("{oops");
        let (mut answers, mut errors) = (0, 0);
        while answers + errors < 101 {
            match client.receives().get("error") {
                Some(_) => errors += 1,
                None => answers += 1,
            }
        }
        assert_eq!((answers, errors), (100, 1));
    }
}
