//! The guard: a small process that outlives the bus just long enough to kill the processes that the bus has left.
//!
//! It learns each worker's process group over its stdin, which only the bus can write to. When that ends, for whatever
//! reason, it kills every group that it still knows and every other process with the mark of the bus. It also ends what
//! earlier buses have left that were killed together with their guards. Both ends of that pipe are here.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use log::{debug, error, info, warn};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp, write};
use serde::{Deserialize, Serialize};

use kernel_core::Moment;

use crate::handover::KeptFds;
use crate::peer::set_nonblocking;
use crate::process::child::ChildProcess;
use crate::process::env_mark::{self, ProcessMark};
use crate::process::mark_file::{self, MarkFile, MarkFileState};
use crate::process::pre_exec::{self, HandedFds};
use crate::process::starter::running_file;

/// A guard that ends at once is not started again at once.
const START_INTERVAL: Duration = Duration::from_secs(1);
/// How long the bus waits for its guard when it leaves. The guard has nothing left to kill then.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// What the guard is called among the processes. Whoever kills all processes with the name of the bus, or with a name
/// that contains it, must not kill the guard too.
pub const GUARD_NAME: &str = "sbus-guard";

/// The environment of the guard. Every process of this user may read it, so it has nothing of that of the bus but the
/// marks of the family that the bus itself belongs to, none of which may be killed.
pub fn guard_environment() -> Option<(&'static str, OsString)> {
    env_mark::own_marks()
}

/// Runs the guard process. It returns when the bus has gone and its groups are killed.
///
/// It reads `=MARK`, `?FOLDER`, `+GROUP` and `-GROUP` lines. Only the end of stdin or SIGKILL ends it.
pub fn guard() -> ExitCode {
    // Other systems take the name from the file of the program.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(&std::ffi::CString::new(GUARD_NAME).expect("it has no zero"));
    pre_exec::detach();
    // Signals are blocked, not ignored: that needs no unsafe code, and has the same effect in a single thread.
    let _ = SigSet::all().thread_block();
    let duty = read_orders(io::stdin().lock(), mark_file::end_dead);
    let own = getpgrp();
    for group in duty.groups.into_iter().map(Pid::from_raw).filter(|group| *group != own) {
        let _ = killpg(group, Signal::SIGKILL);
    }
    // This comes last, because the search takes a while.
    if let Some(mark) = duty.mark {
        env_mark::kill_all(&mark);
        if let Some(folder) = duty.mark_folder {
            mark_file::remove(&folder, &mark);
        }
    }
    ExitCode::SUCCESS
}

/// What is left for the guard to do when the bus is gone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Duty {
    groups: BTreeSet<i32>,
    mark: Option<String>,
    mark_folder: Option<PathBuf>,
}

/// Reads the orders until the bus is gone. `end_dead` is called at once: what others have left must not wait for that.
fn read_orders(mut orders: impl BufRead, end_dead: impl Fn(&Path)) -> Duty {
    let mut duty = Duty::default();
    let mut line = Vec::new();
    while orders.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        // A line without an end may be half a number: the bus died while it wrote.
        let order = line.strip_suffix(b"\n").and_then(<[u8]>::split_first);
        if let Some((kind, value)) = order {
            duty.note(*kind, value);
            if *kind == b'?'
                && let Some(folder) = &duty.mark_folder
            {
                end_dead(folder);
            }
        }
        line.clear();
    }
    duty
}

impl Duty {
    fn note(&mut self, kind: u8, value: &[u8]) {
        let text = str::from_utf8(value).unwrap_or_default();
        match kind {
            b'=' if !text.is_empty() => self.mark = Some(text.to_owned()),
            b'?' if !value.is_empty() => self.mark_folder = Some(OsStr::from_bytes(value).into()),
            // Group 0 would be our own, and 1 and -1 would be all processes.
            b'+' => self.groups.extend(text.parse::<i32>().ok().filter(|group| *group > 1)),
            b'-' => {
                text.parse().ok().map(|group: i32| self.groups.remove(&group));
            }
            _ => {}
        }
    }
}

/// The bus's end of the pipe: the running guard, and what it has to know.
pub(crate) struct Guard {
    program: GuardProgram,
    running: Option<Running>,
    groups: BTreeSet<i32>,
    mark: ProcessMark,
    /// `None`: a later bus cannot know of this one.
    mark_file: Option<MarkFile>,
    started: Moment,
    /// When a new guard is to be started. `running` is `None` then.
    retry_at: Option<Moment>,
}

/// How the guard is started, and what it must know from the start.
pub(crate) struct GuardProgram {
    pub(crate) binary: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// The folder of the marks of all buses of this user. `None`: marks are not kept.
    pub(crate) mark_folder: Option<PathBuf>,
}

struct Running {
    process: ChildProcess,
    orders: OwnedFd,
    /// False: the guard did not take an order and has been killed. The pipe stays open until its exit is collected,
    /// because a guard that still lives takes the end of the pipe for the end of the bus.
    trusted: bool,
}

/// The guard as the next program finds it. It stays: it only reads orders, and knows what it has to kill.
#[derive(Serialize, Deserialize)]
pub(crate) struct GuardState {
    running: Option<RunningState>,
    groups: BTreeSet<i32>,
    mark: String,
    mark_file: Option<MarkFileState>,
    started: Moment,
    retry_at: Option<Moment>,
}

#[derive(Serialize, Deserialize)]
struct RunningState {
    pid: u32,
    orders: RawFd,
    trusted: bool,
}

impl Guard {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> GuardState {
        let running = self.running.as_ref().map(|running| RunningState {
            pid: running.process.id(),
            orders: kept.keep(&running.orders),
            trusted: running.trusted,
        });
        GuardState {
            running,
            groups: self.groups.clone(),
            mark: self.mark.name().to_owned(),
            mark_file: self.mark_file.as_ref().map(|file| file.hand_over(kept)),
            started: self.started,
            retry_at: self.retry_at,
        }
    }

    pub(crate) fn take_over(
        program: GuardProgram,
        state: GuardState,
        handed: &mut HandedFds,
    ) -> nix::Result<Guard> {
        let running = state.running.map(|RunningState { pid, orders, trusted }| -> nix::Result<_> {
            Ok(Running { process: ChildProcess::with_id(pid), orders: handed.take(orders)?, trusted })
        });
        Ok(Guard {
            program,
            running: running.transpose()?,
            groups: state.groups,
            mark: ProcessMark::named(state.mark),
            mark_file: state.mark_file.map(|file| MarkFile::take_over(file, handed)).transpose()?,
            started: state.started,
            retry_at: state.retry_at,
        })
    }

    pub(crate) fn start(program: GuardProgram, now: Moment) -> io::Result<Guard> {
        let mark = ProcessMark::new()?;
        let mark_file = program.mark_folder.as_ref().and_then(|folder| {
            let created = MarkFile::create(folder, mark.name());
            created.inspect_err(|error| debug!("{}: {error}", folder.display())).ok()
        });
        let mut guard = Guard {
            program,
            running: None,
            groups: BTreeSet::new(),
            mark,
            mark_file,
            started: now,
            retry_at: None,
        };
        guard.running = Some(guard.launch()?);
        Ok(guard)
    }

    /// The variable that every worker is started with.
    pub(crate) fn mark(&self) -> (&'static str, String) {
        self.mark.variable()
    }

    /// A worker has started. Until this is written it dies with the thread of the bus, but its children would not; it
    /// has had no time to start any.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.groups.insert(group.as_raw());
        self.send(&format!("+{group}\n"));
    }

    /// A group has been killed. Call this *before* its leader is reaped: until then the kernel does not reuse the
    /// number, so the guard never knows the number of an unrelated group.
    pub(crate) fn forget(&mut self, group: Pid) {
        self.groups.remove(&group.as_raw());
        self.send(&format!("-{group}\n"));
    }

    /// Some child has exited. If it was the guard, a new one is started.
    pub(crate) fn check(&mut self, now: Moment) {
        let Some(running) = &mut self.running else { return };
        if running.process.collect().is_none() {
            return;
        }
        warn!("the guard of the workers has ended and is replaced");
        self.running = None;
        self.retry_at = Some(now.max(self.started + START_INTERVAL));
        self.retry(now);
    }

    /// When `retry` has something to do.
    pub(crate) fn next_retry(&self) -> Option<Moment> {
        self.retry_at
    }

    pub(crate) fn retry(&mut self, now: Moment) {
        if self.retry_at.is_none_or(|retry_at| retry_at > now) {
            return;
        }
        self.started = now;
        match self.launch() {
            Ok(running) => {
                self.retry_at = None;
                self.running = Some(running);
                let all = self.groups.iter().map(|group| format!("+{group}\n")).collect::<String>();
                self.send(&all);
                info!("a new guard knows all {} groups", self.groups.len());
            }
            Err(error) => {
                self.retry_at = Some(now + START_INTERVAL);
                error!("cannot start the guard of the workers: {error}");
            }
        }
    }

    /// The bus leaves. The guard ends, its exit is collected, and the file of the mark is removed.
    pub(crate) fn dismiss(self) {
        let _mark_file = self.mark_file;
        let Some(Running { mut process, orders, .. }) = self.running else { return };
        drop(orders);
        if !process.wait(EXIT_WAIT) {
            process.kill();
            process.wait(EXIT_WAIT);
        }
    }

    fn launch(&self) -> io::Result<Running> {
        let mut command = Command::new(running_file(&self.program.binary));
        command.arg0(GUARD_NAME).args(&self.program.args).current_dir("/");
        command.env_clear().envs(guard_environment());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().map(ChildProcess::from)?;
        let orders = process.stdin.take().expect("stdin is piped");
        set_nonblocking(&orders)?;
        let trusted = write_all(&orders, &self.first_orders());
        Ok(Running { process, orders, trusted })
    }

    fn first_orders(&self) -> Vec<u8> {
        let mut orders = format!("={}\n", self.mark.name()).into_bytes();
        let folder = self.program.mark_folder.as_ref().map(|folder| folder.as_os_str().as_bytes());
        // An order is a line.
        if let Some(folder) = folder.filter(|folder| !folder.contains(&b'\n')) {
            orders.extend([b"?", folder, b"\n"].concat());
        }
        orders
    }

    fn send(&mut self, orders: &str) {
        let Some(running) = &mut self.running else { return };
        // `check` collects the exit, and starts a new guard that gets all orders again.
        if running.trusted && !write_all(&running.orders, orders.as_bytes()) {
            running.trusted = false;
            running.process.kill();
        }
    }
}

/// Fails if the pipe is full. A guard that does not empty its pipe is stuck: orders are short, and it has no other
/// work.
fn write_all(orders: &OwnedFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match write(orders, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn duty_after(orders: &[u8]) -> Duty {
        read_orders(orders, |_| panic!("no folder was named"))
    }

    #[test]
    fn the_guard_knows_the_groups_that_were_added_and_not_removed() {
        let known = |orders: &str| duty_after(orders.as_bytes()).groups.into_iter().collect::<Vec<_>>();
        assert_eq!(known("+100\n+200\n-100\n+300\n-300\n+300\n"), [200, 300]);
        assert!(known("").is_empty());
    }

    #[test]
    fn the_guard_knows_the_mark_of_its_bus() {
        let known = duty_after(b"=7-abc\n+100\n");
        let expected =
            Duty { groups: BTreeSet::from([100]), mark: Some("7-abc".to_owned()), mark_folder: None };
        assert_eq!(known, expected);
    }

    #[test]
    fn the_guard_ends_what_others_have_left_as_soon_as_it_is_told_where() {
        let seen = Cell::new(0);
        let duty = read_orders(&b"?/state/marks\n+100\n?\n"[..], |folder| {
            assert_eq!(folder, "/state/marks");
            seen.set(seen.get() + 1);
        });
        assert_eq!(duty.mark_folder.as_deref(), Some(Path::new("/state/marks")));
        assert!(seen.get() > 0);
    }

    #[test]
    fn the_guard_never_kills_all_processes() {
        let known = duty_after(b"+0\n+1\n+-1\n+-7\n+\n\n=\n?\n+x\n400\n+99999999999\n\xff\n+1234");
        assert_eq!(known, Duty::default());
    }

    #[test]
    fn the_name_of_the_guard_does_not_contain_that_of_the_bus() {
        assert!(!GUARD_NAME.contains("stdio") && GUARD_NAME.len() < 16);
    }
}
