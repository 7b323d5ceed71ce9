//! Tests that `agent cli` lists and loads sessions that a user began at a terminal, without the adapter.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli_agent::{Agent, texts};
use crate::harness::{PATIENCE, write_script};

const CLAUDE: &str = include_str!("stand_ins/claude.sh");
const CODEX: &str = include_str!("stand_ins/codex.sh");
/// A session of claude in the folder /work: two prompts, and one that was taken back.
const HISTORY: &str = include_str!("../../workers/tests/golden/history-claude/terminal.in");
const ID: &str = "1babcca7-64f6-404b-a91e-8b721e846ff3";
const THREAD: &str = "01a1dc88-0000-7000-8000-000000000009";

fn listed(agent: &mut Agent) -> Vec<Value> {
    let answer = agent.call("session/list", json!({}));
    answer["result"]["sessions"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

fn load(agent: &mut Agent, id: &str, cwd: &Path) -> (Vec<Value>, Value) {
    let request = json!({ "sessionId": id, "cwd": cwd, "mcpServers": [] });
    let id = agent.send_request("session/load", request);
    agent.read_response(id)
}

fn users_words(updates: &[Value]) -> Vec<&str> {
    let of_user = updates.iter().filter(|update| update["sessionUpdate"] == "user_message_chunk");
    of_user.filter_map(|update| update["content"]["text"].as_str()).collect()
}

#[test]
fn sessions_of_claude_are_listed_loaded_and_gone_on_with() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", CLAUDE);
    let project = folder.path().join(".claude/projects/-work");
    fs::create_dir_all(&project).expect("a folder");
    let file = project.join(format!("{ID}.jsonl"));
    fs::write(&file, HISTORY).expect("written");
    fs::write(project.join("agent-1.jsonl"), HISTORY).expect("written");
    fs::write(project.join("00000000-0000-0000-0000-000000000000.jsonl"), "no json\n").expect("written");
    let mut agent = Agent::start(folder.path(), &["claude"]);
    let own = agent.new_session(folder.path());
    assert_eq!(agent.turn(&own, "one").1["result"]["stopReason"], "end_turn");
    let sessions = listed(&mut agent);
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    let known = sessions.iter().find(|session| session["sessionId"] == ID).expect("it is listed");
    assert_eq!((&known["cwd"], &known["title"]), (&json!("/work"), &json!("do it")));

    let (updates, answer) = load(&mut agent, ID, folder.path());
    assert!(answer["result"]["modes"].is_object(), "{answer}");
    assert_eq!(users_words(&updates), ["do it", "again please"]);
    assert!(texts(&updates).starts_with("I run both."), "{updates:?}");
    let (_, answer) = agent.turn(ID, "go on");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let args = fs::read_to_string(folder.path().join("args")).expect("it was started");
    assert!(args.lines().any(|line| line.contains(&format!("--resume {ID}"))), "{args}");
    // What was said since is told, too, as long as the adapter lives.
    let (updates, _) = load(&mut agent, ID, folder.path());
    assert_eq!(users_words(&updates).last(), Some(&"go on"));

    assert!(agent.call("session/delete", json!({ "sessionId": ID }))["result"].is_object());
    let began = Instant::now();
    while file.exists() {
        assert!(began.elapsed() < PATIENCE, "the file of the session is still there");
    }
    assert_eq!(listed(&mut agent).len(), 1);
    for unknown in [ID, "../../etc/passwd", "none"] {
        assert_eq!(load(&mut agent, unknown, folder.path()).1["error"]["code"], -32002);
    }
}

#[test]
fn sessions_of_codex_are_listed_loaded_and_gone_on_with() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "codex", CODEX);
    let mut agent = Agent::start(folder.path(), &["codex"]);
    let own = agent.new_session(folder.path());
    assert_eq!(agent.turn(&own, "one").1["result"]["stopReason"], "end_turn");
    let sessions = listed(&mut agent);
    let ids: Vec<&str> = sessions.iter().filter_map(|session| session["sessionId"].as_str()).collect();
    assert!(ids.len() == 2 && ids.contains(&own.as_str()) && ids.contains(&THREAD), "{sessions:?}");
    let (updates, answer) = load(&mut agent, THREAD, folder.path());
    assert!(answer["result"]["modes"].is_object(), "{answer}");
    assert_eq!((users_words(&updates), texts(&updates).as_str()), (vec!["long ago"], "I was told."));
    assert_eq!(agent.turn(THREAD, "go on").1["result"]["stopReason"], "end_turn");
    let told = fs::read_to_string(folder.path().join("stdin")).expect("it was told");
    let resumed = |line: &str| line.contains("thread/resume") && line.contains(THREAD);
    assert!(told.lines().any(resumed), "{told}");
    assert_eq!(load(&mut agent, "none", folder.path()).1["error"]["code"], -32002);
}
