//! An open session: its saved record, its running turn, and the work that waits for its process thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};

use agent_client_protocol_schema::v1 as acp;
use rpc::{OwnedReplyTo, RpcError};
use serde_json::Value;

use super::process::ProcessEvent;
use super::prompt::Prompt;
use super::record::Record;
use super::settings::Reports;
use crate::lock::lock;

pub(super) struct Session {
    pub(super) id: String,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) record: Record,
    pub(super) turn: Option<RunningTurn>,
    pub(super) opened: Opened,
    /// What the CLI says about its own options.
    pub(super) reports: Reports,
    /// Wakes the session's process thread, if one runs.
    pub(super) process_thread: Option<SyncSender<ProcessEvent>>,
    /// The prompt of `turn`, until the process thread takes it.
    pub(super) queued_prompt: Option<QueuedPrompt>,
    /// Prompts that came during a turn, in their order. Each becomes a turn when the one before it has ended.
    pub(super) waiting: VecDeque<Waiting>,
    /// The client's answers to the process thread's questions, by the questions' ids.
    pub(super) answers: Vec<(u64, Value)>,
    pub(super) close: Option<CloseReason>,
}

/// What a client gives whenever it opens a session. Never saved, because it may contain secrets.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Opened {
    pub(super) mcp_servers: Vec<acp::McpServer>,
    /// Folders beside that of the session in which the CLI may work.
    pub(super) directories: Vec<String>,
}

/// A prompt that is not yet a turn.
pub(super) struct Waiting {
    pub(super) reply_to: OwnedReplyTo,
    pub(super) prompt: Prompt,
    /// As the client has sent it.
    pub(super) blocks: Vec<acp::ContentBlock>,
}

pub(super) struct QueuedPrompt {
    pub(super) prompt: Prompt,
    pub(super) cancellation: Arc<Cancellation>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    SessionClosed,
    /// Leaves less time to stop the process.
    AgentExits,
}

/// The parts of a running turn that other threads use.
pub(super) struct RunningTurn {
    pub(super) reply_to: OwnedReplyTo,
    pub(super) cancellation: Arc<Cancellation>,
    pub(super) inbox: SyncSender<ProcessEvent>,
}

/// Asks a turn's thread to stop. The thread checks it after every event.
#[derive(Default)]
pub(super) struct Cancellation {
    is_cancelled: AtomicBool,
    is_urgent: AtomicBool,
    /// Answers the prompt instead of the stop reason `cancelled`.
    pub(super) error: Mutex<Option<RpcError>>,
}

impl Session {
    pub(super) fn new(id: String, record: Record) -> Session {
        Session { id, state: Mutex::new(State { record, ..State::default() }) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether a process of the CLI may be running.
    pub(super) fn is_busy(&self) -> bool {
        self.turn.is_some() || self.process_thread.is_some() || !self.waiting.is_empty()
    }

    /// Makes the process thread look at this state.
    pub(super) fn wake(&self) {
        if let Some(inbox) = &self.process_thread {
            // A full channel wakes the thread anyway.
            let _ = inbox.try_send(ProcessEvent::Wake);
        }
    }
}

impl RunningTurn {
    /// Returns at once. The turn's thread stops the CLI and then answers the prompt.
    pub(super) fn cancel(&self, is_urgent: bool, error: Option<RpcError>) {
        if let Some(error) = error {
            *lock(&self.cancellation.error) = Some(error);
        }
        self.cancellation.is_urgent.fetch_or(is_urgent, Ordering::Relaxed);
        self.cancellation.is_cancelled.store(true, Ordering::Release);
        // A full channel wakes the thread anyway, and a thread that has ended needs no event.
        let _ = self.inbox.try_send(ProcessEvent::Wake);
    }
}

impl Cancellation {
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed)
    }
}
