//! The program that is to take the place of this one, started beside it and asked whether it can.
//!
//! There is no way back once this process has become another program. So that program is first started as a child, with
//! the arguments and the environment that it will have, and reads the very bytes that it will get: once while the bus
//! goes on, so that nobody waits for a program that cannot, and once more when the bus stands still. Its stdin is the
//! memory with these bytes, and its stdout a socket for both directions. It says in one line of JSON what it is and
//! whether it can read them, then waits for a byte that asks it again, or for the end.

use std::env;
use std::fs::{self, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use mio::Interest;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

use kernel_core::Moment;
use kernel_core::id::Key;

use crate::handover::memory::Memory;
use crate::io::Io;
use crate::peer::{Stream, token, unwatch, watch};
use crate::process::child::ChildProcess;
use crate::process::pre_exec::Role;
use crate::process::spawn::Processes;
use crate::process::starter::Launch;

/// Neither a listener, nor the signals, nor a companion, nor a start has this key.
pub(crate) const SUCCESSOR: Key = Key { index: (1 << 30) - 6, generation: 0 };

/// The first argument of a program that is asked whether it can take the place of a bus with the arguments behind it.
/// It calls [`crate::answer_as_successor`] and does nothing else.
pub const ASKED_TO_SUCCEED: &str = "internal-succeed";

/// How long it may take while the bus goes on.
const FIRST_ANSWER: Duration = Duration::from_secs(15);
/// How long it may take when everybody waits for it.
const SECOND_ANSWER: Duration = Duration::from_secs(5);
/// Whoever says more without an end of the line is no successor.
const ANSWER_BYTES: usize = 4 << 10;

/// What a program says that was asked.
#[derive(Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// `stdio-bus`.
    pub(crate) bus: String,
    pub(crate) version: String,
    /// Why it cannot take the place of the bus.
    pub(crate) cannot: Option<String>,
}

pub(crate) struct Successor {
    /// The file that is to be run.
    pub(crate) binary: PathBuf,
    /// Nothing is to be changed: somebody only wants to know.
    pub(crate) is_only_asked: bool,
    pub(crate) memory: Memory,
    pub(crate) deadline: Moment,
    child: ChildProcess,
    channel: UnixStream,
    line: Vec<u8>,
    file: FileIdentity,
}

/// What tells a file from another one that was put in its place.
pub(crate) type FileIdentity = (u64, u64, u64, i64, i64);

fn identity(found: &Metadata) -> FileIdentity {
    (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec())
}

/// Whether this file could be run at all.
pub(crate) fn check_file(binary: &Path) -> Result<FileIdentity, String> {
    let named = binary.display();
    let found = fs::metadata(binary).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{named}: no such file"),
        _ => format!("{named}: {error}"),
    })?;
    if !found.is_file() || access(binary, AccessFlags::X_OK).is_err() {
        return Err(format!("{named} is not executable"));
    }
    Ok(identity(&found))
}

impl Successor {
    /// Starts it with what is in the memory now.
    pub(crate) fn start(
        binary: PathBuf,
        is_only_asked: bool,
        memory: Memory,
        processes: &mut Processes,
        io: &Io,
    ) -> Result<Successor, String> {
        let file = check_file(&binary)?;
        let cannot = |error: io::Error| format!("{} cannot be started: {error}", binary.display());
        let (channel, its_end) = UnixStream::pair().map_err(cannot)?;
        channel.set_nonblocking(true).map_err(cannot)?;
        let args = [ASKED_TO_SUCCEED.into()].into_iter().chain(env::args_os().skip(1)).collect();
        let (name, env) = (binary.clone().into(), env::vars_os().collect());
        let launch = Launch { file: binary.clone(), name, args, env, cwd: None };
        let mut command = processes.starter().command(&launch, Role::Worker);
        command
            .stdin(memory.try_clone().map_err(cannot)?)
            .stdout(OwnedFd::from(its_end))
            .stderr(Stdio::null());
        let child = command.spawn().map(ChildProcess::from).map_err(cannot)?;
        // The command has a copy of the other end, and while that is open this one does not end.
        drop(command);
        processes.guard().watch(child.group());
        let deadline = io.now + FIRST_ANSWER;
        let heard = token(SUCCESSOR, Stream::Internal);
        let successor =
            Successor { binary, is_only_asked, memory, deadline, child, channel, line: Vec::new(), file };
        match watch(io.poll.registry(), &successor.channel, heard, Interest::READABLE) {
            Ok(()) => Ok(successor),
            Err(error) => {
                successor.end(processes, io);
                Err(error.to_string())
            }
        }
    }

    /// What it says: its version, or why it cannot. `None`: nothing yet.
    pub(crate) fn hear(&mut self) -> Option<Result<String, String>> {
        let mut bytes = [0; 1024];
        loop {
            match self.channel.read(&mut bytes) {
                Ok(0) => return Some(Err(self.is_no_bus())),
                Ok(count) => self.line.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => return Some(Err(self.is_no_bus())),
            }
            if let Some(end) = memchr::memchr(b'\n', &self.line) {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                return Some(self.judge(&line));
            }
            if self.line.len() > ANSWER_BYTES {
                return Some(Err(self.is_no_bus()));
            }
        }
    }

    fn judge(&self, line: &[u8]) -> Result<String, String> {
        let verdict: Option<Verdict> = serde_json::from_slice(line).ok();
        let verdict = verdict.filter(|it| it.bus == "stdio-bus").ok_or_else(|| self.is_no_bus())?;
        let Verdict { version, cannot, .. } = verdict;
        let one_line = |text: String| rpc::text::replace_control(&text, ' ');
        match cannot {
            None => Ok(one_line(version)),
            Some(why) => Err(format!("stdio-bus {version} cannot go on with this bus: {}", one_line(why))),
        }
    }

    fn is_no_bus(&self) -> String {
        format!("{} is not a stdio-bus that can take the place of this one", self.binary.display())
    }

    pub(crate) fn is_too_late(&self) -> String {
        format!("{} did not say in time whether it can go on with this bus", self.binary.display())
    }

    /// Asks it again, now that the memory has what it will really get, and waits for the answer.
    pub(crate) fn ask_again(&mut self) -> Result<String, String> {
        let until = Instant::now() + SECOND_ANSWER;
        self.channel.write_all(b"?").map_err(|_| self.is_no_bus())?;
        loop {
            if let Some(answer) = self.hear() {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.is_too_late());
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }

    /// Whether its file is still the one that was asked.
    pub(crate) fn check_file(&self) -> Result<(), String> {
        if check_file(&self.binary)? == self.file {
            return Ok(());
        }
        Err(format!("{} was replaced just now", self.binary.display()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It is not needed any more.
    pub(crate) fn end(self, processes: &mut Processes, io: &Io) {
        unwatch(io.poll.registry(), &self.channel);
        processes.end_stray(self.child);
    }
}
