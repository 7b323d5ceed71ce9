//! `stdio-bus agent nats`: a worker of an edge. One process is one pipe to one node, and ends when its pipe is dead, so
//! that the bus that has started it does the rest: it answers what is in flight, and starts another one.

mod find;

use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use kernel_core::config::ClusterConfig;
use nix::unistd::getuid;
use rpc::text::hex;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use self::find::Opened;
use crate::End;
use crate::carrier::{Carrier, Change, max_frame_bytes};
use crate::local::Local;
use crate::pipe::{Config, DEAD_AFTER, DEFAULT_WINDOW, Pipe, Reason, Side, State};
use crate::pump::{Arrival, FRAMES_WAITING, Over, Pump};
use crate::subjects::{self, Address, shown};
use crate::talk::{Event, Note, Request, Room, to_bytes};

/// How often a node that is suspect is asked whether it is still the one that it was.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The window of the one pipe of this process grows up to this, if the node is far away.
const GROWN_WINDOW: usize = 8 << 20;
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
        let (mut probe, mut is_shut_out) = (Probe::default(), false);
        let over = loop {
            if let Some(over) = pump.step().await {
                break over;
            }
            if let Some(wanted) = pump.pipe.wants_window() {
                pump.pipe.grow(wanted.min(GROWN_WINDOW));
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
                        is_shut_out = false;
                        let now = pump.now();
                        pump.pipe.carrier_connected(now);
                    }
                    Change::Disconnected => {}
                    Change::Refused(what) => eprintln!("stdio-bus: NATS refuses: {what}"),
                    Change::ShutOut(why) if !is_shut_out => {
                        is_shut_out = true;
                        eprintln!("stdio-bus: {why}");
                    }
                    Change::ShutOut(_) => {}
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
        let reply = edge.reply_of(node, to_bytes(&Request::Probe), PROBE_EVERY).await.ok()??;
        Address::parse(&reply.addr, "n")
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
    serde_json::from_slice::<Note>(note).is_ok_and(|note| note.event == Event::Up && note.addr != to.as_str())
}

/// What the bus hears about the node behind this worker.
fn about_worker(node: &str, room: Room) -> Bytes {
    let params = json!({ "node": node, "room": room.room, "drain": room.drain });
    Bytes::from(json!({ "jsonrpc": "2.0", "method": "_bus/worker", "params": params }).to_string() + "\n")
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
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // A machine that was cloned has the other one's id and name, but was not started with it.
    let (machine, start) = (read("/etc/machine-id"), read("/proc/sys/kernel/random/boot_id"));
    digest(&format!("{} {machine} {start} {} {place}", subjects::host_name(), getuid()))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text)[..8])
}
