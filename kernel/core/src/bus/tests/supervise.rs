//! Supervision: crashes, restarts, reload and stop.

use std::time::Duration;

use serde_json::json;

use super::{Config, Event, Exit, Limits, PoolConfig, TestBus, limited, pool};
use crate::api::{Signal, SpawnFault};
use crate::config::Mode;

#[test]
fn a_crash_answers_every_waiting_client_once() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben) = (bus.client(), bus.client());
    bus.sends(ann, r#"{"jsonrpc":"2.0","id":1,"method":"work"}"#);
    bus.sends(ben, r#"{"jsonrpc":"2.0","id":1,"method":"work"}"#);
    let worker = bus.worker(0);
    bus.sees_request(worker, "work");
    bus.sees_request(worker, "work");
    bus.crashes(0);
    for client in [ann, ben] {
        let error = bus.sees_error(client, json!(1), "worker_lost");
        assert_eq!(error["code"], -32050);
        assert_eq!(error["data"]["pool"], "agents");
        assert_eq!(error["data"]["worker"], 0);
        assert_eq!(error["data"]["exit"], json!({"signal": 9}));
    }
    bus.is_idle();
    bus.sends(ann, r#"{"id":2,"method":"again"}"#);
    bus.advances(Duration::from_millis(100));
    let next = bus.worker(1);
    bus.sees_request(next, "again");
}

#[test]
fn lines_left_in_the_pipe_are_delivered_before_the_loss() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"a"}"#);
    bus.sends(client, r#"{"id":2,"method":"b"}"#);
    let (wire, _) = bus.sees_request(worker, "a");
    bus.sees_request(worker, "b");
    bus.sends_bytes(worker, format!("{{\"id\":{wire},\"result\":1}}\n{{\"id\":").as_bytes());
    bus.crashes(0);
    assert_eq!(bus.sees_json(client)["result"], 1);
    bus.sees_error(client, json!(2), "worker_lost");
    bus.is_idle();
}

#[test]
fn a_call_that_was_not_written_moves_to_another_worker() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.client();
    let (one, two) = (bus.worker(0), bus.worker(1));
    bus.stops_reading(one);
    bus.sends(client, r#"{"id":1,"method":"work"}"#);
    bus.sees_nothing(two);
    bus.crashes(0);
    let (wire, _) = bus.sees_request(two, "work");
    bus.sees_nothing(client);
    bus.sends(two, &format!(r#"{{"id":{wire},"result":1}}"#));
    assert_eq!(bus.sees(client), r#"{"id":1,"result":1}"#);
    bus.is_idle();
}

#[test]
fn a_session_is_lost_with_its_worker_and_its_client_gets_an_error() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(client, worker, "s1");
    bus.sends(worker, r#"{"id":1,"method":"fs/read_text_file","params":{"sessionId":"s1"}}"#);
    let (wire, _) = bus.sees_request(client, "fs/read_text_file");
    bus.crashes(0);
    // Nobody waits for this answer any more.
    let (_, cancel) = bus.sees_request(client, "$/cancel_request");
    assert_eq!(cancel["params"]["requestId"].to_string(), wire);
    bus.sends(client, &format!(r#"{{"id":{wire},"result":"late"}}"#));
    bus.advances(Duration::from_secs(1));
    bus.asks(client, 1, "session/prompt", &session);
    assert_eq!(bus.sees_error(client, json!(1), "unknown_session")["data"]["lost"], true);
    let next = bus.worker(1);
    bus.sees_nothing(next);
    bus.asks(client, 2, "session/load", &session);
    let (wire, request) = bus.sees_request(next, "session/load");
    assert_eq!(request["params"]["sessionId"], "s1");
    bus.sends(next, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    bus.sees(client);
    bus.asks(client, 3, "session/prompt", &session);
    assert_eq!(bus.sees_json(next)["params"]["sessionId"], "s1");
}

#[test]
fn a_worker_that_closes_its_pipes_and_does_not_exit_is_stopped() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"work"}"#);
    bus.sees_request(worker, "work");
    bus.handles(Event::Ended(worker));
    bus.sees_nothing(client);
    bus.advances(Duration::from_millis(250));
    bus.sees_error(client, json!(1), "worker_lost");
    assert_eq!(bus.signals, [(bus.processes[0].worker, Signal::Term)]);
    bus.advances(Duration::from_secs(3));
    assert_eq!(bus.signals[1], (bus.processes[0].worker, Signal::Kill));
    bus.is_idle();
}

#[test]
fn a_pool_whose_workers_are_just_exiting_is_not_down() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.handles(Event::Ended(worker));
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    bus.sees_error(client, json!(1), "worker_lost");
    bus.crashes(0);
    bus.sends(client, r#"{"id":2,"method":"m"}"#);
    bus.advances(Duration::from_millis(100));
    let next = bus.worker(1);
    bus.sees_request(next, "m");
}

#[test]
fn a_pool_whose_program_does_not_exist_is_down() {
    let mut bus = TestBus::new(Config::with_pools([pool("good", 1), pool("bad", 1)]));
    bus.shell.can_spawn = false;
    let worker = bus.processes[1].worker;
    bus.handles(Event::Exited { worker, exit: Exit::Code(1) });
    bus.advances(Duration::from_secs(1));
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"pool":"bad","method":"m"}"#);
    let error = bus.sees_error(client, json!(1), "pool_down");
    assert!(error["data"]["cause"].as_str().is_some_and(|cause| cause.contains("agent")), "{error}");
    bus.sends(client, r#"{"id":2,"pool":"good","method":"m"}"#);
    let good = bus.worker(0);
    bus.sees_request(good, "m");
}

#[test]
fn requests_that_wait_for_a_start_are_answered_when_it_fails() {
    let mut bus = TestBus::with_workers(1);
    bus.crashes(0);
    bus.shell.can_spawn = false;
    let client = bus.acp_client();
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    bus.sees_nothing(client);
    bus.advances(Duration::from_millis(100));
    bus.sees_error(client, json!(0), "pool_down");
    bus.sees_error(client, json!(1), "pool_down");
    bus.is_idle();
}

#[test]
fn a_crash_loop_ends_in_a_pause_and_callers_are_answered_at_once() {
    let mut bus = TestBus::with_workers(1);
    for nth in 0..6 {
        bus.crashes(nth);
        bus.advances(Duration::from_secs(2));
    }
    assert_eq!(bus.processes.len(), 6, "five restarts");
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let error = bus.sees_error(client, json!(1), "pool_down");
    assert_eq!(error["data"]["cause"], "was killed by signal 9");
    bus.advances(Duration::from_secs(60));
    assert_eq!(bus.processes.len(), 7);
    bus.sends(client, r#"{"id":2,"method":"m"}"#);
    let worker = bus.worker(6);
    bus.sees_request(worker, "m");
}

#[test]
fn silence_counts_only_while_an_answer_is_due() {
    let limits = Limits { silence_timeout: Some(Duration::from_secs(10)), ..Limits::default() };
    let mut bus = TestBus::new(limited(limits));
    bus.advances(Duration::from_secs(100));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    bus.advances(Duration::from_secs(9));
    bus.sends(worker, "still here");
    bus.advances(Duration::from_secs(9));
    assert!(bus.signals.is_empty());
    bus.advances(Duration::from_secs(1));
    bus.sees_request(worker, "m");
    bus.sees_error(client, json!(1), "worker_lost");
}

#[test]
fn silence_is_noticed_of_a_call_that_has_moved() {
    let limits = Limits { silence_timeout: Some(Duration::from_secs(10)), ..Limits::default() };
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([pool("agents", 2)]) });
    let (client, first, second) = (bus.client(), bus.worker(0), bus.worker(1));
    bus.stops_reading(first);
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    bus.crashes(0);
    bus.sees_request(second, "m");
    bus.advances(Duration::from_secs(10));
    bus.sees_error(client, json!(1), "worker_lost");
}

#[test]
fn a_stop_lets_calls_finish_and_refuses_new_ones() {
    let mut bus = TestBus::with_workers(2);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"slow"}"#);
    let (wire, _) = bus.sees_request(worker, "slow");
    bus.handles(Event::Stop);
    bus.sends(client, r#"{"id":2,"method":"new"}"#);
    bus.sees_error(client, json!(2), "stopping");
    assert!(bus.processes[0].stdin_open && !bus.exited);
    assert!(bus.connects().is_none());
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":1}}"#));
    assert_eq!(bus.sees_json(client)["result"], 1);
    for nth in 0..2 {
        assert!(!bus.processes[nth].stdin_open);
        let worker = bus.processes[nth].worker;
        bus.handles(Event::Exited { worker, exit: Exit::Code(0) });
    }
    assert!(bus.is_closed(client) && bus.exited && bus.bus.is_empty());
}

#[test]
fn a_stop_has_a_deadline_and_a_second_stop_does_not_wait() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"slow"}"#);
    bus.handles(Event::Stop);
    bus.advances(Duration::from_secs(30));
    let worker = bus.worker(0);
    bus.sees_request(worker, "slow");
    bus.sees_error(client, json!(1), "stopping");
    bus.advances(Duration::from_secs(5));
    assert_eq!(
        bus.signals.iter().map(|(_, signal)| *signal).collect::<Vec<_>>(),
        [Signal::Term, Signal::Kill]
    );

    let mut bus = TestBus::with_workers(1);
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"slow"}"#);
    bus.handles(Event::Stop);
    bus.handles(Event::Stop);
    let worker = bus.worker(0);
    bus.sees_request(worker, "slow");
    bus.sees_error(client, json!(1), "stopping");
    assert_eq!(bus.signals.len(), 1);
    bus.crashes(0);
    assert!(bus.exited);
}

#[test]
fn a_reload_replaces_only_pools_that_have_changed() {
    let mut bus = TestBus::new(Config::with_pools([pool("same", 1), pool("other", 1)]));
    let (client, same, old) = (bus.client(), bus.worker(0), bus.worker(1));
    bus.sends(client, r#"{"id":1,"pool":"other","method":"session/new","params":{}}"#);
    bus.answers(old, "session/new", r#"{"sessionId":"s"}"#);
    let session = bus.sees_json(client)["result"]["sessionId"].as_str().expect("an id").to_owned();
    let mut changed = pool("other", 1);
    changed.args = vec!["new".into()];
    let new = Config::with_pools([pool("same", 1), changed, pool("third", 1)]);
    bus.reloads(&new);
    bus.handles(Event::Alarm);
    assert_eq!(bus.processes.len(), 4);
    bus.sends(client, r#"{"id":2,"pool":"other","method":"session/new","params":{}}"#);
    let fresh = bus.worker(2);
    bus.sees_request(fresh, "session/new");
    bus.asks(client, 3, "session/close", &session);
    let (wire, _) = bus.sees_request(old, "session/close");
    assert!(bus.processes[1].stdin_open, "the old worker stays while it has a session");
    bus.sends(old, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    bus.sees(client);
    assert!(!bus.processes[1].stdin_open, "the old worker stops");
    bus.sends(client, r#"{"id":4,"pool":"same","method":"m"}"#);
    bus.sees_request(same, "m");
    bus.reloads(&Config::with_pools([pool("same", 1)]));
    bus.sends(client, r#"{"id":5,"pool":"third","method":"m"}"#);
    bus.sees_error(client, json!(5), "unknown_pool");
}

#[test]
fn a_process_that_was_replaced_while_it_started_is_ignored() {
    let dedicated = PoolConfig { mode: Mode::Dedicated, ..pool("agents", 1) };
    let mut bus = TestBus::unstarted(Config::with_pools([dedicated]));
    let (ann, ben) = (bus.client(), bus.client());
    let now = bus.now;
    bus.shell.bus.received(ann, b"{\"id\":1,\"method\":\"m\"}\n", now);
    bus.shell.bus.handle(Event::Broken(ann), now);
    let loads = b"{\"id\":2,\"method\":\"session/load\",\"params\":{\"sessionId\":\"s\"}}\n";
    bus.shell.bus.received(ben, loads, now);
    bus.act();
    assert!(!bus.processes[0].stdin_open, "it was started for a client that has left");
    let old = bus.worker(0);
    bus.sends(old, r#"{"id":3,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bus.sees_nothing(ben);
    bus.crashes(0);
    let next = bus.worker(1);
    bus.answers(next, "session/load", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 2);
    bus.is_idle();
}

#[test]
fn an_early_update_of_the_next_life_waits_for_a_session_that_moved_there() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.stops_reading(worker);
    for client in [ann, ben] {
        bus.sends(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    }
    bus.handles(Event::Broken(ben));
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.sends(next, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    bus.answers(next, "session/new", r#"{"sessionId":"s"}"#);
    let session = bus.sees_json(ann)["result"]["sessionId"].clone();
    assert_eq!(bus.sees_json(ann)["params"]["sessionId"], session);
    bus.is_idle();
}

/// Otherwise its sessions would be unknown in the new pool, and every client could load them there.
#[test]
fn a_pool_that_is_added_again_before_its_workers_have_stopped_is_the_same_pool() {
    let mut bus = TestBus::new(Config::with_pools([pool("agents", 1), pool("other", 1)]));
    let (ann, ben, old) = (bus.client(), bus.client(), bus.worker(0));
    bus.sends(ann, r#"{"id":1,"pool":"agents","method":"session/new","params":{}}"#);
    bus.answers(old, "session/new", r#"{"sessionId":"s"}"#);
    bus.sees(ann);
    bus.reloads(&Config::with_pools([pool("other", 1)]));
    bus.reloads(&Config::with_pools([pool("other", 1), pool("agents", 1)]));
    let fresh = bus.worker(2);
    bus.sends(ben, r#"{"id":2,"pool":"agents","method":"session/load","params":{"sessionId":"s"}}"#);
    bus.sees_error(ben, json!(2), "unknown_session");
    bus.sends(ben, r#"{"id":3,"pool":"agents","method":"m"}"#);
    bus.answers(fresh, "m", "{}");
    bus.sees(ben);
    bus.is_idle();
}

#[test]
fn late_events_of_a_worker_that_was_given_up_are_ignored() {
    let mut bus = TestBus::with_workers(1);
    let worker = bus.processes[0].worker;
    bus.crashes(0);
    bus.handles(Event::Exited { worker, exit: Exit::Code(0) });
    bus.handles(Event::SpawnFailed { worker, fault: SpawnFault { errno: 1, cwd: true } });
    bus.advances(Duration::from_secs(1));
    assert_eq!(bus.processes.len(), 2);
}

#[test]
fn a_process_that_survives_sigkill_is_given_up_and_replaced() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"work"}"#);
    bus.sees_request(worker, "work");
    bus.handles(Event::Ended(worker));
    bus.advances(Duration::from_secs(4));
    bus.sees_error(client, json!(1), "worker_lost");
    assert_eq!(bus.signals.last().map(|(_, signal)| *signal), Some(Signal::Kill));
    assert_eq!(bus.processes.len(), 1);
    bus.advances(Duration::from_secs(5));
    assert!(bus.is_closed(worker) && bus.processes.len() == 2, "its replacement has started");
    bus.sends(client, r#"{"id":2,"method":"work"}"#);
    let next = bus.worker(1);
    bus.sees_request(next, "work");
}

#[test]
fn a_reload_restarts_a_crash_loop_only_if_the_pool_has_changed() {
    let mut bus = TestBus::new(Config::with_pools([pool("loops", 1)]));
    for nth in 0..6 {
        bus.crashes(nth);
        bus.advances(Duration::from_secs(2));
    }
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    bus.sees_error(client, json!(1), "pool_down");
    let same = Config::with_pools([pool("loops", 1)]);
    bus.reloads(&same);
    bus.sends(client, r#"{"id":2,"method":"m"}"#);
    bus.sees_error(client, json!(2), "pool_down");
    assert_eq!(bus.processes.len(), 6);
    let mut mended = pool("loops", 1);
    mended.args = vec!["mended".into()];
    bus.reloads(&Config::with_pools([mended]));
    bus.sends(client, r#"{"id":3,"method":"m"}"#);
    let fresh = bus.worker(6);
    bus.sees_request(fresh, "m");
}

#[test]
fn a_bus_runs_for_centuries() {
    let mut bus = TestBus::with_workers(1);
    // A year is the largest value of these limits.
    let year = Duration::from_secs(365 * 24 * 3600);
    let limits = Limits {
        backpressure_timeout: year,
        restart_window: year,
        init_timeout: year,
        silence_timeout: Some(year),
        drain_timeout: year,
        session_keep: year,
        ..Limits::default()
    };
    bus.advances(year * 500);
    bus.reloads(&limited(limits));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "s1");
    bus.handles(Event::Broken(client));
    bus.crashes(0);
    bus.advances(year * 500);
    let client = bus.client();
    bus.sends(client, r#"{"id":1,"method":"m"}"#);
    let next = bus.worker(1);
    bus.sees_request(next, "m");
    bus.handles(Event::Stop);
    bus.advances(year * 500);
    bus.crashes(1);
    assert!(bus.exited);
}

#[test]
fn a_process_that_gets_no_processor_is_not_killed_for_being_slow() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    // Of its 30 seconds it had 12.
    bus.shell.wait = Duration::from_secs(18);
    bus.advances(Duration::from_secs(30));
    assert!(!bus.processes[0].signalled && bus.processes[0].stdin_open);
    bus.is_saved_and_restored();
    bus.advances(Duration::from_secs(17));
    bus.initializes(worker);
    assert_eq!(bus.sees_json(ann)["result"]["protocolVersion"], 1);
    bus.advances(Duration::from_secs(60));
    assert!(bus.processes[0].stdin_open);
}

#[test]
fn a_process_that_had_its_time_is_stopped_however_busy_the_machine_is() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    bus.shell.wait = Duration::from_secs(18);
    bus.advances(Duration::from_secs(47));
    assert_eq!(bus.processes.len(), 1);
    bus.advances(Duration::from_secs(1));
    let error = bus.sees_error(ann, json!(0), "no_start");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("did not answer initialize within 30 s"), "{message}");
}

#[test]
fn a_process_that_never_gets_a_processor_is_given_up_after_ten_minutes() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.acp_client();
    for _ in 0..599 {
        bus.advances(Duration::from_secs(1));
        bus.shell.wait = bus.now;
    }
    assert!(bus.processes[0].stdin_open);
    bus.advances(Duration::from_secs(1));
    let error = bus.sees_error(ann, json!(0), "no_start");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("within 600 s, of which it waited 599 s for a processor"), "{message}");
}
