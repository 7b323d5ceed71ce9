//! The sessions of codex, which a process of its own is asked for.

use std::path::Path;

use serde_json::{Value, json};

use super::{Past, SESSIONS, summary};
use crate::acp::session_list::{SessionSummary, title_from_prompt};
use crate::cli::bridge::codex_items::Items;
use crate::cli::codex_server::Server;
use crate::cli::json::{count, items, string};
use crate::cli::turn_events::{Tokens, TurnEvents};

const PAGE: usize = 100;

pub(super) fn list(program: &Path) -> Vec<SessionSummary> {
    let Some(mut server) = Server::start(program) else { return Vec::new() };
    let mut sessions = Vec::new();
    let mut cursor = Value::Null;
    while sessions.len() < SESSIONS {
        let Some(page) = server.ask("thread/list", &json!({ "limit": PAGE, "cursor": cursor })) else {
            break;
        };
        sessions.extend(items(&page["data"]).iter().filter_map(listed));
        cursor = page["nextCursor"].clone();
        if !cursor.is_string() {
            break;
        }
    }
    sessions
}

fn listed(thread: &Value) -> Option<SessionSummary> {
    let title = thread["name"].as_str().or_else(|| thread["preview"].as_str());
    let updated_ms = count(thread, "updatedAt") * 1000;
    Some(summary(thread["id"].as_str()?, thread["cwd"].as_str()?, title, updated_ms))
}

pub(super) fn read(program: &Path, id: &str) -> Option<Past> {
    let answer =
        Server::start(program)?.ask("thread/read", &json!({ "threadId": id, "includeTurns": true }))?;
    past(&answer["thread"])
}

pub(super) fn delete(program: &Path, id: &str) {
    if let Some(mut server) = Server::start(program) {
        let _ = server.ask("thread/archive", &json!({ "threadId": id }));
    }
}

/// Reads a thread with its turns.
pub(super) fn past(thread: &Value) -> Option<Past> {
    let cwd = thread["cwd"].as_str()?;
    let mut events = TurnEvents::new(cwd.as_ref(), Tokens::default());
    let mut past = Items::default();
    for item in items(&thread["turns"]).iter().flat_map(|turn| items(&turn["items"])) {
        if item["type"] == "userMessage" {
            for part in items(&item["content"]).iter().filter(|part| part["type"] == "text") {
                events.user_text(string(item, "id"), string(part, "text"));
            }
        } else {
            past.on_notification("item/completed", &json!({ "item": item }), &mut events);
        }
    }
    let title = thread["name"].as_str().or_else(|| thread["preview"].as_str());
    Some(Past { cwd: cwd.to_owned(), title: title.and_then(title_from_prompt), events })
}
