//! `stdio-bus agent nats`: a worker of an edge. One process is one pipe to one node, and ends when its pipe is dead, so
//! that the bus that has started it does the rest: it answers what is in flight, and starts another one.

use std::time::{Duration, Instant};

use async_nats::{Client, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use kernel_core::config::ClusterConfig;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, getuid};
use rpc::text::hex;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::End;
use crate::carrier::{Carrier, Change, max_frame_bytes};
use crate::local::Local;
use crate::pipe::{Config, DEAD_AFTER, DEFAULT_WINDOW, Pipe, Reason, Side, State};
use crate::pump::{Arrival, FRAMES_WAITING, Over, Pump};
use crate::subjects::{self, Address, shown};
use crate::talk::{Ask, Note, Offer, Open, Reply, Request, Room, to_bytes};

/// Offers that come within this are compared.
const OFFER_WAIT: Duration = Duration::from_millis(30);
/// So many are enough.
const OFFERS_ENOUGH: usize = 3;
/// How long the first offer may take.
const FIRST_OFFER_WAIT: Duration = Duration::from_millis(1500);
/// How long a node may take to open a pipe.
const OPEN_WAIT: Duration = Duration::from_secs(3);
/// If two nodes have one name, both answer; the second one is waited for this long.
const SECOND_REPLY_WAIT: Duration = Duration::from_millis(10);
/// A node whose link is just being started again is asked once more after this.
const ASK_AGAIN: Duration = Duration::from_millis(250);
const TRIES: usize = 3;
/// How often a node that is suspect is asked whether it is still the one that it was.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long the last frames may take.
const GOODBYE: Duration = Duration::from_millis(500);
/// The bus gives each of its processes a mark that is new in each of its lives.
const LIFE_OF_THE_BUS: &str = "BUS_FAMILY";

/// What the worker is told.
pub struct Options {
    /// The cluster.
    pub cluster: ClusterConfig,
    /// The pool, which has the same name at the nodes.
    pub pool: String,
    /// The name of the bus that has started this. `None`: that of the machine.
    pub name: Option<String>,
    /// The only node that will do.
    pub node: Option<String>,
    /// What is the same in each life of the bus that has started this, and no other bus of this machine and user has.
    /// `None`: nothing is known to be.
    pub place: Option<String>,
}

/// Runs until its time is over.
pub fn run(options: Options) -> Result<(), End> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| End::unavailable(format!("cannot start: {error}")))?;
    LocalSet::new().block_on(&runtime, Edge::serve(options))
}

/// This process, as nodes see it.
struct Edge {
    client: Client,
    options: Options,
    name: String,
    /// The life of the bus that has started it.
    boot: String,
    /// The bus that has started it, in all of its lives.
    id: String,
    addr: Address,
}

/// What a node makes of the request for a pipe.
enum Tried {
    Opened(Opened),
    /// Why the node does not open one.
    Refused(String),
}

/// A pipe that a node has opened.
struct Opened {
    number: u64,
    reply: Reply,
    to: Address,
    start: Instant,
}

impl Edge {
    async fn serve(options: Options) -> Result<(), End> {
        let name = options.name.clone().unwrap_or_else(subjects::host_name);
        if !subjects::is_name(&name) {
            return Err(End::misconfigured(format!("{name:?} cannot be the name of a bus")));
        }
        let what = format!("stdio-bus {name}: {}", options.pool);
        let mut carrier = Carrier::connect(&options.cluster, &name, &what).await?;
        let addr = Address::of_edge(&name);
        let boot = match std::env::var(LIFE_OF_THE_BUS) {
            // It is a secret of the bus, so others get only a digest of it.
            Ok(mark) => digest(&mark),
            Err(_) => subjects::random_token(),
        };
        let id = options.place.as_deref().map_or_else(|| boot.clone(), id_at);
        let edge = Edge { client: carrier.client.clone(), options, name, boot, id, addr };
        let broken = |error: async_nats::SubscribeError| End::unavailable(format!("NATS: {error}"));
        let frames = edge.client.subscribe(edge.addr.all_pipes()).await.map_err(broken)?;
        let placed = edge.place().await;
        let opened = match placed {
            Ok(opened) => opened,
            Err(end) => return Err(explained(end, &mut carrier)),
        };
        let notes = edge.client.subscribe(subjects::note(&opened.reply.node)).await.map_err(broken)?;
        edge.carry(opened, frames, notes, carrier).await
    }

    /// Finds a node and opens a pipe to it.
    async fn place(&self) -> Result<Opened, End> {
        if let Some(node) = &self.options.node {
            if !subjects::is_name(node) {
                return Err(End::misconfigured(format!("{node:?} cannot be the name of a node")));
            }
            return match self.open(node, None).await? {
                Tried::Opened(opened) => Ok(opened),
                Tried::Refused(why) => Err(End::unavailable(why)),
            };
        }
        let pool = &self.options.pool;
        let mut why = None;
        for _ in 0..TRIES {
            let mut offers = self.offers().await?;
            let full = offers.iter().filter(|offer| offer.room == 0).count();
            offers.retain(|offer| offer.room > 0);
            if offers.is_empty() && full > 0 {
                let nodes = if full == 1 { "1 node has".to_owned() } else { format!("{full} nodes have") };
                return Err(End::no_room(format!(
                    "{nodes} the pool {pool:?}, and no room for a session now"
                )));
            }
            while let Some(best) =
                choose(&mut offers, self.options.cluster.zone.as_deref(), |most| fastrand::usize(..most))
            {
                match self.open(&best.node, Some(best.addr)).await? {
                    Tried::Opened(opened) => return Ok(opened),
                    Tried::Refused(refused) => why = Some(refused),
                }
            }
            if why.is_none() {
                break;
            }
        }
        Err(End::no_room(why.unwrap_or_else(|| {
            format!(
                "no node offers the pool {pool:?}: on a node, name it in \"offer\" of \"cluster\" in its bus.json; \
                 `stdio-bus nodes` says which nodes there are"
            )
        })))
    }

    /// Asks who has the pool.
    async fn offers(&self) -> Result<Vec<Offer>, End> {
        let ask = Ask { pool: self.options.pool.clone(), zone: self.options.cluster.zone.clone() };
        let mut replies = self.request(subjects::ask(&self.options.pool), to_bytes(&ask)).await?;
        let mut offers: Vec<Offer> = Vec::new();
        let (mut wait, mut with_room) = (FIRST_OFFER_WAIT, 0);
        let asked = Instant::now();
        while with_room < OFFERS_ENOUGH {
            let left = wait.saturating_sub(asked.elapsed());
            let Ok(Some(message)) = timeout(left, replies.next()).await else { break };
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                break;
            }
            let Ok(offer) = serde_json::from_slice::<Offer>(&message.payload) else { continue };
            if !subjects::is_name(&offer.node) || offers.iter().any(|other| other.addr == offer.addr) {
                continue;
            }
            with_room += usize::from(offer.room > 0);
            offers.push(offer);
            wait = OFFER_WAIT.max(asked.elapsed());
        }
        // Of two nodes with one name the one counts that was started later.
        let latest =
            |offer: &Offer| offers.iter().all(|it| it.node != offer.node || it.started <= offer.started);
        let latest: Vec<Offer> = offers.iter().filter(|offer| latest(offer)).cloned().collect();
        Ok(latest)
    }

    /// Opens a pipe. `to` is the link that has made the offer.
    async fn open(&self, node: &str, to: Option<String>) -> Result<Tried, End> {
        let number = subjects::random_number();
        let max_frame = max_frame_bytes(&self.client);
        let request = Request::Open(Open {
            pool: self.options.pool.clone(),
            edge: self.name.clone(),
            boot: self.boot.clone(),
            id: Some(self.id.clone()),
            pid: std::process::id(),
            addr: self.addr.as_str().to_owned(),
            pipe: format!("{number:016x}"),
            window: DEFAULT_WINDOW,
            max_frame,
            to: to.clone(),
        });
        let request = to_bytes(&request);
        let start = Instant::now();
        let mut replies = Vec::new();
        for again in 0..TRIES {
            replies = self.replies(node, request.clone(), to.is_none()).await?;
            if !replies.is_empty() || to.is_some() {
                break;
            }
            if again + 1 < TRIES {
                sleep(ASK_AGAIN).await;
            }
        }
        replies.sort_by_key(|reply| std::cmp::Reverse(reply.started));
        let Some(reply) = replies.into_iter().next() else {
            return Ok(Tried::Refused(format!("node {node} does not answer")));
        };
        if let Some(why) = &reply.refused {
            return Ok(Tried::Refused(format!("node {node}: {}", shown(why))));
        }
        let Some(to) = Address::parse(&reply.addr, "n") else {
            return Ok(Tried::Refused(format!("node {node} sent a message that is not understood")));
        };
        self.report_gone_siblings(node, &reply).await?;
        Ok(Tried::Opened(Opened { number, reply, to, start }))
    }

    /// Tells the node which of the processes that it still knows are gone. Until it knows, their sessions are theirs.
    async fn report_gone_siblings(&self, node: &str, reply: &Reply) -> Result<(), End> {
        let pids: Vec<u32> = reply.siblings.iter().copied().filter(|pid| is_gone(*pid)).collect();
        if !pids.is_empty() {
            let request = Request::Gone { edge: self.name.clone(), boot: self.boot.clone(), pids };
            self.replies(node, to_bytes(&request), false).await?;
        }
        Ok(())
    }

    /// What the node answers. `expects_several`: another one of the same name may answer as well.
    async fn replies(&self, node: &str, request: Bytes, expects_several: bool) -> Result<Vec<Reply>, End> {
        let mut answers = self.request(subjects::open(node), request).await?;
        let (mut replies, mut wait) = (Vec::new(), OPEN_WAIT);
        while let Ok(Some(message)) = timeout(wait, answers.next()).await {
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                break;
            }
            let Ok(reply) = serde_json::from_slice::<Reply>(&message.payload) else { continue };
            replies.push(reply);
            if !expects_several {
                break;
            }
            wait = SECOND_REPLY_WAIT;
        }
        Ok(replies)
    }

    /// Publishes a request that may have many answers.
    async fn request(&self, subject: Subject, body: Bytes) -> Result<Subscriber, End> {
        let broken = |error: &dyn std::fmt::Display| End::unavailable(format!("NATS: {error}"));
        let inbox = Subject::from(self.client.new_inbox());
        let answers = self.client.subscribe(inbox.clone()).await.map_err(|error| broken(&error))?;
        let published = self.client.publish_with_reply(subject, inbox, body).await;
        published.map_err(|error| broken(&error))?;
        Ok(answers)
    }

    /// Moves bytes until the pipe ends.
    async fn carry(
        self,
        opened: Opened,
        frames: Subscriber,
        mut notes: Subscriber,
        carrier: Carrier,
    ) -> Result<(), End> {
        let Opened { number, reply, to, start } = opened;
        let node = reply.node;
        let config = Config {
            side: Side::Edge,
            window: DEFAULT_WINDOW,
            peer_window: reply.window,
            max_frame_bytes: reply.max_frame.min(max_frame_bytes(&self.client)),
        };
        let local = Local::stdio().map_err(|error| End::unavailable(format!("stdin and stdout: {error}")))?;
        let pipe = Pipe::new(number, config, start.elapsed());
        let subjects = (self.addr.pipe(number), to.pipe(number));
        let mut pump = Pump::new(pipe, start, self.client.clone(), subjects, local);
        pump.down.insert(about_worker(&node, Room { room: reply.room, drain: reply.drain }));

        let (tell, mut arrivals) = mpsc::channel(FRAMES_WAITING);
        spawn_local(dispatch(frames, number, tell));
        let mut changes = carrier.changes;
        let stop =
            |kind| signal(kind).map_err(|error| End::unavailable(format!("cannot handle signals: {error}")));
        let (mut terminate, mut interrupt) = (stop(SignalKind::terminate())?, stop(SignalKind::interrupt())?);
        let mut probe = Probe::default();
        let over = loop {
            if let Some(over) = pump.step().await {
                break over;
            }
            if let Some(said) = pump.pipe.take_control()
                && let Ok(room) = serde_json::from_slice(&said)
            {
                pump.down.insert(about_worker(&node, room));
                continue;
            }
            let suspect = *pump.pipe.state() == State::Suspect;
            tokio::select! {
                biased;
                Some(change) = changes.recv() => match change {
                    Change::Connected => {
                        let now = pump.now();
                        pump.pipe.carrier_connected(now);
                    }
                    Change::Disconnected => {}
                    Change::Refused(what) => eprintln!("stdio-bus: NATS refuses: {what}"),
                },
                // A node whose link was started again has forgotten its pipes.
                Some(note) = notes.next() => {
                    if is_another(&note.payload, &to) {
                        pump.pipe.kill(Reason::Replaced);
                    }
                }
                () = either(&mut terminate, &mut interrupt) => {
                    pump.pipe.kill(Reason::Owner("the edge has ended it".to_owned()));
                }
                answer = probe.next(&self, &node), if suspect => {
                    if answer.is_some_and(|addr| addr != to) {
                        pump.pipe.kill(Reason::Replaced);
                    }
                }
                () = pump.wait(&mut arrivals) => {}
            }
        };
        let _ = timeout(GOODBYE, async {
            pump.last_frames().await;
            let _ = self.client.flush().await;
        })
        .await;
        match over {
            Over::Finished | Over::Dead(Reason::Owner(_)) => Ok(()),
            Over::PeerEnded => Err(End::lost(format!("node {node} has ended the connection"))),
            Over::Dead(Reason::Silent | Reason::NoResponders) => {
                Err(End::lost(format!("node {node} has not answered for {} s", DEAD_AFTER.as_secs())))
            }
            Over::Dead(Reason::Replaced) => Err(End::lost(format!("node {node} was started again"))),
            Over::Dead(Reason::Reset(why)) => Err(End::lost(format!("node {node}: {}", shown(&why)))),
        }
    }
}

/// Waits for one of the signals.
async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// Whether there is no process of this number. The number comes from a node, and one that the system takes for a group
/// of processes, 0 or above `i32::MAX`, is nobody's to ask about.
fn is_gone(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| pid > 1 && kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

/// Asks a node that is suspect who it is, again and again.
#[derive(Default)]
struct Probe {
    next: Option<Instant>,
}

impl Probe {
    /// It can be abandoned: then it is asked again.
    async fn next(&mut self, edge: &Edge, node: &str) -> Option<Address> {
        let at = *self.next.get_or_insert_with(Instant::now);
        tokio::time::sleep_until(at.into()).await;
        self.next = Some(Instant::now() + PROBE_EVERY);
        let replies = edge.replies(node, to_bytes(&Request::Probe), false).await.ok()?;
        Address::parse(&replies.first()?.addr, "n")
    }
}

/// Passes the frames of the pipe on. What does not fit is sent again.
async fn dispatch(mut frames: Subscriber, number: u64, tell: mpsc::Sender<Arrival>) {
    while let Some(message) = frames.next().await {
        if subjects::pipe_of(&message.subject) == Some(number)
            && let Err(mpsc::error::TrySendError::Closed(_)) = tell.try_send(Arrival::of(message))
        {
            return;
        }
    }
}

/// Whether a note says that another link has the name now.
fn is_another(note: &[u8], to: &Address) -> bool {
    serde_json::from_slice::<Note>(note)
        .is_ok_and(|note| note.event == crate::talk::Event::Up && note.addr != to.as_str())
}

/// What the bus hears about the node behind this worker.
fn about_worker(node: &str, room: Room) -> Bytes {
    let params = json!({ "node": node, "room": room.room, "drain": room.drain });
    Bytes::from(json!({ "jsonrpc": "2.0", "method": "_bus/worker", "params": params }).to_string() + "\n")
}

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

/// What NATS has refused may be the reason for what went wrong.
fn explained(mut end: End, carrier: &mut Carrier) -> End {
    while let Ok(change) = carrier.changes.try_recv() {
        if let Change::Refused(what) = change {
            end.words = format!("{}; NATS refuses: {what}", end.words);
        }
    }
    end
}

/// What tells the bus at this place of this machine from all others, of which some may have its name.
fn id_at(place: &str) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    digest(&format!("{} {} {} {place}", subjects::host_name(), machine.trim(), getuid()))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text)[..8])
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
