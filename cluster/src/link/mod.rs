//! `stdio-bus link`: makes a bus a node. It offers pools to the cluster, and carries each pipe that an edge opens to a
//! connection of its own to the bus.

mod bus;
mod pipes;
mod room;
mod service;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use async_nats::{Client, Message, Subscriber};
use clients::{Target, say};
use futures_util::StreamExt;
use kernel_core::config::ClusterConfig;
use log::{info, warn};
use rpc::text::unix_ms;
use serde::Deserialize;
use serde_json::json;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use self::pipes::Pipes;
use self::room::{Figures, Looker};
use crate::End;
use crate::carrier::{Carrier, Change};
use crate::folders::Folders;
use crate::subjects::{self, Address};
use crate::talk::{About, Ask, Event, Note, Offer, PoolAbout, to_bytes};

/// How old figures may be that are offered.
const FIGURES_AGE: Duration = Duration::from_secs(1);
/// A machine that does all it can offers itself so much later than an idle one.
const DELAY_OF_LOAD: Duration = Duration::from_millis(20);
const DELAY_JITTER_US: u64 = 2000;
/// A node that has no room says so last, for the sake of the message if no other has any.
const DELAY_OF_FULL: Duration = Duration::from_millis(24);
/// How often everybody is told who has the name of this node.
const NOTE_EVERY: Duration = Duration::from_secs(15);
/// How often the bus is told what the pipes have counted.
const COUNTED_EVERY: Duration = Duration::from_secs(5);
/// The pause between two tries to reach NATS at the start.
const CONNECT_PAUSE_MS: std::ops::Range<u64> = 500..2000;
/// How long pipes may take to tell their peers that they end.
const GOODBYE: Duration = Duration::from_millis(700);
/// Whatever happens, the process is gone so long after its bus.
const HARD_END: Duration = Duration::from_secs(3);

/// How a link is run.
pub struct Options {
    /// The cluster, and what is offered to it.
    pub cluster: ClusterConfig,
    /// The name of the node.
    pub name: String,
    /// The bus.
    pub target: Target,
    /// When the node was started, in milliseconds of the wall clock. `None`: now.
    pub since: Option<u64>,
    /// The end of stdin is the end of the link.
    pub ends_with_stdin: bool,
}

/// What a bus tells the link that it starts, beside where the bus is.
#[derive(Deserialize)]
pub struct Orders {
    /// The cluster, and what is offered to it.
    pub cluster: ClusterConfig,
    /// The name of the node, if it has been given one.
    pub name: Option<String>,
}

/// The name of a node that has been given none: that of the machine.
pub fn default_name() -> String {
    subjects::host_name()
}

/// Runs the link until it is told to end. It says on stdout, as a line of JSON, where it is or why it cannot be.
pub fn run(options: Options) -> Result<(), End> {
    let outcome = check(&options).and_then(|()| {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(8)
            .build()
            .map_err(|error| End::unavailable(format!("cannot start: {error}")))?;
        let outcome = LocalSet::new().block_on(&runtime, serve(options));
        // A disk that does not answer must not keep the process.
        runtime.shutdown_background();
        outcome
    });
    if let Err(end) = &outcome {
        say(&json!({ "failed": end.words }));
    }
    outcome
}

fn check(options: &Options) -> Result<(), End> {
    let Options { cluster, name, .. } = options;
    if !subjects::is_name(name) {
        let rule = "letters, digits, - and _, at most 32";
        return Err(End::misconfigured(format!("{name:?} cannot be the name of a node: {rule}")));
    }
    if cluster.offer.is_empty() {
        let what = "nothing is offered: name pools in \"offer\" of \"cluster\" in bus.json, or with --offer";
        return Err(End::misconfigured(what));
    }
    Ok(())
}

/// The node, as everything here sees it.
pub(crate) struct Node {
    client: Client,
    cluster: ClusterConfig,
    name: String,
    addr: Address,
    started: u64,
    target: Target,
    folders: Rc<Folders>,
    pipes: Pipes,
    /// The latest figures, and when they were taken.
    figures: watch::Sender<Figures>,
    looked: Cell<Option<Instant>>,
    looker: tokio::sync::Mutex<Looker>,
    /// Somebody has said that it takes no new sessions.
    is_drained: Cell<bool>,
    /// What has been counted, for `$SRV.STATS`.
    counts: RefCell<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    asks: u64,
    opens: u64,
    refused: u64,
}

async fn serve(options: Options) -> Result<(), End> {
    let Options { cluster, name, target, since, ends_with_stdin } = options;
    let mut stops = stops(ends_with_stdin)?;
    let what = format!("stdio-bus node {name}");
    let connected = tokio::select! {
        connected = connect(&cluster, &name, &what) => connected?,
        _ = stops.recv() => return Ok(()),
    };
    let Carrier { client, mut changes } = connected;
    let addr = Address::of_node(&name);
    let node = Rc::new(Node {
        folders: Rc::new(Folders::new(&name, &cluster.map, &cluster.prepare)),
        pipes: Pipes::default(),
        figures: watch::Sender::new(Figures::default()),
        looked: Cell::new(None),
        looker: Looker::new(target.clone(), cluster.offer.clone()).into(),
        is_drained: Cell::new(false),
        counts: RefCell::default(),
        started: since.unwrap_or_else(unix_ms),
        client,
        cluster,
        name,
        addr,
        target,
    });
    let (fail, mut failures) = mpsc::unbounded_channel::<End>();
    node.listen(&fail).await.map_err(|error| End::unavailable(format!("NATS: {error}")))?;
    spawn_local(node.clone().keep_figures());
    let _ = node.client.flush().await;
    node.tell(Event::Up).await;
    let server = node.client.server_info();
    info!("node {} offers {} over {}", node.name, node.cluster.offer.join(", "), server.server_name);
    say(&json!({ "listening": node.cluster.url.join(", ") }));
    if ends_with_stdin {
        spawn_local(node.clone().tell_counted());
    }
    let mut renewal = tokio::time::interval(NOTE_EVERY);
    let outcome = loop {
        tokio::select! {
            biased;
            _ = stops.recv() => break Ok(()),
            Some(end) = failures.recv() => break Err(end),
            Some(change) = changes.recv() => match change {
                Change::Connected => {
                    node.pipes.carrier_connected();
                    node.tell(Event::Up).await;
                }
                Change::Disconnected => warn!("the connection to NATS is broken, it is made anew"),
                Change::Refused(what) => warn!("NATS refuses: {what}"),
            },
            _ = renewal.tick() => node.tell(Event::Up).await,
        }
    };
    let why = match &outcome {
        Ok(()) => format!("node {} is stopped", node.name),
        Err(end) => end.words.clone(),
    };
    // Where the bus has gone, pipes end by themselves, and what it has said before still arrives.
    let grace = if ends_with_stdin { GOODBYE / 2 } else { Duration::ZERO };
    let _ = timeout(grace, node.pipes.all_gone()).await;
    node.pipes.kill_all(&why);
    let _ = timeout(GOODBYE, node.pipes.all_gone()).await;
    if outcome.is_ok() {
        node.tell(Event::Gone).await;
    }
    let _ = timeout(GOODBYE, node.client.flush()).await;
    outcome
}

/// Connects, however long it takes. Only what waiting cannot mend ends it.
async fn connect(cluster: &ClusterConfig, name: &str, what: &str) -> Result<Carrier, End> {
    let mut said = false;
    loop {
        match Carrier::connect(cluster, name, what).await {
            Ok(carrier) => return Ok(carrier),
            Err(end) if end.is_unavailable() => {
                if !std::mem::replace(&mut said, true) {
                    warn!("{end}");
                    say(&json!({ "failed": end.words }));
                }
                sleep(Duration::from_millis(fastrand::u64(CONNECT_PAUSE_MS))).await;
            }
            Err(end) => return Err(end),
        }
    }
}

impl Node {
    /// Tells the bus what the pipes have counted, where that has changed.
    async fn tell_counted(self: Rc<Node>) {
        let mut told = None;
        loop {
            let counted = self.pipes.counted();
            if told != Some(counted) {
                let mut words = json!(counted);
                words["node"] = (*self.name).into();
                say(&json!({ "counted": words }));
                told = Some(counted);
            }
            sleep(COUNTED_EVERY).await;
        }
    }

    async fn listen(
        self: &Rc<Node>,
        fail: &mpsc::UnboundedSender<End>,
    ) -> Result<(), async_nats::SubscribeError> {
        let frames = self.client.subscribe(self.addr.all_pipes()).await?;
        spawn_local(pipes::dispatch(self.clone(), frames));
        for pool in &self.cluster.offer {
            let asks = self.client.subscribe(subjects::ask(pool)).await?;
            let (node, pool) = (self.clone(), pool.clone());
            spawn_local(each(asks, move |message| node.clone().asked(message, pool.clone())));
        }
        let node = self.clone();
        let about = self.client.subscribe(subjects::ALL_NODES).await?;
        spawn_local(each(about, move |message| node.clone().asked_about(message)));
        let node = self.clone();
        let requests = self.client.subscribe(subjects::open(&self.name)).await?;
        spawn_local(each(requests, move |message| pipes::on_request(node.clone(), message)));
        let notes = self.client.subscribe(subjects::note(&self.name)).await?;
        let (node, fail) = (self.clone(), fail.clone());
        spawn_local(each(notes, move |message| node.clone().on_note(message, fail.clone())));
        service::listen(self).await
    }

    /// An edge looks for a node.
    async fn asked(self: Rc<Node>, message: Message, pool: String) {
        let Some(reply) = message.reply else { return };
        if serde_json::from_slice::<Ask>(&message.payload).is_err() {
            return;
        }
        self.counts.borrow_mut().asks += 1;
        let figures = self.fresh_figures().await;
        let Some(of_pool) = figures.pools.get(&pool).copied() else { return };
        let delay = if of_pool.room == 0 {
            DELAY_OF_FULL
        } else {
            DELAY_OF_LOAD.mul_f64(figures.load.clamp(0.0, 1.0))
        };
        sleep(delay + Duration::from_micros(fastrand::u64(..DELAY_JITTER_US))).await;
        let offer = Offer {
            node: self.name.clone(),
            addr: self.addr.as_str().to_owned(),
            pool,
            room: of_pool.room,
            sessions: of_pool.sessions,
            load: figures.load,
            mem_free: figures.mem_free,
            zone: self.cluster.zone.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.started,
            drain: of_pool.drain,
        };
        let _ = self.client.publish(reply, to_bytes(&offer)).await;
    }

    /// `stdio-bus nodes` wants to know who is there.
    async fn asked_about(self: Rc<Node>, message: Message) {
        let Some(reply) = message.reply else { return };
        let about = self.about().await;
        let _ = self.client.publish(reply, to_bytes(&about)).await;
    }

    async fn about(&self) -> About {
        let figures = self.fresh_figures().await;
        let pools = self.cluster.offer.iter().map(|id| {
            let of_pool = figures.pools.get(id).copied().unwrap_or_default();
            PoolAbout { id: id.clone(), room: of_pool.room, sessions: of_pool.sessions }
        });
        About {
            node: self.name.clone(),
            addr: self.addr.as_str().to_owned(),
            zone: self.cluster.zone.clone(),
            pools: pools.collect(),
            pipes: self.pipes.count() as u64,
            load: figures.load,
            mem_free: figures.mem_free,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.started,
            drain: figures.pools.values().any(|pool| pool.drain),
        }
    }

    /// A note about the name of this node: of ourselves, or of another one that has it too.
    async fn on_note(self: Rc<Node>, message: Message, fail: mpsc::UnboundedSender<End>) {
        let Ok(note) = serde_json::from_slice::<Note>(&message.payload) else { return };
        if note.event != Event::Up || note.addr == self.addr.as_str() {
            return;
        }
        if (note.started, note.addr.as_str()) > (self.started, self.addr.as_str()) {
            let what = format!(
                "another node that was started later has the name {} too: give one of them another",
                self.name
            );
            let _ = fail.send(End::replaced(what));
        } else {
            // It hears this, and ends.
            self.tell(Event::Up).await;
        }
    }

    async fn tell(&self, event: Event) {
        let note = Note { event, addr: self.addr.as_str().to_owned(), started: self.started };
        let _ = self.client.publish(subjects::note(&self.name), to_bytes(&note)).await;
    }

    /// The figures, taken anew if they are old.
    async fn fresh_figures(&self) -> Figures {
        let is_fresh = || self.looked.get().is_some_and(|at| at.elapsed() < FIGURES_AGE);
        if !is_fresh() {
            let mut looker = self.looker.lock().await;
            // Another one may have looked while this one waited.
            if !is_fresh() {
                let mut figures = looker.look().await.unwrap_or_else(|why| {
                    warn!("no room is offered: {why}");
                    Figures::default()
                });
                if self.is_drained.get() {
                    figures.drain();
                }
                self.looked.set(Some(Instant::now()));
                self.figures.send_if_modified(|old| std::mem::replace(old, figures.clone()) != figures);
            }
        }
        self.figures.borrow().clone()
    }

    /// It takes no new sessions from now on, or takes them again. Edges that have pipes hear it at once.
    async fn drains(&self, drain: bool) {
        if self.is_drained.replace(drain) != drain {
            let says = if drain { "takes no new sessions" } else { "takes new sessions again" };
            info!("node {} {says}", self.name);
        }
        self.looked.set(None);
        self.fresh_figures().await;
        self.tell(if drain { Event::Drain } else { Event::Up }).await;
    }

    /// Edges that have pipes hear how much room there is, without asking.
    async fn keep_figures(self: Rc<Node>) {
        loop {
            sleep(FIGURES_AGE).await;
            if self.pipes.count() > 0 {
                self.fresh_figures().await;
            }
        }
    }
}

/// Handles each message as it comes, without waiting for the last one.
async fn each<F: Future<Output = ()> + 'static>(mut messages: Subscriber, handle: impl Fn(Message) -> F) {
    while let Some(message) = messages.next().await {
        spawn_local(handle(message));
    }
}

/// Each message is a reason to end. The channel does not end, because those who wait for signals hold it.
fn stops(ends_with_stdin: bool) -> Result<mpsc::UnboundedReceiver<()>, End> {
    let (stop, stops) = mpsc::unbounded_channel();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signal =
            signal(kind).map_err(|error| End::unavailable(format!("cannot handle signals: {error}")))?;
        let stop = stop.clone();
        spawn_local(async move {
            while signal.recv().await.is_some() {
                let _ = stop.send(());
            }
        });
    }
    if ends_with_stdin {
        let wait = move || {
            // Whatever comes is not for us; only the end counts.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            let _ = stop.send(());
            thread::sleep(HARD_END);
            std::process::exit(1);
        };
        let started = thread::Builder::new().name("stdin".to_owned()).spawn(wait);
        started.map_err(|error| End::unavailable(format!("cannot start: {error}")))?;
    }
    Ok(stops)
}
