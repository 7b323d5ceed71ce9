//! The process that writes: a client of the bus that is told what is said, and nothing else.
//!
//! One thread reads what the bus tells, another writes it to disk. What waits between them is bounded; when it is full,
//! the bus is not read, and the bus drops lines and counts them, rather than wait.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clients::{Target, dial_for, say};
use kernel_core::config::HistoryConfig;
use log::{info, warn};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{Shutdown, shutdown};
use rpc::text::{rfc3339, rfc3339_of_millis, unix_ms};
use rpc::{Client, LineReader};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::earlier::{Asked, Earlier};
use crate::entry::{Header, VERSION};
use crate::folder::Folder;
use crate::retention::{self, Limits};
use crate::spent::Spent;
use crate::store::{Counted, Heard, Store};

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How much may wait for the disk.
const WAITING_BYTES: usize = 64 << 20;
/// How often what was written is made sure to be on disk, and the status is told.
const TICK: Duration = Duration::from_secs(1);
/// How often old transcripts are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// So many files are asked for at most, and so many of them are for other things than transcripts.
const FILES_MAX: u64 = 65_536;
const OTHER_FILES: usize = 64;
const DAY: Duration = Duration::from_secs(86_400);

/// What a bus tells the process that it starts, beside where the bus is.
#[derive(Deserialize)]
pub struct Orders {
    /// Where and how long.
    pub history: HistoryConfig,
    /// What is shown to the bus.
    pub secret: String,
}

/// What the bus tells of a session.
#[derive(Deserialize)]
struct Told {
    method: Option<String>,
    params: Option<Kept>,
    error: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Kept {
    session: String,
    opened: Option<Opened>,
    by: Option<String>,
    before: Option<u64>,
    n: Option<u64>,
    #[serde(default)]
    missed: u64,
    #[serde(default)]
    replay: bool,
    message: Option<Box<RawValue>>,
    /// The bus tells it from its log. Without a message: that was all of it.
    #[serde(default)]
    again: bool,
    #[serde(default)]
    ended: bool,
    /// The bus has told of all sessions that it had open before.
    #[serde(default)]
    all: bool,
    /// What was said before is asked for, by this number.
    ask: Option<u64>,
    #[serde(default)]
    cursor: String,
    #[serde(default)]
    bytes: usize,
    #[serde(default)]
    older: bool,
}

#[derive(Deserialize)]
struct Opened {
    id: String,
    agent_session: String,
    pool: Option<String>,
    agent: Option<String>,
    cwd: Option<String>,
    node: Option<String>,
    life: Option<String>,
    age_us: u64,
}

/// Lines on their way from the bus to the disk, each with the time at which it came.
struct Waiting {
    bytes: AtomicUsize,
    is_taken: Condvar,
    lock: Mutex<()>,
}

/// Writes until the bus is gone. `folder`: the usual one, if the configuration names none.
pub fn run(orders: Orders, target: &Target, folder: Option<PathBuf>) -> Result<(), String> {
    let outcome = open(orders, target, folder);
    if let Err(why) = &outcome {
        say(&json!({ "failed": why }));
    }
    outcome
}

fn open(orders: Orders, target: &Target, folder: Option<PathBuf>) -> Result<(), String> {
    let path = orders.history.folder.or(folder);
    let path = path.ok_or("there is no folder to write to: set HOME or XDG_STATE_HOME")?;
    let in_folder = |error: io::Error| format!("{}: {error}", path.display());
    let is_new = !path.exists();
    let folder = Folder::create(&path).map_err(in_folder)?;
    if is_new {
        info!(
            "what is said through the bus is kept in {}, readable by you alone; \"history\": false in bus.json turns \
             that off",
            path.display()
        );
    }
    outlive_signals()?;
    let limits =
        Limits { max_bytes: orders.history.max_bytes, keep: orders.history.keep_days.map(|days| DAY * days) };
    let (stream, token) = dial_for(target, DIAL_TIMEOUT).map_err(|fault| fault.to_string())?;
    let mut client = Client::new(stream);
    let mut hello = json!({ "client": "stdio-bus history" });
    if let Some(token) = token {
        hello["token"] = token.into();
    }
    client.set_deadline(Some(Instant::now() + DIAL_TIMEOUT));
    let refused = |error: rpc::AskError| format!("the bus does not tell what is said: {error:?}");
    client.ask("_bus/hello", hello).map_err(refused)?;
    // The bus tells what is said right after the answer, and nothing before it.
    client.ask("_bus/keep", json!({ "secret": orders.secret })).map_err(refused)?;
    client.set_deadline(None);
    say(&json!({ "listening": path }));
    let (mut stream, mut lines) = client.into_parts().map_err(|error| error.to_string())?;
    end_with_stdin(&stream)?;
    let waiting =
        Arc::new(Waiting { bytes: AtomicUsize::new(0), is_taken: Condvar::new(), lock: Mutex::new(()) });
    let (to_disk, from_bus) = channel();
    let of_disk = waiting.clone();
    let mut to_bus = stream.try_clone().map_err(|error| error.to_string())?;
    let writing = thread::Builder::new()
        .name("disk".to_owned())
        .spawn(move || {
            let mut store = Store::new(folder);
            store.set_most_files(files_to_open());
            write(&mut store, &from_bus, &mut to_bus, &of_disk, limits);
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let outcome = hear(&mut stream, &mut lines, &to_disk, &waiting);
    drop(to_disk);
    let _ = writing.join();
    outcome
}

/// A bus that dies asks for the end of this process. It ends when it has written all that the bus has told it. A file
/// that may not grow is an error like any other.
fn outlive_signals() -> Result<(), String> {
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, nix::libc::SIGXFSZ] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| format!("cannot handle signals: {error}"))?;
    }
    Ok(())
}

/// How many transcripts may be open, and so be locked, at the same time: as many files as the system allows.
fn files_to_open() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let most = hard.min(FILES_MAX);
    let most =
        if most > soft && setrlimit(Resource::RLIMIT_NOFILE, most, hard).is_ok() { most } else { soft };
    usize::try_from(most).unwrap_or_default().saturating_sub(OTHER_FILES)
}

/// The end of stdin is the end: what the bus has told until then is written.
fn end_with_stdin(stream: &rpc::Stream) -> Result<(), String> {
    let connection = stream.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let wait = move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = shutdown(connection.as_raw_fd(), Shutdown::Read);
    };
    let started = thread::Builder::new().name("stdin".to_owned()).spawn(wait);
    started.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

fn hear(
    stream: &mut rpc::Stream,
    lines: &mut LineReader,
    to_disk: &Sender<(u64, Vec<u8>)>,
    waiting: &Waiting,
) -> Result<(), String> {
    loop {
        match lines.read_line(stream, None) {
            Ok(Some(line)) => {
                waiting.bytes.fetch_add(line.len(), Ordering::SeqCst);
                if to_disk.send((unix_ms(), line.to_vec())).is_err() {
                    return Err("the thread that writes has ended".to_owned());
                }
                waiting.until_there_is_room();
            }
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("the connection to the bus broke: {error}")),
        }
    }
}

impl Waiting {
    fn until_there_is_room(&self) {
        let is_full = |_: &mut ()| self.bytes.load(Ordering::SeqCst) > WAITING_BYTES;
        if let Ok(lock) = self.lock.lock() {
            drop(self.is_taken.wait_while(lock, is_full));
        }
    }

    fn take(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if before > WAITING_BYTES {
            let _lock = self.lock.lock();
            self.is_taken.notify_all();
        }
    }
}

fn write(
    store: &mut Store,
    from_bus: &Receiver<(u64, Vec<u8>)>,
    to_bus: &mut rpc::Stream,
    waiting: &Waiting,
    limits: Limits,
) {
    let (mut next_tick, mut next_sweep) = (Instant::now() + TICK, Instant::now());
    let (mut told, mut is_dirty) = (None, false);
    loop {
        let heard = if is_dirty || store.failing().is_some() || store.is_owing() {
            from_bus.recv_timeout(next_tick.saturating_duration_since(Instant::now()))
        } else {
            from_bus.recv_timeout(next_sweep.saturating_duration_since(Instant::now()))
        };
        match heard {
            Ok((at_ms, line)) => {
                take(store, at_ms, &line, to_bus);
                waiting.take(line.len());
                is_dirty = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = Instant::now();
        if now >= next_tick {
            store.sync();
            (next_tick, is_dirty) = (now + TICK, false);
            let counted = (store.counted(), store.failing().map(str::to_owned));
            if told.as_ref() != Some(&counted) {
                tell(&counted.0, counted.1.as_deref(), store.spent());
                told = Some(counted);
            }
        }
        if now >= next_sweep {
            next_sweep = now + if store.open_ids().is_some() { SWEEP } else { TICK };
            if let Some(open) = store.open_ids()
                && let Err(error) = retention::apply(store.folder(), limits, &open, SystemTime::now())
            {
                warn!("cannot look for old transcripts: {error}");
            }
        }
    }
    store.leave();
}

fn tell(counted: &Counted, failing: Option<&str>, spent: &Spent) {
    say(&json!({ "counted": {
        "sessions": counted.sessions,
        "entries": counted.entries,
        "bytes": counted.bytes,
        "gaps": counted.gaps,
        "missed": counted.missed,
        "failing": failing,
        "usage": spent.json(),
    } }));
}

/// Answers what was said before in an open session.
fn answer(store: &mut Store, ask: u64, kept: Kept, to_bus: &mut rpc::Stream) {
    let Kept { session, cursor, before, bytes, older, .. } = kept;
    let asked = Asked { cursor, before: before.unwrap_or_default(), bytes, older };
    let earlier = match store.earlier(&session, &asked) {
        Some(Ok(earlier)) => earlier,
        Some(Err(error)) => {
            warn!("cannot read what was said in {session} before: {error}");
            Earlier { is_end: true, ..Earlier::default() }
        }
        None => Earlier { is_end: true, ..Earlier::default() },
    };
    // A bus that is gone is noticed by who reads from it.
    let _ = to_bus.write_all(earlier.answer(ask).as_bytes());
}

/// Takes one line of the bus.
fn take(store: &mut Store, at_ms: u64, line: &[u8], to_bus: &mut rpc::Stream) {
    let Ok(told) = serde_json::from_slice::<Told>(line) else {
        return warn!("the bus told something that is not understood, {} bytes", line.len());
    };
    if let Some(error) = told.error {
        return warn!("the bus does not tell what is said: {error}");
    }
    let is_known = matches!(told.method.as_deref(), Some("_bus/kept" | "_bus/past"));
    let Some(kept) = told.params.filter(|_| is_known) else { return };
    if let Some(ask) = kept.ask {
        return answer(store, ask, kept, to_bus);
    }
    if kept.all {
        return store.knows_all();
    }
    let at = rfc3339_of_millis(at_ms);
    if let Some(opened) = kept.opened {
        let since = SystemTime::now().checked_sub(Duration::from_micros(opened.age_us));
        let header = Header {
            v: VERSION,
            session: opened.id,
            agent_session: opened.agent_session,
            pool: opened.pool.unwrap_or_default(),
            agent: opened.agent,
            cwd: opened.cwd,
            node: opened.node,
            life: opened.life,
            opened: since.map_or_else(|| at.clone(), rfc3339),
        };
        return store.opened(&kept.session, header);
    }
    if let Some(message) = kept.message {
        let heard = Heard {
            is_again: kept.again,
            at,
            by: kept.by.unwrap_or_default(),
            before: kept.before,
            n: kept.n,
            is_replay: kept.replay,
            missed: kept.missed,
            message,
        };
        store.heard(&kept.session, heard);
    } else if kept.ended {
        store.ended(&kept.session, at, kept.missed, kept.n);
    } else if kept.again {
        store.caught_up(&kept.session, kept.before, kept.missed);
    }
}
