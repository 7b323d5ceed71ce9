//! `stdio-bus run --json --input json` as a part of another program: commands in, envelopes out.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, Program, Puppet, request, run};

/// A program that embeds `run`, and the agent behind it.
struct Embedded {
    run: Program,
    agent: Puppet,
}

const ASK: [&str; 3] = ["--json", "--input", "json"];

impl Embedded {
    /// The session is open; nothing is said yet.
    fn start(args: &[&str]) -> Embedded {
        let run = Program::plan(&[&ASK[..], args, &["--", "@puppet"]].concat()).with_pipes();
        let mut agent = run.puppet();
        let initialize = agent.is_asked("initialize");
        let info = json!({ "name": "puppet", "version": "1" });
        agent.answers(
            &initialize,
            json!({ "protocolVersion": 1, "agentCapabilities": {}, "agentInfo": info }),
        );
        let new = agent.is_asked("session/new");
        let models = json!({ "currentModelId": "small", "availableModels": [{ "modelId": "large", "name": "Large" }] });
        agent.answers(&new, json!({ "sessionId": "s", "models": models }));
        let mut embedded = Embedded { run, agent };
        let session = embedded.event("session");
        assert_eq!((&session["sessionId"], &session["agent"]), (&json!("s"), &info));
        assert_eq!((&session["model"], &session["models"][0]["name"]), (&json!("small"), &json!("Large")));
        embedded
    }

    fn writes(&mut self, command: Value) {
        self.run.types(&format!("{command}\n"));
    }

    /// Writes a prompt, which the agent gets.
    fn prompts(&mut self, text: &str) -> Value {
        self.writes(json!({ "type": "prompt", "text": text }));
        self.agent.is_asked("session/prompt")
    }

    /// The next envelope's event, which must be of this kind.
    fn event(&mut self, kind: &str) -> Value {
        let envelope = self.run.envelope();
        assert_eq!(envelope["ev"]["t"], kind, "{envelope}");
        envelope["ev"].clone()
    }

    /// The agent asks for a permission; the question that the program gets.
    fn asks(&mut self, id: u32, call: &str) -> Value {
        let option = |id: &str, kind: &str| json!({ "optionId": id, "name": id, "kind": kind });
        let options = json!([option("yes", "allow_once"), option("no", "reject_once")]);
        let call = json!({ "toolCallId": call, "title": "rm x", "rawInput": { "command": "rm x" } });
        let params = json!({ "sessionId": "s", "toolCall": call, "options": options });
        self.agent.sends(&request(id, "session/request_permission", params));
        self.event("tool-call-start");
        self.event("permission")
    }
}

#[test]
fn prompts_of_several_lines_and_with_images_are_turns_in_their_order() {
    let mut it = Embedded::start(&[]);
    let prompt = it.prompts("two\nlines");
    assert_eq!(prompt["params"]["prompt"], json!([{ "type": "text", "text": "two\nlines" }]));
    it.event("turn-start");
    let blocks = json!([{ "type": "image", "mimeType": "image/png", "data": "AA==" }, { "type": "text", "text": "?" }]);
    it.writes(json!({ "type": "prompt", "content": blocks }));
    it.agent.speaks("Yes.");
    it.agent.ends_turn(&prompt, "end_turn");
    assert_eq!(it.event("text")["text"], "Yes.");
    it.event("turn-end");
    let prompt = it.agent.is_asked("session/prompt");
    assert_eq!(prompt["params"]["prompt"], blocks);
    it.event("turn-start");
    // What was said before stdin ended is still done.
    it.writes(json!({ "type": "prompt", "text": "and then" }));
    it.run.hangs_up();
    it.agent.ends_turn(&prompt, "end_turn");
    it.event("turn-end");
    let prompt = it.agent.is_asked("session/prompt");
    it.event("turn-start");
    it.agent.ends_turn(&prompt, "end_turn");
    it.event("turn-end");
    assert_eq!(it.run.ends(), 0);
}

#[test]
fn a_cancel_ends_the_turn_and_takes_back_what_waits_and_the_run_goes_on() {
    let mut it = Embedded::start(&[]);
    let prompt = it.prompts("one");
    it.event("turn-start");
    it.writes(json!({ "type": "prompt", "text": "waits" }));
    it.writes(json!({ "type": "cancel" }));
    assert_eq!(it.agent.is_asked("session/cancel")["params"], json!({ "sessionId": "s" }));
    it.agent.ends_turn(&prompt, "cancelled");
    assert_eq!(it.event("turn-end")["status"], "cancelled");
    it.event("turn-start");
    assert_eq!(it.event("turn-end")["status"], "cancelled", "every prompt has its turn");
    // A cancel without a turn is nothing.
    it.writes(json!({ "type": "cancel" }));
    let prompt = it.prompts("three");
    assert_eq!(prompt["params"]["prompt"][0]["text"], "three");
    it.event("turn-start");
    it.agent.ends_turn(&prompt, "end_turn");
    assert_eq!(it.event("turn-end")["status"], "completed");
    it.run.hangs_up();
    assert_eq!(it.run.ends(), 0, "a cancelled turn is no failure of the run");
}

#[test]
fn a_bad_line_is_told_and_ends_nothing() {
    let mut it = Embedded::start(&[]);
    it.run.types("hello\n\n");
    it.writes(json!({ "type": "permission", "id": "p9", "optionId": "yes" }));
    let first = it.event("error");
    assert!(first["line"] == 1 && first["text"].as_str().unwrap().contains("not JSON"), "{first}");
    let second = it.event("error");
    assert_eq!(second, json!({ "t": "error", "line": 3, "text": "no question \"p9\" is open" }));
    let prompt = it.prompts("hi");
    it.event("turn-start");
    it.agent.ends_turn(&prompt, "end_turn");
    it.event("turn-end");
    it.run.hangs_up();
    assert_eq!(it.run.ends(), 0);
}

#[test]
fn permissions_are_asked_at_the_same_time_and_answered_in_any_order() {
    let mut it = Embedded::start(&[]);
    let prompt = it.prompts("do it");
    it.event("turn-start");
    let first = it.asks(7, "a");
    assert_eq!(
        (&first["title"], &first["toolCall"]["rawInput"]["command"]),
        (&json!("rm x"), &json!("rm x"))
    );
    assert_eq!(first["options"][1], json!({ "optionId": "no", "name": "no", "kind": "reject_once" }));
    let second = it.asks(8, "b");
    assert_ne!(first["call"], second["call"]);
    it.writes(json!({ "type": "permission", "id": second["id"], "optionId": "maybe" }));
    assert!(it.event("error")["text"].as_str().unwrap().contains("has no option \"maybe\", only yes, no"));
    it.writes(json!({ "type": "permission", "id": second["id"], "optionId": "yes" }));
    let selected = |id: &str| json!({ "outcome": { "outcome": "selected", "optionId": id } });
    assert_eq!(it.agent.gets(8)["result"], selected("yes"));
    assert_eq!(
        it.event("permission-end"),
        json!({ "t": "permission-end", "id": second["id"], "optionId": "yes" })
    );
    it.writes(json!({ "type": "permission", "id": first["id"], "optionId": "no" }));
    assert_eq!(it.agent.gets(7)["result"], selected("no"));
    it.event("permission-end");
    // One that the agent withdraws is answered as such.
    let third = it.asks(9, "c");
    it.agent.sends(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":9}}"#);
    assert_eq!(it.agent.gets(9)["error"]["code"], -32800);
    assert_eq!(
        it.event("permission-end"),
        json!({ "t": "permission-end", "id": third["id"], "optionId": null })
    );
    // One that is open when the turn is cancelled is answered so.
    it.asks(10, "d");
    it.writes(json!({ "type": "cancel" }));
    it.agent.is_asked("session/cancel");
    assert_eq!(it.agent.gets(10)["result"], json!({ "outcome": { "outcome": "cancelled" } }));
    it.event("permission-end");
    it.agent.ends_turn(&prompt, "cancelled");
    for _ in 0..4 {
        it.event("tool-call-end");
    }
    it.event("turn-end");
    it.run.hangs_up();
    assert_eq!(it.run.ends(), 0);
}

#[test]
fn what_is_open_when_nobody_can_answer_any_more_is_refused() {
    let mut it = Embedded::start(&[]);
    let prompt = it.prompts("do it");
    it.event("turn-start");
    it.asks(7, "a");
    it.run.hangs_up();
    assert_eq!(it.agent.gets(7)["result"]["outcome"]["optionId"], "no");
    assert!(it.event("service")["text"].as_str().unwrap().starts_with("refused: rm x"));
    it.event("permission-end");
    it.agent.ends_turn(&prompt, "end_turn");
    it.event("tool-call-end");
    it.event("turn-end");
    assert_eq!(it.run.ends(), 5);
}

#[test]
fn client_tools_ask_the_program_too() {
    let mut it = Embedded::start(&["--hands"]);
    let prompt = it.prompts("write");
    it.event("turn-start");
    let path = it.run.folder().join("new.txt");
    let write = |id: u32| {
        request(
            id,
            "fs/write_text_file",
            json!({ "sessionId": "s", "path": path, "content": id.to_string() }),
        )
    };
    it.agent.sends(&write(1));
    let question = it.event("permission");
    assert!(question["title"].as_str().unwrap().contains("wants to write"), "{question}");
    it.writes(json!({ "type": "permission", "id": question["id"], "optionId": "no" }));
    assert_eq!(it.agent.gets(1)["error"]["message"], "the user does not allow it");
    it.event("permission-end");
    assert!(!path.exists());
    it.agent.sends(&write(2));
    let question = it.event("permission");
    it.writes(json!({ "type": "permission", "id": question["id"], "optionId": "always" }));
    assert_eq!(it.agent.gets(2)["result"], json!({}));
    it.event("permission-end");
    it.agent.sends(&write(3));
    assert_eq!(
        (&it.agent.gets(3)["result"], fs::read_to_string(&path).unwrap()),
        (&json!({}), "3".to_owned())
    );
    // A variable that can make another program run is a question of its own.
    let env = json!([{ "name": "LD_PRELOAD", "value": "x.so" }]);
    it.agent.sends(&request(
        4,
        "terminal/create",
        json!({ "sessionId": "s", "command": "true", "env": env }),
    ));
    let question = it.event("permission");
    it.writes(json!({ "type": "permission", "id": question["id"], "optionId": "once" }));
    it.event("permission-end");
    let second = it.event("permission");
    assert!(second["title"].as_str().unwrap().contains("LD_PRELOAD"), "{second}");
    it.writes(json!({ "type": "permission", "id": second["id"], "optionId": "no" }));
    assert_eq!(it.agent.gets(4)["error"]["message"], "the user does not allow it");
    it.event("permission-end");
    it.agent.ends_turn(&prompt, "end_turn");
    it.event("turn-end");
    it.run.hangs_up();
    assert_eq!(it.run.ends(), 0);
}

#[test]
fn an_interrupt_still_ends_the_run() {
    let mut it = Embedded::start(&[]);
    let prompt = it.prompts("hi");
    it.event("turn-start");
    it.run.signal(Signal::SIGINT);
    it.agent.is_asked("session/cancel");
    it.agent.ends_turn(&prompt, "cancelled");
    it.event("turn-end");
    assert_eq!(it.run.ends(), 130);
}

#[test]
fn the_model_changes_between_turns() {
    let mut it = Embedded::start(&[]);
    it.writes(json!({ "type": "model", "model": "Large" }));
    let set = it.agent.is_asked("session/set_model");
    assert_eq!(set["params"], json!({ "sessionId": "s", "modelId": "large" }));
    it.agent.answers(&set, json!({}));
    it.writes(json!({ "type": "mode", "mode": "plan" }));
    let set = it.agent.is_asked("session/set_mode");
    it.agent.refuses(&set, &json!({ "code": -32601, "message": "Method not found" }));
    let error = it.event("error");
    assert!(error["text"].as_str().unwrap().contains("does not let clients choose a mode"), "{error}");
    let prompt = it.prompts("hi");
    it.event("turn-start");
    it.agent.ends_turn(&prompt, "end_turn");
    it.event("turn-end");
    it.run.hangs_up();
    assert_eq!(it.run.ends(), 0);
}

#[test]
fn model_mode_servers_and_folders_reach_the_session() {
    let folder = TempDir::new().unwrap();
    let servers = json!({ "mcpServers": { "files": { "command": "mcp-files", "env": { "A": "1" } } } });
    fs::write(folder.path().join("mcp.json"), servers.to_string()).unwrap();
    let mcp = folder.path().join("mcp.json").to_string_lossy().into_owned();
    let more = folder.path().canonicalize().unwrap().to_string_lossy().into_owned();
    let args = ["--mcp", &mcp, "--add-dir", &more, "--model", "m2", "--mode", "Plan first", "--once", "hi"];
    let mut talk = Program::plan(&[&args[..], &["--", "@puppet"]].concat()).with_pipes();
    let mut agent = talk.puppet();
    let initialize = agent.is_asked("initialize");
    let capabilities = json!({ "sessionCapabilities": { "additionalDirectories": {} } });
    agent.answers(&initialize, json!({ "protocolVersion": 1, "agentCapabilities": capabilities }));
    let new = agent.is_asked("session/new");
    assert_eq!(new["params"]["additionalDirectories"], json!([more]));
    let env = json!([{ "name": "A", "value": "1" }]);
    let server = json!({ "name": "files", "command": "mcp-files", "args": [], "env": env });
    assert_eq!(new["params"]["mcpServers"], json!([server]));
    let models = json!([{ "value": "m1", "name": "1" }]);
    let model = json!({ "id": "model", "category": "model", "currentValue": "m1", "options": models });
    let modes = json!({ "currentModeId": "ask", "availableModes": [{ "id": "plan", "name": "Plan first" }] });
    agent.answers(&new, json!({ "sessionId": "s", "configOptions": [model], "modes": modes }));
    let set = agent.is_asked("session/set_config_option");
    assert_eq!(set["params"], json!({ "sessionId": "s", "configId": "model", "value": "m2" }));
    agent.answers(&set, json!({ "configOptions": [model] }));
    let set = agent.is_asked("session/set_mode");
    assert_eq!(set["params"]["modeId"], "plan");
    agent.answers(&set, json!({}));
    let prompt = agent.is_asked("session/prompt");
    agent.ends_turn(&prompt, "end_turn");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn what_cannot_be_had_is_said_and_ends_the_run() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let web = write("web.json", r#"{"mcpServers":{"w":{"type":"sse","url":"http://localhost:1"}}}"#);
    let bad = write("bad.json", "{");
    let of_mcp = format!("--mcp {bad}: ");
    let sleeps = r#"while read line; do case "$line" in *initialize*)
        echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}';; esac; done"#;
    let cases: [(&[&str], i32, &str); 11] = [
        (&["--mode", "no-such", "echo", "hi"], 1, "echo does not take the mode \"no-such\""),
        (&["--mcp", &web, "echo", "hi"], 1, "echo takes no MCP servers over sse: \"w\""),
        (&["--mcp", &bad, "echo", "hi"], 1, &of_mcp),
        (&["--add-dir", "/no/such", "echo", "hi"], 1, "--add-dir /no/such: No such file"),
        (&["--cwd", "/no/such", "echo", "hi"], 1, "--cwd /no/such: No such file"),
        (&["hi", "--", "cat"], 1, "cat repeats what it is told, and does not speak ACP"),
        (&["echo", "hi", "-p", "ho"], 2, "cannot be used with"),
        (&["hi", "-p", "ho", "--", "cat"], 2, "are two prompts"),
        (&["--input", "json", "echo"], 2, "--input json needs --json"),
        (&["--init-timeout", "0.3", "hi", "--", "sh", "-c", sleeps], 3, "no answer from sh within 300ms"),
        (&["--", "--yolo"], 2, "name the agent that these arguments are for"),
    ];
    for (args, code, words) in cases {
        let out = run(folder.path(), &[&["run"][..], args].concat(), "");
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn a_prompt_after_p_is_the_only_one_and_what_is_piped_belongs_to_it() {
    let folder = TempDir::with_prefix("run").unwrap();
    let cases: [(&[&str], &str, &str); 3] = [
        (&["echo", "-p", "hi"], "", "hi\n"),
        (&["-p", "hi", "--", BUS, "agent", "echo"], "", "hi\n"),
        (&["echo", "-p", "hi"], "there", "hi\n\nthere\n"),
    ];
    for (args, stdin, expected) in cases {
        let out = run(folder.path(), &[&["run"][..], args].concat(), stdin);
        assert_eq!(String::from_utf8_lossy(&out.stdout), expected, "{args:?} {out:?}");
        assert_eq!(out.status.code(), Some(0));
    }
}

#[test]
fn arguments_after_the_name_of_an_agent_are_its_own() {
    let out = run(
        std::path::Path::new("/"),
        &["run", "--json", "--stream", "echo", "a b c", "--", "--chunks", "3"],
        "",
    );
    assert_eq!(String::from_utf8_lossy(&out.stdout).matches(r#""t":"text""#).count(), 3);
    assert_eq!(out.status.code(), Some(0));
}
