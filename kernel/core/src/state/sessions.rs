//! Sessions: the bus's name for each, the agent's, its owner, and what is kept for it.

mod logs;
mod saved;
mod shown;
mod turn_state;
mod unasked;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::id::{Arena, CallKey, Link, SessionKey, TypedKey, WorkerId};
use crate::limit::CHILD_DEPTH;
use crate::mutants::{Check, enabled};
use crate::saved::counts_as;
use crate::state::backlog::{Backlog, HeldBytes, Kept, Queued};
use crate::state::guests::{Guests, Role};
use crate::state::offline::Offline;
use crate::state::opening::{Opening, Reopen};
use crate::state::prompts::Prompts;
use crate::state::questions::Questions;
use crate::state::session_id::Token;
use crate::state::session_log::SessionLog;

use shown::Shown;

pub(crate) use logs::LogLimits;
pub(crate) use turn_state::TurnState;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    /// The owner's name for it.
    pub(crate) bus_token: Token,
    /// The worker's name for it.
    pub(crate) agent_token: Token,
    /// The worker that has it open. None: the worker is lost. Only `Sessions::set_worker` changes it.
    pub(crate) worker: Option<WorkerId>,
    /// None: the owner has left, and may return until `keep_until`. Only `Sessions::set_owner` changes it.
    pub(crate) owner: Option<Link>,
    #[serde(serialize_with = "crate::saved::time")]
    pub(crate) keep_until: Moment,
    #[serde(serialize_with = "crate::saved::time")]
    pub(crate) opened: Moment,
    /// When the last message about it passed.
    #[serde(serialize_with = "crate::saved::time")]
    pub(crate) touched: Moment,
    /// The session that announced it, if it belongs to a subagent. It may be gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<SessionKey>,
    /// The sessions whose `parent` it is.
    children: BTreeSet<SessionKey>,
    /// The client names it beside the method; the agent does not know it.
    pub(crate) is_label: bool,
    /// The owner asked for it by a name that was taken; the results of its loads carry the new id.
    pub(crate) is_renamed: bool,
    /// The result that opened it, if it was small enough to keep.
    pub(crate) opening: Option<Opening>,
    /// How another process can open it after the loss of its worker.
    pub(crate) reopen: Option<Reopen>,
    /// How many requests to load it are in flight.
    pub(crate) loads: u32,
    pub(crate) if_refused: IfRefused,
    /// The loading client already has the history (`"bus/replay": false`), so the replay is dropped.
    pub(crate) is_known: bool,
    /// It has left its process on purpose, and its next message opens it in another.
    pub(crate) is_moved: bool,
    /// What people see of it.
    pub(crate) shown: Shown,
    kept: Kept,
    /// What its agent does for it, where agents report that. Only `Sessions::set_turn_state` changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) turn_state: Option<TurnState>,
    /// Messages of the owner that wait until the new worker has opened the session, or the old one has closed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovering: Option<Backlog<Queued>>,
    /// The call by which its new worker opens it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovery: Option<CallKey>,
    /// It lost its worker in the middle of a turn, which may go on behind a worker that only passes messages on.
    pub(crate) lost_turn: bool,
    /// What the agent asks in it.
    pub(crate) questions: Questions,
    /// What the worker said while the owner was away.
    pub(crate) offline: Offline,
    /// More was said than is kept.
    pub(crate) offline_overflow: bool,
    /// The clients that joined it.
    pub(crate) guests: Guests,
    pub(crate) prompts: Prompts,
    /// What was said in it and in those of its subagents. Only `logs` changes it.
    log: SessionLog,
    /// Others may join it, and what is said in it is logged for them.
    pub(crate) is_shared: bool,
    /// What is said in it is written down.
    pub(crate) is_kept: bool,
    /// It was opened for a client of another bus, which writes it down.
    pub(crate) is_piped: bool,
    /// The client that writes it down, once it knows of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) told_keeper: Option<Link>,
    /// How many lines of it were ever logged.
    pub(crate) said: u64,
    /// So many of them its agent told when it was loaded.
    pub(crate) replayed: u64,
    /// The agent is replaying for one client: the log has these lines already.
    pub(crate) is_retold: bool,
}

/// What becomes of a session if its agent refuses to load it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IfRefused {
    /// It is open and goes on. The bus answers for it.
    GoesOn,
    /// The agent does not have it open, so it is forgotten.
    IsForgotten,
    /// The agent has it open, but the client cannot hear what it missed. It is ended at the agent.
    Ends,
}

impl Session {
    pub(crate) fn new(
        bus_token: Token,
        agent_token: Token,
        worker: WorkerId,
        owner: Option<Link>,
        now: Moment,
    ) -> Session {
        Session {
            bus_token,
            agent_token,
            worker: Some(worker),
            owner,
            parent: None,
            children: BTreeSet::new(),
            keep_until: Moment::ZERO,
            opened: now,
            touched: now,
            is_label: false,
            is_renamed: false,
            opening: None,
            reopen: None,
            loads: 0,
            if_refused: IfRefused::GoesOn,
            is_known: false,
            is_moved: false,
            shown: Shown::default(),
            kept: Kept::default(),
            turn_state: None,
            recovering: None,
            recovery: None,
            lost_turn: false,
            questions: Questions::default(),
            offline: Offline::default(),
            offline_overflow: false,
            guests: Guests::default(),
            prompts: Prompts::default(),
            log: SessionLog::default(),
            is_shared: false,
            is_kept: false,
            is_piped: false,
            told_keeper: None,
            said: 0,
            replayed: 0,
            is_retold: false,
        }
    }

    /// The owner's name without its quotes, as the tables of clients have it.
    pub(crate) fn bus_name(&self) -> &[u8] {
        self.bus_token.name()
    }

    /// The worker's name without its quotes, as the tables of workers have it.
    pub(crate) fn agent_name(&self) -> &[u8] {
        self.agent_token.name()
    }

    /// Whether its agent has reported a turn.
    pub(crate) fn is_turn_running(&self) -> bool {
        self.turn_state.is_some_and(|state| state != TurnState::Idle)
    }

    /// Whether its agent works on a prompt.
    pub(crate) fn has_turn(&self) -> bool {
        self.prompts.is_running() || self.is_turn_running()
    }

    /// Whether a prompt waits that its agent can be given now.
    pub(crate) fn may_begin_prompt(&self) -> bool {
        self.prompts.waiting() > 0 && !self.has_turn() && !self.is_retold
    }

    /// This client's name for it, if it is the owner or a guest.
    pub(crate) fn token_of(&self, client: Link) -> Option<&Token> {
        if self.owner == Some(client) {
            return Some(&self.bus_token);
        }
        self.guests.get(client).map(|guest| &guest.token)
    }

    /// Whether this client is in it and does not only look on.
    pub(crate) fn controls(&self, client: Link) -> bool {
        let guest = self.guests.get(client);
        self.owner == Some(client)
            || guest.is_some_and(|guest| guest.role == Role::Control || !enabled(Check::Observer))
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.is_some()
    }

    /// Whether what its agent tells now may be what its client has heard before.
    #[inline]
    pub(crate) fn is_told_again(&self) -> bool {
        self.is_recovering() && enabled(Check::Replay) || self.is_known && enabled(Check::KnownReplay)
    }

    /// Whether what its agent says now is for its log and its guests.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.is_shared && !self.is_retold && !self.is_told_again()
    }

    /// Whether its prompts stand in its own log.
    #[inline]
    pub(crate) fn has_own_log(&self) -> bool {
        self.parent.is_none()
    }

    /// What it takes in the tables: itself, its two names, and where it is looked up by them.
    pub(crate) fn table_bytes(&self) -> usize {
        let lookup = counts_as::<(Token, SessionKey)>(24);
        counts_as::<Session>(712) + self.bus_token.len() + self.agent_token.len() + 2 * lookup
    }

    /// What it makes the bus keep beside the lines that wait. The labels of a client are counted there.
    pub(crate) fn kept_bytes(&self) -> usize {
        if self.is_label {
            return 0;
        }
        let opening = self.opening.as_ref().map_or(0, Opening::bytes);
        let failed = self.prompts.failed.as_ref().map_or(0, |error| error.len());
        let beside = self.guests.bytes() + self.shown.bytes() + failed;
        self.table_bytes() + opening + self.reopen.as_ref().map_or(0, Reopen::bytes) + beside
    }

    /// A turn has ended, with this error if it has failed.
    #[inline]
    pub(crate) fn note_turn_end(&mut self, error: Option<Box<str>>, held: &mut HeldBytes) {
        if error.is_some() {
            self.prompts.failed = error;
            self.count(held);
        }
    }

    /// What is kept of it has changed.
    pub(crate) fn count(&mut self, held: &mut HeldBytes) {
        self.kept.set(self.kept_bytes(), held);
    }

    /// The bytes of it that count as held.
    pub(crate) fn check_kept(&self) -> usize {
        self.kept.check(self.kept_bytes())
    }

    /// Ends the recovery. Returns what waited for it.
    pub(crate) fn take_recovering(&mut self, held: &mut HeldBytes) -> VecDeque<Queued> {
        self.recovering.take().map_or_else(VecDeque::new, |mut backlog| backlog.take(held))
    }

    /// The sessions that it announced. Once it is gone, they are orphans.
    pub(crate) fn take_children(&mut self) -> BTreeSet<SessionKey> {
        std::mem::take(&mut self.children)
    }

    /// Drops everything that is kept of it.
    pub(crate) fn forget_kept(&mut self, held: &mut HeldBytes) {
        self.clear_backlogs(held);
        self.kept.set(0, held);
    }

    /// Drops everything that waits in it.
    pub(crate) fn clear_backlogs(&mut self, held: &mut HeldBytes) {
        self.questions.take(held);
        self.offline.take(held);
        self.prompts.forget(held);
    }
}

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Sessions {
    sessions: Arena<SessionKey, Session>,
    /// Every session but labels, by the hash of its agent name.
    #[serde(skip)]
    by_agent: BTreeSet<(u64, SessionKey)>,
    /// Every session by the number that people call it.
    by_number: HashMap<u32, SessionKey>,
    /// How many sessions each client owns at each worker, labels not among them.
    owned: HashMap<(Link, WorkerId), usize>,
    /// The sessions in which agents wait for an answer while nobody is asked, by the worker and the hash of the
    /// request's id. Some of them do not wait any more.
    #[serde(skip)]
    unasked: BTreeMap<(WorkerId, u64), SessionKey>,
    /// With how many of them those that do not wait are forgotten.
    unasked_most: usize,
    /// The number of what an agent said or asked last while it was kept.
    order: u64,
    #[serde(skip)]
    hasher: RandomState,
    /// What may go on in workers for clients that are not there, or between two calls.
    at_workers: HashMap<WorkerId, AtWorker>,
    /// The bytes of all logs.
    log_bytes: HeldBytes,
    /// Where the next log is shortened when there is too much in all of them: the index of a session.
    log_hand: u32,
}

/// Some of the sessions of a worker, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct AtWorker {
    /// Those without an owner.
    left: usize,
    /// Those whose agent reports a turn.
    running: usize,
}

impl Sessions {
    /// The key that `insert` will return next.
    pub(crate) fn next_key(&self) -> SessionKey {
        self.sessions.next_id()
    }

    pub(crate) fn insert(&mut self, session: Session) -> SessionKey {
        let hash = (!session.is_label).then(|| self.hasher.hash_one(session.agent_name()));
        let key = self.sessions.insert(session);
        self.by_number.insert(key.number(), key);
        self.by_agent.extend(hash.map(|hash| (hash, key)));
        self.count(key, 1);
        key
    }

    /// Makes the tables again that are not saved, because they depend on the keys of this table's hashes.
    pub(crate) fn index(&mut self) {
        for (key, session) in self.sessions.iter() {
            if !session.is_label {
                self.by_agent.insert((self.hasher.hash_one(session.agent_name()), key));
            }
            let Some(worker) = session.worker else { continue };
            for id in session.questions.unasked().filter_map(|(_, question)| question.held.message().id()) {
                self.unasked.insert((worker, self.hasher.hash_one(id)), key);
            }
        }
    }

    /// How many sessions of a worker have no owner.
    pub(crate) fn left_at(&self, worker: WorkerId) -> usize {
        self.at_workers.get(&worker).map_or(0, |at| at.left)
    }

    pub(crate) fn has_left(&self, worker: WorkerId) -> bool {
        self.left_at(worker) > 0
    }

    pub(crate) fn has_turn(&self, worker: WorkerId) -> bool {
        self.at_workers.get(&worker).is_some_and(|at| at.running > 0)
    }

    /// How many sessions a client owns at a worker.
    pub(crate) fn owned_at(&self, client: Link, worker: WorkerId) -> usize {
        self.owned.get(&(client, worker)).copied().unwrap_or_default()
    }

    pub(crate) fn set_owner(&mut self, key: SessionKey, owner: Option<Link>) {
        self.change(key, |session| session.owner = owner);
    }

    pub(crate) fn set_worker(&mut self, key: SessionKey, worker: Option<WorkerId>) {
        self.change(key, |session| session.worker = worker);
    }

    pub(crate) fn set_turn_state(&mut self, key: SessionKey, state: TurnState) {
        self.change(key, |session| session.turn_state = Some(state));
    }

    /// Changes something that is counted.
    fn change(&mut self, key: SessionKey, change: impl FnOnce(&mut Session)) {
        self.count(key, -1);
        if let Some(session) = self.sessions.get_mut(key) {
            change(session);
        }
        self.count(key, 1);
    }

    fn count(&mut self, key: SessionKey, by: isize) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(worker) = session.worker else { return };
        let (left, running) = (session.owner.is_none(), session.is_turn_running());
        if let Some(owner) = session.owner.filter(|_| !session.is_label) {
            let owned = self.owned.entry((owner, worker)).or_default();
            *owned = owned.wrapping_add_signed(by);
            if *owned == 0 {
                self.owned.remove(&(owner, worker));
            }
        }
        if left || running {
            let at = self.at_workers.entry(worker).or_default();
            at.left = at.left.wrapping_add_signed(isize::from(left) * by);
            at.running = at.running.wrapping_add_signed(isize::from(running) * by);
            if *at == AtWorker::default() {
                self.at_workers.remove(&worker);
            }
        }
    }

    /// Panics if something was changed past `change`. For tests.
    pub(crate) fn check_counts(&self) {
        let mut at_workers: HashMap<WorkerId, AtWorker> = HashMap::new();
        let mut owned: HashMap<(Link, WorkerId), usize> = HashMap::new();
        for (key, session) in self.iter() {
            assert_eq!(self.numbered(key.number()), Some(key), "a session is found by its number");
            if let (Some(owner), Some(worker), false) = (session.owner, session.worker, session.is_label) {
                *owned.entry((owner, worker)).or_default() += 1;
            }
            let (left, running) = (session.owner.is_none(), session.is_turn_running());
            if let Some(worker) = session.worker.filter(|_| left || running) {
                let at = at_workers.entry(worker).or_default();
                at.left += usize::from(left);
                at.running += usize::from(running);
            }
        }
        assert_eq!(self.by_number.len(), self.len(), "only sessions that exist have a number");
        assert_eq!(self.owned, owned, "the sessions of clients are counted");
        assert_eq!(self.at_workers, at_workers, "sessions without an owner and turns are counted");
    }

    #[inline]
    pub(crate) fn get(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(key)
    }

    pub(crate) fn remove(&mut self, key: SessionKey) -> Option<Session> {
        self.count(key, -1);
        let session = self.sessions.remove(key)?;
        self.by_number.remove(&key.number());
        self.log_bytes.give_back(session.log.len());
        if !session.is_label {
            self.by_agent.remove(&(self.hasher.hash_one(session.agent_name()), key));
        }
        if let Some(parent) = session.parent.and_then(|parent| self.get_mut(parent)) {
            parent.children.remove(&key);
        }
        Some(session)
    }

    /// The session that people call by this number.
    pub(crate) fn numbered(&self, number: u32) -> Option<SessionKey> {
        self.by_number.get(&number).copied()
    }

    /// The sessions that agents know by this name, in the order of their keys. Labels are not among them.
    pub(crate) fn named_by_agent(&self, name: &[u8]) -> impl Iterator<Item = (SessionKey, &Session)> {
        let hash = self.hasher.hash_one(name);
        let alike = self.by_agent.range((hash, SessionKey::FIRST)..=(hash, SessionKey::LAST));
        let found = alike.filter_map(|(_, key)| Some((*key, self.get(*key)?)));
        found.filter(move |(_, session)| session.agent_name() == name)
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter()
    }

    /// At most `count` sessions, and where the next page begins if there are more. A session that is there all the
    /// while is on exactly one page.
    pub(crate) fn page(&self, from: u32, count: usize) -> (Vec<(SessionKey, &Session)>, Option<u32>) {
        let mut page: Vec<_> = self.sessions.iter_from(from).take(count + 1).collect();
        let next = if page.len() > count { page.pop() } else { None };
        (page, next.map(|(key, _)| key.key().index))
    }

    pub(crate) fn ids(&self) -> Vec<SessionKey> {
        self.sessions.ids()
    }

    /// The worker that has this session open.
    pub(crate) fn worker_of(&self, key: SessionKey) -> Option<WorkerId> {
        self.get(key)?.worker
    }

    /// This client's name for a session, if it is in it.
    pub(crate) fn token_of(&self, key: SessionKey, client: Link) -> Option<Token> {
        self.get(key)?.token_of(client).cloned()
    }

    /// The owner of a session, if it waits for the agent to load it.
    pub(crate) fn loading_owner(&self, key: SessionKey) -> Option<Link> {
        let root = self.get(self.root(key))?;
        self.get(key)?.owner.filter(|_| root.loads > 0)
    }

    /// A message about this session passed.
    #[inline]
    pub(crate) fn touch(&mut self, key: Option<SessionKey>, now: Moment) {
        if let Some(session) = key.and_then(|key| self.get_mut(key)) {
            session.touched = now;
        }
    }

    /// The session of anybody with this name. Only a mutant of the simulation finds one.
    pub(crate) fn any_named(&self, name: &[u8]) -> Option<SessionKey> {
        if enabled(Check::OwnNames) {
            return None;
        }
        self.iter().find(|(_, session)| session.bus_name() == name).map(|(key, _)| key)
    }

    /// The session that announced this one, if it is still there.
    pub(crate) fn parent_of(&self, key: SessionKey) -> Option<SessionKey> {
        self.get(key)?.parent.filter(|parent| self.get(*parent).is_some())
    }

    /// Whether a session announced this one and is gone.
    pub(crate) fn is_orphan(&self, key: SessionKey) -> bool {
        self.get(key).is_some_and(|session| session.parent.is_some()) && self.parent_of(key).is_none()
    }

    /// This session was announced by `parent`, or by a session so deep that an ancestor counts as the parent: what
    /// climbs a tree of sessions must not take longer the more an agent announces.
    pub(crate) fn set_parent(&mut self, key: SessionKey, parent: SessionKey) {
        let mut ancestors = vec![parent];
        while let Some(next) = ancestors.last().and_then(|last| self.parent_of(*last)) {
            ancestors.push(next);
        }
        let parent = ancestors[ancestors.len().saturating_sub(CHILD_DEPTH)];
        self.leave_parent(key);
        if let Some(session) = self.get_mut(key) {
            session.parent = Some(parent);
        }
        if let Some(parent) = self.get_mut(parent) {
            parent.children.insert(key);
        }
    }

    /// The session no longer belongs to the one that announced it.
    pub(crate) fn leave_parent(&mut self, key: SessionKey) {
        let parent = self.get_mut(key).and_then(|session| session.parent.take());
        if let Some(parent) = parent.and_then(|parent| self.get_mut(parent)) {
            parent.children.remove(&key);
        }
    }

    /// The session at the top of the tree that announced this one. A session that nobody announced is its own root.
    pub(crate) fn root(&self, key: SessionKey) -> SessionKey {
        let mut root = key;
        while let Some(parent) = self.parent_of(root) {
            root = parent;
        }
        root
    }

    /// Whether `ancestor` announced this session, or announced one that did.
    pub(crate) fn is_descendant(&self, key: SessionKey, ancestor: SessionKey) -> bool {
        let mut at = key;
        while let Some(parent) = self.parent_of(at) {
            if parent == ancestor {
                return true;
            }
            at = parent;
        }
        false
    }

    /// The sessions that this one announced, and those that they announced.
    pub(crate) fn descendants(&self, key: SessionKey) -> Vec<SessionKey> {
        let mut found: Vec<SessionKey> =
            self.get(key).into_iter().flat_map(|it| &it.children).copied().collect();
        let mut next = 0;
        while let Some(key) = found.get(next).copied() {
            found.extend(self.get(key).into_iter().flat_map(|session| &session.children));
            next += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests;
