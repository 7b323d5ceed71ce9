//! Loading and resuming sessions that are open or kept: what is told again, and the mode and options of now.

use std::time::Duration;

use serde_json::{Value, json};

use crate::limit::CLOSE_TIMEOUT;

use super::{Event, Limits, Link, TestBus, limited};

const LOADS: &str = r#"{"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}"#;
const LOADS_AND_CLOSES: &str =
    r#"{"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{},"close":{}}}}"#;
const SECOND: &str = r#"{"protocolVersion":2,"info":{"name":"a"},"capabilities":{"session":{}}}"#;

const REFUSAL: &str = r#""error":{"code":-32601,"message":"no"}"#;
const UNUSABLE: &str = r#""result":{},"error":{"code":1,"message":""}"#;

/// What `session/new` tells, in a spelling that no serializer would choose.
const OPENED: &str = concat!(
    r#"{"z":1E5, "sessionId":"s1","modes":{"currentModeId" : "plain","availableModes":[]},"n":0.10,"#,
    r#""models":{"currentModelId":"small"},"configOptions":[{"id":"a","currentValue":"x"},"#,
    r#"{"id":"b","currentValue":true}],"big":12345678901234567890123}"#
);

/// A client whose session has modes, models and options, and its worker, which initializes so.
fn with_settings(init_result: &str) -> (TestBus, Link, Link, String) {
    with_settings_of(TestBus::with_workers(1), init_result)
}

fn with_settings_of(mut bus: TestBus, init_result: &str) -> (TestBus, Link, Link, String) {
    let client = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes_with(worker, init_result);
    bus.sees(client);
    bus.sends(client, r#"{"id":1,"method":"session/new","params":{"n":1E5,"cwd":"/w","x":0.10}}"#);
    bus.answers(worker, "session/new", OPENED);
    let session = bus.sees_json(client)["result"]["sessionId"].as_str().expect("an id").to_owned();
    (bus, client, worker, session)
}

fn update(update: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#
    )
}

/// The client sets something, and the worker answers with this result.
fn sets(bus: &mut TestBus, client: Link, worker: Link, session: &str, what: (&str, &str), result: &str) {
    let (method, params) = what;
    let params = format!(r#"{{"sessionId":"{session}",{params}}}"#);
    bus.sends(client, &format!(r#"{{"id":"set","method":"{method}","params":{params}}}"#));
    bus.answers(worker, method, result);
    bus.sees(client);
}

/// What the bus itself says of the session to a client that resumes it.
fn resumed(bus: &mut TestBus, client: Link, session: &str) -> String {
    bus.asks(client, 9, "session/resume", session);
    let answer = bus.sees(client);
    let result = answer.strip_prefix(r#"{"jsonrpc":"2.0","id":9,"result":"#).expect("a result");
    result.strip_suffix('}').expect("the end").to_owned()
}

fn refuses(bus: &mut TestBus, worker: Link, method: &str) {
    answers_with(bus, worker, method, REFUSAL);
}

/// The worker answers with these members.
fn answers_with(bus: &mut TestBus, worker: Link, method: &str, members: &str) {
    let (wire, _) = bus.sees_request(worker, method);
    bus.sends(worker, &format!(r#"{{"id":{wire},{members}}}"#));
}

#[test]
fn an_open_session_is_loaded_by_its_agent() {
    for init_result in [LOADS, LOADS_AND_CLOSES] {
        let (mut bus, client, worker, session) = with_settings(init_result);
        let other = bus.acp_client();
        bus.sees(other);
        bus.asks(client, 2, "session/load", &session);
        let (wire, load) = bus.sees_request(worker, "session/load");
        assert_eq!(load["params"]["sessionId"], "s1");
        bus.sends(worker, &update(r#"{"sessionUpdate":"user_message_chunk"}"#));
        assert_eq!(bus.sees_json(client)["params"]["sessionId"], session, "the replay");
        bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{"modes":{{"currentModeId":"now"}}}}}}"#));
        assert_eq!(bus.sees_json(client)["result"]["modes"]["currentModeId"], "now");
        bus.sees_nothing(other);
        assert_eq!(resumed(&mut bus, client, &session), r#"{"modes":{"currentModeId":"now"}}"#);
        bus.asks(client, 3, "session/prompt", &session);
        bus.answers(worker, "session/prompt", "{}");
        bus.sees(client);
        bus.is_idle();
    }
}

#[test]
fn the_bus_answers_for_a_session_whose_agent_does_not_load_it_while_it_is_open() {
    for answer in [REFUSAL, UNUSABLE] {
        let (mut bus, client, worker, session) = with_settings(LOADS);
        bus.asks(client, 2, "session/load", &session);
        answers_with(&mut bus, worker, "session/load", answer);
        assert_eq!(bus.sees_json(client)["result"]["modes"]["currentModeId"], "plain");
        bus.asks(client, 3, "session/prompt", &session);
        bus.answers(worker, "session/prompt", "{}");
        assert_eq!(bus.sees_json(client)["id"], 3, "it goes on");
        bus.is_idle();
    }
    // An agent that does not offer it is not asked.
    let (mut bus, client, _, session) = with_settings("{}");
    bus.asks(client, 2, "session/load", &session);
    assert_eq!(bus.sees_json(client)["result"]["modes"]["currentModeId"], "plain");
    bus.is_idle();
}

#[test]
fn the_bus_answers_for_a_session_in_which_a_turn_runs() {
    let (mut bus, client, worker, session) = with_settings(LOADS);
    bus.asks(client, 2, "session/prompt", &session);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.sends(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s1"}}"#);
    let (question, _) = bus.sees_request(client, "session/request_permission");
    bus.asks(client, 3, "session/load", &session);
    let told = bus.sees_json(client)["result"].clone();
    assert_eq!(
        (&told["modes"]["currentModeId"], &told["_meta"]["bus/turn"]),
        (&json!("plain"), &json!("running"))
    );
    bus.sees_nothing(worker);
    bus.sends(client, &format!(r#"{{"id":{question},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 7, "the question is still open");
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.asks(client, 4, "session/load", &session);
    bus.answers(worker, "session/load", "{}");
    assert_eq!(bus.sees_json(client)["id"], 4, "the turn is over");
    bus.is_idle();
}

#[test]
fn what_the_bus_says_of_a_session_is_what_the_agent_said_of_it() {
    let (mut bus, client, _, session) = with_settings(LOADS);
    let expected = OPENED.replace(r#" "sessionId":"s1","#, "");
    assert_eq!(resumed(&mut bus, client, &session), expected);
}

#[test]
fn the_bus_tells_the_mode_and_the_options_of_now() {
    let (mut bus, client, worker, session) = with_settings(LOADS);
    let set = |bus: &mut TestBus, what, result| sets(bus, client, worker, &session, what, result);
    let tells = |bus: &mut TestBus, before: &mut String, old: &str, new: &str| {
        *before = before.replace(old, new);
        assert_eq!(resumed(bus, client, &session), *before);
    };
    let mut told = resumed(&mut bus, client, &session);
    set(&mut bus, ("session/set_mode", r#""modeId":"loud""#), "{}");
    tells(&mut bus, &mut told, r#""plain""#, r#""loud""#);
    set(&mut bus, ("session/set_model", r#""modelId":"large""#), "null");
    tells(&mut bus, &mut told, r#""small""#, r#""large""#);
    set(&mut bus, ("session/set_config_option", r#""configId":"b","value":false"#), "{}");
    tells(&mut bus, &mut told, "true", "false");
    bus.sends(worker, &update(r#"{"sessionUpdate":"current_mode_update","currentModeId":"w\u0061s"}"#));
    bus.sees(client);
    tells(&mut bus, &mut told, r#""loud""#, r#""w\u0061s""#);
    bus.sends(worker, &update(r#"{"currentModeId":"late","sessionUpdate":"current_mode_update"}"#));
    bus.sees(client);
    tells(&mut bus, &mut told, r#""w\u0061s""#, r#""late""#);
    let options = r#"[{"id":"a","currentValue":"x"},{"id":"b","currentValue":false}]"#;
    let result = r#"{"configOptions":[{"id":"c","currentValue":1e1}]}"#;
    set(&mut bus, ("session/set_config_option", r#""configId":"a","value":"y""#), result);
    tells(&mut bus, &mut told, options, r#"[{"id":"c","currentValue":1e1}]"#);
    bus.sends(worker, &update(r#"{"sessionUpdate":"config_option_update","configOptions":[]}"#));
    bus.sees(client);
    tells(&mut bus, &mut told, r#"[{"id":"c","currentValue":1e1}]"#, "[]");
    // What only looks like an update changes nothing, and neither does what the agent refuses.
    bus.sends(worker, &update(r#"{"sessionUpdate":"x","text":"current_mode_update","currentModeId":"no"}"#));
    bus.sees(client);
    let refused = format!(r#"{{"sessionId":"{session}","modeId":"no"}}"#);
    bus.sends(client, &format!(r#"{{"id":5,"method":"session/set_mode","params":{refused}}}"#));
    refuses(&mut bus, worker, "session/set_mode");
    bus.sees(client);
    tells(&mut bus, &mut told, "", "");
    // The client may leave and come back.
    bus.handles(Event::Broken(client));
    let again = bus.acp_client();
    bus.sees(again);
    assert_eq!(resumed(&mut bus, again, &session), told);
    bus.is_idle();
}

#[test]
fn options_that_are_too_long_to_keep_are_not_told() {
    let (mut bus, client, worker, session) = with_settings(LOADS);
    let long = "p".repeat(100_000);
    let options = format!(r#"{{"sessionUpdate":"config_option_update","configOptions":["{long}"]}}"#);
    bus.sends(worker, &update(&options));
    bus.sees(client);
    assert_eq!(resumed(&mut bus, client, &session), "{}");
}

#[test]
fn settings_are_made_again_as_they_are_now() {
    let (mut bus, client, worker, session) = with_settings(LOADS);
    for (what, result) in [
        (("session/set_mode", r#""modeId":"loud","x":1E5"#), "{}"),
        (("session/set_config_option", r#""configId":"a","value":"y""#), "{}"),
        (("session/set_config_option", r#""configId":"b","value":0.10"#), "{}"),
        (("session/set_config_option", r#""configId":"a","value":"z""#), "{}"),
    ] {
        sets(&mut bus, client, worker, &session, what, result);
    }
    bus.sends(worker, &update(r#"{"sessionUpdate":"current_mode_update","currentModeId":"quiet"}"#));
    let options = r#"[{"id":"a","currentValue":"w"}]"#;
    bus.sends(
        worker,
        &update(&format!(r#"{{"sessionUpdate":"config_option_update","configOptions":{options}}}"#)),
    );
    bus.sees(client);
    bus.sees(client);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.asks(client, 7, "session/prompt", &session);
    bus.initializes_with(next, LOADS);
    let params = |line: &str| line.split_once(r#""params":"#).expect("params").1.to_owned();
    let resume = bus.sees(next);
    assert_eq!(params(&resume), r#"{"sessionId":"s1","n":1E5,"cwd":"/w","x":0.10}}"#);
    let wire = serde_json::from_str::<Value>(&resume).expect("JSON")["id"].clone();
    let tells = r#"{"modes":{"currentModeId":"new","availableModes":[]}}"#;
    bus.sends(next, &format!(r#"{{"id":{wire},"result":{tells}}}"#));
    assert_eq!(params(&bus.sees(next)), r#"{"sessionId":"s1","modeId":"quiet","x":1E5}}"#);
    assert_eq!(params(&bus.sees(next)), r#"{"sessionId":"s1","configId":"b","value":0.10}}"#);
    assert_eq!(params(&bus.sees(next)), r#"{"sessionId":"s1","configId":"a","value":"w"}}"#);
    bus.answers(next, "session/prompt", "{}");
    bus.sees(client);
    assert_eq!(resumed(&mut bus, client, &session), tells.replace("new", "quiet"));
}

#[test]
fn a_kept_session_is_loaded_also_by_an_agent_that_cannot_close() {
    for bad_answer in [None, Some(REFUSAL), Some(UNUSABLE)] {
        let (mut bus, client, worker, session) = with_settings(LOADS);
        bus.handles(Event::Broken(client));
        bus.sends(worker, &update(r#"{"n":1}"#));
        let again = bus.acp_client();
        bus.sees(again);
        bus.asks(again, 2, "session/load", &session);
        if let Some(answer) = bad_answer {
            answers_with(&mut bus, worker, "session/load", answer);
            assert_eq!(bus.sees_json(again)["params"]["update"]["n"], 1, "what it missed was kept");
            assert_eq!(bus.sees_json(again)["result"]["modes"]["currentModeId"], "plain");
        } else {
            let (wire, _) = bus.sees_request(worker, "session/load");
            bus.sends(worker, &update(r#"{"replay":1}"#));
            assert_eq!(bus.sees_json(again)["params"]["update"]["replay"], 1);
            bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
            assert_eq!(bus.sees_json(again)["id"], 2, "what it missed is in the replay");
        }
        assert_eq!(bus.bus.held_bytes(), 0);
        bus.is_idle();
    }
}

#[test]
fn a_kept_session_is_loaded_once_its_agent_has_closed_it() {
    // An agent that refuses to close it, or does not answer, is asked to load it as well.
    for closes in [
        Some(r#""result":{}"#),
        Some(r#""error":{"code":1,"message":"no"}"#),
        Some(r#""result":1,"error":2"#),
        None,
    ] {
        let (mut bus, client, worker, session) = with_settings(LOADS_AND_CLOSES);
        bus.handles(Event::Broken(client));
        let again = bus.acp_client();
        bus.sees(again);
        bus.asks(again, 2, "session/load", &session);
        bus.asks(again, 3, "session/prompt", &session);
        let (wire, close) = bus.sees_request(worker, "session/close");
        assert_eq!(close["params"]["sessionId"], "s1");
        bus.sees_nothing(worker);
        match closes {
            Some(answer) => bus.sends(worker, &format!(r#"{{"id":{wire},{answer}}}"#)),
            None => bus.advances(CLOSE_TIMEOUT),
        }
        bus.answers(worker, "session/load", "{}");
        assert_eq!(bus.sees_json(again)["id"], 2);
        bus.answers(worker, "session/prompt", "{}");
        assert_eq!(bus.sees_json(again)["id"], 3);
        bus.is_idle();
    }
}

#[test]
fn a_session_that_nobody_wanted_is_loaded_again_once_its_agent_has_closed_it() {
    let (mut bus, client, worker, session) = with_settings(LOADS_AND_CLOSES);
    bus.sends(client, r#"{"method":"_bus/bye"}"#);
    bus.handles(Event::Broken(client));
    let (wire, _) = bus.sees_request(worker, "session/close");
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 2, "session/resume", &session);
    bus.asks(again, 3, "session/load", "other");
    bus.answers(worker, "session/load", "{}");
    assert_eq!(bus.sees_json(again)["id"], 3, "another session does not wait");
    bus.sees_nothing(worker);
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    bus.answers(worker, "session/resume", "{}");
    assert_eq!(bus.sees_json(again)["id"], 2);
    bus.is_idle();
}

#[test]
fn a_load_that_waits_for_a_close_ends_with_its_worker_and_with_its_client() {
    for is_lost in [false, true] {
        let (mut bus, client, worker, session) = with_settings(LOADS_AND_CLOSES);
        bus.handles(Event::Broken(client));
        let again = bus.acp_client();
        bus.sees(again);
        bus.asks(again, 2, "session/load", &session);
        let (wire, _) = bus.sees_request(worker, "session/close");
        if is_lost {
            bus.crashes(0);
            bus.sees_error(again, json!(2), "worker_lost");
        } else {
            bus.handles(Event::Broken(again));
            bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
            bus.sees_nothing(worker);
        }
        assert_eq!(bus.bus.held_bytes(), 0);
        bus.is_idle();
    }
}

#[test]
fn a_client_that_leaves_during_its_replay_leaves_what_it_missed_to_the_next() {
    let (mut bus, client, worker, session) = with_settings(LOADS);
    bus.handles(Event::Broken(client));
    bus.sends(worker, &update(r#"{"n":1}"#));
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 2, "session/load", &session);
    let (wire, _) = bus.sees_request(worker, "session/load");
    bus.handles(Event::Broken(again));
    bus.sends(worker, &update(r#"{"replay":1}"#));
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    let third = bus.acp_client();
    bus.sees(third);
    bus.asks(third, 3, "session/resume", &session);
    assert_eq!(bus.sees_json(third)["params"]["update"]["n"], 1);
    assert_eq!(bus.sees_json(third)["id"], 3);
    bus.is_idle();
}

#[test]
fn a_question_is_asked_also_where_the_session_is_told_again() {
    let (mut bus, client, worker, _) = with_settings(LOADS);
    bus.asks(client, 2, "session/load", "old");
    let (first, _) = bus.sees_request(worker, "session/load");
    bus.sends(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"old"}}"#);
    bus.sees_request(client, "session/request_permission");
    bus.handles(Event::Broken(client));
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 3, "session/load", "old");
    let (second, _) = bus.sees_request(worker, "session/load");
    for wire in [first, second] {
        bus.sees_nothing(again);
        bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    }
    let (question, _) = bus.sees_request(again, "session/request_permission");
    assert_eq!(bus.sees_json(again)["id"], 3);
    bus.sends(again, &format!(r#"{{"id":{question},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 7);
    bus.is_idle();
}

#[test]
fn a_second_load_goes_behind_the_first() {
    let mut bus = TestBus::with_workers(1);
    let client = bus.acp_client();
    let worker = bus.worker(0);
    bus.asks(client, 1, "session/load", "old");
    bus.asks(client, 2, "session/load", "old");
    bus.asks(client, 3, "session/resume", "old");
    bus.initializes_with(worker, LOADS);
    bus.sees(client);
    bus.sees_nothing(client);
    refuses(&mut bus, worker, "session/load");
    assert_eq!(bus.sees_json(client)["error"]["code"], -32601);
    bus.answers(worker, "session/load", r#"{"n":2}"#);
    assert_eq!(bus.sees_json(client)["result"]["n"], 2, "the second opens it");
    refuses(&mut bus, worker, "session/resume");
    assert_eq!(bus.sees_json(client)["result"]["n"], 2, "it is open");
    bus.asks(client, 4, "session/prompt", "old");
    bus.answers(worker, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 4);
    // A session that no request opens is forgotten.
    for id in [5, 6] {
        bus.asks(client, id, "session/load", "older");
    }
    for id in [5, 6] {
        refuses(&mut bus, worker, "session/load");
        assert_eq!(bus.sees_json(client)["id"], id);
    }
    bus.asks(client, 7, "session/prompt", "older");
    bus.sees_error(client, json!(7), "unknown_session");
    bus.is_idle();
}

#[test]
fn a_load_during_a_recovery_waits_for_it() {
    let (mut bus, client, _, session) = with_settings(LOADS);
    bus.crashes(0);
    bus.advances(Duration::from_secs(1));
    let next = bus.worker(1);
    bus.asks(client, 2, "session/prompt", &session);
    bus.asks(client, 3, "session/load", &session);
    bus.initializes_with(next, LOADS);
    bus.sees_nothing(client);
    bus.answers(next, "session/resume", "{}");
    bus.answers(next, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.answers(next, "session/load", "{}");
    assert_eq!(bus.sees_json(client)["id"], 3);
    bus.is_idle();
}

#[test]
fn the_second_version_has_no_load() {
    let (mut bus, client, worker, session) = with_settings(SECOND);
    bus.asks(client, 2, "session/load", &session);
    refuses(&mut bus, worker, "session/load");
    assert_eq!(bus.sees_json(client)["error"]["code"], -32601);
    bus.asks(client, 3, "session/prompt", &session);
    bus.answers(worker, "session/prompt", "{}");
    assert_eq!(bus.sees_json(client)["id"], 3);
    bus.handles(Event::Broken(client));
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 4, "session/load", &session);
    refuses(&mut bus, worker, "session/load");
    assert_eq!(bus.sees_json(again)["error"]["code"], -32601);
    bus.asks(again, 5, "session/prompt", &session);
    bus.sees_error(again, json!(5), "unknown_session");
    bus.is_idle();
}

#[test]
fn an_open_session_of_the_second_version_is_resumed_with_a_replay_on_request() {
    let (mut bus, client, worker, session) = with_settings(SECOND);
    for (replay, is_passed) in [(r#"{"type":"start"}"#, true), ("null", false)] {
        let params = format!(r#"{{"sessionId":"{session}","replayFrom":{replay}}}"#);
        bus.sends(client, &format!(r#"{{"id":2,"method":"session/resume","params":{params}}}"#));
        if is_passed {
            let (wire, _) = bus.sees_request(worker, "session/resume");
            bus.sends(worker, &update(r#"{"sessionUpdate":"user_message"}"#));
            bus.sees(client);
            bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
        }
        assert_eq!(bus.sees_json(client)["id"], 2);
    }
    bus.sends(worker, &update(r#"{"sessionUpdate":"state_update","state":"running"}"#));
    bus.sees(client);
    let params = format!(r#"{{"sessionId":"{session}","replayFrom":{{"type":"start"}}}}"#);
    bus.sends(client, &format!(r#"{{"id":3,"method":"session/resume","params":{params}}}"#));
    assert_eq!(bus.sees_json(client)["params"]["update"]["state"], "running", "it is told what goes on");
    assert_eq!(bus.sees_json(client)["id"], 3);
    bus.is_idle();
}

#[test]
fn a_session_whose_load_is_answered_unusably_is_ended_at_its_agent() {
    let (mut bus, client, worker, _) = with_settings(LOADS_AND_CLOSES);
    bus.asks(client, 2, "session/load", "old");
    let (wire, _) = bus.sees_request(worker, "session/load");
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":1,"error":{{}}}}"#));
    bus.sees_error(client, json!(2), "invalid");
    assert_eq!(bus.sees_json(worker)["method"], "session/cancel");
    assert_eq!(bus.answers(worker, "session/close", "{}")["params"]["sessionId"], "old");
    bus.asks(client, 3, "session/prompt", "old");
    bus.sees_error(client, json!(3), "unknown_session");
    bus.is_idle();
}

#[test]
fn a_question_is_asked_also_where_more_was_missed_than_is_kept() {
    let limits = Limits { max_output_queue: 1000, ..Limits::default() };
    let (mut bus, client, worker, session) = with_settings_of(TestBus::new(limited(limits)), LOADS);
    bus.handles(Event::Broken(client));
    bus.sends(worker, &update(&format!(r#"{{"pad":"{}"}}"#, "p".repeat(1000))));
    let again = bus.acp_client();
    bus.sees(again);
    bus.asks(again, 2, "session/resume", &session);
    let (wire, _) = bus.sees_request(worker, "session/resume");
    bus.sends(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s1"}}"#);
    bus.sees_request(again, "session/request_permission");
    bus.handles(Event::Broken(again));
    bus.sends(worker, &update(r#"{"n":1}"#));
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    let third = bus.acp_client();
    bus.sees(third);
    bus.asks(third, 3, "session/resume", &session);
    bus.answers(worker, "session/resume", "{}");
    let (question, _) = bus.sees_request(third, "session/request_permission");
    assert_eq!(bus.sees_json(third)["id"], 3);
    bus.sends(third, &format!(r#"{{"id":{question},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 7);
    bus.is_idle();
}

#[test]
fn a_refused_request_does_not_take_a_session_up() {
    let limits = Limits { max_output_queue: 1000, ..Limits::default() };
    let (mut bus, client, worker, session) = with_settings_of(TestBus::new(limited(limits)), LOADS);
    bus.handles(Event::Broken(client));
    let pad = "p".repeat(1000);
    bus.sends(worker, &update(&format!(r#"{{"pad":"{pad}"}}"#)));
    let again = bus.acp_client();
    bus.sees(again);
    let long = "l".repeat(5000);
    let params = format!(r#"{{"sessionId":"{session}"}}"#);
    bus.sends(
        again,
        &format!(r#"{{"id":2,"sessionId":"{long}","method":"session/resume","params":{params}}}"#),
    );
    bus.sees_error(again, json!(2), "invalid");
    bus.asks(again, 3, "session/prompt", &session);
    bus.sees_error(again, json!(3), "unknown_session");
    bus.asks(again, 4, "session/resume", &session);
    bus.answers(worker, "session/resume", "{}");
    assert_eq!(bus.sees_json(again)["id"], 4);
    bus.is_idle();
}

#[test]
fn a_client_that_knows_a_session_does_not_hear_it_again() {
    let (mut bus, client, worker, _) = with_settings(LOADS);
    let tells = |kind: &str| update(&format!(r#"{{"sessionUpdate":"{kind}"}}"#)).replace("s1", "old");
    let params = r#"{"sessionId":"old","_meta":{"bus/replay":false}}"#;
    bus.sends(client, &format!(r#"{{"id":2,"method":"session/resume","params":{params}}}"#));
    let (wire, asked) = bus.sees_request(worker, "session/resume");
    assert_eq!(asked["params"]["_meta"]["bus/replay"], false);
    bus.sends(worker, &tells("user_message_chunk"));
    bus.sees_nothing(client);
    bus.sends(worker, &tells("usage_update"));
    bus.sees(client);
    bus.sends(worker, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(client)["id"], 2);
    bus.sends(worker, &tells("user_message_chunk"));
    bus.sees(client);
    // What was said while it was away it does not know.
    bus.handles(Event::Broken(client));
    bus.sends(worker, &tells("agent_message_chunk"));
    let again = bus.acp_client();
    bus.sees(again);
    bus.sends(again, &format!(r#"{{"id":3,"method":"session/resume","params":{params}}}"#));
    assert_eq!(bus.sees_json(again)["params"]["update"]["sessionUpdate"], "agent_message_chunk");
    assert_eq!(bus.sees_json(again)["id"], 3);
    bus.is_idle();
}

const ASKS_IN_OLD: &str = r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"old"}}"#;

#[test]
fn who_takes_a_session_up_is_asked_what_waited_when_a_load_of_its_former_owner_is_answered() {
    let (mut bus, ann, worker, _) = with_settings(LOADS);
    bus.asks(ann, 2, "session/load", "old");
    let (first, _) = bus.sees_request(worker, "session/load");
    bus.handles(Event::Broken(ann));
    bus.sends(worker, ASKS_IN_OLD);
    let ben = bus.acp_client();
    bus.sees(ben);
    bus.asks(ben, 3, "session/load", "old");
    let (second, _) = bus.sees_request(worker, "session/load");
    bus.sends(worker, &format!(r#"{{"id":{second},{REFUSAL}}}"#));
    assert_eq!(bus.sees_json(ben)["error"]["code"], -32601);
    // What Ann asked for may still open it.
    bus.sends(worker, &format!(r#"{{"id":{first},"result":{{}}}}"#));
    let (wire, _) = bus.sees_request(ben, "session/request_permission");
    bus.sends(ben, &format!(r#"{{"id":{wire},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 5);
    bus.is_idle();
}
