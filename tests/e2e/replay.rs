//! What a client is told again: all of a session that it loads, and nothing after a death.

use serde_json::{Value, json};

use crate::harness::{Bus, Client, bus_puppet_client, initialize, request, session_of, update, update_of};

/// A session of the echo agent, in which something was said and the mode and an option were set.
fn echo_session(client: &mut Client) -> String {
    client.sends(&initialize(0, json!({})));
    client.gets(0);
    client.sends(&request(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
    let session = session_of(&heard_until(client, 1).1);
    client.takes_turn(2, &session, "remember me");
    client.asks(3, "session/set_mode", json!({ "sessionId": session, "modeId": "shout" }));
    let option = json!({ "sessionId": session, "configId": "split", "value": "lines" });
    client.asks(4, "session/set_config_option", option);
    session
}

/// What a client hears of the conversation up to the answer to its request, and the result.
fn heard_until(client: &mut Client, id: u32) -> (Vec<String>, Value) {
    let mut heard = Vec::new();
    loop {
        let message = client.receives();
        if message["id"] == id {
            return (heard, message["result"].clone());
        }
        let text = message["params"]["update"]["content"]["text"].as_str();
        heard.extend(text.map(str::to_owned));
    }
}

fn echo_pool() -> Value {
    json!({ "pools": [{ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] }] })
}

#[test]
fn an_open_session_is_loaded_with_its_history_and_the_mode_and_options_of_now() {
    let bus = Bus::start(echo_pool());
    let mut client = bus.client();
    let session = echo_session(&mut client);
    let params = json!({ "sessionId": session, "cwd": "/tmp", "mcpServers": [] });
    client.sends(&request(5, "session/load", params.clone()));
    let (heard, loaded) = heard_until(&mut client, 5);
    assert_eq!(heard.concat(), "remember meremember me", "what the user said and what the agent said");
    client.sends(&request(6, "session/resume", params));
    let (heard, resumed) = heard_until(&mut client, 6);
    assert!(heard.is_empty(), "{heard:?}");
    for result in [loaded, resumed] {
        assert_eq!(result["modes"]["currentModeId"], "shout");
        assert_eq!(result["configOptions"][0]["currentValue"], "lines");
    }
}

#[test]
fn a_session_that_was_left_is_taken_up_with_the_mode_of_now() {
    let bus = Bus::start(echo_pool());
    let mut client = bus.client();
    let session = echo_session(&mut client);
    client.breaks();
    let mut again = bus.client();
    bus.until("the other has left", || again.status()["clients"] == 1);
    again.sends(&initialize(0, json!({})));
    again.gets(0);
    again.sends(&request(5, "session/resume", json!({ "sessionId": session, "cwd": "/tmp" })));
    assert_eq!(heard_until(&mut again, 5).1["modes"]["currentModeId"], "shout");
}

#[test]
fn what_an_agent_tells_again_after_a_death_is_not_heard_twice() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "resume": {} } }));
    let session = client.opens(&mut puppet, "s1");
    puppet.dies_by(9);
    let mut next = bus.puppet();
    client.prompts(3, &session);
    let asked = next.is_asked("initialize");
    next.answers(&asked, json!({ "protocolVersion": 1 }));
    let asked = next.is_asked("session/resume");
    for kind in ["user_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"] {
        next.sends(&update_of("s1", json!({ "sessionUpdate": kind })));
    }
    let commands = json!({ "sessionUpdate": "available_commands_update", "availableCommands": [] });
    next.sends(&update_of("s1", commands.clone()));
    next.answers(&asked, json!({}));
    let asked = next.is_asked("session/prompt");
    next.sends(&update("s1", "new"));
    next.ends_turn(&asked, "end_turn");
    assert_eq!(client.reads(), update_of(&session, commands), "it tells what is now");
    assert_eq!(client.reads(), update(&session, "new"));
    client.gets(3);
}

#[test]
fn what_the_bus_says_again_has_the_bytes_that_it_had() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.initializes(&mut puppet, json!({}), json!({ "sessionCapabilities": { "resume": {} } }));
    let odd = r#""z":12345678901234567890123,"y":1E5,"a":0.10"#;
    client.sends(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/new","params":{{{odd}}}}}"#));
    let asked = puppet.is_asked("session/new");
    let id = &asked["id"];
    puppet.sends(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{{odd},"sessionId":"s1"}}}}"#));
    let session = session_of(&client.gets(1));
    client.sends(&request(2, "session/resume", json!({ "sessionId": session })));
    assert_eq!(client.reads(), format!(r#"{{"jsonrpc":"2.0","id":2,"result":{{{odd}}}}}"#));
    puppet.dies_by(9);
    let mut next = bus.puppet();
    client.prompts(3, &session);
    let asked = next.is_asked("initialize");
    next.answers(&asked, json!({ "protocolVersion": 1 }));
    let resume = next.reads();
    assert!(resume.ends_with(&format!(r#""params":{{"sessionId":"s1",{odd}}}}}"#)), "{resume}");
}

#[test]
fn a_client_that_knows_an_earlier_session_does_not_hear_it_again() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let params = json!({ "sessionId": "s1", "cwd": "/", "_meta": { "bus/replay": false } });
    client.sends(&request(1, "session/resume", params));
    let asked = puppet.is_asked("session/resume");
    puppet.sends(&update_of("s1", json!({ "sessionUpdate": "user_message_chunk" })));
    puppet.answers(&asked, json!({}));
    client.gets(1);
    puppet.sends(&update("s1", "new"));
    assert_eq!(client.reads(), update("s1", "new"));
}

#[test]
fn a_session_that_was_left_is_loaded_when_its_agent_has_closed_it() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let offers = json!({ "loadSession": true, "sessionCapabilities": { "close": {} } });
    client.initializes(&mut puppet, json!({}), offers);
    let session = client.opens(&mut puppet, "s1");
    client.breaks();
    let mut again = bus.client();
    bus.until("the other has left", || again.status()["clients"] == 1);
    again.sends(&initialize(0, json!({})));
    again.gets(0);
    again.sends(&request(1, "session/load", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })));
    let close = puppet.is_asked("session/close");
    // The bus has read this, and with it all that came before.
    again.status();
    assert!(!puppet.has_more(), "the agent is still closing it");
    puppet.answers(&close, json!({}));
    let load = puppet.is_asked("session/load");
    puppet.answers(&load, json!({}));
    again.gets(1);
}
