//! An open session: its record, the turn that runs in it, and what the thread that holds its process is to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::prompt::Prompt;
use super::record::Record;
use crate::acp::writer::OwnedCaller as Waiter;

pub(super) struct Session {
    pub(super) name: String,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) record: Record,
    pub(super) turn: Option<Running>,
    /// Kept in memory only: they may have secrets in them.
    pub(super) mcp_servers: Vec<acp::McpServer>,
    /// How the thread is woken that holds the session's process, where one is kept open.
    pub(super) holder: Option<SyncSender<News>>,
    /// For that thread: the prompt of `turn`, what the client has answered by the ids of the questions, and
    /// whether the session is closed.
    pub(super) next: Option<Next>,
    pub(super) answers: Vec<(u64, Value)>,
    pub(super) leave: Option<Leave>,
}

pub(super) struct Next {
    pub(super) prompt: Prompt,
    pub(super) orders: Arc<Orders>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    Soon,
    /// The agent itself must leave.
    Now,
}

/// What others need of a running turn.
pub(super) struct Running {
    pub(super) waiter: Waiter,
    pub(super) orders: Arc<Orders>,
    pub(super) news: SyncSender<News>,
}

/// What a turn's thread is to do; looked at after every piece of news.
#[derive(Default)]
pub(super) struct Orders {
    cancel: AtomicBool,
    hurry: AtomicBool,
    /// The error that answers the prompt, where it is not simply cancelled.
    pub(super) error: Mutex<Option<Value>>,
}

/// What a turn's thread hears.
pub(super) enum News {
    Line(Vec<u8>),
    /// Stdout has ended.
    Silence,
    /// There are new orders.
    Look,
}

impl Session {
    pub(super) fn new(name: String, record: Record) -> Session {
        let state = State {
            record,
            turn: None,
            mcp_servers: Vec::new(),
            holder: None,
            next: None,
            answers: Vec::new(),
            leave: None,
        };
        Session { name, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }
}

impl State {
    /// Whether a process of the CLI may live.
    pub(super) fn is_at_work(&self) -> bool {
        self.turn.is_some() || self.holder.is_some()
    }

    /// The holder looks at what is here after every piece of news.
    pub(super) fn wake(&self) {
        if let Some(holder) = &self.holder {
            // A full channel is news enough.
            let _ = holder.try_send(News::Look);
        }
    }
}

impl Running {
    /// Its thread ends the CLI, then answers.
    pub(super) fn cancel(&self, hurry: bool, error: Option<Value>) {
        if let Some(error) = error {
            *self.orders.error.lock().expect("nobody panics with it") = Some(error);
        }
        self.orders.hurry.fetch_or(hurry, Ordering::Relaxed);
        self.orders.cancel.store(true, Ordering::Release);
        // A full channel is news enough, and a thread that has ended hears nothing.
        let _ = self.news.try_send(News::Look);
    }
}

impl Orders {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    pub(super) fn is_in_a_hurry(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }
}
