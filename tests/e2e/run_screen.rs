//! `stdio-bus run` at a terminal: the screen, typed answers, Ctrl-C, and the end.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::harness::{Program, request, run};

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

#[test]
fn a_conversation_is_shown_as_it_happens() {
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    let thought = json!({ "type": "text", "text": "Let me see" });
    agent.updates(json!({ "sessionUpdate": "agent_thought_chunk", "content": thought }));
    talk.shows("Let me see");
    assert!(talk.is_dim(0, 0));
    agent.speaks("I loo");
    talk.shows("Let me see\nI loo");
    agent.speaks("k.");
    agent.updates(
        json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "ls -l", "status": "pending" }),
    );
    talk.shows("I look.\n● ls -l");
    agent.updates(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed" }));
    talk.shows("I look.\n✓ ls -l");
    let plan =
        json!([{ "content": "read", "status": "completed" }, { "content": "write", "status": "pending" }]);
    agent.updates(json!({ "sessionUpdate": "plan", "entries": plan }));
    talk.shows("✓ ls -l\nplan\n✓ read\n· write");
    agent.speaks("Done.");
    let usage = json!({ "inputTokens": 12, "outputTokens": 3, "totalTokens": 15 });
    agent.answers(&prompt, json!({ "stopReason": "end_turn", "usage": usage }));
    talk.shows("· write\nDone.\n12 tokens in, 3 out\n> ");
    talk.types("more\n");
    let prompt = agent.is_asked("session/prompt");
    assert_eq!(prompt["params"]["prompt"][0]["text"], "more");
    agent.speaks("Yes.");
    agent.ends_turn(&prompt, "end_turn");
    talk.shows("> more\nYes.\n> ");
    talk.types(CTRL_D);
    agent.stdin_ends();
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_permission_is_asked_with_the_options_of_the_agent() {
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    let options = json!([
        { "optionId": "x", "name": "Do it", "kind": "allow_once" },
        { "optionId": "y", "name": "Leave it", "kind": "reject_once" },
    ]);
    let mut ask = |talk: &mut Program, id: u32, typed: &[&str]| {
        let call = json!({ "toolCallId": format!("call {id}"), "title": format!("rm {id}") });
        let params = json!({ "sessionId": "s", "toolCall": call, "options": options });
        agent.sends(&request(id, "session/request_permission", params));
        for line in typed {
            talk.shows_so("a question", |screen| {
                screen.contains(&format!("The agent asks: rm {id}\n  1) Do it\n  2) Leave it\n1-2?"))
                    && screen.trim_end().ends_with('?')
            });
            talk.types(line);
        }
        if typed.last() == Some(&CTRL_C) {
            agent.is_asked("session/cancel");
        }
        agent.gets(id)["result"]["outcome"].clone()
    };
    assert_eq!(ask(&mut talk, 1, &["1\n"]), json!({ "outcome": "selected", "optionId": "x" }));
    assert_eq!(ask(&mut talk, 2, &["perhaps\n", "n\n"]), json!({ "outcome": "selected", "optionId": "y" }));
    assert_eq!(ask(&mut talk, 3, &[CTRL_C]), json!({ "outcome": "cancelled" }));
    agent.ends_turn(&prompt, "cancelled");
    talk.shows("cancelled\n> ");
    talk.types(CTRL_D);
    talk.shows_so("one prompt sign", |screen| screen.trim_end().ends_with("cancelled\n>"));
    assert_eq!(talk.ends(), 0, "it was ended by Ctrl-D; the Ctrl-C has only cancelled a turn");
}

#[test]
fn a_question_that_the_agent_withdraws_goes_away() {
    let mut talk = Program::plan(&["--hands", "hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    let option = json!({ "optionId": "x", "name": "Do it", "kind": "allow_once" });
    let call = json!({ "toolCallId": "a", "title": "rm x" });
    let permission = json!({ "sessionId": "s", "toolCall": call, "options": [option] });
    let file = talk.folder().join("f");
    let write = json!({ "sessionId": "s", "path": file, "content": "x" });
    let cases = [
        ("session/request_permission", permission, "1) Do it\nthe agent no longer asks: rm x"),
        ("fs/write_text_file", write, "3) No\nthe agent no longer asks: write "),
    ];
    for (id, (method, params, words)) in (1..).zip(cases) {
        agent.sends(&request(id, method, params));
        talk.shows_so("a question", |screen| screen.trim_end().ends_with('?'));
        // That of another question changes nothing.
        for withdrawn in [90, id] {
            let params = json!({ "requestId": withdrawn });
            let cancel = json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": params });
            agent.sends(&cancel.to_string());
        }
        assert_eq!(agent.gets(id)["error"]["code"], -32800);
        talk.shows(words);
    }
    assert!(!file.exists());
    agent.ends_turn(&prompt, "end_turn");
    talk.shows("\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn client_tools_ask_first_and_may_be_allowed_for_good() {
    let mut talk = Program::plan(&["--hands", "hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    for (name, typed) in [("one", Some("n\n")), ("two", Some("2\n")), ("three", None)] {
        let params = json!({ "sessionId": "s", "path": talk.folder().join(name), "content": "x" });
        agent.sends(&request(1, "fs/write_text_file", params));
        if let Some(typed) = typed {
            talk.shows_so("a question", |screen| {
                let asks = screen.replace('\n', "").contains(&format!("/{name}  + x  1) Yes"));
                asks && screen.trim_end().ends_with("1-3?")
            });
            talk.types(typed);
        }
        agent.gets(1);
    }
    let mut names: Vec<_> = fs::read_dir(talk.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["puppets", "three", "two"]);
    agent.ends_turn(&prompt, "end_turn");
    talk.shows("\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_command_is_shown_with_its_folder_and_variables_and_path_is_asked_about_every_time() {
    let mut talk = Program::plan(&["--hands", "hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    fs::create_dir(talk.folder().join("sub")).unwrap();
    let first = "run touch ran  in @dir/sub  with PATH=/usr/bin:/bin  with A='b c'  1) Yes";
    let second = "For touch ran the agent sets  PATH=/usr/bin:/bin";
    // The answers, and whether the command then runs. The fourth is covered by "any command", but for its PATH.
    let cases: [(&[(&str, &str)], bool); 4] = [
        (&[(first, "n\n")], false),
        (&[(first, "y\n"), (second, "n\n")], false),
        (&[(first, "2\n"), (second, "y\n")], true),
        (&[(second, "n\n")], false),
    ];
    let env = json!([{ "name": "A", "value": "b c" }, { "name": "PATH", "value": "/usr/bin:/bin" }]);
    let params = json!({ "sessionId": "s", "command": "touch", "args": ["ran"], "cwd": "sub", "env": env });
    for (id, (questions, runs)) in (1..).zip(cases) {
        talk.clears();
        agent.sends(&request(id, "terminal/create", params.clone()));
        for (question, typed) in questions {
            let folder = talk.folder().canonicalize().unwrap();
            let question = question.replace("@dir", folder.to_str().unwrap());
            talk.shows_so(&question, |screen| {
                screen.replace('\n', "").contains(&question) && screen.trim_end().ends_with('?')
            });
            talk.types(typed);
        }
        assert_eq!(agent.gets(id).get("result").is_some(), runs, "{questions:?}");
    }
    let plain = json!({ "sessionId": "s", "command": "true", "env": [{ "name": "A", "value": "" }] });
    agent.sends(&request(8, "terminal/create", plain));
    assert!(agent.gets(8).get("result").is_some(), "any command was allowed");
    let forged =
        json!({ "sessionId": "s", "command": "true", "env": [{ "name": "PATH=/evil", "value": "" }] });
    agent.sends(&request(9, "terminal/create", forged));
    assert_eq!(agent.gets(9)["error"]["code"], -32602);
    agent.ends_turn(&prompt, "end_turn");
    talk.shows("\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn ctrl_c_cancels_the_turn_and_once_more_ends() {
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    talk.types(CTRL_C);
    agent.is_asked("session/cancel");
    agent.ends_turn(&prompt, "cancelled");
    talk.shows("cancelled\n> ");
    talk.types("again\n");
    agent.is_asked("session/prompt");
    agent.stays();
    let child = agent.has_a_child();
    talk.types(CTRL_C);
    agent.is_asked("session/cancel");
    talk.types(CTRL_C);
    assert_eq!(talk.ends(), 130);
    assert!(crate::harness::is_gone(child));
}

#[test]
fn ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_ends() {
    let mut talk = Program::plan(&["echo"]).at_terminal();
    talk.shows("> ");
    talk.types("not this");
    talk.shows("> not this");
    talk.types(CTRL_C);
    talk.shows("> not this\n> ");
    talk.types(CTRL_C);
    talk.shows("(Ctrl-D ends)\n> ");
    talk.types("but this\r");
    talk.shows("> but this\nbut this\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn the_screen_works_without_colour() {
    let mut talk = Program::plan(&["echo"]).env("NO_COLOR", "1").at_terminal();
    talk.shows("> ");
    talk.types("/think deeply\n");
    talk.shows("deeply\nI have thought about it.\n> ");
    assert!(!talk.is_dim(1, 0));
    talk.types("/tool\n");
    talk.shows("✓ A tool call that does nothing\nThe tool has run.\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn markdown_is_rendered_at_a_terminal_and_nowhere_else() {
    let said = "# Title\nSome **bold** words &#27;[2J\n\n```\nlet x;\n```\n- one\n";
    let shown = "Title\nSome bold words [2J\n\n  let x;\n• one\n> ";
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    for piece in said.split_inclusive(' ') {
        agent.speaks(piece);
    }
    agent.ends_turn(&prompt, "end_turn");
    talk.shows(shown);
    talk.looks("bold letters", |screen| {
        let is_bold = |row, column| screen.cell(row, column).is_some_and(vt100::Cell::bold);
        let (_, columns) = screen.size();
        let title = screen.rows(0, columns.get()).position(|row| row == "Title").unwrap_or_default() as u16;
        is_bold(title, 0) && is_bold(title + 1, 5) && !is_bold(title + 1, 0)
    });
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).env("NO_COLOR", "1").at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    agent.speaks("# Title\nSome **bold** words");
    agent.ends_turn(&prompt, "end_turn");
    talk.shows("# Title\nSome **bold** words\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
    let out = run(Path::new("/"), &["run", "echo"], said);
    assert_eq!(String::from_utf8_lossy(&out.stdout), said);
}

#[test]
fn a_user_sees_whom_he_talks_to_and_how_to_leave_and_leaving_reaches_no_model() {
    let mut talk = Program::plan(&["echo"]).at_terminal();
    talk.shows("Echo ");
    talk.shows("/help lists the commands, /quit leaves");
    talk.shows("> ");
    talk.types("/help\n");
    talk.shows("show or change the model");
    talk.types("/model\n");
    talk.shows("model: ");
    talk.types("exit\n");
    assert_eq!(talk.ends(), 0);
    for word in ["/quit", "quit", "/exit"] {
        let mut talk = Program::plan(&["echo"]).at_terminal();
        talk.shows("> ");
        talk.types(&format!("{word}\n"));
        assert_eq!(talk.ends(), 0);
    }
}
