//! A worker: a place for a process in a pool, what the process there has been told, and what waits for it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::api::{Exit, Moment};
use crate::config::PoolConfig;
use crate::id::{Link, SessionKey};
use crate::limit::STDERR_TAIL_BYTES;
use crate::mutants::{Guard, stands};
use crate::state::calls::{CallKey, Party};
use crate::state::handshake::{Handshake, Offers};
use crate::state::lifecycle::{Is, Life};
use crate::state::pools::PoolId;
use crate::wire::error::Death;
use crate::wire::prefix_cache::Habit;
use crate::wire::scan::Span;

pub(crate) struct Worker {
    pub(crate) pool: PoolId,
    /// How it is started. The pool's may have changed since: then this one is `retiring`.
    pub(crate) config: Arc<PoolConfig>,
    pub(crate) index: u32,
    pub(crate) party: Party,
    pub(crate) life: Life,
    /// Takes nothing new and leaves when it has nothing left to do, at the latest at `retire_by`.
    pub(crate) retiring: bool,
    pub(crate) retire_by: Option<Moment>,
    /// Of a dedicated pool: the one client it serves.
    pub(crate) belongs_to: Option<Link>,
    /// When it must have answered initialize.
    pub(crate) initialize_by: Moment,
    pub(crate) silence_alarm: bool,
    /// Since when it has had nothing to do, as far as that has been looked at.
    pub(crate) idle_since: Option<Moment>,
    /// Why the last start failed, or how the last life ended, for people.
    pub(crate) last_words: Option<String>,
    pub(crate) last_exit: Option<Exit>,
    /// What clients have asked it, in all its lives.
    pub(crate) requests: u64,
    /// What the process still says is of no interest: its life was over for the others, or is being replaced.
    pub(crate) silenced: bool,
    /// How this life ends, once it does.
    pub(crate) death: Death,

    // Of this life only; see `forget`.
    /// Its pipes. Some from the order to start until the process is gone.
    pub(crate) link: Option<Link>,
    pub(crate) pid: Option<u32>,
    pub(crate) speech: Speech,
    pub(crate) offers: Offers,
    /// What is to be said once it is ready, in order.
    pub(crate) waits: VecDeque<Wait>,
    pub(crate) waits_bytes: usize,
    /// By the agent's names.
    pub(crate) sessions: HashMap<Box<[u8]>, SessionKey>,
    /// How its last lines began.
    pub(crate) habit: Habit,
    /// The session it spoke of last, and will most likely speak of next. It may have gone since.
    pub(crate) lately: Option<SessionKey>,
    /// How many of these are labels, which the agent knows nothing of.
    pub(crate) labels: usize,
    /// Clients that it serves, or has served.
    pub(crate) joined: BTreeSet<Link>,
    /// What it said of sessions that no answer has named yet.
    pub(crate) early: Vec<Early>,
    pub(crate) early_bytes: usize,
    /// The last session-less notification of each method.
    pub(crate) notices: Vec<Notice>,
    /// Which client an elicitation went to.
    pub(crate) elicitations: VecDeque<(Box<[u8]>, Link)>,
    /// When it last wrote something, or was first asked something.
    pub(crate) heard: Moment,
    /// Lines that it has said.
    pub(crate) lines_in: u64,
    pub(crate) stderr_tail: VecDeque<u8>,
}

/// How far its handshake is.
#[derive(Clone, Debug)]
pub(crate) enum Speech {
    /// It has been told nothing and can become anything.
    Fresh,
    /// It is to be initialized so once it is up.
    Reserved(Arc<Handshake>),
    /// Its answer to initialize is awaited.
    Awaiting(Arc<Handshake>),
    /// It is ready for clients of this handshake. `answer`: to initialize; none for the plain handshake.
    Ready { handshake: Arc<Handshake>, answer: Option<Arc<Greeting>> },
}

/// A worker's answer to initialize, which every client that joins is given under its own id.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) line: Box<[u8]>,
    pub(crate) id: Span,
}

#[derive(Debug)]
pub(crate) enum Wait {
    /// A client's initialize, to be answered with the greeting.
    Join(CallKey),
    /// A line, its ids already the worker's. `None`: a notification.
    Say(Option<CallKey>, Box<[u8]>),
}

#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) name: Box<[u8]>,
    pub(crate) line: Box<[u8]>,
}

#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) method: Box<[u8]>,
    pub(crate) line: Box<[u8]>,
}

impl Worker {
    pub(crate) fn new(
        pool: PoolId,
        config: Arc<PoolConfig>,
        index: u32,
        party: Party,
        now: Moment,
    ) -> Worker {
        Worker {
            pool,
            config,
            index,
            party,
            life: Life::new(now),
            retiring: false,
            retire_by: None,
            belongs_to: None,
            initialize_by: Moment::ZERO,
            silence_alarm: false,
            idle_since: None,
            last_words: None,
            last_exit: None,
            requests: 0,
            silenced: false,
            death: Death::Hung,
            link: None,
            pid: None,
            speech: Speech::Fresh,
            offers: Offers::default(),
            waits: VecDeque::new(),
            waits_bytes: 0,
            sessions: HashMap::new(),
            habit: Habit::default(),
            lately: None,
            labels: 0,
            joined: BTreeSet::new(),
            early: Vec::new(),
            early_bytes: 0,
            notices: Vec::new(),
            elicitations: VecDeque::new(),
            heard: now,
            lines_in: 0,
            stderr_tail: VecDeque::new(),
        }
    }

    /// This life is over: nothing of what the process knew is true of the next. Only what the next is reserved
    /// for remains.
    pub(crate) fn forget(&mut self) {
        if !matches!(self.speech, Speech::Reserved(_)) {
            self.speech = Speech::Fresh;
            self.belongs_to = None;
            self.sessions.clear();
            self.labels = 0;
            self.joined.clear();
        }
        self.offers = Offers::default();
        self.early = Vec::new();
        self.early_bytes = 0;
        self.notices = Vec::new();
        self.elicitations = VecDeque::new();
        self.habit = Habit::default();
        self.lately = None;
        self.pid = None;
        self.lines_in = 0;
        self.death = Death::Hung;
    }

    pub(crate) fn handshake(&self) -> Option<&Arc<Handshake>> {
        match &self.speech {
            Speech::Fresh => None,
            Speech::Reserved(handshake) | Speech::Awaiting(handshake) | Speech::Ready { handshake, .. } => {
                Some(handshake)
            }
        }
    }

    /// It speaks this handshake, or can learn it.
    pub(crate) fn can_speak(&self, handshake: &Handshake) -> bool {
        self.handshake().is_none_or(|own| **own == *handshake || !stands(Guard::Handshake))
    }

    /// Sessions of the agent, which is what `max_sessions` counts.
    pub(crate) fn open_sessions(&self) -> usize {
        self.sessions.len() - self.labels
    }

    /// Lines can be written to it now.
    pub(crate) fn ready_link(&self) -> Option<Link> {
        self.link.filter(|_| matches!(self.speech, Speech::Ready { .. }))
    }

    pub(crate) fn mutter(&mut self, bytes: &[u8]) {
        let keep = &bytes[bytes.len().saturating_sub(STDERR_TAIL_BYTES)..];
        let excess = (self.stderr_tail.len() + keep.len()).saturating_sub(STDERR_TAIL_BYTES);
        self.stderr_tail.drain(..excess);
        self.stderr_tail.extend(keep);
    }

    /// For status.
    pub(crate) fn state(&self) -> &'static str {
        match self.life.is() {
            Is::Resting { .. } => "resting",
            Is::Starting => "starting",
            Is::Up if self.retiring => "retiring",
            Is::Up if matches!(self.speech, Speech::Awaiting(_)) => "initializing",
            Is::Up => "up",
            Is::Closing { .. } | Is::Ending { .. } | Is::Terminating { .. } | Is::Killed { .. } => "stopping",
            Is::Broken { .. } => "broken",
            Is::Gone => "gone",
        }
    }
}
