//! Cancel, and what a session can be set to.

use serde_json::{Value, json};

use super::{Stage, assistant, user};
use crate::harness::{notification, session_of};

#[test]
fn a_cancel_in_mid_stream_is_answered_and_the_server_is_left() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "long");
    let exchange = stage.server.is_asked();
    exchange.begins();
    exchange.delta(&json!({ "content": "half" }));
    stage.hears_update("agent_message_chunk");
    stage.cancels(&session);
    assert_eq!(stage.until_answer(id).stop(), "cancelled");
    exchange.sees_the_end();
    // The half answer is forgotten, and the session goes on.
    let id = stage.prompts(&session, "next");
    assert_eq!(stage.server.says("yes"), [user("long\n\nnext")]);
    assert_eq!(stage.until_answer(id).stop(), "end_turn");
}

#[test]
fn a_cancel_is_felt_before_the_headers_and_between_two_tries() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    let silent = stage.server.is_asked();
    stage.cancels(&session);
    assert_eq!(stage.until_answer(id).stop(), "cancelled");
    silent.sees_the_end();
    let id = stage.prompts(&session, "go");
    stage.server.is_asked().refuses(429, "retry-after: 55\r\n", "");
    stage.bus.log_has("(trying again in");
    stage.cancels(&session);
    assert_eq!(stage.until_answer(id).stop(), "cancelled");
    assert_eq!(stage.says(&session, "go", "yes").said(), "yes");
}

#[test]
fn a_cancel_is_felt_while_connecting() {
    // A listener whose queue is full answers no further connect.
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    nix::sys::socket::listen(&full, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let address = full.local_addr().unwrap();
    let _held = std::net::TcpStream::connect(address).unwrap();
    let base = format!("http://{address}/v1");
    let mut stage = Stage::with(json!({ "OPENAI_BASE_URL": base, "OPENAI_CONNECT_TIMEOUT_SEC": "600" }), &[]);
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    stage.cancels(&session);
    assert_eq!(stage.until_answer(id).stop(), "cancelled");
}

#[test]
fn an_idle_cancel_and_a_cancel_of_nobody_do_no_harm() {
    let mut stage = Stage::new();
    let session = stage.session();
    stage.cancels(&session);
    assert_eq!(stage.says(&session, "go", "yes").said(), "yes");
    assert_eq!(stage.says(&session, "go", "yes").stop(), "end_turn");
}

#[test]
fn a_prompt_that_is_taken_back_is_answered_with_an_error() {
    let mut stage = Stage::new();
    let session = stage.session();
    let id = stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    stage.client.sends(&notification("$/cancel_request", json!({ "requestId": id })));
    assert_eq!(stage.until_answer(id).answer["error"]["code"], -32800);
    exchange.sees_the_end();
}

fn option<'a>(options: &'a Value, id: &str) -> &'a Value {
    options.as_array().expect("options").iter().find(|option| option["id"] == id).expect(id)
}

#[test]
fn the_models_of_the_server_can_be_chosen_in_both_ways() {
    let mut stage = Stage::new();
    stage.server.lists(json!({ "data": [{ "id": "small" }, { "id": "large", "context_length": 9000 }] }));
    let session = stage.session();
    // Known to a session that was opened before the list came, or told with the opening of a later one.
    let opened = loop {
        let opened = stage.call("session/new", json!({ "cwd": "/work", "mcpServers": [] }));
        if opened["models"]["availableModels"].as_array().expect("models").len() == 3 {
            break opened;
        }
    };
    let model = option(&opened["configOptions"], "model");
    assert_eq!((&model["currentValue"], &model["category"]), (&json!("test-model"), &json!("model")));
    assert_eq!(opened["models"]["currentModelId"], "test-model");
    let set = json!({ "sessionId": session, "configId": "model", "value": "large" });
    let answer = stage.call("session/set_config_option", set);
    assert_eq!(option(&answer["configOptions"], "model")["currentValue"], "large");
    let id = stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    assert_eq!(exchange.body["model"], "large");
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 });
    exchange.begins();
    exchange.chunk(&json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }], "usage": usage }));
    exchange.ends();
    assert_eq!(stage.hears_update("usage_update")["size"], 9000);
    stage.until_answer(id);
    stage.call("session/set_model", json!({ "sessionId": session, "modelId": "small" }));
    stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    assert_eq!(exchange.body["model"], "small");
    exchange.streams(&[], "stop");
}

#[test]
fn what_cannot_be_set_is_refused() {
    let mut stage = Stage::new();
    let session = stage.session();
    for (method, params) in [
        (
            "session/set_config_option",
            json!({ "sessionId": session, "configId": "model", "value": "none such" }),
        ),
        ("session/set_config_option", json!({ "sessionId": session, "configId": "colour", "value": "red" })),
        ("session/set_mode", json!({ "sessionId": session, "modeId": "none such" })),
        ("session/set_model", json!({ "sessionId": session, "modelId": "" })),
        ("session/new", json!({})),
    ] {
        let id = stage.ask(method, params);
        assert_eq!(stage.until_answer(id).answer["error"]["code"], -32602, "{method}");
    }
    let id = stage.ask("no/such/method", json!({}));
    assert_eq!(stage.until_answer(id).answer["error"]["code"], -32601);
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut stage = Stage::new();
    let session = stage.session();
    stage.says(&session, "one", "ONE");
    let fork = stage.call("session/fork", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] }));
    let fork = session_of(&fork);
    stage.says(&fork, "two", "TWO");
    stage.prompts(&session, "three");
    assert_eq!(stage.server.says("yes"), [user("one"), assistant("ONE"), user("three")]);
}
