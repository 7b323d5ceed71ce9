//! Stories of questions that wait while nobody is there who could be asked.

use super::*;

const CANCEL: &str = r#"{"method":"$/cancel_request","params":{"requestId":7}}"#;

impl TestBus {
    /// Everything that the client has not looked at.
    fn all_unseen(&mut self, client: Link) -> Vec<Value> {
        let lines = self.unseen.remove(&client).unwrap_or_default();
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

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
