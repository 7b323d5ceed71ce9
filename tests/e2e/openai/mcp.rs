//! MCP servers of a session, whose tools the model uses.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::mcp_server::{MCP_KEY, McpServer};
use super::tools::{call, choice};
use super::{KEY, Setup};
use crate::harness::{is_gone, session_of, write_script};

const TOKEN: &str = "mcp-token-never-shown";

/// A server that a script plays, in a folder of its own.
fn script() -> (TempDir, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    write_script(folder.path(), "server", include_str!("../stand_ins/mcp.sh"));
    let env = json!([{ "name": "FOLDER", "value": folder.path() }, { "name": "TOKEN", "value": TOKEN }]);
    let server =
        json!({ "name": "my tools", "command": folder.path().join("server"), "args": [], "env": env });
    (folder, server)
}

fn pid_of(folder: &Path) -> u32 {
    fs::read_to_string(folder.join("pid")).expect("a pid").trim().parse().expect("a number")
}

fn what_it_read(folder: &Path) -> String {
    fs::read_to_string(folder.join("read")).unwrap_or_default()
}

/// The names of the tools that the model is offered.
fn names(body: &Value) -> Vec<&str> {
    let tools = body["tools"].as_array().map_or(&[][..], Vec::as_slice);
    tools.iter().map(|tool| tool["function"]["name"].as_str().expect("a name")).collect()
}

impl Setup {
    fn session_with_mcp(&mut self, servers: &[Value]) -> String {
        self.call("initialize", json!({ "protocolVersion": 1 }));
        session_of(&self.call("session/new", json!({ "cwd": "/work", "mcpServers": servers })))
    }
}

#[test]
fn tools_of_an_mcp_server_are_offered_and_called_if_the_user_allows_it() {
    let (folder, server) = script();
    let mut setup = Setup::new();
    let initialized = setup.call("initialize", json!({ "protocolVersion": 1 }));
    let capabilities = &initialized["agentCapabilities"]["mcpCapabilities"];
    assert_eq!(capabilities, &json!({ "http": true, "sse": true }));
    let session = setup.session_with_mcp(&[server]);
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    let offered = ["my_tools__echo", "my_tools__look", "my_tools__hang", "my_tools__crash"];
    assert_eq!(names(&exchange.body), offered);
    let function = &exchange.body["tools"][0]["function"];
    assert_eq!(function["description"], "Echoes.");
    assert_eq!(function["parameters"]["properties"]["text"]["type"], "string");
    let wanted = call("c1", "my_tools__echo", &json!({ "text": "hi" }));
    exchange.streams(&[json!({ "tool_calls": [wanted] })], "tool_calls");
    let (updates, question) = setup.until_asked("session/request_permission");
    let told = updates.iter().find(|update| update["sessionUpdate"] == "tool_call").expect("a tool call");
    assert_eq!(
        (&told["title"], &told["rawInput"]),
        (&json!("my tools: Says it again"), &json!({ "text": "hi" }))
    );
    assert_eq!(told["status"], "pending");
    let asked = &question["params"]["toolCall"];
    assert_eq!((&asked["rawInput"], &asked["kind"]), (&json!({ "text": "hi" }), &json!("other")));
    let always = &question["params"]["options"][1]["name"];
    assert_eq!(always, "Always allow my tools: Says it again in this session");
    assert!(!what_it_read(folder.path()).contains("tools/call"), "nothing is called without permission");
    setup.client.answers(&question, choice("allow_once"));
    let result = setup.tool_result();
    assert_eq!(result, "echo: hi\n[image, image/png, about 3 bytes, shown to the user only]");
    let seen = setup.until_response(id);
    let calls: Vec<_> =
        seen.updates.iter().filter(|update| update["sessionUpdate"] == "tool_call_update").collect();
    assert_eq!((&calls[0]["status"], &calls[1]["status"]), (&json!("in_progress"), &json!("completed")));
    assert_eq!(calls[1]["content"][0]["content"]["text"], "echo: hi");
    assert_eq!(calls[1]["content"][1]["content"]["type"], "image");
    // A failure of the tool goes to the model.
    let id = setup.prompts(&session, "look");
    setup.model_calls(&[call("c2", "my_tools__look", &json!({}))]);
    setup.answers("session/request_permission", choice("allow_once"));
    assert_eq!(setup.tool_result(), "Error: nothing there");
    setup.until_response(id);
    let id = setup.prompts(&session, "no");
    setup.model_calls(&[call("c3", "my_tools__echo", &json!({}))]);
    setup.answers("session/request_permission", choice("reject_once"));
    assert_eq!(setup.tool_result(), "Error: the user does not allow it");
    setup.until_response(id);
}

#[test]
fn without_tools_no_server_is_started() {
    let (folder, server) = script();
    let mut setup = Setup::with(json!({ "OPENAI_TOOLS": "off" }), &[]);
    let session = setup.session_with_mcp(&[server]);
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.body.get("tools"), None);
    exchange.streams(&[], "stop");
    setup.until_response(id);
    assert!(!folder.path().join("pid").exists());
}

#[test]
fn secrets_of_a_server_are_in_no_log_and_it_does_not_get_the_models_key() {
    let (_folder, server) = script();
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[server]);
    setup.says(&session, "go", "yes");
    setup.bus.log_has("MCP server my tools: the token is ***, the key of the model ''");
    let log = setup.bus.log.text();
    assert!(!log.contains(TOKEN) && !log.contains(KEY), "a secret is in the log");
}

#[test]
fn a_read_only_session_is_offered_what_only_reads_and_auto_does_not_ask() {
    let (_folder, server) = script();
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[server]);
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "read" }));
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(names(&exchange.body), ["my_tools__look"]);
    let wanted = call("c1", "my_tools__echo", &json!({ "text": "hi" }));
    exchange.streams(&[json!({ "tool_calls": [wanted] })], "tool_calls");
    assert_eq!(setup.tool_result(), "Error: there is no tool called my_tools__echo");
    setup.until_response(id);
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = setup.prompts(&session, "go");
    setup.model_calls(&[call("c2", "my_tools__echo", &json!({ "text": "hi" }))]);
    assert!(setup.tool_result().starts_with("echo: hi"));
    setup.until_response(id);
}

#[test]
fn a_server_that_does_not_work_is_named_and_left_out() {
    let (_folder, server) = script();
    let missing = json!({ "name": "missing", "command": "/no/such/server", "args": [], "env": [] });
    let broken_folder = tempfile::tempdir().expect("a folder");
    write_script(broken_folder.path(), "broken", "echo \"no config for $TOKEN\" >&2; exit 3");
    let env = json!([{ "name": "TOKEN", "value": TOKEN }]);
    let command = broken_folder.path().join("broken");
    let broken = json!({ "name": "broken", "command": command, "args": [], "env": env });
    let web = json!({ "type": "http", "name": "web", "url": "http://127.0.0.1:1/mcp", "headers": [] });
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[missing, broken, web, server]);
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(names(&exchange.body).len(), 4, "those of the one that works");
    exchange.streams(&[json!({ "content": "yes" })], "stop");
    let seen = setup.until_response(id);
    let told = seen.texts("agent_thought_chunk");
    let begins = "The MCP server missing is not used: /no/such/server cannot be started: No such file";
    assert!(told.starts_with(begins), "{told}");
    assert!(told.contains("The MCP server broken is not used: "), "{told}");
    assert!(told.contains("its last words: no config for ***.\n"), "{told}");
    assert!(told.contains("The MCP server web is not used: ") && told.contains("refused"), "{told}");
    assert_eq!(seen.said(), "yes");
    assert_eq!(setup.says(&session, "again", "yes").texts("agent_thought_chunk"), "", "it is told once");
}

#[test]
fn a_server_that_ends_fails_its_calls_and_the_session_goes_on() {
    let (_folder, server) = script();
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[server]);
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = setup.prompts(&session, "go");
    setup.model_calls(&[call("c1", "my_tools__crash", &json!({}))]);
    assert!(setup.tool_result().starts_with("Error: "));
    // Its end is known a moment later, in this turn or in the next.
    let mut told = setup.until_response(id).texts("agent_thought_chunk");
    while told.is_empty() {
        let seen = setup.says(&session, "go", "yes");
        assert_eq!(seen.said(), "yes");
        told = seen.texts("agent_thought_chunk");
    }
    assert_eq!(told, "The MCP server my tools is not used: it has ended; its last words: out of memory.\n");
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(exchange.body.get("tools"), None);
    exchange.streams(&[], "stop");
    setup.until_response(id);
}

#[test]
fn a_cancel_reaches_the_server() {
    let (folder, server) = script();
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[server]);
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = setup.prompts(&session, "go");
    setup.model_calls(&[call("c1", "my_tools__hang", &json!({}))]);
    setup.bus.until("the call is there", || what_it_read(folder.path()).contains("\"hang\""));
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    setup
        .bus
        .until("the cancel is there", || what_it_read(folder.path()).contains("notifications/cancelled"));
    assert_eq!(setup.says(&session, "on", "yes").said(), "yes");
}

#[test]
fn a_prompt_that_waits_for_a_server_says_so_and_can_be_cancelled() {
    let (folder, server) = script();
    write_script(folder.path(), "server", "echo $$ > \"$FOLDER/pid\"; exec sleep 1000");
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[server]);
    let id = setup.prompts(&session, "go");
    let told = setup.hears_update("agent_thought_chunk");
    assert_eq!(told["content"]["text"], "Waiting for MCP servers to start: my tools.\n");
    setup.server.is_not_asked_again();
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    let pid = pid_of(folder.path());
    setup.call("session/close", json!({ "sessionId": session }));
    setup.bus.until("the server has ended", || is_gone(pid));
}

#[test]
fn servers_end_with_their_session_and_come_back_with_it() {
    let (folder, server) = script();
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(std::slice::from_ref(&server));
    setup.says(&session, "go", "yes");
    let first = pid_of(folder.path());
    setup.call("session/close", json!({ "sessionId": session }));
    setup.bus.until("the server has ended", || is_gone(first));
    let load = json!({ "sessionId": session, "cwd": "/work", "mcpServers": [server] });
    setup.call("session/load", load.clone());
    setup.says(&session, "go", "yes");
    let second = pid_of(folder.path());
    assert_ne!(second, first);
    // A session that is open keeps its servers, unless the client names others.
    setup.call("session/load", load);
    setup.says(&session, "go", "yes");
    assert_eq!(pid_of(folder.path()), second);
    setup.call("session/load", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] }));
    setup.bus.until("the server has ended", || is_gone(second));
}

#[test]
fn a_server_that_has_failed_is_tried_again_when_the_session_is_loaded() {
    let (folder, server) = script();
    let script = include_str!("../stand_ins/mcp.sh");
    let late = format!("[ -e \"$FOLDER/there\" ] || exit 1\n{script}");
    write_script(folder.path(), "server", &late);
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(std::slice::from_ref(&server));
    let told = setup.says(&session, "go", "yes").texts("agent_thought_chunk");
    assert!(told.contains("The MCP server my tools is not used"), "{told}");
    fs::write(folder.path().join("there"), "").expect("a file");
    setup.call("session/load", json!({ "sessionId": session, "cwd": "/work", "mcpServers": [server] }));
    setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(names(&exchange.body).len(), 4);
    exchange.streams(&[], "stop");
}

#[test]
fn a_server_that_ignores_its_end_is_killed_with_all_it_has_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let deaf = "trap '' TERM HUP; (trap '' TERM; exec sleep 1000) & echo $! > \"$FOLDER/child\"";
    let script = include_str!("../stand_ins/mcp.sh");
    write_script(folder.path(), "server", &format!("{deaf}\n{script}\nexec sleep 1000"));
    let env = json!([{ "name": "FOLDER", "value": folder.path() }]);
    let server = json!({ "name": "deaf", "command": folder.path().join("server"), "args": [], "env": env });
    let mut setup = Setup::new();
    let session = setup.session_with_mcp(&[server]);
    setup.says(&session, "go", "yes");
    let child = fs::read_to_string(folder.path().join("child")).expect("a pid").trim().parse().unwrap();
    setup.call("session/close", json!({ "sessionId": session }));
    let pid = pid_of(folder.path());
    setup.bus.until("both have ended", || is_gone(pid) && is_gone(child));
}

#[test]
fn servers_are_reached_over_http_and_sse_with_their_headers() {
    let mcp = McpServer::start();
    let mut setup = Setup::new();
    let headers = json!([{ "name": "Authorization", "value": MCP_KEY }]);
    let server = |kind: &str, path: &str, headers: &Value| {
        let url = format!("{}/{path}", mcp.url);
        json!({ "type": kind, "name": path, "url": url, "headers": headers })
    };
    let no_key = json!([{ "name": "X-Key", "value": "another-key-never-shown" }]);
    let servers = [
        server("http", "mcp", &headers),
        server("http", "old", &headers),
        server("sse", "sse", &headers),
        server("http", "mcp", &no_key),
    ];
    let session = setup.session_with_mcp(&servers);
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert_eq!(names(&exchange.body), ["mcp__add", "old__add", "sse__add"]);
    let calls: Vec<_> = names(&exchange.body)
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let mut call = call(&format!("c{at}"), name, &json!({ "a": 40, "b": at }));
            call["index"] = json!(at);
            call
        })
        .collect();
    exchange.streams(&[json!({ "tool_calls": calls })], "tool_calls");
    let sent = setup.server.says("done");
    let results: Vec<_> =
        sent.iter().filter(|message| message["role"] == "tool").map(|message| &message["content"]).collect();
    assert_eq!(results, ["40", "41", "42"]);
    let told = setup.until_response(id).texts("agent_thought_chunk");
    assert!(told.contains("HTTP 401") && !told.contains("never-shown"), "{told}");
    let id = setup.prompts(&session, "fail");
    setup.model_calls(&[call("c9", "mcp__add", &json!({ "fail": true }))]);
    let result = setup.tool_result();
    assert!(result.contains("HTTP 500") && !result.contains("never-shown"), "{result}");
    setup.until_response(id);
    assert!(!setup.bus.log.text().contains("never-shown"));
    for seen in
        ["GET /sse", "POST /messages?session=1 tools/call", "POST /mcp tools/call", "POST /old initialize"]
    {
        assert!(mcp.seen().iter().any(|line| line == seen), "{seen}: {:?}", mcp.seen());
    }
    setup.call("session/close", json!({ "sessionId": session }));
    setup.bus.until("the session of the server is deleted", || {
        mcp.seen().iter().any(|line| line.starts_with("DELETE /mcp"))
    });
}
