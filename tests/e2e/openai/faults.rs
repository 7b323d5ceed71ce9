//! What goes wrong at the server, and what the client is told.

use std::net::TcpListener;

use serde_json::json;

use super::{KEY, Stage, user};

/// The agent's words for a request that is refused so, once.
fn told_of(stage: &mut Stage, session: &str, status: u16, body: &str) -> String {
    let id = stage.prompts(session, "go");
    stage.server.is_asked().refuses(status, "", body);
    let seen = stage.until_answer(id);
    assert_eq!(seen.stop(), "end_turn");
    stage.server.is_not_asked_again();
    seen.said()
}

#[test]
fn a_bad_key_is_said_and_not_tried_again_and_never_shown() {
    let mut stage = Stage::new();
    let session = stage.session();
    let url = format!("{}/chat/completions", stage.server.url);
    let body = format!(r#"{{"error":{{"message":"bad key {KEY}"}}}}"#);
    let said = told_of(&mut stage, &session, 401, &body);
    let sentence = format!("Authentication error (HTTP 401) calling {url}. Check your OPENAI_API_KEY.");
    assert_eq!(said, format!("{sentence}\nbad key ***"));
    assert_eq!(told_of(&mut stage, &session, 404, ""), format!("HTTP error (404) from {url}."));
    stage.bus.log_has("Authentication error (HTTP 401)");
    assert!(!stage.bus.log.text().contains(KEY), "the key is in the log");
}

#[test]
fn what_passes_is_tried_again_as_the_server_wishes() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    stage.server.is_asked().refuses(429, "retry-after: 0\r\n", "");
    stage.server.is_asked().refuses(503, "retry-after-ms: 1\r\n", "");
    stage.server.says("third time");
    assert_eq!(stage.until_answer(id).said(), "third time");
}

#[test]
fn patience_ends_and_says_what_the_server_said_last() {
    let mut stage = Stage::with(json!({ "OPENAI_MAX_RETRIES": "1" }), &[]);
    let session = stage.session();
    let url = format!("{}/chat/completions", stage.server.url);
    let id = stage.prompts(&session, "go");
    stage.server.is_asked().refuses(500, "retry-after: 0\r\n", "first");
    stage.server.is_asked().refuses(500, "retry-after: 0\r\n", r#"{"error":{"message":"second"}}"#);
    let seen = stage.until_answer(id);
    assert_eq!(seen.said(), format!("Server error (HTTP 500) from {url}.\nsecond"));
    let id = stage.prompts(&session, "go");
    stage.server.is_asked().refuses(429, "retry-after: 3600\r\n", "");
    let said = stage.until_answer(id).said();
    assert_eq!(said, format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."));
    stage.server.is_not_asked_again();
}

#[test]
fn programs_can_have_their_errors_as_errors() {
    let mut stage = Stage::with(json!({ "OPENAI_MAX_RETRIES": "0" }), &["--errors", "rpc"]);
    let session = stage.session();
    for (status, code, reason) in
        [(401, -32000, "authentication"), (429, -32603, "rate_limit"), (400, -32602, "request")]
    {
        let id = stage.prompts(&session, "go");
        stage.server.is_asked().refuses(status, "", r#"{"error":{"message":"why"}}"#);
        let seen = stage.until_answer(id);
        let error = &seen.answer["error"];
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(code), &json!(reason)));
        assert_eq!(error["data"]["status"], status);
        assert!(error["message"].as_str().expect("words").ends_with("\nwhy"), "{error}");
        assert_eq!(seen.said(), "");
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base = format!("http://{free}/v1/");
    let mut stage = Stage::with(json!({ "OPENAI_BASE_URL": base, "OPENAI_MAX_RETRIES": "0" }), &[]);
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    let said = stage.until_answer(id).said();
    let begins = format!("Network error connecting to http://{free}/v1/chat/completions: ");
    assert!(said.starts_with(&begins) && said.contains("refused"), "{said}");
}

#[test]
fn a_stream_that_breaks_off_is_a_failure_and_leaves_no_half_answer() {
    let mut stage = Stage::new();
    let session = stage.session();
    let url = format!("{}/chat/completions", stage.server.url);
    // Cut in the middle of the body; and ended in order, but without an end of the answer.
    for cut in [true, false] {
        let id = stage.prompts(&session, "go");
        let exchange = stage.server.is_asked();
        exchange.begins();
        exchange.delta(&json!({ "content": "half" }));
        assert_eq!(stage.hears_update("agent_message_chunk")["content"]["text"], "half");
        if cut {
            exchange.breaks();
        } else {
            exchange.ends();
        }
        let seen = stage.until_answer(id);
        assert!(
            seen.said().starts_with(&format!("\n\nThe stream from {url} broke off: ")),
            "{}",
            seen.said()
        );
        assert_eq!(seen.stop(), "end_turn");
        stage.server.is_not_asked_again();
    }
    stage.prompts(&session, "on");
    assert_eq!(stage.server.says("yes"), [user("go\n\ngo\n\non")]);
}

#[test]
fn an_error_in_the_stream_and_an_empty_answer_are_failures() {
    let mut stage = Stage::new();
    let session = stage.session();
    let url = format!("{}/chat/completions", stage.server.url);
    let id = stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    exchange.begins();
    exchange.raw("data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n");
    exchange.ends();
    let seen = stage.until_answer(id);
    assert_eq!(seen.said(), format!("Server error in the stream from {url}.\nout of memory"));
    let id = stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    exchange.begins();
    exchange.ends();
    assert_eq!(stage.until_answer(id).said(), format!("No response body from {url}."));
}

#[test]
fn what_a_server_does_not_take_is_left_out_from_then_on() {
    let mut stage = Stage::with(json!({ "OPENAI_MAX_TOKENS": "5" }), &[]);
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    assert!(exchange.body.get("stream_options").is_some());
    exchange.refuses(400, "", r#"{"error":{"message":"Unrecognized request argument: stream_options"}}"#);
    let exchange = stage.server.is_asked();
    assert!(exchange.body.get("stream_options").is_none());
    exchange.refuses(400, "", r#"{"error":{"message":"Use 'max_completion_tokens' instead."}}"#);
    stage.server.says("fine");
    assert_eq!(stage.until_answer(id).said(), "fine");
    stage.prompts(&session, "again");
    let exchange = stage.server.is_asked();
    assert_eq!(
        (exchange.body.get("stream_options"), &exchange.body["max_completion_tokens"]),
        (None, &json!(5))
    );
    exchange.streams(&[], "stop");
}

#[test]
fn silence_has_an_end() {
    let mut stage = Stage::with(json!({ "OPENAI_TIMEOUT_SEC": "0.2" }), &[]);
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    let silent = stage.server.is_asked();
    assert!(stage.until_answer(id).said().contains("no answer in time"));
    drop(silent);
    let id = stage.prompts(&session, "go");
    let silent = stage.server.is_asked();
    silent.begins();
    silent.delta(&json!({ "content": "a" }));
    // On a busy machine even the first byte may be late.
    assert!(stage.until_answer(id).said().contains("in time (OPENAI_TIMEOUT_SEC)"));
}
