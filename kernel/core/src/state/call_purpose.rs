//! What the answer of a call will mean, and where the line of the call is.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::SessionKey;
use crate::state::opening::SettingKind;
use crate::wire::send_queue::SendQueue;

/// What the answer will mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// The answer means nothing to the bus.
    Ask,
    /// The answer ends a turn, or in ACP's second version accepts it.
    Prompt,
    /// The `initialize` of a client. The init result of its worker answers it.
    ClientInitialize,
    /// The `initialize` that the bus sends to a worker.
    Initialize,
    /// The result names a new session of the caller.
    Open,
    /// On success the session, which is bound already, is open. On failure its `if_refused` says what becomes of it.
    /// `replays`: the agent tells the whole session first.
    Reopen { session: SessionKey, replays: bool },
    /// On success the session has another mode, model or option.
    Set(SettingKind),
    /// The bus opens the session again in another process.
    Recover(SessionKey),
    /// On success the session is no more.
    Close(SessionKey),
    /// The result lists sessions.
    List,
    /// Sent to every worker of a handshake. On success, workers that start later get it too.
    Broadcast,
    /// The bus itself closes a session that nobody wants. There is a time limit for the answer.
    EndSession,
    /// Nobody waits for the answer.
    Ignore,
}

/// Where the line of a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Written {
    /// Not in a send queue: it waits for its worker to be ready or for its client to return.
    NotYet,
    /// In the output of the callee.
    At { position: u64, length: u32 },
}

impl Written {
    /// The line without its newline, if it is in this queue and none of it has been written.
    pub(crate) fn in_queue(self, queue: &SendQueue) -> Option<Cow<'_, [u8]>> {
        let Written::At { position, length } = self else { return None };
        queue.unwritten_line(position, length)
    }

    /// Whether it is in this queue and none of it has been written.
    pub(crate) fn is_in_queue(self, queue: &SendQueue) -> bool {
        matches!(self, Written::At { position, length } if queue.is_unwritten(position, length as usize))
    }
}
