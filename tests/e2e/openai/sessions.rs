//! Sessions that are stored on disk.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Setup, assistant, user};
use crate::harness::{Bus, Client, initialize, request, session_of};

#[test]
fn a_session_continues_after_kill_9() {
    let mut setup = Setup::new();
    let session = setup.session();
    setup.says(&session, "one", "ONE");
    setup.call("session/set_model", json!({ "sessionId": session, "modelId": "other" }));
    let status = setup.call("_bus/status", json!({}));
    let pid = status["pools"][0]["workers"][0]["pid"].as_i64().expect("a pid");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
    let mut other = setup.bus.client();
    setup.bus.until("the death is known", || other.status()["counters"]["worker_deaths"] == 1);
    setup.prompts(&session, "two");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.body["messages"], json!([user("one"), assistant("ONE"), user("two")]));
    assert_eq!(exchange.body["model"], "other");
    exchange.streams(&[], "stop");
}

/// Returns all updates before the response to this request, and its result.
fn replay(client: &mut Client, id: u32) -> (Vec<Value>, Value) {
    let mut updates = Vec::new();
    loop {
        let message = client.receives();
        if message["id"] == id {
            assert!(message.get("result").is_some(), "{message}");
            return (updates, message["result"].clone());
        }
        updates.push(message["params"]["update"].clone());
    }
}

#[test]
fn another_bus_finds_replays_and_continues_the_session() {
    let mut setup = Setup::with(json!({ "XDG_STATE_HOME": "@dir" }), &[]);
    let session = setup.session();
    setup.says(&session, "What is one?", "ONE");
    let folder = setup.bus.folder().to_owned();
    let url = setup.server.url.clone();
    let state = json!({ "XDG_STATE_HOME": folder.to_str().unwrap() });
    // The first bus still runs, but its client has closed the session.
    setup.call("session/close", json!({ "sessionId": session }));
    let other = Bus::start(super::config(&url, state, &[]));
    let mut client = other.client();
    client.sends(&initialize(1, json!({})));
    let initialized = replay(&mut client, 1).1;
    assert_eq!(initialized["agentInfo"]["name"], "openai-agent");
    assert_eq!(initialized["agentCapabilities"]["loadSession"], true);
    let listed = client.asks(2, "session/list", json!({ "cwd": "/work" }));
    assert_eq!(listed["sessions"][0]["title"], "What is one?");
    let name = listed["sessions"][0]["sessionId"].clone();
    client.sends(&request(3, "session/load", json!({ "sessionId": name, "cwd": "/work", "mcpServers": [] })));
    let (updates, _) = replay(&mut client, 3);
    let said: Vec<_> =
        updates.iter().map(|update| (&update["sessionUpdate"], &update["content"]["text"])).collect();
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
    assert_eq!(setup.server.says("TWO"), [user("What is one?"), assistant("ONE"), user("two")]);
    replay(&mut client, 5);
    client.sends(&request(6, "session/delete", json!({ "sessionId": fork })));
    replay(&mut client, 6);
    client.sends(&request(7, "session/list", json!({})));
    assert_eq!(replay(&mut client, 7).1["sessions"].as_array().unwrap().len(), 1);
}
