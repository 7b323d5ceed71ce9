//! Pools whose agents keep their sessions in one place have one set of sessions.

use serde_json::{Value, json};

use crate::harness::{Bus, Client, request, unshared, update};

/// Two pools of the echo agent that share a folder.
fn two_echo_pools(more: Value) -> Bus {
    let pool = |id: &str| {
        let args = ["agent", "echo", "--state", "@dir/state"];
        let mut pool =
            json!({ "id": id, "command": "stdio-bus", "args": args, "max_instances": 1, "share": false });
        if let Some(store) = more.get(id) {
            pool["store"] = store.clone();
        }
        pool
    };
    Bus::start(json!({ "pools": [pool("one"), pool("two")], "default_pool": "one" }))
}

fn initialized(bus: &Bus) -> Client {
    let mut client = bus.client();
    client.asks(1, "initialize", json!({ "protocolVersion": 1 }));
    client
}

/// The agent's own id in an id of the bus.
fn agent_id(session: &str) -> &str {
    session.split_once('.').expect("a tag").1
}

fn in_pool_two(id: u32, method: &str, mut params: Value) -> String {
    params["cwd"] = json!("/");
    params["mcpServers"] = json!([]);
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "pool": "two", "params": params }).to_string()
}

fn listed_in_pool_two(client: &mut Client) -> Vec<Value> {
    client.sends(
        &json!({ "jsonrpc": "2.0", "id": 50, "method": "session/list", "pool": "two", "params": {} })
            .to_string(),
    );
    let sessions = client.gets(50)["sessions"].as_array().expect("a list").clone();
    sessions.into_iter().map(|session| session["sessionId"].clone()).collect()
}

#[test]
fn a_live_session_cannot_be_read_or_continued_through_a_second_pool_of_its_agent() {
    let bus = two_echo_pools(json!({}));
    let (mut ann, mut ben) = (initialized(&bus), initialized(&bus));
    let opened = ann.asks(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }));
    let session = opened["sessionId"].as_str().expect("an id").to_owned();
    ann.takes_turn(3, &session, "a secret");
    assert_eq!(listed_in_pool_two(&mut ben), [] as [Value; 0]);
    for method in ["session/load", "session/resume", "session/delete"] {
        for name in [&*session, agent_id(&session)] {
            ben.sends(&in_pool_two(4, method, json!({ "sessionId": name })));
            ben.sees_error(4, -32051, "unknown_session");
        }
    }
    // Its owner finds it there, and it is the same session.
    assert_eq!(listed_in_pool_two(&mut ann), [json!(session)]);
    ann.sends(&in_pool_two(5, "session/resume", json!({ "sessionId": session })));
    ann.gets(5);
    ann.takes_turn(6, &session, "more");
    // Once it has left, the next client takes the session up in the process that has it.
    ann.breaks();
    bus.until("Ann has left", || ben.status()["clients"] == 1);
    ben.sends(&in_pool_two(7, "session/resume", json!({ "sessionId": agent_id(&session) })));
    ben.gets(7);
    assert_eq!(
        ben.is_asked("session/update")["params"]["update"]["sessionUpdate"],
        "available_commands_update"
    );
    let status = ben.status();
    let sessions: Vec<_> =
        status["pools"].as_array().expect("pools").iter().map(|pool| &pool["sessions"]).collect();
    assert_eq!(sessions, [1, 0]);
}

#[test]
fn pools_with_a_store_of_their_own_have_sessions_of_their_own() {
    let bus = two_echo_pools(json!({ "one": "a", "two": "b" }));
    let mut ann = initialized(&bus);
    let opened = ann.asks(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }));
    let session = opened["sessionId"].as_str().expect("an id").to_owned();
    ann.takes_turn(3, &session, "hello");
    let mut ben = initialized(&bus);
    assert_eq!(listed_in_pool_two(&mut ben), [json!(agent_id(&session))]);
}

#[test]
fn a_half_closed_client_owns_its_session_until_its_turn_is_over() {
    let bus = Bus::start(unshared(1));
    let (mut puppet, mut ben) = (bus.puppet(), bus.client());
    let mut ann = bus.client();
    let session = ann.opens(&mut puppet, "s1");
    ann.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    ann.half_closes();
    ben.sends(&request(1, "session/list", json!({})));
    let asked = puppet.is_asked("session/list");
    puppet.answers(&asked, json!({ "sessions": [{ "sessionId": "s1" }] }));
    assert_eq!(ben.gets(1), json!({ "sessions": [] }));
    for name in ["s1", "abcdefghijklm.s1"] {
        ben.sends(&request(2, "session/resume", json!({ "sessionId": name, "cwd": "/", "mcpServers": [] })));
        ben.sees_error(2, -32051, "unknown_session");
    }
    puppet.sends(&update("s1", "the rest"));
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(ann.reads(), update(&session, "the rest"));
    ann.gets(1);
    ann.is_closed();
}

#[test]
fn what_an_agent_says_in_the_turn_of_a_client_that_has_left_reaches_no_other() {
    let (bus, mut puppet, mut ben) = crate::harness::bus_puppet_client();
    let mut ann = bus.client();
    let session = ann.opens(&mut puppet, "s1");
    ben.is_served_by(&mut puppet);
    ann.prompts(1, &session);
    puppet.is_asked("session/prompt");
    ann.breaks();
    bus.until("Ann has left", || ben.status()["clients"] == 1);
    puppet.sends(r#"{"jsonrpc":"2.0","method":"_vendor/thought","params":{"secret":1}}"#);
    puppet.sends(&request(7, "_vendor/ask", json!({ "secret": 1 })));
    puppet.sees_error(7, -32601);
    ben.has_received_nothing();
}
