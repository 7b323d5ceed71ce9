//! Failures of the server, and what the client sees of them.

use std::net::TcpListener;

use serde_json::json;

use super::{KEY, Setup, assistant, user};

/// The agent's text for a failed request.
fn text_for_failure(setup: &mut Setup, session: &str, status: u16, body: &str) -> String {
    let id = setup.prompts(session, "go");
    setup.server.is_asked().refuses(status, "", body);
    let seen = setup.until_response(id);
    assert_eq!(seen.stop(), "end_turn");
    setup.server.is_not_asked_again();
    seen.said()
}

#[test]
fn a_bad_key_is_reported_but_not_shown_and_not_tried_again() {
    let mut setup = Setup::new();
    let session = setup.session();
    let url = format!("{}/chat/completions", setup.server.url);
    let body = format!(r#"{{"error":{{"message":"bad key {KEY}"}}}}"#);
    let said = text_for_failure(&mut setup, &session, 401, &body);
    let sentence = format!("Authentication error (HTTP 401) calling {url}. Check your OPENAI_API_KEY.");
    assert_eq!(said, format!("{sentence}\nbad key ***"));
    assert_eq!(text_for_failure(&mut setup, &session, 404, ""), format!("HTTP error (404) from {url}."));
    setup.bus.log_has("Authentication error (HTTP 401)");
    assert!(!setup.bus.log.text().contains(KEY), "the key is in the log");
}

#[test]
fn a_transient_failure_is_retried_when_the_server_says() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    setup.server.is_asked().refuses(429, "retry-after: 0\r\n", "");
    setup.server.is_asked().refuses(503, "retry-after-ms: 1\r\n", "");
    setup.server.says("third time");
    assert_eq!(setup.until_response(id).said(), "third time");
}

#[test]
fn after_the_last_retry_the_servers_last_message_is_shown() {
    let mut setup = Setup::with(json!({ "OPENAI_MAX_RETRIES": "1" }), &[]);
    let session = setup.session();
    let url = format!("{}/chat/completions", setup.server.url);
    let id = setup.prompts(&session, "go");
    setup.server.is_asked().refuses(500, "retry-after: 0\r\n", "first");
    setup.server.is_asked().refuses(500, "retry-after: 0\r\n", r#"{"error":{"message":"second"}}"#);
    let seen = setup.until_response(id);
    assert_eq!(seen.said(), format!("Server error (HTTP 500) from {url}.\nsecond"));
    let id = setup.prompts(&session, "go");
    setup.server.is_asked().refuses(429, "retry-after: 3600\r\n", "");
    let said = setup.until_response(id).said();
    assert_eq!(said, format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."));
    setup.server.is_not_asked_again();
}

#[test]
fn errors_can_be_sent_as_json_rpc_errors() {
    let mut setup = Setup::with(json!({ "OPENAI_MAX_RETRIES": "0" }), &["--errors", "rpc"]);
    let session = setup.session();
    for (status, code, reason) in
        [(401, -32000, "authentication"), (429, -32603, "rate_limit"), (400, -32602, "request")]
    {
        let id = setup.prompts(&session, "go");
        setup.server.is_asked().refuses(status, "", r#"{"error":{"message":"why"}}"#);
        let seen = setup.until_response(id);
        let error = &seen.response["error"];
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(code), &json!(reason)));
        assert_eq!(error["data"]["status"], status);
        assert!(error["message"].as_str().expect("words").ends_with("\nwhy"), "{error}");
        assert_eq!(seen.said(), "");
    }
}

#[test]
fn a_refused_prompt_is_taken_back_also_after_a_restart() {
    let mut setup = Setup::new();
    let session = setup.session();
    setup.says(&session, "one", "ONE");
    for status in [400, 404, 413, 422] {
        assert!(text_for_failure(&mut setup, &session, status, "").contains(&status.to_string()));
    }
    // An error in the stream is the same if it has such a code.
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    exchange.begins();
    exchange.chunk(&json!({ "error": { "code": 400, "message": "no" } }));
    exchange.ends();
    setup.until_response(id);
    // A server that cannot read images may call that its own fault.
    let image = json!([{ "type": "image", "mimeType": "image/png", "data": "AAAA" }]);
    let id = setup.ask("session/prompt", json!({ "sessionId": session, "prompt": image }));
    for _ in 0..3 {
        setup.server.is_asked().refuses(500, "retry-after: 0\r\n", "image input is not supported");
    }
    setup.until_response(id);
    let id = setup.prompts(&session, "two");
    assert_eq!(setup.server.says("TWO"), [user("one"), assistant("ONE"), user("two")]);
    setup.until_response(id);
    setup.call("session/close", json!({ "sessionId": session }));
    setup.call("session/load", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] }));
    setup.prompts(&session, "three");
    let all = [user("one"), assistant("ONE"), user("two"), assistant("TWO"), user("three")];
    assert_eq!(setup.server.says("yes"), all);
}

#[test]
fn prompts_that_failed_before_go_with_the_one_that_is_refused() {
    let mut setup = Setup::with(json!({ "OPENAI_MAX_RETRIES": "0" }), &[]);
    let session = setup.session();
    setup.says(&session, "one", "ONE");
    for (text, status) in [("poison", 503), ("hello", 400)] {
        let id = setup.prompts(&session, text);
        setup.server.is_asked().refuses(status, "", "");
        setup.until_response(id);
    }
    setup.prompts(&session, "again");
    assert_eq!(setup.server.says("yes"), [user("one"), assistant("ONE"), user("again")]);
}

#[test]
fn prompts_without_a_good_key_are_not_joined_to_the_next_one() {
    let mut setup = Setup::with(json!({ "OPENAI_MAX_RETRIES": "0" }), &[]);
    let session = setup.session();
    let mut fails = |text: &str, status| {
        let id = setup.prompts(&session, text);
        setup.server.is_asked().refuses(status, "", "");
        setup.until_response(id);
    };
    // A server that was busy may still answer the first one.
    fails("kept", 503);
    for status in [401, 402, 403, 401] {
        fails("go", status);
    }
    setup.prompts(&session, "hello");
    assert_eq!(setup.server.says("yes"), [user("kept\n\nhello")]);
}

#[test]
fn a_redirect_names_where_it_leads_and_is_not_followed() {
    let mut setup = Setup::new();
    let session = setup.session();
    let url = format!("{}/chat/completions", setup.server.url);
    for (location, sentence) in [
        (
            "https://new.example/api/chat/completions?k=1",
            "https://new.example/api/chat/completions: set OPENAI_BASE_URL to https://new.example/api.",
        ),
        (
            "https://new.example/login",
            "https://new.example/login: set OPENAI_BASE_URL to the address of the API.",
        ),
    ] {
        let id = setup.prompts(&session, "go");
        setup.server.is_asked().refuses(307, &format!("location: {location}\r\n"), "");
        let said = setup.until_response(id).said();
        assert_eq!(said, format!("HTTP error (307) from {url}.\nIt redirects to {sentence}"));
        setup.server.is_not_asked_again();
    }
    setup.prompts(&session, "hello");
    assert_eq!(setup.server.says("yes"), [user("hello")]);
}

#[test]
fn a_large_prompt_on_which_the_server_hangs_up_is_taken_back() {
    let mut setup = Setup::with(json!({ "OPENAI_MAX_RETRIES": "0" }), &[]);
    let session = setup.session();
    let mut fails = |text: &str| {
        let id = setup.prompts(&session, text);
        setup.server.is_asked().breaks();
        assert!(setup.until_response(id).said().starts_with("Network error connecting to "));
    };
    fails("small");
    fails(&"x".repeat(2 << 20));
    fails("smaller");
    setup.prompts(&session, "hello");
    assert_eq!(setup.server.says("yes"), [user("smaller\n\nhello")]);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base = format!("http://{free}/v1/");
    let mut setup = Setup::with(json!({ "OPENAI_BASE_URL": base, "OPENAI_MAX_RETRIES": "0" }), &[]);
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    let said = setup.until_response(id).said();
    let begins = format!("Network error connecting to http://{free}/v1/chat/completions: ");
    assert!(said.starts_with(&begins) && said.contains("refused"), "{said}");
}

#[test]
fn a_stream_that_breaks_is_a_failure_and_leaves_no_partial_reply() {
    let mut setup = Setup::new();
    let session = setup.session();
    let url = format!("{}/chat/completions", setup.server.url);
    // The connection breaks inside the body, or the body ends before the reply is complete.
    for breaks in [true, false] {
        let id = setup.prompts(&session, "go");
        let exchange = setup.server.is_asked();
        exchange.begins();
        exchange.delta(&json!({ "content": "half" }));
        assert_eq!(setup.hears_update("agent_message_chunk")["content"]["text"], "half");
        if breaks {
            exchange.breaks();
        } else {
            exchange.ends();
        }
        let seen = setup.until_response(id);
        assert!(
            seen.said().starts_with(&format!("\n\nThe stream from {url} broke off: ")),
            "{}",
            seen.said()
        );
        assert_eq!(seen.stop(), "end_turn");
        setup.server.is_not_asked_again();
    }
    setup.prompts(&session, "on");
    assert_eq!(setup.server.says("yes"), [user("go\n\ngo\n\non")]);
}

#[test]
fn an_answer_without_end_fails_its_turn_and_the_process_lives_on() {
    let mut setup = Setup::new();
    let session = setup.session();
    let worker = setup.client.status()["pools"][0]["workers"][0]["pid"].clone();
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    exchange.begins();
    let function = json!({ "name": "f", "arguments": "x".repeat(1 << 20) });
    for _ in 0..40 {
        exchange.delta(&json!({ "tool_calls": [{ "index": 0, "function": function }] }));
    }
    let seen = setup.until_response(id);
    let url = format!("{}/chat/completions", setup.server.url);
    assert_eq!(seen.said(), format!("The answer from {url} is longer than 32 MiB: the rest was not read."));
    assert_eq!(seen.stop(), "end_turn");
    exchange.breaks();
    assert_eq!(setup.says(&session, "on", "yes").said(), "yes");
    assert_eq!(setup.client.status()["pools"][0]["workers"][0]["pid"], worker, "it is the same process");
}

#[test]
fn an_error_in_the_stream_and_an_empty_answer_are_failures() {
    let mut setup = Setup::new();
    let session = setup.session();
    let url = format!("{}/chat/completions", setup.server.url);
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    exchange.begins();
    exchange.raw("data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n");
    exchange.ends();
    let seen = setup.until_response(id);
    assert_eq!(seen.said(), format!("Server error in the stream from {url}.\nout of memory"));
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    exchange.begins();
    exchange.ends();
    assert_eq!(setup.until_response(id).said(), format!("No response body from {url}."));
}

#[test]
fn what_a_server_does_not_accept_is_left_out_from_then_on() {
    let extra = json!({ "OPENAI_MAX_TOKENS": "5", "OPENAI_TEMPERATURE": "0.5", "OPENAI_EXTRA_BODY": r#"{"seed":1}"# });
    let mut setup = Setup::with(extra, &[]);
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert!(exchange.body.get("stream_options").is_some());
    exchange.refuses(400, "", r#"{"error":{"message":"Unrecognized request argument: stream_options"}}"#);
    let exchange = setup.server.is_asked();
    assert!(exchange.body.get("stream_options").is_none());
    exchange.refuses(400, "", r#"{"error":{"message":"Use 'max_completion_tokens' instead."}}"#);
    let unsupported = r#"{"error":{"message":"Unsupported value","param":"temperature"}}"#;
    setup.server.is_asked().refuses(400, "", unsupported);
    let forbidden = r#"{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs"}]}"#;
    setup.server.is_asked().refuses(422, "", forbidden);
    setup.server.says("fine");
    assert_eq!(setup.until_response(id).said(), "fine");
    setup.prompts(&session, "again");
    let exchange = setup.server.is_asked();
    assert_eq!(
        (exchange.body.get("stream_options"), &exchange.body["max_completion_tokens"]),
        (None, &json!(5))
    );
    assert_eq!((exchange.body.get("temperature"), exchange.body.get("seed")), (None, None));
    assert_eq!(
        (exchange.body.get("max_tokens"), exchange.body.get("model")),
        (None, Some(&json!("test-model")))
    );
    exchange.streams(&[], "stop");
}

#[test]
fn a_silent_server_times_out() {
    let mut setup = Setup::with(json!({ "OPENAI_TIMEOUT_SEC": "0.2" }), &[]);
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    let silent = setup.server.is_asked();
    assert!(setup.until_response(id).said().contains("no answer in time"));
    drop(silent);
    let id = setup.prompts(&session, "go");
    let silent = setup.server.is_asked();
    silent.begins();
    silent.delta(&json!({ "content": "a" }));
    // On a busy machine even the first byte may be late.
    assert!(setup.until_response(id).said().contains("in time (OPENAI_TIMEOUT_SEC)"));
}
