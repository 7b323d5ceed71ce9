//! Sessions that are opened again: the client that writes down what is said knows of them at once.

use std::time::Duration;

use serde_json::json;

use super::{ATTACH, Config, Limits, Link, PoolConfig, TestBus, shared};

/// A bus with a keeper that knows all of it, ann and a worker that can resume sessions.
fn with_what_was_before(pool: PoolConfig, limits: Limits) -> (TestBus, Link, Link, Link) {
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([pool]) });
    bus.shell.bus.kept_by("secret");
    let keeper = bus.keeper();
    bus.knows_all(keeper);
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    let can = json!({ "loadSession": true, "sessionCapabilities": { "resume": {} } });
    bus.initializes_with(worker, &json!({ "protocolVersion": 1, "agentCapabilities": can }).to_string());
    bus.sees(ann);
    (bus, ann, keeper, worker)
}

/// The client opens a session of the agent by this method, and the agent tells nothing of what was said.
fn opens_again(bus: &mut TestBus, client: Link, worker: Link, method: &str, name: &str) {
    let params = format!(r#"{{"sessionId":"{name}","cwd":"/srv","mcpServers":[]}}"#);
    bus.sends(client, &format!(r#"{{"id":2,"method":"{method}","params":{params}}}"#));
    bus.answers(worker, method, "{}");
    assert_eq!(bus.sees_json(client)["id"], json!(2));
}

#[test]
fn a_session_that_is_opened_again_and_says_nothing_is_known_at_once() {
    for method in ["session/load", "session/resume"] {
        let (mut bus, ann, keeper, worker) = with_what_was_before(shared(), Limits::default());
        opens_again(&mut bus, ann, worker, method, "s1");
        let opened = bus.told(keeper)["opened"].clone();
        assert_eq!((&opened["agent_session"], &opened["cwd"]), (&json!("s1"), &json!("/srv")), "{method}");
        bus.sees_nothing(keeper);
        // Who joins it is told what is on disk, which may be several pages of lines that the bus has not counted.
        let ben = bus.acp_client();
        bus.all_unseen(ben);
        bus.sends(ben, ATTACH);
        for (text, is_end) in [("one", false), ("two", false), ("three", true)] {
            let asked = bus.asked_for_past(keeper);
            assert_eq!((&asked["before"], &asked["older"]), (&json!(0), &json!(true)));
            bus.answers_past(keeper, &asked, &[text], 0, is_end);
        }
        let (texts, is_truncated) = bus.joined(ben, opened["id"].as_str().unwrap());
        assert_eq!((texts.join(" ").as_str(), is_truncated), ("one two three", false));
        // It is not told a second time with the first line.
        bus.utters(worker, "now");
        assert_eq!(bus.told(keeper)["n"], json!(1));
    }
}

#[test]
fn a_session_that_is_opened_again_is_known_as_soon_as_the_keeper_has_room() {
    let limits = Limits { max_output_queue: 4 << 10, ..Limits::default() };
    let (mut bus, ann, keeper, worker) = with_what_was_before(shared(), limits);
    opens_again(&mut bus, ann, worker, "session/resume", "s1");
    bus.stops_reading(keeper);
    for number in 0..40 {
        bus.utters(worker, &number.to_string());
        bus.sees(ann);
    }
    opens_again(&mut bus, ann, worker, "session/resume", "s2");
    bus.reads_again(keeper);
    bus.all_unseen(keeper);
    bus.advances(Duration::from_millis(20));
    assert_eq!(bus.told(keeper)["opened"]["agent_session"], json!("s2"));
    let all = bus.told(keeper);
    assert_eq!((&all["session"], &all["again"], &all["n"]), (&json!("s2"), &json!(true), &json!(0)));
    bus.sees_nothing(keeper);
}

#[test]
fn a_session_that_is_not_kept_is_not_known_when_it_is_opened_again() {
    let config = PoolConfig { keep: false, ..shared() };
    let (mut bus, ann, keeper, worker) = with_what_was_before(config, Limits::default());
    opens_again(&mut bus, ann, worker, "session/load", "s1");
    bus.sees_nothing(keeper);
}
