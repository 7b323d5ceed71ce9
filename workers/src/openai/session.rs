//! An open session: its record, and the turn that runs in it.
//!
//! Everything a turn says, keeps or answers is done under the session's lock and only while the turn is the
//! running one. So whoever ends a turn (itself, a cancel, a close) has the last word: after the answer nothing
//! more of it is heard, even if its thread still hangs in a connect.

use std::collections::HashSet;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};

use serde_json::value::RawValue;

use super::record::Record;
use crate::acp::writer::OwnedCaller;

pub(super) struct Session {
    pub(super) id: String,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) record: Record,
    pub(super) turn: Option<Running>,
    /// Tools that need not be asked for any more.
    pub(super) allowed: HashSet<&'static str>,
}

/// What others need of a running turn.
pub(super) struct Running {
    pub(super) number: u64,
    pub(super) caller: OwnedCaller,
    pub(super) events: Sender<TurnEvent>,
    /// Shut down to wake the thread.
    pub(super) http: ureq::Agent,
}

/// What a turn's thread hears while it waits.
pub(super) enum TurnEvent {
    /// The answer to the request of this id: a result, or what is wrong.
    Response(u64, Result<Box<RawValue>, String>),
    Ended,
}

/// The turn is no longer the running one.
#[derive(Debug)]
pub(super) struct TurnEnded;

impl Session {
    pub(super) fn new(id: String, record: Record) -> Session {
        Session { id, state: Mutex::new(State { record, turn: None, allowed: HashSet::new() }) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// The lock, for as long as this turn is the running one.
    pub(super) fn lock_for(&self, turn: u64) -> Result<MutexGuard<'_, State>, TurnEnded> {
        let state = self.lock();
        if state.turn.as_ref().is_some_and(|running| running.number == turn) {
            Ok(state)
        } else {
            Err(TurnEnded)
        }
    }
}

impl Running {
    /// Its thread is told; it will find that it is gone.
    pub(super) fn wake(self) {
        self.http.shutdown();
        // A thread that has ended hears nothing.
        let _ = self.events.send(TurnEvent::Ended);
    }
}
