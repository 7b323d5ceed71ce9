//! Lists sessions for `session/list`, newest first and in pages.

use rpc::RpcError;
use rpc::error::INVALID_PARAMS;
use rpc::text::rfc3339_of_millis;
use serde::Deserialize;
use serde_json::{Value, json};

const PAGE_SESSIONS: usize = 100;
const TITLE_CHARS_MAX: usize = 60;

/// A session as `session/list` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionSummary {
    pub(crate) session_id: String,
    pub(crate) cwd: String,
    pub(crate) title: Option<String>,
    pub(crate) updated_ms: u64,
}

/// The params of `session/list`.
#[derive(Deserialize)]
pub(crate) struct ListParams {
    cwd: Option<String>,
    cursor: Option<String>,
}

pub(crate) fn sort_newest_first(sessions: &mut [SessionSummary]) {
    sessions.sort_unstable_by(|a, b| (b.updated_ms, &a.session_id).cmp(&(a.updated_ms, &b.session_id)));
}

/// Builds the result of `session/list` from all sessions, newest first.
pub(crate) fn page(mut sessions: Vec<SessionSummary>, params: ListParams) -> Result<Value, RpcError> {
    sessions.retain(|session| params.cwd.as_ref().is_none_or(|cwd| *cwd == session.cwd));
    if let Some(cursor) = params.cursor {
        let (updated_ms, session_id) = parse_cursor(&cursor)?;
        sessions
            .retain(|session| (updated_ms, session.session_id.as_str()) > (session.updated_ms, session_id));
    }
    let has_more = sessions.len() > PAGE_SESSIONS;
    sessions.truncate(PAGE_SESSIONS);
    let mut result = json!({ "sessions": sessions.iter().map(session_json).collect::<Vec<_>>() });
    if has_more && let Some(last) = sessions.last() {
        result["nextCursor"] = json!(format!("{}.{}", last.updated_ms, last.session_id));
    }
    Ok(result)
}

/// Makes a session's title from the first line of its first prompt.
pub(crate) fn title_from_prompt(prompt: &str) -> Option<String> {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty())?;
    match line.char_indices().nth(TITLE_CHARS_MAX) {
        Some((end, _)) => Some(format!("{}…", line[..end].trim_end())),
        None => Some(line.to_owned()),
    }
}

fn session_json(session: &SessionSummary) -> Value {
    let mut json = json!({
        "sessionId": session.session_id,
        "cwd": session.cwd,
        "updatedAt": rfc3339_of_millis(session.updated_ms),
    });
    if let Some(title) = &session.title {
        json["title"] = json!(title);
    }
    json
}

/// A cursor holds the sort key of the last session on the previous page.
fn parse_cursor(cursor: &str) -> Result<(u64, &str), RpcError> {
    cursor
        .split_once('.')
        .and_then(|(updated_ms, session_id)| Some((updated_ms.parse().ok()?, session_id)))
        .ok_or_else(|| RpcError::new(INVALID_PARAMS, "Invalid params: this cursor is none of ours"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_short_line() {
        assert_eq!(title_from_prompt("\n  fix the build \nplease"), Some("fix the build".to_owned()));
        assert_eq!(title_from_prompt(" \n"), None);
        assert_eq!(title_from_prompt(&"é".repeat(61)), Some(format!("{}…", "é".repeat(60))));
    }
}
