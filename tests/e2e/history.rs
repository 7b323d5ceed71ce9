//! Sessions that are kept: what is in the files, what becomes of them when processes are killed, and the commands that
//! read them.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, Program, Puppet, request, run};

/// A chunk of what the agent says.
pub(crate) fn update(session: &str, text: &str) -> String {
    let update =
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
    let params = json!({ "sessionId": session, "update": update });
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }).to_string()
}

pub(crate) fn config(history: Value) -> Value {
    let pool = json!({ "id": "a", "command": env!("CARGO_BIN_EXE_puppet"), "args": ["@sock"] });
    json!({ "listen": ["tcp://127.0.0.1:0"], "pools": [pool], "history": history })
}

/// A bus that keeps what is said, with a session of Ann's.
fn keeping() -> (Bus, Puppet, Client, String) {
    let bus = Bus::start(config(json!({ "folder": "@dir/history" })));
    let mut puppet = bus.puppet();
    let mut ann = bus.client();
    ann.asks(1, "_bus/hello", json!({ "client": "ann" }));
    writes(&bus, &mut ann);
    let session = ann.opens(&mut puppet, "../s1");
    (bus, puppet, ann, session)
}

/// Waits until the writer is up. Returns its process.
pub(crate) fn writes(bus: &Bus, client: &mut Client) -> i32 {
    let mut pid = None;
    bus.until("the history is written", || {
        let status = client.status();
        pid = status["history"]["pid"].as_i64().filter(|_| status["history"]["state"] == "up");
        pid.is_some()
    });
    pid.unwrap() as i32
}

pub(crate) fn turn(ann: &mut Client, puppet: &mut Puppet, session: &str, text: &str) {
    let prompt = json!([{ "type": "text", "text": text }]);
    ann.sends(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
    let turn = puppet.is_asked("session/prompt");
    for part in ["one ", "two ", text] {
        puppet.sends(&update("../s1", part));
        assert_eq!(ann.reads(), update(session, part));
    }
    puppet.ends_turn(&turn, "end_turn");
    ann.gets(2);
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|ending| ending == "ndjson")).collect()
}

/// The lines of the only file, once it has one that holds this text.
fn lines(bus: &Bus, text: &str) -> Vec<Value> {
    let mut lines = Vec::new();
    bus.until(&format!("the file has {text}"), || {
        let files = files(&bus.folder().join("history"));
        let content = files.first().map(|file| fs::read_to_string(file).unwrap()).unwrap_or_default();
        assert!(files.len() <= 1);
        lines = content.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        content.contains(text)
    });
    lines
}

/// What was said, with who said it.
pub(crate) fn said(lines: &[Value]) -> Vec<String> {
    let text = |line: &Value| {
        let (by, message) = (line["by"].as_str()?, &line["message"]);
        let update = &message["params"]["update"]["content"]["text"];
        let said = update.as_str().or(message["params"]["prompt"][0]["text"].as_str());
        let said = said.or(message["result"]["stopReason"].as_str());
        let said =
            said.map(str::to_owned).or_else(|| Some(line.get("gap").or(line.get("event"))?.to_string()))?;
        Some(format!("{by}: {said}"))
    };
    lines.iter().filter_map(text).collect()
}

fn command(bus: &Bus, args: &[&str]) -> (bool, String) {
    let config = bus.config_path();
    let bus_args = ["--config", config.to_str().unwrap(), "--tcp", bus.tcp()];
    let args: Vec<&str> = args.iter().copied().chain(bus_args).collect();
    let output = run(bus.folder(), &args, "");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn what_is_said_is_kept_and_found_shown_exported_and_deleted_without_a_bus() {
    let (mut bus, mut puppet, mut ann, session) = keeping();
    turn(&mut ann, &mut puppet, &session, "zebra");
    let kept = lines(&bus, "end_turn");
    assert_eq!((&kept[0]["session"], &kept[0]["agent_session"]), (&json!(session), &json!("../s1")));
    assert_eq!((&kept[0]["v"], &kept[0]["pool"]), (&json!(1), &json!("a")));
    assert_eq!(said(&kept[1..]), ["ann: zebra", "agent: one two zebra", "agent: end_turn"]);
    let (is_fine, open) = command(&bus, &["sessions", "--all", "--json"]);
    let open: Value = serde_json::from_str(&open).unwrap_or_else(|_| panic!("{open}"));
    assert!(is_fine && open.as_array().unwrap().len() == 1 && open[0]["session"] == "s1", "{open}");
    assert!(open[0].get("guests").is_none(), "{open}");
    assert!(command(&bus, &["sessions", "show", "s1"]).1.contains("one two zebra"));
    let (is_fine, refused) = command(&bus, &["sessions", "delete", "s1"]);
    assert!(!is_fine && refused.contains("open at a bus"), "{refused}");
    bus.signal(Signal::SIGTERM);
    assert!(bus.exit_status().success());
    bus.leaves_nothing();
    let past = command(&bus, &["sessions", "--all", "--json"]).1;
    let past: Value = serde_json::from_str(&past).unwrap_or_else(|_| panic!("{past}"));
    assert_eq!((&past[0]["state"], &past[0]["title"]), (&json!("past"), &json!("zebra")));
    let id = past[0]["id"].as_str().unwrap();
    let found: Value =
        serde_json::from_str(&command(&bus, &["sessions", "search", "zebra", "--json"]).1).unwrap();
    assert_eq!((&found[0]["id"], found.as_array().unwrap().len()), (&json!(id), 2));
    assert!(command(&bus, &["sessions", "show", &id[..6]]).1.contains("## ann ("));
    let (is_fine, html) =
        command(&bus, &["sessions", "export", &id[..6], "--format", "html", "-o", "talk.html"]);
    assert!(is_fine, "{html}");
    assert!(fs::read_to_string(bus.folder().join("talk.html")).unwrap().contains("one two zebra"));
    let (is_fine, deleted) = command(&bus, &["sessions", "delete", &id[..6]]);
    assert!(is_fine, "{deleted}");
    assert!(files(&bus.folder().join("history")).is_empty());
    assert_eq!(command(&bus, &["sessions", "search", "zebra", "--json"]).1, "[]\n");
    assert!(!command(&bus, &["sessions", "show", &id[..6]]).0);
}

#[test]
fn a_writer_that_is_killed_is_started_again_and_told_what_it_has_missed() {
    let (bus, mut puppet, mut ann, session) = keeping();
    turn(&mut ann, &mut puppet, &session, "first");
    lines(&bus, "end_turn");
    let killed = writes(&bus, &mut ann);
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    bus.until("it is gone", || ann.status()["history"]["pid"].as_i64() != Some(killed.into()));
    // Nobody writes now. The log of the bus has it for the next one.
    puppet.sends(&update("../s1", "maybe"));
    ann.reads();
    writes(&bus, &mut ann);
    turn(&mut ann, &mut puppet, &session, "second");
    let kept = said(&lines(&bus, "second"));
    bus.until("the turn is over", || said(&lines(&bus, "second")).last().unwrap() == "agent: end_turn");
    assert_eq!(kept[..3], ["ann: first", "agent: one two first", "agent: end_turn"]);
    assert_eq!(kept[3], "agent: maybe");
    assert_eq!(kept[4], "ann: second");
    assert_eq!(ann.status()["history"]["restarts"], 1);
}

#[test]
fn the_first_start_says_where_it_is_kept_and_how_to_switch_that_off() {
    let (bus, _puppet, mut ann, _) = keeping();
    let folder = bus.folder().join("history");
    let says = format!("what is said through the bus is kept in {}", folder.display());
    bus.log_has(&says);
    bus.log_has(r#"readable by you alone; "history": false in bus.json turns that off"#);
    // A writer that finds the folder has nothing new to say.
    let killed = writes(&bus, &mut ann);
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    bus.until("it is gone", || ann.status()["history"]["pid"].as_i64() != Some(killed.into()));
    writes(&bus, &mut ann);
    assert_eq!(bus.log.text().matches("is kept in").count(), 1);
}

#[test]
fn a_bus_that_is_killed_leaves_what_was_said() {
    let (mut bus, mut puppet, mut ann, session) = keeping();
    turn(&mut ann, &mut puppet, &session, "first");
    puppet.sends(&update("../s1", "unfinished"));
    ann.reads();
    // The writer is told in the same round as the owner. An answer shows that the round is over.
    ann.status();
    bus.signal(Signal::SIGKILL);
    bus.exit_status();
    assert_eq!(said(&lines(&bus, "unfinished")).last().unwrap(), "agent: unfinished");
    bus.leaves_nothing();
}

#[test]
fn where_history_is_off_not_a_byte_is_kept() {
    for history in [json!(false), json!({ "folder": "@dir/history" })] {
        let mut config = config(history);
        config["pools"][0]["history"] = false.into();
        let bus = Bus::start(config);
        let (mut puppet, mut ann) = (bus.puppet(), bus.client());
        let session = ann.opens(&mut puppet, "../s1");
        turn(&mut ann, &mut puppet, &session, "zebra");
        assert_eq!(ann.status()["history"], Value::Null);
        assert!(!bus.folder().join("history").exists() && !bus.folder().join("stdio-bus/history").exists());
    }
}

#[test]
fn a_disk_that_takes_nothing_disturbs_nobody_and_status_says_so() {
    // Files may have this many blocks of 512 bytes, and nothing can be written to one that is longer.
    let plan = Bus::plan(config(json!({ "folder": "@dir/history" }))).after("ulimit -f 8");
    let bus = plan.ignores_stderr().start();
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    writes(&bus, &mut ann);
    let session = ann.opens(&mut puppet, "../s1");
    for number in 0..20 {
        turn(&mut ann, &mut puppet, &session, &format!("{number} {}", "x".repeat(300)));
    }
    bus.until("the status says so", || {
        let counted = ann.status()["history"]["counted"].clone();
        counted["failing"].is_string() && counted["missed"].as_u64() > Some(0)
    });
    let kept = said(&lines(&bus, "0 xxx"));
    assert!(kept.len() > 3 && kept[0].starts_with("#") && kept[2] == "agent: end_turn", "{kept:?}");
}

/// A session of Ann's that is past, at a puppet that can do this.
fn past_session(bus: &Bus, puppet: &mut Puppet, ann: &mut Client, session: &str) -> String {
    turn(ann, puppet, session, "zebra");
    lines(bus, "end_turn");
    ann.asks(9, "_bus/close", json!({ "session": session }));
    lines(bus, "closed");
    let past: Value = serde_json::from_str(&command(bus, &["sessions", "--all", "--json"]).1).unwrap();
    past[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_past_session_whose_agent_cannot_open_it_begins_anew_with_what_was_said_last() {
    let (bus, mut puppet, mut ann, session) = keeping();
    let id = past_session(&bus, &mut puppet, &mut ann, &session);
    let config = bus.config_path();
    let args = ["--resume", &id[..8], "--config", config.to_str().unwrap(), "--tcp", bus.tcp()];
    // Nobody can look at what would be sent, so nothing is.
    let mut refused = Program::plan(&args).with_pipes();
    // A process of its own: this client can do more than Ann.
    let mut puppet = bus.puppet();
    let initialize = puppet.is_asked("initialize");
    puppet.answers(&initialize, json!({ "protocolVersion": 1 }));
    assert_eq!(refused.ends(), 1);
    refused.log_has("at a terminal, and without a PROMPT, a new session is offered");
    let mut talk = Program::plan(&args).at_terminal();
    let new = puppet.is_asked("session/new");
    puppet.answers(&new, json!({ "sessionId": "s2" }));
    talk.shows("This is a new session");
    talk.shows("Please go on from here.");
    assert!(!puppet.has_more(), "it is not sent by itself");
    talk.types("\r");
    let prompt = puppet.is_asked("session/prompt");
    let text = prompt["params"]["prompt"][0]["text"].as_str().unwrap();
    assert!(text.contains("[ann] zebra") && text.contains("[agent] one two zebra"), "{text}");
    puppet.ends_turn(&prompt, "end_turn");
    talk.types("\x04");
    assert_eq!(talk.ends(), 0);
}

#[test]
fn a_past_session_goes_on_at_an_agent_that_can_load_it() {
    let (bus, mut puppet, mut ann, session) = keeping();
    let id = past_session(&bus, &mut puppet, &mut ann, &session);
    let config = bus.config_path();
    let args =
        ["--resume", &id[..8], "--config", config.to_str().unwrap(), "--tcp", bus.tcp(), "And the yak?"];
    let mut talk = Program::plan(&args).at_terminal();
    // A process of its own: this client can do more than Ann.
    let mut puppet = bus.puppet();
    let initialize = puppet.is_asked("initialize");
    let can = json!({ "loadSession": true });
    puppet.answers(&initialize, json!({ "protocolVersion": 1, "agentCapabilities": can }));
    let load = puppet.is_asked("session/load");
    assert_eq!(load["params"]["sessionId"], "../s1");
    puppet.sends(&update("../s1", "one two zebra"));
    puppet.answers(&load, json!({}));
    let prompt = puppet.is_asked("session/prompt");
    assert_eq!(prompt["params"]["prompt"][0]["text"], "And the yak?");
    puppet.sends(&update("../s1", "It sleeps."));
    puppet.ends_turn(&prompt, "end_turn");
    talk.shows("It sleeps.");
    talk.types("\x04");
    assert_eq!(talk.ends(), 0);
    // What the agent has told again is not written twice.
    let kept = said(&lines(&bus, "It sleeps."));
    assert_eq!(kept.iter().filter(|line| line.contains("one two zebra")).count(), 1, "{kept:?}");
    let again = kept.iter().position(|line| line.contains("reopened")).expect("it was opened again");
    assert!(
        kept[again + 1].ends_with(": And the yak?") && kept[again + 2] == "agent: It sleeps.",
        "{kept:?}"
    );
}

#[test]
fn what_agents_report_is_counted_once_and_shown_everywhere() {
    let (bus, mut puppet, mut ann, session) = keeping();
    let report = |used: u64, cost: f64| {
        let cost = json!({ "amount": cost, "currency": "USD" });
        let update = json!({ "sessionUpdate": "usage_update", "used": used, "size": 200_000, "cost": cost });
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "../s1", "update": update } })
    };
    for (input, cost) in [(100, 0.25), (150, 0.75)] {
        ann.sends(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": [] })));
        let asked = puppet.is_asked("session/prompt");
        puppet.sends(&report(5000, cost).to_string());
        ann.reads();
        puppet.answers(
            &asked,
            json!({ "stopReason": "end_turn", "usage": { "inputTokens": input, "outputTokens": 7 } }),
        );
        ann.gets(2);
    }
    let mut usage = json!(null);
    bus.until("the status has it", || {
        usage = ann.status()["usage"].clone();
        usage["pools"][0]["tokens"]["input"] == 150
    });
    let used = json!({ "tokens": { "input": 150, "output": 7 }, "cost": { "USD": 0.75 } });
    let named = |name: &str, key: &str| {
        let mut row = used.clone();
        row[name] = key.into();
        row
    };
    assert_eq!((&usage["pools"][0], &usage["sessions"][0]), (&named("pool", "a"), &named("session", "s1")));
    let metrics = run(bus.folder(), &["metrics", "--tcp", bus.tcp()], "");
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(metrics.contains(r#"stdio_bus_tokens_total{pool="a",kind="input"} 150"#), "{metrics}");
    assert!(metrics.contains(r#"stdio_bus_cost_total{pool="a",currency="USD"} 0.75"#), "{metrics}");
    let on_disk: Value = serde_json::from_str(&command(&bus, &["usage", "--json"]).1).unwrap();
    assert_eq!((&on_disk["pools"][0], &on_disk["total"]), (&named("pool", "a"), &used));
    // Another writer goes on counting where this one was.
    let pid = writes(&bus, &mut ann);
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    bus.until("it is gone", || ann.status()["history"]["pid"].as_i64() != Some(pid.into()));
    writes(&bus, &mut ann);
    puppet.sends(&report(6000, 1.0).to_string());
    ann.reads();
    bus.until("only what is new is counted", || ann.status()["usage"]["pools"][0]["cost"]["USD"] == 0.25);
}
