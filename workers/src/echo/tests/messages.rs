//! Messages of any method.

use serde_json::{Value, json};

use super::{Client, seconds};

#[test]
fn it_always_answers_with_protocol_version_one() {
    let mut client = Client::new();
    for version in [0, 1, 2, 7] {
        let result = client.result("initialize", json!({ "protocolVersion": version }));
        assert_eq!(result["protocolVersion"], 1);
        assert_eq!(result["agentInfo"]["name"], "stdio-bus-echo");
        assert_eq!(result["agentCapabilities"]["loadSession"], true);
        for capability in ["list", "resume", "close", "fork", "delete"] {
            assert_eq!(result["agentCapabilities"]["sessionCapabilities"][capability], json!({}));
        }
    }
    assert_eq!(client.result("authenticate", json!({ "methodId": "none" })), json!({}));
    assert_eq!(client.result("logout", json!({})), json!({}));
}

#[test]
fn any_other_method_is_echoed_byte_for_byte() {
    let mut client = Client::new();
    let params = r#"{ "b" : 1.50e3, "a":"\u00e9\/", "a": [ ] }"#;
    client
        .agent
        .line(format!(r#"{{"params":{params},"method":"x/y","id":"0\u0031"}}"#).as_bytes(), client.now);
    let expected = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":\"0\\u0031\",\"result\":{{\"echo\":{params},\"method\":\"x/y\"}}}}\n"
    );
    assert_eq!(String::from_utf8_lossy(client.agent.writer.bytes()), expected);
    client.agent.writer.clear();
    client.line(r#"{"id":1,"method":"m"}"#);
    assert_eq!(client.response_to(1).unwrap()["result"], json!({ "echo": null, "method": "m" }));
    client.line(r#"{"method":"session/set_title","params":{}}"#);
    assert!(client.received.is_empty());
}

#[test]
fn a_session_id_beside_the_params_comes_back_in_the_response() {
    let mut client = Client::new();
    client.line(r#"{"jsonrpc":"2.0","id":1,"method":"m","sessionId":"mine","params":[1]}"#);
    let answer = client.response_to(1).unwrap();
    assert_eq!((&answer["sessionId"], &answer["result"]["echo"]), (&json!("mine"), &json!([1])));
    client.line(r#"{"jsonrpc":"2.0","id":2,"method":"session/close","sessionId":"mine"}"#);
    assert_eq!(client.response_to(2).unwrap()["sessionId"], "mine");
    let session = client.session();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "/slow 1" }] });
    client.line(
        &json!({ "id": 3, "method": "session/prompt", "sessionId": "mine", "params": prompt }).to_string(),
    );
    client.advance(seconds(1.0));
    assert_eq!(client.response_to(3).unwrap()["sessionId"], "mine");
}

#[test]
fn a_malformed_line_is_an_error_and_the_next_line_works() {
    let mut client = Client::new();
    for (line, code) in [("{not json", -32700), ("[1]", -32600), ("7", -32600), ("{}", -32600)] {
        client.line(line);
        let answer = client.received.pop().unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{line}");
    }
    client.line("");
    client.line(" \r");
    assert!(client.received.is_empty());
    client.line(r#"{"id":1,"method":"m"}"#);
    assert!(client.response_to(1).is_some());
}
