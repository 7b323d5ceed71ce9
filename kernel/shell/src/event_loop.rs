//! The event loop: polls, reads what is ready, reports events to the core, and carries out the core's actions.
//!
//! A turn is one poll and what follows from it. A link with more to read goes to the back of the run queue. Nothing
//! here blocks except the poll.

use std::ffi::OsString;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use log::info;
use mio::{Events, Poll};

use kernel_core::config::{Address, Config};
use kernel_core::id::Link;
use kernel_core::{Action, Bus, Event, Moment};

use crate::config::changes;
use crate::handshake_cache::HandshakeCache;
use crate::io::Io;
use crate::net::accept::{self, Acceptor};
use crate::net::inherited::InheritedSockets;
use crate::peer::{Stream, Task, key_and_stream};
use crate::process::companion::Companions;
use crate::process::orphan_guard::GuardProgram;
use crate::process::pre_exec::{InheritedLimits, max_fds};
use crate::process::spawn::{Processes, STARTS};
use crate::process::stderr;
use crate::process::usage::UsageMeter;
use crate::sd_notify::SdNotify;
use crate::serve_error::ServeError;
use crate::signals::{SIGNALS, Signals};
use crate::stdio::{Stdio, announce};

const EVENTS_PER_TURN: usize = 1024;

type Reload = Box<dyn Fn() -> Result<Config, String>>;

/// What `serve` needs to run the bus.
pub struct Options {
    /// The configuration to start with.
    pub config: Config,
    /// Sockets that are open already. Those whose address is in `config.listen` are used for it.
    pub sockets: InheritedSockets,
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
    /// With these arguments `this_binary` is a web door: it reads one line of JSON from stdin, and ends when that ends.
    /// Empty: this program has none.
    pub web_args: Vec<OsString>,
    /// With these arguments `this_binary` is a link to the cluster, told and ended in the same way.
    pub link_args: Vec<OsString>,
}

/// Runs the bus until it has stopped.
///
/// Prints one JSON line per address on stdout when it is ready, `{"listening":"tcp://127.0.0.1:9000"}` with the port
/// that was really bound. If stdout itself carries the protocol, it prints nothing. Call it from the main thread: on
/// Linux workers die with the thread that started them.
pub fn serve(options: Options) -> Result<(), ServeError> {
    Shell::open(options)?.run()
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
    start: Instant,
    stopping: bool,
    done: bool,
}

impl Shell {
    fn open(options: Options) -> Result<Shell, ServeError> {
        let Options { config, mut sockets, config_file, commit, reload, this_binary, .. } = options;
        let Options { handshake_cache, guard_args, mark_folder, web_args, link_args, .. } = options;
        let system = |what| move |error| ServeError::System { what, error };
        let limits = InheritedLimits::replace();
        let start = Instant::now();
        let poll = Poll::new().map_err(system("cannot create a poll"))?;
        let signals = Signals::listen(poll.registry()).map_err(system("cannot listen to signals"))?;
        let seed = seed().map_err(system("cannot get random bytes"))?;
        // This comes before the guard: a second bus at the same address must fail without having started anything.
        let bound = accept::bind(&config.listen, config.auth.is_some(), &mut sockets)?;
        let guard = GuardProgram { binary: this_binary, args: guard_args, mark_folder };
        let processes = Processes::new(guard, limits).map_err(ServeError::Guard)?;
        let handshakes = HandshakeCache::new(handshake_cache);
        let mut io = Io::new(Bus::new(&config, seed, Moment::ZERO), poll);
        handshakes.load(&mut io.bus);
        let config_file = config_file.map(|file| file.to_string_lossy().into_owned());
        io.bus.runs_as(std::process::id(), config_file, commit);
        let acceptor = Acceptor::new(bound, max_fds(), &mut io)?;
        let mut stdio = None;
        if let Some(listen) = config.listen.iter().find(|listen| listen.at == Address::Stdio) {
            stdio = Some(Stdio::open(listen.pool.as_deref(), &mut io)?);
        } else {
            announce(&acceptor.addresses());
        }
        let mut companions = Companions::new(web_args, link_args, stdio.is_none());
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
            start,
            stopping: false,
            done: false,
        })
    }

    fn run(mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        self.act();
        self.service_manager.ready();
        let outcome = loop {
            if self.done {
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
        };
        self.companions.end(&mut self.processes);
        self.processes.end_all(&mut self.io);
        outcome
    }

    /// How long the poll may wait. `None`: until an event comes.
    fn timeout(&self) -> Option<Duration> {
        let has_own_work = self.processes.has_queued_spawn() || self.usage.is_running();
        if self.io.has_work() || has_own_work || self.signalled {
            return Some(Duration::ZERO);
        }
        let timers = [
            self.acceptor.next_timer(),
            self.processes.next_timer(),
            self.companions.next_timer(),
            self.service_manager.next_timer(),
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
        } else if !self.companions.read(key, &mut self.io) {
            self.acceptor.note(key, &mut self.io);
        }
    }

    fn turn(&mut self) {
        if mem::take(&mut self.signalled) || self.signals.is_pending() {
            self.handle_signals();
        }
        self.service_manager.on_timer(self.io.now);
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

    /// Carries out the core's actions until there are no more.
    fn act(&mut self) {
        while let Some(action) = self.io.bus.next_action() {
            match action {
                Action::Flush(link) => self.io.flush(link),
                Action::Resume(link) => self.io.resume(link),
                Action::CloseStdin(link) => self.processes.close_stdin(link, &mut self.io),
                Action::Close(link) => self.close(link),
                Action::Spawn(worker, link) => self.processes.queue_spawn(worker, link),
                Action::Signal(worker, signal) => self.processes.signal(worker, signal, &mut self.io),
                Action::Measure => self.usage.start(self.io.bus.process_ids()),
                Action::Reload => {
                    let outcome = self.reload();
                    let outcome = outcome.as_deref().map_err(String::as_str);
                    self.io.bus.reloaded(outcome, self.io.now);
                }
                Action::Stop => self.stop(),
                Action::Exit => self.done = true,
            }
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
