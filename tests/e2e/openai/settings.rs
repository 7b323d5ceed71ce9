//! Cancellation, settings and forks of a session.

use serde_json::{Value, json};

use super::{Setup, assistant, user};
use crate::harness::{notification, session_of};

#[test]
fn a_cancel_during_a_stream_is_answered_and_closes_the_connection() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "long");
    let exchange = setup.server.is_asked();
    exchange.begins();
    exchange.delta(&json!({ "content": "half" }));
    setup.hears_update("agent_message_chunk");
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    exchange.sees_the_end();
    // The unfinished reply is dropped, and the session continues.
    let id = setup.prompts(&session, "next");
    assert_eq!(setup.server.says("yes"), [user("long\n\nnext")]);
    assert_eq!(setup.until_response(id).stop(), "end_turn");
}

#[test]
fn a_cancel_works_before_the_headers_and_between_two_tries() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    let silent = setup.server.is_asked();
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    silent.sees_the_end();
    let id = setup.prompts(&session, "go");
    setup.server.is_asked().refuses(429, "retry-after: 55\r\n", "");
    setup.bus.log_has("(trying again in");
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    assert_eq!(setup.says(&session, "go", "yes").said(), "yes");
}

#[test]
fn a_cancel_works_while_connecting() {
    // A listener with a full queue does not answer another connect.
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    nix::sys::socket::listen(&full, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let address = full.local_addr().unwrap();
    let _held = std::net::TcpStream::connect(address).unwrap();
    let base = format!("http://{address}/v1");
    let mut setup = Setup::with(json!({ "OPENAI_BASE_URL": base, "OPENAI_CONNECT_TIMEOUT_SEC": "600" }), &[]);
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
}

#[test]
fn a_cancel_without_a_turn_changes_nothing() {
    let mut setup = Setup::new();
    let session = setup.session();
    setup.cancels(&session);
    assert_eq!(setup.says(&session, "go", "yes").said(), "yes");
    assert_eq!(setup.says(&session, "go", "yes").stop(), "end_turn");
}

#[test]
fn a_cancelled_request_is_answered_with_an_error() {
    let mut setup = Setup::new();
    let session = setup.session();
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    setup.client.sends(&notification("$/cancel_request", json!({ "requestId": id })));
    assert_eq!(setup.until_response(id).response["error"]["code"], -32800);
    exchange.sees_the_end();
}

fn option<'a>(options: &'a Value, id: &str) -> &'a Value {
    options.as_array().expect("options").iter().find(|option| option["id"] == id).expect(id)
}

#[test]
fn a_model_of_the_server_can_be_chosen_by_option_and_by_set_model() {
    let mut setup = Setup::new();
    setup.server.lists(json!({ "data": [{ "id": "small" }, { "id": "large", "context_length": 9000 }] }));
    setup.call("initialize", json!({ "protocolVersion": 1 }));
    // Already the first session has the list.
    let opened = setup.call("session/new", json!({ "cwd": "/work", "mcpServers": [] }));
    let session = session_of(&opened);
    let model = option(&opened["configOptions"], "model");
    assert_eq!((&model["currentValue"], &model["category"]), (&json!("test-model"), &json!("model")));
    let values: Vec<_> =
        model["options"].as_array().expect("options").iter().map(|one| &one["value"]).collect();
    assert_eq!(values, ["test-model", "small", "large"]);
    assert_eq!(opened["models"]["currentModelId"], "test-model");
    let set = json!({ "sessionId": session, "configId": "model", "value": "large" });
    let answer = setup.call("session/set_config_option", set);
    assert_eq!(option(&answer["configOptions"], "model")["currentValue"], "large");
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.body["model"], "large");
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 });
    exchange.begins();
    exchange.chunk(&json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }], "usage": usage }));
    exchange.ends();
    assert_eq!(setup.hears_update("usage_update")["size"], 9000);
    setup.until_response(id);
    setup.call("session/set_model", json!({ "sessionId": session, "modelId": "small" }));
    setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.body["model"], "small");
    exchange.streams(&[], "stop");
}

#[test]
fn a_model_that_is_not_listed_can_be_chosen() {
    let mut setup = Setup::new();
    let session = setup.session();
    let set = json!({ "sessionId": session, "configId": "model", "value": "hidden" });
    let answer = setup.call("session/set_config_option", set);
    let model = option(&answer["configOptions"], "model");
    assert_eq!((&model["currentValue"], &model["options"][0]["value"]), (&json!("hidden"), &json!("hidden")));
    setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.body["model"], "hidden");
    exchange.streams(&[], "stop");
}

#[test]
fn the_only_model_of_the_server_is_used_if_none_is_named() {
    for (models, used) in
        [(json!([{ "id": "local" }]), "local"), (json!([{ "id": "a" }, { "id": "b" }]), "gpt-4o")]
    {
        let mut setup = Setup::with(json!({ "OPENAI_MODEL": "" }), &[]);
        setup.server.lists(models);
        let session = setup.session();
        setup.prompts(&session, "go");
        let exchange = setup.server.is_asked();
        assert_eq!(exchange.body["model"], used);
        exchange.streams(&[], "stop");
    }
}

#[test]
fn invalid_settings_are_errors() {
    let mut setup = Setup::new();
    let session = setup.session();
    for (method, params) in [
        ("session/set_config_option", json!({ "sessionId": session, "configId": "model", "value": " " })),
        ("session/set_config_option", json!({ "sessionId": session, "configId": "colour", "value": "red" })),
        ("session/set_mode", json!({ "sessionId": session, "modeId": "none such" })),
        ("session/set_model", json!({ "sessionId": session, "modelId": "" })),
        ("session/new", json!({})),
    ] {
        let id = setup.ask(method, params);
        assert_eq!(setup.until_response(id).response["error"]["code"], -32602, "{method}");
    }
    let id = setup.ask("no/such/method", json!({}));
    assert_eq!(setup.until_response(id).response["error"]["code"], -32601);
}

#[test]
fn the_model_hears_of_additional_directories() {
    let mut setup = Setup::new();
    setup.session_with_capabilities(json!({ "fs": { "readTextFile": true } }));
    let opened = json!({ "cwd": "/work", "additionalDirectories": ["/more"], "mcpServers": [] });
    let session = session_of(&setup.call("session/new", opened));
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    let parameters = &exchange.body["tools"][0]["function"]["parameters"];
    let path = parameters["properties"]["path"]["description"].as_str().expect("a text");
    assert!(path.ends_with("the workspace also has /more"), "{path}");
    exchange.streams(&[], "stop");
    setup.until_response(id);
    let relative = json!({ "cwd": "/work", "additionalDirectories": ["more"], "mcpServers": [] });
    let id = setup.ask("session/new", relative);
    assert_eq!(setup.until_response(id).response["error"]["code"], -32602);
}

#[test]
fn a_fork_does_not_change_the_first_session() {
    let mut setup = Setup::new();
    let session = setup.session();
    setup.says(&session, "one", "ONE");
    let fork = setup.call("session/fork", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] }));
    let fork = session_of(&fork);
    setup.says(&fork, "two", "TWO");
    setup.prompts(&session, "three");
    assert_eq!(setup.server.says("yes"), [user("one"), assistant("ONE"), user("three")]);
}
