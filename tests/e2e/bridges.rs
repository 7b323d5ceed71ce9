//! Tests `agent cli` with CLIs whose process stays open. Shell scripts speak their protocols.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli_agent::{Agent, pid_in, texts, wait_until_gone};
use crate::harness::{is_gone, notification, session_of, write_script};

const ID: &str = "0a0a0a0a-59e7-4350-8eaf-4835821efe65";

pub(crate) const CLAUDE: &str = include_str!("stand_ins/claude.sh");
pub(crate) const CODEX: &str = include_str!("stand_ins/codex.sh");
const THREAD: &str = "01a1dc88-0000-7000-8000-000000000001";

fn lines(folder: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(folder.join(name)).unwrap_or_default().lines().map(ToOwned::to_owned).collect()
}

/// The messages that the script has read.
pub(crate) fn received(folder: &Path) -> Vec<Value> {
    lines(folder, "stdin").iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn option(session: &str, id: &str, value: &str) -> Value {
    json!({ "sessionId": session, "configId": id, "type": "select", "value": value })
}

/// Waits for the agent's next request for permission.
pub(crate) fn next_question(agent: &mut Agent) -> Value {
    loop {
        let message = agent.read();
        if message["method"] == "session/request_permission" {
            return message;
        }
    }
}

pub(crate) fn answer_question(agent: &mut Agent, question: &Value, option: &str) {
    let outcome = match option {
        "" => json!({ "outcome": "cancelled" }),
        option => json!({ "outcome": "selected", "optionId": option }),
    };
    agent.send(
        &json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": outcome } }).to_string(),
    );
}

pub(crate) fn start(name: &str, script: &str) -> (TempDir, Agent, String) {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), name, script);
    let mut agent = Agent::start(folder.path(), &[name]);
    let session = agent.new_session(folder.path());
    (folder, agent, session)
}

#[test]
fn the_turns_of_a_session_share_one_process_that_takes_new_settings() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let commands = agent.wait_for("available_commands_update");
    assert_eq!(commands["availableCommands"][0]["description"], "Makes a plan");
    let options = agent.wait_for("config_option_update");
    assert_eq!(options["configOptions"][0]["options"][1]["value"], "big");
    let (updates, answer) = agent.turn(&session, "one");
    assert_eq!((texts(&updates).as_str(), &answer["result"]["stopReason"]), ("turn 2", &json!("end_turn")));
    assert_eq!(answer["result"]["usage"]["inputTokens"], 10);
    assert!(agent.call("session/set_config_option", option(&session, "model", "big"))["result"].is_object());
    assert!(agent.call("session/set_config_option", option(&session, "mode", "plan"))["result"].is_object());
    let (updates, _) = agent.turn(&session, "two");
    assert!(texts(&updates).starts_with("turn "), "{updates:?}");
    assert!(updates.iter().all(|update| update["sessionUpdate"] != "available_commands_update"));
    assert_eq!(lines(folder.path(), "pids").len(), 1);
    let messages = received(folder.path());
    let prompt = messages.iter().rposition(|line| line["type"] == "user").expect("a prompt");
    let requests: Vec<&Value> = messages[..prompt]
        .iter()
        .map(|line| &line["request"])
        .filter(|request| request.is_object())
        .collect();
    assert_eq!(*requests[3], json!({ "subtype": "set_model", "model": "big" }), "{messages:?}");
    assert_eq!(*requests[4], json!({ "subtype": "set_permission_mode", "mode": "plan" }));
}

#[test]
fn a_setting_reaches_the_process_during_a_turn() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let id = agent.send_prompt(&session, "WAIT");
    agent.wait_for("tool_call");
    agent.send_request("session/set_model", json!({ "sessionId": session, "modelId": "big" }));
    while agent.wait_for("agent_message_chunk")["content"]["text"] != "setting taken" {}
    agent.send(&notification("session/cancel", json!({ "sessionId": session })));
    assert_eq!(agent.read_response(id).1["result"]["stopReason"], "cancelled");
    assert!(received(folder.path()).iter().any(|line| line["request"]["subtype"] == "set_model"));
}

#[test]
fn a_setting_that_the_process_refuses_needs_a_new_process_that_resumes() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    agent.turn(&session, "one");
    agent.call("session/set_config_option", option(&session, "effort", "high"));
    agent.turn(&session, "two");
    agent.call("session/set_config_option", option(&session, "mode", "bypassPermissions"));
    // The refusal of that mode arrives during this turn at the latest.
    agent.turn(&session, "three");
    agent.turn(&session, "four");
    let args = lines(folder.path(), "args");
    assert!(args[1].contains("--effort high") && args[1].contains(&format!("--resume {ID}")), "{args:?}");
    assert!(args.last().is_some_and(|args| args.contains("--permission-mode bypassPermissions")), "{args:?}");
    assert_eq!(args.len(), 3);
    assert!(is_gone(lines(folder.path(), "pids")[0].parse().expect("a pid")));
}

#[test]
fn a_mode_that_the_cli_enters_by_itself_is_reported_and_saved() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let (updates, _) = agent.turn(&session, "AGREED");
    let mode = updates.iter().find(|update| update["sessionUpdate"] == "current_mode_update");
    assert_eq!(mode.map(|update| &update["currentModeId"]), Some(&json!("acceptEdits")), "{updates:?}");
    agent.turn(&session, "DIE");
    agent.turn(&session, "two");
    let args = lines(folder.path(), "args");
    assert!(args[1].contains("--permission-mode acceptEdits"), "{args:?}");
    assert!(received(folder.path()).iter().all(|line| line["request"]["subtype"] != "set_permission_mode"));
}

#[test]
fn a_missing_logged_out_or_silent_cli_is_reported() {
    let folder = TempDir::new().expect("a folder");
    let mut agent = Agent::start(folder.path(), &["claude", "--first-output-sec", "1"]);
    let session = agent.new_session(folder.path());
    let check_error = |answer: &Value, expected: &str| {
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(expected)), "{answer}");
    };
    check_error(&agent.turn(&session, "one").1, "npm install");
    write_script(folder.path(), "claude", CLAUDE);
    let (_, out) = agent.turn(&session, "OUT");
    assert_eq!(out["error"]["code"], -32000, "{out}");
    check_error(&out, "claude auth login");
    write_script(folder.path(), "claude", "cat > /dev/null");
    // The process starts with the session and prints nothing, so the limit for the first output applies to the turn.
    let session = agent.new_session(folder.path());
    check_error(&agent.turn(&session, "two").1, "said nothing for 1 s");
}

#[test]
fn other_mcp_servers_need_a_new_process() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    agent.turn(&session, "one");
    let same = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    agent.call("session/resume", same);
    agent.turn(&session, "two");
    let server = json!([{ "name": "s", "command": "/bin/true", "args": [], "env": [] }]);
    agent.call("session/resume", json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": server }));
    agent.turn(&session, "three");
    let args = lines(folder.path(), "args");
    assert_eq!(args.len(), 2, "{args:?}");
    assert!(args[1].contains("--mcp-config") && args[1].contains(&format!("--resume {ID}")), "{args:?}");
}

#[test]
fn the_client_decides_about_a_permission() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    for (option, behavior) in
        [("allow", "allow"), ("allow_always", "allow"), ("reject", "deny"), ("", "deny")]
    {
        let id = agent.send_prompt(&session, "ASK");
        let question = next_question(&mut agent);
        assert_eq!(question["params"]["options"].as_array().map(Vec::len), Some(3), "{question}");
        assert_eq!(question["params"]["options"][1]["name"], "Always allow all edits in this session");
        let call = &question["params"]["toolCall"];
        assert_eq!((&call["title"], &call["status"]), (&json!("wait"), &json!("pending")));
        answer_question(&mut agent, &question, option);
        let (updates, answer) = agent.read_response(id);
        let runs = updates.iter().any(|update| update["status"] == "in_progress");
        assert_eq!(runs, behavior == "allow", "{updates:?}");
        assert_eq!(
            (texts(&updates).as_str(), &answer["result"]["stopReason"]),
            ("decided", &json!("end_turn"))
        );
        let messages = received(folder.path());
        let decision = &messages.last().expect("an answer")["response"]["response"];
        assert_eq!(decision["behavior"], behavior);
        assert_eq!(decision["updatedPermissions"].is_array(), option == "allow_always");
    }
    assert_eq!(lines(folder.path(), "pids").len(), 1);
}

#[test]
fn a_plan_is_shown_and_carried_out_as_the_client_chooses() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    for (option, mode, stop) in [
        ("plan_accept_edits", "acceptEdits", "end_turn"),
        ("plan_default", "default", "end_turn"),
        ("reject", "", "cancelled"),
    ] {
        let id = agent.send_prompt(&session, "PLAN");
        let question = next_question(&mut agent);
        assert_eq!(question["params"]["options"].as_array().map(Vec::len), Some(3), "{question}");
        let call = &question["params"]["toolCall"];
        assert_eq!(call["title"], "Approve Plan");
        assert_eq!(call["content"][0]["content"]["text"], "# First");
        answer_question(&mut agent, &question, option);
        assert_eq!(agent.read_response(id).1["result"]["stopReason"], stop);
        let messages = received(folder.path());
        let decision = &messages.last().expect("an answer")["response"]["response"];
        assert_eq!(decision["updatedPermissions"][0]["mode"].as_str().unwrap_or_default(), mode);
    }
}

#[test]
fn a_cancel_is_a_message_and_the_process_stays() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    for word in ["WAIT", "ASK"] {
        let id = agent.send_prompt(&session, word);
        match word {
            "ASK" => drop(next_question(&mut agent)),
            _ => drop(agent.wait_for("tool_call")),
        }
        agent.send(&notification("session/cancel", json!({ "sessionId": session })));
        let (updates, answer) = agent.read_response(id);
        assert_eq!(answer["result"]["stopReason"], "cancelled");
        assert!(updates.iter().any(|update| update["status"] == "failed"), "{word}");
    }
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
    assert_eq!(lines(folder.path(), "pids").len(), 1);
}

#[test]
fn a_process_that_ignores_the_cancel_is_killed_with_its_tools() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let id = agent.send_prompt(&session, "DEAF");
    agent.wait_for("tool_call");
    agent.send(&notification("session/cancel", json!({ "sessionId": session })));
    assert_eq!(agent.read_response(id).1["result"]["stopReason"], "cancelled");
    assert!(is_gone(pid_in(&folder.path().join("tool"))), "the tool still runs");
    assert!(is_gone(pid_in(&folder.path().join("pids"))), "the CLI still runs");
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
    assert!(lines(folder.path(), "args")[1].contains(&format!("--resume {ID}")));
}

#[test]
fn an_exit_during_a_turn_is_an_error_and_one_between_turns_is_not() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let (updates, answer) = agent.turn(&session, "DIE");
    assert_eq!(answer["error"]["code"], -32603);
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("it hurts")), "{answer}");
    assert!(updates.iter().any(|update| update["status"] == "failed"), "{updates:?}");
    assert_eq!(agent.turn(&session, "LEAVE").1["result"]["stopReason"], "end_turn");
    wait_until_gone(lines(folder.path(), "pids")[1].parse().expect("a pid"));
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
    let third: u32 = lines(folder.path(), "pids")[2].parse().expect("a pid");
    kill(Pid::from_raw(third as i32), Signal::SIGKILL).expect("it lives");
    wait_until_gone(third);
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
    let args = lines(folder.path(), "args");
    assert_eq!(args.len(), 4, "{args:?}");
    assert!(args[1..].iter().all(|args| args.contains(&format!("--resume {ID}"))), "{args:?}");
}

#[test]
fn a_prompt_that_an_exiting_process_did_not_read_goes_to_the_next() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    agent.turn(&session, "one");
    fs::write(folder.path().join("dying"), "").expect("a file");
    assert_eq!(agent.turn(&session, "two").1["result"]["stopReason"], "end_turn");
    assert_eq!(lines(folder.path(), "args").len(), 2);
}

#[test]
fn a_process_that_does_not_start_is_retried_and_then_reported() {
    let (folder, mut agent, session) =
        start("codex", "echo x >> $HOME/starts; echo 'no database' >&2; exit 1");
    let (_, answer) = agent.turn(&session, "one");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("no database")), "{answer}");
    assert!(lines(folder.path(), "starts").len() >= 3);
    write_script(
        folder.path(),
        "codex",
        &format!("[ -e $HOME/made ] || {{ > $HOME/made; exit 1; }}\n{CODEX}"),
    );
    assert_eq!(agent.turn(&session, "two").1["result"]["stopReason"], "end_turn");
}

#[test]
fn a_session_that_the_cli_has_lost_is_replaced_only_if_it_has_no_answer() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    fs::write(folder.path().join("lost"), "").expect("a file");
    agent.turn(&session, "DIE");
    let (_, answer) = agent.turn(&session, "one");
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(answer["result"]["_meta"]["cliSessionId"], ID);
    let resumed: Vec<bool> =
        lines(folder.path(), "args").iter().map(|args| args.contains("--resume")).collect();
    assert_eq!(resumed, [false, true, false]);
    agent.turn(&session, "DIE");
    let (_, lost) = agent.turn(&session, "two");
    assert!(lost["error"]["message"].as_str().is_some_and(|text| text.contains("no longer knows")), "{lost}");
}

#[test]
fn a_session_that_ends_takes_its_process_and_tools_along() {
    for how in ["close", "delete", "eof", "idle"] {
        let folder = TempDir::new().expect("a folder");
        write_script(folder.path(), "claude", CLAUDE);
        let idle = if how == "idle" { "1" } else { "0" };
        let mut agent = Agent::start(folder.path(), &["claude", "--idle-sec", idle]);
        let session = agent.new_session(folder.path());
        agent.turn(&session, "SPAWN");
        let (leader, tool) = (pid_in(&folder.path().join("pids")), pid_in(&folder.path().join("tool")));
        match how {
            "eof" => drop(agent.stdin.take()),
            "idle" => {}
            how => {
                agent.call(&format!("session/{how}"), json!({ "sessionId": session }));
            }
        }
        wait_until_gone(leader);
        wait_until_gone(tool);
        if how == "idle" {
            assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
            assert!(lines(folder.path(), "args")[1].contains(&format!("--resume {ID}")));
        }
    }
}

#[test]
fn garbage_and_results_of_background_work_are_ignored() {
    let (_folder, mut agent, session) = start("claude", CLAUDE);
    let (updates, answer) = agent.turn(&session, "GARBAGE");
    assert_eq!((texts(&updates).as_str(), &answer["result"]["stopReason"]), ("turn 2", &json!("end_turn")));
    // A background task has its own result, which does not end the waiting turn.
    let (updates, _) = agent.turn(&session, "BACKGROUND");
    assert_eq!(texts(&updates), "oldturn 3");
}

#[test]
fn a_prompt_has_images_files_and_links() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let file = json!({ "uri": "file:///a.txt", "text": "inside", "mimeType": "text/plain" });
    let prompt = json!([
        { "type": "text", "text": "look" },
        { "type": "image", "mimeType": "image/png", "data": "QUJD" },
        { "type": "resource", "resource": file },
    ]);
    let answer = agent.call("session/prompt", json!({ "sessionId": session, "prompt": prompt }));
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    let messages = received(folder.path());
    let content = &messages.last().expect("a prompt")["message"]["content"];
    assert_eq!(content[1]["source"], json!({ "type": "base64", "media_type": "image/png", "data": "QUJD" }));
    assert_eq!(content[2]["text"], "[file:///a.txt]\ninside");
    let link = json!([{ "type": "resource_link", "name": "p", "uri": "file:///etc/passwd" }]);
    let answer = agent.call("session/prompt", json!({ "sessionId": session, "prompt": link }));
    assert_eq!(answer["result"]["stopReason"], "end_turn", "an editor links to files anywhere");
    let messages = received(folder.path());
    let content = &messages.last().expect("a prompt")["message"]["content"];
    assert_eq!(content[0]["text"], "[p] file:///etc/passwd");
}

#[test]
fn a_fork_and_its_source_both_continue() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    agent.turn(&session, "one");
    let params = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    let fork = session_of(&agent.call("session/fork", params)["result"]);
    assert_ne!(fork, session);
    assert_eq!(agent.turn(&fork, "two").1["result"]["stopReason"], "end_turn");
    assert_eq!(agent.turn(&session, "three").1["result"]["stopReason"], "end_turn");
    let args = lines(folder.path(), "args");
    assert_eq!(args.len(), 2, "{args:?}");
    assert!(args[1].ends_with(&format!("--resume {ID} --fork-session")), "{args:?}");
    let loaded = agent
        .send_request("session/load", json!({ "sessionId": fork, "cwd": folder.path(), "mcpServers": [] }));
    assert_eq!(agent.read_response(loaded).0[0]["content"]["text"], "one");
}

#[test]
fn mcp_servers_are_in_a_file_and_never_in_an_argument() {
    let folder = TempDir::new().expect("a folder");
    let copy = "for one in \"$@\"; do [ \"$last\" = --mcp-config ] && cat $one > $HOME/mcp; last=$one; done";
    write_script(folder.path(), "claude", &format!("{copy}\n{CLAUDE}"));
    let mut agent = Agent::start(folder.path(), &["claude"]);
    let env = json!([{ "name": "K", "value": "hush" }]);
    let secret = json!([{ "name": "s", "command": "/bin/true", "args": [], "env": env }]);
    let opened = agent.call("session/new", json!({ "cwd": folder.path(), "mcpServers": secret }));
    agent.turn(&session_of(&opened["result"]), "go");
    let seen: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("mcp")).expect("a file")).expect("JSON");
    assert_eq!(seen["mcpServers"]["s"]["env"], json!({ "K": "hush" }));
    assert!(!lines(folder.path(), "args")[0].contains("hush"));
}

/// The params of all requests with this method that the script has read.
fn requests(folder: &Path, method: &str) -> Vec<Value> {
    let messages = received(folder).into_iter();
    messages.filter(|message| message["method"] == method).map(|message| message["params"].clone()).collect()
}

#[test]
fn codex_turns_share_one_process_and_the_next_turn_has_new_settings() {
    let (folder, mut agent, session) = start("codex", CODEX);
    let options = agent.wait_for("config_option_update");
    assert_eq!(options["configOptions"][0]["options"][1]["value"], "big");
    let (updates, answer) = agent.turn(&session, "one");
    assert_eq!((texts(&updates).as_str(), &answer["result"]["stopReason"]), ("turn 1", &json!("end_turn")));
    assert_eq!(answer["result"]["usage"]["totalTokens"], 11);
    assert_eq!(answer["result"]["_meta"]["cliSessionId"], THREAD);
    agent.call("session/set_config_option", option(&session, "model", "big"));
    agent.call("session/set_config_option", option(&session, "effort", "huge"));
    agent.call("session/set_config_option", option(&session, "mode", "full-access"));
    let (updates, answer) = agent.turn(&session, "two");
    assert_eq!(texts(&updates), "turn 2");
    assert_eq!(answer["result"]["usage"]["totalTokens"], 11, "of this turn, not of the thread");
    agent.call("session/set_config_option", option(&session, "model", "default"));
    agent.turn(&session, "three");
    assert_eq!(lines(folder.path(), "pids").len(), 1);
    let start = &requests(folder.path(), "thread/start")[0];
    assert_eq!(
        (&start["approvalPolicy"], &start["sandbox"]),
        (&json!("on-request"), &json!("workspace-write"))
    );
    let turns = requests(folder.path(), "turn/start");
    assert!(turns[0]["sandboxPolicy"].is_null());
    assert_eq!((&turns[1]["model"], &turns[1]["effort"]), (&json!("big"), &json!("huge")));
    assert_eq!(turns[1]["approvalPolicy"], "never");
    assert_eq!(turns[1]["sandboxPolicy"], json!({ "type": "dangerFullAccess" }));
    assert_eq!(turns[2]["model"], "usual");
}

#[test]
fn the_client_decides_about_a_codex_approval() {
    let (folder, mut agent, session) = start("codex", CODEX);
    let rule = json!({ "acceptWithExecpolicyAmendment": { "execpolicy_amendment": ["wait"] } });
    for (option, decision, stop, status) in [
        ("allow", json!("accept"), "end_turn", "completed"),
        ("allow_always", rule, "end_turn", "completed"),
        ("reject", json!("decline"), "end_turn", "failed"),
        ("", json!("cancel"), "cancelled", "failed"),
    ] {
        let id = agent.send_prompt(&session, "ASK");
        let question = next_question(&mut agent);
        assert_eq!(question["params"]["toolCall"]["title"], "wait", "{question}");
        answer_question(&mut agent, &question, option);
        let (updates, answer) = agent.read_response(id);
        assert_eq!(answer["result"]["stopReason"], stop, "{answer}");
        assert!(updates.iter().any(|update| update["status"] == status), "{updates:?}");
        assert_eq!(received(folder.path()).last().expect("an answer")["result"]["decision"], decision);
    }
}

#[test]
fn the_client_decides_about_a_tool_of_an_mcp_server_of_codex() {
    let (folder, mut agent, session) = start("codex", CODEX);
    for (option, action, persist, status) in [
        ("allow", "accept", Value::Null, "completed"),
        ("allow_session", "accept", json!({ "persist": "session" }), "completed"),
        ("allow_always", "accept", json!({ "persist": "always" }), "completed"),
        ("reject", "decline", Value::Null, "failed"),
        ("", "cancel", Value::Null, "failed"),
    ] {
        let id = agent.send_prompt(&session, "TOOL");
        let question = next_question(&mut agent);
        assert_eq!(question["params"]["toolCall"]["title"], "probe.delete", "{question}");
        assert_eq!(question["params"]["toolCall"]["rawInput"], json!({ "all": true }), "{question}");
        answer_question(&mut agent, &question, option);
        let (updates, answer) = agent.read_response(id);
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert!(updates.iter().any(|update| update["status"] == status), "{updates:?}");
        let heard = received(folder.path()).pop().expect("an answer");
        assert_eq!((&heard["result"]["action"], &heard["result"]["_meta"]), (&json!(action), &persist));
    }
}

#[test]
fn codex_is_interrupted_by_a_message_and_killed_if_it_ignores_it() {
    let (folder, mut agent, session) = start("codex", CODEX);
    for word in ["WAIT", "ASK", "DEAF"] {
        let id = agent.send_prompt(&session, word);
        match word {
            "ASK" => drop(next_question(&mut agent)),
            _ => drop(agent.wait_for("tool_call")),
        }
        agent.send(&notification("session/cancel", json!({ "sessionId": session })));
        let (updates, answer) = agent.read_response(id);
        assert_eq!(answer["result"]["stopReason"], "cancelled");
        assert!(updates.iter().any(|update| update["status"] == "failed"), "{word}");
        let is_open =
            lines(folder.path(), "pids").len() == 1 && !is_gone(pid_in(&folder.path().join("pids")));
        assert_eq!(is_open, word != "DEAF");
    }
    assert!(is_gone(pid_in(&folder.path().join("tool"))), "the tool still runs");
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
    assert_eq!(requests(folder.path(), "thread/resume")[0]["threadId"], THREAD);
}

#[test]
fn codex_resumes_after_an_exit_unless_it_has_lost_the_thread() {
    let (folder, mut agent, session) = start("codex", CODEX);
    let (updates, answer) = agent.turn(&session, "DIE");
    let message = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("it hurts") && !message.contains('\u{1b}'), "{answer}");
    assert!(updates.iter().any(|update| update["status"] == "failed"), "{updates:?}");
    assert_eq!(agent.turn(&session, "LEAVE").1["result"]["stopReason"], "end_turn");
    wait_until_gone(lines(folder.path(), "pids")[1].parse().expect("a pid"));
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
    assert_eq!(requests(folder.path(), "thread/resume").len(), 2);
    fs::write(folder.path().join("lost"), "").expect("a file");
    agent.turn(&session, "DIE");
    let (_, lost) = agent.turn(&session, "again");
    assert!(lost["error"]["message"].as_str().is_some_and(|text| text.contains("no longer knows")), "{lost}");
}

#[test]
fn a_logged_out_codex_is_reported_and_garbage_ignored() {
    let (_folder, mut agent, session) = start("codex", CODEX);
    let (_, out) = agent.turn(&session, "OUT");
    assert_eq!(out["error"]["code"], -32000, "{out}");
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("codex login")), "{out}");
    assert_eq!(texts(&agent.turn(&session, "GARBAGE").0), "turn 2");
    assert_eq!(texts(&agent.turn(&session, "OTHERS").0), "turn 3");
}

#[test]
fn codex_forks_takes_mcp_servers_and_ends_with_its_session() {
    let (folder, mut agent, session) = start("codex", CODEX);
    agent.turn(&session, "SPAWN");
    let env = json!([{ "name": "K", "value": "hush" }]);
    let server = json!([{ "name": "my server", "command": "/bin/true", "args": [], "env": env }]);
    let params = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": server });
    let fork = session_of(&agent.call("session/fork", params)["result"]);
    let answer = agent.turn(&fork, "two").1;
    assert_eq!(answer["result"]["_meta"]["cliSessionId"], "01a1dc88-0000-7000-8000-000000000002");
    let forked = &requests(folder.path(), "thread/fork")[0];
    assert_eq!(forked["threadId"], THREAD);
    assert_eq!(forked["config"]["mcp_servers"]["my_server"]["env"], json!({ "K": "hush" }));
    agent.call("session/close", json!({ "sessionId": session }));
    wait_until_gone(pid_in(&folder.path().join("tool")));
    wait_until_gone(lines(folder.path(), "pids")[0].parse().expect("a pid"));
    assert_eq!(agent.turn(&fork, "three").1["result"]["stopReason"], "end_turn");
}
