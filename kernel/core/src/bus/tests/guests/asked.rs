//! Stories of questions that wait while nobody is there who could be asked.

use super::*;
use crate::limit::CLIENT_NAME_BYTES;

const CANCEL: &str = r#"{"method":"$/cancel_request","params":{"requestId":7}}"#;

impl TestBus {
    fn has_heard(&mut self, client: Link, method: &str) -> bool {
        self.all_unseen(client).iter().any(|line| line["method"] == method)
    }

    fn takes_over(&mut self, client: Link, session: &str) {
        self.sends(
            client,
            &json!({"id": "take", "method": "_bus/take", "params": {"session": session}}).to_string(),
        );
    }
}

#[test]
fn who_takes_over_from_a_half_closed_owner_is_asked_what_waits() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.prompts(ann, 1, &session, "one");
    bus.sees_request(worker, "session/prompt");
    // It still waits for the answer to its prompt.
    bus.handles(Event::Ended(ann));
    bus.sends(worker, r#"{"id":7,"method":"fs/read_text_file","params":{"sessionId":"s1","path":"/x"}}"#);
    bus.all_unseen(ben);
    bus.takes_over(ben, &session);
    let heard = bus.all_unseen(ben);
    let asked = heard.iter().find(|line| line["method"] == "fs/read_text_file").expect("Ben is asked");
    bus.sends(ben, &json!({"id": asked["id"], "result": {"content": ""}}).to_string());
    assert_eq!(bus.sees_json(worker)["id"], 7);
}

#[test]
fn what_an_agent_has_withdrawn_is_not_asked_of_the_next_owner() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.prompts(ann, 1, &session, "one");
    bus.sees_request(worker, "session/prompt");
    bus.handles(Event::Broken(ann));
    bus.all_unseen(worker);
    bus.permission(worker, 7);
    bus.permission(worker, 8);
    bus.sends(worker, CANCEL);
    assert_eq!(bus.sees_error(worker, json!(7), "cancelled")["code"], -32800);
    bus.asks(ben, 2, "session/resume", &session);
    let heard = bus.all_unseen(ben);
    let asked = heard.iter().filter(|line| line["method"] == "session/request_permission");
    assert_eq!(asked.count(), 1, "{heard:?}");
}

#[test]
fn what_an_agent_has_withdrawn_is_not_asked_of_another_when_the_one_who_was_asked_leaves() {
    for is_guest in [false, true] {
        let (mut bus, ann, ben, worker, session) = shared();
        bus.prompts(ann, 1, &session, "one");
        bus.sees_request(worker, "session/prompt");
        if is_guest {
            bus.attaches(ben, &json!({"session": session, "role": "observe"}));
        }
        bus.permission(worker, 7);
        bus.sends(worker, CANCEL);
        assert!(bus.has_heard(ann, "$/cancel_request"));
        bus.handles(Event::Broken(ann));
        assert_eq!(bus.sees_error(worker, json!(7), "cancelled")["code"], -32800);
        bus.asks(ben, 2, "session/resume", &session);
        bus.takes_over(ben, &session);
        assert!(!bus.has_heard(ben, "session/request_permission"));
    }
}

#[test]
fn guests_hear_how_a_turn_failed_and_who_joins_later_is_told() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    for (id, error) in [
        (1, json!({"code": 429, "message": "slow down"})),
        (2, json!({"code": 7, "message": "m".repeat(9000)})),
    ] {
        bus.prompts(ann, id, &session, "one");
        let (call, _) = bus.sees_request(worker, "session/prompt");
        bus.all_unseen(ben);
        bus.sends(worker, &format!(r#"{{"id":{call},"error":{error}}}"#));
        let end = bus.hears_event(ben, "turn");
        assert_eq!((&end["stopReason"], &end["error"]["code"]), (&json!("error"), &error["code"]));
        assert!(
            end["error"]["message"]
                .as_str()
                .expect("a text")
                .starts_with(&error["message"].as_str().unwrap()[..9])
        );
        let late = bus.client();
        let told = bus.attaches(late, &json!({"session": session}));
        assert_eq!(told["lastTurn"], json!({"stopReason": "error", "error": end["error"]}));
        assert!(told.to_string().len() < 4000);
    }
    // The next turn makes it history.
    bus.prompts(ann, 3, &session, "two");
    bus.answers(worker, "session/prompt", r#"{"stopReason":"end_turn"}"#);
    let later = bus.client();
    assert!(bus.attaches(later, &json!({"session": session}))["lastTurn"].is_null());
    // The death of the process ends a turn, too.
    bus.prompts(ann, 4, &session, "three");
    bus.all_unseen(ben);
    bus.crashes(0);
    let end =
        bus.all_unseen(ben).into_iter().find(|line| line["params"]["event"] == "turn").expect("it ends");
    assert_eq!(end["params"]["error"]["data"]["reason"], "worker_lost");
}

#[test]
fn others_are_told_what_was_chosen() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.attaches(ben, &json!({"session": session}));
    bus.prompts(ann, 1, &session, "one");
    bus.permission(worker, 7);
    bus.all_unseen(ben);
    let heard = bus.all_unseen(ann);
    let asked =
        heard.iter().find(|line| line["method"] == "session/request_permission").expect("Ann is asked");
    let chosen = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
    bus.sends(ann, &json!({"id": asked["id"], "result": chosen}).to_string());
    let heard = bus.all_unseen(ben);
    let decided = heard.iter().find(|line| line["params"]["event"] == "decided").expect("Ben is told");
    assert_eq!((&decided["params"]["by"], &decided["params"]["optionId"]), (&json!("ann"), &json!("yes")));
}

/// The agent asks for a permission with these options, and its owner chooses the first one.
fn decides(bus: &mut TestBus, owner: Link, worker: Link, options: &Value) {
    let params = json!({"sessionId": "s1", "options": options});
    bus.sends(
        worker,
        &json!({"id": 7, "method": "session/request_permission", "params": params}).to_string(),
    );
    let heard = bus.all_unseen(owner);
    let asked =
        heard.iter().find(|line| line["method"] == "session/request_permission").expect("it is asked");
    let chosen = json!({"outcome": {"outcome": "selected", "optionId": options[0]["optionId"]}});
    bus.sends(owner, &json!({"id": asked["id"], "result": chosen}).to_string());
    assert_eq!(bus.sees_json(worker)["id"], 7);
}

/// What a client hears in the session, and whether what it was asked was taken back before.
fn hears_choice(bus: &mut TestBus, client: Link) -> (bool, Vec<Value>) {
    let heard = bus.all_unseen(client);
    let at = |method: &str| heard.iter().position(|line| line["method"] == method);
    let is_behind = at("session/update") > at("$/cancel_request") && at("$/cancel_request").is_some();
    let updates = heard.iter().filter(|line| line["method"] == "session/update");
    (is_behind, updates.map(|line| line["params"]["update"].clone()).collect())
}

#[test]
fn who_was_asked_as_well_and_hears_no_events_is_told_in_the_session_who_chose_what() {
    let pool = PoolConfig { share: true, ..pool("agents", 2) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    bus.sends(ann, r#"{"id":0,"method":"_bus/hello","params":{"client":"ann"}}"#);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    // Ben is an editor, Cat one that shows notices, and Dora a program that knows the bus.
    let (ben, cat, dora) = (bus.acp_client(), bus.client(), bus.acp_client());
    let notices = r#"{"protocolVersion":1,"clientCapabilities":{"session":{"notices":{}}}}"#;
    bus.sends(cat, &format!(r#"{{"id":0,"method":"initialize","params":{notices}}}"#));
    let other = bus.worker(1);
    bus.initializes_with(other, INIT);
    for client in [ben, cat] {
        bus.asks(client, 1, "session/load", &session);
    }
    bus.attaches(dora, &json!({"session": session}));
    for client in [ben, cat, dora] {
        bus.all_unseen(client);
    }
    let options = json!([{"optionId": "y\"1", "name": "Allow \"once\"", "kind": "allow_once"}]);
    decides(&mut bus, ann, worker, &options);
    let thought = json!({"type": "text", "text": "ann chose Allow \"once\"\n\n"});
    assert_eq!(
        hears_choice(&mut bus, ben),
        (true, vec![json!({"sessionUpdate": "agent_thought_chunk", "content": thought})])
    );
    let notice = json!({"sessionUpdate": "notice", "severity": "info", "title": "ann chose Allow \"once\""});
    assert_eq!(hears_choice(&mut bus, cat), (true, vec![notice]));
    let heard = bus.all_unseen(dora);
    assert!(heard.iter().any(|line| line["params"]["event"] == "decided"), "{heard:?}");
    assert!(heard.iter().all(|line| line["method"] != "session/update"), "{heard:?}");
    assert!(bus.all_unseen(ann).is_empty(), "she knows");
    // It is not part of what was said.
    let late = bus.acp_client();
    bus.asks(late, 1, "session/load", &session);
    assert!(bus.all_unseen(late).iter().all(|line| line["method"] != "session/update"));
}

#[test]
fn of_what_was_chosen_only_the_beginning_is_told_and_without_a_choice_nothing() {
    let (mut bus, ann, ben, worker, session) = shared();
    bus.asks(ben, 1, "session/resume", &session);
    bus.all_unseen(ben);
    let long = "é".repeat(CLIENT_NAME_BYTES);
    decides(&mut bus, ann, worker, &json!([{"optionId": "y", "name": long}]));
    let (_, told) = hears_choice(&mut bus, ben);
    let text = told[0]["content"]["text"].as_str().expect("a text").trim_end();
    assert_eq!(text, format!("ann chose {}", "é".repeat(CLIENT_NAME_BYTES / 2)));
    // An option without a name is called by its id, and one whose id is long is not told of.
    decides(&mut bus, ann, worker, &json!([{"optionId": "yes"}]));
    assert_eq!(hears_choice(&mut bus, ben).1[0]["content"]["text"], "ann chose yes\n\n");
    decides(&mut bus, ann, worker, &json!([{"optionId": long}]));
    assert_eq!(hears_choice(&mut bus, ben).1, Vec::<Value>::new());
    // Who leaves has chosen nothing.
    bus.permission(worker, 8);
    bus.all_unseen(ben);
    bus.handles(Event::Broken(ann));
    assert_eq!(hears_choice(&mut bus, ben).1, Vec::<Value>::new());
}
