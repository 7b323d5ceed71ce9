//! The commands with which people see and join the sessions of others: `sessions`, `run --attach`, `connect --attach`.

use serde_json::{Value, json};

use crate::harness::{
    Bus, Client, Program, ProgramPlan, Puppet, initialize, one_pool, request, run, session_of, unshared,
};

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A bus with a session of Ann's.
fn anns() -> (Bus, Puppet, Client, String) {
    let mut config = one_pool(1);
    config["listen"] = json!(["tcp://127.0.0.1:0", "unix://@dir/bus.sock"]);
    let bus = Bus::start(config);
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    ann.asks(1, "_bus/hello", json!({ "client": "ann" }));
    let session = ann.opens(&mut puppet, "s");
    (bus, puppet, ann, session)
}

/// What the label of the only session is.
fn label(client: &mut Client) -> String {
    let sessions = client.asks(90, "_bus/sessions", json!({}));
    sessions["sessions"][0]["session"].as_str().expect("a label").to_owned()
}

/// `run --attach` of the only session, with these arguments more.
fn attach(bus: &Bus, label: &str, more: &[&str]) -> ProgramPlan {
    Program::plan(&[&["--tcp", bus.tcp(), "--attach", label], more].concat())
}

/// A prompt of Ann's, which the agent gets.
fn prompts(ann: &mut Client, puppet: &mut Puppet, id: u32, session: &str, text: &str) -> Value {
    let prompt = json!([{ "type": "text", "text": text }]);
    ann.sends(&request(id, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
    puppet.is_asked("session/prompt")
}

/// Reads what Ann is told until this answer.
fn until(client: &mut Client, id: u32) {
    while client.receives()["id"] != id {}
}

/// Ann has said hello.
fn has_a_turn(ann: &mut Client, puppet: &mut Puppet, session: &str) {
    let turn = prompts(ann, puppet, 2, session, "hello");
    puppet.speaks("one");
    puppet.ends_turn(&turn, "end_turn");
    until(ann, 2);
}

/// Reads what a client is told until it is asked this.
fn until_asked(client: &mut Client, method: &str) -> Value {
    loop {
        let message = client.receives();
        if message["method"] == method {
            return message;
        }
    }
}

fn asks(puppet: &mut Puppet, id: u32, title: &str) {
    let option = |id: &str, kind: &str| json!({ "optionId": id, "name": id, "kind": kind });
    let options = json!([option("yes", "allow_once"), option("no", "reject_once")]);
    let call = json!({ "toolCallId": title, "title": title });
    let params = json!({ "sessionId": "s", "toolCall": call, "options": options });
    puppet.sends(&request(id, "session/request_permission", params));
}

fn chosen(option: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

#[test]
fn who_watches_sees_what_was_said_and_what_comes_until_ctrl_c() {
    let (bus, mut puppet, mut ann, session) = anns();
    has_a_turn(&mut ann, &mut puppet, &session);
    let label = label(&mut ann);
    let mut watch = attach(&bus, &label, &[]).at_terminal();
    watch.shows(&format!("> hello\none\nattached to {label} of ann; you watch, Ctrl-C leaves"));
    let turn = prompts(&mut ann, &mut puppet, 3, &session, "more");
    watch.shows("ann> more");
    puppet.speaks("Well");
    watch.shows("ann> more\nWell");
    asks(&mut puppet, 7, "rm x");
    let asked = until_asked(&mut ann, "session/request_permission");
    watch.shows("Well\nthe agent asks a question;");
    ann.answers(&asked, chosen("yes"));
    assert_eq!(puppet.gets(7)["result"], chosen("yes"));
    watch.shows("ann has answered the question");
    let mut ben = bus.client();
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    ben.asks(2, "_bus/attach", json!({ "session": label, "history": "none" }));
    watch.shows("ben has joined");
    puppet.speaks("Done.");
    puppet.ends_turn(&turn, "cancelled");
    watch.shows("Done.\ncancelled");
    until(&mut ann, 3);
    watch.types(CTRL_C);
    assert_eq!(watch.ends(), 0);
    bus.until("it has left", || {
        let sessions = ann.asks(91, "_bus/sessions", json!({}));
        sessions["sessions"][0]["guests"].as_array().is_some_and(|guests| guests.len() == 1)
    });
}

#[test]
fn the_end_of_the_session_is_said_and_ends_it() {
    let (bus, mut puppet, mut ann, session) = anns();
    let label = label(&mut ann);
    asks(&mut puppet, 7, "rm x");
    until_asked(&mut ann, "session/request_permission");
    let mut watch = attach(&bus, &label, &[]).at_terminal();
    watch.shows("questions of the agent that are open: 1");
    ann.sends(&request(6, "session/close", json!({ "sessionId": session })));
    let asked = puppet.is_asked("session/close");
    puppet.answers(&asked, json!({}));
    watch.shows("the session is over");
    assert_eq!(watch.ends(), 0);
}

#[test]
fn who_takes_part_prompts_answers_and_hears_who_was_faster() {
    let (bus, mut puppet, mut ann, session) = anns();
    let label = label(&mut ann);
    let mut talk = attach(&bus, &label, &["--control"]).at_terminal();
    talk.shows(&format!("attached to {label} of ann\n> "));
    talk.types("mine\n");
    let turn = puppet.is_asked("session/prompt");
    assert_eq!(turn["params"]["prompt"][0]["text"], "mine");
    assert_eq!(until_asked(&mut ann, "session/update")["params"]["update"]["content"]["text"], "mine");
    // Ann is faster.
    asks(&mut puppet, 7, "rm x");
    talk.shows("The agent asks: rm x\n  1) yes\n  2) no\n1-2?");
    let asked = until_asked(&mut ann, "session/request_permission");
    ann.answers(&asked, chosen("no"));
    assert_eq!(puppet.gets(7)["result"], chosen("no"));
    talk.shows("  2) no\nann has answered: rm x");
    // And now she is not.
    asks(&mut puppet, 8, "rm y");
    talk.shows("The agent asks: rm y\n  1) yes\n  2) no\n1-2?");
    talk.types("perhaps\n");
    talk.shows("1-2? perhaps\n1-2, y or n?");
    talk.types("1\n");
    assert_eq!(puppet.gets(8)["result"], chosen("yes"));
    until_asked(&mut ann, "$/cancel_request");
    puppet.speaks("Done.");
    puppet.ends_turn(&turn, "end_turn");
    talk.shows("Done.\n> ");
    let turn = prompts(&mut ann, &mut puppet, 3, &session, "hers");
    talk.shows("Done.\nann> hers");
    talk.types("next\n");
    talk.shows("your prompt waits for the turn of another, place 1");
    puppet.ends_turn(&turn, "end_turn");
    let turn = puppet.is_asked("session/prompt");
    assert_eq!(turn["params"]["prompt"][0]["text"], "next");
    // Ctrl-C cancels the own turn, and Ctrl-D leaves.
    talk.types(CTRL_C);
    // A Ctrl-C from before it is known that the prompt has begun says both.
    while puppet.receives()["method"] != "session/cancel" {}
    puppet.ends_turn(&turn, "cancelled");
    talk.shows("cancelled\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn who_runs_the_session_sees_who_has_joined_and_whose_prompt_it_is() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut owner = Program::plan(&["--tcp", bus.tcp(), "--pool", "p", "hi"]).at_terminal();
    let turn = puppet.is_prompted();
    puppet.speaks("Well.");
    puppet.ends_turn(&turn, "end_turn");
    owner.shows("Well.\n> ");
    let mut ben = bus.client();
    ben.asks(91, "_bus/hello", json!({ "client": "ben" }));
    let label = label(&mut ben);
    let joined = ben.asks(1, "_bus/attach", json!({ "session": label, "history": "none" }));
    owner.shows("Well.\nben has joined\n");
    let session = session_of(&joined);
    let turn = prompts(&mut ben, &mut puppet, 2, &session, "more");
    puppet.speaks("Yes.");
    owner.shows("ben has joined\nben> more\nYes.");
    puppet.ends_turn(&turn, "end_turn");
    until(&mut ben, 2);
    owner.shows("Yes.\n> ");
    owner.types("mine\n");
    let turn = puppet.is_asked("session/prompt");
    assert_eq!(turn["params"]["prompt"][0]["text"], "mine");
    // Ben's next prompt waits for the end of the owner's turn, and is not part of it.
    let next = json!([
        { "type": "image", "mimeType": "image/png", "data": "QUJD" },
        { "type": "text", "text": "what is this?" },
    ]);
    ben.sends(&request(3, "session/prompt", json!({ "sessionId": session, "prompt": next })));
    owner.shows("a prompt of ben waits");
    puppet.speaks("Mine.");
    puppet.ends_turn(&turn, "end_turn");
    let turn = puppet.is_asked("session/prompt");
    puppet.speaks("An image.");
    owner.shows("Mine.\nben> [image image/png, 3 bytes]\nwhat is this?\nAn image.");
    puppet.ends_turn(&turn, "end_turn");
    until(&mut ben, 3);
    ben.sends(&request(4, "_bus/detach", json!({ "session": session })));
    until(&mut ben, 4);
    owner.shows("An image.\nben has left");
    owner.types("mine\n");
    assert_eq!(puppet.is_asked("session/prompt")["params"]["prompt"][0]["text"], "mine");
    owner.types(CTRL_C);
    puppet.is_asked("session/cancel");
    owner.types(CTRL_C);
    assert_eq!(owner.ends(), 130);
}

#[test]
fn who_runs_the_session_is_no_longer_asked_what_somebody_else_has_answered() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut owner = Program::plan(&["--tcp", bus.tcp(), "--pool", "p", "hi"]).at_terminal();
    let turn = puppet.is_prompted();
    let mut ben = bus.client();
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    let label = label(&mut ben);
    ben.asks(2, "_bus/attach", json!({ "session": label, "history": "none" }));
    asks(&mut puppet, 7, "rm x");
    owner.shows("The agent asks: rm x\n  1) yes\n  2) no\n1-2?");
    // What is half typed goes away with the question.
    owner.types("1");
    owner.shows("1-2? 1");
    let asked = until_asked(&mut ben, "session/request_permission");
    ben.answers(&asked, chosen("no"));
    assert_eq!(puppet.gets(7)["result"], chosen("no"));
    owner.shows("  2) no\nben has answered: rm x");
    puppet.speaks("Done.");
    owner.shows("ben has answered: rm x\nDone.");
    puppet.ends_turn(&turn, "end_turn");
    owner.shows("Done.\n> ");
    owner.types("more\n");
    assert_eq!(puppet.is_asked("session/prompt")["params"]["prompt"][0]["text"], "more");
    owner.types(CTRL_C);
    puppet.is_asked("session/cancel");
    owner.types(CTRL_C);
    assert_eq!(owner.ends(), 130);
}

#[test]
fn a_program_gets_the_same_as_envelopes_and_takes_part_by_commands() {
    let (bus, mut puppet, mut ann, session) = anns();
    has_a_turn(&mut ann, &mut puppet, &session);
    let label = label(&mut ann);
    let mut program = attach(&bus, &label, &["--control", "--json", "--input", "json"]).with_pipes();
    let event = |program: &mut Program, kind: &str| {
        let envelope = program.envelope();
        assert_eq!(envelope["ev"]["t"], kind, "{envelope}");
        envelope
    };
    let prompt = event(&mut program, "text");
    assert_eq!((&prompt["role"], &prompt["ev"]["text"]), (&json!("user"), &json!("hello")));
    event(&mut program, "turn-start");
    let answer = event(&mut program, "text");
    assert_eq!((&answer["role"], &answer["ev"]["text"]), (&json!("agent"), &json!("one")));
    event(&mut program, "turn-end");
    event(&mut program, "service");
    assert_eq!(event(&mut program, "session")["ev"]["sessionId"], session.as_str());
    program.types("{\"type\":\"prompt\",\"text\":\"mine\"}\n");
    let turn = puppet.is_asked("session/prompt");
    event(&mut program, "turn-start");
    for (id, is_ours) in [(7, true), (8, false)] {
        asks(&mut puppet, id, &format!("rm {id}"));
        event(&mut program, "tool-call-start");
        let asked = event(&mut program, "permission")["ev"].clone();
        let of_ann = until_asked(&mut ann, "session/request_permission");
        if is_ours {
            program.types(&format!(
                "{}\n",
                json!({ "type": "permission", "id": asked["id"], "optionId": "yes" })
            ));
            assert_eq!(event(&mut program, "permission-end")["ev"]["optionId"], "yes");
        } else {
            ann.answers(&of_ann, chosen("no"));
            assert_eq!(event(&mut program, "permission-end")["ev"]["optionId"], json!(null));
            assert_eq!(event(&mut program, "service")["ev"]["text"], "ann has answered: rm 8");
        }
        puppet.gets(id);
    }
    // Nobody is left who could answer, and it is the own turn.
    asks(&mut puppet, 9, "rm 9");
    event(&mut program, "tool-call-start");
    event(&mut program, "permission");
    program.hangs_up();
    assert_eq!(puppet.gets(9)["result"], chosen("no"));
    assert!(
        event(&mut program, "service")["ev"]["text"].as_str().is_some_and(|it| it.starts_with("refused"))
    );
    event(&mut program, "permission-end");
    puppet.ends_turn(&turn, "end_turn");
    for _ in 7..=9 {
        event(&mut program, "tool-call-end");
    }
    assert_eq!(event(&mut program, "turn-end")["ev"]["status"], "completed");
    assert_eq!(program.ends(), 5);
}

#[test]
fn who_cannot_join_is_told_what_to_do() {
    let (bus, _puppet, mut ann, _) = anns();
    let label = label(&mut ann);
    let attach = |args: &[&str]| {
        let out = run(bus.folder(), &[&["run", "--tcp", bus.tcp()], args].concat(), "");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) = attach(&["--attach", "s999"]);
    let expected = format!(
        "stdio-bus: there is no session s999; there are {label} of ann; `stdio-bus sessions` lists them\n"
    );
    assert_eq!((code, said), (Some(1), expected));
    for (args, words) in [
        (&["--attach", &*label, "hello"][..], "need it"),
        (&["--attach", &label, "--json", "--input", "json"], "need it"),
        (&["--attach", &label, "--control", "a", "b"], "only a PROMPT"),
        (&["--control"], "--attach"),
        (&["--attach", &label, "--pool", "p"], "cannot be used with"),
    ] {
        let (code, said) = attach(args);
        assert!(code == Some(2) && said.contains(words), "{args:?}: {code:?} {said}");
    }
    let bus = Bus::start(unshared(1));
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    ann.opens(&mut puppet, "s");
    let label = self::label(&mut ann);
    let out = run(bus.folder(), &["run", "--tcp", bus.tcp(), "--attach", &label], "");
    assert!(String::from_utf8_lossy(&out.stderr).contains("its pool does not share sessions"), "{out:?}");
}

#[test]
fn sessions_are_listed_with_owner_guests_and_questions() {
    let (bus, mut puppet, mut ann, session) = anns();
    let mut ben = bus.client();
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    ben.asks(2, "_bus/attach", json!({ "session": session, "role": "observe" }));
    puppet.asks_permission(7, "s");
    ann.is_asked("session/request_permission");
    let label = label(&mut ann);
    let list = |more: &[&str]| run(bus.folder(), &[&["sessions", "--tcp", bus.tcp()], more].concat(), "");
    let out = list(&[]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let words: Vec<_> = text.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((words[..4].to_vec(), out.status.code()), (vec![&*label, "live", "p/0", "1"], Some(0)));
    assert!(text.contains("ann     ben (observes)"), "{text}");
    let out = list(&["--json"]);
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let guests = json!([{ "client": "ben", "role": "observe" }]);
    assert_eq!((&all[0]["client"], &all[0]["guests"]), (&json!("ann"), &guests));
    assert_eq!((&all[0]["session"], &all[0]["questions"]), (&json!(label), &json!(1)));
    let out = run(bus.folder(), &["sessions", "--unix", "/no/such.sock"], "");
    assert_eq!(out.status.code(), Some(69));
}

#[test]
fn top_shows_guests_and_open_questions() {
    let (bus, mut puppet, mut ann, session) = anns();
    let mut ben = bus.client();
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    ben.asks(2, "_bus/attach", json!({ "session": session }));
    puppet.asks_permission(7, "s");
    ann.is_asked("session/request_permission");
    let mut top = Program::plan_top(&bus).at_terminal();
    top.shows("stdio-bus 0.");
    top.resizes(40, 140);
    top.shows_so("a session with its guest", |screen| {
        let row = screen.lines().find(|line| line.contains("ann +1")).unwrap_or_default();
        row.contains("ben") && row.contains("live") && screen.contains("ASKS")
    });
    top.types("\t\r");
    top.shows_so("the session in detail", |screen| {
        screen.contains("guests         ben") && screen.contains("questions      1")
    });
    top.types("q");
    assert_eq!(top.ends(), 0);
}

#[test]
fn an_editor_that_only_opens_sessions_joins_one_by_connect() {
    let (bus, mut puppet) = {
        let mut config = one_pool(1);
        config["pools"]
            .as_array_mut()
            .expect("pools")
            .insert(0, json!({ "id": "other", "command": "stdio-bus", "args": ["agent", "echo"] }));
        let bus = Bus::start(config);
        let puppet = bus.puppet();
        (bus, puppet)
    };
    let mut ann = bus.client();
    ann.asks(1, "_bus/hello", json!({ "client": "ann", "pool": "p" }));
    ann.initializes(&mut puppet, json!({}), json!({}));
    ann.asks_for_session(r#""open""#);
    let asked = puppet.is_asked("session/new");
    puppet.answers(&asked, json!({ "sessionId": "s", "modes": { "currentModeId": "ask" } }));
    let session = session_of(&ann.gets("open"));
    has_a_turn(&mut ann, &mut puppet, &session);
    let label = label(&mut ann);
    let connect = |label: &str| {
        Program::plan(&["--tcp", bus.tcp(), "--attach", label]).command_is("connect").with_pipes()
    };
    let mut editor = connect(&label);
    editor.types(&format!("{}\n", initialize(0, json!({}))));
    assert_eq!(editor.envelope()["result"]["protocolVersion"], 1, "the pool is that of the session");
    let new = json!({ "cwd": "/", "mcpServers": [] });
    editor.types(&format!("{}\n", request(1, "session/new", new.clone())));
    let opened = editor.envelope();
    assert_eq!((&opened["id"], &opened["result"]["sessionId"]), (&json!(1), &json!(session)));
    assert_eq!(opened["result"]["modes"]["currentModeId"], "ask");
    let update = |editor: &mut Program, kind: &str, text: &str| {
        let heard = editor.envelope();
        let update = &heard["params"]["update"];
        assert_eq!((&update["sessionUpdate"], &update["content"]["text"]), (&json!(kind), &json!(text)));
    };
    update(&mut editor, "user_message_chunk", "hello");
    update(&mut editor, "agent_message_chunk", "one");
    let prompt = json!([{ "type": "text", "text": "mine" }]);
    let params = json!({ "sessionId": session, "prompt": prompt });
    editor.types(&format!("{}\n", request(2, "session/prompt", params)));
    let turn = puppet.is_asked("session/prompt");
    puppet.speaks("two");
    update(&mut editor, "agent_message_chunk", "two");
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(editor.envelope()["result"]["stopReason"], "end_turn");
    // When the owner leaves, the editor is the owner.
    ann.breaks();
    let mut watcher = bus.client();
    bus.until("the editor owns the session", || {
        watcher.asks(1, "_bus/sessions", json!({}))["sessions"][0]["client"] == "stdio-bus connect"
    });
    // The next session is one of its own.
    editor.types(&format!("{}\n", request(3, "session/new", new)));
    let asked = puppet.is_asked("session/new");
    puppet.answers(&asked, json!({ "sessionId": "t" }));
    assert_ne!(session_of(&editor.envelope()["result"]), session);
    editor.hangs_up();
    assert_eq!(editor.ends(), 0);
    let mut lost = connect("s999");
    assert_eq!(lost.ends(), 1);
    lost.log_has("there is no session s999");
}
