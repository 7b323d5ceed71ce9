//! Opens the door and keeps it open until its time is over.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clients::{Target, say};
use kernel_core::config::{HistoryConfig, PushText, WebConfig};
use kernel_shell::LocalListener;
use log::{info, warn};
use serde::Deserialize;
use serde_json::json;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::assets::Assets;
use crate::away::Away;
use crate::door::Door;
use crate::gate::Gate;
use crate::leases::Leases;
use crate::link::{link, public_url, reachable};
use crate::past::Past;
use crate::scope::Scope;
use crate::strangers::Strangers;
use crate::subscribers::Subscribers;
use crate::tokens::{DoorPlace, Store};
use crate::{server, tls};

/// Connections at the same time, as far as there are files for them: each has one to its client and one to the bus.
const CONNECTIONS_MAX: usize = 16_384;
const OTHER_FILES: usize = 64;
/// Of these, those on which nobody has shown a token; and half of all at most, if there is room for few.
const STRANGERS_MAX: usize = 1024;
/// Connections to the bus that are made at the same moment.
const DIALLING_THREADS: usize = 4;
/// How long connections may take to end when the door closes.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(1500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What a bus says on stdin before it ends that, if the door makes room for another one.
const REPLACED: &str = "replaced";

/// How a door is run.
pub struct Options {
    /// Where it listens, and for whom.
    pub web: WebConfig,
    /// The bus behind it.
    pub target: Target,
    /// The file of its codes and tokens. `None`: they are in memory alone.
    pub state: Option<PathBuf>,
    /// Where what was said before is kept. `None`: nothing is.
    pub history: Option<PathBuf>,
    /// The console is read from this folder instead of from the binary.
    pub assets: Option<PathBuf>,
    /// The end of stdin is the end of the door.
    pub ends_with_stdin: bool,
}

/// What a bus tells the door that it starts, beside where the bus is.
#[derive(Deserialize)]
pub struct Orders {
    /// Where the door listens, and for whom.
    pub web: WebConfig,
    /// Where what was said before is kept. `None`: nothing is.
    pub history: Option<HistoryConfig>,
}

/// Runs the door. It says on stdout, as one line of JSON, where it listens or why it cannot, and on stderr which link
/// opens it.
pub fn run(options: Options) -> Result<(), String> {
    let outcome = open(options);
    if let Err(why) = &outcome {
        say(&json!({ "failed": why }));
    }
    outcome
}

fn open(options: Options) -> Result<(), String> {
    let room = room_for_connections();
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(DIALLING_THREADS)
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, serve(options, room))
}

async fn serve(options: Options, room: usize) -> Result<(), String> {
    let Options { web, target, state, history, assets, ends_with_stdin } = options;
    let tls = web.tls.as_ref().filter(|_| web.https).map(tls::acceptor).transpose()?;
    if web.https && tls.is_none() {
        return Err("https needs a certificate: name its files in web.tls.cert and web.tls.key".to_owned());
    }
    let (listeners, port) = kernel_shell::listen_tcp(&web.host, web.port)
        .map_err(|error| format!("cannot listen at {web}: {error}"))?;
    let at = WebConfig { port, ..web.clone() }.to_string();
    let in_store = |error: io::Error| format!("cannot write the tokens: {error}");
    let public = public_url(&web, port);
    let subscribers = Rc::new(Subscribers::open(state.as_ref(), &web, &public).map_err(in_store)?);
    let mut tokens = Store::open(state).map_err(in_store)?;
    let place = DoorPlace { public: public.clone(), local: local_address(&listeners)?, pid: process::id() };
    tokens.add_door(place.clone()).map_err(in_store)?;
    let code = tokens.add_code(Scope::Admin).map_err(in_store)?;
    let (stop, stopping) = watch::channel(false);
    let tokens = Rc::new(RefCell::new(tokens));
    let away = Away {
        target: target.clone(),
        tokens: tokens.clone(),
        subscribers: subscribers.clone(),
        is_full: web.push == PushText::Full,
    };
    let door = Rc::new(Door {
        gate: Gate::new(&web, port),
        assets: Assets::new(assets, web.https),
        target,
        past: Past::new(history),
        tokens,
        wrong_codes: Default::default(),
        subscribers,
        leases: Rc::new(Leases::default()),
        connections: Default::default(),
        sent_bytes: Default::default(),
        stopping,
        comes_back: Cell::default(),
        readiness: Default::default(),
    });
    let strangers = Strangers::new((room / 2).clamp(1, STRANGERS_MAX));
    let room = Arc::new(Semaphore::new(room));
    let mut endless = vec![spawn_local(door.clone().enforce_revocations()), spawn_local(away.run())];
    for listener in listeners {
        let accepting = server::accept(listener, tls.clone(), room.clone(), strangers.clone(), door.clone());
        endless.push(spawn_local(async move {
            if let Err(error) = accepting.await {
                warn!("the door does not listen any more: {error}");
            }
        }));
    }
    show_link(link(&public, &code));
    say(&json!({ "listening": at }));
    door.comes_back.set(until_told(ends_with_stdin).await);
    info!("the door closes");
    endless.iter().for_each(JoinHandle::abort);
    let _ = stop.send(true);
    // Every connection holds the door, and ends by itself now.
    let all_closed = async {
        while Rc::strong_count(&door) > 1 {
            sleep(LOOK_AGAIN).await;
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, all_closed).await;
    let _ = door.tokens.borrow_mut().remove_door(&place);
    Ok(())
}

/// The address by which this machine reaches the door, whatever its names are elsewhere.
fn local_address(listeners: &[LocalListener]) -> Result<SocketAddr, String> {
    let address = listeners.first().map(|listener| listener.listener.local_addr());
    let address = address.ok_or("it listens nowhere")?.map_err(|error| format!("cannot listen: {error}"))?;
    Ok(reachable(address))
}

/// Waits for the end of stdin, or for a signal. True: stdin has told that another process takes this one's place.
pub(crate) async fn until_told(ends_with_stdin: bool) -> bool {
    let (end, ended) = oneshot::channel::<bool>();
    let wait = move || {
        // Whatever else comes is not for us.
        let _ = end.send(io::stdin().lines().map_while(Result::ok).any(|line| line == REPLACED));
    };
    let is_waiting = ends_with_stdin && thread::Builder::new().name("stdin".to_owned()).spawn(wait).is_ok();
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(|kind| signal(kind).ok());
    let [terminate, interrupt] = &mut signals;
    let told = async |signal: &mut Option<tokio::signal::unix::Signal>| match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    };
    tokio::select! {
        replaced = ended, if is_waiting => replaced.unwrap_or_default(),
        () = told(terminate) => false,
        () = told(interrupt) => false,
    }
}

/// A reader of stderr that does not read must not keep the door closed, so a thread of its own waits for it.
fn show_link(link: String) {
    // It is written at once, so that no line of the log gets into it.
    let line = format!("stdio-bus: open {link} (good once, for ten minutes)\n");
    let write = move || {
        let _ = io::stderr().write_all(line.as_bytes());
    };
    let _ = thread::Builder::new().name("link".to_owned()).spawn(write);
}

/// Raises the limit of open files as far as it goes, and says for how many connections it is enough.
fn room_for_connections() -> usize {
    // With the old limit there is room for fewer of them, but for some.
    let _ = kernel_shell::raise_open_files();
    (kernel_shell::max_fds().saturating_sub(OTHER_FILES) / 2).clamp(1, CONNECTIONS_MAX)
}
