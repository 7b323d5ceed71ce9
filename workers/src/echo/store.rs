//! The sessions that can be opened again: in memory, or with `--state` on disk.
//!
//! On disk nothing is remembered between calls, so what another process did is always seen. In memory, closed
//! sessions are kept up to a bound and then the longest closed is forgotten.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use super::record::{Entry, Record};
use crate::acp::session_files::{EventSourced, SessionFiles};
use crate::acp::session_id::SessionIds;
use crate::acp::session_list::{SessionSummary, sort_newest_first};

const PREFIX: &str = "echo-";
/// Closed sessions kept in memory.
const CLOSED: usize = 4096;

pub(super) struct Store {
    place: Place,
    names: SessionIds,
}

enum Place {
    Memory(Memory),
    Disk(SessionFiles<Record>),
}

#[derive(Default)]
struct Memory {
    kept: HashMap<String, Kept>,
    /// Closed sessions, the longest closed first. Each is the name of a `Kept` with that number in `closed`.
    closed: BTreeMap<u64, String>,
    closings: u64,
}

struct Kept {
    record: Record,
    updated_ms: u64,
    closed: Option<u64>,
}

impl Store {
    pub(super) fn new(folder: Option<&Path>) -> io::Result<Store> {
        let place = match folder {
            Some(folder) => Place::Disk(SessionFiles::open(folder, PREFIX)?),
            None => Place::Memory(Memory::default()),
        };
        Ok(Store { place, names: SessionIds::new(PREFIX) })
    }

    /// Keeps a new session, open, and gives it a name.
    pub(super) fn create(&mut self, record: Record, now_ms: u64) -> io::Result<String> {
        loop {
            let name = self.names.generate();
            match &mut self.place {
                Place::Memory(memory) if memory.kept.contains_key(&name) => {}
                Place::Memory(memory) => {
                    memory.kept.insert(name.clone(), Kept { record, updated_ms: now_ms, closed: None });
                    return Ok(name);
                }
                Place::Disk(disk) => {
                    if disk.create(&name, record.entries())? {
                        return Ok(name);
                    }
                }
            }
        }
    }

    pub(super) fn read(&self, name: &str) -> Option<Record> {
        match &self.place {
            Place::Memory(memory) => memory.kept.get(name).map(|kept| kept.record.clone()),
            Place::Disk(disk) => disk.read(name),
        }
    }

    pub(super) fn add(&mut self, name: &str, entry: Entry, now_ms: u64) {
        match &mut self.place {
            Place::Memory(memory) => {
                if let Some(kept) = memory.kept.get_mut(name) {
                    kept.record.apply(entry);
                    kept.updated_ms = now_ms;
                }
            }
            Place::Disk(disk) => {
                if let Err(error) = disk.append(name, &entry) {
                    // The client still gets its answer; what is lost is a line of history.
                    eprintln!("echo: session {name} was not written: {error}");
                }
            }
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        match &mut self.place {
            Place::Memory(memory) => {
                memory.open(name);
                memory.kept.remove(name);
                Ok(())
            }
            Place::Disk(disk) => disk.remove(name),
        }
    }

    /// The newest first.
    pub(super) fn list(&self) -> io::Result<Vec<SessionSummary>> {
        let mut infos = match &self.place {
            Place::Memory(memory) => memory.list(),
            Place::Disk(disk) => disk.list()?,
        };
        sort_newest_first(&mut infos);
        Ok(infos)
    }

    pub(super) fn opened(&mut self, name: &str) {
        if let Place::Memory(memory) = &mut self.place {
            memory.open(name);
        }
    }

    pub(super) fn closed(&mut self, name: &str) {
        if let Place::Memory(memory) = &mut self.place {
            memory.close(name);
        }
    }
}

impl Memory {
    fn list(&self) -> Vec<SessionSummary> {
        let info = |(name, kept): (&String, &Kept)| kept.record.summary(name, kept.updated_ms);
        self.kept.iter().map(info).collect()
    }

    fn open(&mut self, name: &str) {
        if let Some(number) = self.kept.get_mut(name).and_then(|kept| kept.closed.take()) {
            self.closed.remove(&number);
        }
    }

    fn close(&mut self, name: &str) {
        self.open(name);
        let Some(kept) = self.kept.get_mut(name) else { return };
        self.closings += 1;
        kept.closed = Some(self.closings);
        self.closed.insert(self.closings, name.to_owned());
        if self.closed.len() > CLOSED {
            let (_, oldest) = self.closed.pop_first().expect("it holds more than none");
            self.kept.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::session_id::is_session_id;

    #[test]
    fn names_are_short_safe_and_never_the_same() {
        let mut store = Store::new(None).unwrap();
        let names: Vec<_> =
            (0..2000).map(|_| store.create(Record::new("/".to_owned()), 0).unwrap()).collect();
        assert!(names.iter().all(|name| is_session_id(PREFIX, name)));
        assert_eq!(store.list().unwrap().len(), 2000);
    }

    #[test]
    fn closed_sessions_are_forgotten_longest_closed_first() {
        let mut store = Store::new(None).unwrap();
        let names: Vec<_> =
            (0..CLOSED + 2).map(|_| store.create(Record::new("/".to_owned()), 0).unwrap()).collect();
        store.closed(&names[0]);
        store.opened(&names[0]);
        for name in &names[1..] {
            store.closed(name);
        }
        assert!(store.read(&names[0]).is_some(), "an open session is never forgotten");
        assert!(store.read(&names[1]).is_none());
        assert!(store.read(&names[2]).is_some());
    }

    #[test]
    fn the_newest_is_listed_first() {
        let mut store = Store::new(None).unwrap();
        let old = store.create(Record::new("/".to_owned()), 1).unwrap();
        let new = store.create(Record::new("/".to_owned()), 2).unwrap();
        store.add(&old, Entry::User("again".to_owned()), 3);
        let names: Vec<_> = store.list().unwrap().into_iter().map(|info| info.session_id).collect();
        assert_eq!(names, [old, new]);
    }
}
