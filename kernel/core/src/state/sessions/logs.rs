//! The logs of all sessions, which have a limit together.

use super::Sessions;
use crate::id::{SessionKey, TypedKey};
use crate::mutants::{Check, enabled};
use crate::state::log_copy::{LeftLogs, LogCopy};
use crate::state::session_log::{Logged, SessionLog};
use crate::wire::splice::Edit;

/// How many sessions are looked at for a log to shorten.
const LOG_STEPS: usize = 8;

/// Of the logs this much is copied at a time, for which a log without lines counts as these bytes.
const COPY_BYTES: usize = 1 << 20;
const LOG_BYTES: usize = 256;

/// An entry of a log.
pub(crate) type Entry = (Logged, Box<[u8]>);

/// How long logs may be.
#[derive(Clone, Copy)]
pub(crate) struct LogLimits {
    pub(crate) of_one: usize,
    pub(crate) of_all: usize,
}

impl Sessions {
    /// Adds a line with these edits, as the owner of this session was sent it, to the log that the session has part in.
    #[inline]
    pub(crate) fn log(&mut self, key: SessionKey, line: &[u8], edits: &[Edit<'_>], limits: LogLimits) {
        let root = if enabled(Check::LoggedSession) { self.root(key) } else { self.first() };
        // Where the parent is gone, the child is at the top, and its own name is not the same for everybody.
        let kind = if root == key { Logged::Said } else { Logged::SaidOfChild };
        self.push(root, kind, line, edits, limits);
    }

    /// Adds a prompt to the log of this session.
    #[inline]
    pub(crate) fn log_prompt(&mut self, key: SessionKey, line: &[u8], limits: LogLimits) {
        self.push(key, Logged::Prompt, line, &[], limits);
    }

    /// The first session of the table, for a mutant.
    fn first(&self) -> SessionKey {
        self.iter().next().map_or(SessionKey::FIRST, |(key, _)| key)
    }

    #[inline]
    fn push(&mut self, key: SessionKey, kind: Logged, line: &[u8], edits: &[Edit<'_>], limits: LogLimits) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.said += 1;
            if session.loads > 0 {
                session.replayed = session.said;
            }
        }
        if limits.of_one == 0 {
            return self.log_is_partial(key);
        }
        if line.len() > limits.of_one {
            // It would be dropped at once, and all that is before it with it.
            while self.drop_oldest(key) {}
            return self.log_is_partial(key);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            let grown = session.log.push(kind, line, edits);
            let own = session.log.len();
            self.log_grew(key, grown, own, limits);
        }
    }

    /// The log of this session has so many bytes more, and `own` in all.
    #[inline]
    fn log_grew(&mut self, key: SessionKey, by: usize, own: usize, limits: LogLimits) {
        self.log_bytes.add(by);
        if own > limits.of_one || self.log_bytes.get() > limits.of_all {
            self.shorten_logs(key, limits);
        }
    }

    /// Shortens the log of this session to its limit, and others in turn if all together are too long.
    #[cold]
    fn shorten_logs(&mut self, key: SessionKey, limits: LogLimits) {
        let is_long = |log: &SessionLog| log.len() > limits.of_one;
        while self.sessions.get(key).is_some_and(|session| is_long(&session.log)) {
            self.drop_oldest(key);
        }
        let mut steps = LOG_STEPS;
        while self.log_bytes.get() > limits.of_all {
            let next = self.sessions.iter_from(self.log_hand).next().map(|(key, _)| key);
            self.log_hand = next.map_or(0, |next| next.key().index + 1);
            steps -= 1;
            if next.is_some_and(|next| self.drop_oldest(next)) {
                steps = LOG_STEPS;
            } else if steps == 0 {
                // It makes room itself if there is nothing else near.
                if !self.drop_oldest(key) {
                    return;
                }
                steps = LOG_STEPS;
            }
        }
    }

    /// False: the log is empty.
    fn drop_oldest(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get_mut(key).filter(|session| session.log.len() > 0) else {
            return false;
        };
        let before = session.log.len();
        session.log.drop_oldest();
        self.log_bytes.give_back(before - session.log.len());
        true
    }

    /// What was said before is not in the log.
    pub(crate) fn log_is_partial(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.log.is_partial = true;
        }
    }

    /// The session was begun before the bus knew of it.
    pub(crate) fn set_older_than_log(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(key) {
            (session.log.is_partial, session.log.is_older) = (true, true);
        }
    }

    pub(crate) fn is_older_than_log(&self, key: SessionKey) -> bool {
        self.get(key).is_some_and(|session| session.log.is_older)
    }

    /// The newest turns of this session, and whether they are all.
    pub(crate) fn newest_turns(&mut self, key: SessionKey, at_most: usize) -> (Vec<Entry>, bool) {
        let Some(session) = self.sessions.get_mut(key) else { return (Vec::new(), true) };
        let (entries, is_whole) = session.log.newest(at_most);
        (entries.into_iter().map(|(kind, line)| (kind, line.into())).collect(), is_whole)
    }

    /// How many lines the log of this session has.
    pub(crate) fn log_lines(&self, key: SessionKey) -> usize {
        self.get(key).map_or(0, |session| session.log.count())
    }

    /// Its lines after so many of them, until they have at least this many bytes.
    pub(crate) fn log_after(&mut self, key: SessionKey, skipped: usize, bytes: usize) -> Vec<Entry> {
        let Some(session) = self.sessions.get_mut(key) else { return Vec::new() };
        session.log.after(skipped, bytes).into_iter().map(|(kind, line)| (kind, line.into())).collect()
    }

    /// How many lines of the newest turns there would be, and whether they are all.
    pub(crate) fn newest_lines(&mut self, key: SessionKey, at_most: usize) -> (usize, bool) {
        let Some(session) = self.sessions.get_mut(key) else { return (0, true) };
        let (entries, is_whole) = session.log.newest(at_most);
        (entries.len(), is_whole)
    }

    /// Whether what a client with this much room can be told is all that was ever said.
    pub(crate) fn is_log_whole(&self, key: SessionKey, room: usize) -> bool {
        self.get(key).is_none_or(|session| session.log.is_whole(room))
    }

    /// The bytes of the log of a session.
    pub(crate) fn log_len(&self, key: SessionKey) -> usize {
        self.get(key).map_or(0, |session| session.log.len())
    }

    pub(crate) fn has_log(&self, key: SessionKey) -> bool {
        self.get(key).is_some_and(|session| session.log.len() > 0)
    }

    /// The next of the logs for the program that takes the place of this one. `None`: all are copied.
    pub(crate) fn copy_logs(&mut self, copy: &mut LogCopy) -> Option<Vec<u8>> {
        let (mut bytes, mut next) = (Vec::new(), copy.next);
        let is_some = self.next_logs(&mut next, |log| log.copy_to(copy, &mut bytes));
        copy.next = next;
        is_some.then_some(bytes)
    }

    /// Copies what the program before has left of the next logs. False: no log refers to it any more.
    pub(crate) fn take_left_logs(&mut self, next: &mut u32) -> bool {
        self.next_logs(next, SessionLog::take_left)
    }

    /// Does something with the logs from this index on, and it says how many bytes it has copied. False: there were
    /// none.
    fn next_logs(&mut self, next: &mut u32, mut each: impl FnMut(&mut SessionLog) -> usize) -> bool {
        let mut room = COPY_BYTES;
        while room > 0 {
            let Some((key, _)) = self.sessions.iter_from(*next).next() else { break };
            *next = key.key().index + 1;
            let copied = self.sessions.get_mut(key).map_or(0, |session| each(&mut session.log));
            room = room.saturating_sub(copied + LOG_BYTES);
        }
        room < COPY_BYTES
    }

    /// Finds the lines of logs that the program before has left. False: some are not there.
    pub(crate) fn find_left_logs(&mut self, logs: &LeftLogs) -> bool {
        self.sessions.iter_mut().all(|session| session.log.find_left(logs))
    }

    /// The bytes of all logs.
    #[inline]
    pub(crate) fn log_bytes(&self) -> usize {
        self.log_bytes.get()
    }

    /// The same, counted afresh.
    pub(crate) fn count_log_bytes(&self) -> usize {
        self.iter().map(|(_, session)| session.log.len()).sum()
    }
}
