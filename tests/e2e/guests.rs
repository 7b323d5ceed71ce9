//! Several clients on one session: joining, one order, prompts in turn, questions to all, taking over.

use serde_json::{Value, json};

use crate::harness::{Bus, Client, Puppet, bus_puppet_client, limited, one_pool, request, update};

/// A bus with a session of Ann's, and Ben.
fn shared() -> (Bus, Puppet, Client, Client, String) {
    let (bus, mut puppet, mut ann) = bus_puppet_client();
    let mut ben = bus.client();
    ann.asks(1, "_bus/hello", json!({ "client": "ann" }));
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    let session = ann.opens(&mut puppet, "s1");
    (bus, puppet, ann, ben, session)
}

/// What is in the session so far, as a turn of Ann's.
fn has_a_turn(ann: &mut Client, puppet: &mut Puppet, session: &str) {
    ann.sends(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": prompt("hello") })));
    let turn = puppet.is_asked("session/prompt");
    puppet.sends(&update("s1", "one"));
    puppet.sends(&update("s1", "two"));
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(ann.reads(), update(session, "one"));
    assert_eq!(ann.reads(), update(session, "two"));
    ann.gets(2);
}

fn prompt(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

/// The client is told a prompt of another one.
fn hears_prompt(client: &mut Client, text: &str) {
    let update = client.is_asked("session/update");
    assert_eq!(update["params"]["update"]["sessionUpdate"], "user_message_chunk");
    assert_eq!(update["params"]["update"]["content"]["text"], text);
}

fn hears_event(client: &mut Client, event: &str) -> Value {
    let heard = hears_event_of(client);
    assert_eq!(heard["event"], event, "{heard}");
    heard
}

fn choice() -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": "yes" } })
}

/// Who hears no events is told in the session who chose what.
fn hears_choice(client: &mut Client, by: &str) {
    let told = client.is_asked("session/update");
    let text = told["params"]["update"]["content"]["text"].as_str().expect("a text");
    assert!(text.starts_with(by) && text.trim_end().ends_with(" chose yes"), "{told}");
}

#[test]
fn an_editor_joins_by_loading_and_hears_what_was_said_and_what_comes() {
    let (_bus, mut puppet, mut ann, mut ben, session) = shared();
    has_a_turn(&mut ann, &mut puppet, &session);
    ben.loads(3, &session);
    hears_prompt(&mut ben, "hello");
    assert_eq!(ben.reads(), update(&session, "one"));
    assert_eq!(ben.reads(), update(&session, "two"));
    ben.gets(3);
    for text in ["three", "four"] {
        puppet.sends(&update("s1", text));
        assert_eq!(ann.reads(), update(&session, text));
        assert_eq!(ben.reads(), update(&session, text));
    }
    // By the label that `stdio-bus sessions` shows, without what was said before.
    let sessions = ben.asks(4, "_bus/sessions", json!({}));
    let entry = &sessions["sessions"][0];
    assert_eq!(
        (&entry["client"], &entry["guests"]),
        (&json!("ann"), &json!([{ "client": "ben", "role": "control" }]))
    );
    let joined = ben.asks(5, "_bus/attach", json!({ "session": entry["session"], "history": "none" }));
    assert_eq!((&joined["session"], &joined["owner"]), (&json!(session), &json!("ann")));
    assert_eq!((&joined["truncated"], &joined["turn"]), (&json!(false), &json!("idle")));
}

#[test]
fn prompts_wait_for_the_turn_of_another_and_everybody_hears_them() {
    let (_bus, mut puppet, mut ann, mut ben, session) = shared();
    ben.sends(&request(2, "session/resume", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })));
    ben.gets(2);
    ann.sends(&request(3, "session/prompt", json!({ "sessionId": session, "prompt": prompt("first") })));
    let turn = puppet.is_asked("session/prompt");
    hears_prompt(&mut ben, "first");
    ben.sends(&request(3, "session/prompt", json!({ "sessionId": session, "prompt": prompt("second") })));
    ben.sends(&request(4, "session/prompt", json!({ "sessionId": session, "prompt": prompt("never") })));
    ben.sends(
        &json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": 4 } }).to_string(),
    );
    assert_eq!(ben.gets(4), json!({ "stopReason": "cancelled" }));
    puppet.ends_turn(&turn, "end_turn");
    ann.gets(3);
    let turn = puppet.is_asked("session/prompt");
    assert_eq!(turn["params"]["prompt"][0]["text"], "second");
    hears_prompt(&mut ann, "second");
    puppet.ends_turn(&turn, "end_turn");
    ben.gets(3);
}

#[test]
fn a_question_is_asked_of_all_and_the_first_choice_counts() {
    let (_bus, mut puppet, mut ann, mut ben, session) = shared();
    puppet.asks_permission(7, "s1");
    let of_ann = ann.is_asked("session/request_permission");
    // Who joins is asked what is open.
    ben.loads(2, &session);
    ben.gets(2);
    let of_ben = ben.is_asked("session/request_permission");
    ben.answers(&of_ben, choice());
    assert_eq!(puppet.gets(7)["result"], choice());
    assert_eq!(ann.is_asked("$/cancel_request")["params"]["requestId"], of_ann["id"]);
    hears_choice(&mut ann, "ben");
    ann.answers(&of_ann, json!({ "outcome": { "outcome": "cancelled" } }));
    ann.status();
    assert!(!puppet.has_more(), "the late answer is swallowed");
}

#[test]
fn an_observer_watches_and_a_guest_takes_over() {
    let (bus, mut puppet, mut ann, mut ben, session) = shared();
    ben.asks(2, "_bus/attach", json!({ "session": session, "role": "observe" }));
    hears_event(&mut ben, "attached");
    ben.prompts(3, &session);
    ben.sees_error(3, -32061, "read_only");
    ben.asks(4, "_bus/attach", json!({ "session": session }));
    hears_event(&mut ben, "attached");
    ben.asks(5, "_bus/take", json!({ "session": session }));
    assert_eq!(hears_event(&mut ben, "owner")["owner"], "ben");
    let read = json!({ "sessionId": "s1", "path": "/x" });
    puppet.sends(&request(8, "fs/read_text_file", read.clone()));
    let asked = ben.is_asked("fs/read_text_file");
    ben.answers(&asked, json!({ "content": "" }));
    puppet.gets(8);
    puppet.sends(&update("s1", "one"));
    assert_eq!(ann.reads(), update(&session, "one"), "the old owner is a guest");
    assert_eq!(ben.reads(), update(&session, "one"));
    // It owned the session and expects to: when Ben is gone, it does again.
    ben.breaks();
    bus.until("ben has left", || ann.status()["clients"] == 1);
    puppet.sends(&request(9, "fs/read_text_file", read));
    ann.is_asked("fs/read_text_file");
}

#[test]
fn a_session_survives_its_owner_and_its_agent_for_its_guests() {
    let (bus, mut puppet, mut ann, mut ben, session) = {
        let bus = Bus::start(limited(1, json!({ "session_keep_sec": 60 })));
        let (mut puppet, mut ann, mut ben) = (bus.puppet(), bus.client(), bus.client());
        ann.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "resume": {} } }));
        ben.asks(0, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
        let session = ann.opens(&mut puppet, "s1");
        (bus, puppet, ann, ben, session)
    };
    ben.asks(1, "_bus/attach", json!({ "session": session }));
    hears_event(&mut ben, "attached");
    ann.prompts(5, &session);
    puppet.is_asked("session/prompt");
    assert_eq!(hears_event_after_prompt(&mut ben)["turn"], "running");
    ann.breaks();
    assert_eq!(hears_event(&mut ben, "owner")["owner"], json!(null));
    puppet.sends(&update("s1", "still here"));
    assert_eq!(ben.reads(), update(&session, "still here"));
    // With the agent nobody is left who knows the capabilities of the owner, so a guest becomes it.
    puppet.dies_by(9);
    while hears_event_of(&mut ben)["event"] != "owner" {}
    let mut next = bus.puppet();
    let asked = next.is_asked("initialize");
    next.answers(
        &asked,
        json!({ "protocolVersion": 1, "agentCapabilities": { "sessionCapabilities": { "resume": {} } } }),
    );
    ben.prompts(6, &session);
    let asked = next.is_asked("session/resume");
    next.answers(&asked, json!({}));
    let turn = next.is_asked("session/prompt");
    next.ends_turn(&turn, "end_turn");
    hears_event(&mut ben, "turn");
    ben.gets(6);
}

fn hears_event_of(client: &mut Client) -> Value {
    client.is_asked("_bus/session")["params"].clone()
}

/// The event behind the prompt that is told.
fn hears_event_after_prompt(client: &mut Client) -> Value {
    let heard = client.is_asked("session/update");
    assert_eq!(heard["params"]["update"]["sessionUpdate"], "user_message_chunk");
    hears_event(client, "turn")
}

#[test]
fn a_guest_that_does_not_read_is_detached_and_nobody_waits_for_it() {
    let bus = Bus::start(limited(1, json!({ "max_output_queue": 65536 })));
    let (mut puppet, mut ann, mut ben) = (bus.puppet(), bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    ben.asks(1, "_bus/attach", json!({ "session": session }));
    // Far more than its queue and the buffers of the system hold.
    let text = "x".repeat(16 << 10);
    for _ in 0..2048 {
        puppet.sends(&update("s1", &text));
        assert_eq!(ann.reads(), update(&session, &text));
    }
    let sessions = ann.asks(3, "_bus/sessions", json!({}));
    assert_eq!(sessions["sessions"][0]["guests"], json!(null), "{sessions}");
}

#[test]
fn guests_of_two_buses_in_a_chain_hear_the_same_session() {
    let far = Bus::start(one_pool(1));
    let edge = json!({ "id": "far", "command": "stdio-bus", "args": ["connect", "--tcp", far.tcp()] });
    let near = Bus::start(json!({ "pools": [edge] }));
    let (mut puppet, mut ann, mut ben, mut cem) = (far.puppet(), near.client(), near.client(), far.client());
    let session = ann.opens(&mut puppet, "s1");
    ben.loads(1, &session);
    ben.gets(1);
    let there = cem.asks(1, "_bus/attach", json!({ "session": "s1" }))["session"].clone();
    hears_event(&mut cem, "attached");
    ann.sends(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": prompt("hello") })));
    let turn = puppet.is_asked("session/prompt");
    hears_prompt(&mut ben, "hello");
    hears_prompt(&mut cem, "hello");
    hears_event(&mut cem, "turn");
    puppet.sends(&update("s1", "one"));
    assert_eq!(ann.reads(), update(&session, "one"));
    assert_eq!(ben.reads(), update(&session, "one"));
    assert_eq!(cem.reads(), update(there.as_str().expect("an id"), "one"));
    // Each bus asks its own, and the first choice of all counts.
    puppet.asks_permission(7, "s1");
    ann.is_asked("session/request_permission");
    let of_ben = ben.is_asked("session/request_permission");
    let of_cem = cem.is_asked("session/request_permission");
    ben.answers(&of_ben, choice());
    assert_eq!(puppet.gets(7)["result"], choice());
    hears_event(&mut cem, "asked");
    assert_eq!(cem.is_asked("$/cancel_request")["params"]["requestId"], of_cem["id"]);
    puppet.ends_turn(&turn, "end_turn");
    ann.is_asked("$/cancel_request");
    hears_choice(&mut ann, "");
    ann.gets(2);
}
