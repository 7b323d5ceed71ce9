//! Workers that die: every waiting client gets one error, no process is left, and the pool serves again.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::harness::{
    Bus, bus_puppet_client, first_asked, is_gone, one_pool, puppets, request, result, update, with,
    zombies_of,
};

#[test]
fn killing_every_worker_answers_six_waiting_prompts_once_each_and_the_pool_serves_again() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let mut clients: Vec<_> = (0..6).map(|_| bus.client()).collect();
    let mut sessions = Vec::new();
    for (n, client) in clients.iter_mut().enumerate() {
        let (session, at) = client.opens_anywhere(&mut workers, &format!("s{n}"));
        client.prompts(2, &session);
        workers[at].is_asked("session/prompt");
        sessions.push(session);
    }
    for puppet in &mut workers {
        kill(Pid::from_raw(puppet.pid as i32), Signal::SIGKILL).expect("it runs");
    }
    let mut lost = [0, 0];
    for client in &mut clients {
        let data = client.sees_error(2, -32050, "worker_lost");
        assert_eq!((&data["pool"], &data["exit"]), (&json!("p"), &json!({ "signal": 9 })));
        lost[data["worker"].as_u64().expect("the number of the worker") as usize] += 1;
        client.has_received_nothing();
    }
    assert_eq!(lost, [3, 3]);
    let mut workers = bus.puppets::<2>();
    for (client, session) in clients.iter_mut().zip(&sessions) {
        client.prompts(3, session);
        assert_eq!(client.sees_error(3, -32051, "unknown_session")["lost"], true);
    }
    clients[0].sends(&request(4, "work", json!({})));
    let puppet = first_asked(&mut workers);
    let asked = puppet.is_asked("work");
    puppet.answers(&asked, json!("again"));
    assert_eq!(clients[0].gets(4), "again");
    bus.until("no zombie is left", || zombies_of(bus.pid()).is_empty());
}

#[test]
fn output_of_a_worker_before_its_death_is_delivered_before_the_error() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(1, &session);
    client.prompts(2, &session);
    let first = puppet.is_asked("session/prompt");
    puppet.is_asked("session/prompt");
    for n in 0..100 {
        puppet.sends(&update("s1", &format!("word {n}")));
    }
    puppet.ends_turn(&first, "end_turn");
    puppet.exits(3);
    for n in 0..100 {
        assert_eq!(client.reads(), update(&session, &format!("word {n}")));
    }
    client.gets(1);
    assert_eq!(client.sees_error(2, -32050, "worker_lost")["exit"], json!({ "code": 3 }));
    client.has_received_nothing();
}

#[test]
fn a_last_line_without_a_newline_counts_if_it_is_complete() {
    let bus = Bus::start(one_pool(1));
    let mut client = bus.client();
    for whole in [true, false] {
        let mut puppet = bus.puppet();
        client.sends(&request(1, "work", json!({})));
        let asked = puppet.is_asked("work");
        let answer = result(&asked["id"], json!("done"));
        puppet.sends_bytes(&answer.as_bytes()[..answer.len() - usize::from(!whole)]);
        puppet.exits(0);
        if whole {
            assert_eq!(client.gets(1), "done");
        } else {
            client.sees_error(1, -32050, "worker_lost");
        }
        client.has_received_nothing();
    }
}

#[test]
fn a_child_of_a_worker_that_holds_stdout_neither_delays_the_error_nor_survives() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let grandchild = puppet.has_a_child();
    client.sends(&request(1, "work", json!({})));
    puppet.is_asked("work");
    puppet.dies_by(Signal::SIGKILL as i32);
    client.sees_error(1, -32050, "worker_lost");
    bus.until("the grandchild is gone", || is_gone(grandchild));
    bus.puppet();
}

#[test]
fn a_worker_that_closes_its_pipes_is_replaced() {
    for which in ["stdout", "stdin"] {
        let (bus, mut puppet, mut client) = bus_puppet_client();
        client.sends(&request(1, "work", json!({})));
        puppet.is_asked("work");
        match which {
            "stdout" => puppet.closes_stdout(),
            _ => {
                puppet.closes_stdin();
                // The bus can only notice this when it writes.
                client.sends(&request(2, "work", json!({})));
            }
        }
        client.sees_error(1, -32050, "worker_lost");
        let mut next = bus.puppet();
        client.sends(&request(3, "work", json!({})));
        let mut asked = next.is_asked("work");
        if which == "stdin" {
            // The second request never reached the first process, so it moves to the next.
            next.answers(&asked, json!({}));
            client.gets(2);
            asked = next.is_asked("work");
        }
        next.answers(&asked, json!({}));
        client.gets(3);
        puppet.is_gone();
    }
}

#[test]
fn a_dedicated_pool_gives_each_client_its_own_process() {
    let pool = with(puppets("p", 1), json!({ "mode": "dedicated", "max_instances": 2 }));
    let bus = Bus::start(json!({ "pools": [pool], "limits": { "session_keep_sec": 0 } }));
    let (mut ann, mut ben, mut eve) = (bus.client(), bus.client(), bus.client());
    let mut of_ann = bus.puppet();
    ann.is_served_by(&mut of_ann);
    ben.sends(&request(1, "work", json!({})));
    let mut of_ben = bus.puppet();
    let asked = of_ben.is_asked("work");
    of_ben.answers(&asked, json!({}));
    ben.gets(1);
    eve.sends(&request(1, "work", json!({})));
    eve.sees_error(1, -32054, "busy");
    assert_ne!(of_ann.pid, of_ben.pid);
    drop(ann);
    of_ann.stdin_ends();
    of_ann.is_gone();
    let mut of_eve = bus.puppet();
    eve.is_served_by(&mut of_eve);
    assert!(is_gone(of_ann.pid));
}

#[test]
fn the_error_for_a_lost_dedicated_worker_carries_its_stderr() {
    let pool = with(puppets("p", 1), json!({ "mode": "dedicated" }));
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut puppet = bus.puppet();
    let mut client = bus.client();
    client.sends(&request(1, "work", json!({})));
    puppet.is_asked("work");
    puppet.writes_stderr(&"x".repeat(5000));
    puppet.writes_stderr("\nfatal: out of cheese\n");
    puppet.exits(1);
    let data = client.sees_error(1, -32050, "worker_lost");
    let tail = data["stderr"].as_str().expect("the tail of stderr");
    assert!(tail.ends_with("\nfatal: out of cheese") && tail.len() <= 4096, "{tail}");
}

#[test]
fn an_offline_session_of_a_dedicated_worker_moves_to_the_client_that_resumes_it() {
    let pool = with(puppets("p", 1), json!({ "mode": "dedicated", "max_instances": 2 }));
    let bus = Bus::start(json!({ "pools": [pool] }));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben, mut eve) = (bus.client(), bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    drop(ann);
    bus.until("ann has left", || ben.status()["clients"] == 2);
    eve.sends(&request(1, "work", json!({})));
    let mut of_eve = bus.puppet();
    assert_eq!(of_eve.is_asked("work")["method"], "work");
    ben.asks(1, "session/resume", json!({ "sessionId": session, "cwd": "/" }));
    for (id, method) in [(2, "work"), (3, "session/prompt")] {
        ben.sends(&request(id, method, json!({ "sessionId": session })));
        let asked = puppet.is_asked(method);
        puppet.answers(&asked, json!({}));
        ben.gets(id);
    }
    // A request without a session goes to the process that now belongs to ben.
    ben.is_served_by(&mut puppet);
}
