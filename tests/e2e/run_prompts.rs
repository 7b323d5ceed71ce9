//! What `stdio-bus run` makes of stdin, of files in prompts, and of sessions from before.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Program, Puppet, run, update_of};

fn stdout(out: &std::process::Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Answers initialize with these capabilities.
fn is_initialized(agent: &mut Puppet, capabilities: Value) {
    let initialize = agent.is_asked("initialize");
    agent.answers(&initialize, json!({ "protocolVersion": 1, "agentCapabilities": capabilities }));
}

#[test]
fn a_piped_stdin_is_one_prompt() {
    let piped = "one\n\n/tool is no command here\n";
    let out = run(Path::new("/"), &["run", "--json", "echo"], piped);
    let kinds = stdout(&out).matches(r#""t":"turn-start""#).count();
    assert_eq!((kinds, out.status.code()), (1, Some(0)));
    let text = "explain\n\none\n\n/tool is no command here\n";
    assert_eq!(stdout(&run(Path::new("/"), &["run", "echo", "explain"], piped)), text);
    assert_eq!(stdout(&run(Path::new("/"), &["run", "--once", "echo", "explain"], piped)), "explain\n");
    assert_eq!(stdout(&run(Path::new("/"), &["run", "--input", "lines", "echo"], "a\nb\n")), "a\nb\n");
}

#[test]
fn who_keeps_stdin_open_is_told_what_is_waited_for() {
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    is_initialized(&mut agent, json!({}));
    let new = agent.is_asked("session/new");
    agent.answers(&new, json!({ "sessionId": "s" }));
    talk.log_has("stdin is read to its end first; --once does not read it");
    talk.types("and more\n");
    talk.hangs_up();
    let prompt = agent.is_asked("session/prompt");
    assert_eq!(prompt["params"]["prompt"][0]["text"], "hi\n\nand more");
    agent.ends_turn(&prompt, "end_turn");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_file_in_a_prompt_is_attached() {
    for (embeds, kind) in [(true, "resource"), (false, "resource_link")] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "in it").unwrap();
        let cwd = folder.path().to_str().unwrap();
        let args = ["--once", "--cwd", cwd, "see @a.txt and @b.txt", "--", "@puppet"];
        let mut talk = Program::plan(&args).with_pipes();
        let mut agent = talk.puppet();
        is_initialized(&mut agent, json!({ "promptCapabilities": { "embeddedContext": embeds } }));
        let new = agent.is_asked("session/new");
        agent.answers(&new, json!({ "sessionId": "s" }));
        let prompt = agent.is_asked("session/prompt");
        let blocks = prompt["params"]["prompt"].as_array().unwrap();
        assert_eq!(blocks[0]["text"], "see @a.txt and @b.txt");
        assert_eq!((blocks.len(), &blocks[1]["type"]), (2, &json!(kind)));
        assert!(!embeds || blocks[1]["resource"]["text"] == "in it", "{blocks:?}");
        talk.log_has("@b.txt is sent as text: there is no such file");
        agent.ends_turn(&prompt, "end_turn");
        assert_eq!(talk.ends(), 0);
    }
}

#[test]
fn continue_takes_the_newest_session_of_the_folder_and_a_pipe_hears_only_what_is_new() {
    let mut talk = Program::plan(&["--continue", "--once", "hi", "--", "@puppet"]).with_pipes();
    let cwd = talk.folder().canonicalize().unwrap();
    let mut agent = talk.puppet();
    is_initialized(&mut agent, json!({ "loadSession": true, "sessionCapabilities": { "list": {} } }));
    let list = agent.is_asked("session/list");
    assert_eq!(list["params"], json!({ "cwd": cwd }));
    let old = json!({ "sessionId": "old", "cwd": cwd, "updatedAt": "2026-01-01T00:00:00Z" });
    agent.answers(&list, json!({ "sessions": [old], "nextCursor": "2" }));
    let list = agent.is_asked("session/list");
    assert_eq!(list["params"]["cursor"], "2");
    let new = json!({ "sessionId": "new", "cwd": cwd, "updatedAt": "2026-01-02T00:00:00Z" });
    agent.answers(&list, json!({ "sessions": [new] }));
    let load = agent.is_asked("session/load");
    assert_eq!((&load["params"]["sessionId"], &load["params"]["cwd"]), (&json!("new"), &json!(cwd)));
    let says = |text: &str| {
        let content = json!({ "type": "text", "text": text });
        update_of("new", json!({ "sessionUpdate": "agent_message_chunk", "content": content }))
    };
    agent.sends(&says("from before"));
    agent.answers(&load, json!({}));
    let prompt = agent.is_asked("session/prompt");
    assert_eq!(prompt["params"]["sessionId"], "new");
    agent.sends(&says("new words"));
    agent.ends_turn(&prompt, "end_turn");
    assert_eq!(talk.line(), "new words");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn what_cannot_be_continued_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let out = run(folder.path(), &[&["run", "--once"], args, &["hi"]].concat(), "");
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let none = said(&["--continue", "echo"]);
    assert!(none.contains("echo has no session in ") && none.contains("to continue"), "{none}");
    let unknown = said(&["--session", "nope", "echo"]);
    assert!(unknown.contains("echo does not open the session again"), "{unknown}");
}

#[test]
fn the_agent_echo_goes_on_where_it_was_and_a_terminal_shows_what_was_said() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    let echo = ["--", env!("CARGO_BIN_EXE_stdio-bus"), "agent", "echo", "--state", state];
    let cwd = folder.path().to_str().unwrap();
    let out = run(folder.path(), &[&["run", "--once", "first words"], &echo[..]].concat(), "");
    assert_eq!(stdout(&out), "first words\n");
    let out = run(folder.path(), &[&["run", "--once", "--continue", "second"], &echo[..]].concat(), "");
    assert_eq!(stdout(&out), "second\n");
    let mut talk = Program::plan(&[&["--continue", "--cwd", cwd][..], &echo].concat()).at_terminal();
    talk.shows_so("what was said, the banner and the prompt", |screen| {
        screen.starts_with("> first words\nfirst words\n> second\nsecond\nEcho 0.1.0\n")
            && screen.trim_end().ends_with("cancels a turn\n>")
    });
    talk.types("\x04");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_slow_start_is_shown_with_its_time_and_leaves_nothing_on_the_screen() {
    let mut talk = Program::plan(&["--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let initialize = agent.is_asked("initialize");
    let counts =
        |screen: &str| screen.starts_with("starting puppet... ") && screen.trim_end().ends_with(" s");
    talk.shows_so("the time", counts);
    agent.answers(&initialize, json!({ "protocolVersion": 1 }));
    let new = agent.is_asked("session/new");
    talk.clears();
    talk.shows_so("the time again", counts);
    agent.answers(&new, json!({ "sessionId": "s" }));
    talk.shows_so("only the banner and the prompt", |screen| {
        screen.starts_with("puppet\nin ") && screen.trim_end().ends_with("cancels a turn\n>")
    });
    talk.types("\x04");
    assert_eq!(talk.ends(), 0);
}
