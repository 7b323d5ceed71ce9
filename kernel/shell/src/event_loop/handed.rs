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
    let mut was_asked = false;
    loop {
        // The bus seals the memory after the first answer, and the system refuses that while anybody lets go of it.
        // For the second one everybody waits, so what was read is dropped after it.
        let (taken, cannot) = match fits.clone().and_then(|()| read(&memory)) {
            Ok(taken) => (was_asked.then_some(taken), None),
            Err(why) => (None, Some(why)),
        };
        was_asked = true;
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
    use std::fs::{self, File};
    use std::os::fd::OwnedFd;

    use kernel_core::upgrade::{LogCopy, copy_logs, take_left_logs};
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::handover::record::record_head;
    use crate::test_folder::TestFolder;

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
    fn all_that_the_first_version_hands_over_is_read() {
        let core =
            fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/bus/tests/saved-1.bin")).unwrap();
        let (shell, version) = (kept(), 1_u32.to_le_bytes());
        let head = [b"stdio-bus moves\n".as_slice(), &version].concat();
        let parts = [record_head(Part::Shell, shell.len()), shell, record_head(Part::Core, core.len()), core];
        let folder = TestFolder::new();
        let file = folder.join("memory");
        fs::write(&file, [head, parts.concat()].concat()).unwrap();
        let (state, bus) = read(&Memory::from(OwnedFd::from(File::open(&file).unwrap()))).unwrap();
        assert_eq!(state.peers.len(), 3);
        assert!(bus.held_bytes() > 0);
    }

    /// All that the second version leaves: the logs are copied before the state is written.
    const MOVED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/event_loop/moved-2.bin");

    /// `GOLDEN=write` makes it anew, of what the first version has left.
    fn leave_anew() {
        let core =
            fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/bus/tests/saved-1.bin")).unwrap();
        let mut bus = Bus::restore(&core, &LeftLogs::default()).unwrap();
        let (mut memory, mut copy) = (Memory::new().unwrap(), LogCopy::default());
        while let Some(bytes) = copy_logs(&mut bus, &mut copy) {
            memory.add_logs(&bytes).unwrap();
        }
        memory.write(&[(Part::Shell, &kept()), (Part::Core, &bus.save().unwrap())]).unwrap();
        fs::write(MOVED, &memory.map().unwrap()[..]).unwrap();
    }

    #[test]
    fn all_that_the_second_version_hands_over_is_read() {
        if env::var_os("GOLDEN").is_some_and(|value| value == "write") {
            leave_anew();
        }
        let said = b"agent_message_chunk";
        let has = |bytes: &[u8]| bytes.windows(said.len()).any(|part| part == said);
        let memory = Memory::from(OwnedFd::from(File::open(MOVED).unwrap()));
        let bytes = memory.map().unwrap();
        let records = Records::read(&bytes).unwrap();
        let logs = &bytes[records.range(Part::Logs).expect("the copies of logs")];
        assert!(has(logs));
        let (state, mut bus) = read(&memory).unwrap();
        assert_eq!(state.peers.len(), 3);
        // The bus makes them its own.
        let mut next = 0;
        while take_left_logs(&mut bus, &mut next) {}
        assert!(has(&bus.save().unwrap()));
        // Without them it is not read.
        let core = records.part(Part::Core).unwrap();
        let said = Bus::restore(core, &LeftLogs::default()).err().expect("logs are missing");
        assert_eq!(said, "the log of a session is not among the copies");
    }

    /// Does something with the fields of every struct. The names of variants begin with a capital letter, and a time is
    /// a type of another crate.
    fn each_struct(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| each_struct(item, change)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| each_struct(field, change));
                let is_field = |name: &String| name.starts_with(|first: char| first.is_ascii_lowercase());
                if fields.keys().all(is_field) && !fields.contains_key("nanos") {
                    change(fields);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn what_a_newer_version_adds_is_skipped_and_what_is_none_may_be_missing() {
        let same = ShellState::read(&kept()).unwrap().write().unwrap();
        let (mut added, mut removed) = (0, 0);
        let mut newer: Value = serde_json::from_slice(&fs::read(KEPT).unwrap()).unwrap();
        let mut older = newer.clone();
        each_struct(&mut newer, &mut |fields| {
            added += 1;
            fields.insert("a_table_of_another_version".to_owned(), json!({ "number": [1.5, null] }));
        });
        each_struct(&mut older, &mut |fields| {
            let before = fields.len();
            fields.retain(|_, value| !value.is_null());
            removed += before - fields.len();
        });
        assert!(added > 20 && removed > 5, "{added} and {removed}");
        for other in [newer, older] {
            let state = ShellState::read(&rmp_serde::to_vec_named(&other).unwrap()).unwrap();
            assert_eq!(state.write().unwrap(), same);
        }
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
