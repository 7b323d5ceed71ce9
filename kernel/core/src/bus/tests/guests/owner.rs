//! Guests where the owner of a session changes, leaves or returns.

use serde_json::{Value, json};

use super::{INIT, agent, shared, shared_with, user};
use crate::api::{Event, Exit};
use crate::bus::tests::TestBus;
use crate::config::Limits;
use crate::id::Link;

impl TestBus {
    fn reads_file(&mut self, worker: Link, id: u32) {
        let params = r#"{"sessionId":"s1","path":"/f"}"#;
        self.sends(worker, &format!(r#"{{"id":{id},"method":"fs/read_text_file","params":{params}}}"#));
    }

    fn takes(&mut self, client: Link, session: &str) {
        let take = json!({"id": "take", "method": "_bus/take", "params": {"session": session}});
        self.sends(client, &take.to_string());
        assert_eq!(self.sees_json(client), json!({"jsonrpc": "2.0", "id": "take", "result": {}}));
    }

    /// Reads all that this client was sent, but for events.
    fn sees_all(&mut self, client: Link) -> Vec<Value> {
        let lines = self.unseen.remove(&client).unwrap_or_default();
        let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line["method"] != "_bus/session").collect()
    }

    fn texts(&mut self, client: Link) -> Vec<String> {
        let lines = self.sees_all(client);
        let text = |line: &Value| Some(line["params"]["update"]["content"]["text"].as_str()?.to_owned());
        lines.iter().filter_map(text).collect()
    }

    /// A client like Ann, that has sent `initialize`.
    fn comes(&mut self) -> Link {
        let client = self.acp_client();
        self.sees(client);
        client
    }

    /// Whoever asks gets the process restarted, and reads nothing else.
    fn restarts(&mut self, client: Link) {
        let restart = json!({"id": "restart", "method": "_bus/restart", "params": {"pool": "agents"}});
        self.sends(client, &restart.to_string());
        self.sees_all(client);
    }

    /// The first process ends after its sessions have left it, and the next one is initialized.
    fn next_process(&mut self) -> Link {
        let worker = self.processes[0].worker;
        self.handles(Event::Exited { worker, exit: Exit::Code(0) });
        let fresh = self.worker(1);
        self.initializes_with(fresh, INIT);
        fresh
    }
}

#[test]
fn what_was_said_without_an_owner_comes_once_to_everybody() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.handles(Event::Broken(ann));
    bus.prompts(ben, 1, &session, "go on");
    bus.says(worker, "b0");
    bus.says(worker, "b1");
    let back = bus.comes();
    bus.asks(back, 1, "session/resume", &session);
    // The owner hears what it has missed, the prompts of others among it.
    assert_eq!(bus.hears(back, &session), user("go on"));
    assert_eq!(bus.hears(back, &session), agent("b0"));
    assert_eq!(bus.hears(back, &session), agent("b1"));
    assert_eq!(bus.sees_json(back)["id"], 1);
    assert_eq!(bus.texts(ben), ["b0", "b1"]);
    let late = bus.comes();
    bus.sends(late, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    assert_eq!(bus.texts(late), ["go on", "b0", "b1"]);
}

#[test]
fn what_an_owner_heard_after_it_had_half_closed_is_logged_once() {
    let (mut bus, ann, _, worker, session) = shared();
    bus.prompts(ann, 1, &session, "one");
    bus.handles(Event::Ended(ann));
    bus.says(worker, "a");
    assert_eq!(bus.hears(ann, &session), agent("a"));
    bus.handles(Event::Broken(ann));
    let back = bus.comes();
    bus.asks(back, 1, "session/resume", &session);
    assert_eq!(bus.texts(back), ["a"]);
    let late = bus.comes();
    bus.sends(late, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    assert_eq!(bus.texts(late), ["one", "a"]);
}

#[test]
fn a_guest_that_becomes_the_owner_has_heard_it_all() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.handles(Event::Broken(ann));
    bus.prompts(ben, 1, &session, "go on");
    bus.says(worker, "b0");
    bus.asks(ben, 2, "session/resume", &session);
    assert_eq!(bus.texts(ben), ["b0"]);
}

#[test]
fn who_loads_a_session_that_went_on_with_its_guests_hears_it_all() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.prompts(ann, 1, &session, "one");
    bus.says(worker, "a");
    bus.answers(worker, "session/prompt", r#"{"stopReason":"end_turn"}"#);
    bus.attaches(ben, &json!({"session": session}));
    bus.handles(Event::Broken(ann));
    bus.prompts(ben, 1, &session, "two");
    bus.says(worker, "b");
    let back = bus.comes();
    bus.asks(back, 1, "session/load", &session);
    assert_eq!(bus.texts(back), ["one", "a", "two", "b"]);
    bus.says(worker, "c");
    assert_eq!(bus.texts(back), ["c"]);
}

#[test]
fn without_a_log_who_loads_such_a_session_hears_what_was_missed() {
    let (mut bus, ann, ben, worker, session) =
        shared_with(Limits { session_log_bytes: 0, ..Limits::default() });
    bus.attaches(ben, &json!({"session": session}));
    bus.handles(Event::Broken(ann));
    bus.prompts(ben, 1, &session, "two");
    bus.says(worker, "b");
    let back = bus.comes();
    bus.asks(back, 1, "session/load", &session);
    assert_eq!(bus.texts(back), ["two", "b"]);
}

#[test]
fn an_owner_that_returns_is_told_to_the_guests() {
    let (mut bus, ann, ben, _, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.hears_event(ben, "attached");
    bus.handles(Event::Broken(ann));
    assert_eq!(bus.hears_event(ben, "owner")["owner"], Value::Null);
    let back = bus.comes();
    bus.sends(back, &json!({"id": 0, "method": "_bus/hello", "params": {"client": "ann2"}}).to_string());
    bus.asks(back, 1, "session/resume", &session);
    assert_eq!(bus.hears_event(ben, "owner")["owner"], "ann2");
}

#[test]
fn what_a_former_owner_was_asked_is_asked_of_the_present_one_when_it_leaves() {
    for event in [Event::Ended, Event::Broken] {
        let (mut bus, ann, ben, worker, session) = shared();
        bus.attaches(ben, &json!({"session": session}));
        bus.prompts(ann, 1, &session, "one");
        bus.reads_file(worker, 7);
        bus.sees_all(ben);
        bus.takes(ben, &session);
        bus.reads_file(worker, 8);
        bus.sees_all(ann);
        let before = bus.sees_all(ben);
        let second =
            before.iter().find(|line| line["method"] == "fs/read_text_file").expect("a request").clone();
        bus.handles(event(ann));
        let asked: Vec<Value> =
            bus.sees_all(ben).into_iter().filter(|line| line["method"] == "fs/read_text_file").collect();
        let [first] = &asked[..] else { panic!("{asked:?}") };
        bus.sends(ben, &format!(r#"{{"id":{},"result":{{"content":"1"}}}}"#, first["id"]));
        bus.sends(ben, &format!(r#"{{"id":{},"result":{{"content":"2"}}}}"#, second["id"]));
        bus.answers(worker, "session/prompt", "{}");
        let answers = bus.sees_all(worker);
        let answers: Vec<_> = answers.iter().filter(|line| line["method"].is_null()).collect();
        assert_eq!((&answers[0]["id"], &answers[1]["id"]), (&json!(7), &json!(8)), "{answers:?}");
        assert!(answers.iter().all(|answer| answer["error"].is_null()), "{answers:?}");
        assert_eq!(bus.bus.calls_in_flight(), 0);
    }
}

#[test]
fn a_session_without_a_process_goes_on_with_a_guest_when_its_owner_leaves() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.restarts(ann);
    bus.answers(worker, "session/close", "{}");
    let fresh = bus.next_process();
    bus.handles(Event::Broken(ann));
    bus.sees_all(ben);
    bus.prompts(ben, 1, &session, "still there?");
    bus.answers(fresh, "session/resume", "{}");
    bus.answers(fresh, "session/prompt", "{}");
    assert_eq!(bus.sees_all(ben)[0]["id"], 1);
}

#[test]
fn an_owner_that_loads_a_session_without_a_process_keeps_its_guests() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.restarts(ann);
    bus.answers(worker, "session/close", "{}");
    let fresh = bus.next_process();
    bus.asks(ann, 1, "session/load", &session);
    bus.answers(fresh, "session/resume", "{}");
    bus.answers(fresh, "session/load", "{}");
    assert_eq!(bus.sees_all(ann)[0]["id"], 1);
    bus.says(fresh, "here");
    assert_eq!(bus.texts(ben), ["here"]);
}

#[test]
fn a_load_that_no_process_can_take_now_loses_no_guest() {
    let (mut bus, ann, ben, _, session) = shared_with(Limits { max_restarts: 0, ..Limits::default() });
    bus.attaches(ben, &json!({"session": session}));
    bus.crashes(0);
    bus.sees_all(ann);
    bus.sees_all(ben);
    bus.asks(ann, 1, "session/load", &session);
    bus.sees_error(ann, json!(1), "pool_down");
    bus.sees_nothing(ben);
}

#[test]
fn a_session_without_a_process_can_be_taken_over() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.restarts(ann);
    bus.answers(worker, "session/close", "{}");
    let fresh = bus.next_process();
    bus.sees_all(ben);
    bus.unseen.clear();
    bus.takes(ben, &session);
    bus.prompts(ben, 1, &session, "mine");
    bus.answers(fresh, "session/resume", "{}");
    bus.reads_file(fresh, 9);
    let lines = bus.sees_all(ben);
    assert!(lines.iter().any(|line| line["method"] == "fs/read_text_file"), "{lines:?}");
}

#[test]
fn a_kept_session_at_rest_does_not_hold_up_a_restart() {
    let (mut bus, ann, ben, worker, _) = shared();
    bus.handles(Event::Broken(ann));
    bus.restarts(ben);
    bus.answers(worker, "session/close", "{}");
    assert!(!bus.processes[0].stdin_open, "it may go");
}

#[test]
fn the_end_of_a_turn_is_told_when_its_process_dies() {
    let (mut bus, ann, ben, _, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.hears_event(ben, "attached");
    bus.prompts(ann, 1, &session, "one");
    assert_eq!(bus.hears(ben, &session), user("one"));
    assert_eq!(bus.hears_event(ben, "turn")["turn"], "running");
    bus.crashes(0);
    assert_eq!(bus.hears_event(ben, "turn")["turn"], "idle");
    bus.sees_error(ann, json!(1), "worker_lost");
}

#[test]
fn who_observes_cannot_load_or_resume_and_who_begins_to_observe_is_asked_no_more() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.prompts(ann, 1, &session, "one");
    bus.permission(worker, 7);
    let lines = bus.sees_all(ben);
    let asked = lines.last().expect("a question")["id"].clone();
    bus.attaches(ben, &json!({"session": session, "role": "observe", "history": "none"}));
    bus.sends(
        ben,
        &format!(r#"{{"id":{asked},"result":{{"outcome":{{"outcome":"selected","optionId":"yes"}}}}}}"#),
    );
    bus.answers(worker, "session/prompt", "{}");
    assert!(bus.sees_all(worker).is_empty(), "only Ann may answer now");
    bus.sees_all(ben);
    for name in [&*session, "s1"] {
        for method in ["session/load", "session/resume"] {
            bus.asks(ben, 5, method, name);
            bus.sees_error(ben, json!(5), "read_only");
        }
    }
}

#[test]
fn without_a_log_a_guest_hears_that_something_is_missing() {
    let (mut bus, ann, ben, worker, session) =
        shared_with(Limits { session_log_bytes: 0, ..Limits::default() });
    assert_eq!(bus.attaches(ben, &json!({"session": session}))["truncated"], false);
    bus.prompts(ann, 1, &session, "one");
    bus.says(worker, "a");
    bus.answers(worker, "session/prompt", "{}");
    assert_eq!(bus.attaches(ben, &json!({"session": session}))["truncated"], true);
}

#[test]
fn a_prompt_waits_until_the_agent_has_told_the_session_again() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.prompts(ann, 1, &session, "one");
    bus.says(worker, "a");
    bus.answers(worker, "session/prompt", r#"{"stopReason":"end_turn"}"#);
    bus.attaches(ben, &json!({"session": session}));
    bus.handles(Event::Broken(ann));
    let back = bus.comes();
    bus.asks(back, 1, "session/load", &session);
    bus.answers(worker, "session/close", "{}");
    let (first, _) = bus.sees_request(worker, "session/load");
    bus.prompts(ben, 2, &session, "two");
    bus.asks(back, 2, "session/load", &session);
    bus.sends(worker, &format!(r#"{{"id":{first},"result":{{}}}}"#));
    bus.answers(worker, "session/load", "{}");
    bus.texts(ben);
    let (prompt, _) = bus.sees_request(worker, "session/prompt");
    bus.says(worker, "b");
    bus.sends(worker, &format!(r#"{{"id":{prompt},"result":{{"stopReason":"end_turn"}}}}"#));
    assert_eq!(bus.texts(ben), ["b"]);
    let late = bus.comes();
    bus.sends(late, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    assert_eq!(bus.texts(late), ["one", "a", "two", "b"]);
}
