//! `session/list`: the newest first, a page at a time.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::rpc::{INVALID_PARAMS, Refusal};
use crate::stamp::iso_8601;

/// Sessions on one page.
const PAGE: usize = 100;
const TITLE_CHARS: usize = 60;

/// What is told of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) cwd: String,
    pub(crate) title: Option<String>,
    pub(crate) updated_ms: u64,
}

#[derive(Deserialize)]
pub(crate) struct Wanted {
    cwd: Option<String>,
    cursor: Option<String>,
}

pub(crate) fn newest_first(infos: &mut [Info]) {
    infos.sort_unstable_by(|a, b| (b.updated_ms, &a.name).cmp(&(a.updated_ms, &b.name)));
}

/// The page that is wanted of these, which stand newest first.
pub(crate) fn page(mut infos: Vec<Info>, wanted: Wanted) -> Result<Value, Refusal> {
    infos.retain(|info| wanted.cwd.as_ref().is_none_or(|cwd| *cwd == info.cwd));
    if let Some(cursor) = wanted.cursor {
        let (updated_ms, name) = page_start(&cursor)?;
        infos.retain(|info| (updated_ms, info.name.as_str()) > (info.updated_ms, name));
    }
    let more = infos.len() > PAGE;
    infos.truncate(PAGE);
    let mut result = json!({ "sessions": infos.iter().map(listed).collect::<Vec<_>>() });
    if let Some(last) = infos.last().filter(|_| more) {
        result["nextCursor"] = json!(format!("{}.{}", last.updated_ms, last.name));
    }
    Ok(result)
}

/// A session is called by the beginning of its first prompt.
pub(crate) fn title(prompt: &str) -> Option<String> {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty())?;
    match line.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => Some(format!("{}…", line[..end].trim_end())),
        None => Some(line.to_owned()),
    }
}

fn listed(info: &Info) -> Value {
    let mut shape =
        json!({ "sessionId": info.name, "cwd": info.cwd, "updatedAt": iso_8601(info.updated_ms) });
    if let Some(title) = &info.title {
        shape["title"] = json!(title);
    }
    shape
}

/// A cursor names the last session of the page before it.
fn page_start(cursor: &str) -> Result<(u64, &str), Refusal> {
    cursor
        .split_once('.')
        .and_then(|(updated_ms, name)| Some((updated_ms.parse().ok()?, name)))
        .ok_or_else(|| Refusal::new(INVALID_PARAMS, "Invalid params: this cursor is none of ours"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_short_line() {
        assert_eq!(title("\n  fix the build \nplease"), Some("fix the build".to_owned()));
        assert_eq!(title(" \n"), None);
        assert_eq!(title(&"é".repeat(61)), Some(format!("{}…", "é".repeat(60))));
    }
}
