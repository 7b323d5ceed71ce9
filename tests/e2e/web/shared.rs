//! Several pages on one session: what a token that may only look on, or only approve, can do there.

use serde_json::{Value, json};

use super::bus_with_door;
use crate::harness::{Web, WebSocket, initialize, request};

/// The label of the only session.
fn label(page: &mut WebSocket) -> Value {
    page.asks(50, "_bus/sessions", json!({}))["result"]["sessions"][0]["session"].clone()
}

#[test]
fn a_phone_that_may_approve_answers_the_question_of_another_page() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut desk = web.socket(&web.token("control"));
    let session = desk.opens_session();
    let mut phone = web.socket(&web.token("approve"));
    phone.sends(&initialize(0, json!({})));
    phone.gets(0);
    let label = label(&mut phone);
    let attached = phone.asks(1, "_bus/attach", json!({ "session": label, "role": "control" }));
    assert_eq!(attached["result"]["role"], "control", "{attached}");
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "/ask" }] });
    desk.sends(&request(2, "session/prompt", prompt));
    let question = loop {
        let message = phone.receives();
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let option = &question["params"]["options"][0]["optionId"];
    let chosen = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    phone.sends(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": chosen }).to_string());
    assert_eq!(desk.gets(2).0["result"]["stopReason"], "end_turn");
    bus.log_has(" (approve) from 127.0.0.1:");
    // It may answer, and nothing more.
    for method in ["session/prompt", "session/cancel", "_bus/take"] {
        let refused = phone.asks(3, method, json!({ "sessionId": session, "session": label, "prompt": [] }));
        assert_eq!(refused["error"]["code"], -32_061, "{method}");
    }
}

#[test]
fn a_page_that_only_looks_on_cannot_attach_as_more() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut desk = web.socket(&web.token("control"));
    let session = desk.opens_session();
    let mut page = web.socket(&web.token("observe"));
    page.sends(&initialize(0, json!({})));
    page.gets(0);
    let label = label(&mut page);
    for role in [json!("control"), Value::Null] {
        let refused = page.asks(1, "_bus/attach", json!({ "session": label, "role": role }));
        assert_eq!(refused["error"]["code"], -32_061, "{role}");
    }
    // Nor by the place of the word in a list.
    assert_eq!(page.asks(2, "_bus/attach", json!([label, "observe"]))["error"]["code"], -32_061);
    let attached = page.asks(3, "_bus/attach", json!({ "session": label, "role": "observe" }));
    assert_eq!(attached["result"]["role"], "observe", "{attached}");
    assert_eq!(desk.takes_turn(2, &session, "Look at this.").0, "Look at this.");
    let said = std::iter::repeat_with(|| page.receives())
        .find(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    assert!(said.is_some());
}
