//! Sessions: how they are opened, named and owned, and that they never mix.

use serde_json::{Value, json};

use crate::harness::{
    Bus, bus_puppet_client, first_asked, notification, one_pool, prompt, request, session_of, unshared,
    update,
};

/// Whether the id is thirteen characters of base 32, a dot, and the agent's own id.
fn is_tagged(id: &str, agent_id: &str) -> bool {
    let Some((tag, rest)) = id.split_once('.') else { return false };
    tag.len() == 13 && tag.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')) && rest == agent_id
}

#[test]
fn a_session_id_is_a_tag_and_the_agents_own_id() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let one = client.opens(&mut puppet, "s1");
    let two = client.opens(&mut puppet, "a.b/ž");
    assert!(is_tagged(&one, "s1"), "{one}");
    assert!(is_tagged(&two, "a.b/ž"), "{two}");
    assert_ne!(one[..13], two[..13]);
}

#[test]
fn four_sessions_of_two_clients_on_two_workers_with_equal_agent_ids_never_mix() {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let mut sessions = Vec::new();
    // The bus spreads sessions evenly, so both workers get a session s1 and then a session s2.
    for agent_id in ["s1", "s2"] {
        sessions.push(ann.opens_anywhere(&mut workers, agent_id));
        sessions.push(ben.opens_anywhere(&mut workers, agent_id));
    }
    assert_ne!(sessions[0].1, sessions[1].1);
    assert_ne!(sessions[2].1, sessions[3].1);
    // Each worker sends an update of each of its sessions; only the owner gets it, under the right id.
    for (at, (id, worker)) in sessions.iter().enumerate() {
        let (client, other) = if at % 2 == 0 { (&mut ann, &mut ben) } else { (&mut ben, &mut ann) };
        client.sends(&prompt(7, id));
        let asked = workers[*worker].is_asked("session/prompt");
        let agent_id = asked["params"]["sessionId"].as_str().expect("a session").to_owned();
        assert!(is_tagged(id, &agent_id));
        workers[*worker].sends(&update(&agent_id, id));
        workers[*worker].ends_turn(&asked, "end_turn");
        let received = client.is_asked("session/update");
        assert_eq!(received["params"], json!({ "sessionId": id, "update": { "text": id } }));
        client.gets(7);
        other.has_received_nothing();
    }
}

#[test]
fn the_session_of_another_client_and_the_agents_raw_id_are_unknown() {
    let bus = Bus::start(unshared(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    let guessed = format!("aaaaaaaaaaaaa.{}", "s1");
    for name in [session.as_str(), "s1", &guessed, "", "nonsense"] {
        ben.sends(&prompt(1, name));
        ben.sees_error(1, -32051, "unknown_session");
    }
    ann.sends(&prompt(2, "s1"));
    ann.sees_error(2, -32051, "unknown_session");
    for method in ["session/load", "session/resume", "session/fork", "session/delete", "session/close"] {
        ben.sends(&request(3, method, json!({ "sessionId": session, "cwd": "/" })));
        ben.sees_error(3, -32051, "unknown_session");
    }
    for method in ["session/load", "session/resume", "session/fork", "session/delete"] {
        ben.sends(&request(4, method, json!({ "sessionId": "s1", "cwd": "/" })));
        ben.sees_error(4, -32051, "unknown_session");
    }
    ben.sends(&notification("session/cancel", json!({ "sessionId": session })));
    ben.has_received_nothing();
    ann.prompts(5, &session);
    assert_eq!(
        puppet.is_asked("session/prompt")["params"]["sessionId"],
        "s1",
        "no message of ben has come through"
    );
}

#[test]
fn updates_that_come_before_the_answer_go_to_the_client_that_is_answered() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.sends(&request(1, "session/new", json!({ "who": "ann" })));
    let of_ann = puppet.is_asked("session/new");
    ben.sends(&request(1, "session/new", json!({ "who": "ben" })));
    let of_ben = puppet.is_asked("session/new");
    puppet.sends(&update("for ben", "early 1"));
    puppet.sends(&update("for ann", "early 2"));
    puppet.sends(&update("for ben", "early 3"));
    puppet.sends(&update("for no client", "early 4"));
    puppet.answers(&of_ben, json!({ "sessionId": "for ben" }));
    let session = session_of(&ben.gets(1));
    for text in ["early 1", "early 3"] {
        assert_eq!(ben.reads(), update(&session, text));
    }
    puppet.answers(&of_ann, json!({ "sessionId": "for ann" }));
    let session = session_of(&ann.gets(1));
    assert_eq!(ann.reads(), update(&session, "early 2"));
    ann.has_received_nothing();
    ben.has_received_nothing();
}

#[test]
fn a_child_session_announced_in_an_update_is_usable() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let parent = ann.opens(&mut puppet, "s1");
    ben.opens(&mut puppet, "s2");
    let announced =
        json!({ "sessionId": "s1", "update": { "sessionUpdate": "subagent_update", "sessionId": "kid" } });
    puppet.sends(&notification("session/update", announced));
    let announced = ann.is_asked("session/update");
    assert_eq!(announced["params"]["sessionId"], json!(parent));
    let child = session_of(&announced["params"]["update"]);
    assert!(is_tagged(&child, "kid"), "{child}");
    puppet.sends(&update("kid", "from the child"));
    assert_eq!(ann.reads(), update(&child, "from the child"));
    ann.prompts(1, &child);
    assert_eq!(puppet.is_asked("session/prompt")["params"]["sessionId"], "kid");
    ben.prompts(1, &child);
    ben.sees_error(1, -32051, "unknown_session");
}

#[test]
fn a_list_shows_bus_ids_and_hides_what_another_client_holds() {
    let bus = Bus::start(unshared(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let mine = ann.opens(&mut puppet, "s1");
    ben.opens(&mut puppet, "s2");
    for (listed, expected) in [
        (json!(["s1", "s2", "old"]), json!([mine, "old"])),
        (json!(["s2", "s1"]), json!([mine])),
        (json!(["s2"]), json!([])),
        (json!(["old", "s2"]), json!(["old"])),
        (json!([]), json!([])),
    ] {
        ann.sends(&request(1, "session/list", json!({})));
        let asked = puppet.is_asked("session/list");
        let entries = |ids: &Value| -> Vec<Value> {
            let ids = ids.as_array().expect("a list").iter();
            ids.map(|id| json!({ "cwd": "/", "sessionId": id, "title": "s2" })).collect()
        };
        puppet.answers(&asked, json!({ "sessions": entries(&listed), "nextCursor": "c" }));
        assert_eq!(ann.gets(1), json!({ "sessions": entries(&expected), "nextCursor": "c" }));
    }
}

#[test]
fn an_agents_session_from_an_earlier_bus_can_be_loaded_by_its_raw_or_old_id() {
    let bus = Bus::start(unshared(1));
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    for (name, agent_id) in [("raw", "raw"), ("abcdefghijklm.old", "old")] {
        ann.loads(1, name);
        let asked = puppet.is_asked("session/load");
        assert_eq!(asked["params"]["sessionId"], agent_id);
        puppet.sends(&update(agent_id, "replayed"));
        assert_eq!(ann.reads(), update(name, "replayed"), "under the id that the client knows");
        puppet.answers(&asked, json!({}));
        ann.gets(1);
        ann.prompts(2, name);
        let asked = puppet.is_asked("session/prompt");
        assert_eq!(asked["params"]["sessionId"], agent_id);
        puppet.ends_turn(&asked, "end_turn");
        ann.gets(2);
    }
    let mut ben = bus.client();
    ben.loads(1, "raw");
    ben.sees_error(1, -32051, "unknown_session");
}

#[test]
fn a_load_that_fails_leaves_no_session() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    ann.loads(1, "raw");
    let asked = puppet.is_asked("session/load");
    puppet.refuses(&asked, &json!({ "code": -32002, "message": "no" }));
    assert_eq!(ann.reads(), r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no"}}"#);
    ann.prompts(2, "raw");
    ann.sees_error(2, -32051, "unknown_session");
}

#[test]
fn fork_close_and_delete_use_the_agents_ids() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let session = ann.opens(&mut puppet, "s1");
    ann.sends(&request(1, "session/fork", json!({ "sessionId": session, "cwd": "/" })));
    let asked = puppet.is_asked("session/fork");
    assert_eq!(asked["params"]["sessionId"], "s1");
    puppet.sends(&update("s2", "early"));
    puppet.answers(&asked, json!({ "sessionId": "s2" }));
    let fork = session_of(&ann.gets(1));
    assert!(is_tagged(&fork, "s2") && fork[..13] != session[..13]);
    assert_eq!(ann.reads(), update(&fork, "early"));
    for (method, name, agent_id) in [("session/close", &session, "s1"), ("session/delete", &fork, "s2")] {
        ann.sends(&request(2, method, json!({ "sessionId": name })));
        let asked = puppet.is_asked(method);
        assert_eq!(asked["params"]["sessionId"], agent_id);
        puppet.answers(&asked, json!({}));
        ann.gets(2);
        ann.prompts(3, name);
        ann.sees_error(3, -32051, "unknown_session");
    }
}

#[test]
fn two_clients_cannot_load_the_same_agent_session() {
    let bus = Bus::start(unshared(2));
    let mut workers = bus.puppets::<2>();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.loads(1, "raw");
    let asked = first_asked(&mut workers).is_asked("session/load");
    assert_eq!(asked["params"]["sessionId"], "raw");
    for name in ["raw", "abcdefghijklm.raw"] {
        ben.loads(1, name);
        ben.sees_error(1, -32051, "unknown_session");
    }
}

#[test]
fn a_session_that_is_opened_for_a_client_that_has_left_is_closed_again() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "close": {} } }));
    ann.sends(&request(1, "session/new", json!({})));
    let asked = puppet.is_asked("session/new");
    ann.breaks();
    bus.until("ann has left", || ben.status()["clients"] == 1);
    puppet.answers(&asked, json!({ "sessionId": "s1" }));
    assert_eq!(puppet.is_asked("session/close")["params"]["sessionId"], "s1");
}

#[test]
fn notifications_of_a_client_keep_their_order_among_its_requests() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    ann.sends(&notification("session/cancel", json!({ "sessionId": session })));
    ann.sends(&notification("_vendor/note", json!({})));
    ann.prompts(1, &session);
    let first = puppet.is_asked("session/prompt");
    assert_eq!(puppet.is_asked("session/cancel")["params"]["sessionId"], "s1");
    puppet.is_asked("_vendor/note");
    // The same id twice is two requests, and each gets its answer.
    let second = puppet.is_asked("session/prompt");
    puppet.answers(&second, json!("second"));
    puppet.answers(&first, json!("first"));
    assert_eq!(ann.gets(1), "second");
    assert_eq!(ann.gets(1), "first");
    ann.has_received_nothing();
}

#[test]
fn a_session_id_may_be_any_text_in_any_spelling() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let agent_id = "a\"b\\c\n\u{1}é😀/";
    let session = ann.opens(&mut puppet, agent_id);
    assert!(is_tagged(&session, agent_id), "{session}");
    ann.prompts(1, &session);
    assert_eq!(puppet.is_asked("session/prompt")["params"]["sessionId"], agent_id);
    // The same id comes in escapes from both sides.
    let escaped = |text: &str| text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    let spelled = |text: &str| update("@", "word").replace('@', &escaped(text));
    puppet.sends(&spelled(agent_id));
    assert_eq!(ann.is_asked("session/update")["params"]["sessionId"], json!(session));
    ann.sends(&prompt(2, "@").replace('@', &escaped(&session)));
    assert_eq!(puppet.is_asked("session/prompt")["params"]["sessionId"], agent_id);
}

#[test]
fn an_agent_that_repeats_the_session_in_its_answers_does_not_confuse_the_client() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let session = ann.opens(&mut puppet, "s1");
    // The session is open, and the agent has not said that it can tell it again, so the bus answers itself.
    for method in ["session/load", "session/resume"] {
        ann.sends(&request(1, method, json!({ "sessionId": session, "cwd": "/" })));
        assert_eq!(ann.gets(1), json!({}));
    }
    ann.loads(2, "raw");
    let asked = puppet.is_asked("session/load");
    puppet.answers(&asked, json!({ "sessionId": "raw" }));
    let loaded = session_of(&ann.gets(2));
    ann.prompts(3, &loaded);
    assert_eq!(puppet.is_asked("session/prompt")["params"]["sessionId"], "raw");
}

#[test]
fn a_cancel_with_an_id_cancels_and_is_answered() {
    let (_bus, mut puppet, mut ann) = bus_puppet_client();
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    let prompt = puppet.is_asked("session/prompt");
    ann.sends(&request(2, "session/cancel", json!({ "sessionId": session })));
    let cancel = puppet.is_asked("session/cancel");
    assert_eq!((cancel.get("id"), &cancel["params"]["sessionId"]), (None, &json!("s1")));
    assert_eq!(ann.gets(2), json!({}));
    puppet.ends_turn(&prompt, "cancelled");
    assert_eq!(ann.gets(1)["stopReason"], "cancelled");
}
