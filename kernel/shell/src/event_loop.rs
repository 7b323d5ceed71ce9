//! The event loop: polls, reads what is ready, reports events to the core, and carries out the core's actions.
//!
//! A turn is one poll and what follows from it. A link with more to read goes to the back of the run queue. Nothing
//! here blocks except the poll.

mod handed;
mod upgrade;

use std::ffi::OsString;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use log::info;
use mio::{Events, Poll};

use kernel_core::config::{Address, Config};
use kernel_core::id::Link;
use kernel_core::{Action, Bus, Event, Moment, slow_start};

use crate::config::changes;
use crate::handshake_cache::HandshakeCache;
use crate::io::Io;
use crate::net::accept::{self, Acceptor};
use crate::net::inherited::InheritedSockets;
use crate::net::user_socket::UserSocket;
use crate::peer::{Stream, Task, key_and_stream};
use crate::process::companion::{CompanionArgs, Companions};
use crate::process::orphan_guard::GuardProgram;
use crate::process::pre_exec::{InheritedLimits, max_fds};
use crate::process::spawn::{Processes, STARTS};
use crate::process::stderr;
use crate::process::successor::SUCCESSOR;
use crate::process::usage::UsageMeter;
use crate::process::wait::processor_wait;
use crate::sd_notify::SdNotify;
use crate::serve_error::ServeError;
use crate::signals::{SIGNALS, Signals};
use crate::stdio::{Stdio, announce};

use upgrade::Upgrade;

pub use handed::{Carried, Handover, answer_as_successor, started_by};

const EVENTS_PER_TURN: usize = 1024;
/// So many writes to the many that one line was for are done in a turn. The others wait for the next one.
const WRITES_TO_MANY: usize = 128;

type Reload = Box<dyn Fn() -> Result<Config, String>>;

/// What `serve` needs to run the bus.
pub struct Options {
    /// The configuration to start with.
    pub config: Config,
    /// Sockets that are open already. Those whose address is in `config.listen` are used for it.
    pub sockets: InheritedSockets,
    /// Also listens there, if no other bus does. Clients that connect there name their pool themselves.
    pub user_socket: Option<UserSocket>,
    /// The file that it was read from, for people.
    pub config_file: Option<PathBuf>,
    /// The commit that this program was built from, if it is known.
    pub commit: Option<&'static str>,
    /// Reads the configuration again. The error has one line per error of the file.
    pub reload: Reload,
    /// An absolute path. Pools that name `stdio-bus` run it, and so does the guard.
    pub this_binary: PathBuf,
    /// The file that keeps the handshakes of the workers between two runs of the bus. `None`: they are not kept.
    pub handshake_cache: Option<PathBuf>,
    /// With these arguments `this_binary` does nothing but call `guard`.
    pub guard_args: Vec<OsString>,
    /// The folder that tells a later bus which processes this one has left, if it is killed together with its guard.
    /// All buses of a user should have the same. `None`: nothing is kept.
    pub mark_folder: Option<PathBuf>,
    /// With these arguments `this_binary` is one of the processes beside the bus.
    pub companions: CompanionArgs,
    /// The path that this program was started by. An upgrade that names no other program becomes what is there then.
    pub started_by: PathBuf,
    /// What this program needs again if another one takes its place.
    pub carried: Carried,
    /// What the program has left whose place this one has taken. `None`: this is a new bus.
    pub handover: Option<Handover>,
}

/// Runs the bus until it has stopped.
///
/// Prints one JSON line per address on stdout when it is ready, `{"listening":"tcp://127.0.0.1:9000"}` with the port
/// that was really bound. If stdout itself carries the protocol, it prints nothing. Call it from the main thread: on
/// Linux workers die with the thread that started them.
pub fn serve(options: Options) -> Result<(), ServeError> {
    let mut options = options;
    match options.handover.take() {
        Some(handover) => Shell::take_over(options, handover)?.run(),
        None => Shell::open(options)?.run(),
    }
}

struct Shell {
    io: Io,
    acceptor: Acceptor,
    processes: Processes,
    companions: Companions,
    /// The client on stdin and stdout, if `listen` has one.
    stdio: Option<Stdio>,
    signals: Signals,
    /// A signal has arrived that has not been handled yet.
    signalled: bool,
    service_manager: SdNotify,
    handshakes: HandshakeCache,
    reload: Reload,
    config: Config,
    usage: UsageMeter,
    /// Writes wait that are not urgent.
    has_writes: bool,
    start: Instant,
    stopping: bool,
    done: bool,
    started_by: PathBuf,
    carried: Carried,
    /// This process is to become another program.
    upgrade: Option<Upgrade>,
    /// The next session whose log may still be where the program before has left it.
    left_logs: Option<u32>,
}

impl Shell {
    fn open(options: Options) -> Result<Shell, ServeError> {
        let Options { config, mut sockets, config_file, commit, reload, this_binary, started_by, .. } =
            options;
        let Options {
            handshake_cache, guard_args, mark_folder, companions: args, user_socket, carried, ..
        } = options;
        let system = |what| move |error| ServeError::System { what, error };
        let limits = InheritedLimits::replace();
        let start = Instant::now();
        let poll = Poll::new().map_err(system("cannot create a poll"))?;
        let signals = Signals::listen(poll.registry()).map_err(system("cannot listen to signals"))?;
        let random = || seed().map_err(system("cannot get random bytes"));
        let (seed, secret) = (random()?, rpc::text::hex(&random()?));
        // This comes before the guard: a second bus at the same address must fail without having started anything.
        let bound = accept::bind(&config.listen, config.auth.is_some(), &mut sockets)?;
        let guard = GuardProgram { binary: this_binary, args: guard_args, mark_folder };
        let processes = Processes::new(guard, limits).map_err(ServeError::Guard)?;
        let handshakes = HandshakeCache::new(handshake_cache);
        let mut io = Io::new(Bus::new(&config, seed, Moment::ZERO), poll);
        handshakes.load(&mut io.bus);
        let config_file = config_file.map(|file| file.to_string_lossy().into_owned());
        io.bus.runs_as(std::process::id(), config_file, commit);
        let acceptor = Acceptor::new(bound, user_socket, max_fds(), &mut io)?;
        let mut stdio = None;
        if let Some(listen) = config.listen.iter().find(|listen| listen.at == Address::Stdio) {
            stdio = Some(Stdio::open(listen.pool.as_deref(), &mut io)?);
        } else {
            announce(&acceptor.addresses());
        }
        io.bus.kept_by(&secret);
        let mut companions = Companions::new(args, stdio.is_none(), secret);
        companions.set_wanted(&config, &acceptor.addresses(), &mut io);
        Ok(Shell {
            io,
            acceptor,
            processes,
            companions,
            stdio,
            signals,
            signalled: false,
            service_manager: SdNotify::from_env(),
            handshakes,
            reload,
            config,
            usage: UsageMeter::new(),
            has_writes: false,
            start,
            stopping: false,
            done: false,
            started_by,
            carried,
            upgrade: None,
            left_logs: None,
        })
    }

    fn run(mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        self.act();
        self.service_manager.ready();
        let outcome = loop {
            if self.done && !self.has_writes {
                break Ok(());
            }
            match self.io.poll.poll(&mut events, self.timeout()) {
                Ok(()) => {}
                // A signal has interrupted the poll, perhaps before it wrote to its socket. The poll is repeated, so
                // that what is ready is handled before timers: a timer must not blame a peer that was not read.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.signalled = true;
                    continue;
                }
                Err(error) => break Err(ServeError::Poll(error)),
            }
            self.io.now = self.start.elapsed();
            for event in &events {
                self.note(event);
            }
            self.turn();
            if !self.done {
                self.upgrade();
            }
        };
        self.companions.end(&mut self.processes);
        self.processes.end_all(&mut self.io);
        outcome
    }

    /// How long the poll may wait. `None`: until an event comes.
    fn timeout(&self) -> Option<Duration> {
        let has_own_work = self.processes.has_queued_spawn() || self.usage.is_running();
        let is_due = self.signalled || self.is_upgrade_at_work() || self.has_writes;
        if self.io.has_work() || has_own_work || is_due {
            return Some(Duration::ZERO);
        }
        let timers = [
            self.acceptor.next_timer(),
            self.processes.next_timer(),
            self.companions.next_timer(),
            self.service_manager.next_timer(),
            self.successor_deadline(),
            self.io.bus.next_alarm(),
        ];
        let next = timers.into_iter().flatten().min()?;
        Some(next.saturating_sub(self.start.elapsed()))
    }

    /// Remembers what an event says.
    fn note(&mut self, event: &mio::event::Event) {
        let (key, stream) = key_and_stream(event.token());
        if stream != Stream::Internal {
            self.io.note(Link(key), stream, event);
        } else if key == SIGNALS {
            self.signalled = true;
        } else if key == STARTS {
            self.processes.check_starts(&mut self.io);
        } else if key == SUCCESSOR {
            self.hear_successor();
        } else if !self.companions.read(key, &mut self.io) {
            self.acceptor.note(key, &mut self.io);
        }
    }

    fn turn(&mut self) {
        if mem::take(&mut self.signalled) || self.signals.is_pending() {
            self.handle_signals();
        }
        self.service_manager.on_timer(self.io.now);
        self.go_on_with_upgrade();
        self.processes.on_timer(self.io.now);
        self.companions.on_timer(&mut self.processes, &mut self.io);
        self.acceptor.on_timer(&mut self.io);
        // Tasks that are queued during this turn wait for the next one.
        let (tasks, more) = self.io.queue.lens();
        self.io.begin_turn(tasks + more);
        for at in 0..tasks + more {
            match if at < tasks { self.io.queue.pop() } else { self.io.next_more() } {
                Some(Task::Read(link)) => self.io.read(link),
                Some(Task::ReadStderr(link)) => stderr::read_queued(link, &mut self.io),
                Some(Task::Accept(listener)) => self.acceptor.accept(listener, &mut self.io),
                None => break,
            }
        }
        self.io.flush_writable();
        // The core's timers come after all reads and writes: a bus that was stopped for a while blames no peer for it.
        if self.io.bus.next_alarm().is_some_and(|alarm| alarm <= self.io.now) {
            self.io.bus.handle(Event::Alarm, self.io.now);
        }
        self.processes.spawn_next(&mut self.io);
        if let Some(usage) = self.usage.turn(self.io.now) {
            self.io.bus.measured(usage, self.io.now);
        }
        self.act();
        self.handshakes.save_if_changed(&mut self.io.bus);
    }

    fn handle_signals(&mut self) {
        let pending = self.signals.take();
        if pending.child_exited {
            self.processes.on_child_exit(&mut self.io);
            self.companions.on_child_exit(&mut self.processes, &mut self.io);
        }
        for _ in 0..pending.stops {
            self.stop();
        }
        if pending.reload && !self.stopping {
            let _ = self.reload();
        }
        if pending.upgrade {
            self.upgrade_signalled();
        }
    }

    /// Keeps the old configuration if the new one is invalid or its addresses cannot be opened. Returns what has
    /// changed.
    fn reload(&mut self) -> Result<Vec<String>, String> {
        let outcome = (self.reload)().and_then(|config| {
            let reloaded = self.acceptor.reload(&config, self.stdio.is_some(), &mut self.io);
            reloaded.map_err(|error| error.to_string())?;
            Ok(config)
        });
        match outcome {
            Ok(config) => {
                self.io.bus.reload(&config, self.io.now);
                self.companions.set_wanted(&config, &self.acceptor.addresses(), &mut self.io);
                let changed = changes(&self.config, &config);
                self.config = config;
                let told =
                    if changed.is_empty() { "nothing has changed".to_owned() } else { changed.join("; ") };
                info!("the configuration was reloaded: {told}");
                Ok(changed)
            }
            Err(errors) => {
                for line in errors.lines() {
                    log::error!("reload refused: {line}");
                }
                Err(errors)
            }
        }
    }

    /// The first time, the bus stops listening and finishes its calls. The second time, it does not wait for them.
    fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.service_manager.stopping();
            self.acceptor.close_all(&mut self.io);
        }
        self.io.bus.handle(Event::Stop, self.io.now);
    }

    /// Carries out the core's actions, but not more than some of those that can wait.
    fn act(&mut self) {
        for _ in 0..WRITES_TO_MANY {
            self.act_urgently();
            let Some(action) = self.io.bus.next_action() else {
                self.has_writes = false;
                return;
            };
            self.carry_out(action);
        }
        self.act_urgently();
        self.has_writes = true;
    }

    fn act_urgently(&mut self) {
        while let Some(action) = self.io.bus.next_urgent_action() {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Flush(link) => self.io.flush(link),
            Action::Resume(link) => self.io.resume(link),
            Action::CloseStdin(link) => self.processes.close_stdin(link, &mut self.io),
            Action::Close(link) => self.close(link),
            Action::Spawn(worker, link) => self.processes.queue_spawn(worker, link),
            Action::Signal(worker, signal) => self.processes.signal(worker, signal, &mut self.io),
            Action::Measure => self.usage.start(self.io.bus.process_ids()),
            Action::LookAtWait(worker) => {
                let wait = self.processes.id_of(worker).map(processor_wait).unwrap_or_default();
                slow_start::waited(&mut self.io.bus, worker, wait, self.io.now);
            }
            Action::Reload => {
                let outcome = self.reload();
                let outcome = outcome.as_deref().map_err(String::as_str);
                self.io.bus.reloaded(outcome, self.io.now);
            }
            Action::Upgrade => self.upgrade_asked(),
            Action::Stop => self.stop(),
            Action::Exit => self.done = true,
        }
    }

    fn close(&mut self, link: Link) {
        self.processes.close_link(link, &mut self.io);
        self.io.close(link);
        // A bus that serves its parent process on stdio ends with it.
        if self.stdio.as_ref().is_some_and(|stdio| stdio.link == link) && !self.stopping {
            self.stop();
        }
    }
}

/// Session tags are drawn from this seed.
fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(seed)
}
