//! Stories of sessions with guests: joining, history, prompts, questions, leaving and taking over.

mod asked;
mod life;
mod owner;

use std::time::Duration;

use serde_json::{Value, json};

use super::*;

const INIT: &str = concat!(
    r#"{"protocolVersion":1,"agentInfo":{"name":"agent"},"agentCapabilities":{"loadSession":true,"#,
    r#""sessionCapabilities":{"close":{},"resume":{},"list":{}}}}"#
);

/// A bus whose pool shares, with a session of the first of two clients, as it calls the session.
fn shared() -> (TestBus, Link, Link, Link, String) {
    shared_with(Limits::default())
}

fn shared_with(limits: Limits) -> (TestBus, Link, Link, Link, String) {
    let pool = PoolConfig { share: true, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([pool]) });
    let (ann, ben) = (bus.acp_client(), bus.acp_client());
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    bus.sees(ben);
    for (client, name) in [(ann, "ann"), (ben, "ben")] {
        bus.sends(client, &json!({"id": 0, "method": "_bus/hello", "params": {"client": name}}).to_string());
        bus.sees(client);
    }
    let session = bus.opens(ann, worker, "s1");
    (bus, ann, ben, worker, session)
}

impl TestBus {
    fn says(&mut self, worker: Link, text: &str) {
        let update = format!(
            r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}"#
        );
        let params = format!(r#"{{"sessionId":"s1","update":{update}}}"#);
        self.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
    }

    fn prompts(&mut self, client: Link, id: u32, session: &str, text: &str) {
        let prompt = format!(r#"[{{"type":"text","text":"{text}"}}]"#);
        let params = format!(r#"{{"sessionId":"{session}","prompt":{prompt}}}"#);
        self.sends(client, &format!(r#"{{"id":{id},"method":"session/prompt","params":{params}}}"#));
    }

    /// The agent asks for a permission.
    fn permission(&mut self, worker: Link, id: u32) {
        let params = r#"{"sessionId":"s1","options":[{"optionId":"yes","kind":"allow_once"}]}"#;
        self.sends(
            worker,
            &format!(r#"{{"id":{id},"method":"session/request_permission","params":{params}}}"#),
        );
    }

    fn attaches(&mut self, client: Link, params: &Value) -> Value {
        self.sends(client, &json!({"id": "attach", "method": "_bus/attach", "params": params}).to_string());
        loop {
            let line = self.sees_json(client);
            if line["id"] == "attach" {
                assert!(line["error"].is_null(), "{line}");
                return line["result"].clone();
            }
        }
    }

    /// The text of the next update that the client hears, and who says it.
    fn hears(&mut self, client: Link, session: &str) -> (String, String) {
        let line = self.sees_json(client);
        assert_eq!(line["params"]["sessionId"], session, "{line}");
        let update = &line["params"]["update"];
        let kind = update["sessionUpdate"].as_str().unwrap_or_default().to_owned();
        (kind, update["content"]["text"].as_str().unwrap_or_default().to_owned())
    }

    fn hears_event(&mut self, client: Link, event: &str) -> Value {
        let line = self.sees_json(client);
        assert_eq!(
            (&line["method"], &line["params"]["event"]),
            (&json!("_bus/session"), &json!(event)),
            "{line}"
        );
        line["params"].clone()
    }
}

fn agent(text: &str) -> (String, String) {
    ("agent_message_chunk".to_owned(), text.to_owned())
}

fn user(text: &str) -> (String, String) {
    ("user_message_chunk".to_owned(), text.to_owned())
}

#[test]
fn a_guest_hears_what_was_said_and_what_is_said_in_one_order() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.prompts(ann, 1, &session, "one");
    bus.says(worker, "a");
    bus.says(worker, "b");
    for _ in 0..2 {
        bus.sees(ann);
    }
    bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    assert_eq!(bus.hears(ben, &session), user("one"));
    assert_eq!(bus.hears(ben, &session), agent("a"));
    assert_eq!(bus.hears(ben, &session), agent("b"));
    let result = bus.sees_json(ben)["result"].clone();
    assert_eq!(
        result,
        json!({"session": session, "sessionId": session, "label": "s1", "role": "control", "owner": "ann",
               "truncated": false, "turn": "running", "pool": "agents", "folder": "/", "title": null})
    );
    bus.hears_event(ben, "attached");
    bus.says(worker, "c");
    assert_eq!(bus.hears(ann, &session), agent("c"));
    assert_eq!(bus.hears(ben, &session), agent("c"));
    bus.answers(worker, "session/prompt", r#"{"stopReason":"end_turn"}"#);
    assert_eq!(bus.sees_json(ann)["id"], 1);
    assert_eq!(bus.hears_event(ben, "turn")["stopReason"], "end_turn");
    bus.is_idle();
}

#[test]
fn an_editor_joins_by_loading_or_resuming() {
    for (method, hears) in [("session/load", true), ("session/resume", false)] {
        let (mut bus, ann, ben, worker, session) = shared();
        bus.prompts(ann, 1, &session, "one");
        bus.says(worker, "a");
        bus.sees(ann);
        // By the id of the agent as well, as it stands in the agent's own list.
        bus.asks(ben, 1, method, "s1");
        if hears {
            assert_eq!(bus.hears(ben, "s1"), user("one"));
            assert_eq!(bus.hears(ben, "s1"), agent("a"));
        }
        assert_eq!(bus.sees_json(ben), json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
        bus.says(worker, "b");
        assert_eq!(bus.hears(ann, &session), agent("b"));
        assert_eq!(bus.hears(ben, "s1"), agent("b"));
        bus.answers(worker, "session/prompt", "{}");
        bus.sees(ann);
        bus.sees_nothing(ben);
        bus.is_idle();
    }
}

#[test]
fn a_pool_that_does_not_share_hides_its_sessions() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben) = (bus.acp_client(), bus.acp_client());
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    bus.sees(ben);
    let session = bus.opens(ann, worker, "s1");
    for method in ["_bus/attach", "_bus/take", "_bus/detach"] {
        for name in [&*session, "s1", "s2"] {
            bus.sends(ben, &json!({"id": 1, "method": method, "params": {"session": name}}).to_string());
            bus.sees_error(ben, json!(1), "unknown_session");
        }
    }
    bus.asks(ben, 2, "session/load", &session);
    bus.sees_error(ben, json!(2), "unknown_session");
    bus.is_idle();
}

#[test]
fn a_pool_that_shares_no_longer_keeps_its_guests_and_gets_no_more() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session, "role": "control"}));
    let carl = bus.acp_client();
    bus.sees(carl);
    bus.reloads(&Config::with_pools([pool("agents", 1)]));
    bus.sends(carl, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    bus.sees_error(carl, json!(1), "unknown_session");
    bus.asks(carl, 2, "session/load", &session);
    bus.sees_error(carl, json!(2), "unknown_session");
    bus.prompts(ben, 3, &session, "hi");
    bus.answers(worker, "session/prompt", r#"{"stopReason":"end_turn"}"#);
    bus.attaches(ben, &json!({"session": session}));
    bus.unseen.remove(&ann);
}

#[test]
fn a_question_that_nobody_was_asked_is_asked_of_who_joins_without_the_history_too() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.handles(Event::Broken(ann));
    bus.permission(worker, 5);
    bus.attaches(ben, &json!({"session": session, "history": "none"}));
    let (id, _) = bus.sees_request(ben, "session/request_permission");
    bus.sends(
        ben,
        &format!(r#"{{"id":{id},"result":{{"outcome":{{"outcome":"selected","optionId":"yes"}}}}}}"#),
    );
    assert_eq!(bus.sees_json(worker)["id"], 5);
}

#[test]
fn a_prompt_of_one_is_told_to_the_others_and_waits_for_the_turn_of_another() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.hears_event(ben, "attached");
    bus.prompts(ann, 1, &session, "one");
    assert_eq!(bus.hears(ben, &session), user("one"));
    assert_eq!(bus.hears_event(ben, "turn")["turn"], "running");
    bus.prompts(ben, 2, &session, "two");
    assert_eq!(bus.hears_event(ben, "queued")["place"], 1);
    // A second prompt of the client whose turn it is goes to the agent at once.
    bus.prompts(ann, 3, &session, "three");
    assert_eq!(bus.hears(ben, &session), user("three"));
    bus.hears_event(ben, "turn");
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(ann);
    let request = bus.answers(worker, "session/prompt", "{}");
    assert_eq!(request["params"]["prompt"][0]["text"], "three");
    bus.sees(ann);
    bus.hears_event(ben, "turn");
    assert_eq!(bus.hears(ann, &session), user("two"));
    assert_eq!(bus.hears_event(ben, "turn")["by"], "ben");
    let request = bus.answers(worker, "session/prompt", r#"{"stopReason":"end_turn"}"#);
    assert_eq!(
        (&request["params"]["sessionId"], &request["params"]["prompt"][0]["text"]),
        (&json!("s1"), &json!("two"))
    );
    assert_eq!(bus.sees_json(ben)["id"], 2);
    bus.hears_event(ben, "turn");
    bus.is_idle();
}

#[test]
fn a_prompt_that_waits_can_be_cancelled_and_its_sender_can_leave() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    bus.prompts(ann, 1, &session, "one");
    bus.hears(ben, &session);
    bus.prompts(ben, 2, &session, "two");
    bus.sends(ben, r#"{"method":"$/cancel_request","params":{"requestId":2}}"#);
    assert_eq!(bus.sees_json(ben), json!({"jsonrpc": "2.0", "id": 2, "result": {"stopReason": "cancelled"}}));
    bus.prompts(ben, 3, &session, "three");
    bus.sends(ben, &format!(r#"{{"method":"session/cancel","params":{{"sessionId":"{session}"}}}}"#));
    assert_eq!(bus.sees_json(ben)["result"]["stopReason"], "cancelled");
    bus.prompts(ben, 4, &session, "four");
    bus.handles(Event::Broken(ben));
    bus.answers(worker, "session/prompt", r#"{"stopReason":"cancelled"}"#);
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    assert_eq!(bus.sees_json(ann)["id"], 1);
    bus.is_idle();
}

#[test]
fn only_so_many_prompts_wait() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    bus.prompts(ann, 1, &session, "one");
    bus.hears(ben, &session);
    for id in 0..16 {
        bus.prompts(ben, 10 + id, &session, "more");
    }
    bus.prompts(ben, 99, &session, "too many");
    bus.sees_error(ben, json!(99), "busy");
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(ann);
    for id in 0..16 {
        bus.answers(worker, "session/prompt", "{}");
        assert_eq!(bus.sees_json(ben)["id"], 10 + id);
        assert_eq!(bus.hears(ann, &session), user("more"));
    }
    bus.is_idle();
}

#[test]
fn the_first_choice_of_several_counts() {
    let (mut bus, ann, ben, worker, session) = shared();
    let eve = bus.acp_client();
    bus.sees(eve);
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    bus.attaches(eve, &json!({"session": session, "role": "observe"}));
    bus.hears_event(eve, "attached");
    bus.permission(worker, 7);
    bus.hears_event(eve, "asked");
    let (of_ann, _) = bus.sees_request(ann, "session/request_permission");
    let (of_ben, request) = bus.sees_request(ben, "session/request_permission");
    assert_eq!(request["params"]["sessionId"], session);
    assert_ne!(of_ann, of_ben);
    let chosen = |id: &str, option: &str| {
        format!(r#"{{"id":{id},"result":{{"outcome":{{"outcome":"selected","optionId":"{option}"}}}}}}"#)
    };
    bus.sends(ben, &chosen(&of_ben, "yes"));
    assert_eq!(bus.sees_json(worker)["result"]["outcome"]["optionId"], "yes");
    assert_eq!(bus.hears_event(eve, "decided")["by"], "ben");
    let cancel = bus.sees_json(ann);
    assert_eq!(
        (&cancel["method"], cancel["params"]["requestId"].to_string()),
        (&json!("$/cancel_request"), of_ann.clone())
    );
    assert_eq!(bus.hears(ann, &session), ("agent_thought_chunk".to_owned(), "ben chose yes\n\n".to_owned()));
    // What comes too late is swallowed.
    bus.sends(ann, &chosen(&of_ann, "no"));
    bus.sees_nothing(worker);
    bus.is_idle();
}

#[test]
fn an_error_or_a_leave_is_an_abstention_and_the_last_decides() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    let error = |id: &str| format!(r#"{{"id":{id},"error":{{"code":-32601,"message":"no"}}}}"#);
    let cancelled = |id: &str| format!(r#"{{"id":{id},"result":{{"outcome":{{"outcome":"cancelled"}}}}}}"#);
    // Both abstain.
    bus.permission(worker, 1);
    let (of_ann, _) = bus.sees_request(ann, "session/request_permission");
    let (of_ben, _) = bus.sees_request(ben, "session/request_permission");
    bus.sends(ann, &error(&of_ann));
    bus.sees_nothing(worker);
    bus.sends(ben, &error(&of_ben));
    assert_eq!(bus.sees_json(worker)["error"]["code"], -32601);
    // Whose turn it is may cancel; another one only as the last.
    bus.prompts(ann, 2, &session, "one");
    bus.hears(ben, &session);
    bus.sees_request(worker, "session/prompt");
    bus.permission(worker, 2);
    let (of_ann, _) = bus.sees_request(ann, "session/request_permission");
    let (of_ben, _) = bus.sees_request(ben, "session/request_permission");
    bus.sends(ben, &cancelled(&of_ben));
    bus.sees_nothing(worker);
    bus.sends(ann, &cancelled(&of_ann));
    assert_eq!(bus.sees_json(worker)["result"]["outcome"]["outcome"], "cancelled");
    // A leave of one leaves it to the other.
    bus.permission(worker, 3);
    let (of_ann, _) = bus.sees_request(ann, "session/request_permission");
    bus.sees_request(ben, "session/request_permission");
    bus.handles(Event::Broken(ben));
    bus.sends(ann, &cancelled(&of_ann));
    assert_eq!(bus.sees_json(worker)["id"], 3);
}

#[test]
fn who_joins_is_asked_what_is_open_and_who_stays_is_asked_again() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.permission(worker, 1);
    bus.sees_request(ann, "session/request_permission");
    bus.asks(ben, 1, "session/load", &session);
    assert_eq!(bus.sees_json(ben)["id"], 1);
    let (of_ben, _) = bus.sees_request(ben, "session/request_permission");
    // The owner leaves; the guest answers alone, and is asked what comes now.
    bus.handles(Event::Broken(ann));
    bus.permission(worker, 2);
    let (second, _) = bus.sees_request(ben, "session/request_permission");
    for id in [of_ben, second] {
        bus.sends(
            ben,
            &format!(r#"{{"id":{id},"result":{{"outcome":{{"outcome":"selected","optionId":"yes"}}}}}}"#),
        );
    }
    assert_eq!(bus.sees_json(worker)["id"], 1);
    assert_eq!(bus.sees_json(worker)["id"], 2);
}

#[test]
fn a_session_without_an_owner_goes_on_for_its_guests() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.hears_event(ben, "attached");
    bus.handles(Event::Broken(ann));
    assert_eq!(bus.hears_event(ben, "owner")["owner"], json!(null));
    // Files are read by owners only, so this waits for one, but not for ever.
    bus.sends(worker, r#"{"id":3,"method":"fs/read_text_file","params":{"sessionId":"s1"}}"#);
    bus.sees_nothing(ben);
    bus.advances(Duration::from_secs(301));
    bus.sees_error(worker, json!(3), "client_gone");
    bus.says(worker, "still here");
    assert_eq!(bus.hears(ben, &session), agent("still here"));
    // After the last guest it is kept as usual.
    bus.handles(Event::Broken(ben));
    bus.advances(Duration::from_secs(301));
    bus.answers(worker, "session/close", "{}");
    bus.is_idle();
}

#[test]
fn an_editor_that_returns_before_its_loss_is_noticed_owns_its_session_again() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.sends(ben, r#"{"id":1,"method":"session/list","params":{}}"#);
    let (id, _) = bus.sees_request(worker, "session/list");
    bus.sends(worker, &format!(r#"{{"id":{id},"result":{{"sessions":[{{"sessionId":"s1"}}]}}}}"#));
    assert_eq!(bus.sees_json(ben)["result"]["sessions"], json!([{"sessionId": session}]));
    bus.asks(ben, 2, "session/load", &session);
    assert_eq!(bus.sees_json(ben)["id"], 2);
    bus.handles(Event::Broken(ann));
    bus.sends(worker, r#"{"id":3,"method":"fs/read_text_file","params":{"sessionId":"s1"}}"#);
    let (id, _) = bus.sees_request(ben, "fs/read_text_file");
    bus.sends(ben, &format!(r#"{{"id":{id},"result":{{"content":""}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 3);
    bus.asks(ben, 4, "session/close", &session);
    bus.answers(worker, "session/close", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 4);
    bus.is_idle();
}

#[test]
fn an_observer_says_nothing() {
    let (mut bus, _, ben, worker, session) = shared();
    let result = bus.attaches(ben, &json!({"session": "s1", "role": "observe", "history": "none"}));
    assert_eq!((&result["role"], &result["session"]), (&json!("observe"), &json!(session)));
    bus.hears_event(ben, "attached");
    bus.prompts(ben, 1, &session, "one");
    let error = bus.sees_error(ben, json!(1), "read_only");
    assert_eq!(error["code"], -32061);
    bus.permission(worker, 1);
    bus.hears_event(ben, "asked");
    bus.sees_nothing(ben);
    bus.asks(ben, 2, "session/close", &session);
    assert_eq!(bus.sees_json(ben)["result"], json!({}));
    bus.says(worker, "a");
    bus.sees_nothing(ben);
    bus.asks(ben, 3, "session/prompt", &session);
    bus.sees_error(ben, json!(3), "unknown_session");
}

#[test]
fn a_guest_takes_over_and_the_old_owner_stays() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", "s1");
    bus.sees(ben);
    bus.sends(ben, r#"{"id":2,"method":"_bus/take","params":{"session":"s1"}}"#);
    assert_eq!(bus.sees_json(ben), json!({"jsonrpc": "2.0", "id": 2, "result": {}}));
    bus.sends(worker, r#"{"id":3,"method":"fs/read_text_file","params":{"sessionId":"s1"}}"#);
    let (id, request) = bus.sees_request(ben, "fs/read_text_file");
    assert_eq!(request["params"]["sessionId"], "s1");
    bus.sends(ben, &format!(r#"{{"id":{id},"result":{{"content":""}}}}"#));
    bus.sees(worker);
    bus.says(worker, "a");
    assert_eq!(bus.hears(ben, "s1"), agent("a"));
    assert_eq!(bus.hears(ann, &session), agent("a"));
    bus.prompts(ann, 4, &session, "from the old one");
    assert_eq!(bus.hears(ben, "s1"), user("from the old one"));
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(ann);
    // Only the owner deletes.
    bus.asks(ann, 5, "session/delete", &session);
    bus.sees_error(ann, json!(5), "read_only");
    bus.is_idle();
}

#[test]
fn a_guest_that_does_not_read_is_let_go_and_slows_nobody() {
    let limits = Limits { max_output_queue: 4096, ..Limits::default() };
    let (mut bus, ann, ben, worker, session) = shared_with(limits);
    bus.attaches(ben, &json!({"session": session}));
    bus.hears_event(ben, "attached");
    bus.stops_reading(ben);
    let long = "x".repeat(500);
    for _ in 0..100 {
        bus.says(worker, &long);
        assert_eq!(bus.hears(ann, &session), agent(&long));
        assert!(bus.bus.wants_read(worker));
    }
    bus.reads_again(ben);
    let mut told = 0;
    let event = loop {
        let line = bus.sees_json(ben);
        if line["method"] == "_bus/session" {
            break line;
        }
        told += 1;
    };
    assert_eq!(event["params"]["event"], "behind");
    assert!((1..10).contains(&told), "{told}");
    bus.sees_nothing(ben);
    bus.is_idle();
}

#[test]
fn the_log_keeps_whole_turns_within_its_limits() {
    let limits = Limits { session_log_bytes: 1000, ..Limits::default() };
    let (mut bus, ann, ben, worker, session) = shared_with(limits);
    for turn in 0..20 {
        bus.prompts(ann, turn, &session, &format!("p{turn}"));
        bus.says(worker, &format!("a{turn}"));
        bus.sees(ann);
        bus.answers(worker, "session/prompt", "{}");
        bus.sees(ann);
    }
    assert!(bus.bus.held_bytes() <= 1000);
    bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    let mut heard = Vec::new();
    let result = loop {
        let line = bus.sees_json(ben);
        if line["id"] == 1 {
            break line["result"].clone();
        }
        heard.push(line["params"]["update"]["content"]["text"].as_str().unwrap_or_default().to_owned());
    };
    assert_eq!(result["truncated"], true);
    assert!(heard.len() >= 2 && heard.len().is_multiple_of(2), "{heard:?}");
    assert!(heard[0].starts_with('p'), "{heard:?}");
    assert_eq!(heard.last().map(String::as_str), Some("a19"));
    bus.hears_event(ben, "attached");
    bus.is_idle();
}

#[test]
fn a_child_session_is_heard_by_the_guests_of_its_parent() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    let update = r#"{"sessionUpdate":"subagent","sessionId":"c1"}"#;
    bus.sends(
        worker,
        &format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#),
    );
    let child = bus.sees_json(ann)["params"]["update"]["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(bus.sees_json(ben)["params"]["update"]["sessionId"], json!(child));
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"c1"}}"#);
    assert_eq!(bus.sees_json(ann)["params"]["sessionId"], json!(child));
    assert_eq!(bus.sees_json(ben)["params"]["sessionId"], json!(child));
    bus.handles(Event::Broken(ben));
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"c1"}}"#);
    bus.sees(ann);
    bus.is_idle();
}

#[test]
fn a_session_goes_on_for_its_guests_after_a_crash() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    bus.prompts(ann, 2, &session, "one");
    bus.hears(ben, &session);
    bus.prompts(ben, 3, &session, "two");
    bus.sees(worker);
    bus.crashes(0);
    bus.sees_error(ann, json!(2), "worker_lost");
    bus.sees_error(ben, json!(3), "worker_lost");
    bus.advances(Duration::from_secs(1));
    // The guest may be the first to go on with it.
    bus.prompts(ben, 4, &session, "again");
    assert_eq!(bus.hears(ann, &session), user("again"));
    let next = bus.worker(1);
    bus.initializes_with(next, INIT);
    bus.answers(next, "session/resume", "{}");
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 4);
    bus.says(next, "a");
    assert_eq!(bus.hears(ann, &session), agent("a"));
    assert_eq!(bus.hears(ben, &session), agent("a"));
    bus.is_idle();
}

#[test]
fn a_client_of_another_version_cannot_join() {
    let (mut bus, _, _, _, session) = shared();
    let old = bus.client();
    bus.sends(old, &INITIALIZE.replace(r#""protocolVersion":1"#, r#""protocolVersion":2"#));
    bus.sends(old, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    bus.sees_error(old, json!(0), "busy");
    bus.sees_error(old, json!(1), "busy");
}

#[test]
fn a_guest_says_goodbye_and_the_session_goes_on_and_so_for_an_owner_with_guests() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees(ben);
    bus.sends(ann, r#"{"id":9,"method":"_bus/bye"}"#);
    bus.sees(ann);
    bus.handles(Event::Ended(ann));
    bus.says(worker, "a");
    assert_eq!(bus.hears(ben, &session), agent("a"));
    bus.sends(ben, &json!({"id": 2, "method": "_bus/take", "params": {"session": session}}).to_string());
    assert_eq!(bus.sees_json(ben)["id"], 2);
    bus.asks(ben, 3, "session/close", &session);
    bus.answers(worker, "session/close", "{}");
    assert_eq!(bus.sees_json(ben)["id"], 3);
    bus.is_idle();
}
