//! The kept sessions of a folder, for those who read them: listed, found by a label, read and removed. The bus need not
//! run.

use std::io::{self, Read};
use std::path::Path;

use crate::entry::Header;
use crate::folder::{Folder, SessionId};
use crate::index::{Index, Summary};
use crate::reader::{Page, Transcript};

/// The kept sessions of a folder.
pub struct Archive {
    folder: Folder,
    index: Index,
}

/// Why a label names no kept session.
#[derive(Debug, PartialEq, Eq)]
pub enum NotFound {
    /// None has it.
    None,
    /// These have ids that begin so.
    Several(Vec<String>),
}

impl Archive {
    /// Opens the folder. `None`: there is none, so nothing is kept.
    pub fn open(path: &Path) -> io::Result<Option<Archive>> {
        let Some(folder) = Folder::open(path)? else { return Ok(None) };
        let index = Index::open(&folder)?;
        Ok(Some(Archive { folder, index }))
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The kept session that is meant: by the first characters of its id, or by the id that the bus or the agent has
    /// for it.
    pub fn find(&self, label: &str) -> io::Result<Result<Summary, NotFound>> {
        let all = self.index.list()?;
        let is_exact = |it: &&Summary| it.id == label || it.session == label || it.agent_session == label;
        if let Some(exact) = all.iter().find(is_exact) {
            return Ok(Ok(exact.clone()));
        }
        let begins = |it: &&Summary| {
            !label.is_empty()
                && [&it.id, &it.session, &it.agent_session].into_iter().any(|id| id.starts_with(label))
        };
        let mut found: Vec<&Summary> = all.iter().filter(begins).collect();
        Ok(match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only.clone()),
            (None, _) => Err(NotFound::None),
            (Some(last), false) => {
                Err(NotFound::Several(found.into_iter().chain([last]).map(|it| it.id.clone()).collect()))
            }
        })
    }

    /// Reads a kept session.
    pub fn read(&self, id: &str) -> io::Result<(Header, Transcript)> {
        let id = SessionId::parse(id).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut bytes = Vec::new();
        self.folder.read(&id)?.read_to_end(&mut bytes)?;
        let mut transcript = Transcript::read(&bytes);
        let header = transcript.header.take();
        Ok((header.ok_or_else(|| io::Error::other("the file is no transcript"))?, transcript))
    }

    /// Reads a part of a kept session, from this byte on.
    pub fn page(&self, id: &str, from: u64, entries: usize, bytes: u64) -> io::Result<Page> {
        let id = SessionId::parse(id).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Page::read(self.folder.read(&id)?, from, entries, bytes)
    }

    /// Removes a kept session, and what the index has of it. `false`: a bus writes to it, so it stays.
    pub fn remove(&mut self, id: &str) -> io::Result<bool> {
        let id = SessionId::parse(id).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let is_removed = self.folder.remove(&id)?;
        self.index = Index::open(&self.folder)?;
        Ok(is_removed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use serde_json::value::to_raw_value;
    use tempfile::tempdir;

    use super::*;
    use crate::entry::VERSION;
    use crate::export::{Format, document};
    use crate::index::Query;
    use crate::store::{Heard, Store};

    fn keep(path: &Path, name: &str, messages: &[(&str, serde_json::Value)]) -> Store {
        let mut store = Store::new(Folder::create(path).unwrap());
        let (session, agent_session) = (format!("T.{name}"), name.to_owned());
        let (pool, opened) = ("claude".to_owned(), "2026-11-18T08:00:00.000Z".to_owned());
        let cwd = Some("/srv/shop".to_owned());
        store.opened(
            name,
            Header { v: VERSION, session, agent_session, pool, opened, cwd, ..Header::default() },
        );
        for (number, (by, message)) in messages.iter().enumerate() {
            let heard = Heard {
                at: format!("2026-11-18T08:00:{number:02}.000Z"),
                by: (*by).to_owned(),
                before: None,
                n: None,
                is_replay: false,
                is_again: false,
                missed: 0,
                message: to_raw_value(message).unwrap(),
            };
            store.heard(name, heard);
        }
        store.leave();
        store
    }

    fn prompt(text: &str) -> serde_json::Value {
        json!({ "id": 1, "method": "session/prompt", "params": { "prompt": [{ "type": "text", "text": text }] } })
    }

    fn update(update: &serde_json::Value) -> serde_json::Value {
        json!({ "method": "session/update", "params": { "sessionId": "x", "update": update } })
    }

    fn says(text: &str) -> serde_json::Value {
        update(
            &json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } }),
        )
    }

    fn found(archive: &Archive, words: &[&str], more: impl Fn(&mut Query)) -> Vec<String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let mut query = Query { words, limit: 10, ..Query::default() };
        more(&mut query);
        archive.index().search(&query).unwrap().into_iter().map(|found| found.text).collect()
    }

    #[test]
    fn what_was_said_is_found_also_when_more_is_said_and_no_more_when_it_is_removed() {
        let dir = tempdir().unwrap();
        let store = keep(
            dir.path(),
            "one",
            &[("zed", prompt("Fix the build please")), ("agent", says("The linker fails"))],
        );
        drop(store);
        let mut archive = Archive::open(dir.path()).unwrap().unwrap();
        assert_eq!(found(&archive, &["linker"], |_| ()), ["The \u{2}linker\u{3} fails"]);
        assert_eq!(found(&archive, &["the build"], |_| ()).len(), 1);
        assert_eq!(found(&archive, &["build the"], |_| ()).len(), 0);
        assert_eq!(found(&archive, &["link"], |_| ()).len(), 1);
        for hostile in ["\"", "*", "NEAR(", "a\" OR \"b", "\0", "-x", ""] {
            found(&archive, &[hostile], |_| ());
        }
        assert_eq!(found(&archive, &["linker"], |query| query.pool = Some("codex".to_owned())).len(), 0);
        assert_eq!(found(&archive, &["linker"], |query| query.folder = Some("/srv".to_owned())).len(), 1);
        assert_eq!(found(&archive, &["linker"], |query| query.folder = Some("/srv/sho".to_owned())).len(), 0);
        assert_eq!(
            found(&archive, &["linker"], |query| query.since = Some("2026-11-19".to_owned())).len(),
            0
        );
        let listed = archive.index().list().unwrap();
        assert_eq!(
            (listed.len(), listed[0].title.as_deref(), listed[0].prompts),
            (1, Some("Fix the build please"), 1)
        );
        let id = listed[0].id.clone();
        let titled = update(&json!({ "sessionUpdate": "session_info_update", "title": "The build" }));
        drop(keep(dir.path(), "one", &[("agent", titled), ("zed", prompt("And the tests"))]));
        archive = Archive::open(dir.path()).unwrap().unwrap();
        assert_eq!(found(&archive, &["tests"], |_| ()).len(), 1);
        assert_eq!(archive.find(&id[..6]).unwrap().unwrap().title.as_deref(), Some("The build"));
        assert_eq!(archive.find("T.one").unwrap().unwrap().prompts, 2);
        assert_eq!(archive.find("zzz").unwrap(), Err(NotFound::None));
        assert!(archive.remove(&id).unwrap());
        assert_eq!(
            (found(&archive, &["linker"], |_| ()).len(), archive.index().list().unwrap().len()),
            (0, 0)
        );
        let bytes = fs::read(dir.path().join("index.sqlite")).unwrap();
        assert!(!bytes.windows(6).any(|part| part == b"linker"), "the index still has it");
    }

    #[test]
    fn the_last_title_of_a_session_and_the_files_of_its_tools_are_found() {
        let dir = tempdir().unwrap();
        let titled = |title: &str| update(&json!({ "sessionUpdate": "session_info_update", "title": title }));
        let reads = update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Read",
            "locations": [{ "path": "/srv/shop/ledger.rs", "line": 3 }] }));
        drop(keep(dir.path(), "one", &[("zed", prompt("hello")), ("agent", titled("A first guess"))]));
        let archive = Archive::open(dir.path()).unwrap().unwrap();
        assert_eq!(found(&archive, &["guess"], |_| ()), ["A first \u{2}guess\u{3}"]);
        assert_eq!(found(&archive, &["ledger"], |_| ()).len(), 0);
        let more = [("agent", reads), ("agent", titled("Wombats")), ("agent", titled("Wombats"))];
        drop(keep(dir.path(), "one", &more));
        let archive = Archive::open(dir.path()).unwrap().unwrap();
        assert_eq!(found(&archive, &["wombat"], |_| ()), ["\u{2}Wombats\u{3}"]);
        assert_eq!(found(&archive, &["guess"], |_| ()).len(), 0);
        assert_eq!(found(&archive, &["ledger"], |_| ()).len(), 1);
        // An index of an earlier version is made again, with all of it.
        let db = rusqlite::Connection::open(dir.path().join("index.sqlite")).unwrap();
        db.execute_batch("DELETE FROM parts; PRAGMA user_version = 1;").unwrap();
        let archive = Archive::open(dir.path()).unwrap().unwrap();
        assert_eq!(found(&archive, &["wombats"], |_| ()).len(), 1);
    }

    #[test]
    fn a_transcript_whose_header_is_being_written_is_known_by_its_name_afterwards() {
        let (dir, whole) = (tempdir().unwrap(), tempdir().unwrap());
        drop(keep(whole.path(), "one", &[("zed", prompt("hello"))]));
        let name = format!("{}.ndjson", SessionId::of("claude", None, "one").as_str());
        let bytes = fs::read(whole.path().join(&name)).unwrap();
        for length in [10, bytes.len()] {
            fs::write(dir.path().join(&name), &bytes[..length]).unwrap();
            let listed = Archive::open(dir.path()).unwrap().unwrap().index().list().unwrap();
            let named: Vec<_> = listed.iter().map(|it| (&*it.agent_session, &*it.pool, it.prompts)).collect();
            assert_eq!(named, if length == 10 { vec![] } else { vec![("one", "claude", 1)] });
        }
    }

    #[test]
    fn an_index_that_is_damaged_is_made_again() {
        let dir = tempdir().unwrap();
        drop(keep(dir.path(), "one", &[("zed", prompt("hello"))]));
        Archive::open(dir.path()).unwrap().unwrap();
        fs::write(dir.path().join("index.sqlite"), b"not a database at all, but long enough to be looked at")
            .unwrap();
        let archive = Archive::open(dir.path()).unwrap().unwrap();
        assert_eq!(found(&archive, &["hello"], |_| ()).len(), 1);
        assert!(Archive::open(&dir.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn an_exported_document_has_everything_and_no_script() {
        let dir = tempdir().unwrap();
        let tool = json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Edit <script>alert(1)</script>",
            "status": "pending",
            "rawInput": { "path": "a.rs" } });
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed", "content": [
            { "type": "diff", "path": "/srv/a.rs", "oldText": "one\ntwo\nthree", "newText": "one\n2\nthree" },
            { "type": "content", "content": { "type": "text", "text": "```\nok\u{1b}[2J" } }] });
        let asks = json!({ "id": 5, "method": "session/request_permission", "params": {
            "toolCall": { "title": "rm" } } });
        let answer = json!({ "id": 5, "result": { "outcome": { "outcome": "selected", "optionId": "no" } } });
        drop(keep(
            dir.path(),
            "one",
            &[
                ("zed", prompt("Fix <img src=x onerror=alert(1)>")),
                ("agent", says("Do")),
                ("agent", says("ne")),
                ("agent", update(&tool)),
                ("agent", update(&done)),
                ("agent", asks),
                ("ann", answer),
            ],
        ));
        let archive = Archive::open(dir.path()).unwrap().unwrap();
        let id = archive.index().list().unwrap()[0].id.clone();
        let (header, transcript) = archive.read(&id).unwrap();
        let html = document(Format::Html, &header, &transcript.entries);
        assert!(!html.contains("<script") && !html.contains("<img") && !html.contains('\u{1b}'), "{html}");
        for part in
            ["<del>-two</del>", "<ins>+2</ins>", "Done", "/srv/a.rs", "ann chose no", "default-src &#39;none"]
        {
            assert!(
                html.replace("default-src 'none", "default-src &#39;none").contains(part),
                "{part}: {html}"
            );
        }
        let markdown = document(Format::Md, &header, &transcript.entries);
        for part in [
            "# Fix <img",
            "## zed (2026-11-18T08:00:00.000Z)",
            "```diff\n one\n-two\n+2\n three\n```",
            "````\n```\nok",
        ] {
            assert!(markdown.contains(part), "{part}: {markdown}");
        }
        let ndjson = document(Format::Ndjson, &header, &transcript.entries);
        assert_eq!(Transcript::read(ndjson.as_bytes()).entries.len(), transcript.entries.len());
        let json: serde_json::Value =
            serde_json::from_str(&document(Format::Json, &header, &transcript.entries)).unwrap();
        assert_eq!(json["header"]["pool"], "claude");
    }
}
