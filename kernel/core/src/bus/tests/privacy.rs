//! Nothing of a turn reaches a client that takes no part in it, and no id of a client's session another client.

use serde_json::json;

use super::*;

#[test]
fn what_is_said_about_no_session_in_the_turn_of_an_absent_client_reaches_nobody() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.acp_client(), bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(ann);
    bus.sees(ben);
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.handles(Event::Broken(ann));
    // The turn goes on, and Ben is the only client left.
    bus.sends(worker, r#"{"method":"_vendor/thought","params":{"of":"ann"}}"#);
    bus.sends(worker, r#"{"id":1,"method":"_vendor/ask","params":{"of":"ann"}}"#);
    bus.sees_nothing(ben);
    bus.sees_error(worker, json!(1), "no_method");
    // After the turn the session is still kept: whatever the agent says may be about it.
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    bus.sends(worker, r#"{"id":2,"method":"_vendor/ask"}"#);
    bus.sees_error(worker, json!(2), "no_method");
    bus.advances(Duration::from_secs(301));
    bus.answers(worker, "session/close", "{}");
    bus.sends(worker, r#"{"id":3,"method":"_vendor/ask"}"#);
    bus.sees_request(ben, "_vendor/ask");
}

#[test]
fn a_plain_request_of_a_client_that_has_left_hides_what_the_worker_asks_meanwhile() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    bus.sends(ann, r#"{"id":1,"method":"work"}"#);
    let (work, _) = bus.sees_request(worker, "work");
    bus.sends(ben, r#"{"id":1,"method":"work"}"#);
    bus.answers(worker, "work", "1");
    bus.sees(ben);
    bus.handles(Event::Broken(ann));
    bus.sends(worker, r#"{"id":5,"method":"ask"}"#);
    bus.sees_error(worker, json!(5), "no_method");
    bus.sends(worker, &format!(r#"{{"id":{work},"result":1}}"#));
    bus.sends(worker, r#"{"id":6,"method":"ask"}"#);
    bus.sees_request(ben, "ask");
}

#[test]
fn only_what_is_said_in_no_turn_is_told_to_clients_that_come_later() {
    let mut bus = TestBus::with_workers(1);
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes(worker);
    bus.sees(ann);
    bus.sends(worker, r#"{"method":"_auth/status","params":{"in":true}}"#);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.sends(worker, r#"{"method":"_vendor/plan","params":{"secret":1}}"#);
    assert_eq!(bus.sees_json(ann)["method"], "_vendor/plan", "it is Ann's turn");
    // A login concerns the whole process.
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    bus.sees(ann);
    bus.sends(ann, r#"{"id":2,"method":"authenticate"}"#);
    bus.sends(worker, r#"{"method":"_auth/status","params":{"in":false}}"#);
    bus.answers(worker, "authenticate", "{}");
    let ben = bus.acp_client();
    assert_eq!(bus.sees_json(ben)["id"], 0);
    assert_eq!(bus.sees_json(ben)["params"], json!({"in":false}));
    bus.sees_nothing(ben);
}

#[test]
fn a_turn_that_goes_on_after_the_answer_to_its_prompt_is_a_turn() {
    let mut bus = TestBus::with_workers(1);
    let ann = bus.client();
    let second = INITIALIZE.replace(r#""protocolVersion":1"#, r#""protocolVersion":2"#);
    bus.sends(ann, &second);
    let worker = bus.worker(0);
    bus.initializes_with(worker, r#"{"protocolVersion":2,"capabilities":{"session":{}}}"#);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    bus.answers(worker, "session/prompt", "{}");
    bus.sees(ann);
    let state = |state: &str| {
        let update = format!(r#"{{"sessionUpdate":"state_update","state":"{state}"}}"#);
        format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#)
    };
    bus.sends(worker, &state("running"));
    bus.sends(worker, r#"{"method":"_vendor/plan","params":{"secret":1}}"#);
    bus.sends(worker, &state("idle"));
    bus.sends(worker, r#"{"method":"_vendor/ready"}"#);
    let ben = bus.client();
    bus.sends(ben, &second);
    assert_eq!(bus.sees_json(ben)["id"], 0);
    assert_eq!(bus.sees_json(ben)["method"], "_vendor/ready");
    bus.sees_nothing(ben);
}

#[test]
fn a_message_that_speaks_of_another_clients_session_does_not_show_its_id() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let of_ann = bus.opens(ann, worker, "s1");
    let of_ben = bus.opens(ben, worker, "s2");
    let speaks_of = |child: &str| {
        let update = format!(r#"{{"sessionUpdate":"subagent","sessionId":"{child}"}}"#);
        format!(r#"{{"method":"session/update","params":{{"sessionId":"s2","update":{update}}}}}"#)
    };
    bus.sends(worker, &speaks_of("s1"));
    let update = bus.sees_json(ben);
    assert_eq!(update["params"]["sessionId"], json!(of_ben));
    assert_eq!(update["params"]["update"]["sessionId"], "s1", "not {of_ann}");
    // Also when the other client has left.
    bus.handles(Event::Broken(ann));
    bus.sends(worker, &speaks_of("s1"));
    assert_eq!(bus.sees_json(ben)["params"]["update"]["sessionId"], "s1");
    // A session of its own has the client's id.
    bus.sends(worker, &speaks_of("s2"));
    assert_eq!(bus.sees_json(ben)["params"]["update"]["sessionId"], json!(of_ben));
}

#[test]
fn a_client_that_has_half_closed_owns_its_sessions_until_its_answers_are_there() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    let (turn, _) = bus.sees_request(worker, "session/prompt");
    bus.handles(Event::Ended(ann));
    bus.sends(ben, r#"{"id":1,"method":"session/list"}"#);
    bus.answers(worker, "session/list", r#"{"sessions":[{"sessionId":"s1"}]}"#);
    assert_eq!(bus.sees_json(ben)["result"]["sessions"], json!([]));
    for method in ["session/resume", "session/load", "session/fork", "session/delete"] {
        for name in ["s1", "abcdefghijklm.s1"] {
            bus.asks(ben, 2, method, name);
            bus.sees_error(ben, json!(2), "unknown_session");
        }
    }
    bus.sends(worker, r#"{"method":"session/update","params":{"sessionId":"s1","n":1}}"#);
    bus.sends(worker, &format!(r#"{{"id":{turn},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(ann)["params"]["n"], 1);
    assert_eq!(bus.sees_json(ann)["id"], 1);
    assert!(bus.is_closed(ann));
    bus.asks(ben, 9, "session/resume", &session);
    assert_eq!(bus.sees_json(ben)["params"]["n"], 1, "it may not have reached the other client");
    assert_eq!(bus.sees_json(ben)["id"], 9);
}

#[test]
fn who_knows_the_id_of_a_session_takes_it_up_from_a_connection_that_may_be_closed() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben, worker) = (bus.client(), bus.client(), bus.worker(0));
    let session = bus.opens(ann, worker, "s1");
    bus.asks(ann, 1, "session/prompt", &session);
    bus.sees_request(worker, "session/prompt");
    bus.asks(ben, 1, "session/resume", &session);
    bus.sees_error(ben, json!(1), "unknown_session");
    bus.handles(Event::Ended(ann));
    bus.asks(ben, 2, "session/resume", &session);
    assert_eq!(bus.sees_json(ben)["id"], 2);
}

#[test]
fn what_an_agent_says_to_an_mcp_server_goes_to_the_client_that_has_named_it() {
    let mut bus = TestBus::with_workers(1);
    let (ann, ben) = (bus.acp_client(), bus.acp_client());
    let worker = bus.worker(0);
    bus.initializes(worker);
    let servers = |names: &[&str]| {
        let servers: Vec<Value> =
            names.iter().map(|name| json!({"type": "acp", "name": "n", "serverId": name})).collect();
        json!({"id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": servers}}).to_string()
    };
    let mut named = Vec::new();
    for (client, names, agent) in [(ann, ["of-ann", "both"], "a"), (ben, ["of-ben", "both"], "b")] {
        bus.sees(client);
        bus.sends(client, &servers(&names));
        named.push(bus.answers(worker, "session/new", &json!({"sessionId": agent}).to_string()));
        bus.sees(client);
    }
    let message = |server: &str, id: &str| {
        let params = json!({"serverId": server, "requestId": "r1", "method": "tools/list"});
        format!(r#"{{{id}"method":"mcp/message","params":{params}}}"#)
    };
    bus.sends(worker, &message("of-ann", r#""id":5,"#));
    let (id, request) = bus.sees_request(ann, "mcp/message");
    assert_eq!(request["params"]["requestId"], "r1");
    bus.sends(ann, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 5);
    bus.sends(worker, &message("of-ben", ""));
    assert_eq!(bus.sees_json(ben)["params"]["serverId"], "of-ben");
    // Where two have given one name, the agent knows the second by another.
    bus.sends(worker, &message("both", r#""id":6,"#));
    assert_eq!(bus.sees_request(ann, "mcp/message").1["params"]["serverId"], "both");
    let other = named[1]["params"]["mcpServers"][1]["serverId"].as_str().expect("a name").to_owned();
    assert_eq!(named[1]["params"]["mcpServers"][0]["serverId"], "of-ben");
    assert_ne!(other, "both");
    bus.sends(worker, &message(&other, r#""id":7,"#));
    let (id, request) = bus.sees_request(ben, "mcp/message");
    assert_eq!(
        (&request["params"]["serverId"], &request["params"]["requestId"]),
        (&json!("both"), &json!("r1"))
    );
    bus.sends(ben, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    assert_eq!(bus.sees_json(worker)["id"], 7);
    bus.sends(ben, &message("both", ""));
    assert_eq!(bus.sees_json(worker)["params"]["serverId"], *other);
    bus.sends(ann, &message("both", ""));
    assert_eq!(bus.sees_json(worker)["params"]["serverId"], "both");
    // What a client says of its server goes to the process that knows the server.
    bus.sends(ben, &message("of-ben", ""));
    assert_eq!(bus.sees_json(worker)["params"]["serverId"], "of-ben");
    // Nobody who comes later is told.
    let late = bus.acp_client();
    bus.sees(late);
    for client in [ann, ben, late] {
        bus.sees_nothing(client);
    }
    bus.handles(Event::Broken(ann));
    while bus.unseen.get(&worker).is_some_and(|lines| !lines.is_empty()) {
        bus.sees(worker);
    }
    bus.sends(worker, &message(&other, ""));
    assert_eq!(bus.sees_json(ben)["params"]["serverId"], "both");
    // The name of who has left is nobody's, and the one who is left has a server that it calls so.
    bus.sends(worker, &message("both", r#""id":8,"#));
    assert_eq!(bus.sees_json(worker)["error"]["code"], -32600);
    bus.sees_nothing(ben);
}

/// A request to open a session with an MCP server of this name.
fn offers(server: &str) -> String {
    let server = json!({"type": "acp", "name": "n", "serverId": server});
    json!({"id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": [server]}}).to_string()
}

fn server_in(line: &Value) -> &str {
    line["params"]["mcpServers"][0]["serverId"].as_str().expect("a name")
}

#[test]
fn a_session_that_goes_to_another_process_does_not_take_the_name_of_a_server_there() {
    const CAN: &str = r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}"#;
    let mut bus = TestBus::with_workers(2);
    let clients = [bus.acp_client(), bus.acp_client()];
    let workers = [bus.worker(0), bus.worker(1)];
    bus.initializes_with(workers[0], CAN);
    let mut sessions = Vec::new();
    for (at, client) in clients.into_iter().enumerate() {
        bus.sees(client);
        bus.sends(client, &offers("tools"));
        if at == 1 {
            bus.initializes_with(workers[1], CAN);
        }
        let (id, request) = bus.sees_request(workers[at], "session/new");
        assert_eq!(server_in(&request), "tools", "each is the first in its process");
        bus.sends(workers[at], &format!(r#"{{"id":{id},"result":{{"sessionId":"s{at}"}}}}"#));
        sessions.push(bus.sees_json(client)["result"]["sessionId"].as_str().expect("an id").to_owned());
    }
    bus.crashes(1);
    bus.asks(clients[1], 2, "session/prompt", &sessions[1]);
    let resume = bus.answers(workers[0], "session/resume", "{}");
    let other = server_in(&resume).to_owned();
    assert_ne!(other, "tools");
    let params = json!({"serverId": other, "requestId": "r"});
    bus.sends(workers[0], &json!({"method": "mcp/message", "params": params}).to_string());
    assert_eq!(bus.sees_json(clients[1])["params"]["serverId"], "tools");
    bus.sees_nothing(clients[0]);
}

#[test]
fn a_request_that_its_process_has_not_seen_names_its_server_anew_in_the_next() {
    let mut bus = TestBus::with_workers(2);
    let (ann, ben) = (bus.client(), bus.client());
    let mut asked = Vec::new();
    // Ann has a server of that name in one process. Ben's waits for the other, which does not read and dies.
    for (at, client) in [ann, ben].into_iter().enumerate() {
        let worker = bus.worker(at);
        if at == 1 {
            bus.stops_reading(worker);
        }
        bus.sends(client, &offers("tools"));
        if at == 0 {
            asked.push(bus.answers(worker, "session/new", r#"{"sessionId":"s0"}"#));
            bus.sees(client);
        }
    }
    bus.crashes(1);
    let moved = bus.answers(bus.worker(0), "session/new", r#"{"sessionId":"s1"}"#);
    assert_eq!(server_in(&asked[0]), "tools");
    assert!(server_in(&moved).starts_with("tools~"), "{moved}");
    bus.sees(ben);
    let params = json!({"serverId": server_in(&moved), "requestId": "r"});
    let worker = bus.worker(0);
    bus.sends(worker, &json!({"method": "mcp/message", "params": params}).to_string());
    assert_eq!(bus.sees_json(ben)["params"]["serverId"], "tools");
}
