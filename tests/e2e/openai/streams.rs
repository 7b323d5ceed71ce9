//! The server's streams, and what the client sees of them.

use serde_json::{Value, json};

use super::{KEY, Setup, assistant, user};

#[test]
fn text_thoughts_and_usage_are_sent_as_they_come() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "hello");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.path, "/v1/chat/completions");
    assert_eq!(exchange.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!(exchange.body["model"], "test-model");
    assert_eq!(exchange.body["messages"], json!([user("hello")]));
    assert_eq!(exchange.body["stream"], true);
    assert_eq!(exchange.body["stream_options"], json!({ "include_usage": true }));
    assert!(exchange.body.get("tools").is_none(), "the client has no tools");
    exchange.begins();
    // Each update arrives before the next delta is sent, so nothing waits for the end.
    for (delta, kind) in [
        (json!({ "reasoning_content": "x" }), "agent_thought_chunk"),
        (json!({ "reasoning": "x" }), "agent_thought_chunk"),
        (json!({ "reasoning_details": [{ "text": "x" }] }), "agent_thought_chunk"),
        (json!({ "content": "x" }), "agent_message_chunk"),
    ] {
        exchange.delta(&delta);
        assert_eq!(setup.hears_update(kind)["content"]["text"], "x");
    }
    exchange.chunk(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "length" }] }));
    let usage = json!({ "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 });
    exchange.chunk(&json!({ "choices": [], "usage": usage }));
    exchange.raw("data: [DONE]\n\n");
    exchange.ends();
    let seen = setup.until_response(id);
    let update = seen.updates.iter().find(|update| update["sessionUpdate"] == "usage_update").expect("usage");
    assert_eq!((&update["used"], &update["size"]), (&json!(10), &json!(128_000)));
    assert_eq!(seen.stop(), "max_tokens");
    assert_eq!(
        seen.response["result"]["usage"],
        json!({ "totalTokens": 10, "inputTokens": 7, "outputTokens": 3 })
    );
}

#[test]
fn the_whole_conversation_follows_the_system_prompt() {
    let mut setup = Setup::with(json!({ "OPENAI_SYSTEM_PROMPT": "be brief", "OPENAI_MAX_TOKENS": "9" }), &[]);
    let session = setup.session();
    assert_eq!(setup.says(&session, "one", "ONE").said(), "ONE");
    setup.prompts(&session, "two");
    let exchange = setup.server.is_asked();
    let system = json!({ "role": "system", "content": "be brief" });
    assert_eq!(exchange.body["messages"], json!([system, user("one"), assistant("ONE"), user("two")]));
    assert_eq!(exchange.body["max_tokens"], 9);
    exchange.streams(&[], "stop");
}

/// The agent's text for a body of the server.
fn text_of_body(setup: &mut Setup, session: &str, body: &str) -> String {
    let id = setup.prompts(session, "go");
    let exchange = setup.server.is_asked();
    exchange.begins();
    exchange.raw(body);
    exchange.ends();
    let seen = setup.until_response(id);
    assert_eq!(seen.stop(), "end_turn");
    seen.said()
}

#[test]
fn every_valid_form_of_events_is_parsed() {
    let mut setup = Setup::new();
    let session = setup.session();
    let a = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
    let (b_begins, b_ends) = (r#"{"choices":[{"delta":"#, r#"{"content":"b"}}]}"#);
    let done = "data: [DONE]\n\n";
    for (body, said) in [
        (format!("data: {a}\r\n\r\ndata: [DONE]\r\n\r\n"), "a"),
        (format!("data:{a}\n\ndata:[DONE]\n\n"), "a"),
        (format!("data: {a}\r\rdata: [DONE]\r\r"), "a"),
        (format!("\u{feff}data: {a}\n\n{done}"), "a"),
        (
            format!(
                ": ping\n\ndata: {a}\n\nevent: x\nid: 7\nretry: 1\ndata: {b_begins}\ndata: {b_ends}\n\n{done}"
            ),
            "ab",
        ),
        (format!("data: {a}\n\ndata: not JSON\n\ndata: null\n\ndata: {b_begins}{b_ends}\n\n{done}"), "ab"),
        (format!("data: {a}\n\ndata: [DONE]"), "a"),
    ] {
        assert_eq!(text_of_body(&mut setup, &session, &body), said, "{body:?}");
    }
    setup.bus.log_has("no JSON, and skipped");
}

#[test]
fn an_answer_without_a_stream_is_accepted() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    let message = json!({ "role": "assistant", "content": "whole" });
    let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
    setup.server.is_asked().answers(&json!({ "object": "chat.completion", "choices": choices }));
    let seen = setup.until_response(id);
    assert_eq!((seen.said().as_str(), seen.stop()), ("whole", &json!("end_turn")));
}

#[test]
fn think_tags_are_separated_if_that_is_on() {
    let mut setup = Setup::with(json!({ "OPENAI_THINK_TAGS": "on" }), &[]);
    let session = setup.session();
    let seen = setup.says(&session, "go", "<think>why</think>\n\nso");
    assert_eq!((seen.texts("agent_thought_chunk").as_str(), seen.said().as_str()), ("why", "so"));
}

#[test]
fn images_are_sent_and_audio_is_an_error() {
    let mut setup = Setup::new();
    let session = setup.session();
    let prompt = |blocks: Value| json!({ "sessionId": session, "prompt": blocks });
    let image = json!({ "type": "image", "mimeType": "image/png", "data": "iVBORw0K" });
    let id = setup.ask("session/prompt", prompt(json!([{ "type": "text", "text": "what is it" }, image])));
    let content = setup.server.says("a picture")[0]["content"].clone();
    assert_eq!(content[1]["image_url"]["url"], "data:image/png;base64,iVBORw0K");
    assert_eq!(setup.until_response(id).said(), "a picture");
    let sound = json!([{ "type": "audio", "mimeType": "audio/wav", "data": "AAAA" }]);
    let id = setup.ask("session/prompt", prompt(sound));
    let answer = setup.until_response(id).response;
    assert_eq!(answer["error"]["code"], -32602);
    assert!(answer["error"]["message"].as_str().expect("words").contains("audio"), "{answer}");
}

#[test]
fn a_refused_turn_is_not_sent_again() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "bad");
    setup.server.is_asked().streams(&[json!({ "content": "I" })], "content_filter");
    assert_eq!(setup.until_response(id).stop(), "refusal");
    setup.prompts(&session, "good");
    assert_eq!(setup.server.says("yes"), [user("good")]);
}

#[test]
fn a_slow_session_delays_no_other_and_takes_one_prompt_at_a_time() {
    let mut setup = Setup::new();
    let (slow, quick) = (setup.session(), setup.session());
    let first = setup.prompts(&slow, "slow");
    let waiting = setup.server.is_asked();
    let second = setup.prompts(&slow, "again");
    assert_eq!(setup.until_response(second).response["error"]["code"], -32600);
    for number in 0..5 {
        assert_eq!(setup.says(&quick, "quick", &number.to_string()).said(), number.to_string());
    }
    waiting.streams(&[json!({ "content": "at last" })], "stop");
    assert_eq!(setup.until_response(first).said(), "at last");
}

#[test]
fn many_sessions_run_in_one_process_at_once() {
    let mut setup = Setup::new();
    let sessions: Vec<_> = (0..40).map(|_| setup.session()).collect();
    let mut waiting: Vec<_> = sessions.iter().map(|session| setup.prompts(session, session)).collect();
    // All turns have asked the model before the first is answered.
    let exchanges: Vec<_> = sessions.iter().map(|_| setup.server.is_asked()).collect();
    for exchange in exchanges {
        let asked = exchange.body["messages"][0]["content"].clone();
        exchange.streams(&[json!({ "content": asked })], "stop");
    }
    let mut said = std::collections::HashMap::new();
    while !waiting.is_empty() {
        let message = setup.client.receives();
        let update = &message["params"]["update"];
        if update["sessionUpdate"] == "agent_message_chunk" {
            said.insert(message["params"]["sessionId"].clone(), update["content"]["text"].clone());
        }
        waiting.retain(|id| message["id"] != *id);
    }
    assert_eq!(said.len(), 40);
    assert!(said.iter().all(|(session, text)| session == text), "each session got its own reply: {said:?}");
}

#[test]
fn a_connection_is_reused_after_a_turn() {
    let mut setup = Setup::with(json!({ "OPENAI_MODELS": "test-model" }), &[]);
    let session = setup.session();
    let connections: Vec<_> = (0..3)
        .map(|_| {
            let id = setup.prompts(&session, "go");
            let exchange = setup.server.is_asked();
            let connection = exchange.connection;
            exchange.streams(&[], "stop");
            setup.until_response(id);
            connection
        })
        .collect();
    assert_eq!(connections[1], connections[0]);
    assert_eq!(connections[2], connections[0]);
}
