//! The sessions that can be opened again: in memory, or on disk with `--state`.
//!
//! With files nothing is cached, so that changes by other processes are always seen. In memory there is a bound for
//! closed sessions; the one that was closed first is dropped first.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use super::record::{Entry, Record};
use crate::acp::session_files::{EventSourced, SessionFiles};
use crate::acp::session_id::SessionIds;
use crate::acp::session_list::{SessionSummary, sort_newest_first};

const PREFIX: &str = "echo-";
const CLOSED_IN_MEMORY_MAX: usize = 4096;

pub(super) struct Store {
    backend: Backend,
    ids: SessionIds,
}

enum Backend {
    Memory(Memory),
    Files(SessionFiles<Record>),
}

#[derive(Default)]
struct Memory {
    sessions: HashMap<String, Session>,
    /// The ids of closed sessions in the order of closing, by `Session::closed`.
    closed: BTreeMap<u64, String>,
    closings: u64,
}

struct Session {
    record: Record,
    updated_ms: u64,
    closed: Option<u64>,
}

impl Store {
    pub(super) fn new(folder: Option<&Path>) -> io::Result<Store> {
        let backend = match folder {
            Some(folder) => Backend::Files(SessionFiles::open(folder, PREFIX)?),
            None => Backend::Memory(Memory::default()),
        };
        Ok(Store { backend, ids: SessionIds::new(PREFIX) })
    }

    /// Stores a new open session and returns its id.
    pub(super) fn create(&mut self, record: Record, now_ms: u64) -> io::Result<String> {
        loop {
            let id = self.ids.generate();
            match &mut self.backend {
                Backend::Memory(memory) if memory.sessions.contains_key(&id) => {}
                Backend::Memory(memory) => {
                    memory.sessions.insert(id.clone(), Session { record, updated_ms: now_ms, closed: None });
                    return Ok(id);
                }
                Backend::Files(files) => {
                    if files.create(&id, &record.entries())? {
                        return Ok(id);
                    }
                }
            }
        }
    }

    pub(super) fn read(&self, id: &str) -> Option<Record> {
        match &self.backend {
            Backend::Memory(memory) => memory.sessions.get(id).map(|session| session.record.clone()),
            Backend::Files(files) => files.read(id),
        }
    }

    pub(super) fn append(&mut self, id: &str, entry: Entry, now_ms: u64) {
        match &mut self.backend {
            Backend::Memory(memory) => {
                if let Some(session) = memory.sessions.get_mut(id) {
                    session.record.apply(entry);
                    session.updated_ms = now_ms;
                }
            }
            Backend::Files(files) => {
                if let Err(error) = files.append(id, &entry) {
                    // The client still gets its response; only a line of history is lost.
                    eprintln!("echo: session {id} was not written: {error}");
                }
            }
        }
    }

    pub(super) fn remove(&mut self, id: &str) -> io::Result<()> {
        match &mut self.backend {
            Backend::Memory(memory) => {
                memory.open(id);
                memory.sessions.remove(id);
                Ok(())
            }
            Backend::Files(files) => files.remove(id),
        }
    }

    /// Lists all sessions, newest first.
    pub(super) fn list(&self) -> io::Result<Vec<SessionSummary>> {
        let mut sessions = match &self.backend {
            Backend::Memory(memory) => memory.list(),
            Backend::Files(files) => files.list()?,
        };
        sort_newest_first(&mut sessions);
        Ok(sessions)
    }

    pub(super) fn opened(&mut self, id: &str) {
        if let Backend::Memory(memory) = &mut self.backend {
            memory.open(id);
        }
    }

    pub(super) fn closed(&mut self, id: &str) {
        if let Backend::Memory(memory) = &mut self.backend {
            memory.close(id);
        }
    }
}

impl Memory {
    fn list(&self) -> Vec<SessionSummary> {
        let info = |(id, session): (&String, &Session)| session.record.summary(id, session.updated_ms);
        self.sessions.iter().map(info).collect()
    }

    fn open(&mut self, id: &str) {
        if let Some(number) = self.sessions.get_mut(id).and_then(|session| session.closed.take()) {
            self.closed.remove(&number);
        }
    }

    fn close(&mut self, id: &str) {
        self.open(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        self.closings += 1;
        session.closed = Some(self.closings);
        self.closed.insert(self.closings, id.to_owned());
        if self.closed.len() > CLOSED_IN_MEMORY_MAX {
            let (_, oldest) = self.closed.pop_first().expect("there is more than one");
            self.sessions.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::session_id::is_session_id;

    #[test]
    fn ids_are_valid_and_unique() {
        let mut store = Store::new(None).unwrap();
        let ids: Vec<_> = (0..2000).map(|_| store.create(Record::new("/".to_owned()), 0).unwrap()).collect();
        assert!(ids.iter().all(|id| is_session_id(PREFIX, id)));
        assert_eq!(store.list().unwrap().len(), 2000);
    }

    #[test]
    fn the_session_that_was_closed_first_is_dropped_first() {
        let mut store = Store::new(None).unwrap();
        let ids: Vec<_> = (0..CLOSED_IN_MEMORY_MAX + 2)
            .map(|_| store.create(Record::new("/".to_owned()), 0).unwrap())
            .collect();
        store.closed(&ids[0]);
        store.opened(&ids[0]);
        for id in &ids[1..] {
            store.closed(id);
        }
        assert!(store.read(&ids[0]).is_some(), "an open session is never dropped");
        assert!(store.read(&ids[1]).is_none());
        assert!(store.read(&ids[2]).is_some());
    }

    #[test]
    fn the_newest_is_listed_first() {
        let mut store = Store::new(None).unwrap();
        let old = store.create(Record::new("/".to_owned()), 1).unwrap();
        let new = store.create(Record::new("/".to_owned()), 2).unwrap();
        store.append(&old, Entry::User("again".to_owned()), 3);
        let ids: Vec<_> = store.list().unwrap().into_iter().map(|info| info.session_id).collect();
        assert_eq!(ids, [old, new]);
    }
}
