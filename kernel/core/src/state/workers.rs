//! A worker: a place for a process in a pool, what the process there has been told, and what waits for it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::api::{Exit, Moment};
use crate::config::PoolConfig;
use crate::id::{Link, SessionKey};
use crate::limit::STDERR_TAIL_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::calls::{CallKey, EndpointId};
use crate::state::handshake::{AgentCapabilities, Handshake};
use crate::state::lifecycle::{Life, State};
use crate::state::pools::PoolId;
use crate::wire::error::Death;
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::Span;

pub(crate) struct Worker {
    pub(crate) pool: PoolId,
    /// How it is started. The pool's may have changed since: then this one is `retiring`.
    pub(crate) config: Arc<PoolConfig>,
    pub(crate) index: u32,
    pub(crate) endpoint: EndpointId,
    pub(crate) life: Life,
    /// Takes nothing new and leaves when it has nothing left to do, at the latest at `retire_by`.
    pub(crate) retiring: bool,
    pub(crate) retire_by: Option<Moment>,
    /// Of a dedicated pool: the one client it serves.
    pub(crate) dedicated_to: Option<Link>,
    /// When it must have answered initialize.
    pub(crate) initialize_by: Moment,
    pub(crate) silence_alarm: bool,
    /// Since when it has had nothing to do, as far as that has been looked at.
    pub(crate) idle_since: Option<Moment>,
    /// Why the last start failed, or how the last life ended, for people.
    pub(crate) last_error: Option<String>,
    pub(crate) last_exit: Option<Exit>,
    /// What clients have asked it, in all its lives.
    pub(crate) requests: u64,
    /// What the process still says is of no interest: its life was over for the others, or is being replaced.
    pub(crate) ignored: bool,
    /// How this life ends, once it does.
    pub(crate) death: Death,

    // Of this life only; see `forget`.
    /// Its pipes. Some from the order to start until the process is gone.
    pub(crate) link: Option<Link>,
    pub(crate) pid: Option<u32>,
    pub(crate) init: Init,
    pub(crate) capabilities: AgentCapabilities,
    /// What is to be said once it is ready, in order.
    pub(crate) backlog: VecDeque<Queued>,
    pub(crate) backlog_bytes: usize,
    /// By the agent's names.
    pub(crate) sessions: HashMap<Box<[u8]>, SessionKey>,
    /// How its last lines began.
    pub(crate) prefix_cache: PrefixCache,
    /// The session it spoke of last, and will most likely speak of next. It may have gone since.
    pub(crate) last_session: Option<SessionKey>,
    /// How many of these are labels, which the agent knows nothing of.
    pub(crate) labels: usize,
    /// Clients that it serves, or has served.
    pub(crate) clients: BTreeSet<Link>,
    /// What it said of sessions that no answer has named yet.
    pub(crate) early: Vec<Early>,
    pub(crate) early_bytes: usize,
    /// The last session-less notification of each method.
    pub(crate) sticky_notifications: Vec<StickyNotification>,
    /// Which client an elicitation went to.
    pub(crate) elicitations: VecDeque<(Box<[u8]>, Link)>,
    /// When it last wrote something, or was first asked something.
    pub(crate) last_output: Moment,
    /// Lines that it has said.
    pub(crate) lines_in: u64,
    pub(crate) stderr_tail: VecDeque<u8>,
}

/// How far its handshake is.
#[derive(Clone, Debug)]
pub(crate) enum Init {
    /// It has been told nothing and can become anything.
    NotSent,
    /// It is to be initialized so once it is up.
    Reserved(Arc<Handshake>),
    /// Its answer to initialize is awaited.
    Sent(Arc<Handshake>),
    /// It is ready for clients of this handshake. `answer`: to initialize; none for the plain handshake.
    Ready { handshake: Arc<Handshake>, answer: Option<Arc<InitResult>> },
}

/// A worker's answer to initialize, which every client that joins is given under its own id.
#[derive(Debug)]
pub(crate) struct InitResult {
    pub(crate) line: Box<[u8]>,
    pub(crate) id: Span,
}

#[derive(Debug)]
pub(crate) enum Queued {
    /// A client's initialize, to be answered with the greeting.
    Initialize(CallKey),
    /// A line, its ids already the worker's. `None`: a notification.
    Line(Option<CallKey>, Box<[u8]>),
}

#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) name: Box<[u8]>,
    pub(crate) line: Box<[u8]>,
}

#[derive(Debug)]
pub(crate) struct StickyNotification {
    pub(crate) method: Box<[u8]>,
    pub(crate) line: Box<[u8]>,
}

impl Worker {
    pub(crate) fn new(
        pool: PoolId,
        config: Arc<PoolConfig>,
        index: u32,
        endpoint: EndpointId,
        now: Moment,
    ) -> Worker {
        Worker {
            pool,
            config,
            index,
            endpoint,
            life: Life::new(now),
            retiring: false,
            retire_by: None,
            dedicated_to: None,
            initialize_by: Moment::ZERO,
            silence_alarm: false,
            idle_since: None,
            last_error: None,
            last_exit: None,
            requests: 0,
            ignored: false,
            death: Death::Hung,
            link: None,
            pid: None,
            init: Init::NotSent,
            capabilities: AgentCapabilities::default(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            sessions: HashMap::new(),
            prefix_cache: PrefixCache::default(),
            last_session: None,
            labels: 0,
            clients: BTreeSet::new(),
            early: Vec::new(),
            early_bytes: 0,
            sticky_notifications: Vec::new(),
            elicitations: VecDeque::new(),
            last_output: now,
            lines_in: 0,
            stderr_tail: VecDeque::new(),
        }
    }

    /// This life is over: nothing of what the process knew is true of the next. Only what the next is reserved
    /// for remains.
    pub(crate) fn forget(&mut self) {
        if !matches!(self.init, Init::Reserved(_)) {
            self.init = Init::NotSent;
            self.dedicated_to = None;
            self.sessions.clear();
            self.labels = 0;
            self.clients.clear();
        }
        self.capabilities = AgentCapabilities::default();
        self.early = Vec::new();
        self.early_bytes = 0;
        self.sticky_notifications = Vec::new();
        self.elicitations = VecDeque::new();
        self.prefix_cache = PrefixCache::default();
        self.last_session = None;
        self.pid = None;
        self.lines_in = 0;
        self.death = Death::Hung;
    }

    pub(crate) fn handshake(&self) -> Option<&Arc<Handshake>> {
        match &self.init {
            Init::NotSent => None,
            Init::Reserved(handshake) | Init::Sent(handshake) | Init::Ready { handshake, .. } => {
                Some(handshake)
            }
        }
    }

    /// It speaks this handshake, or can learn it.
    pub(crate) fn is_compatible(&self, handshake: &Handshake) -> bool {
        self.handshake().is_none_or(|own| **own == *handshake || !enabled(Check::Handshake))
    }

    /// Sessions of the agent, which is what `max_sessions` counts.
    pub(crate) fn open_sessions(&self) -> usize {
        self.sessions.len() - self.labels
    }

    /// Lines can be written to it now.
    pub(crate) fn ready_link(&self) -> Option<Link> {
        self.link.filter(|_| matches!(self.init, Init::Ready { .. }))
    }

    pub(crate) fn push_stderr(&mut self, bytes: &[u8]) {
        let keep = &bytes[bytes.len().saturating_sub(STDERR_TAIL_BYTES)..];
        let excess = (self.stderr_tail.len() + keep.len()).saturating_sub(STDERR_TAIL_BYTES);
        self.stderr_tail.drain(..excess);
        self.stderr_tail.extend(keep);
    }

    /// For status.
    pub(crate) fn state(&self) -> &'static str {
        match self.life.state() {
            State::Backoff { .. } => "resting",
            State::Starting => "starting",
            State::Up if self.retiring => "retiring",
            State::Up if matches!(self.init, Init::Sent(_)) => "initializing",
            State::Up => "up",
            State::Closing { .. }
            | State::Ending { .. }
            | State::Terminating { .. }
            | State::Killed { .. } => "stopping",
            State::Exhausted { .. } => "broken",
            State::Gone => "gone",
        }
    }
}
