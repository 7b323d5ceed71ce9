//! Conversations that are longer than the model's context window.

use serde_json::json;

use super::{Setup, assistant, user};

/// About 400 tokens.
fn long(name: &str) -> String {
    name.repeat(1600 / name.len())
}

/// A quarter of the window is for the answer, so two long prompts fit.
const TOO_LONG: &str = r#"{"error":{"message":"This model's maximum context length is 1500 tokens."}}"#;

#[test]
fn old_turns_are_left_out_when_the_window_of_the_model_is_full() {
    let mut setup = Setup::new();
    setup.server.lists(json!([{ "id": "test-model", "context_length": 2000 }]));
    let session = setup.session();
    for name in ["one ", "two ", "three"] {
        let seen = setup.says(&session, &long(name), "yes");
        assert_eq!(seen.texts("agent_thought_chunk"), "");
    }
    let id = setup.prompts(&session, &long("four"));
    let sent = setup.server.says("FOUR");
    assert_eq!(sent, [user(&long("three")), assistant("yes"), user(&long("four"))]);
    let told = setup.until_response(id).texts("agent_thought_chunk");
    let window = "The conversation is longer than the context window of test-model (2000 tokens)";
    assert_eq!(told, format!("{window}: the 2 oldest turns are not sent any more.\n"));
    // The beginning stays the same as long as there is room, so that the server can use its cache.
    let id = setup.prompts(&session, "five");
    assert_eq!(setup.server.says("FIVE")[..3], sent);
    assert_eq!(setup.until_response(id).texts("agent_thought_chunk"), "");
}

#[test]
fn a_request_that_is_too_long_is_made_shorter_and_sent_again() {
    let mut setup = Setup::new();
    let session = setup.session();
    for name in ["one ", "two ", "three"] {
        setup.says(&session, &long(name), "yes");
    }
    let id = setup.prompts(&session, "go");
    setup.server.is_asked().refuses(400, "", TOO_LONG);
    let sent = setup.server.says("fine");
    assert_eq!(
        sent,
        [user(&long("two ")), assistant("yes"), user(&long("three")), assistant("yes"), user("go")]
    );
    let seen = setup.until_response(id);
    assert_eq!(seen.said(), "fine");
    assert!(seen.texts("agent_thought_chunk").contains("(1500 tokens): the oldest turn is not sent"));
    // Without a number, less and less is sent.
    let id = setup.prompts(&session, "on");
    setup.server.is_asked().refuses(413, "", "");
    assert_eq!(setup.server.says("yes"), [user("go"), assistant("fine"), user("on")]);
    assert_eq!(setup.until_response(id).said(), "yes");
}

#[test]
fn a_prompt_that_alone_is_too_long_is_taken_back() {
    let mut setup = Setup::new();
    let session = setup.session();
    setup.says(&session, &long("one "), "ONE");
    let id = setup.prompts(&session, &long("much").repeat(9));
    setup.server.is_asked().refuses(400, "", TOO_LONG);
    setup.server.is_asked().refuses(400, "", TOO_LONG);
    let seen = setup.until_response(id);
    assert!(seen.said().contains("maximum context length"), "{}", seen.said());
    setup.server.is_not_asked_again();
    setup.prompts(&session, "two");
    assert_eq!(setup.server.says("yes"), [user("two")], "what was left out stays out");
}
