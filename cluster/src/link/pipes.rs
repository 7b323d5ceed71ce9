//! The pipes of a link: opened by edges, each carried by a task of its own to a connection of its own to the bus.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use log::{debug, info};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_local;
use tokio::time::{sleep_until, timeout};

use super::room::Figures;
use super::{Node, bus};
use crate::carrier::max_frame_bytes;
use crate::folders::{FolderWatch, Settled};
use crate::pipe::{self, Config, DEFAULT_WINDOW, MIN_WINDOW, Pipe, Reason, Side, Statistics};
use crate::pump::{Arrival, FRAMES_WAITING, Over, Pump};
use crate::subjects::{self, Address, shown};
use crate::talk::{Open, Reply, Request, Room, to_bytes};

/// A window that grows gets at most this part of what the others leave.
const GROWN_PART: usize = 4;
/// The windows of all pipes together stay below half of what a NATS server keeps for a connection.
const ALL_WINDOWS: usize = 32 << 20;
/// A new pipe gets this part of what is left.
const PART: usize = 16;
/// So many pipes there are at most.
const PIPES_MAX: usize = 4096;
/// How long the bus may take to close a connection whose edge has nothing more to say.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// How long the last frames may take.
const GOODBYE: Duration = Duration::from_millis(500);

/// What an edge hears that tells the node to drain, which the bus.json of the node does not allow.
const NO_DRAIN: &str = "edges may not drain it: run this at the node with its own key, or write \
                        \"edges_drain\": true in \"cluster\" of its bus.json";

/// What a pipe is told.
enum Order {
    Connected,
    Kill(String),
}

struct Entry {
    arrivals: mpsc::Sender<Arrival>,
    orders: mpsc::UnboundedSender<Order>,
    edge: String,
    boot: String,
    id: Option<String>,
    pid: u32,
    /// What only the edge that has opened it was told.
    proof: String,
    statistics: Rc<Cell<Statistics>>,
}

impl Entry {
    /// Whether the same life of the same edge has opened it.
    fn is_sibling_of(&self, other: &Entry) -> bool {
        (&self.edge, &self.id, &self.boot) == (&other.edge, &other.id, &other.boot)
    }

    /// Whether the edge that opens this one had it open in an earlier life. Another edge may have the same name.
    fn is_of_earlier_life(&self, later: &Entry) -> bool {
        (&self.edge, &self.id) == (&later.edge, &later.id) && self.boot != later.boot
    }
}

/// All pipes by their numbers.
#[derive(Default)]
pub(crate) struct Pipes {
    entries: RefCell<HashMap<u64, Entry>>,
    windows: Cell<usize>,
    /// What those that have ended have counted.
    of_ended: Cell<Counted>,
    gone: Notify,
    /// There is one more, or one less.
    changed: Notify,
}

/// What all pipes of a link have counted, as its bus hears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counted {
    /// Those that are open.
    pipes: usize,
    /// In both directions.
    frames: u64,
    resent_frames: u64,
    stalls: u64,
    /// Of the slowest that is open.
    rtt_us: Option<u64>,
}

impl Counted {
    fn add(&mut self, pipe: &Statistics) {
        self.frames += pipe.frames_sent + pipe.frames_received;
        self.resent_frames += pipe.resent;
        self.stalls += pipe.stalls;
    }
}

impl Pipes {
    pub(crate) fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    pub(crate) fn counted(&self) -> Counted {
        let mut counted = self.of_ended.get();
        for entry in self.entries.borrow().values() {
            let pipe = entry.statistics.get();
            counted.pipes += 1;
            counted.add(&pipe);
            let rtt_us = pipe.round_trip.map(|time| time.as_micros() as u64);
            counted.rtt_us = counted.rtt_us.max(rtt_us);
        }
        counted
    }

    /// Waits until there are more or fewer of them.
    pub(crate) async fn count_changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn carrier_connected(&self) {
        for entry in self.entries.borrow().values() {
            let _ = entry.orders.send(Order::Connected);
        }
    }

    pub(crate) fn kill_all(&self, why: &str) {
        self.kill(why, |_, _| true);
    }

    fn kill(&self, why: &str, is_meant: impl Fn(u64, &Entry) -> bool) {
        for (_, entry) in self.entries.borrow().iter().filter(|(number, entry)| is_meant(**number, entry)) {
            let _ = entry.orders.send(Order::Kill(why.to_owned()));
        }
    }

    /// Kills those that are meant, and waits until they have let go of their sessions.
    async fn kill_and_wait(&self, why: &str, is_meant: impl Fn(u64, &Entry) -> bool) {
        self.kill(why, &is_meant);
        let all_gone = async {
            loop {
                let gone = self.gone.notified();
                if !self.entries.borrow().iter().any(|(number, entry)| is_meant(*number, entry)) {
                    return;
                }
                gone.await;
            }
        };
        let _ = timeout(GOODBYE * 2, all_gone).await;
    }

    /// The edge that has this proof has no use for the pipes of these processes, and of its earlier lives.
    async fn let_go(&self, proof: &str, pids: &[u32], earlier: bool) {
        let (gone, old): (Vec<u64>, Vec<u64>) = {
            let entries = self.entries.borrow();
            let Some(own) = entries.values().find(|entry| entry.proof == proof) else {
                return debug!("pipes are said to be of no use without a proof");
            };
            let is_gone = |entry: &Entry| entry.is_sibling_of(own) && pids.contains(&entry.pid);
            let is_old = |entry: &Entry| earlier && entry.is_of_earlier_life(own);
            let numbers = |is_meant: &dyn Fn(&Entry) -> bool| {
                entries.iter().filter(|(_, entry)| is_meant(entry)).map(|(number, _)| *number).collect()
            };
            (numbers(&is_gone), numbers(&is_old))
        };
        for (numbers, why) in [(gone, "its process at the edge is gone"), (old, "the edge was started again")]
        {
            if !numbers.is_empty() {
                self.kill_and_wait(why, |number, _| numbers.contains(&number)).await;
            }
        }
    }

    pub(crate) async fn all_gone(&self) {
        loop {
            let gone = self.gone.notified();
            if self.entries.borrow().is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// The window of a new pipe: the first ones are large, and the more there are, the smaller is the next.
    fn take_window(&self) -> usize {
        let window = next_window(self.windows.get());
        self.windows.set(self.windows.get() + window);
        window
    }

    /// A larger window for a pipe that has this one, as far as the others leave it.
    fn grow_window(&self, window: usize, wanted: usize) -> usize {
        let others = self.windows.get() - window;
        let grown = grown_window(others, wanted).max(window);
        self.windows.set(others + grown);
        grown
    }
}

fn grown_window(others: usize, wanted: usize) -> usize {
    wanted.min(ALL_WINDOWS.saturating_sub(others) / GROWN_PART)
}

fn next_window(used: usize) -> usize {
    (ALL_WINDOWS.saturating_sub(used) / PART).clamp(MIN_WINDOW, DEFAULT_WINDOW)
}

/// Passes frames on to their pipes. A pipe that is not there any more is said to be dead.
pub(crate) async fn dispatch(node: Rc<Node>, mut frames: Subscriber) {
    while let Some(message) = frames.next().await {
        let Some(number) = subjects::pipe_of(&message.subject) else { continue };
        let reply = message.reply.clone();
        let unknown = {
            let entries = node.pipes.entries.borrow();
            match entries.get(&number) {
                // What does not fit is sent again.
                Some(entry) => match entry.arrivals.try_send(Arrival::of(message)) {
                    Ok(()) | Err(TrySendError::Full(_)) => None,
                    Err(TrySendError::Closed(arrival)) => Some(arrival),
                },
                None => Some(Arrival::of(message)),
            }
        };
        // Only who asks for a sign of life says where he is.
        if let (Some(Arrival::Frame(frame)), Some(reply)) = (unknown, reply)
            && reply.starts_with("bus.v1.p.e.")
            && let Some(reset) = pipe::reset_unknown(&frame, "the node does not know this pipe any more")
        {
            let _ = node.client.publish(reply, reset).await;
        }
    }
}

/// An edge wants something of this node.
pub(crate) async fn on_request(node: Rc<Node>, message: Message) {
    let Some(reply_to) = message.reply else { return };
    let request = serde_json::from_slice(&message.payload);
    let mut reply = Reply {
        node: node.name.clone(),
        addr: node.addr.as_str().to_owned(),
        started: node.started,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Reply::default()
    };
    match request {
        Ok(Request::Probe) => {}
        Ok(Request::Drain { drain }) if node.cluster.edges_drain => node.drains(drain).await,
        Ok(Request::Drain { .. }) => {
            info!("an edge that tells this node to drain is refused");
            reply.refused = Some(NO_DRAIN.to_owned());
        }
        Ok(Request::Gone { proof, pids, earlier }) => node.pipes.let_go(&proof, &pids, earlier).await,
        Err(error) => {
            info!("a request is not understood: {error}");
            reply.refused = Some(not_understood(&message.payload));
        }
        Ok(Request::Open(open)) => {
            node.counts.borrow_mut().opens += 1;
            if let Err(why) = open_pipe(&node, open, &reply_to, &mut reply).await {
                node.counts.borrow_mut().refused += 1;
                info!("a pipe is refused: {why}");
                reply.refused = Some(why);
            }
        }
    }
    node.answer(&reply_to, &reply).await;
}

/// What an edge hears whose request has another form than ours: most likely it is of another version.
fn not_understood(request: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Versioned {
        version: String,
    }
    let asked = serde_json::from_slice::<Versioned>(request).unwrap_or_default().version;
    let asked = if asked.is_empty() { "of a version that it does not say".to_owned() } else { shown(&asked) };
    format!(
        "its stdio-bus is {}, and does not understand the request of an edge that is {asked}",
        env!("CARGO_PKG_VERSION")
    )
}

async fn open_pipe(node: &Rc<Node>, open: Open, reply_to: &str, reply: &mut Reply) -> Result<(), String> {
    let number = u64::from_str_radix(&open.pipe, 16).map_err(|_| "this is no number of a pipe")?;
    let to = Address::parse(&open.addr, "e").ok_or("this is no address of an edge")?;
    // Only the edge of this name hears what is sent there.
    if !subjects::is_name(&open.edge) || to.name() != open.edge || !subjects::is_of(&open.edge, reply_to) {
        return Err("an edge must be answered at its own name".to_owned());
    }
    if !open.id.iter().chain([&open.boot]).all(|token| subjects::is_id(token)) {
        return Err("this is no id of an edge".to_owned());
    }
    if !node.cluster.offer.contains(&open.pool) {
        return Err(format!("the pool {:?} is not offered", shown(&open.pool)));
    }
    if node.pipes.count() >= PIPES_MAX {
        return Err(format!("it has {PIPES_MAX} pipes already"));
    }
    let figures = node.fresh_figures().await;
    let of_pool = figures.pools.get(&open.pool).copied().unwrap_or_default();
    if open.is_new && of_pool.room == 0 {
        return Err("it has no room for a session now".to_owned());
    }
    let client = format!("edge {}", open.edge);
    let local = bus::connect(&node.target, &client, Some(&open.pool)).await?;
    let window = node.pipes.take_window();
    let (arrivals, arriving) = mpsc::channel(FRAMES_WAITING);
    let (orders, ordered) = mpsc::unbounded_channel();
    let statistics: Rc<Cell<Statistics>> = Rc::default();
    {
        let mut entries = node.pipes.entries.borrow_mut();
        if entries.contains_key(&number) {
            return Err("there is a pipe with this number".to_owned());
        }
        let (edge, boot, id, pid) = (open.edge.clone(), open.boot.clone(), open.id.clone(), open.pid);
        let (statistics, proof) = (statistics.clone(), subjects::random_token());
        let entry = Entry { arrivals, orders, edge, boot, id, pid, proof, statistics };
        reply.proof = entry.proof.clone();
        let is_other = |other: &&Entry| other.is_sibling_of(&entry) && other.pid != entry.pid;
        reply.siblings = entries.values().filter(is_other).map(|other| other.pid).collect();
        reply.earlier = entries.values().any(|other| other.is_of_earlier_life(&entry));
        entries.insert(number, entry);
        node.pipes.changed.notify_one();
    }
    reply.window = window;
    reply.max_frame = max_frame_bytes(&node.client).min(open.max_frame);
    reply.room = of_pool.room;
    reply.drain = of_pool.drain;
    let config =
        Config { side: Side::Node, window, peer_window: open.window, max_frame_bytes: reply.max_frame };
    let start = Instant::now();
    let pipe = Pipe::new(number, config, Duration::ZERO);
    let subjects = (node.addr.pipe(number), to.pipe(number));
    let pump = Pump::new(pipe, start, node.client.clone(), subjects, local);
    let carried = Carried { node: node.clone(), pump, pool: open.pool, edge: open.edge, window, statistics };
    spawn_local(carried.carry(arriving, ordered, Room { room: reply.room, drain: reply.drain }));
    Ok(())
}

/// A pipe that is carried.
struct Carried {
    node: Rc<Node>,
    pump: Pump,
    pool: String,
    edge: String,
    window: usize,
    statistics: Rc<Cell<Statistics>>,
}

impl Carried {
    async fn carry(
        mut self,
        mut arrivals: mpsc::Receiver<Arrival>,
        mut orders: mpsc::UnboundedReceiver<Order>,
        told: Room,
    ) {
        let number = self.pump.pipe.number();
        info!("edge {} has opened a pipe to the pool {}", self.edge, self.pool);
        let (watch, mut settled) = FolderWatch::new(self.node.folders.clone());
        self.pump.folders = Some(watch);
        let figures = self.node.figures.subscribe();
        let over = self.run(&mut arrivals, &mut orders, &mut settled, figures, told).await;
        info!("the pipe of edge {} to the pool {} has ended: {over}", self.edge, self.pool);
        let Carried { node, mut pump, window, .. } = self;
        let _ = timeout(GOODBYE, pump.last_frames()).await;
        let mut of_ended = node.pipes.of_ended.get();
        of_ended.add(&pump.pipe.statistics());
        node.pipes.of_ended.set(of_ended);
        // Its connection to the bus ends first, so that whoever opens a pipe next finds its sessions free.
        drop(pump);
        node.pipes.entries.borrow_mut().remove(&number);
        node.pipes.windows.set(node.pipes.windows.get() - window);
        node.pipes.gone.notify_waiters();
        node.pipes.changed.notify_one();
    }

    /// Returns why it is over, for the log.
    async fn run(
        &mut self,
        arrivals: &mut mpsc::Receiver<Arrival>,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        settled: &mut mpsc::UnboundedReceiver<Settled>,
        mut figures: watch::Receiver<Figures>,
        mut told: Room,
    ) -> String {
        let pump = &mut self.pump;
        let mut close_at = None;
        loop {
            let step = pump.step().await;
            if let Some(wanted) = pump.pipe.wants_window() {
                self.window = self.node.pipes.grow_window(self.window, wanted);
                pump.pipe.grow(self.window);
            }
            self.statistics.set(pump.pipe.statistics());
            match step {
                None => {}
                Some(Over::Finished) => return "both sides are done".to_owned(),
                Some(Over::Dead(reason)) => return reason.to_string(),
                // The bus has heard that nothing more comes, and closes the connection when it has said everything.
                Some(Over::PeerEnded) => {
                    let at = *close_at.get_or_insert_with(|| Instant::now() + CLOSE_WAIT);
                    if at <= Instant::now() {
                        return "the edge is done".to_owned();
                    }
                }
            }
            if pump.local_ended() {
                if pump.pipe.all_confirmed() {
                    return "the bus has closed the connection".to_owned();
                }
                close_at.get_or_insert_with(|| Instant::now() + CLOSE_WAIT);
            }
            let closing = async {
                match close_at {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(order) = orders.recv() => match order {
                    Order::Connected => {
                        let now = pump.now();
                        pump.pipe.carrier_connected(now);
                    }
                    Order::Kill(why) => pump.pipe.kill(Reason::Owner(why)),
                },
                Some(outcome) = settled.recv() => match outcome {
                    Settled::Line(line) => pump.down.insert(line),
                    Settled::Answer(answer) => pump.up.insert(answer),
                },
                Ok(()) = figures.changed() => {
                    let of_pool = figures.borrow_and_update().pools.get(&self.pool).copied().unwrap_or_default();
                    let room = Room { room: of_pool.room, drain: of_pool.drain };
                    if room != told {
                        told = room;
                        pump.pipe.set_control(&to_bytes(&room));
                    }
                }
                () = closing => return "the bus has closed the connection".to_owned(),
                () = pump.wait(arrivals) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::MAX_WINDOW;

    #[test]
    fn an_earlier_life_is_one_of_the_same_edge_and_not_only_of_its_name() {
        let entry = |edge: &str, boot: &str, id: Option<&str>| Entry {
            arrivals: mpsc::channel(1).0,
            orders: mpsc::unbounded_channel().0,
            edge: edge.to_owned(),
            boot: boot.to_owned(),
            id: id.map(str::to_owned),
            pid: 1,
            proof: String::new(),
            statistics: Rc::default(),
        };
        for (id, later, is_old) in [
            (Some("x"), entry("e1", "b2", Some("x")), true),
            (Some("x"), entry("e1", "b1", Some("x")), false),
            (Some("x"), entry("e1", "b2", Some("y")), false),
            (Some("x"), entry("e2", "b2", Some("x")), false),
            // Edges that send no id are told apart by their names alone.
            (None, entry("e1", "b2", None), true),
            (Some("x"), entry("e1", "b2", None), false),
        ] {
            let earlier = entry("e1", "b1", id);
            let what = (&later.edge, &later.boot, &later.id);
            assert_eq!(earlier.is_of_earlier_life(&later), is_old, "{id:?} {what:?}");
        }
    }

    #[test]
    fn a_request_that_is_not_understood_is_answered_with_both_versions() {
        let own = env!("CARGO_PKG_VERSION");
        for (request, asked) in [
            (r#"{"do":"open","version":"9.1","pool":7}"#, "that is 9.1"),
            (r#"{"do":"open","version":"\u001b[2J"}"#, "that is ?[2J"),
            (r#"{"do":"fly","version":7}"#, "a version that it does not say"),
            ("no JSON", "a version that it does not say"),
        ] {
            let why = not_understood(request.as_bytes());
            assert!(why.contains(own) && why.contains(asked), "{request}: {why}");
        }
    }

    #[test]
    fn windows_shrink_before_they_are_too_much_together() {
        let (mut used, mut windows) = (0, Vec::new());
        for _ in 0..300 {
            let window = next_window(used);
            used += window;
            windows.push(window);
        }
        assert!(windows[..16].iter().all(|window| *window == DEFAULT_WINDOW));
        assert!(windows.is_sorted_by(|one, next| one >= next));
        assert_eq!(windows[299], MIN_WINDOW);
        assert!(used < ALL_WINDOWS + 300 * MIN_WINDOW);
        let until_small: usize = windows.iter().filter(|window| **window > MIN_WINDOW).sum();
        assert!(until_small <= ALL_WINDOWS);
        // Those that are far away take from what is left, and leave something for others.
        let mut windows = vec![DEFAULT_WINDOW; 8];
        for _ in 0..3 {
            for at in 0..windows.len() {
                let others = windows.iter().sum::<usize>() - windows[at];
                windows[at] = windows[at].max(grown_window(others, MAX_WINDOW));
            }
        }
        assert!(windows[0] > 5 << 20 && windows[7] > DEFAULT_WINDOW, "{windows:?}");
        assert!(windows.iter().sum::<usize>() < ALL_WINDOWS, "{windows:?}");
    }
}
