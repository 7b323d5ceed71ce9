//! Tests what `agent cli` offers and takes when sessions are opened: folders, models, logins and images.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli_agent::{Agent, texts};
use crate::harness::{BUS, session_of, write_script};

const CLAUDE: &str = include_str!("stand_ins/claude.sh");
const CODEX: &str = include_str!("stand_ins/codex.sh");

fn initialize(agent: &mut Agent, capabilities: Value) -> Value {
    agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities }))["result"]
        .clone()
}

fn open(agent: &mut Agent, folder: &Path, other: &Path) -> Value {
    let params = json!({ "cwd": folder, "mcpServers": [], "additionalDirectories": [other] });
    agent.call("session/new", params)
}

fn link(session: &str, path: &Path) -> Value {
    let uri = format!("file://{}", path.display());
    let link = json!({ "type": "resource_link", "name": "n", "uri": uri });
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "see" }, link] })
}

#[test]
fn other_folders_are_given_to_the_cli_and_can_be_linked_to() {
    for (name, script) in [("claude", CLAUDE), ("codex", CODEX)] {
        let (folder, other) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        write_script(folder.path(), name, script);
        let mut agent = Agent::start(folder.path(), &[name]);
        let offer = initialize(&mut agent, json!({}));
        assert!(offer["agentCapabilities"]["sessionCapabilities"]["additionalDirectories"].is_object());
        let session = session_of(&open(&mut agent, folder.path(), other.path())["result"]);
        let answer = agent.call("session/prompt", link(&session, &other.path().join("file")));
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{name}: {answer}");
        let file = if name == "claude" { "args" } else { "stdin" };
        let told = std::fs::read_to_string(folder.path().join(file)).expect("it was told");
        let path = other.path().display();
        let expected = match name {
            "claude" => format!("--add-dir {path}"),
            _ => format!(r#""sandbox_workspace_write":{{"writable_roots":["{path}"]}}"#),
        };
        assert!(told.contains(&expected), "{told}");
        let refused = open(&mut agent, folder.path(), &folder.path().join("none"));
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
}

#[test]
fn a_folder_of_the_command_line_counts_for_every_session() {
    let (folder, other) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    write_script(folder.path(), "claude", CLAUDE);
    let path = other.path().to_str().expect("a plain name");
    let mut agent = Agent::start(folder.path(), &["claude", "--add-dir", path]);
    let session = agent.new_session(folder.path());
    assert_eq!(agent.turn(&session, "one").1["result"]["stopReason"], "end_turn");
    let args = std::fs::read_to_string(folder.path().join("args")).expect("it was started");
    assert!(args.contains(&format!("--add-dir {path}")), "{args}");
}

#[test]
fn the_first_session_lists_the_models_and_the_default_has_a_name() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", CLAUDE);
    let mut agent = Agent::start(folder.path(), &["claude"]);
    let offer = initialize(&mut agent, json!({}));
    assert_eq!(offer["agentCapabilities"]["mcpCapabilities"], json!({ "http": true, "sse": true }));
    let opened = agent.call("session/new", json!({ "cwd": folder.path(), "mcpServers": [] }));
    let choices = &opened["result"]["configOptions"][0]["options"];
    assert_eq!((&choices[0]["value"], &choices[1]["value"]), (&json!("default"), &json!("big")), "{opened}");
    let models = &opened["result"]["models"];
    assert_eq!(
        (&models["currentModelId"], &models["availableModels"][1]["name"]),
        (&json!("default"), &json!("Big"))
    );
    let session = session_of(&opened["result"]);
    let (updates, answer) = agent.turn(&session, "one");
    let options = updates.iter().rfind(|update| update["sessionUpdate"] == "config_option_update");
    let options = options.expect("the model has a name now");
    assert_eq!(options["configOptions"][0]["options"][0]["name"], "Default (the-model)");
    assert_eq!(answer["result"]["_meta"]["model"], "the-model");
}

#[test]
fn models_that_a_cli_cannot_list_come_from_the_table() {
    let folder = TempDir::new().expect("a folder");
    let mut agent = Agent::start(folder.path(), &["gemini"]);
    let opened = agent.call("session/new", json!({ "cwd": folder.path(), "mcpServers": [] }));
    let choices = opened["result"]["configOptions"][0]["options"].as_array().expect("choices");
    assert!(choices.iter().any(|choice| choice["value"] == "gemini-2.5-pro"), "{opened}");
}

#[test]
fn a_session_does_not_wait_for_models_that_the_table_knows() {
    let folder = TempDir::new().expect("a folder");
    // Its list comes when the test says so.
    let script = "[ \"$1\" = models ] || exit 0\nwhile [ ! -e $HOME/go ]; do sleep 0.05; done; echo a/one";
    write_script(folder.path(), "opencode", script);
    let mut agent = Agent::start(folder.path(), &["opencode", "--model", "a/mine"]);
    initialize(&mut agent, json!({}));
    let opened = agent.call("session/new", json!({ "cwd": folder.path(), "mcpServers": [] }));
    let models = &opened["result"]["models"];
    let ids = |list: &Value, key: &str| {
        let list = list.as_array().expect("a list").iter();
        list.map(|one| one[key].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let first = ids(&models["availableModels"], "modelId");
    assert!(first.iter().any(|id| id == "opencode/big-pickle"), "{opened}");
    assert_eq!((first[0].as_str(), first.last().map(String::as_str)), ("default", Some("a/mine")));
    assert_eq!(models["currentModelId"], "a/mine");
    std::fs::write(folder.path().join("go"), "").expect("a file");
    let update = agent.wait_for("config_option_update");
    assert_eq!(ids(&update["configOptions"][0]["options"], "value"), ["default", "a/one", "a/mine"]);
}

#[test]
fn a_client_with_a_terminal_can_offer_the_logins() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", "echo \"asked: $@\"");
    let mut agent = Agent::start(folder.path(), &["claude"]);
    assert_eq!(initialize(&mut agent, json!({}))["authMethods"], json!([]));
    let methods = initialize(&mut agent, json!({ "auth": { "terminal": true } }))["authMethods"].clone();
    let args: Vec<&Value> =
        methods.as_array().expect("methods").iter().map(|method| &method["args"]).collect();
    assert_eq!(args, [&json!(["--login=claude-ai-login"]), &json!(["--login=console-login"])], "{methods}");
    assert_eq!(methods[0]["type"], "terminal", "{methods}");
    let method =
        initialize(&mut agent, json!({ "_meta": { "terminal-auth": true } }))["authMethods"][1].clone();
    let args = json!(["auth", "login", "--console"]);
    assert_eq!(method["_meta"]["terminal-auth"]["args"], args, "{method}");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    for (flag, said) in [
        ("--login", "asked: auth login\n"),
        ("--login=console-login", "asked: auth login --console\n"),
        ("--login=other", ""),
    ] {
        let mut command = Command::new(BUS);
        command.args(["agent", "cli", "--runtime", "claude", flag]).env_clear().env("PATH", &path);
        let output = command.output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), said);
        assert_eq!(output.status.success(), !said.is_empty());
    }
}

#[test]
fn a_login_that_needs_no_terminal_is_run_by_the_agent() {
    let folder = TempDir::new().expect("a folder");
    let login = r#"[ "$1" = login ] && { echo "$@" >> $HOME/logins; [ "$2" ] && cat > $HOME/key
        rm -f $HOME/logged-out; exit 0; }"#;
    write_script(folder.path(), "codex", &format!("{login}\n{CODEX}"));
    std::fs::write(folder.path().join("logged-out"), "").expect("written");
    let mut agent = Agent::start(folder.path(), &["codex"]);
    let offer = initialize(&mut agent, json!({}));
    let ids: Vec<&Value> =
        offer["authMethods"].as_array().expect("methods").iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["chat-gpt", "api-key"], "{offer}");
    assert_eq!(offer["authMethods"][1]["_meta"]["api-key"]["provider"], "openai", "{offer}");
    let open = json!({ "cwd": folder.path(), "mcpServers": [] });
    let out = agent.call("session/new", open.clone());
    assert_eq!(out["error"]["code"], -32000, "{out}");
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("codex login")), "{out}");
    let out = agent.call("authenticate", json!({ "methodId": "api-key" }));
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("OPENAI_API_KEY")), "{out}");
    let key = json!({ "methodId": "api-key", "_meta": { "api-key": { "apiKey": "hush" } } });
    assert_eq!(agent.call("authenticate", key)["result"], json!({}));
    assert_eq!(std::fs::read_to_string(folder.path().join("key")).expect("a key"), "hush\n");
    // Once is enough.
    assert_eq!(agent.call("authenticate", json!({ "methodId": "chat-gpt" }))["result"], json!({}));
    let logins = std::fs::read_to_string(folder.path().join("logins")).expect("logins");
    assert_eq!(logins, "login --with-api-key\n");
    let session = session_of(&agent.call("session/new", open)["result"]);
    assert_eq!(agent.turn(&session, "one").1["result"]["stopReason"], "end_turn");
}

#[test]
fn a_cli_without_a_login_says_so_and_how_to_log_in() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "codex", CODEX);
    std::fs::write(folder.path().join("logged-out"), "").expect("written");
    let mut agent = Agent::start(folder.path(), &["codex"]);
    let session = agent.new_session(folder.path());
    let out = agent.turn(&session, "one").1;
    assert_eq!(out["error"]["code"], -32000, "{out}");
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("codex login")), "{out}");
    std::fs::remove_file(folder.path().join("logged-out")).expect("removed");
    assert_eq!(agent.turn(&session, "two").1["result"]["stopReason"], "end_turn");

    write_script(
        folder.path(),
        "gemini",
        "echo 'Please set an Auth method in your settings.json' >&2; exit 41",
    );
    let mut agent = Agent::start(folder.path(), &["gemini"]);
    let session = agent.new_session(folder.path());
    let out = agent.turn(&session, "one").1;
    assert_eq!(out["error"]["code"], -32000, "{out}");
    assert!(out["error"]["message"].as_str().is_some_and(|text| text.contains("GEMINI_API_KEY")), "{out}");
}

#[test]
fn images_are_files_for_a_cli_that_takes_paths() {
    let gemini = r#"path=$(sed -n 's/^@//p'); echo "$@" > $HOME/args
        echo '{"type":"init","session_id":"s1"}'
        echo "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"$(cat $path) $path\"}"
        echo '{"type":"result","status":"success","stats":{}}'"#;
    let opencode = r#"[ "$1" = models ] && exit; cat > /dev/null; while [ "$1" != -f ]; do shift; done
        echo "{\"type\":\"text\",\"sessionID\":\"ses_1\",\"part\":{\"text\":\"$(cat $2) $2\"}}"
        echo '{"type":"step_finish","sessionID":"ses_1","part":{"reason":"stop"}}'"#;
    for (name, script) in [("gemini", gemini), ("opencode", opencode)] {
        let folder = TempDir::new().expect("a folder");
        write_script(folder.path(), name, script);
        let mut agent = Agent::start(folder.path(), &[name]);
        let offer = initialize(&mut agent, json!({}));
        assert_eq!(offer["agentCapabilities"]["promptCapabilities"]["image"], true);
        let session = agent.new_session(folder.path());
        let image = json!({ "type": "image", "mimeType": "image/png", "data": "c2Vlbg==" });
        let prompt =
            json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "what is it?" }, image] });
        let id = agent.send_request("session/prompt", prompt);
        let (updates, answer) = agent.read_response(id);
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{name}: {answer}");
        let text = texts(&updates);
        let path = text.strip_prefix("seen ").unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(path.ends_with("image1.png") && !Path::new(path).exists(), "{name}: {path}");
    }
}
