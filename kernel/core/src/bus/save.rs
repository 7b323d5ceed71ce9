//! The whole state of the bus, written down and read back.

use super::Bus;
use crate::mutants::{Check, enabled};
use crate::saved::{read, write};
use crate::state::log_copy::{LeftLogs, LogCopy};

/// The next of the logs of sessions. Copy them before the bus is saved, so that they need not be written down while
/// nobody is served: what was copied is not saved until the copy is dropped. `None`: all are copied.
pub fn copy_logs(bus: &mut Bus, copy: &mut LogCopy) -> Option<Vec<u8>> {
    bus.sessions.copy_logs(copy)
}

/// Copies what the program before has left of the next logs, so that its memory can be given back once all are copied.
/// `next` begins with 0. False: no log refers to that memory any more.
pub fn take_left_logs(bus: &mut Bus, next: &mut u32) -> bool {
    bus.sessions.take_left_logs(next)
}

impl Bus {
    /// The state of the bus as bytes: connections with their half lines and what waits for them, calls, sessions with
    /// all that is kept for them, workers, alarms and counters. The shell saves what it knows beside.
    ///
    /// The error says what cannot be written.
    pub fn save(&self) -> Result<Vec<u8>, String> {
        assert!(self.todo.is_empty(), "every call carries out what follows from it");
        write(self, self.held_bytes() + (64 << 10))
    }

    /// The bus that was saved. The same events make it do what the saved one would have done, and at the same moments:
    /// `now` goes on from where it was.
    ///
    /// What the shell has told the bus of itself and of its companions is not in the state: tell it again. `logs` are
    /// what was copied of logs before the bus was saved.
    pub fn restore(bytes: &[u8], logs: &LeftLogs) -> Result<Bus, String> {
        let mut bus: Bus = read(bytes)?;
        if !bus.sessions.find_left_logs(logs) {
            return Err("the log of a session is not among the copies".to_owned());
        }
        if enabled(Check::RestoredIndex) {
            bus.sessions.index();
        }
        bus.calls.index();
        Ok(bus)
    }
}
