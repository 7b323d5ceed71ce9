//! The process of the bus becomes another program: asks it, stands still, hands over, and takes over.

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process;
use std::time::{Duration, Instant};

use log::{Level, debug, error, info, log_enabled};
use mio::Poll;
use nix::sys::signal::SigSet;
use nix::unistd::execve;

use kernel_core::Moment;
use kernel_core::upgrade::{self, LogCopy, Wish};

use super::handed::{Handover, ShellState, monotonic, variable};
use super::{Options, Shell};
use crate::handover::KeptFds;
use crate::handover::memory::Memory;
use crate::handover::record::Part;
use crate::handshake_cache::HandshakeCache;
use crate::io::Io;
use crate::log::flush_logs;
use crate::net::accept::Acceptor;
use crate::peer::Peer;
use crate::process::companion::Companions;
use crate::process::orphan_guard::GuardProgram;
use crate::process::pre_exec::max_fds;
use crate::process::spawn::Processes;
use crate::process::successor::{Successor, check_file};
use crate::process::usage::UsageMeter;
use crate::sd_notify::SdNotify;
use crate::serve_error::ServeError;
use crate::signals::Signals;
use crate::stdio::Stdio;

/// A bus that holds more is not handed over: everybody would wait for too long.
const HELD_BYTES_MAX: usize = 256 << 20;

/// Why this process is still the same program.
enum Stays {
    /// Something has just happened that is to be handled first.
    ForNow,
    Because(String),
}

/// How far an upgrade is.
pub(super) enum Upgrade {
    /// The logs of sessions are copied, some in each turn.
    Copies { wish: Wish, binary: PathBuf, memory: Memory, logs: LogCopy },
    /// The program is asked whether it can.
    Asks(Asked),
    /// It can.
    IsDue(Asked),
}

/// The program that is asked, and the copies that it is to read.
pub(super) struct Asked {
    successor: Successor,
    /// What was copied counts as long as this is there.
    _logs: LogCopy,
}

impl Shell {
    /// A client has asked.
    pub(super) fn upgrade_asked(&mut self) {
        if self.upgrade.is_some() {
            return upgrade::refused(&mut self.io.bus, "another upgrade is under way", self.io.now);
        }
        let wish = upgrade::wish(&self.io.bus).cloned().unwrap_or_default();
        self.begin_upgrade(wish);
    }

    /// A signal has come.
    pub(super) fn upgrade_signalled(&mut self) {
        if self.upgrade.is_some() {
            return error!("not upgraded: another upgrade is under way");
        }
        self.begin_upgrade(Wish::default());
    }

    fn begin_upgrade(&mut self, wish: Wish) {
        let is_only_asked = wish.check;
        match self.begin_copies(wish) {
            Ok(upgrade) => self.upgrade = Some(upgrade),
            Err(why) => self.stay(&why, is_only_asked),
        }
    }

    fn begin_copies(&mut self, wish: Wish) -> Result<Upgrade, String> {
        self.check_upgradable()?;
        let binary = match &wish.binary {
            Some(binary) => PathBuf::from(binary),
            None => self.started_by.clone(),
        };
        if !binary.is_absolute() {
            return Err(format!("{}: name the program by its whole path", binary.display()));
        }
        check_file(&binary)?;
        let memory = Memory::new().map_err(no_memory)?;
        Ok(Upgrade::Copies { wish, binary, memory, logs: LogCopy::default() })
    }

    /// Whether a next step needs a turn of its own, and nothing else.
    pub(super) fn is_upgrade_at_work(&self) -> bool {
        self.left_logs.is_some() || matches!(self.upgrade, Some(Upgrade::Copies { .. } | Upgrade::IsDue(_)))
    }

    /// Does the next step, and the next one of the upgrade before.
    pub(super) fn go_on_with_upgrade(&mut self) {
        self.left_logs.take_if(|next| !upgrade::take_left_logs(&mut self.io.bus, next));
        match self.upgrade.take() {
            Some(Upgrade::Copies { wish, binary, memory, logs }) => {
                let is_only_asked = wish.check;
                match self.copy_logs(wish, binary, memory, logs) {
                    Ok(upgrade) => self.upgrade = Some(upgrade),
                    Err(why) => self.stay(&why, is_only_asked),
                }
            }
            Some(Upgrade::Asks(asked)) if asked.successor.deadline <= self.io.now => {
                let why = asked.successor.is_too_late();
                self.end_successor(asked, &why);
            }
            other => self.upgrade = other,
        }
    }

    fn copy_logs(
        &mut self,
        wish: Wish,
        binary: PathBuf,
        mut memory: Memory,
        mut logs: LogCopy,
    ) -> Result<Upgrade, String> {
        if let Some(bytes) = upgrade::copy_logs(&mut self.io.bus, &mut logs) {
            memory.add_logs(&bytes).map_err(no_memory)?;
            return Ok(Upgrade::Copies { wish, binary, memory, logs });
        }
        self.check_upgradable()?;
        self.save(&mut memory, None, monotonic(), &mut KeptFds::default())?;
        let successor = Successor::start(binary, wish.check, memory, &mut self.processes, &self.io)?;
        Ok(Upgrade::Asks(Asked { successor, _logs: logs }))
    }

    fn check_upgradable(&self) -> Result<(), String> {
        if self.stopping {
            return Err("the bus is stopping".to_owned());
        }
        check_held(self.io.bus.held_bytes())
    }

    /// Writes everything down. What it names by its fd is among those that are kept.
    fn save<'a>(
        &'a self,
        memory: &mut Memory,
        checked_by: Option<u32>,
        frozen: Duration,
        kept: &mut KeptFds<'a>,
    ) -> Result<(), String> {
        let mut state = ShellState {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            carried: self.carried.clone(),
            config: self.config.clone(),
            started: monotonic().saturating_sub(self.start.elapsed()),
            frozen,
            fds: Vec::new(),
            peers: self.io.peers.iter().map(|peer| peer.hand_over(kept)).collect(),
            acceptor: self.acceptor.hand_over(kept),
            processes: self.processes.hand_over(kept),
            companions: self.companions.hand_over(kept),
            stdio: self.stdio.as_ref().map(Stdio::hand_over),
            is_measuring: self.usage.is_running(),
            checked_by,
        };
        state.fds = kept.numbers();
        let (shell, core) = (state.write()?, self.io.bus.save()?);
        memory.write(&[(Part::Shell, &shell), (Part::Core, &core)]).map_err(no_memory)
    }

    /// The program that was asked has said something, or has ended.
    pub(super) fn hear_successor(&mut self) {
        let mut asked = match self.upgrade.take() {
            Some(Upgrade::Asks(asked)) => asked,
            other => return self.upgrade = other,
        };
        match asked.successor.hear() {
            None => self.upgrade = Some(Upgrade::Asks(asked)),
            Some(Err(why)) => self.end_successor(asked, &why),
            Some(Ok(version)) if asked.successor.is_only_asked => {
                asked.successor.end(&mut self.processes, &self.io);
                upgrade::possible(&mut self.io.bus, &version, self.io.now);
            }
            // It is done when everything of this turn is.
            Some(Ok(_)) => self.upgrade = Some(Upgrade::IsDue(asked)),
        }
    }

    /// When the program that was asked must have answered.
    pub(super) fn successor_deadline(&self) -> Option<Moment> {
        match &self.upgrade {
            Some(Upgrade::Asks(asked)) => Some(asked.successor.deadline),
            _ => None,
        }
    }

    fn end_successor(&mut self, Asked { successor, .. }: Asked, why: &str) {
        let is_only_asked = successor.is_only_asked;
        successor.end(&mut self.processes, &self.io);
        self.stay(why, is_only_asked);
    }

    fn stay(&mut self, why: &str, is_only_asked: bool) {
        if !is_only_asked {
            error!("not upgraded: {why}");
        }
        upgrade::refused(&mut self.io.bus, why, self.io.now);
    }

    /// Becomes the program that has said that it can. It returns if none has, or if that was not possible.
    pub(super) fn upgrade(&mut self) {
        let mut asked = match self.upgrade.take() {
            Some(Upgrade::IsDue(asked)) => asked,
            other => return self.upgrade = other,
        };
        // No handler of this program may take a signal that the next one must know of. Other threads have them blocked.
        let _ = SigSet::all().thread_block();
        let Err(stays) = self.become_program(&mut asked.successor);
        let _ = SigSet::all().thread_unblock();
        match stays {
            Stays::ForNow => self.upgrade = Some(Upgrade::IsDue(asked)),
            Stays::Because(why) => {
                self.service_manager.ready();
                self.end_successor(asked, &why);
            }
        }
        // Who has asked is told.
        self.act();
    }

    fn become_program(&mut self, successor: &mut Successor) -> Result<Infallible, Stays> {
        if self.signals.is_pending() {
            self.signalled = true;
            return Err(Stays::ForNow);
        }
        self.check_upgradable().map_err(Stays::Because)?;
        let frozen = monotonic();
        info!("becoming {}", successor.binary.display());
        flush_logs();
        self.service_manager.reloading(frozen);
        self.hand_over(successor, frozen).map_err(Stays::Because)
    }

    fn hand_over(&self, successor: &mut Successor, frozen: Duration) -> Result<Infallible, String> {
        let mut kept = KeptFds::default();
        let pid = successor.pid();
        self.save(&mut successor.memory, Some(pid), frozen, &mut kept)?;
        successor.memory.seal().map_err(|error| format!("the state cannot be sealed: {error}"))?;
        let written = monotonic();
        successor.ask_again()?;
        successor.check_file()?;
        let (writes, reads) = (written.saturating_sub(frozen), monotonic().saturating_sub(written));
        debug!("the state was written in {writes:.1?} and read by the next program in {reads:.1?}");
        if log_enabled!(Level::Debug) {
            flush_logs();
        }
        let memory = kept.keep(&successor.memory);
        let (name, value) = variable(memory);
        let mut args: Vec<OsString> = env::args_os().collect();
        if successor.binary != self.started_by
            && let Some(first) = args.first_mut()
        {
            *first = successor.binary.clone().into();
        }
        let env = env::vars_os().chain([(name.into(), value.into())]);
        let env = env.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        let texts = |all: Vec<Vec<u8>>| all.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
        let named = successor.binary.display();
        let cannot = |why: String| format!("{named} cannot be run: {why}");
        let args = texts(args.into_iter().map(OsStringExt::into_vec).collect());
        let (args, env) = (args.map_err(|error| cannot(error.to_string()))?, texts(env.collect()));
        let env = env.map_err(|error| cannot(error.to_string()))?;
        let file = CString::new(successor.binary.as_os_str().as_bytes())
            .map_err(|error| cannot(error.to_string()))?;
        let opened = kept.open_on_exec(true);
        let Err(errno) = opened.and_then(|()| execve(&file, &args, &env));
        let _ = kept.open_on_exec(false);
        Err(cannot(errno.desc().to_owned()))
    }

    /// Goes on in the place of another program.
    pub(super) fn take_over(options: Options, handover: Handover) -> Result<Shell, ServeError> {
        let Options { config_file, commit, reload, this_binary, started_by, carried, .. } = options;
        let Options { handshake_cache, guard_args, mark_folder, companions: args, user_socket, .. } = options;
        let Handover { state, bus, mut fds } = handover;
        let read = monotonic();
        let system = |what| move |error| ServeError::System { what, error };
        let handed = |errno: nix::errno::Errno| ServeError::System {
            what: "what was handed over cannot be used",
            error: errno.into(),
        };
        let poll = Poll::new().map_err(system("cannot create a poll"))?;
        let up = monotonic().saturating_sub(state.started);
        let start = Instant::now().checked_sub(up).unwrap_or_else(Instant::now);
        let signals = Signals::listen(poll.registry()).map_err(system("cannot listen to signals"))?;
        let mut io = Io::new(bus, poll);
        io.now = start.elapsed();
        let guard = GuardProgram { binary: this_binary, args: guard_args, mark_folder };
        let mut processes =
            Processes::take_over(state.processes, guard, &mut fds, io.poll.registry()).map_err(handed)?;
        for peer in state.peers {
            io.take_over(Peer::take_over(peer, &mut fds).map_err(handed)?);
        }
        let config_file = config_file.map(|file| file.to_string_lossy().into_owned());
        io.bus.runs_as(process::id(), config_file, commit);
        let acceptor = Acceptor::take_over(state.acceptor, user_socket, max_fds(), &mut fds, &mut io)?;
        let stdio = state.stdio.as_ref().map(Stdio::take_over);
        let mut companions = Companions::new(args, stdio.is_none(), String::new());
        let wanted = (&state.config, &*acceptor.addresses());
        let unknown = companions.take_over(state.companions, wanted, &mut fds, &mut io).map_err(handed)?;
        state.checked_by.into_iter().chain(unknown).for_each(|pid| processes.adopt_stray(pid));
        fds.close_rest();
        let mut usage = UsageMeter::new();
        if state.is_measuring {
            usage.start(io.bus.process_ids());
        }
        let mut shell = Shell {
            io,
            acceptor,
            processes,
            companions,
            stdio,
            signals,
            // Children may have exited meanwhile.
            signalled: true,
            service_manager: SdNotify::from_env(),
            handshakes: HandshakeCache::new(handshake_cache),
            reload,
            config: state.config,
            usage,
            has_writes: false,
            start,
            stopping: false,
            done: false,
            started_by,
            carried,
            upgrade: None,
            left_logs: Some(0),
        };
        shell.processes.on_child_exit(&mut shell.io);
        shell.companions.on_child_exit(&mut shell.processes, &mut shell.io);
        let pause = monotonic().saturating_sub(state.frozen);
        let since = read.saturating_sub(state.frozen);
        debug!("the state was read {since:.1?} into the pause, and taken over {pause:.1?} into it");
        let (from, to) = (&state.version, env!("CARGO_PKG_VERSION"));
        info!("upgraded from {from} to {to}, paused {} ms", pause.as_millis());
        upgrade::done(&mut shell.io.bus, from, pause, shell.io.now);
        Ok(shell)
    }
}

fn no_memory(error: io::Error) -> String {
    format!("there is no memory for the state: {error}")
}

fn check_held(held: usize) -> Result<(), String> {
    if held <= HELD_BYTES_MAX {
        return Ok(());
    }
    let (held, most) = (held.div_ceil(1 << 20), HELD_BYTES_MAX >> 20);
    Err(format!("the bus holds {held} MiB, and at most {most} MiB can be handed over"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_that_holds_too_much_is_not_handed_over() {
        assert_eq!(check_held(256 << 20), Ok(()));
        let why = check_held((256 << 20) + 1).unwrap_err();
        assert_eq!(why, "the bus holds 257 MiB, and at most 256 MiB can be handed over");
    }
}
