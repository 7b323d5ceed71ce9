//! What the bus says of those who share a session: who comes and goes, and whose turn it is.

use serde_json::Value;

use crate::status::word;

/// What the owner of a session calls itself on the bus.
pub(super) const OWNER_NAME: &str = "stdio-bus run";

/// The words for an event of a session: who comes, goes or waits. `own`: the name of this client on the bus.
pub(super) fn words_of(event: &Value, own: &str) -> Option<String> {
    let name = |key: &str| word(&event[key]);
    Some(match event["event"].as_str()? {
        "attached" if event["client"] == own => return None,
        "attached" if event["role"] == "observe" => format!("{} watches", name("client")),
        "attached" => format!("{} has joined", name("client")),
        "detached" => format!("{} has left", name("client")),
        "queued" if event["by"] == own => {
            format!("your prompt waits for the turn of another, place {}", event["place"])
        }
        "queued" => format!("a prompt of {} waits", name("by")),
        _ => return None,
    })
}

/// Whether this message says that the turn of somebody else begins.
pub(super) fn begins_turn_of_another(message: &Value) -> bool {
    let event = &message["params"];
    message["method"] == "_bus/session"
        && event["event"] == "turn"
        && event["turn"] == "running"
        && event["by"] != OWNER_NAME
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_comes_goes_and_waits_is_said_by_name() {
        let cases = [
            (json!({ "event": "attached", "client": "ben", "role": "control" }), Some("ben has joined")),
            (json!({ "event": "attached", "client": "wall", "role": "observe" }), Some("wall watches")),
            (json!({ "event": "attached", "client": "me" }), None),
            (json!({ "event": "detached", "client": "b\u{1b}n" }), Some("b?n has left")),
            (json!({ "event": "queued", "by": "ben", "place": 1 }), Some("a prompt of ben waits")),
            (
                json!({ "event": "queued", "by": "me", "place": 2 }),
                Some("your prompt waits for the turn of another, place 2"),
            ),
            (json!({ "event": "turn", "turn": "running" }), None),
            (json!(7), None),
        ];
        for (event, words) in cases {
            assert_eq!(words_of(&event, "me").as_deref(), words, "{event}");
        }
    }
}
