//! The status of the bus and its sessions.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, Exit, Link, TestBus, limited, pool};
use crate::config::{Limits, PoolConfig};
use crate::limit::{SESSIONS_PAGE, STATUS_WORKERS_BYTES};
use crate::{Companion, CompanionStatus};

impl TestBus {
    fn status(&mut self, client: Link) -> Value {
        self.asks_bus(client, "_bus/status")
    }

    pub(super) fn asks_bus(&mut self, client: Link, method: &str) -> Value {
        self.sends(client, &format!(r#"{{"id":"look","method":"{method}"}}"#));
        let answer = self.sees_json(client);
        assert_eq!(answer["id"], "look");
        answer["result"].clone()
    }
}

#[test]
fn a_status_counts_what_was_read_and_written() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.sends(client, r#"{"id":1,"method":"good"}"#);
    bus.answers(worker, "good", "true");
    bus.sends(client, r#"{"id":2,"method":"bad"}"#);
    let (id, _) = bus.sees_request(worker, "bad");
    bus.sends(worker, &format!(r#"{{"id":{id},"error":{{"code":1,"message":"no"}}}}"#));
    let (good, bad) = (bus.sees(client), bus.sees(client));
    let status = bus.status(client);
    let counters = &status["counters"];
    let counted = ["requests", "answers", "errors", "lines_in", "lines_out"].map(|name| &counters[name]);
    // The status request itself is read and not answered yet.
    assert_eq!(counted, [2, 2, 1, 5, 4]);
    assert!(counters["bytes_out"].as_u64() > Some((good.len() + bad.len()) as u64));
    let read = counters["bytes_in"].as_u64().expect("a number");
    let before = counters["bytes_out"].as_u64();
    let again = bus.status(client);
    let asked = r#"{"id":"look","method":"_bus/status"}"#.len() as u64 + 1;
    assert_eq!(again["counters"]["bytes_in"], read + asked, "only the second status request is added");
    assert!(again["counters"]["bytes_out"].as_u64() > before);
    let pool = &again["pools"][0];
    assert_eq!((&pool["workers"][0]["lines_in"], &pool["workers"][0]["lines_out"]), (&json!(2), &json!(2)));
    let told = ["requests", "errors"].map(|name| &pool[name]);
    assert_eq!((told, &pool["answer_us"]["count"]), ([&json!(2), &json!(1)], &json!(2)));
    let sides = &again["sides"];
    let lines = |side: &str| ["lines_in", "lines_out"].map(|name| sides[side][name].clone());
    assert_eq!((lines("client"), lines("worker")), ([json!(4), json!(3)], [json!(2), json!(2)]));
    for (total, name) in
        [(&again["counters"]["bytes_in"], "bytes_in"), (&again["counters"]["bytes_out"], "bytes_out")]
    {
        let both = ["client", "worker"].map(|side| sides[side][name].as_u64().expect("a number"));
        assert_eq!(*total, both.iter().sum::<u64>(), "{name}");
    }
    bus.is_idle();
}

#[test]
fn the_time_to_the_first_words_of_an_agent_is_measured() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let session = bus.opens(client, worker, "s1");
    let told = json!({ "p50": 3000, "p90": 3000, "p99": 3000, "max": 3000, "count": 1 });
    for expected in [&Value::Null, &told] {
        // Only the first update of a turn counts, and one after its end does not.
        bus.asks(client, 2, "session/prompt", &session);
        bus.advances(Duration::from_millis(3));
        if *expected != Value::Null {
            for _ in 0..2 {
                bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1"}}"#);
                bus.sees(client);
                bus.advances(Duration::from_millis(3));
            }
        }
        bus.answers(worker, "session/prompt", "{}");
        bus.sees(client);
        bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1"}}"#);
        bus.sees(client);
        let status = bus.status(client);
        assert_eq!((&status["ttft_us"], &status["pools"][0]["ttft_us"]), (expected, expected));
    }
}

#[test]
fn rates_and_latencies_are_recent_and_need_no_alarm() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    assert_eq!(bus.status(client)["latency_us"], Value::Null);
    bus.advances(Duration::from_secs(20));
    for took_ms in [2, 4] {
        bus.sends(client, r#"{"id":1,"method":"m"}"#);
        bus.advances(Duration::from_millis(took_ms));
        bus.answers(worker, "m", "1");
        bus.sees(client);
    }
    bus.advances(Duration::from_millis(994));
    let status = bus.status(client);
    let latency = json!({ "p50": 2047, "p90": 4000, "p99": 4000, "max": 4000, "count": 2 });
    assert_eq!((&status["latency_us"], &status["pools"][0]["latency_us"]), (&latency, &latency));
    assert_eq!((&status["rates"]["requests"], &status["rates"]["lines_out"]), (&json!(0.2), &json!(0.4)));
    assert_eq!(status["pools"][0]["rates"]["requests"], 0.2);
    assert_eq!(bus.bus.next_alarm(), None, "an idle bus sleeps");
    bus.advances(Duration::from_secs(100));
    let status = bus.status(client);
    assert_eq!((&status["latency_us"], &status["rates"]["requests"]), (&Value::Null, &json!(0.0)));
    bus.is_idle();
}

#[test]
fn refused_and_skipped_lines_are_counted_by_reason() {
    let mut bus = TestBus::new(limited(Limits { max_input_buffer: 200, ..Limits::default() }));
    let (client, worker) = (bus.client(), bus.worker(0));
    let long = "x".repeat(300);
    bus.sends(client, r#"{"method":"$/cancel_request","params":{"requestId":5}}"#);
    for line in [r#"{"id":1,"id":1}"#, r#"{"id":1,"method":}"#, r#"{"id":1,"result":1}"#, &long] {
        bus.sends(client, line);
    }
    bus.sends(client, r#"{"id":3,"method":"session/prompt","params":{"sessionId":"no"}}"#);
    bus.sends(worker, "a stray print");
    for reason in ["invalid", "parse", "too_large"] {
        bus.sees_error(client, Value::Null, reason);
    }
    bus.sees_error(client, json!(3), "unknown_session");
    let status = bus.status(client);
    assert_eq!(status["refused"], json!({ "invalid": 1, "parse": 1, "too_large": 1, "unknown_session": 1 }));
    let skipped = json!({
        "malformed_lines": 2, "too_large": 1, "stray_lines": 1, "stray_answers": 1, "dropped_notifications": 1,
    });
    assert_eq!(status["skipped"], skipped);
}

#[test]
fn a_pool_is_shown_with_the_lives_of_its_workers() {
    let two = vec![pool("a", 2), pool("b", 1)];
    let mut bus = TestBus::new(Config { default_pool: Some("a".into()), ..Config::with_pools(two) });
    let client = bus.client();
    bus.shell.bus.listens_at(vec!["tcp://127.0.0.1:9000".to_owned()]);
    bus.advances(Duration::from_secs(7));
    let worker = bus.processes[0].worker;
    bus.handles(Event::Exited { worker, exit: Exit::Code(3) });
    let status = bus.status(client);
    assert_eq!(status["listening"], json!(["tcp://127.0.0.1:9000"]));
    assert_eq!(status["web"], Value::Null);
    let limits = Limits::default();
    assert_eq!(status["limits"]["held_bytes"], limits.max_held_bytes);
    assert_eq!((&status["limits"]["clients"], &status["limits"]["calls"]), (&json!(10_000), &json!(1 << 20)));
    let a = &status["pools"][0];
    assert_eq!(
        ["id", "up", "resting", "broken"].map(|key| &a[key]),
        [&json!("a"), &json!(1), &json!(1), &json!(0)]
    );
    let worker_field = |nth: usize, key: &str| a["workers"][nth][key].clone();
    assert_eq!(
        (worker_field(0, "last_exit"), worker_field(0, "up_sec"), worker_field(0, "state")),
        (json!("exit 3"), Value::Null, json!("resting"))
    );
    assert_eq!(
        (worker_field(1, "last_exit"), worker_field(1, "up_sec"), worker_field(1, "state")),
        (Value::Null, json!(7), json!("up"))
    );
    let old = bus.processes.iter().position(|process| process.worker != worker).expect("another");
    bus.crashes(old);
    let status = bus.status(client);
    assert_eq!(status["pools"][0]["workers"][1]["last_exit"], "signal 9");
}

#[test]
fn a_status_shows_workers_up_to_a_length_and_one_pool_if_it_is_asked_for() {
    let pools = vec![pool("a", 1000), pool("b", 2)];
    let mut bus = TestBus::new(Config { default_pool: Some("a".into()), ..Config::with_pools(pools) });
    let client = bus.client();
    let status = bus.status(client);
    let [a, b] = [0, 1].map(|at| &status["pools"][at]);
    let count = |pool: &Value| pool["workers"].as_array().expect("a list").len() as u64;
    assert!((300..900).contains(&count(a)), "{}", count(a));
    assert_eq!((count(a) + a["more"].as_u64().expect("a count"), &a["up"]), (1000, &json!(1000)));
    assert_eq!((count(b), &b["more"], &b["up"]), (0, &json!(2), &json!(2)));
    assert!(status.to_string().len() < STATUS_WORKERS_BYTES + 8192);
    // One that waits for what processes use, and one that does not.
    bus.advances(Duration::from_secs(2));
    for _ in 0..2 {
        bus.sends(client, r#"{"id":1,"method":"_bus/status","params":{"pool":"b"}}"#);
        let answer = bus.sees_json(client);
        let pools = answer["result"]["pools"].as_array().expect("a list");
        assert_eq!((pools.len(), count(&pools[0]), pools[0].get("more")), (1, 2, None));
        assert_eq!(pools[0]["workers"][0]["rss_bytes"], 1 << 20);
    }
    bus.sends(client, r#"{"id":2,"method":"_bus/status","params":{"pool":"c"}}"#);
    bus.sees_error(client, json!(2), "unknown_pool");
    bus.sends(client, r#"{"id":3,"method":"_bus/status","params":null}"#);
    assert_eq!(bus.sees_json(client)["result"]["pools"][1]["id"], "b");
}

#[test]
fn the_restarts_of_a_pool_are_counted_beyond_their_window_and_beyond_a_worker() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.client();
    let counted = |bus: &mut TestBus| {
        let pool = bus.status(client)["pools"][0].clone();
        (pool["restarts"].clone(), pool["restarts_total"].clone())
    };
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    assert_eq!(counted(&mut bus), (json!(1), json!(1)));
    // A restart after the window forgets those before it.
    bus.advances(Limits::default().restart_window);
    let last = bus.processes.len() - 1;
    bus.crashes(last);
    bus.advances(Duration::from_secs(1));
    assert_eq!(counted(&mut bus), (json!(1), json!(2)));
    bus.crashes(1);
    bus.advances(Duration::from_secs(1));
    assert_eq!(counted(&mut bus), (json!(2), json!(3)));
    bus.reloads(&Config::with_pools([pool("agents", 1)]));
    for nth in 0..bus.processes.len() {
        let worker = bus.processes[nth].worker;
        bus.handles(Event::Exited { worker, exit: Exit::Code(0) });
    }
    assert_eq!(bus.status(client)["pools"][0]["workers"].as_array().map(Vec::len), Some(1));
    assert_eq!(counted(&mut bus).1, json!(3), "a worker is gone, and what it counted is not");
}

#[test]
fn sessions_are_shown_without_the_ids_that_open_them() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(ann);
    bus.sends(ann, r#"{"id":0,"method":"_bus/hello","params":{"client":"zed"}}"#);
    bus.sees(ann);
    let id = bus.opens(ann, worker, "agents-own-id");
    bus.advances(Duration::from_secs(5));
    bus.asks(ann, 1, "session/prompt", &id);
    bus.advances(Duration::from_secs(2));
    let ben = bus.client();
    let counts = |bus: &mut TestBus, client: Link| {
        let status = bus.status(client);
        [&status["pools"][0]["sessions"], &status["pools"][0]["kept"], &status["lost"]].map(Value::clone)
    };
    let sessions = bus.asks_bus(ben, "_bus/sessions");
    let session = sessions["sessions"][0].clone();
    let expected = json!({
        "session": "s1", "pool": "agents", "worker": 0, "client": "zed", "folder": "/", "title": null,
        "age_sec": 7, "idle_sec": 2, "calls": 1, "questions": 0, "movable": false, "state": "live",
    });
    assert_eq!(session, expected);
    for text in [sessions.to_string(), bus.status(ben).to_string()] {
        assert!(!text.contains(&id) && !text.contains("agents-own-id"), "{text}");
    }
    for named in ["s1", "1", "zed"] {
        bus.asks(ben, 9, "session/prompt", named);
        bus.sees_error(ben, json!(9), "unknown_session");
    }
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(ann);
    assert_eq!(counts(&mut bus, ben), [json!(1), json!(0), json!(0)]);
    bus.handles(Event::Broken(ann));
    assert_eq!(counts(&mut bus, ben), [json!(1), json!(1), json!(0)], "kept");
    let kept = bus.asks_bus(ben, "_bus/sessions")["sessions"][0].clone();
    assert_eq!(
        (&kept["state"], &kept["client"], &kept["idle_sec"]),
        (&json!("kept"), &Value::Null, &json!(0))
    );
}

#[test]
fn a_session_has_the_title_that_its_agent_told_last() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { share: true, ..pool("a", 1) }]));
    let (client, worker) = (bus.client(), bus.worker(0));
    let id = bus.opens(client, worker, "s1");
    let title = |bus: &mut TestBus| bus.asks_bus(client, "_bus/sessions")["sessions"][0]["title"].clone();
    for (update, expected) in [
        (r#"{"sessionUpdate":"session_info_update","title":"Fix the \u0062uild"}"#, json!("Fix the build")),
        (r#"{"sessionUpdate":"session_info_update","updatedAt":"now"}"#, json!("Fix the build")),
        (r#"{"sessionUpdate":"state_update","title":"no"}"#, json!("Fix the build")),
        (r#"{"title":"In any order","sessionUpdate":"session_info_update"}"#, json!("In any order")),
        (r#"{"sessionUpdate":"session_info_update","title":null}"#, Value::Null),
    ] {
        let params = format!(r#"{{"sessionId":"s1","update":{update}}}"#);
        bus.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
        bus.sees(client);
        assert_eq!(title(&mut bus), expected, "{update}");
    }
    bus.sends(client, r#"{"id":1,"method":"session/list","params":{}}"#);
    bus.answers(worker, "session/list", r#"{"sessions":[{"sessionId":"s1","title":"As listed"}]}"#);
    bus.sees(client);
    assert_eq!(title(&mut bus), "As listed");
    bus.asks(client, 2, "session/close", &id);
    bus.answers(worker, "session/close", "{}");
    bus.sees(client);
    bus.is_idle();
}

#[test]
fn a_title_is_for_those_who_may_join() {
    let mut bus = TestBus::new(Config::with_pools([PoolConfig { share: false, ..pool("a", 1) }]));
    let (client, worker) = (bus.client(), bus.worker(0));
    bus.opens(client, worker, "s1");
    let update = r#"{"sessionUpdate":"session_info_update","title":"Secret"}"#;
    bus.sends(
        worker,
        &format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#),
    );
    bus.sees(client);
    let session = bus.asks_bus(client, "_bus/sessions")["sessions"][0].clone();
    assert_eq!((&session["title"], &session["folder"]), (&Value::Null, &json!("/")));
}

#[test]
fn a_client_is_called_what_it_calls_itself_in_initialize() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let hello = r#"{"id":0,"method":"_bus/hello","params":{"client":"stdio-bus connect"}}"#;
    bus.sends(client, hello);
    bus.sees(client);
    bus.sends(
        client,
        r#"{"id":1,"method":"initialize","params":{"protocolVersion":1,"clientInfo":{"name":"zed"}}}"#,
    );
    bus.initializes(worker);
    bus.sees(client);
    bus.opens(client, worker, "s1");
    let name = |bus: &mut TestBus| bus.asks_bus(client, "_bus/sessions")["sessions"][0]["client"].clone();
    assert_eq!(name(&mut bus), "zed");
    bus.sends(client, hello);
    bus.sees(client);
    assert_eq!(name(&mut bus), "zed", "who passes messages on does not know better");
}

#[test]
fn sessions_are_shown_in_pages() {
    let mut bus = TestBus::with_workers(1);
    let (client, worker) = (bus.client(), bus.worker(0));
    let label = |nth: usize| format!(r#"{{"method":"note","sessionId":"label {nth}"}}"#);
    for nth in 0..2 * SESSIONS_PAGE + 1 {
        bus.sends(client, &label(nth));
        bus.sees(worker);
    }
    let mut page = bus.asks_bus(client, "_bus/sessions");
    let mut shown = Vec::new();
    loop {
        let sessions = page["sessions"].as_array().expect("a list");
        assert!(sessions.len() <= SESSIONS_PAGE);
        shown.extend(sessions.iter().map(|session| session["session"].to_string()));
        let Value::String(cursor) = page["nextCursor"].clone() else { break };
        // What comes and goes meanwhile does not hide what stays.
        bus.sends(client, &label(3 * SESSIONS_PAGE + shown.len()));
        bus.sees(worker);
        let ask = json!({ "id": "look", "method": "_bus/sessions", "params": { "cursor": cursor } });
        bus.sends(client, &ask.to_string());
        page = bus.sees_json(client)["result"].clone();
    }
    let lasting = (1..=2 * SESSIONS_PAGE + 1).map(|number| format!(r#""s{number}""#));
    for session in lasting {
        assert_eq!(shown.iter().filter(|shown| **shown == session).count(), 1, "{session}");
    }
    bus.sends(client, r#"{"id":1,"method":"_bus/sessions","params":{"cursor":"x"}}"#);
    bus.sees_error(client, json!(1), "invalid");
}

#[test]
fn the_web_door_and_the_link_are_shown_as_the_shell_says() {
    let mut bus = TestBus::new(Config::with_pools([pool("a", 1)]));
    let client = bus.client();
    let since = Some(Duration::from_secs(2));
    let up = CompanionStatus { state: "up", pid: Some(7), since, restarts: 1, ..CompanionStatus::default() };
    bus.shell.bus.companion_is(Companion::Web, Some(up.clone()));
    bus.advances(Duration::from_secs(5));
    let status = bus.status(client);
    assert_eq!(status["link"], json!(null));
    let web = status["web"].clone();
    assert_eq!(
        web,
        json!({"state": "up", "listening": null, "pid": 7, "up_sec": 3, "restarts": 1, "last_exit": null,
            "last_words": null, "counted": null})
    );
    bus.shell.bus.companion_is(Companion::Link, Some(up));
    assert_eq!(bus.status(client)["link"], web);
    assert_eq!(bus.status(client)["history"], json!(null));
}
