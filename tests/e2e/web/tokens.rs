//! Codes, tokens and scopes.

use serde_json::{Value, json};

use super::bus_with_door;
use crate::harness::{Web, initialize, notification, request};

#[test]
fn a_code_lets_in_once() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let link = web.command(&["url"]);
    let link = String::from_utf8(link.stdout).expect("text");
    let (at, code) = link.trim().split_once("/#c=").expect("a link");
    assert_eq!(at, web.url);
    assert_eq!(web.login("wrong").status, 401);
    assert_eq!(web.http("POST", "/login", &["Content-Type: text/plain"], "{}").status, 415);
    assert_eq!(web.http("POST", "/login", &["Content-Type: application/json"], "{}").status, 400);
    assert_eq!(web.login(code).status, 200);
    assert_eq!(web.login(code).status, 401);
    let log = bus.log.text();
    assert!(!log.contains(code), "no code that was asked for is in the log");
}

#[test]
fn wrong_codes_have_a_bound_and_keep_no_good_one_out() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let link = String::from_utf8(web.command(&["url"]).stdout).expect("text");
    let code = link.trim().split_once("/#c=").expect("a link").1;
    for _ in 0..10 {
        assert_eq!(web.login("wrong").status, 401);
    }
    let refused = web.login("wrong");
    assert_eq!(refused.status, 429);
    let wait = refused.header("retry-after").and_then(|wait| wait.parse().ok());
    assert!(wait.is_some_and(|wait: u32| (1..=61).contains(&wait)), "{refused:?}");
    assert_eq!(web.login(code).status, 200);
    assert_eq!(web.login(code).status, 429);
    assert_eq!(bus.log.text().matches("wrong code").count(), 1, "the others are told after a minute");
}

#[test]
fn a_link_that_was_not_used_is_listed_and_revoked() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let link = String::from_utf8(web.command(&["url", "--scope", "approve"]).stdout).expect("text");
    let code = link.trim().split_once("/#c=").expect("a link").1;
    let listed = || -> Vec<Value> {
        let printed = web.command(&["links", "--json"]).stdout;
        assert!(!String::from_utf8_lossy(&printed).contains(code), "no code is shown");
        serde_json::from_slice(&printed).expect("JSON")
    };
    let before = listed();
    let ours = before.iter().find(|link| link["scope"] == "approve").expect("it is listed");
    let id = ours["id"].as_str().expect("an id");
    let table = String::from_utf8(web.command(&["links"]).stdout).expect("text");
    assert!(table.starts_with("ID") && table.contains(id) && !table.contains(code), "{table}");
    assert!(web.command(&["revoke", id]).status.success());
    assert_eq!(listed().len(), before.len() - 1);
    assert_eq!(web.login(code).status, 401);
    assert!(!web.command(&["revoke", id]).status.success());
}

#[test]
fn whoever_signs_out_ends_their_token_and_its_connections() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let (kept, token) = (web.token("observe"), web.token("observe"));
    let (mut stays, mut ends) = (web.socket(&kept), web.socket(&token));
    let bearer = format!("Authorization: Bearer {token}");
    let signs_out = || web.http("DELETE", "/login", &[&bearer], "").status;
    assert_eq!(web.http("DELETE", "/login", &[], "").status, 401);
    assert_eq!(signs_out(), 204);
    assert_eq!(u16::from(ends.ends().expect("a close frame").code), 1008);
    assert_eq!(signs_out(), 401);
    assert!(stays.asks(1, "_bus/status", json!({})).get("result").is_some());
}

#[test]
fn what_a_token_may_do_is_its_scope() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let new = json!({ "cwd": "/tmp", "mcpServers": [] });
    for (scope, may) in
        [("observe", [true, false, false]), ("control", [true, true, false]), ("admin", [true; 3])]
    {
        let mut socket = web.socket(&web.token(scope));
        socket.sends(&initialize(0, json!({})));
        assert!(socket.gets(0).0.get("result").is_some());
        let asked =
            [("_bus/status", json!({})), ("session/new", new.clone()), ("_bus/unheard-of", json!({}))];
        for (number, ((method, params), may)) in (1..).zip(asked.into_iter().zip(may)) {
            let answer = socket.asks(number, method, params);
            let refused =
                answer["error"]["code"] == -32_061 && answer["error"]["data"]["reason"] == "read_only";
            assert_eq!(!refused, may, "{scope} {method}: {answer}");
        }
    }
}

#[test]
fn a_token_that_may_approve_answers_questions_and_cannot_prompt() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let mut socket = web.socket(&web.token("approve"));
    socket.sends(&initialize(0, json!({})));
    socket.gets(0);
    for method in ["session/new", "session/prompt", "session/load", "_bus/take", "authenticate"] {
        let answer = socket.asks(1, method, json!({ "sessionId": "s" }));
        assert_eq!(answer["error"]["code"], -32_061, "{method}");
    }
    // A notification has no answer; it is dropped, and the connection goes on.
    socket.sends(&notification("session/cancel", json!({ "sessionId": "s" })));
    assert!(socket.asks(2, "_bus/status", json!({})).get("result").is_some());
    socket.sends("[]");
    assert_eq!(socket.receives()["error"]["code"], -32_600);
}

#[test]
fn a_revoked_token_ends_its_connections() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let (kept, revoked) = (web.token("observe"), web.token("admin"));
    let mut stays = web.socket(&kept);
    let mut ends = web.socket(&revoked);
    assert!(ends.asks(1, "_bus/status", json!({})).get("result").is_some());
    let listed: Value = serde_json::from_slice(&web.command(&["tokens", "--json"]).stdout).expect("JSON");
    let listed = listed.as_array().expect("tokens");
    let id = listed.iter().find(|token| token["scope"] == "admin").expect("it is listed")["id"].clone();
    assert!(!listed.iter().any(|token| token.to_string().contains(&revoked)), "no token is shown");
    assert!(web.command(&["revoke", id.as_str().expect("an id")]).status.success());
    let frame = ends.ends().expect("a close frame");
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1008, "the token was revoked"));
    let bearer = format!("Bearer {revoked}");
    assert_eq!(web.try_socket("/acp", &[("Authorization", &bearer)]).err(), Some(401));
    assert!(stays.asks(2, "_bus/status", json!({})).get("result").is_some());
    stays.sends(&request(3, "_bus/sessions", json!({})));
    assert!(stays.gets(3).0.get("result").is_some());
    assert!(!web.command(&["revoke", "00000000"]).status.success());
}
