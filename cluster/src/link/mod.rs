//! `stdio-bus link`: makes a bus a node. It offers pools to the cluster, and carries each pipe that an edge opens to a
//! connection of its own to the bus.

mod bus;
mod name;
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
use kernel_shell::config::NO_ACCOUNT;
use log::{info, warn};
use rpc::text::unix_ms;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, sleep_until, timeout};

use self::name::{Claim, Todo};
use self::pipes::Pipes;
use self::room::{Figures, Looker};
use crate::End;
use crate::carrier::{Carrier, Change};
use crate::folders::Folders;
use crate::pipe::DEAD_AFTER;
use crate::subjects::{self, Address};
use crate::talk::{About, Ask, Event, Note, Offer, PoolAbout, to_bytes};

/// How old figures may be that are offered.
const FIGURES_AGE: Duration = Duration::from_secs(1);
/// A machine that does all it can offers itself so much later than an idle one.
const DELAY_OF_LOAD: Duration = Duration::from_millis(20);
const DELAY_JITTER_US: u64 = 2000;
/// A node that has no room says so last, for the sake of the message if no other has any.
const DELAY_OF_FULL: Duration = Duration::from_millis(24);
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
    /// The link of the same bus before this one had the name of the node, and so this one has it.
    pub is_next: bool,
    /// Nothing is offered for this long: links of this bus have ended one after the other.
    pub offers_after: Duration,
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
    if !cluster.has_account() {
        if !cluster.insecure {
            return Err(End::misconfigured(format!("nothing is offered: {NO_ACCOUNT}, or --insecure")));
        }
        let who = "everybody who reaches the NATS server, each user of this machine too";
        warn!("\"insecure\" in \"cluster\": {who}, can run commands here as the user of this bus");
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
    /// The bus has not answered when it was asked last.
    is_bus_silent: Cell<bool>,
    /// What is heard only as long as this one has the name.
    listening: RefCell<Vec<AbortHandle>>,
    claim: RefCell<Claim>,
    /// When pools are offered.
    offers_at: Instant,
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
    let ends_with_stdin = options.ends_with_stdin;
    let mut stops = stops(ends_with_stdin)?;
    let what = format!("stdio-bus node {}", options.name);
    let connected = tokio::select! {
        connected = connect(&options.cluster, &options.name, &what) => connected?,
        _ = stops.recv() => return Ok(()),
    };
    let Carrier { client, changes } = connected;
    let (node, todo) = Node::new(options, client);
    let node = Rc::new(node);
    let broken = |error: async_nats::SubscribeError| End::unavailable(format!("NATS: {error}"));
    let frames = node.client.subscribe(node.addr.all_pipes()).await.map_err(broken)?;
    spawn_local(pipes::dispatch(node.clone(), frames));
    let notes = node.client.subscribe(subjects::note(&node.name)).await.map_err(broken)?;
    spawn_local(node.clone().keep_figures());
    if ends_with_stdin {
        spawn_local(node.clone().tell_counted());
    }
    let outcome = tokio::select! {
        biased;
        _ = stops.recv() => Ok(()),
        outcome = node.be(todo, changes, notes) => outcome.map_err(broken),
    };
    let why = match &outcome {
        Ok(()) => format!("node {} is stopped", node.name),
        Err(end) => end.words.clone(),
    };
    node.stop_listening();
    // Where the bus has gone, pipes end by themselves, and what it has said before still arrives.
    let grace = if ends_with_stdin { GOODBYE / 2 } else { Duration::ZERO };
    let _ = timeout(grace, node.pipes.all_gone()).await;
    node.pipes.kill_all(&why);
    let _ = timeout(GOODBYE, node.pipes.all_gone()).await;
    if outcome.is_ok() && node.has_name() {
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
    fn new(options: Options, client: Client) -> (Node, Todo) {
        let Options { cluster, name, target, since, is_next, offers_after, .. } = options;
        let addr = Address::of_node(&name);
        let (now, started) = (Instant::now(), since.unwrap_or_else(unix_ms));
        let held = is_next.then(|| Duration::from_millis(unix_ms().saturating_sub(started)));
        let (claim, todo) = Claim::new(addr.as_str(), held, now);
        let node = Node {
            folders: Rc::new(Folders::new(&name, &cluster.map, &cluster.prepare)),
            pipes: Pipes::default(),
            figures: watch::Sender::new(Figures::default()),
            looked: Cell::new(None),
            looker: Looker::new(target.clone(), cluster.offer.clone()).into(),
            is_bus_silent: Cell::new(false),
            listening: RefCell::default(),
            claim: claim.into(),
            offers_at: now + offers_after,
            is_drained: Cell::new(false),
            counts: RefCell::default(),
            started,
            client,
            cluster,
            name,
            addr,
            target,
        };
        (node, todo)
    }

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
            // The bus must know at once whether others use this link, because it may end one that nobody uses.
            let _ = timeout(COUNTED_EVERY, self.pipes.count_changed()).await;
        }
    }

    /// Has the name, or waits for it, until the process ends.
    async fn be(
        self: &Rc<Node>,
        mut todo: Todo,
        mut changes: mpsc::UnboundedReceiver<Change>,
        mut notes: Subscriber,
    ) -> Result<(), async_nats::SubscribeError> {
        let (mut lost_at, mut is_shut_out) = (None, false);
        loop {
            self.does(todo).await?;
            let alarm = self.claim.borrow().next_alarm();
            todo = tokio::select! {
                biased;
                Some(change) = changes.recv() => match change {
                    Change::Connected => {
                        is_shut_out = false;
                        let was_lost = lost_at.take().is_some_and(|at: Instant| at.elapsed() > DEAD_AFTER);
                        self.pipes.carrier_connected();
                        self.say_state();
                        match was_lost {
                            true => self.claim.borrow_mut().was_away(Instant::now()),
                            false if self.has_name() => Todo::Announce,
                            false => Todo::Nothing,
                        }
                    }
                    Change::Disconnected => {
                        warn!("the connection to NATS is broken, it is made anew");
                        say(&json!({ "waiting": "the connection to NATS is broken, it is made anew" }));
                        lost_at.get_or_insert_with(Instant::now);
                        Todo::Nothing
                    }
                    Change::Refused(what) => {
                        warn!("NATS refuses: {what}");
                        Todo::Nothing
                    }
                    Change::ShutOut(why) => {
                        if !std::mem::replace(&mut is_shut_out, true) {
                            say(&json!({ "waiting": why }));
                        }
                        Todo::Nothing
                    }
                },
                Some(note) = notes.next() => self.on_note(&note).await,
                () = sleep_until(alarm.into()) => self.claim.borrow_mut().on_time(Instant::now()),
            }
        }
    }

    async fn does(self: &Rc<Node>, todo: Todo) -> Result<(), async_nats::SubscribeError> {
        match todo {
            Todo::Nothing => {}
            Todo::Ask => self.tell(Event::Claim).await,
            Todo::Announce => self.tell(Event::Up).await,
            Todo::Hold => {
                self.listen().await?;
                let _ = self.client.flush().await;
                self.tell(Event::Up).await;
                let server = self.client.server_info();
                info!(
                    "node {} offers {} over {}",
                    self.name,
                    self.cluster.offer.join(", "),
                    server.server_name
                );
                self.say_state();
            }
            Todo::Wait | Todo::AskAnew => {
                self.stop_listening();
                self.pipes.kill_all(&self.taken_by_another());
                self.say_state();
                if todo == Todo::AskAnew {
                    self.tell(Event::Claim).await;
                }
            }
        }
        Ok(())
    }

    fn has_name(&self) -> bool {
        self.claim.borrow().held(Instant::now()).is_some()
    }

    fn taken_by_another(&self) -> String {
        format!(
            "another node has the name {} and had it first: give one of them another; until that one is gone, \
             nothing is offered here",
            self.name
        )
    }

    /// Tells the bus whether others can use this node.
    fn say_state(&self) {
        if self.has_name() {
            return say(&json!({ "listening": self.cluster.url.join(", ") }));
        }
        let why = self.taken_by_another();
        warn!("{why}");
        say(&json!({ "waiting": why }));
    }

    /// From now on the node of this name is here.
    async fn listen(self: &Rc<Node>) -> Result<(), async_nats::SubscribeError> {
        for pool in &self.cluster.offer {
            let asks = self.client.subscribe(subjects::ask(pool)).await?;
            let (node, pool) = (self.clone(), pool.clone());
            self.hears(asks, move |message| node.clone().asked(message, pool.clone()));
        }
        let node = self.clone();
        let about = self.client.subscribe(subjects::ALL_NODES).await?;
        self.hears(about, move |message| node.clone().asked_about(message));
        let node = self.clone();
        let requests = self.client.subscribe(subjects::open(&self.name)).await?;
        self.hears(requests, move |message| pipes::on_request(node.clone(), message));
        service::listen(self).await
    }

    /// Handles each message as it comes, without waiting for the last one, as long as this one has the name.
    fn hears<F: Future<Output = ()> + 'static>(
        &self,
        messages: Subscriber,
        handle: impl Fn(Message) -> F + 'static,
    ) {
        let hearing = spawn_local(each(messages, handle));
        self.listening.borrow_mut().push(hearing.abort_handle());
    }

    fn stop_listening(&self) {
        self.listening.borrow_mut().drain(..).for_each(|hearing| hearing.abort());
    }

    /// Answers what an edge has asked, at the subject that only the node of this name may publish to.
    async fn answer(&self, reply: &str, answer: &impl Serialize) {
        let at = subjects::answer_of(&self.name, reply);
        let _ = self.client.publish(at, to_bytes(answer)).await;
    }

    /// An edge looks for a node.
    async fn asked(self: Rc<Node>, message: Message, pool: String) {
        let Some(reply) = message.reply else { return };
        if serde_json::from_slice::<Ask>(&message.payload).is_err() || Instant::now() < self.offers_at {
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
        self.answer(&reply, &offer).await;
    }

    /// `stdio-bus nodes` wants to know who is there.
    async fn asked_about(self: Rc<Node>, message: Message) {
        let Some(reply) = message.reply else { return };
        let about = self.about().await;
        self.answer(&reply, &about).await;
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

    /// A note about the name of this node: of ourselves, or of another one that wants it or has it too. Whoever may
    /// send one has the key of this node.
    async fn on_note(&self, message: &Message) -> Todo {
        let Ok(note) = serde_json::from_slice::<Note>(&message.payload) else { return Todo::Nothing };
        match note.event {
            Event::Close | Event::Reopen => {
                if self.has_name() {
                    self.drains(note.event == Event::Close).await;
                }
                Todo::Nothing
            }
            _ => self.claim.borrow_mut().on_note(&note, Instant::now()),
        }
    }

    async fn tell(&self, event: Event) {
        let held = self.claim.borrow().held(Instant::now()).unwrap_or_default();
        let (addr, held_ms) = (self.addr.as_str().to_owned(), held.as_millis() as u64);
        let note = Note { event, addr, started: self.started, held_ms };
        let _ = self.client.publish(subjects::note(&self.name), to_bytes(&note)).await;
    }

    /// The figures, taken anew if they are old.
    async fn fresh_figures(&self) -> Figures {
        let is_fresh = || self.looked.get().is_some_and(|at| at.elapsed() < FIGURES_AGE);
        if !is_fresh() {
            let mut looker = self.looker.lock().await;
            // Another one may have looked while this one waited.
            if !is_fresh() {
                let looked = looker.look().await;
                if let Err(why) = &looked
                    && !self.is_bus_silent.get()
                {
                    warn!("no room is offered: {why}");
                }
                self.is_bus_silent.set(looked.is_err());
                let mut figures = looked.unwrap_or_default();
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

    /// Edges that have pipes hear how much room there is, without asking; and that the bus does not answer.
    async fn keep_figures(self: Rc<Node>) {
        let mut answered = Instant::now();
        loop {
            sleep(FIGURES_AGE).await;
            if self.pipes.count() == 0 {
                answered = Instant::now();
                continue;
            }
            self.fresh_figures().await;
            if !self.is_bus_silent.get() {
                answered = Instant::now();
            } else if answered.elapsed() > DEAD_AFTER {
                let why = format!("the bus of node {} has not answered for {:?}", self.name, DEAD_AFTER);
                warn!("{why}: its pipes are closed");
                self.pipes.kill_all(&why);
                answered = Instant::now();
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
