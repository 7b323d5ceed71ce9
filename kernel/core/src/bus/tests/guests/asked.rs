//! Stories of questions that wait while nobody is there who could be asked.

use super::*;

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
