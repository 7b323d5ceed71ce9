//! The sessions that a CLI keeps by itself, such as those that a user began at a terminal.
//!
//! They are listed beside the adapter's own under the ids that the CLI gave them, and can be loaded like those. The
//! adapter keeps no file of them: the CLI's history is theirs.

mod claude;
mod codex;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::argv;
use super::record::{Entry, Record, merge_chunks};
use super::runtimes::OwnProtocol;
use super::shared::{SESSION_ID_PREFIX, Shared};
use super::turn_events::TurnEvents;
use crate::acp::session_files::EventSourced;
use crate::acp::session_list::{SessionSummary, title_from_prompt};

/// The most sessions of a CLI that are listed, the newest first.
const SESSIONS: usize = 500;
/// How many lines of a file of ours are searched for the CLI's id of the session.
const HEAD_LINES: usize = 100;

/// A session as the CLI keeps it.
struct Past {
    cwd: String,
    title: Option<String>,
    events: TurnEvents,
}

/// Whether the sessions of this CLI can be read.
pub(super) fn is_known(shared: &Shared) -> bool {
    shared.turn.own_protocol().is_some()
}

/// The CLI's sessions, without those that the adapter has opened. Starts a process, or reads many files.
pub(super) fn list(shared: &Shared) -> Vec<SessionSummary> {
    let mut sessions = match shared.turn.own_protocol() {
        Some(OwnProtocol::Claude) => claude::list(),
        Some(OwnProtocol::Codex) => shared.program().map(|program| codex::list(&program)).unwrap_or_default(),
        None => return Vec::new(),
    };
    let ours = shared.folder.as_deref().map(ids_of_ours).unwrap_or_default();
    sessions.retain(|session| argv::is_session(&session.session_id) && !ours.contains(&session.session_id));
    sessions
}

/// The record of a session that only the CLI knows.
pub(super) fn read(shared: &Shared, id: &str) -> Option<Record> {
    if !argv::is_session(id) {
        return None;
    }
    let past = match shared.turn.own_protocol()? {
        OwnProtocol::Claude => claude::read(id)?,
        OwnProtocol::Codex => codex::read(&shared.program().ok()?, id)?,
    };
    let Past { cwd, title, mut events } = past;
    events.fail_open_calls();
    let mut record = Record::default();
    record.apply(Entry::Cwd(cwd));
    record.apply(Entry::Cli(id.to_owned()));
    record.apply(Entry::Answered);
    if let Some(title) = title {
        record.apply(Entry::Title(title));
    }
    for update in merge_chunks(events.updates) {
        record.apply(Entry::Update(Box::new(update)));
    }
    Some(record)
}

/// Removes a session from the CLI's own history. Does nothing with an id of the adapter's own.
pub(super) fn delete(shared: &Shared, id: &str) {
    if !argv::is_session(id) || id.starts_with(SESSION_ID_PREFIX) {
        return;
    }
    match shared.turn.own_protocol() {
        Some(OwnProtocol::Claude) => claude::delete(id),
        Some(OwnProtocol::Codex) => {
            if let Ok(program) = shared.program() {
                codex::delete(&program, id);
            }
        }
        None => {}
    }
}

/// The CLI's ids of the sessions in this folder, which stand in the first lines of their files.
fn ids_of_ours(folder: &Path) -> HashSet<String> {
    let mut ids = HashSet::new();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(file) = File::open(file.path()) else { continue };
        let lines = BufReader::new(file).lines().map_while(Result::ok).take(HEAD_LINES);
        let mut known = lines.filter(|line| line.starts_with("{\"cli\":"));
        let id = known.find_map(|line| match serde_json::from_str::<Value>(&line).ok()?["cli"].as_str() {
            Some(id) if !id.is_empty() => Some(id.to_owned()),
            _ => None,
        });
        ids.extend(id);
    }
    ids
}

fn summary(id: &str, cwd: &str, title: Option<&str>, updated_ms: u64) -> SessionSummary {
    SessionSummary {
        session_id: id.to_owned(),
        cwd: cwd.to_owned(),
        title: title.and_then(title_from_prompt),
        updated_ms,
    }
}
