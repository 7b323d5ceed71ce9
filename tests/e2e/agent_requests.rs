//! Requests of agents: permissions, elicitations and cancellations, each to the one client that it concerns.

use serde_json::json;

use crate::harness::{Bus, bus_puppet_client, notification, one_pool, request};

#[test]
fn permission_requests_of_four_agents_are_answered_to_their_own_agent_in_any_order() {
    let bus = Bus::start(one_pool(4));
    let mut workers = bus.puppets::<4>();
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let mut client = bus.client();
        let (session, at) = client.opens_anywhere(&mut workers, "s1");
        client.prompts(2, &session);
        let turn = workers[at].is_asked("session/prompt");
        pairs.push((client, session, at, turn));
    }
    assert_eq!(pairs.iter().map(|pair| pair.2).collect::<std::collections::HashSet<_>>().len(), 4);
    for puppet in &mut workers {
        // Two requests whose ids look alike and differ: a number and a string.
        puppet.asks_permission(0, "s1");
        puppet.asks_permission(r#""0""#, "s1");
    }
    let mut questions = Vec::new();
    for (client, session, ..) in &mut pairs {
        for _ in 0..2 {
            let asked = client.is_asked("session/request_permission");
            assert_eq!(asked["params"]["sessionId"], session.as_str());
            questions.push(asked);
        }
    }
    for (n, (client, ..)) in pairs.iter_mut().enumerate().rev() {
        for second in [1, 0] {
            client.answers(&questions[2 * n + second], json!({ "for": n, "second": second }));
        }
    }
    for (n, (client, _, at, turn)) in pairs.iter_mut().enumerate() {
        let puppet = &mut workers[*at];
        assert_eq!(puppet.gets("0")["result"], json!({ "for": n, "second": 1 }));
        assert_eq!(puppet.gets(0)["result"], json!({ "for": n, "second": 0 }));
        puppet.ends_turn(turn, "end_turn");
        client.gets(2);
        client.has_received_nothing();
    }
}

#[test]
fn cancel_request_is_translated_in_both_directions() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(r#""turn""#, &session);
    let turn = puppet.is_asked("session/prompt");
    // Ben has no such request, so nothing of this may reach the agent.
    ben.sends(&notification("$/cancel_request", json!({ "requestId": "turn" })));
    ben.sends(&notification("$/cancel_request", json!({ "requestId": turn["id"] })));
    ben.has_received_nothing();
    ann.sends(&notification("$/cancel_request", json!({ "requestId": "turn" })));
    assert_eq!(puppet.is_asked("$/cancel_request")["params"]["requestId"], turn["id"]);

    puppet.asks_permission(r#""q""#, "s1");
    let asked = ann.is_asked("session/request_permission");
    puppet.sends(&notification("$/cancel_request", json!({ "requestId": "unknown" })));
    puppet.sends(&notification("$/cancel_request", json!({ "requestId": "q" })));
    assert_eq!(ann.is_asked("$/cancel_request")["params"]["requestId"], asked["id"]);
    ann.answers(&asked, json!("cancelled"));
    assert_eq!(puppet.gets("q")["result"], "cancelled");
}

#[test]
fn an_elicitation_goes_to_the_session_or_the_request_that_it_is_about() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.opens(&mut puppet, "s1");
    let session = ben.opens(&mut puppet, "s2");
    puppet.sends(&request(
        1,
        "elicitation/create",
        json!({ "sessionId": "s2", "elicitationId": "by session" }),
    ));
    let asked = ben.is_asked("elicitation/create");
    assert_eq!(asked["params"]["sessionId"], json!(session));
    ben.answers(&asked, json!({ "action": "accept" }));
    assert_eq!(puppet.gets(1)["result"]["action"], "accept");

    ann.sends(&request(r#""login""#, "_vendor/login", json!({})));
    let login = puppet.is_asked("_vendor/login");
    let scope = json!({ "requestId": login["id"], "elicitationId": "by request" });
    puppet.sends(&request(1, "elicitation/create", scope));
    let asked = ann.is_asked("elicitation/create");
    assert_eq!(asked["params"]["requestId"], "login", "the client's own id");
    ann.answers(&asked, json!({ "action": "decline" }));
    assert_eq!(puppet.gets(1)["result"]["action"], "decline");

    puppet.sends(&notification("elicitation/complete", json!({ "elicitationId": "by request" })));
    puppet.sends(&notification("elicitation/complete", json!({ "elicitationId": "by session" })));
    puppet.sends(&notification("elicitation/complete", json!({ "elicitationId": "unknown" })));
    assert_eq!(ann.is_asked("elicitation/complete")["params"]["elicitationId"], "by request");
    assert_eq!(ben.is_asked("elicitation/complete")["params"]["elicitationId"], "by session");

    // No client has made this request.
    puppet.sends(&request(2, "elicitation/create", json!({ "requestId": 424242, "elicitationId": "x" })));
    assert!(puppet.gets(2).get("error").is_some());
    ann.has_received_nothing();
    ben.has_received_nothing();
}

#[test]
fn an_agent_request_without_a_session_reaches_a_sole_client_and_is_refused_with_two() {
    let (bus, mut puppet, mut ann) = bus_puppet_client();
    ann.opens(&mut puppet, "s1");
    puppet.sends(&request(1, "_vendor/ask", json!({ "n": 1 })));
    let asked = ann.is_asked("_vendor/ask");
    ann.answers(&asked, json!("here"));
    assert_eq!(puppet.gets(1)["result"], "here");
    let mut ben = bus.client();
    ben.opens(&mut puppet, "s2");
    puppet.sends(&request(2, "_vendor/ask", json!({ "n": 2 })));
    puppet.sees_error(2, -32601);
    ann.has_received_nothing();
    ben.has_received_nothing();
}
