//! Golden files: a session as the CLI keeps it (`.in`), and what a client hears when it is loaded (`.out`). What the
//! official adapters told of the same session is in `.official.json`: each text, and each call with its title, kind and
//! status.
//!
//! `GOLDEN=write` rewrites the `.out` files. Review the difference before you commit it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn pasts() -> [(&'static str, Past); 2] {
    let text = |name: &str| fs::read_to_string(file(name)).unwrap();
    let thread: Value = serde_json::from_str(&text("history-codex/terminal.in")).unwrap();
    [
        ("history-claude/terminal", claude::past(&text("history-claude/terminal.in")).unwrap()),
        ("history-codex/terminal", codex::past(&thread).unwrap()),
    ]
}

#[test]
fn every_recorded_session_gives_its_golden_file() {
    for (name, past) in pasts() {
        assert_eq!((past.cwd.as_str(), past.title.as_deref()), ("/work", Some("do it")));
        let updates = merge_chunks(past.events.updates);
        let text: String = updates.iter().map(|update| format!("{}\n", json!(update))).collect();
        let golden = file(&format!("{name}.out"));
        if std::env::var_os("GOLDEN").is_some_and(|wish| wish == "write") {
            fs::write(&golden, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&golden).unwrap(), "{name}");
    }
}

/// The adapter for codex calls the tools of commands by other names, which are not compared.
#[test]
fn sessions_are_replayed_like_the_official_adapters_do() {
    for (name, past) in pasts() {
        let mut told: Vec<Value> = Vec::new();
        let mut calls: Vec<(String, usize)> = Vec::new();
        for update in merge_chunks(past.events.updates).iter().map(|update| json!(update)) {
            let kind = update["sessionUpdate"].as_str().unwrap();
            if kind.ends_with("_chunk") {
                told.push(json!([kind, update["content"]["text"]]));
                continue;
            }
            let id = update["toolCallId"].as_str().unwrap();
            let at = match calls.iter().find(|(known, _)| known == id) {
                Some((_, at)) => *at,
                None => {
                    told.push(json!([kind, null, null, null]));
                    calls.push((id.to_owned(), told.len() - 1));
                    told.len() - 1
                }
            };
            for (place, key) in [(1, "title"), (2, "kind"), (3, "status")] {
                if update[key].is_string() {
                    told[at][place] = update[key].clone();
                }
            }
        }
        let official = fs::read_to_string(file(&format!("{name}.official.json"))).unwrap();
        assert_eq!(json!(told), serde_json::from_str::<Value>(&official).unwrap(), "{name}");
    }
}
