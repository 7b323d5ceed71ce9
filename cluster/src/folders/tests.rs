//! Lines that open sessions, and what becomes of them.

use serde_json::Value;
use tokio::runtime;
use tokio::task::LocalSet;

use super::*;

fn folders(map: &[(&str, &str)], prepare: &[&str]) -> Rc<Folders> {
    let map = map.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
    let prepare: Vec<_> = prepare.iter().map(|word| (*word).to_owned()).collect();
    Rc::new(Folders::new("n17", &map, &prepare))
}

fn opening(id: u32, method: &str, cwd: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"cwd":"{cwd}","mcpServers":[]}}}}"#)
        + "\n"
}

/// Feeds the text in pieces of this length, and returns what reaches the bus and what is answered.
fn play(folders: &Rc<Folders>, text: &str, piece: usize) -> (String, Vec<Value>) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (mut watch, mut settled) = FolderWatch::new(folders.clone());
        let mut out = Outlet::default();
        let (mut kept, mut answers) = (0, Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            kept += watch.feed(Bytes::copy_from_slice(piece), &mut out);
        }
        drop(watch);
        while let Some(outcome) = settled.recv().await {
            match outcome {
                Settled::Line(line) => out.insert(line),
                Settled::Answer(answer) => answers.push(serde_json::from_slice(&answer).unwrap()),
            }
        }
        let mut reached = Vec::new();
        while let Some(front) = out.front() {
            reached.extend_from_slice(front);
            let count = front.len();
            kept += out.advance(count);
        }
        assert_eq!(kept, text.len(), "every byte counts once");
        (String::from_utf8(reached).unwrap(), answers)
    })
}

#[test]
fn the_longest_prefix_of_whole_names_counts() {
    let folders = folders(&[("/home/me", "/srv/me"), ("/home/me/big", "/data"), ("/w", "/")], &[]);
    for (from, to) in [
        ("/home/me", Some("/srv/me")),
        ("/home/me/x", Some("/srv/me/x")),
        ("/home/me/big/y", Some("/data/y")),
        ("/home/me/bigger", Some("/srv/me/bigger")),
        ("/home/men", None),
        ("/w/a", Some("/a")),
        ("/other", None),
    ] {
        assert_eq!(folders.mapped(from).as_deref(), to, "{from}");
    }
}

#[test]
fn lines_without_a_folder_pass_untouched_in_any_pieces() {
    let long = format!("{{\"text\":\"{}\"}}\n", "x".repeat(LINE_BYTES_MAX));
    let text = format!(
        "{{\"id\":1,\"method\":\"session/prompt\",\"params\":{{\"cwd\":\"/no/such\"}}}}\n{long}\n{{}}\n"
    );
    for piece in [1 << 20, 1000, 7] {
        let (reached, answers) = play(&folders(&[], &[]), &text, piece);
        assert!(reached == text && answers.is_empty());
    }
}

#[test]
fn a_folder_that_is_not_there_is_answered_once_and_the_rest_goes_on() {
    let good = opening(1, "session/new", "/");
    let bad = opening(2, "session/load", "/no/such/folder");
    let other = "{\"id\":3,\"method\":\"session/prompt\"}\n";
    for piece in [1 << 20, 100, 1] {
        let (reached, answers) = play(&folders(&[], &[]), &format!("{bad}{other}{good}"), piece);
        assert_eq!(reached, format!("{other}{good}"));
        assert_eq!(answers.len(), 1);
        let (id, error) = (&answers[0]["id"], &answers[0]["error"]);
        assert_eq!((id, &error["code"]), (&json!(2), &json!(-32060)));
        let data = json!({"reason": "no_workspace", "path": "/no/such/folder", "node": "n17"});
        assert_eq!(error["data"], data);
    }
}

#[test]
fn many_sessions_that_are_opened_at_once_wait_for_each_other() {
    let many: String = (0..500).map(|id| opening(id, "session/load", "/")).collect();
    let (reached, answers) = play(&folders(&[], &[]), &many, 1 << 20);
    assert!(answers.is_empty(), "{answers:?}");
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&reached), sorted(&many));
    // Beyond a bound they hear that it is too many, and not that a folder is missing.
    let more: String = (0..WAITING_MAX + 3).map(|id| opening(id as u32, "session/new", "/")).collect();
    let (_, answers) = play(&folders(&[], &[]), &more, 64 << 20);
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer["error"]["data"]["reason"] == "busy"), "{answers:?}");
}

#[test]
fn folders_are_mapped_and_nothing_else_of_the_line_changes() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path().to_str().unwrap();
    let folders = folders(&[("/home/me", here)], &[]);
    let line = |cwd: &str, more: &str| {
        let params = format!(r#"{{"additionalDirectories":["{more}"],"big":1e400,"cwd" : "{cwd}" }}"#);
        format!(r#"{{"params": {params},"id":"a\/b","method":"session\/new"}}"#) + "\n"
    };
    let (reached, answers) = play(&folders, &line("/home/me", "/home/me/"), 50);
    assert!(answers.is_empty(), "{answers:?}");
    assert_eq!(reached, line(here, &format!("{here}/")));
    let (_, answers) = play(&folders, &line("/home/me", "/home/me/none"), 50);
    assert_eq!(answers[0]["error"]["data"]["path"], "/home/me/none");
    assert_eq!(answers[0]["id"], "a/b");
    let list = "{\"id\":1,\"method\":\"session/list\",\"params\":{\"cwd\":\"/home/me/none\"}}\n";
    assert_eq!(play(&folders, list, 10).0, list.replace("/home/me", here));
}

#[test]
fn a_folder_is_looked_for_whatever_else_the_line_has() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path().to_str().unwrap();
    let folders = folders(&[("/home/me", here)], &[]);
    let line = |params: &str| format!(r#"{{"id":1,"method":"session/new","params":{{{params}}}}}"#) + "\n";
    for odd in [
        r#""additionalDirectories":"x""#,
        r#""additionalDirectories":{"x":1}"#,
        r#""additionalDirectories":[7,null]"#,
        r#""additionalDirectories":null"#,
        r#""cwd":7"#,
        r#""cwd":"/""#,
        r#""x":1e999"#,
    ] {
        for missing in [
            line(&format!(r#"{odd},"cwd":"/home/me/none""#)),
            line(&format!(r#""cwd":"/home/me/none",{odd}"#)),
        ] {
            let (reached, answers) = play(&folders, &missing, 50);
            assert_eq!((&*reached, answers.len()), ("", 1), "{missing}");
            assert_eq!(answers[0]["error"]["data"]["path"], "/home/me/none", "{missing}");
        }
        let there = line(&format!(r#"{odd},"cwd":"/home/me""#));
        assert_eq!(play(&folders, &there, 50).0, there.replace("/home/me", here));
    }
}

#[test]
fn a_command_makes_folders_and_says_why_it_cannot() {
    let here = tempfile::tempdir().unwrap();
    let wanted = format!("{}/new one", here.path().display());
    let line = opening(1, "session/new", &wanted);
    let makes = folders(&[], &["mkdir"]);
    let (reached, answers) = play(&makes, &format!("{line}{line}"), 1 << 20);
    assert!(answers.is_empty(), "{answers:?}");
    assert_eq!(reached, format!("{line}{line}"));
    assert!(makes.preparing.borrow().is_empty());
    let (_, answers) = play(&folders(&[], &["ls", "--"]), &opening(1, "session/new", "/no/such"), 1 << 20);
    let error = &answers[0]["error"];
    assert!(error["message"].as_str().unwrap().contains("ls has failed"), "{error}");
    assert!(error["data"]["stderr"].as_str().unwrap().contains("/no/such"), "{error}");
    let (_, answers) = play(&folders(&[], &["/no/command"]), &opening(1, "session/new", "/no/such"), 1 << 20);
    assert!(answers[0]["error"]["message"].as_str().unwrap().contains("cannot be run"));
}
