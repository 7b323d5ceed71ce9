//! An open session: its record, and the turn that runs in it.
//!
//! A turn sends, stores and responds only under the session's lock and only while it is the running turn. So the first
//! to end a turn (itself, a cancel, a close) sends its last message: nothing of it follows the response, even if its
//! thread still hangs in a connect.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

use rpc::OwnedReplyTo;
use serde_json::value::RawValue;

use super::mcp::{CallResult, Servers};
use super::record::Record;
use crate::lock::lock;

pub(super) struct Session {
    pub(super) id: String,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) record: Record,
    /// Folders of the workspace besides the cwd. The client names them whenever it opens the session.
    pub(super) directories: Vec<PathBuf>,
    /// The MCP servers that the client has named. They end when this is dropped.
    pub(super) mcp: Option<Arc<Servers>>,
    pub(super) turn: Option<RunningTurn>,
    /// Where the history begins that is sent: what is before does not fit the model's context window.
    pub(super) first_sent: usize,
    /// Tools that the user has allowed for the whole session.
    pub(super) allowed: HashSet<String>,
}

/// What other threads need of a running turn.
pub(super) struct RunningTurn {
    pub(super) number: u64,
    pub(super) reply_to: OwnedReplyTo,
    pub(super) events: Sender<TurnEvent>,
    /// Shut down to wake the thread.
    pub(super) http: ureq::Agent,
}

/// What a turn's thread receives while it waits.
pub(super) enum TurnEvent {
    /// The client's response to the request of this id: a result, or the text of an error.
    Response(u64, Result<Box<RawValue>, String>),
    /// The result of the MCP call of this number, or why it has none.
    Called(u64, Result<CallResult, String>),
    /// An MCP server works, or it is known that it does not.
    Settled,
    Ended,
}

/// The turn is no longer the running one.
#[derive(Debug)]
pub(super) struct TurnEnded;

impl Session {
    pub(super) fn new(id: String, record: Record) -> Session {
        let state = State {
            record,
            directories: Vec::new(),
            mcp: None,
            turn: None,
            first_sent: 0,
            allowed: HashSet::new(),
        };
        Session { id, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks the session if this turn is still the running one.
    pub(super) fn lock_for(&self, turn: u64) -> Result<MutexGuard<'_, State>, TurnEnded> {
        let state = self.lock();
        if state.turn.as_ref().is_some_and(|running| running.number == turn) {
            Ok(state)
        } else {
            Err(TurnEnded)
        }
    }
}

impl RunningTurn {
    /// Wakes the thread of a turn that has ended.
    pub(super) fn wake(self) {
        self.http.shutdown();
        // The send fails if the thread has ended.
        let _ = self.events.send(TurnEvent::Ended);
    }
}
