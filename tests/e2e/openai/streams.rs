//! What a server streams and what a client hears of it.

use serde_json::{Value, json};

use super::{KEY, Stage, assistant, user};

#[test]
fn text_thoughts_and_usage_are_heard_as_they_come() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "hello");
    let exchange = stage.server.is_asked();
    assert_eq!(exchange.path, "/v1/chat/completions");
    assert_eq!(exchange.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!(exchange.body["model"], "test-model");
    assert_eq!(exchange.body["messages"], json!([user("hello")]));
    assert_eq!(exchange.body["stream"], true);
    assert_eq!(exchange.body["stream_options"], json!({ "include_usage": true }));
    assert!(exchange.body.get("tools").is_none(), "a client with no hands");
    exchange.begins();
    // Each is heard before the next is sent: nothing waits for the end.
    for (delta, kind) in [
        (json!({ "reasoning_content": "x" }), "agent_thought_chunk"),
        (json!({ "reasoning": "x" }), "agent_thought_chunk"),
        (json!({ "reasoning_details": [{ "text": "x" }] }), "agent_thought_chunk"),
        (json!({ "content": "x" }), "agent_message_chunk"),
    ] {
        exchange.delta(&delta);
        assert_eq!(stage.hears_update(kind)["content"]["text"], "x");
    }
    exchange.chunk(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "length" }] }));
    let usage = json!({ "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 });
    exchange.chunk(&json!({ "choices": [], "usage": usage }));
    exchange.raw("data: [DONE]\n\n");
    exchange.ends();
    let seen = stage.until_answer(id);
    let told = seen.updates.iter().find(|update| update["sessionUpdate"] == "usage_update").expect("usage");
    assert_eq!((&told["used"], &told["size"]), (&json!(10), &json!(128_000)));
    assert_eq!(seen.stop(), "max_tokens");
    assert_eq!(
        seen.answer["result"]["usage"],
        json!({ "totalTokens": 10, "inputTokens": 7, "outputTokens": 3 })
    );
}

#[test]
fn a_conversation_is_sent_whole_behind_the_system_prompt() {
    let mut stage = Stage::with(json!({ "OPENAI_SYSTEM_PROMPT": "be brief", "OPENAI_MAX_TOKENS": "9" }), &[]);
    let session = stage.session();
    assert_eq!(stage.says(&session, "one", "ONE").said(), "ONE");
    stage.prompts(&session, "two");
    let exchange = stage.server.is_asked();
    let system = json!({ "role": "system", "content": "be brief" });
    assert_eq!(exchange.body["messages"], json!([system, user("one"), assistant("ONE"), user("two")]));
    assert_eq!(exchange.body["max_tokens"], 9);
    exchange.streams(&[], "stop");
}

/// What is said of a body that the server streams just so.
fn heard_of(stage: &mut Stage, session: &str, body: &str) -> String {
    let id = stage.prompts(session, "go");
    let exchange = stage.server.is_asked();
    exchange.begins();
    exchange.raw(body);
    exchange.ends();
    let seen = stage.until_answer(id);
    assert_eq!(seen.stop(), "end_turn");
    seen.said()
}

#[test]
fn every_way_to_write_events_is_understood() {
    let mut stage = Stage::new();
    let session = stage.session();
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
        assert_eq!(heard_of(&mut stage, &session, &body), said, "{body:?}");
    }
    stage.bus.log_has("no JSON, and skipped");
}

#[test]
fn an_answer_without_a_stream_is_an_answer() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    let message = json!({ "role": "assistant", "content": "whole" });
    let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
    stage.server.is_asked().answers(&json!({ "object": "chat.completion", "choices": choices }));
    let seen = stage.until_answer(id);
    assert_eq!((seen.said().as_str(), seen.stop()), ("whole", &json!("end_turn")));
}

#[test]
fn thoughts_within_the_text_are_taken_out_where_that_is_wanted() {
    let mut stage = Stage::with(json!({ "OPENAI_THINK_TAGS": "on" }), &[]);
    let session = stage.session();
    let seen = stage.says(&session, "go", "<think>why</think>\n\nso");
    assert_eq!((seen.texts("agent_thought_chunk").as_str(), seen.said().as_str()), ("why", "so"));
}

#[test]
fn pictures_are_sent_as_pictures_and_sounds_are_refused() {
    let mut stage = Stage::new();
    let session = stage.session();
    let prompt = |blocks: Value| json!({ "sessionId": session, "prompt": blocks });
    let image = json!({ "type": "image", "mimeType": "image/png", "data": "iVBORw0K" });
    let id = stage.ask("session/prompt", prompt(json!([{ "type": "text", "text": "what is it" }, image])));
    let content = stage.server.says("a picture")[0]["content"].clone();
    assert_eq!(content[1]["image_url"]["url"], "data:image/png;base64,iVBORw0K");
    assert_eq!(stage.until_answer(id).said(), "a picture");
    let sound = json!([{ "type": "audio", "mimeType": "audio/wav", "data": "AAAA" }]);
    let id = stage.ask("session/prompt", prompt(sound));
    let answer = stage.until_answer(id).answer;
    assert_eq!(answer["error"]["code"], -32602);
    assert!(answer["error"]["message"].as_str().expect("words").contains("audio"), "{answer}");
}

#[test]
fn a_refused_turn_is_not_sent_again() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "bad");
    stage.server.is_asked().streams(&[json!({ "content": "I" })], "content_filter");
    assert_eq!(stage.until_answer(id).stop(), "refusal");
    stage.prompts(&session, "good");
    assert_eq!(stage.server.says("yes"), [user("good")]);
}

#[test]
fn one_slow_session_delays_no_other_and_takes_one_prompt_at_a_time() {
    let mut stage = Stage::new();
    let (slow, quick) = (stage.session(), stage.session());
    let first = stage.prompts(&slow, "slow");
    let waiting = stage.server.is_asked();
    let second = stage.prompts(&slow, "again");
    assert_eq!(stage.until_answer(second).answer["error"]["code"], -32600);
    for number in 0..5 {
        assert_eq!(stage.says(&quick, "quick", &number.to_string()).said(), number.to_string());
    }
    waiting.streams(&[json!({ "content": "at last" })], "stop");
    assert_eq!(stage.until_answer(first).said(), "at last");
}

#[test]
fn many_sessions_are_at_work_in_one_process_at_once() {
    let mut stage = Stage::new();
    let sessions: Vec<_> = (0..40).map(|_| stage.session()).collect();
    let mut waiting: Vec<_> = sessions.iter().map(|session| stage.prompts(session, session)).collect();
    // The last has asked the model before the first is answered.
    let exchanges: Vec<_> = sessions.iter().map(|_| stage.server.is_asked()).collect();
    for exchange in exchanges {
        let asked = exchange.body["messages"][0]["content"].clone();
        exchange.streams(&[json!({ "content": asked })], "stop");
    }
    let mut said = std::collections::HashMap::new();
    while !waiting.is_empty() {
        let message = stage.client.hears();
        let update = &message["params"]["update"];
        if update["sessionUpdate"] == "agent_message_chunk" {
            said.insert(message["params"]["sessionId"].clone(), update["content"]["text"].clone());
        }
        waiting.retain(|id| message["id"] != *id);
    }
    assert_eq!(said.len(), 40);
    assert!(said.iter().all(|(session, text)| session == text), "each heard its own: {said:?}");
}

#[test]
fn a_connection_is_used_again_after_a_turn() {
    let mut stage = Stage::with(json!({ "OPENAI_MODELS": "test-model" }), &[]);
    let session = stage.session();
    let connections: Vec<_> = (0..3)
        .map(|_| {
            let id = stage.prompts(&session, "go");
            let exchange = stage.server.is_asked();
            let connection = exchange.connection;
            exchange.streams(&[], "stop");
            stage.until_answer(id);
            connection
        })
        .collect();
    assert_eq!(connections[1], connections[0]);
    assert_eq!(connections[2], connections[0]);
}
