//! The sessions of codex, which a process of its own is asked for.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Past, SESSIONS, summary};
use crate::acp::session_list::{SessionSummary, title_from_prompt};
use crate::cli::bridge::codex_items::Items;
use crate::cli::json::{count, items, string};
use crate::cli::turn_events::{Tokens, TurnEvents};
use crate::detect::probe;

const LIMIT: Duration = Duration::from_secs(20);
const EXIT_LIMIT: Duration = Duration::from_secs(2);
const PAGE: usize = 100;
/// A whole thread comes in one line.
const LINE_BYTES: usize = 64 << 20;

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

/// A process that answers questions about threads and runs none.
struct Server {
    process: Option<probe::Conversation>,
    until: Instant,
    last_id: u64,
}

impl Server {
    fn start(program: &Path) -> Option<Server> {
        let process = probe::converse(program, &["app-server".to_owned()], LINE_BYTES)?;
        let mut server = Server { process: Some(process), until: Instant::now() + LIMIT, last_id: 0 };
        let client =
            json!({ "name": "stdio-bus", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") });
        server.ask("initialize", &json!({ "clientInfo": client }))?;
        server.send(&json!({ "method": "initialized" }))?;
        Some(server)
    }

    /// The result, or `None` if there is an error or no answer in time.
    fn ask(&mut self, method: &str, params: &Value) -> Option<Value> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "id": id, "method": method, "params": params }))?;
        let process = self.process.as_mut()?;
        loop {
            let line = process.lines.read_line(&mut process.stdout, Some(self.until)).ok()??;
            let message: Value = serde_json::from_slice(line).unwrap_or_default();
            if message["id"] == id && message["method"].is_null() {
                return Some(message["result"].clone()).filter(|result| !result.is_null());
            }
        }
    }

    fn send(&mut self, message: &Value) -> Option<()> {
        self.process.as_mut()?.stdin.write_all(format!("{message}\n").as_bytes()).ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.end(Instant::now() + EXIT_LIMIT);
        }
    }
}
