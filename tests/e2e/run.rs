//! `stdio-bus run` with pipes: its output, its exit codes, and that no process is left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bus, Program, is_gone, one_pool, request, result, run, update_of};

fn envelopes(out: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("one envelope a line")).collect()
}

fn kinds(envelopes: &[Value]) -> Vec<&str> {
    envelopes.iter().map(|one| one["ev"]["t"].as_str().expect("a kind")).collect()
}

fn stderr(out: &std::process::Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_pipe_gets_only_the_text_of_the_agent() {
    let out = run(Path::new("/"), &["run", "--input", "lines", "echo", "first words"], "/tool\n\n/think\n");
    let text = "first words\nThe tool has run.\nI have thought about it.\n";
    assert_eq!((String::from_utf8_lossy(&out.stdout).as_ref(), out.status.code()), (text, Some(0)));
    assert_eq!(stderr(&out), "tool: A tool call that does nothing\n");
}

#[test]
fn envelopes_of_a_real_conversation_are_in_order() {
    let out = run(
        Path::new("/"),
        &["run", "--input", "lines", "--json", "--allow", "echo", "hello"],
        "/ask\n/think hm\n",
    );
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let envelopes = envelopes(&out);
    let expected = [
        &["turn-start", "text", "turn-end"][..],
        &["turn-start", "tool-call-start", "tool-call-end", "text", "turn-end"],
        &["turn-start", "text", "text", "turn-end"],
    ];
    assert_eq!(kinds(&envelopes), expected.concat());
    assert_eq!(envelopes[6]["ev"]["text"], "You chose allow_once.");
    assert_eq!(envelopes[9]["ev"], json!({ "t": "text", "text": "hm", "thinking": true }));
    let times: Vec<_> = envelopes.iter().map(|one| one["time"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
}

#[test]
fn stream_prints_every_chunk_of_text() {
    let args = [
        "run",
        "--json",
        "--stream",
        "--",
        env!("CARGO_BIN_EXE_stdio-bus"),
        "agent",
        "echo",
        "--chunks",
        "3",
    ];
    let out = run(Path::new("/"), &args, "some words more\n");
    assert_eq!(kinds(&envelopes(&out)), ["turn-start", "text", "text", "text", "turn-end"]);
}

#[test]
fn each_failure_has_its_exit_code() {
    let cases = [
        (&["run"][..], "", 2, "name an agent, a command after `--`, or a --pool"),
        (&["run", "echo"], "", 2, "no prompt"),
        (&["run", "a", "b", "--", "c"], "", 2, "take only a PROMPT, not an AGENT"),
        (&["run", "no-such-agent", "x"], "", 1, "no-such-agent is not found"),
        (&["run", "claud", "x"], "", 1, "claud is not found; did you mean claude?"),
        (
            &["run", "--", "sh", "-c", "echo I am broken >&2; echo '  at main' >&2; exit 9"],
            "x",
            1,
            "exit status: 9)\n| I am broken\n|   at main\n",
        ),
        (&["run", "--init-timeout", "0.2", "--", "sleep", "60"], "x", 3, "no answer from sleep within 200ms"),
        (&["run", "--timeout", "0.2", "echo", "/slow 60"], "", 3, "the turn took too long"),
        (&["run", "echo", "/die 7"], "", 1, "echo ended (exit status: 7)"),
        (&["run", "echo", "/ask"], "", 5, "there is no terminal to ask at; --allow would allow it"),
        (
            &["run", "--deny", "echo", "/ask"],
            "",
            5,
            "refused: Something that needs your permission (by --deny)",
        ),
        (&["run", "--unix", "/no/such.sock", "--pool", "p", "x"], "", 69, "no bus answers"),
    ];
    for (args, stdin, code, words) in cases {
        let out = run(Path::new("/"), args, stdin);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(words), "{args:?}: {}", stderr(&out));
    }
}

#[test]
fn a_failed_turn_is_reported_and_ends_its_open_calls() {
    let mut talk = Program::plan(&["--input", "lines", "--json", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    assert_eq!(prompt["params"]["prompt"], json!([{ "type": "text", "text": "hi" }]));
    agent.sends("this is a stray print");
    agent.updates(json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "t" }));
    let error = json!({ "code": -32603, "message": "Internal error", "data": { "details": "no model" } });
    agent.refuses(&prompt, &error);
    let envelopes: Vec<_> = (0..5).map(|_| talk.envelope()).collect();
    assert_eq!(kinds(&envelopes), ["turn-start", "tool-call-start", "service", "tool-call-end", "turn-end"]);
    assert_eq!(envelopes[2]["ev"]["text"], "the agent failed: Internal error (no model)");
    assert_eq!(envelopes[4]["ev"]["status"], "failed");
    // The conversation goes on.
    talk.types("again\n");
    let prompt = agent.is_asked("session/prompt");
    agent.ends_turn(&prompt, "end_turn");
    talk.hangs_up();
    agent.stdin_ends();
    assert_eq!(talk.ends(), 1);
}

#[test]
fn updates_that_come_after_the_answer_belong_to_the_turn() {
    let mut talk = Program::plan(&["--json", "--once", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    let content = json!({ "type": "text", "text": "late words" });
    let late = update_of("s", json!({ "sessionUpdate": "agent_message_chunk", "content": content }));
    // Both come in one write, since the wait for late updates is short.
    agent.sends(&format!("{}\n{late}", result(&prompt["id"], json!({ "stopReason": "refusal" }))));
    let envelopes: Vec<_> = (0..4).map(|_| talk.envelope()).collect();
    assert_eq!(kinds(&envelopes), ["turn-start", "text", "service", "turn-end"]);
    assert_eq!(
        (&envelopes[3]["ev"]["status"], &envelopes[3]["turn"]),
        (&json!("completed"), &envelopes[1]["turn"])
    );
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_transient_error_at_initialize_is_retried() {
    let mut talk = Program::plan(&["--once", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let first = agent.is_asked("initialize");
    let error = json!({ "code": -32603, "message": "not ready" });
    agent.refuses(&first, &error);
    let prompt = agent.is_prompted();
    agent.ends_turn(&prompt, "end_turn");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_required_login_is_reported_and_requests_meanwhile_are_answered() {
    let mut talk = Program::plan(&["--input", "lines", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let initialize = agent.is_asked("initialize");
    agent.answers(&initialize, json!({ "protocolVersion": 1 }));
    let new = agent.is_asked("session/new");
    assert_eq!(new["params"]["cwd"], json!(talk.folder()));
    agent.sends(&request(r#""q""#, "fs/read_text_file", json!({ "sessionId": "s", "path": "/etc/passwd" })));
    assert_eq!(agent.gets("q")["error"]["code"], -32601, "no hands were offered");
    let error = json!({ "code": -32000, "message": "Authentication required" });
    agent.refuses(&new, &error);
    assert_eq!(talk.ends(), 1);
    talk.log_has("wants you to log in first, with its own command: Authentication required");
}

#[test]
fn an_agent_known_by_name_is_logged_in_with_a_command_that_is_named() {
    let plan = Program::plan(&["--once", "gemini", "hi"]);
    let folder = plan.folder().to_owned();
    let script = format!("#!/bin/sh\nexec {} {}/puppets\n", env!("CARGO_BIN_EXE_puppet"), folder.display());
    fs::write(folder.join("gemini"), script).unwrap();
    fs::set_permissions(folder.join("gemini"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut talk = plan.env("PATH", &path).with_pipes();
    let mut agent = talk.puppet();
    let initialize = agent.is_asked("initialize");
    agent.answers(&initialize, json!({ "protocolVersion": 1 }));
    let new = agent.is_asked("session/new");
    agent.refuses(&new, &json!({ "code": -32000, "message": "Authentication required" }));
    assert_eq!(talk.ends(), 1);
    talk.log_has("with its own command (to log in: gemini, or set GEMINI_API_KEY): Authentication required");
}

#[test]
fn an_interrupt_cancels_the_turn_and_then_ends() {
    let mut talk = Program::plan(&["--input", "lines", "--json", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    agent.speaks("I beg");
    talk.envelope();
    talk.signal(Signal::SIGINT);
    assert_eq!(agent.is_asked("session/cancel")["params"]["sessionId"], "s");
    // A permission request that comes too late is cancelled.
    agent.asks_permission(7, "s");
    assert_eq!(agent.gets(7)["result"], json!({ "outcome": { "outcome": "cancelled" } }));
    agent.ends_turn(&prompt, "cancelled");
    assert_eq!(talk.envelope()["ev"]["text"], "I beg");
    assert_eq!(talk.envelope()["ev"], json!({ "t": "turn-end", "status": "cancelled" }));
    assert_eq!(talk.ends(), 130);
}

#[test]
fn a_second_interrupt_kills_a_stubborn_agent_and_its_children() {
    let mut talk = Program::plan(&["--input", "lines", "--json", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    agent.is_prompted();
    agent.stays();
    agent.ignores_sigterm();
    let child = agent.has_a_child();
    talk.signal(Signal::SIGINT);
    agent.is_asked("session/cancel");
    talk.signal(Signal::SIGINT);
    assert_eq!(talk.ends(), 130);
    assert!(is_gone(agent.pid) && is_gone(child));
    assert_eq!(talk.envelope()["ev"]["t"], "turn-start");
    assert_eq!(talk.envelope()["ev"], json!({ "t": "turn-end", "status": "cancelled" }));
}

#[test]
fn processes_that_left_the_group_of_the_agent_are_killed_too() {
    let script = "setsid sleep 600 & exec \"$0\" agent echo";
    let bus = env!("CARGO_BIN_EXE_stdio-bus");
    let mut talk = Program::plan(&["--once", "hi", "--", "sh", "-c", script, bus]).with_pipes();
    assert_eq!(talk.ends(), 0);
}

#[test]
fn nothing_survives_run_even_if_it_is_killed() {
    let talk = Program::plan(&["--input", "lines", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    agent.is_prompted();
    agent.stays();
    agent.has_a_child();
    talk.signal(Signal::SIGKILL);
    talk.leaves_nothing();
}

#[test]
fn the_agent_has_the_environment_of_the_user_and_its_own_group() {
    let talk =
        Program::plan(&["--once", "hi", "--", "@puppet", "with space"]).env("MY_KEY", "value").with_pipes();
    let agent = talk.puppet();
    assert_eq!(agent.about["env"]["MY_KEY"], "value");
    assert_eq!(agent.about["args"][1], "with space");
    assert_eq!(agent.about["group"], agent.pid);
    assert_eq!(agent.about["cwd"], json!(talk.folder()));
}

#[test]
fn client_tools_reach_only_into_the_folder() {
    let mut talk = Program::plan(&["--hands", "--allow", "--once", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    let path = talk.folder().join("new.txt");
    let mut ask = |id: u32, method: &str, mut params: Value| {
        params["sessionId"] = "s".into();
        agent.sends(&request(id, method, params));
        agent.gets(id)
    };
    let written = ask(1, "fs/write_text_file", json!({ "path": path, "content": "a\nb\nc\n" }));
    assert_eq!(
        (&written["result"], fs::read_to_string(&path).unwrap()),
        (&json!({}), "a\nb\nc\n".to_owned())
    );
    let read = ask(2, "fs/read_text_file", json!({ "path": path, "line": 2, "limit": 1 }));
    assert_eq!(read["result"], json!({ "content": "b\n" }));
    for outside in ["/etc/passwd", "../x", "no/such/folder/x"] {
        assert_eq!(
            ask(3, "fs/read_text_file", json!({ "path": outside }))["error"]["code"],
            -32602,
            "{outside}"
        );
    }
    assert_eq!(ask(4, "fs/read_text_file", json!({ "path": "absent" }))["error"]["code"], -32002);
    let made = ask(
        5,
        "terminal/create",
        json!({ "command": "sh", "args": ["-c", "echo out; echo err >&2; exit 3"] }),
    );
    let terminal = made["result"]["terminalId"].clone();
    let exit = json!({ "exitCode": 3, "signal": null });
    assert_eq!(ask(6, "terminal/wait_for_exit", json!({ "terminalId": terminal }))["result"], exit);
    let output = json!({ "output": "out\nerr\n", "truncated": false, "exitStatus": exit });
    assert_eq!(ask(7, "terminal/output", json!({ "terminalId": terminal }))["result"], output);
    assert_eq!(ask(8, "terminal/release", json!({ "terminalId": terminal }))["result"], json!({}));
    assert_eq!(ask(9, "terminal/output", json!({ "terminalId": terminal }))["error"]["code"], -32002);
    let made = ask(10, "terminal/create", json!({ "command": "sleep 600; true", "cwd": talk.folder() }));
    let terminal = made["result"]["terminalId"].clone();
    assert_eq!(ask(11, "terminal/kill", json!({ "terminalId": terminal }))["result"], json!({}));
    let exit = ask(12, "terminal/wait_for_exit", json!({ "terminalId": terminal }));
    assert_eq!(exit["result"]["signal"], "SIGKILL");
    // A command that still runs at the end is not left behind.
    ask(13, "terminal/create", json!({ "command": "sleep", "args": ["600"] }));
    agent.ends_turn(&prompt, "end_turn");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn client_tools_do_nothing_without_permission() {
    let mut talk = Program::plan(&["--hands", "--once", "hi", "--", "@puppet"]).with_pipes();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    let path = talk.folder().join("new.txt");
    agent.sends(&request(1, "fs/write_text_file", json!({ "sessionId": "s", "path": path, "content": "x" })));
    assert_eq!(agent.gets(1)["error"]["message"], "the user does not allow it");
    agent.sends(&request(2, "terminal/create", json!({ "sessionId": "s", "command": "true" })));
    assert_eq!(agent.gets(2)["error"]["message"], "the user does not allow it");
    assert!(!path.exists());
    agent.ends_turn(&prompt, "end_turn");
    assert_eq!(talk.ends(), 5);
}

#[test]
fn through_a_bus_it_is_a_client_that_sends_a_bye() {
    let bus = Bus::start(one_pool(1));
    let mut talk =
        Program::plan(&["--input", "lines", "--json", "--tcp", bus.tcp(), "--pool", "p", "hi"]).with_pipes();
    let mut agent = bus.puppet();
    let prompt = agent.is_prompted();
    agent.speaks("through the bus");
    agent.ends_turn(&prompt, "end_turn");
    let envelopes: Vec<_> = (0..3).map(|_| talk.envelope()).collect();
    assert_eq!(envelopes[1]["ev"]["text"], "through the bus");
    talk.hangs_up();
    assert_eq!(talk.ends(), 0);
    // The bus does not keep the session.
    agent.is_asked("session/cancel");
    let none = run(bus.folder(), &["run", "--tcp", bus.tcp(), "--pool", "q", "hi"], "");
    assert_eq!(none.status.code(), Some(1));
    assert_eq!(stderr(&none), "stdio-bus: there is no pool \"q\"; the pools are p\n");
}
