//! Sessions are opened, listed, closed, and found again after a crash.

use serde_json::{Value, json};

use super::{Client, seconds};

#[test]
fn a_new_session_reports_its_commands_modes_and_options() {
    let mut client = Client::new();
    let result = client.result("session/new", json!({ "cwd": "/work", "mcpServers": [] }));
    assert_eq!(result["modes"]["currentModeId"], "plain");
    assert_eq!(result["modes"]["availableModes"].as_array().unwrap().len(), 2);
    assert_eq!(result["configOptions"][0]["currentValue"], "words");
    let session = result["sessionId"].as_str().unwrap();
    assert_eq!(
        client.updates(session, "available_commands_update")[0]["availableCommands"]
            .as_array()
            .unwrap()
            .len(),
        7
    );
}

#[test]
fn modes_and_options_change_the_echo() {
    let mut client = Client::new();
    let session = client.session();
    let mode = |mode: &str| json!({ "sessionId": session, "modeId": mode });
    let split =
        |option: &str, value: &str| json!({ "sessionId": session, "configId": option, "value": value });
    client.result("session/set_mode", mode("shout"));
    assert_eq!(client.echo(&session, "straße").concat(), "STRASSE");
    assert_eq!(client.error("session/set_mode", mode("whisper")), -32602);
    let options = client.result("session/set_config_option", split("split", "lines"));
    assert_eq!(options["configOptions"][0]["currentValue"], "lines");
    assert_eq!(client.echo(&session, "a\nb\n"), ["A\n", "B\n"]);
    assert_eq!(client.error("session/set_config_option", split("split", "atoms")), -32602);
    assert_eq!(client.error("session/set_config_option", split("colour", "lines")), -32602);
}

#[test]
fn a_loaded_session_is_replayed_and_a_resumed_one_is_not() {
    let mut client = Client::new();
    let session = client.session();
    client.echo(&session, "first");
    client.echo(&session, "/think");
    client.result("session/set_mode", json!({ "sessionId": session, "modeId": "shout" }));
    client.result("session/close", json!({ "sessionId": session }));
    client.received.clear();
    assert_eq!(client.error("session/prompt", json!({ "sessionId": session, "prompt": [] })), -32002);

    let id =
        client.request("session/load", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] }));
    let texts: Vec<_> = client.received[..4]
        .iter()
        .map(|message| {
            let update = &message["params"]["update"];
            (update["sessionUpdate"].as_str().unwrap(), update["content"]["text"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        texts,
        [
            ("user_message_chunk", "first"),
            ("agent_message_chunk", "first"),
            ("user_message_chunk", "/think"),
            ("agent_message_chunk", "I have thought about it.\n"),
        ]
    );
    assert_eq!(client.received[4]["id"], id);
    assert_eq!(client.received[4]["result"]["modes"]["currentModeId"], "shout");
    client.result("session/close", json!({ "sessionId": session }));
    client.received.clear();

    let result =
        client.result("session/resume", json!({ "sessionId": session, "cwd": "/else", "mcpServers": [] }));
    assert_eq!(result["modes"]["currentModeId"], "shout");
    assert_eq!(client.updates(&session, "user_message_chunk").len(), 0);
    assert_eq!(client.result("session/list", json!({}))["sessions"][0]["cwd"], "/else");
    assert_eq!(client.echo(&session, "again").concat(), "AGAIN");
}

#[test]
fn a_fork_has_the_history_and_does_not_change_the_first_session() {
    let mut client = Client::new();
    let session = client.session();
    client.echo(&session, "common");
    let result = client.result("session/fork", json!({ "sessionId": session, "cwd": "/fork" }));
    let fork = result["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(fork, session);
    client.echo(&fork, "mine");
    client.received.clear();
    client.result("session/load", json!({ "sessionId": session, "cwd": "/work" }));
    assert_eq!(client.updates(&session, "user_message_chunk").len(), 1);
    client.result("session/load", json!({ "sessionId": fork, "cwd": "/fork" }));
    assert_eq!(client.updates(&fork, "user_message_chunk").len(), 2);
}

#[test]
fn sessions_are_listed_by_pages_and_by_folder() {
    let mut client = Client::new();
    let mut made: Vec<_> = (0..250).map(|_| client.session()).collect();
    client.result("session/new", json!({ "cwd": "/else" }));
    client.advance(seconds(1.0));
    client.echo(&made[7].clone(), "the newest of all\nby far");
    let mut seen = Vec::new();
    let mut cursor = Value::Null;
    let mut pages = 0;
    loop {
        let page = client.result("session/list", json!({ "cwd": "/work", "cursor": cursor }));
        seen.extend(page["sessions"].as_array().unwrap().clone());
        pages += 1;
        let Some(next) = page.get("nextCursor") else { break };
        cursor = next.clone();
    }
    assert_eq!(pages, 3);
    assert_eq!(seen[0]["title"], "the newest of all");
    assert_eq!(seen[0]["updatedAt"], "2001-09-09T01:46:41.000Z");
    let mut ids: Vec<_> = seen.iter().map(|info| info["sessionId"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    made.sort();
    assert_eq!(ids, made);
    assert_eq!(client.error("session/list", json!({ "cursor": "elsewhere" })), -32602);
    assert_eq!(client.result("session/list", json!({ "cwd": "/nowhere" }))["sessions"], json!([]));
}

#[test]
fn closing_or_deleting_ends_the_turn_first() {
    for method in ["session/close", "session/delete"] {
        let mut client = Client::new();
        let session = client.session();
        let turn = client.prompt(&session, "/slow 60");
        client.result(method, json!({ "sessionId": session }));
        assert_eq!(client.stop_reason(turn).unwrap(), "cancelled");
        assert_eq!(client.agent.next_wake(), None);
    }
}

#[test]
fn a_deleted_session_is_gone_and_deleting_it_again_is_no_error() {
    let mut client = Client::new();
    let session = client.session();
    client.result("session/delete", json!({ "sessionId": session }));
    client.result("session/delete", json!({ "sessionId": session }));
    assert_eq!(client.result("session/list", json!({}))["sessions"], json!([]));
    assert_eq!(client.error("session/load", json!({ "sessionId": session, "cwd": "/" })), -32002);
}

#[test]
fn invalid_requests_are_errors_with_a_reason() {
    let mut client = Client::new();
    let nobody = json!({
        "sessionId": "echo-aaaaaaaa",
        "cwd": "/",
        "prompt": [],
        "modeId": "plain",
        "configId": "split",
        "value": "words",
    });
    for method in ["prompt", "load", "resume", "fork", "close", "set_mode", "set_config_option"] {
        assert_eq!(client.error(&format!("session/{method}"), nobody.clone()), -32002, "{method}");
        assert_eq!(client.error(&format!("session/{method}"), json!({})), -32602, "{method}");
        assert_eq!(client.error(&format!("session/{method}"), json!([1, 2])), -32602, "{method}");
    }
    for params in [json!({}), json!({ "cwd": 7 }), json!({ "cwd": "" })] {
        assert_eq!(client.error("session/new", params), -32602);
    }
    let long = "x".repeat(1 << 20);
    let answer = client.call("session/set_mode", json!({ "sessionId": "s", "modeId": long }));
    assert!(answer["error"]["message"].as_str().unwrap().len() < 1000);
}

#[test]
fn a_new_process_opens_the_sessions_of_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut dead = Client::with_state(folder.path());
    let session = dead.session();
    dead.echo(&session, "remember\nthis");
    dead.result(
        "session/set_config_option",
        json!({ "sessionId": session, "configId": "split", "value": "whole" }),
    );
    dead.prompt(&session, "/slow 60");
    drop(dead);

    let mut client = Client::with_state(folder.path());
    assert_eq!(client.error("session/prompt", json!({ "sessionId": session, "prompt": [] })), -32002);
    let listed = client.result("session/list", json!({ "cwd": "/work" }))["sessions"].clone();
    assert_eq!((&listed[0]["sessionId"], &listed[0]["title"]), (&json!(session), &json!("remember")));
    let result =
        client.result("session/load", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] }));
    assert_eq!(result["configOptions"][0]["currentValue"], "whole");
    let users = client.updates(&session, "user_message_chunk");
    assert_eq!(
        users.iter().map(|user| user["content"]["text"].clone()).collect::<Vec<_>>(),
        ["remember\nthis", "/slow 60"]
    );
    assert_eq!(client.chunks(&session), ["remember\nthis"]);
    assert_eq!(client.echo(&session, "and go on"), ["and go on"]);

    let fork = client.result("session/fork", json!({ "sessionId": session, "cwd": "/work" }));
    client.result("session/delete", json!({ "sessionId": session }));
    let mut third = Client::with_state(folder.path());
    let fork = fork["sessionId"].as_str().unwrap();
    third.result("session/resume", json!({ "sessionId": fork, "cwd": "/work" }));
    assert_eq!(third.echo(fork, "hi"), ["hi"]);
    assert_eq!(third.error("session/load", json!({ "sessionId": session, "cwd": "/work" })), -32002);
}

#[test]
fn two_processes_in_one_folder_see_each_others_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Client::with_state(folder.path()), Client::with_state(folder.path()));
    let session = one.session();
    two.result("session/resume", json!({ "sessionId": session, "cwd": "/work" }));
    two.received.clear();
    one.echo(&session, "from one");
    two.echo(&session, "from two");
    one.result("session/load", json!({ "sessionId": session, "cwd": "/work" }));
    assert_eq!(one.updates(&session, "user_message_chunk").len(), 2);
    one.result("session/delete", json!({ "sessionId": session }));
    assert_eq!(two.echo(&session, "unaware").concat(), "unaware");
    assert_eq!(two.result("session/list", json!({}))["sessions"], json!([]));
}

#[test]
fn ids_with_paths_in_them_are_unknown_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let mut client = Client::with_state(folder.path());
    for id in ["../x", "/etc/passwd", "echo-aaaa/../", "echo-aaaaaaaa.jsonl", ""] {
        for method in ["session/load", "session/resume", "session/fork"] {
            assert_eq!(client.error(method, json!({ "sessionId": id, "cwd": "/" })), -32002);
        }
        client.result("session/delete", json!({ "sessionId": id }));
    }
}
