//! The sessions of an agent that can be opened again: files in a folder, or none if there is no folder.

use std::fmt::Arguments;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use super::session_files::{EventSourced, SessionFiles};
use super::session_id::SessionIds;
use super::session_list::{SessionSummary, sort_newest_first};
use crate::lock::lock;

pub(crate) struct Store<R> {
    /// `None`: sessions live as long as the process.
    files: Option<SessionFiles<R>>,
    ids: Mutex<SessionIds>,
    log: fn(Arguments<'_>),
}

impl<R: EventSourced> Store<R> {
    /// All session ids begin with the prefix. `log` gets a line when an entry cannot be written.
    pub(crate) fn open(
        folder: Option<&Path>,
        prefix: &'static str,
        log: fn(Arguments<'_>),
    ) -> io::Result<Store<R>> {
        let files = folder.map(|folder| SessionFiles::open(folder, prefix)).transpose()?;
        Ok(Store { files, ids: Mutex::new(SessionIds::new(prefix)), log })
    }

    /// Stores a new session that consists of these entries, and returns its id.
    pub(crate) fn create(&self, entries: &[R::Entry]) -> io::Result<String> {
        loop {
            let id = lock(&self.ids).generate();
            match &self.files {
                Some(files) if !files.create(&id, entries)? => {}
                _ => return Ok(id),
            }
        }
    }

    /// Reads a session that is not open.
    pub(crate) fn read(&self, id: &str) -> Option<R> {
        self.files.as_ref()?.read(id)
    }

    /// Adds an entry to the open session's record and to its file.
    pub(crate) fn append(&self, id: &str, record: &mut R, entry: R::Entry) {
        if let Some(files) = &self.files
            && let Err(error) = files.append(id, &entry)
        {
            // The client still gets its response; only a line of history is lost.
            (self.log)(format_args!("session {id} was not written: {error}"));
        }
        record.apply(entry);
    }

    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        self.files.as_ref().map_or(Ok(()), |files| files.remove(id))
    }

    /// Lists the sessions on disk, or the open ones if there are no files; newest first.
    pub(crate) fn list(&self, open: impl FnOnce() -> Vec<SessionSummary>) -> io::Result<Vec<SessionSummary>> {
        let mut sessions = match &self.files {
            Some(files) => files.list()?,
            None => open(),
        };
        sort_newest_first(&mut sessions);
        Ok(sessions)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Empty;

    impl EventSourced for Empty {
        type Entry = String;

        fn apply(&mut self, _: String) {}

        fn cwd_and_title(&self) -> (&str, Option<&str>) {
            ("/", None)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn no_two_sessions_have_the_same_id_also_of_several_processes(
            creators in prop::collection::vec(0usize..3, 0..60),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let open = || Store::<Empty>::open(Some(folder.path()), "echo-", |_| ()).unwrap();
            let stores = [open(), open(), open()];
            let ids: HashSet<_> = creators.iter().map(|at| stores[*at].create(&[]).unwrap()).collect();
            prop_assert_eq!(ids.len(), creators.len());
        }
    }
}
