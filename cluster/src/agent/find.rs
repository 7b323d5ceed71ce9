//! How a worker of an edge finds a node: it asks who has the pool, and opens a pipe to the best that answers.
//!
//! An offer is only a hint. The pipe is opened at the name of the node, where only the node itself hears it, so an
//! offer in the name of another leads to that other one, or to nobody.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::time::sleep;

use super::Edge;
use crate::End;
use crate::asking::{Answer, ask};
use crate::carrier::max_frame_bytes;
use crate::pipe::DEFAULT_WINDOW;
use crate::subjects::{self, Address, shown};
use crate::talk::{Ask, Offer, Open, Reply, Request, to_bytes};

/// Offers that come within this are compared.
const OFFER_WAIT: Duration = Duration::from_millis(30);
/// So many are enough.
const OFFERS_ENOUGH: usize = 3;
/// After offers that were of no use, more of them are looked at.
const OFFERS_MAX: usize = 256;
/// How long the first offer may take.
const FIRST_OFFER_WAIT: Duration = Duration::from_millis(1500);
/// How long a node may take to open a pipe.
const OPEN_WAIT: Duration = Duration::from_secs(3);
/// Like `OPEN_WAIT`, if other nodes can be asked instead.
const OPEN_WAIT_OF_MANY: Duration = Duration::from_secs(1);
/// A node whose link is just being started again is asked once more after this.
const ASK_AGAIN: Duration = Duration::from_millis(250);
const TRIES: usize = 3;

/// What a node makes of the request for a pipe.
enum Tried {
    Opened(Box<Opened>),
    /// Why the node does not open one.
    Refused(String),
}

/// A pipe that a node has opened.
pub(super) struct Opened {
    pub(super) number: u64,
    pub(super) reply: Reply,
    pub(super) to: Address,
    pub(super) start: Instant,
}

/// The offers that have come.
#[derive(Default)]
struct Offers {
    /// Of each name the one with the most room: whoever may forge one can hide nobody.
    by_name: BTreeMap<String, Offer>,
    /// Answers that do not say by their subject whose they are, as nodes of an earlier version send them.
    doubtful: usize,
}

impl Edge {
    /// Finds a node and opens a pipe to it.
    pub(super) async fn place(&self) -> Result<Opened, End> {
        if let Some(node) = &self.options.node {
            if !subjects::is_name(node) {
                return Err(End::misconfigured(format!("{node:?} cannot be the name of a node")));
            }
            return match self.open_at(node).await? {
                Tried::Opened(opened) => Ok(*opened),
                Tried::Refused(why) => Err(End::unavailable(why)),
            };
        }
        let pool = &self.options.pool;
        let mut refused: BTreeMap<String, String> = BTreeMap::new();
        for round in 0..TRIES {
            let enough = if round == 0 { OFFERS_ENOUGH } else { OFFERS_MAX };
            let found = self.offers(enough, &refused).await?;
            let full = found.by_name.values().filter(|offer| offer.room == 0).count();
            let mut offers: Vec<Offer> = found.by_name.into_values().filter(|offer| offer.room > 0).collect();
            if offers.is_empty() {
                if full > 0 {
                    let nodes =
                        if full == 1 { "1 node has".to_owned() } else { format!("{full} nodes have") };
                    return Err(End::no_room(format!(
                        "{nodes} the pool {pool:?}, and no room for a session now"
                    )));
                }
                if refused.is_empty() && found.doubtful > 0 {
                    return Err(End::no_room(format!(
                        "what offers the pool {pool:?} does not prove its name: is it of another version than {}?",
                        env!("CARGO_PKG_VERSION")
                    )));
                }
                break;
            }
            let zone = self.options.cluster.zone.as_deref();
            while let Some(best) = choose(&mut offers, zone, |most| fastrand::usize(..most)) {
                let wait = if offers.is_empty() { OPEN_WAIT } else { OPEN_WAIT_OF_MANY };
                match self.open(&best.node, true, wait).await? {
                    Tried::Opened(opened) => return Ok(*opened),
                    Tried::Refused(why) => drop(refused.insert(best.node, why)),
                }
            }
        }
        // A node that says why is more telling than one that is not there.
        let why = refused.into_values().max_by_key(|why| !why.ends_with(NO_ANSWER));
        Err(End::no_room(why.unwrap_or_else(|| {
            format!(
                "no node offers the pool {pool:?}: on a node, name it in \"offer\" of \"cluster\" in its bus.json; \
                 `stdio-bus nodes` says which nodes there are"
            )
        })))
    }

    /// Asks who has the pool, but for those that have refused.
    async fn offers(&self, enough: usize, refused: &BTreeMap<String, String>) -> Result<Offers, End> {
        let question = Ask { pool: self.options.pool.clone(), zone: self.options.cluster.zone.clone() };
        let subject = subjects::ask(&self.options.pool);
        let mut answers = ask(&self.client, &self.name, subject, to_bytes(&question)).await?;
        let mut offers = Offers::default();
        let (mut wait, mut with_room) = (FIRST_OFFER_WAIT, 0);
        let asked = Instant::now();
        while with_room < enough {
            let left = wait.saturating_sub(asked.elapsed());
            match answers.next::<Offer>(left).await {
                Some(Answer::Of(node, offer)) if !refused.contains_key(&node) => {
                    let known = offers.by_name.get(&node).map(|offer| offer.room);
                    with_room += usize::from(offer.room > 0 && known.unwrap_or_default() == 0);
                    if known.is_none_or(|room| room < offer.room) {
                        offers.by_name.insert(node, offer);
                    }
                }
                Some(Answer::Of(..)) => {}
                Some(Answer::Doubtful) => offers.doubtful += 1,
                Some(Answer::NobodyThere) | None => break,
            }
            if !offers.by_name.is_empty() {
                wait = OFFER_WAIT.max(wait.min(asked.elapsed()));
            }
        }
        Ok(offers)
    }

    /// Opens a pipe to this node, whose link may just be being started again.
    async fn open_at(&self, node: &str) -> Result<Tried, End> {
        let mut tried = self.open(node, false, OPEN_WAIT).await?;
        for _ in 1..TRIES {
            match tried {
                Tried::Refused(why) if why.ends_with(NO_ANSWER) => sleep(ASK_AGAIN).await,
                _ => break,
            }
            tried = self.open(node, false, OPEN_WAIT).await?;
        }
        Ok(tried)
    }

    async fn open(&self, node: &str, is_new: bool, wait: Duration) -> Result<Tried, End> {
        let number = subjects::random_number();
        let request = Request::Open(Open {
            pool: self.options.pool.clone(),
            edge: self.name.clone(),
            boot: self.boot.clone(),
            id: Some(self.id.clone()),
            pid: std::process::id(),
            addr: self.addr.as_str().to_owned(),
            pipe: format!("{number:016x}"),
            window: DEFAULT_WINDOW,
            max_frame: max_frame_bytes(&self.client),
            is_new,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        let start = Instant::now();
        let Some(reply) = self.reply_of(node, to_bytes(&request), wait).await? else {
            return Ok(Tried::Refused(format!("node {node} {NO_ANSWER}")));
        };
        if let Some(why) = &reply.refused {
            return Ok(Tried::Refused(format!("node {node}: {}", shown(why))));
        }
        let Some(to) = Address::parse(&reply.addr, "n") else {
            return Ok(Tried::Refused(format!("node {node} sent a message that is not understood")));
        };
        self.report_gone(node, &reply).await?;
        Ok(Tried::Opened(Box::new(Opened { number, reply, to, start })))
    }

    /// Tells the node what it still has open for processes that are gone. Until it knows, their sessions are theirs.
    async fn report_gone(&self, node: &str, reply: &Reply) -> Result<(), End> {
        let pids: Vec<u32> = reply.siblings.iter().copied().filter(|pid| is_gone(*pid)).collect();
        if !pids.is_empty() || reply.earlier {
            let request = Request::Gone { proof: reply.proof.clone(), pids, earlier: reply.earlier };
            self.reply_of(node, to_bytes(&request), OPEN_WAIT).await?;
        }
        Ok(())
    }

    /// What the node of this name answers.
    pub(super) async fn reply_of(
        &self,
        node: &str,
        request: Bytes,
        wait: Duration,
    ) -> Result<Option<Reply>, End> {
        let mut answers = ask(&self.client, &self.name, subjects::open(node), request).await?;
        let asked = Instant::now();
        loop {
            match answers.next::<Reply>(wait.saturating_sub(asked.elapsed())).await {
                Some(Answer::Of(by, reply)) if by == node => return Ok(Some(reply)),
                Some(Answer::Of(..) | Answer::Doubtful) => {}
                Some(Answer::NobodyThere) | None => return Ok(None),
            }
        }
    }
}

const NO_ANSWER: &str = "does not answer";

/// The best of the offers, which is taken out: of two at random the one with more room, those of the own zone first.
/// The figures are a little old, and so the very best one would be everybody's.
fn choose(
    offers: &mut Vec<Offer>,
    zone: Option<&str>,
    mut random: impl FnMut(usize) -> usize,
) -> Option<Offer> {
    let is_near = |offer: &Offer| zone.is_some() && offer.zone.as_deref() == zone;
    let near = offers.iter().any(is_near);
    let candidates: Vec<usize> =
        (0..offers.len()).filter(|index| !near || is_near(&offers[*index])).collect();
    if candidates.is_empty() {
        return None;
    }
    let first = random(candidates.len());
    let second =
        (first + 1 + if candidates.len() > 1 { random(candidates.len() - 1) } else { 0 }) % candidates.len();
    let [first, second] = [candidates[first], candidates[second]];
    let emptier = |index: usize| (offers[index].room, (-offers[index].load * 1000.0) as i64);
    let best = if emptier(second) > emptier(first) { second } else { first };
    Some(offers.swap_remove(best))
}

/// Whether there is no process of this number. The number comes from a node, and one that the system takes for a group
/// of processes, 0 or above `i32::MAX`, is nobody's to ask about.
fn is_gone(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| pid > 1 && kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(node: &str, room: u64, load: f64, zone: &str) -> Offer {
        Offer {
            node: node.to_owned(),
            addr: String::new(),
            pool: "a".to_owned(),
            room,
            sessions: 0,
            load,
            mem_free: 0,
            zone: Some(zone.to_owned()),
            version: String::new(),
            started: 0,
            drain: false,
        }
    }

    #[test]
    fn of_two_at_random_the_emptier_one_is_taken_and_the_own_zone_first() {
        let all = [
            offer("a", 5, 0.1, "eu"),
            offer("b", 9, 0.1, "us"),
            offer("c", 7, 0.9, "eu"),
            offer("d", 7, 0.2, "eu"),
        ];
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut offers = all.to_vec();
            let best = choose(&mut offers, Some("eu"), |most| rng.usize(..most)).unwrap();
            assert!(["c", "d"].contains(&&*best.node), "a is never the better of two");
            let mut offers = all.to_vec();
            let order: Vec<String> =
                std::iter::from_fn(|| choose(&mut offers, Some("eu"), |most| rng.usize(..most)))
                    .map(|it| it.node)
                    .collect();
            assert_eq!((order.len(), &*order[3]), (4, "b"), "another zone is the last choice");
            let mut offers = all.to_vec();
            let best = choose(&mut offers, None, |most| rng.usize(..most)).unwrap();
            assert_ne!(best.node, "a");
        }
        assert!(choose(&mut Vec::new(), None, |_| 0).is_none());
    }

    #[test]
    fn only_the_number_of_a_process_that_has_ended_is_gone() {
        let none = i32::MAX.unsigned_abs();
        assert!(is_gone(none), "no system has so many processes");
        assert!(!is_gone(std::process::id()));
        // As signed numbers, the last two are a group that is not there, and everybody.
        for nobody in [0, 1, none + 2, u32::MAX] {
            assert!(!is_gone(nobody), "{nobody}");
        }
    }
}
