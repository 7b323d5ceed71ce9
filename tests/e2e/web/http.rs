//! ACP over HTTP: POST, streams of events, DELETE.

use serde_json::{Value, json};

use super::bus_with_door;
use crate::harness::{HttpClient, Web, initialize, notification, request, result};

#[test]
fn a_turn_with_a_question_goes_through_posts_and_streams() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("control"));
    let mut connection = client.stream(None);
    let session = client.opens_session(&mut connection);
    let mut events = client.stream(Some(&session));
    client.prompts(2, &session, "Hello.");
    assert_eq!(events.turn(2), ("Hello.".to_owned(), Vec::new()));
    // The session may be named in the header alone.
    let prompt = json!({ "prompt": [{ "type": "text", "text": "Again." }] });
    assert_eq!(client.posts(&request(4, "session/prompt", prompt), Some(&session)).status, 202);
    assert_eq!(events.turn(4), ("Again.".to_owned(), Vec::new()));
    client.prompts(3, &session, "/ask");
    let (_, questions) = events.turn(3);
    let option = &questions[0]["params"]["options"][0]["optionId"];
    let chosen = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    // Neither the Rust nor the Python SDK names the session of an answer.
    assert_eq!(client.posts(&result(&questions[0]["id"], chosen), None).status, 202);
    assert!(!events.turn(3).0.is_empty());
    bus.log_has("answered session/request_permission for ");
}

#[test]
fn a_good_bye_ends_the_streams_and_the_sessions() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("admin");
    let client = HttpClient::new(&web, &token);
    let mut connection = client.stream(None);
    let session = client.opens_session(&mut connection);
    let mut events = client.stream(Some(&session));
    assert_eq!(client.deletes().status, 202);
    // What was said before comes first.
    while connection.receives().is_some() {}
    while events.receives().is_some() {}
    assert_eq!(client.deletes().status, 404);
    assert_eq!(client.posts(&request(5, "any/method", json!({})), None).status, 404);
    let mut other = web.socket(&token);
    bus.until("the session is closed", || {
        other.asks(9, "_bus/sessions", json!({}))["result"]["sessions"] == json!([])
    });
}

#[test]
fn requests_that_are_not_as_the_protocol_wants_are_refused() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("control");
    let bearer = format!("Authorization: Bearer {token}");
    let json_type = "Content-Type: application/json";
    let post = |headers: &[&str], body: &str| {
        let headers: Vec<&str> = [&[bearer.as_str()], headers].concat();
        web.http("POST", "/acp", &headers, body)
    };
    assert_eq!(post(&["Content-Type: text/plain"], "{}").status, 415);
    assert_eq!(post(&[], "{}").status, 415);
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#;
    let twice = r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"initialize"}"#;
    for (body, code) in
        [("[]", -32_600), (batch, -32_600), ("5", -32_600), (twice, -32_600), ("{", -32_700), (" ", -32_700)]
    {
        let refused = post(&[json_type], body);
        let answer: Value = serde_json::from_str(&refused.body).expect("JSON");
        assert_eq!(
            (refused.status, &answer["error"]["code"], &answer["id"]),
            (400, &json!(code), &Value::Null),
            "{body}"
        );
    }
    assert_eq!(post(&[json_type], &request(1, "session/new", json!({}))).status, 400);
    let unknown = "Acp-Connection-Id: 0b8d5f5e-0000-4000-8000-000000000000";
    assert_eq!(post(&[json_type, unknown], &request(1, "session/new", json!({}))).status, 404);
    let client = HttpClient::new(&web, &token);
    let prompt = |params: Value| request(2, "session/prompt", params);
    assert_eq!(client.posts(&prompt(json!({})), None).status, 400, "no session at all");
    assert_eq!(client.posts(&prompt(json!({ "sessionId": "a" })), Some("b")).status, 400, "two sessions");
    for odd in [json!([]), json!({ "sessionId": null })] {
        assert_eq!(client.posts(&prompt(odd), Some("a")).status, 400, "no place for the session");
    }
    // Another token does not find the connection.
    let mut other = HttpClient::new(&web, &web.token("control"));
    other.id.clone_from(&client.id);
    assert_eq!(other.posts(&request(3, "any/method", json!({})), None).status, 404);
    let id = format!("Acp-Connection-Id: {}", client.id);
    let get = |headers: &[&str]| web.http("GET", "/acp", &[&[bearer.as_str()], headers].concat(), "").status;
    assert_eq!(get(&[&id]), 406);
    assert_eq!(get(&["Accept: text/event-stream"]), 400);
    assert_eq!(get(&["Accept: text/event-stream", unknown]), 404);
    assert_eq!(web.http("PUT", "/acp", &[&bearer], "").status, 405);
    assert_eq!(web.http("DELETE", "/acp", &[&bearer], "").status, 400);
}

#[test]
fn a_stream_is_open_once_and_those_of_unknown_sessions_have_a_bound() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("control"));
    let _connection = client.stream(None);
    assert_eq!(client.try_stream(None).err(), Some(409));
    let streams: Vec<_> = (0..16).map(|number| client.stream(Some(&format!("unheard-{number}")))).collect();
    assert_eq!(client.try_stream(Some("one-more")).err(), Some(404));
    drop(streams);
    bus.until("their places are free again", || client.try_stream(Some("one-more")).is_ok());
}

#[test]
fn what_is_said_before_the_stream_is_open_waits_for_it() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("control"));
    let mut connection = client.stream(None);
    let session = client.opens_session(&mut connection);
    client.prompts(2, &session, "Early.");
    // The answer to a later request shows that the turn is over.
    assert_eq!(client.posts(&request(7, "any/method", json!({})), None).status, 202);
    while connection.receives().expect("an answer")["id"] != 7 {}
    assert_eq!(client.stream(Some(&session)).turn(2), ("Early.".to_owned(), Vec::new()));
}

#[test]
fn a_session_is_loaded_on_a_new_connection_with_or_without_a_stream_for_it() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("control");
    for has_stream in [true, false] {
        let session = web.socket(&token).opens_session();
        let client = HttpClient::new(&web, &token);
        let mut connection = client.stream(None);
        let mut events = has_stream.then(|| client.stream(Some(&session)));
        let load = json!({ "sessionId": session, "cwd": "/tmp", "mcpServers": [] });
        // Its WebSocket still holds it for a moment.
        bus.until("it is loaded", || {
            assert_eq!(client.posts(&request(4, "session/load", load.clone()), None).status, 202);
            let answers = events.as_mut().unwrap_or(&mut connection);
            let answer = std::iter::from_fn(|| answers.receives()).find(|message| message["id"] == 4);
            answer.expect("an answer").get("result").is_some()
        });
        client.prompts(5, &session, "Again.");
        assert_eq!(events.as_mut().unwrap_or(&mut connection).turn(5).0, "Again.");
    }
}

#[test]
fn scopes_hold_over_http_too() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("observe"));
    let mut connection = client.stream(None);
    let mut events = client.stream(Some("s"));
    // An answer comes where answers come: an SDK takes 403 for the end of the connection.
    assert_eq!(client.posts(&request(2, "session/new", json!({})), None).status, 202);
    let prompt = json!({ "sessionId": "s", "prompt": [] });
    assert_eq!(client.posts(&request("\"p\"", "session/prompt", prompt), Some("s")).status, 202);
    for (stream, id) in [(&mut connection, json!(2)), (&mut events, json!("p"))] {
        let refused = stream.receives().expect("an answer");
        let reason = &refused["error"]["data"]["reason"];
        assert_eq!(
            (&refused["error"]["code"], &refused["id"], reason),
            (&json!(-32_061), &id, &json!("read_only"))
        );
    }
    let cancel = notification("session/cancel", json!({ "sessionId": "s" }));
    for silent in [cancel, notification("_bus/reload", json!({})), result(1, json!({}))] {
        let refused = client.posts(&silent, None);
        let body: Value = serde_json::from_str(&refused.body).expect("JSON");
        assert_eq!(
            (refused.status, &body["error"]["code"], &body["id"]),
            (403, &json!(-32_061), &Value::Null)
        );
    }
    assert_eq!(client.posts(&notification("$/ping", json!({})), None).status, 202);
    assert_eq!(client.posts(&request(3, "_bus/status", json!({})), None).status, 202);
    assert_eq!(connection.receives().expect("an answer")["result"]["bus"], "stdio-bus");
}

#[test]
fn an_agent_that_refuses_to_initialize_is_an_answer_without_a_connection() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let bearer = format!("Authorization: Bearer {}", web.token("admin"));
    let headers = [bearer.as_str(), "Content-Type: application/json"];
    let absent = web.http("POST", "/acp?pool=absent", &headers, &initialize(0, json!({})));
    assert_eq!(absent.status, 404);
    let odd = web.http("POST", "/acp", &headers, &request(0, "initialize", json!([])));
    let body: Value = serde_json::from_str(&odd.body).expect("JSON");
    assert_eq!((odd.status, odd.header("acp-connection-id")), (200, None), "{body}");
    assert!(body.get("error").is_some());
}

#[test]
fn a_body_that_is_too_long_is_refused() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("admin"));
    let line = request(2, "any/method", json!({ "text": "x".repeat(16 << 20) }));
    assert_eq!(client.posts(&line, None).status, 413);
    let mut connection = client.stream(None);
    assert_eq!(client.posts(&request(3, "any/method", json!({})), None).status, 202);
    assert_eq!(connection.receives().expect("an answer")["id"], 3);
}
