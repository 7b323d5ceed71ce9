//! Sessions that are kept on disk.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Stage, assistant, user};
use crate::harness::{Bus, Client, initialize, request, session_of};

#[test]
fn a_session_goes_on_after_kill_9() {
    let mut stage = Stage::new();
    let session = stage.session();
    stage.says(&session, "one", "ONE");
    stage.call("session/set_model", json!({ "sessionId": session, "modelId": "other" }));
    let status = stage.call("_bus/status", json!({}));
    let pid = status["pools"][0]["workers"][0]["pid"].as_i64().expect("a pid");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
    let mut other = stage.bus.client();
    stage.bus.until("the death is known", || other.status()["counters"]["worker_deaths"] == 1);
    stage.prompts(&session, "two");
    let exchange = stage.server.is_asked();
    assert_eq!(exchange.body["messages"], json!([user("one"), assistant("ONE"), user("two")]));
    assert_eq!(exchange.body["model"], "other");
    exchange.streams(&[], "stop");
}

/// All updates until the answer to this request, and its result.
fn replay(client: &mut Client, id: u32) -> (Vec<Value>, Value) {
    let mut updates = Vec::new();
    loop {
        let message = client.hears();
        if message["id"] == id {
            assert!(message.get("result").is_some(), "{message}");
            return (updates, message["result"].clone());
        }
        updates.push(message["params"]["update"].clone());
    }
}

#[test]
fn another_bus_finds_the_session_tells_it_and_goes_on() {
    let mut stage = Stage::with(json!({ "XDG_STATE_HOME": "@dir" }), &[]);
    let session = stage.session();
    stage.says(&session, "What is one?", "ONE");
    let (folder, url) = (stage.bus.folder().to_owned(), stage.server.url.clone());
    let state = json!({ "XDG_STATE_HOME": folder.to_str().unwrap() });
    // The first bus goes on; its client has left the session.
    stage.call("session/close", json!({ "sessionId": session }));
    let other = Bus::start(super::config(&url, state, &[]));
    let mut client = other.client();
    client.sends(&initialize(1, json!({})));
    let offers = replay(&mut client, 1).1;
    assert_eq!(offers["agentInfo"]["name"], "openai-agent");
    assert_eq!(offers["agentCapabilities"]["loadSession"], true);
    let listed = client.asks(2, "session/list", json!({ "cwd": "/work" }));
    assert_eq!(listed["sessions"][0]["title"], "What is one?");
    let name = listed["sessions"][0]["sessionId"].clone();
    client.sends(&request(3, "session/load", json!({ "sessionId": name, "cwd": "/work", "mcpServers": [] })));
    let (told, _) = replay(&mut client, 3);
    let said: Vec<_> =
        told.iter().map(|update| (&update["sessionUpdate"], &update["content"]["text"])).collect();
    assert_eq!(
        said[..2],
        [
            (&json!("user_message_chunk"), &json!("What is one?")),
            (&json!("agent_message_chunk"), &json!("ONE"))
        ]
    );
    client.sends(&request(4, "session/fork", json!({ "sessionId": name, "cwd": "/else", "mcpServers": [] })));
    let fork = session_of(&replay(&mut client, 4).1);
    let prompt = json!([{ "type": "text", "text": "two" }]);
    client.sends(&request(5, "session/prompt", json!({ "sessionId": fork, "prompt": prompt })));
    assert_eq!(stage.server.says("TWO"), [user("What is one?"), assistant("ONE"), user("two")]);
    replay(&mut client, 5);
    client.sends(&request(6, "session/delete", json!({ "sessionId": fork })));
    replay(&mut client, 6);
    client.sends(&request(7, "session/list", json!({})));
    assert_eq!(replay(&mut client, 7).1["sessions"].as_array().unwrap().len(), 1);
}
