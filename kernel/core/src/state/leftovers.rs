//! Deferred work, done in pieces of `WORK_PIECE` steps so that one event cannot hold the loop.
//!
//! A client may leave thousands of sessions, a worker that dies may owe a hundred thousand answers. One call of the
//! bus does a piece of such work. The rest waits here for an alarm that is due at once, so that other peers are
//! served between the pieces.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{CallKey, Link, PoolId, SessionKey, WorkerId};
use crate::limit::SENDS_IN_STEP;
use crate::mutants::{Check, enabled};
use crate::state::backlog::{Backlog, HeldBytes, Queued};
use crate::state::calls::EndpointId;
use crate::state::clients::Client;
use crate::state::session_names::SessionNames;
use crate::wire::error::RpcError;
use crate::wire::send_queue::SendQueue;

#[derive(Serialize, Deserialize)]
pub(crate) enum Leftover {
    Departed(Box<Departed>),
    LostLife(LifeKey),
    /// The client will send nothing more. After a goodbye, its sessions up to this one are ended.
    Ended(Link, Option<SessionKey>),
    /// Sessions of subagents whose parents are gone.
    Orphans(BTreeSet<SessionKey>),
    /// The ids of what a worker asked and nobody answers. It is refused, if the worker is still there.
    Unheard(Backlog<Box<[u8]>>, Option<Link>),
    /// Calls that nobody answers, and what their callers hear.
    Failed(VecDeque<CallKey>, Arc<RpcError>),
}

/// A client that has left: its connection is closed, and its calls and sessions are still to be let go.
#[derive(Serialize, Deserialize)]
pub(crate) struct Departed {
    pub(crate) link: Link,
    pub(crate) client: Client,
}

/// A life of a worker that was lost: its sessions are lost, and its calls are to be answered.
#[derive(Serialize, Deserialize)]
pub(crate) struct LostLife {
    pub(crate) worker: WorkerId,
    pub(crate) pool: PoolId,
    pub(crate) link: Link,
    /// It has the calls of this life. The next life has another endpoint.
    pub(crate) endpoint: EndpointId,
    /// What its callers hear.
    pub(crate) error: Arc<RpcError>,
    /// It has not reached its node.
    pub(crate) is_away: bool,
    /// What the callers hear whose calls it cannot have seen. None: these calls move to another worker.
    pub(crate) unseen_error: Option<Arc<RpcError>>,
    pub(crate) sessions: SessionNames,
    /// What waited for it.
    pub(crate) backlog: Backlog<Queued>,
    /// What was not written to it. None: its link is still open, and has it.
    pub(crate) output: Option<SendQueue>,
}

/// A lost life among those that are left: its worker, and a number, because the next life may be lost as well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LifeKey(WorkerId, u64);

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Leftovers {
    queue: VecDeque<Leftover>,
    /// The lost lives in `queue`.
    lives: BTreeMap<LifeKey, LostLife>,
    lives_lost: u64,
    /// How many of the clients in `queue` that have left each worker has served.
    departed_of: HashMap<WorkerId, usize>,
    /// The clients in `queue` that will send nothing more.
    ended: BTreeSet<Link>,
    /// How much of such work this call of the bus may still do.
    budget: usize,
    /// What was done and does not make a step yet.
    parts: usize,
}

impl Leftovers {
    /// A new call of the bus begins.
    #[inline]
    pub(crate) fn begin_call(&mut self, piece: usize) {
        self.budget = if enabled(Check::WorkPiece) { piece } else { usize::MAX };
    }

    pub(crate) fn spend(&mut self, steps: usize) {
        self.budget = self.budget.saturating_sub(steps);
    }

    /// Like `spend`, for parts of steps. Those that make no whole step are kept for the next time.
    #[inline]
    pub(crate) fn spend_parts(&mut self, parts: usize) {
        self.parts += parts;
        if self.parts >= SENDS_IN_STEP {
            self.spend(self.parts / SENDS_IN_STEP);
            self.parts %= SENDS_IN_STEP;
        }
    }

    /// Whether this call has done enough.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget == 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn push_first(&mut self, work: Leftover) {
        match &work {
            Leftover::Departed(gone) => {
                for worker in &gone.client.workers {
                    *self.departed_of.entry(*worker).or_default() += 1;
                }
            }
            Leftover::Ended(link, _) => _ = self.ended.insert(*link),
            _ => {}
        }
        self.queue.push_front(work);
    }

    /// Keeps a lost life. `push_first` of this work follows.
    pub(crate) fn add_life(&mut self, lost: LostLife) -> Leftover {
        self.lives_lost += 1;
        let key = LifeKey(lost.worker, self.lives_lost);
        self.lives.insert(key, lost);
        Leftover::LostLife(key)
    }

    /// The lost life whose work is continued next.
    pub(crate) fn first_life_mut(&mut self) -> Option<&mut LostLife> {
        let Some(Leftover::LostLife(key)) = self.queue.front() else { return None };
        self.lives.get_mut(key)
    }

    /// The work that is done next. It stays in the queue while a step of it is done, so that it can be found.
    pub(crate) fn first_mut(&mut self) -> Option<&mut Leftover> {
        self.queue.front_mut()
    }

    /// Nothing is left of the first work.
    pub(crate) fn remove_done(&mut self) {
        match self.queue.pop_front() {
            Some(Leftover::Departed(gone)) => {
                for worker in &gone.client.workers {
                    if let Entry::Occupied(mut count) = self.departed_of.entry(*worker) {
                        *count.get_mut() -= 1;
                        if *count.get() == 0 {
                            count.remove();
                        }
                    }
                }
            }
            Some(Leftover::LostLife(key)) => drop(self.lives.remove(&key)),
            Some(Leftover::Ended(link, _)) => _ = self.ended.remove(&link),
            _ => {}
        }
    }

    /// The first work comes last in the next call, so that small work does not wait for large work.
    pub(crate) fn rotate(&mut self) {
        if let Some(first) = self.queue.pop_front() {
            self.queue.push_back(first);
        }
    }

    /// Whether such work for this client, which will send nothing more, is under way.
    pub(crate) fn has_ended(&self, link: Link) -> bool {
        self.ended.contains(&link)
    }

    /// Keeps what was not written to a link that is closed, if calls of that life wait for an answer.
    pub(crate) fn keep_output(&mut self, link: Link, output: SendQueue, held: &mut HeldBytes) {
        if let Some(lost) = self.lives.values_mut().find(|lost| lost.link == link) {
            held.add(output.len());
            lost.output = Some(output);
        }
    }

    /// The bytes that what is left holds, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        let of_work = |work: &Leftover| match work {
            Leftover::Departed(gone) => gone.client.check_kept(),
            Leftover::Unheard(unheard, _) => unheard.count_bytes(),
            _ => 0,
        };
        let of_life =
            |lost: &LostLife| lost.backlog.count_bytes() + lost.output.as_ref().map_or(0, SendQueue::len);
        self.queue.iter().map(of_work).sum::<usize>() + self.lives.values().map(of_life).sum::<usize>()
    }

    /// Takes out a session of a lost life that is not lost yet. Returns the error of that life.
    pub(crate) fn take_session(
        &mut self,
        worker: WorkerId,
        name: &[u8],
        key: SessionKey,
    ) -> Option<Arc<RpcError>> {
        let mut lives = self.lives.range_mut(lives_of(worker));
        lives.find_map(|(_, lost)| lost.sessions.remove(name, key).then(|| lost.error.clone()))
    }

    /// Takes out a session that this client, which has left, has not let go yet. Returns whether it said goodbye.
    pub(crate) fn take_departed(&mut self, link: Link, name: &[u8], key: SessionKey) -> Option<bool> {
        self.queue.iter_mut().find_map(|work| match work {
            Leftover::Departed(gone) if gone.link == link => {
                gone.client.sessions.remove(name, key).then_some(gone.client.bye)
            }
            _ => None,
        })
    }

    /// This client, if it has left and what it had is let go now.
    pub(crate) fn leaving(&self, link: Link) -> Option<&Client> {
        match self.queue.front() {
            Some(Leftover::Departed(gone)) if gone.link == link => Some(&gone.client),
            _ => None,
        }
    }

    /// Whether this session is still to be lost with its worker.
    pub(crate) fn has_session(&self, worker: WorkerId, name: &[u8], key: SessionKey) -> bool {
        self.lives.range(lives_of(worker)).any(|(_, lost)| lost.sessions.get(name) == Some(&key))
    }

    /// Whether a client that this worker served has left, and not all that it had is let go.
    pub(crate) fn has_client_of(&self, worker: WorkerId) -> bool {
        self.departed_of.contains_key(&worker)
    }

    /// The clients that have left and whose sessions are not all let go.
    pub(crate) fn departed(&self) -> BTreeSet<Link> {
        let link_of = |work: &Leftover| match work {
            Leftover::Departed(gone) => Some(gone.link),
            _ => None,
        };
        self.queue.iter().filter_map(link_of).collect()
    }
}

fn lives_of(worker: WorkerId) -> RangeInclusive<LifeKey> {
    LifeKey(worker, 0)..=LifeKey(worker, u64::MAX)
}
