//! The processes of workers: spawned, signalled and reaped.
//!
//! A process is in the list from its start until it is reaped, and only in that time is its group signalled: later the
//! number may belong to another process. The core hears of it when it has become its program, a few milliseconds after
//! its start. A process may outlive its link, if the core has closed that. A link may outlive its process, if another
//! process still holds the stdout.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, warn};
use mio::{Interest, Registry};
use nix::errno::Errno;
use nix::sys::signal::{self, killpg};
use nix::unistd::{Pid, read};
use serde::{Deserialize, Serialize};

use kernel_core::id::{Key, Link, WorkerId};
use kernel_core::{Event, Exit, Moment, Signal, SpawnFault};

use crate::errno::errno_of;
use crate::handover::KeptFds;
use crate::io::Io;
use crate::peer::{self, Peer, Stderr, set_nonblocking, token, unwatch, watch};
use crate::process::child::ChildProcess;
use crate::process::command::launch;
use crate::process::orphan_guard::{Guard, GuardProgram, GuardState};
use crate::process::pre_exec::{HandedFds, InheritedLimits, Role};
use crate::process::starter::{Starter, Starting};
use crate::process::stderr;

/// Neither a listener, nor the signals, nor a companion has this key. Its event says that some process has, or has not,
/// become its program.
pub(crate) const STARTS: Key = Key { index: (1 << 30) - 4, generation: 0 };

/// The most that an exited process can have left in a pipe: Linux lets a process make its pipe this large.
const PIPE_BYTES_MAX: usize = 1 << 20;
/// How long the bus waits, when it leaves, for processes that it has killed.
const EXIT_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Processes {
    list: Vec<Process>,
    /// Starting a process can take milliseconds, so at most one is started per turn.
    spawns: VecDeque<(WorkerId, Link)>,
    guard: Guard,
    starter: Starter,
    binary: PathBuf,
    /// Processes of which nothing but the exit is of interest.
    strays: Vec<ChildProcess>,
}

struct Process {
    worker: WorkerId,
    link: Link,
    child: ChildProcess,
    /// The process group that it leads.
    group: Pid,
    link_state: LinkState,
}

enum LinkState {
    /// The process has not become its program yet, and the core waits for that.
    Starting(Starting),
    Open,
    /// The core has closed the link before the process exited.
    Closed,
    /// The process could not become its program or be connected to the event loop, or the core did not want it any
    /// more, and so it believes that it was never started.
    NeverOpened,
}

/// The processes as the next program finds them.
#[derive(Serialize, Deserialize)]
pub(crate) struct ProcessesState {
    list: Vec<ProcessState>,
    spawns: Vec<(WorkerId, Link)>,
    guard: GuardState,
    limits: InheritedLimits,
    /// Children that end by themselves, and are to be collected.
    #[serde(default)]
    strays: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct ProcessState {
    worker: WorkerId,
    link: Link,
    pid: u32,
    link_state: LinkStateState,
}

#[derive(Serialize, Deserialize)]
enum LinkStateState {
    /// Where it says whether it has become its program, and its stdin, stdout and stderr.
    Starting {
        heard: RawFd,
        pipes: [Option<RawFd>; 3],
    },
    Open,
    Closed,
    NeverOpened,
}

impl Process {
    fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> ProcessState {
        let link_state = match &self.link_state {
            LinkState::Starting(starting) => {
                let ChildProcess { stdin, stdout, stderr, .. } = &self.child;
                LinkStateState::Starting {
                    heard: kept.keep(starting.fd()),
                    pipes: [stdin, stdout, stderr].map(|pipe| pipe.as_ref().map(|pipe| kept.keep(pipe))),
                }
            }
            LinkState::Open => LinkStateState::Open,
            LinkState::Closed => LinkStateState::Closed,
            LinkState::NeverOpened => LinkStateState::NeverOpened,
        };
        ProcessState { worker: self.worker, link: self.link, pid: self.child.id(), link_state }
    }

    fn take_over(state: ProcessState, handed: &mut HandedFds, registry: &Registry) -> nix::Result<Process> {
        let ProcessState { worker, link, pid, link_state } = state;
        let mut child = ChildProcess::with_id(pid);
        let link_state = match link_state {
            LinkStateState::Starting { heard, pipes } => {
                let mut take = |pipe: Option<RawFd>| pipe.map(|pipe| handed.take(pipe)).transpose();
                let [stdin, stdout, stderr] = pipes;
                (child.stdin, child.stdout, child.stderr) = (take(stdin)?, take(stdout)?, take(stderr)?);
                let starting = Starting::from(handed.take(heard)?);
                watch_start(&starting, registry)?;
                LinkState::Starting(starting)
            }
            LinkStateState::Open => LinkState::Open,
            LinkStateState::Closed => LinkState::Closed,
            LinkStateState::NeverOpened => LinkState::NeverOpened,
        };
        Ok(Process { worker, link, group: child.group(), child, link_state })
    }
}

impl Processes {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> ProcessesState {
        ProcessesState {
            list: self.list.iter().map(|process| process.hand_over(kept)).collect(),
            spawns: self.spawns.iter().copied().collect(),
            guard: self.guard.hand_over(kept),
            limits: self.starter.limits(),
            strays: self.strays.iter().map(ChildProcess::id).collect(),
        }
    }

    pub(crate) fn take_over(
        state: ProcessesState,
        guard: GuardProgram,
        handed: &mut HandedFds,
        registry: &Registry,
    ) -> nix::Result<Processes> {
        let binary = guard.binary.clone();
        let list = state.list.into_iter().map(|process| Process::take_over(process, handed, registry));
        Ok(Processes {
            list: list.collect::<nix::Result<_>>()?,
            spawns: state.spawns.into(),
            guard: Guard::take_over(guard, state.guard, handed)?,
            starter: Starter::new(&binary, state.limits),
            binary,
            strays: state.strays.into_iter().map(ChildProcess::with_id).collect(),
        })
    }

    /// A child that the program before has started, and that ends by itself.
    pub(crate) fn adopt_stray(&mut self, pid: u32) {
        self.strays.push(ChildProcess::with_id(pid));
    }

    /// Kills a guarded process whose exit is of no interest.
    pub(super) fn end_stray(&mut self, child: ChildProcess) {
        let _ = killpg(child.group(), signal::Signal::SIGKILL);
        self.strays.push(child);
    }

    fn reap_strays(&mut self) {
        let guard = &mut self.guard;
        self.strays.retain_mut(|child| {
            let has_exited = child.has_exited();
            if has_exited {
                let _ = killpg(child.group(), signal::Signal::SIGKILL);
                guard.forget(child.group());
                child.collect();
            }
            !has_exited
        });
    }

    /// Starts the guard, which is this program too.
    pub(crate) fn new(guard: GuardProgram, limits: InheritedLimits) -> io::Result<Processes> {
        let binary = guard.binary.clone();
        let guard = Guard::start(guard, Moment::ZERO)?;
        let starter = Starter::new(&binary, limits);
        Ok(Processes {
            list: Vec::new(),
            spawns: VecDeque::new(),
            guard,
            starter,
            binary,
            strays: Vec::new(),
        })
    }

    /// The web door is guarded like the processes of workers.
    pub(crate) fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    pub(crate) fn starter(&self) -> &Starter {
        &self.starter
    }

    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    pub(crate) fn queue_spawn(&mut self, worker: WorkerId, link: Link) {
        self.spawns.push_back((worker, link));
    }

    pub(crate) fn has_queued_spawn(&self) -> bool {
        !self.spawns.is_empty()
    }

    pub(crate) fn spawn_next(&mut self, io: &mut Io) {
        let Some((worker, link)) = self.spawns.pop_front() else { return };
        if let Err(fault) = self.spawn(worker, link, io) {
            io.bus.handle(Event::SpawnFailed { worker, fault }, io.now);
        }
    }

    fn spawn(&mut self, worker: WorkerId, link: Link, io: &mut Io) -> Result<(), SpawnFault> {
        let pool = io.bus.command(worker).ok_or(fault(Errno::ESRCH))?;
        let mut launch = launch(pool, io.bus.node(worker), &self.binary)?;
        let (name, value) = self.guard.mark();
        launch.env.retain(|(known, _)| known != name);
        launch.env.push((name.into(), value.into()));
        let started = self.starter.start(&launch, Role::Worker, |command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        });
        let (child, starting) = started.map_err(|error| fault(errno_of(error)))?;
        let child = ChildProcess::from(child);
        let (pid, group) = (child.id(), child.group());
        debug!("pool {}: process {pid} started", pool.id);
        self.guard.watch(group);
        prefer_for_oom_kill(pid);
        let watched = watch_start(&starting, io.poll.registry());
        let link_state = if watched.is_ok() { LinkState::Starting(starting) } else { LinkState::NeverOpened };
        self.list.push(Process { worker, link, child, group, link_state });
        watched.map_err(|errno| {
            let _ = killpg(group, signal::Signal::SIGKILL);
            fault(errno)
        })
    }

    /// Some processes have become their programs, or could not.
    pub(crate) fn check_starts(&mut self, io: &mut Io) {
        for at in 0..self.list.len() {
            self.check_start(at, io);
        }
    }

    fn check_start(&mut self, at: usize, io: &mut Io) {
        let process = &mut self.list[at];
        let LinkState::Starting(starting) = &process.link_state else { return };
        // A process that has exited has decided it: the pipe was its own alone.
        let Some(outcome) = starting.outcome() else { return };
        unwatch(io.poll.registry(), starting.fd());
        let (worker, pid) = (process.worker, process.child.id());
        match outcome.and_then(|()| attach(worker, process.link, &mut process.child, io)) {
            Ok(()) => {
                process.link_state = LinkState::Open;
                io.bus.handle(Event::Spawned { worker, pid }, io.now);
            }
            Err(errno) => {
                process.link_state = LinkState::NeverOpened;
                let _ = killpg(process.group, signal::Signal::SIGKILL);
                io.bus.handle(Event::SpawnFailed { worker, fault: fault(errno) }, io.now);
            }
        }
    }

    /// The process of this worker, if it has one that was not given up.
    pub(crate) fn id_of(&self, worker: WorkerId) -> Option<u32> {
        let process = self.list.iter().rev().find(|process| process.worker == worker)?;
        Some(process.child.id())
    }

    /// Signals the whole group, if the process has not been reaped yet.
    pub(crate) fn signal(&mut self, worker: WorkerId, signal: Signal, io: &mut Io) {
        self.cancel_spawns(|queued, _| queued == worker, io);
        let Some(process) = self.list.iter().rev().find(|process| process.worker == worker) else { return };
        let group = process.group;
        let sent = match signal {
            Signal::Kill => killpg(group, signal::Signal::SIGKILL),
            // A stopped process handles SIGTERM only after it is continued.
            Signal::Term => {
                killpg(group, signal::Signal::SIGTERM).and_then(|()| killpg(group, signal::Signal::SIGCONT))
            }
        };
        // ESRCH: the group is gone. EPERM: macOS says this of a group of which all processes have exited.
        if let Err(errno) = sent
            && errno != Errno::ESRCH
            && errno != Errno::EPERM
        {
            warn!("cannot signal process group {group}: {}", errno.desc());
        }
    }

    /// The core closes this link. Its process, if it still runs, is only waited for.
    pub(crate) fn close_link(&mut self, link: Link, io: &mut Io) {
        self.cancel_spawns(|_, queued| queued == link, io);
        for process in &mut self.list {
            if process.link == link && matches!(process.link_state, LinkState::Open) {
                process.link_state = LinkState::Closed;
            }
        }
    }

    /// The core wants this worker to end: closes its stdin, or does not start it at all.
    pub(crate) fn close_stdin(&mut self, link: Link, io: &mut Io) {
        self.cancel_spawns(|_, queued| queued == link, io);
        io.close_output(link);
    }

    /// The core expects an answer to every `Action::Spawn`, also to one that it no longer wants.
    fn cancel_spawns(&mut self, is_unwanted: impl Fn(WorkerId, Link) -> bool, io: &mut Io) {
        let fault = fault(Errno::ECANCELED);
        self.spawns.retain(|(worker, link)| {
            let unwanted = is_unwanted(*worker, *link);
            if unwanted {
                io.bus.handle(Event::SpawnFailed { worker: *worker, fault }, io.now);
            }
            !unwanted
        });
        for process in &mut self.list {
            if let LinkState::Starting(starting) = &process.link_state
                && is_unwanted(process.worker, process.link)
            {
                unwatch(io.poll.registry(), starting.fd());
                process.link_state = LinkState::NeverOpened;
                let _ = killpg(process.group, signal::Signal::SIGKILL);
                io.bus.handle(Event::SpawnFailed { worker: process.worker, fault }, io.now);
            }
        }
    }

    /// A child has exited: a worker, the guard or several of them.
    pub(crate) fn on_child_exit(&mut self, io: &mut Io) {
        self.reap_all(io);
        self.reap_strays();
        self.guard.check(io.now);
    }

    /// Looks at every process: several exits may have come as one signal.
    fn reap_all(&mut self, io: &mut Io) {
        let mut at = 0;
        while at < self.list.len() {
            if self.list[at].child.has_exited() {
                self.reap(at, io);
            } else {
                at += 1;
            }
        }
    }

    /// Reads what the process has left, kills the rest of its group, and only then collects its exit.
    fn reap(&mut self, at: usize, io: &mut Io) {
        self.check_start(at, io);
        let Process { worker, link, group, .. } = self.list[at];
        if matches!(self.list[at].link_state, LinkState::Open) {
            drain(link, io);
        }
        let _ = killpg(group, signal::Signal::SIGKILL);
        self.guard.forget(group);
        let mut process = self.list.remove(at);
        let exit = process.child.collect().unwrap_or(Exit::Code(-1));
        // The exit of a process whose link was closed says nothing about the process that has replaced it.
        let is_replaced = self.list.iter().any(|process| process.worker == worker)
            || self.spawns.iter().any(|(queued, _)| *queued == worker);
        let is_told = match process.link_state {
            LinkState::Open => true,
            LinkState::Closed => !is_replaced,
            LinkState::Starting(_) | LinkState::NeverOpened => false,
        };
        if is_told {
            io.bus.handle(Event::Exited { worker, exit }, io.now);
        }
    }

    /// When `on_timer` has something to do.
    pub(crate) fn next_timer(&self) -> Option<Moment> {
        self.guard.next_retry()
    }

    /// Starts a new guard if that is due.
    pub(crate) fn on_timer(&mut self, now: Moment) {
        self.guard.retry(now);
    }

    /// Ends the processes that still run when the bus leaves, normally only the guard.
    pub(crate) fn end_all(mut self, io: &mut Io) {
        for process in &self.list {
            let _ = killpg(process.group, signal::Signal::SIGKILL);
        }
        let deadline = Instant::now() + EXIT_WAIT;
        while !self.list.is_empty() && Instant::now() < deadline {
            self.reap_all(io);
            thread::sleep(Duration::from_millis(1));
        }
        self.guard.dismiss();
    }
}

fn fault(errno: Errno) -> SpawnFault {
    SpawnFault { errno: errno as i32, cwd: false }
}

fn watch_start(starting: &Starting, registry: &Registry) -> nix::Result<()> {
    starting.set_nonblocking()?;
    watch(registry, starting.fd(), token(STARTS, peer::Stream::Internal), Interest::READABLE)
        .map_err(errno_of)
}

/// Makes the pipes of a new process a link.
fn attach(worker: WorkerId, link: Link, child: &mut ChildProcess, io: &mut Io) -> nix::Result<()> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { unreachable!("all three are piped") };
    set_nonblocking(&stdin)?;
    set_nonblocking(&stdout)?;
    set_nonblocking(&stderr)?;
    let mut peer = Peer::pipes(link, stdout, stdin);
    peer.stderr = Some(Box::new(Stderr::new(stderr, worker, child.id())));
    peer.register(io.poll.registry()).map_err(errno_of)?;
    io.add(peer);
    Ok(())
}

/// Reads what an exited process has left, whether or not the core wants to read.
fn drain(link: Link, io: &mut Io) {
    let Some(peer) = io.peers.get_mut(link) else { return };
    let mut left = PIPE_BYTES_MAX;
    while left > 0 && !peer.eof_reported {
        match read(peer.input(), &mut io.scratch) {
            // The core gets no `Ended`, because the exit says more.
            Ok(0) => peer.eof_reported = true,
            Ok(count) => {
                left = left.saturating_sub(count);
                io.bus.received(link, &io.scratch[..count], io.now);
            }
            Err(Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    peer.can_read &= !peer.eof_reported;
    for _ in 0..PIPE_BYTES_MAX / io.scratch.len() {
        if !stderr::read_once(link, io) {
            break;
        }
    }
    if let Some(peer) = io.peers.get_mut(link) {
        peer.close_stderr(io.poll.registry());
    }
}

/// When memory runs out, the system is to kill an agent rather than the bus, which would take all agents with it. The
/// bus writes this file, because a child that may not dump core may not write its own.
#[cfg(target_os = "linux")]
fn prefer_for_oom_kill(pid: u32) {
    use std::fs;

    const ABOVE_BUS: i32 = 100;
    const HIGHEST: i32 = 1000;
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    let score = (own.unwrap_or(0) + ABOVE_BUS).min(HIGHEST);
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string());
}

#[cfg(not(target_os = "linux"))]
fn prefer_for_oom_kill(_pid: u32) {}
