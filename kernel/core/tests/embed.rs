//! Runs the example `embed` and compares what its client sees.

#[expect(dead_code, reason = "`main` only prints what the test compares")]
#[path = "../examples/embed.rs"]
mod example;

#[test]
fn the_client_sees_its_session_an_update_and_one_answer_per_request() {
    let expected = [
        r#"{"id":1,"jsonrpc":"2.0","result":{"sessionId":"ui5dg5svtn6ah.mine"}}"#,
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ui5dg5svtn6ah.mine","update":{}}}"#,
        r#"{"id":2,"jsonrpc":"2.0","result":{"stopReason":"end_turn"}}"#,
        "the bus has stopped",
    ];
    assert_eq!(example::conversation(), expected);
}
