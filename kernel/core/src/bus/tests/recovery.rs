//! Recovery: sessions that survive their worker.

use std::time::Duration;

use serde_json::json;

use super::{Limits, Link, TestBus};

const RESUMES: &str = r#"{"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}"#;
const LOADS: &str = r#"{"agentCapabilities":{"loadSession":true}}"#;
const CLOSES: &str = r#"{"agentCapabilities":{"sessionCapabilities":{"resume":{},"close":{}}}}"#;

/// A client with a session, whose worker has these capabilities and has crashed and restarted.
fn after_a_crash(init_result: &str) -> (TestBus, Link, Link, String) {
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes_with(worker, init_result);
    bus.sees(client);
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[{"name":"m"}]}}"#);
    bus.answers(worker, "session/new", r#"{"sessionId":"s1"}"#);
    let session = bus.sees_json(client)["result"]["sessionId"].as_str().expect("an id").to_owned();
    for (method, params) in [
        ("session/set_mode", r#""modeId":"old""#),
        ("session/set_mode", r#""modeId":"new""#),
        ("session/set_config_option", r#""configId":"a","value":1"#),
        ("session/set_config_option", r#""configId":"b","value":2"#),
    ] {
        bus.sends(
            client,
            &format!(r#"{{"id":2,"method":"{method}","params":{{"sessionId":"{session}",{params}}}}}"#),
        );
        bus.answers(worker, method, "{}");
        bus.sees(client);
    }
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.sees_nothing(client);
    (bus, client, next, session)
}

#[test]
fn the_next_message_resumes_a_session_with_its_settings() {
    let (mut bus, client, next, session) = after_a_crash(RESUMES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.sends(client, &format!(r#"{{"method":"session/cancel","params":{{"sessionId":"{session}"}}}}"#));
    bus.initializes_with(next, RESUMES);
    let resume = bus.answers(next, "session/resume", "{}");
    assert_eq!(resume["params"], json!({"sessionId":"s1","cwd":"/w","mcpServers":[{"name":"m"}]}));
    assert_eq!(bus.sees_json(next)["params"]["modeId"], "new");
    assert_eq!(bus.sees_json(next)["params"], json!({"sessionId":"s1","configId":"a","value":1}));
    assert_eq!(bus.sees_json(next)["params"]["configId"], "b");
    let (wire, _) = bus.sees_request(next, "session/prompt");
    assert_eq!(bus.sees_json(next)["method"], "session/cancel");
    bus.sends(next, r#"{"method":"session/update","params":{"sessionId":"s1"}}"#);
    assert_eq!(bus.sees_json(client)["params"]["sessionId"], session);
    bus.sends(next, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(client)["id"], 7);
}

#[test]
fn a_replay_is_not_sent_to_the_client() {
    for (init_result, method) in [(LOADS, "session/load"), (RESUMES, "session/resume")] {
        let (mut bus, client, next, session) = after_a_crash(init_result);
        bus.asks(client, 7, "session/prompt", &session);
        bus.initializes_with(next, init_result);
        let tells = |kind: &str| {
            let update = format!(r#"{{"sessionUpdate":"{kind}","text":"usage_update"}}"#);
            format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#)
        };
        let history = [
            "user_message_chunk",
            "agent_message_chunk",
            "agent_thought_chunk",
            "tool_call",
            "tool_call_update",
            "plan",
            "current_mode_update",
            "config_option_update",
            "user_message",
            "plan_update",
            "_anything",
        ];
        for kind in history {
            bus.sends(next, &tells(kind));
        }
        bus.sends(next, r#"{"method":"_vendor/said","params":{"sessionId":"s1"}}"#);
        bus.sees_nothing(client);
        bus.sends(next, &tells("available_commands_update"));
        bus.sees_json(client);
        bus.answers(next, method, "{}");
        bus.sees_nothing(client);
        bus.sends(next, &tells("agent_message_chunk"));
        assert_eq!(bus.sees_json(client)["params"]["update"]["sessionUpdate"], "agent_message_chunk");
    }
}

#[test]
fn a_session_that_cannot_be_reopened_is_lost() {
    let (mut bus, client, next, session) = after_a_crash(RESUMES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.asks(client, 8, "session/prompt", &session);
    bus.initializes_with(next, RESUMES);
    for method in ["session/resume", "session/load"] {
        let (wire, _) = bus.sees_request(next, method);
        bus.sends(next, &format!(r#"{{"id":{wire},"error":{{"code":-32002,"message":"gone"}}}}"#));
    }
    for id in [7, 8] {
        assert_eq!(bus.sees_error(client, json!(id), "unknown_session")["data"]["lost"], true);
    }
    bus.asks(client, 9, "session/prompt", &session);
    bus.sees_error(client, json!(9), "unknown_session");
    bus.sees_nothing(next);
    bus.is_idle();
}

#[test]
fn a_crash_during_the_recovery_is_answered_and_tried_again() {
    let (mut bus, client, next, session) = after_a_crash(RESUMES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, RESUMES);
    bus.sees_request(next, "session/resume");
    bus.crashes(1);
    bus.sees_error(client, json!(7), "worker_lost");
    bus.advances(Duration::from_secs(1));
    let third = bus.worker(2);
    bus.asks(client, 8, "session/prompt", &session);
    bus.initializes_with(third, RESUMES);
    bus.answers(third, "session/resume", "{}");
    for _ in 0..3 {
        bus.sees(third);
    }
    bus.sees_request(third, "session/prompt");
}

#[test]
fn what_waits_for_a_recovery_is_bounded() {
    let (mut bus, client, next, session) = after_a_crash(RESUMES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, RESUMES);
    let pad = "p".repeat(Limits::default().max_output_queue / 8);
    let cancel =
        format!(r#"{{"method":"session/cancel","params":{{"sessionId":"{session}","pad":"{pad}"}}}}"#);
    for _ in 0..20 {
        bus.sends(client, &cancel);
    }
    assert!(bus.bus.held_bytes() < 2 * Limits::default().max_output_queue);
    bus.asks(client, 8, "session/prompt", &session);
    bus.sees_error(client, json!(8), "busy");
    bus.answers(next, "session/resume", "{}");
    for _ in 0..3 {
        bus.sees(next);
    }
    bus.sees_request(next, "session/prompt");
    bus.bus.check_invariants();
}

#[test]
fn a_client_that_leaves_during_the_recovery_leaves_nothing() {
    let (mut bus, client, next, session) = after_a_crash(RESUMES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, RESUMES);
    bus.sends(client, r#"{"method":"_bus/bye"}"#);
    bus.handles(super::Event::Broken(client));
    assert_eq!(bus.sees_json(next)["method"], "session/resume");
    assert!(bus.bus.held_bytes() == 0);
}

#[test]
fn a_session_that_cannot_be_resumed_is_loaded() {
    let (mut bus, client, next, session) = after_a_crash(RESUMES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, RESUMES);
    let (wire, _) = bus.sees_request(next, "session/resume");
    bus.sends(next, &format!(r#"{{"id":{wire},"error":{{"code":-32601,"message":"no"}}}}"#));
    let (wire, _) = bus.sees_request(next, "session/load");
    bus.sends(next, r#"{"method":"session/update","params":{"sessionId":"s1","replay":true}}"#);
    bus.sends(next, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    for _ in 0..3 {
        bus.sees(next);
    }
    bus.sees_request(next, "session/prompt");
    bus.sees_nothing(client);
}

/// A client whose session has lost its worker in the middle of a turn.
fn in_mid_turn(init_result: &str) -> (TestBus, Link, Link, String) {
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes_with(worker, init_result);
    bus.sees(client);
    let session = bus.opens(client, worker, "s1");
    bus.asks(client, 2, "session/prompt", &session);
    bus.sees_request(worker, "session/prompt");
    bus.crashes(0);
    bus.sees_error(client, json!(2), "worker_lost");
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    (bus, client, next, session)
}

#[test]
fn a_turn_that_still_runs_is_cancelled() {
    // Only another bus, behind a worker that passes messages on, tells so. A new process has no turn.
    let behind_a_bus = r#"{"modes":{"currentModeId":"m"},"_meta":{"bus/turn":"running","a":1}}"#;
    for (resumed, still_runs) in
        [(behind_a_bus, true), (r#"{"_meta":{"bus/turn":null}}"#, false), ("{}", false)]
    {
        let (mut bus, client, next, session) = in_mid_turn(RESUMES);
        for id in [3, 4] {
            bus.asks(client, id, "session/prompt", &session);
            if id == 3 {
                bus.initializes_with(next, RESUMES);
                bus.answers(next, "session/resume", resumed);
            }
            if id == 3 && still_runs {
                let cancel = json!({"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s1"}});
                assert_eq!(bus.sees_json(next), cancel, "once");
            }
            bus.answers(next, "session/prompt", "{}");
            assert_eq!(bus.sees_json(client)["id"], id);
        }
        bus.asks(client, 5, "session/resume", &session);
        let told = bus.sees_json(client)["result"]["_meta"].clone();
        assert_eq!(told, if still_runs { json!({"a":1}) } else { json!(null) }, "it is over");
        bus.is_idle();
    }
}

#[test]
fn a_session_that_nobody_wants_is_not_opened_again() {
    for is_ready in [false, true] {
        let (mut bus, client, next, session) = after_a_crash(CLOSES);
        bus.asks(client, 7, "session/prompt", &session);
        if is_ready {
            bus.initializes_with(next, CLOSES);
        }
        bus.sends(client, r#"{"method":"_bus/bye"}"#);
        bus.handles(super::Event::Broken(client));
        if !is_ready {
            bus.initializes_with(next, CLOSES);
            bus.sees_nothing(next);
            assert!(bus.bus.is_empty());
            continue;
        }
        // The prompt has not reached it, so there is nothing to cancel.
        bus.answers(next, "session/resume", "{}");
        bus.answers(next, "session/close", "{}");
        assert!(bus.bus.is_empty());
    }
}

#[test]
fn a_session_whose_recovery_is_answered_unusably_is_ended_at_its_agent() {
    let (mut bus, client, next, session) = after_a_crash(CLOSES);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, CLOSES);
    let (wire, _) = bus.sees_request(next, "session/resume");
    bus.sends(next, &format!(r#"{{"id":{wire},"result":1,"error":{{}}}}"#));
    bus.sees_error(client, json!(7), "invalid");
    assert_eq!(bus.sees_json(next)["method"], "session/cancel");
    bus.answers(next, "session/close", "{}");
    bus.asks(client, 8, "session/prompt", &session);
    bus.answers(next, "session/resume", "{}");
    for _ in 0..3 {
        bus.sees(next);
    }
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 8);
}

#[test]
fn a_session_that_another_bus_keeps_is_resumed_whatever_its_agent_can() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes_with(worker, "{}");
    bus.sees(client);
    let session = bus.opens(client, worker, "ui5dg5svtn6ah.s1");
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, "{}");
    bus.answers(next, "session/resume", "{}");
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 7);
}
