//! All that a bus hands over to the program that takes its place, and the side of that program.

use std::env;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use kernel_core::Bus;
use kernel_core::config::{Address, Config};
use kernel_core::upgrade::LeftLogs;

use crate::handover::memory::Memory;
use crate::handover::record::{Part, Records};
use crate::net::accept::AcceptorState;
use crate::peer::PeerState;
use crate::process::companion::state::CompanionState;
use crate::process::pre_exec::{HandedFds, keep_memory_private, take_variable};
use crate::process::spawn::ProcessesState;
use crate::process::successor::Verdict;
use crate::stdio::StdioState;

/// Tells a program that it takes the place of another one: the process that it is, and the fd of what is handed over.
/// The process id keeps it from a bus that some process below this one starts.
const VARIABLE: &str = "STDIO_BUS_HANDOVER";

/// What the program itself hands over, beside the bus: where its configuration comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The file of the configuration, or a name for its text.
    pub config_path: PathBuf,
    /// The configuration itself, if it cannot be read again.
    pub config_text: Option<String>,
    /// The addresses of sockets that a service manager has opened.
    pub inherited: Vec<Address>,
    /// When the bus was started, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The state of the shell.
#[derive(Serialize, Deserialize)]
pub(super) struct ShellState {
    /// The version of the program that hands over.
    pub(super) version: String,
    pub(super) carried: Carried,
    pub(super) config: Config,
    /// When the bus began and when it stood still, on the monotonic clock, which goes on.
    pub(super) started: Duration,
    pub(super) frozen: Duration,
    /// All open fds that are named elsewhere.
    pub(super) fds: Vec<RawFd>,
    pub(super) peers: Vec<PeerState>,
    pub(super) acceptor: AcceptorState,
    pub(super) processes: ProcessesState,
    pub(super) companions: Vec<CompanionState>,
    pub(super) stdio: Option<StdioState>,
    /// Somebody waits for what processes use.
    pub(super) is_measuring: bool,
    /// The process that has checked this state. It ends by itself.
    pub(super) checked_by: Option<u32>,
}

impl ShellState {
    pub(super) fn write(&self) -> Result<Vec<u8>, String> {
        rmp_serde::to_vec_named(self).map_err(|error| format!("the state cannot be written: {error}"))
    }

    fn read(bytes: &[u8]) -> Result<ShellState, String> {
        rmp_serde::from_slice(bytes)
            .map_err(|error| format!("the state of the shell cannot be read: {error}"))
    }
}

/// What this program was handed over by the one that was this process before.
pub struct Handover {
    pub(super) state: ShellState,
    pub(super) bus: Bus,
    pub(super) fds: HandedFds,
}

impl Handover {
    /// Takes it, if this program has taken the place of another one. Call it while the program has no other thread.
    ///
    /// An error is the end of the bus: what was handed over cannot be read, and its clients are gone with it.
    pub fn from_env() -> Result<Option<Handover>, String> {
        let Some(value) = take_variable(VARIABLE) else { return Ok(None) };
        let told = value.to_str().and_then(|value| value.split_once(':'));
        let told = told.and_then(|(pid, fd)| Some((pid.parse::<u32>().ok()?, fd.parse::<RawFd>().ok()?)));
        let Some((_, fd)) = told.filter(|(pid, _)| *pid == process::id()) else { return Ok(None) };
        let memory = HandedFds::new([fd]).take(fd);
        let memory = memory.map(Memory::from).map_err(|errno| format!("nothing was handed over: {errno}"))?;
        let (state, bus) = read(&memory)?;
        let fds = HandedFds::new(state.fds.iter().copied());
        Ok(Some(Handover { state, bus, fds }))
    }

    /// What the program before handed over for itself.
    pub fn carried(&self) -> &Carried {
        &self.state.carried
    }

    /// The configuration that the bus goes on with.
    pub fn config(&self) -> &Config {
        &self.state.config
    }
}

/// The value of the variable for a program in this process that finds the memory at this fd.
pub(super) fn variable(memory: RawFd) -> (&'static str, String) {
    (VARIABLE, format!("{}:{memory}", process::id()))
}

fn read(memory: &Memory) -> Result<(ShellState, Bus), String> {
    let bytes = memory.map().map_err(|error| format!("the state cannot be read: {error}"))?;
    let bytes = Arc::new(bytes);
    let records = Records::read(&bytes)?;
    let left = records.range(Part::Logs).map(|range| LeftLogs::new(bytes.clone(), range));
    let bus = Bus::restore(records.part(Part::Core)?, &left.unwrap_or_default())?;
    Ok((ShellState::read(records.part(Part::Shell)?)?, bus))
}

/// The side of a program that is asked whether it can take the place of a bus. `fits`: whether it understands the
/// arguments that the bus was started with.
pub fn answer_as_successor(fits: Result<(), String>) -> ExitCode {
    keep_memory_private();
    let memory = io::stdin().as_fd().try_clone_to_owned();
    let channel = io::stdout().as_fd().try_clone_to_owned();
    let (Ok(memory), Ok(channel)) = (memory, channel) else { return ExitCode::FAILURE };
    let (memory, mut channel) = (Memory::from(memory), UnixStream::from(channel));
    loop {
        // Everybody waits for the answer, so what was read is dropped after it.
        let (taken, cannot) = match fits.clone().and_then(|()| read(&memory)) {
            Ok(taken) => (Some(taken), None),
            Err(why) => (None, Some(why)),
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let verdict = Verdict { bus: "stdio-bus".to_owned(), version, cannot };
        let line = serde_json::to_string(&verdict).unwrap_or_default() + "\n";
        let is_told = channel.write_all(line.as_bytes()).is_ok();
        drop(taken);
        if !is_told || !channel.read(&mut [0]).is_ok_and(|count| count > 0) {
            return ExitCode::SUCCESS;
        }
    }
}

/// The monotonic clock, which is the same for the next program.
pub(super) fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// The path by which this program was started: the one that a package manager puts another program at. The file that
/// runs may be elsewhere, if that path is a symbolic link, or may be gone.
pub fn started_by(this_binary: &std::path::Path) -> PathBuf {
    let named = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let found = if named.components().count() > 1 {
        std::path::absolute(&named).ok()
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|folder| folder.join(&named)).find(|file| file.is_file())
    };
    let is_this = |file: &PathBuf| {
        file.canonicalize().is_ok_and(|file| this_binary.canonicalize().is_ok_and(|this| this == file))
    };
    found.filter(is_this).unwrap_or_else(|| this_binary.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;

    /// What the first version writes, as JSON: the names of all fields and variants. A program that cannot read it
    /// cannot take the place of that version.
    const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/event_loop/shell-1.json");

    fn kept() -> Vec<u8> {
        let kept: Value = serde_json::from_slice(&fs::read(KEPT).unwrap()).unwrap();
        rmp_serde::to_vec_named(&kept).unwrap()
    }

    #[test]
    fn what_the_first_version_has_left_is_still_read() {
        let state = ShellState::read(&kept()).unwrap();
        assert_eq!((state.version.as_str(), state.fds.len()), ("0.1.0", 22));
        assert_eq!((state.peers.len(), state.companions.len(), state.stdio.is_some()), (3, 1, true));
        assert_eq!(state.carried.config_text.as_deref(), Some("{}"));
        assert_eq!(state.carried.inherited, [Address::Unix("/run/inherited.sock".into())]);
        assert_eq!((state.started, state.frozen), (Duration::from_secs(7), Duration::from_millis(9500)));
        assert_eq!(&*state.config.pools[0].id, "echo");
        assert!(state.is_measuring && state.checked_by == Some(4321));
        // Nothing is lost on the way through this version.
        let again: ShellState = ShellState::read(&state.write().unwrap()).unwrap();
        assert_eq!(again.write().unwrap(), state.write().unwrap());
    }

    #[test]
    fn bytes_that_are_no_state_are_refused_with_a_reason() {
        let kept = kept();
        for end in (0..kept.len()).step_by(7) {
            let why = ShellState::read(&kept[..end]).err().expect("it is cut short");
            assert!(why.starts_with("the state of the shell cannot be read: "), "{why}");
        }
        for at in (0..kept.len()).step_by(3) {
            let mut broken = kept.clone();
            broken[at] ^= 0xff;
            // It may still be a state, but it never panics.
            drop(ShellState::read(&broken));
        }
    }

    #[test]
    fn the_variable_names_this_process() {
        assert_eq!(variable(9), (VARIABLE, format!("{}:9", process::id())));
        assert!(Handover::from_env().unwrap().is_none());
    }
}
