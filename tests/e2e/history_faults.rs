//! Sessions that are kept when things go wrong: files that cannot be written, folders that are none, several buses in
//! one folder, names that are paths, buses that are killed and started again. The bus serves as if nothing were wrong.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use history::SessionId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::{Value, json};

use crate::harness::{Bus, Client, Puppet, request, update};
use crate::history::{config, files, said, turn, update as chunk, writes};

pub(crate) fn folder_of(path: &Path) -> Value {
    config(json!({ "folder": path }))
}

/// What is in the only transcript of this folder, once it has this text.
fn kept(bus: &Bus, folder: &Path, text: &str) -> Vec<String> {
    let mut kept = Vec::new();
    bus.until(&format!("{text} is kept"), || {
        let content =
            files(folder).first().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let lines: Vec<Value> = content.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        kept = said(&lines);
        content.contains(text)
    });
    kept
}

pub(crate) fn with_session(bus: &Bus) -> (Puppet, Client, String) {
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    ann.asks(1, "_bus/hello", json!({ "client": "ann" }));
    writes(bus, &mut ann);
    let session = ann.opens(&mut puppet, "../s1");
    (puppet, ann, session)
}

/// What a client hears until it has joined by the request 5: the texts, and whether something is missing.
pub(crate) fn joined(client: &mut Client, session: &str) -> (String, bool) {
    let mut texts = String::new();
    loop {
        let line = client.receives();
        if line["id"] == 5 {
            return (texts, line["result"]["truncated"] == true);
        }
        assert_eq!(line["params"]["sessionId"], json!(session));
        texts += line["params"]["update"]["content"]["text"].as_str().unwrap();
    }
}

#[test]
fn what_the_log_has_dropped_comes_from_disk_without_a_seam() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = folder_of(dir.path());
    config["limits"] = json!({ "session_log_bytes": 4096 });
    let bus = Bus::start(config);
    let (mut puppet, mut ann, session) = with_session(&bus);
    for number in 0..40 {
        turn(&mut ann, &mut puppet, &session, &format!("<{number}>"));
    }
    // The writer is killed in between, and what it has missed is told to the next one. What the log had dropped before
    // is on disk by then: what neither has would be a gap.
    bus.until("the end of the last turn is kept", || kept(&bus, dir.path(), "<39>").len() == 3 * 40);
    let pid = writes(&bus, &mut ann);
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    bus.until("it is gone", || ann.status()["history"]["pid"].as_i64() != Some(pid.into()));
    turn(&mut ann, &mut puppet, &session, "<40>");
    writes(&bus, &mut ann);
    let mut ben = bus.client();
    ben.sends(&request(5, "_bus/attach", json!({ "session": "s1" })));
    let expected: String = (0..=40).map(|number| format!("<{number}>one two <{number}>")).collect();
    assert_eq!(joined(&mut ben, &session), (expected, false));
    puppet.sends(&update("../s1", "live"));
    bus.until("the guest hears what comes", || ben.reads().contains("live"));
}

#[test]
fn a_bus_that_is_killed_and_started_again_goes_on_in_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut bus = Bus::start(folder_of(dir.path()));
    let (mut puppet, mut ann, session) = with_session(&bus);
    turn(&mut ann, &mut puppet, &session, "first");
    kept(&bus, dir.path(), "end_turn");
    bus.signal(Signal::SIGKILL);
    bus.exit_status();
    bus.leaves_nothing();
    let bus = Bus::start(folder_of(dir.path()));
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    writes(&bus, &mut ann);
    let can = json!({ "loadSession": true });
    ann.initializes(&mut puppet, json!({}), can);
    ann.loads(3, "../s1");
    let load = puppet.is_asked("session/load");
    puppet.sends(&update("../s1", "one two first"));
    ann.reads();
    puppet.answers(&load, json!({}));
    ann.gets(3);
    turn(&mut ann, &mut puppet, "../s1", "second");
    bus.until("the turn is over", || kept(&bus, dir.path(), "second").last().unwrap() == "agent: end_turn");
    let kept = kept(&bus, dir.path(), "second");
    assert_eq!(kept[..3], ["ann: first", "agent: one two first", "agent: end_turn"]);
    assert!(kept[3].contains("reopened"), "{kept:?}");
    assert_eq!(kept[5..], ["agent: one two second", "agent: end_turn"]);
}

#[test]
fn a_session_that_is_loaded_from_another_bus_by_its_whole_id_is_another_life_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut bus = Bus::start(folder_of(dir.path()));
    let (mut puppet, mut ann, session) = with_session(&bus);
    turn(&mut ann, &mut puppet, &session, "first");
    kept(&bus, dir.path(), "end_turn");
    bus.signal(Signal::SIGKILL);
    bus.exit_status();
    bus.leaves_nothing();
    let mut config = folder_of(dir.path());
    config["limits"] = json!({ "session_log_bytes": 2048 });
    let bus = Bus::start(config);
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    let pid = writes(&bus, &mut ann);
    ann.initializes(&mut puppet, json!({}), json!({ "loadSession": true }));
    // The writer is away while the session begins anew: the file has all these numbers already.
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    ann.loads(3, &session);
    let load = puppet.is_asked("session/load");
    puppet.answers(&load, json!({}));
    ann.gets(3);
    for text in ["new", "words"] {
        puppet.sends(&chunk("../s1", text));
        ann.reads();
    }
    bus.until("it is gone", || ann.status()["history"]["pid"].as_i64() != Some(pid.into()));
    writes(&bus, &mut ann);
    for number in 0..20 {
        turn(&mut ann, &mut puppet, &session, &format!("<{number}>"));
    }
    bus.until("the turns are over", || kept(&bus, dir.path(), "<19>").last().unwrap() == "agent: end_turn");
    let kept = kept(&bus, dir.path(), "<19>");
    assert_eq!(kept[..3], ["ann: first", "agent: one two first", "agent: end_turn"]);
    assert!(kept[3].contains("reopened"), "{kept:?}");
    assert_eq!(kept[4], "agent: newwords");
    let mut ben = bus.client();
    ben.sends(&request(5, "_bus/attach", json!({ "session": "s1" })));
    let (texts, _) = joined(&mut ben, &session);
    assert!(texts.starts_with("firstone two firstnewwords<0>one two <0><1>"), "{texts}");
    assert!(texts.ends_with("<19>one two <19>") && texts.matches('<').count() == 40, "{texts}");
}

#[test]
fn a_session_whose_owner_has_changed_is_not_written_twice_by_the_next_writer() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = folder_of(dir.path());
    config["limits"] = json!({ "session_keep_sec": 60 });
    let bus = Bus::start(config);
    let (mut puppet, mut ann, session) = with_session(&bus);
    turn(&mut ann, &mut puppet, &session, "first");
    let mut ben = bus.client();
    ann.breaks();
    bus.until("ann has left", || ben.status()["clients"] == 1);
    ben.sends(&request(3, "session/resume", json!({ "sessionId": "../s1", "cwd": "/", "mcpServers": [] })));
    ben.gets(3);
    let pid = writes(&bus, &mut ben);
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    bus.until("it is gone", || ben.status()["history"]["pid"].as_i64() != Some(pid.into()));
    writes(&bus, &mut ben);
    turn(&mut ben, &mut puppet, "../s1", "second");
    bus.until("the turn is over", || kept(&bus, dir.path(), "second").last().unwrap() == "agent: end_turn");
    let kept = kept(&bus, dir.path(), "second");
    let texts: Vec<&str> =
        kept.iter().filter_map(|line| line.split_once(": ")).map(|(_, text)| text).collect();
    assert_eq!(texts, ["first", "one two first", "end_turn", "second", "one two second", "end_turn"]);
}

#[test]
fn two_buses_in_one_folder_lose_and_double_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let buses = [Bus::start(folder_of(dir.path())), Bus::start(folder_of(dir.path()))];
    let mut sides: Vec<_> = buses.iter().map(with_session).collect();
    for number in 0..20 {
        for (side, (puppet, ann, session)) in sides.iter_mut().enumerate() {
            turn(ann, puppet, session, &format!("<{side}.{number}>"));
        }
    }
    for (side, bus) in buses.iter().enumerate() {
        bus.until("all is there", || {
            let all = kept(bus, dir.path(), "<").join(" ");
            (0..20).all(|number| all.contains(&format!("agent: one two <{side}.{number}>")))
        });
    }
    let all = kept(&buses[0], dir.path(), "<");
    for side in 0..2 {
        let own = all.iter().filter(|line| line.contains(&format!("<{side}."))).cloned();
        let expected = (0..20).flat_map(|number| {
            [format!("ann: <{side}.{number}>"), format!("agent: one two <{side}.{number}>")]
        });
        assert_eq!(own.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_file_that_cannot_be_written_is_a_gap_as_soon_as_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let in_the_way = dir.path().join(format!("{}.ndjson", SessionId::of("a", None, "../s1").as_str()));
    fs::create_dir(&in_the_way).unwrap();
    let bus = Bus::plan(folder_of(dir.path())).ignores_stderr().start();
    let (mut puppet, mut ann, session) = with_session(&bus);
    turn(&mut ann, &mut puppet, &session, "lost");
    bus.until("the status says so", || ann.status()["history"]["counted"]["failing"].is_string());
    fs::remove_dir(&in_the_way).unwrap();
    turn(&mut ann, &mut puppet, &session, "kept");
    let kept = kept(&bus, dir.path(), "one two kept");
    assert!(kept[0].starts_with(r#"bus: {"lines":"#), "{kept:?}");
    assert!(!kept.iter().any(|line| line.contains("lost")), "{kept:?}");
    bus.until("it says that it is over", || ann.status()["history"]["counted"]["failing"].is_null());
}

#[test]
fn a_folder_that_is_a_link_or_a_file_is_refused_and_nobody_else_notices() {
    let dir = tempfile::tempdir().unwrap();
    let (elsewhere, link, file) =
        (dir.path().join("there"), dir.path().join("link"), dir.path().join("file"));
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &link).unwrap();
    fs::write(&file, "mine").unwrap();
    for (path, why) in [(&link, "link"), (&file, "")] {
        let bus = Bus::plan(folder_of(path)).ignores_stderr().start();
        let (mut puppet, mut ann) = (bus.puppet(), bus.client());
        let session = ann.opens(&mut puppet, "../s1");
        turn(&mut ann, &mut puppet, &session, "zebra");
        bus.until("the status says why", || {
            ann.status()["history"]["last_words"].as_str().is_some_and(|words| words.contains(why))
        });
        turn(&mut ann, &mut puppet, &session, "zebra");
    }
    assert!(fs::read_dir(&elsewhere).unwrap().next().is_none());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

/// Root may write everywhere, until it gives that up. A shell does so before it becomes the bus.
const WITHOUT_RIGHTS: &str = r#"exec setpriv --bounding-set -dac_override,-dac_read_search "$0" "$@""#;

#[test]
fn a_folder_that_is_read_only_disturbs_nobody_and_status_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("kept");
    let may = |mode: u32| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(&folder).unwrap();
    may(0o500);
    let mut plan = Bus::plan(folder_of(&folder)).ignores_stderr();
    if geteuid().is_root() {
        let tried = Command::new("sh").args(["-c", WITHOUT_RIGHTS, "true"]).status();
        if !tried.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: root cannot give up its right to write to this folder here");
            return;
        }
        plan = plan.after(WITHOUT_RIGHTS);
    }
    let bus = plan.start();
    let (mut puppet, mut ann, session) = with_session(&bus);
    turn(&mut ann, &mut puppet, &session, "lost");
    bus.until("the status says why", || {
        let failing = ann.status()["history"]["counted"]["failing"].clone();
        failing.as_str().is_some_and(|why| why.contains("Permission denied"))
    });
    assert!(fs::read_dir(&folder).unwrap().next().is_none());
    may(0o700);
    turn(&mut ann, &mut puppet, &session, "found");
    let kept = kept(&bus, &folder, "one two found");
    assert!(kept[0].starts_with(r#"bus: {"lines":"#) && kept[0].contains("denied"), "{kept:?}");
}

#[test]
fn names_that_are_paths_and_endless_lines_stay_where_they_belong() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("h");
    let bus = Bus::start(folder_of(&folder));
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    ann.asks(1, "_bus/hello", json!({ "client": "../../x\u{1b}[2J" }));
    writes(&bus, &mut ann);
    let names = ["../../up", "/etc/passwd", "..", "a/b\\c", "\u{7f}\u{202e}", "nul\u{0}", "index.sqlite"];
    for (number, name) in names.iter().enumerate() {
        let session = ann.opens(&mut puppet, name);
        let prompt = json!([{ "type": "text", "text": format!("word{number}") }]);
        ann.sends(&request(2, "session/prompt", json!({ "sessionId": session, "prompt": prompt })));
        let asked = puppet.is_asked("session/prompt");
        let huge = "y".repeat(if number == 0 { 6 << 20 } else { 10 });
        let content = json!([{ "type": "content", "content": { "type": "text", "text": huge } }]);
        let tool =
            json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": name, "content": content });
        let params = json!({ "sessionId": name, "update": tool });
        puppet.sends(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }).to_string());
        ann.reads();
        puppet.ends_turn(&asked, "end_turn");
        ann.gets(2);
    }
    bus.until("all are kept", || {
        let is_over = |file| fs::read_to_string(file).is_ok_and(|text| text.contains("end_turn"));
        files(&folder).len() == names.len() && files(&folder).iter().all(is_over)
    });
    let mut entries: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["h"]);
    for entry in fs::read_dir(&folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let id = name.strip_suffix(".ndjson").unwrap_or_else(|| panic!("{name}"));
        assert!(SessionId::parse(id).is_some(), "{name}");
        assert!(entry.metadata().unwrap().len() < 64 << 10, "{name} is not cut");
    }
}
