//! An IDE that joins the session of another one.

use serde_json::{Value, json};

use super::*;

#[test]
fn the_first_session_is_joined_by_its_label_and_taken_up_again_like_any() {
    let mut stage = Stage::with(|options| options.attach = Some("s17".to_owned()));
    let mut bus = stage.admits();
    stage.says(INITIALIZE);
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": {} }));
    stage.hears();
    let new = r#"{"id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[]}}"#;
    // A session that cannot be joined is the answer of the bus, and may be tried again.
    stage.says(new);
    let asked = bus.is_asked("_bus/attach");
    bus.refuses(&asked, -32051, "unknown_session");
    stage.hears_error(1, -32051, "unknown_session");
    stage.says(new);
    let asked = bus.is_asked("_bus/attach");
    assert_eq!(asked["params"], json!({ "session": "s17", "role": "observe", "history": "none" }));
    bus.answers(&asked, json!({ "session": "t.s", "sessionId": "t.s", "label": "s17" }));
    let detach = bus.is_asked("_bus/detach");
    assert_eq!(detach["params"], json!({ "session": "t.s" }));
    let load = bus.is_asked("session/load");
    assert_eq!(load["params"], json!({ "sessionId": "t.s", "cwd": "/w", "mcpServers": [] }));
    let update = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"t.s","update":{}}}"#;
    // What is said in between is told again by the load.
    bus.writes(update);
    bus.answers(&detach, json!({}));
    bus.writes(update);
    bus.writes(r#"{"jsonrpc":"2.0","method":"_bus/session","params":{"session":"t.s","event":"attached"}}"#);
    bus.answers(&load, json!({ "modes": {} }));
    let opened: Value = stage.hears().parse().unwrap();
    let result = json!({ "sessionId": "t.s", "modes": {} });
    assert_eq!((&opened["id"], &opened["result"]), (&json!(1), &result));
    assert_eq!(stage.hears(), update);
    bus.writes(r#"{"method":"next"}"#);
    assert_eq!(stage.hears(), r#"{"method":"next"}"#);
    drop(bus);
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": {} }));
    let asked = bus.is_asked("session/resume");
    assert_eq!(asked["params"], reopened());
    bus.answers(&asked, json!({}));
    // The next session is one of its own.
    stage.says(new);
    let asked = bus.is_asked("session/new");
    bus.answers(&asked, json!({ "sessionId": "t.u" }));
    stage.hears();
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_join_that_is_lost_with_its_connection_is_answered_and_can_be_tried_again() {
    let mut stage = Stage::with(|options| options.attach = Some("s17".to_owned()));
    let mut bus = stage.admits();
    let new = r#"{"id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[]}}"#;
    stage.says(new);
    bus.is_asked("_bus/attach");
    drop(bus);
    let mut bus = stage.admits();
    stage.hears_error(1, -32050, "worker_lost");
    stage.says(new);
    let asked = bus.is_asked("_bus/attach");
    // An answer without the id of a session is no session.
    bus.answers(&asked, json!([]));
    stage.hears_error(1, -32051, "unknown_session");
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}
