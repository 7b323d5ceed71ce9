//! The guard: a small process that outlives the bus just long enough to kill the processes that the bus has left.
//!
//! It learns each worker's process group over its stdin, which only the bus can write to. When that ends, for whatever
//! reason, it kills every group that it still knows and every other process with the mark of the bus. Both ends of that
//! pipe are here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufRead};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use log::{error, info, warn};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp, write};

use kernel_core::Moment;

use crate::peer::set_nonblocking;
use crate::process::env_mark::{self, ProcessMark};
use crate::process::pre_exec::{self, InheritedLimits, Role};

/// A guard that ends at once is not started again at once.
const START_INTERVAL: Duration = Duration::from_secs(1);
/// How long the bus waits for its guard when it leaves. The guard has nothing left to kill then.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// Runs the guard process. It returns when the bus has gone and its groups are killed.
///
/// It reads `=MARK`, `+GROUP` and `-GROUP` lines. Only the end of stdin or SIGKILL ends it.
pub fn guard() -> ExitCode {
    // Signals are blocked, not ignored: that needs no unsafe code, and has the same effect in a single thread.
    let _ = SigSet::all().thread_block();
    let (groups, mark) = read_orders(io::stdin().lock());
    let own = getpgrp();
    for group in groups.into_iter().map(Pid::from_raw).filter(|group| *group != own) {
        let _ = killpg(group, Signal::SIGKILL);
    }
    // This comes last, because the search takes a while.
    if let Some(mark) = mark {
        env_mark::kill_all(&mark);
    }
    ExitCode::SUCCESS
}

/// Reads the orders until the bus is gone, and returns the groups and the mark that are left to kill.
fn read_orders(mut orders: impl BufRead) -> (BTreeSet<i32>, Option<String>) {
    let mut groups = BTreeSet::new();
    let mut mark = None;
    let mut line = Vec::new();
    while orders.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        // A line without an end may be half a number: the bus died while it wrote.
        let order = line.strip_suffix(b"\n").and_then(|order| str::from_utf8(order).ok()).unwrap_or_default();
        if let Some(name) = order.strip_prefix('=') {
            if !name.is_empty() {
                mark = Some(name.to_owned());
            }
        } else if let Some(group) = order.strip_prefix('+').and_then(|group| group.parse().ok()) {
            // Group 0 would be our own, and 1 and -1 would be all processes.
            if group > 1 {
                groups.insert(group);
            }
        } else if let Some(group) = order.strip_prefix('-').and_then(|group| group.parse().ok()) {
            groups.remove(&group);
        }
        line.clear();
    }
    (groups, mark)
}

/// The bus's end of the pipe: the running guard, and what it has to know.
pub(crate) struct Guard {
    binary: PathBuf,
    args: Vec<OsString>,
    limits: InheritedLimits,
    running: Option<Running>,
    groups: BTreeSet<i32>,
    mark: ProcessMark,
    started: Moment,
    /// When a new guard is to be started. `running` is `None` then.
    retry_at: Option<Moment>,
}

struct Running {
    process: Child,
    orders: OwnedFd,
    /// False: the guard did not take an order and has been killed. The pipe stays open until its exit is collected,
    /// because a guard that still lives takes the end of the pipe for the end of the bus.
    trusted: bool,
}

impl Guard {
    pub(crate) fn start(
        binary: PathBuf,
        args: Vec<OsString>,
        limits: InheritedLimits,
        now: Moment,
    ) -> io::Result<Guard> {
        let mut guard = Guard {
            binary,
            args,
            limits,
            running: None,
            groups: BTreeSet::new(),
            mark: ProcessMark::new()?,
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
        if matches!(running.process.try_wait(), Ok(None)) {
            return;
        }
        warn!("the guard of the workers has ended, a new one takes its place");
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

    /// The bus leaves. The guard ends, and its exit is collected.
    pub(crate) fn dismiss(self) {
        let Some(Running { mut process, orders, .. }) = self.running else { return };
        drop(orders);
        let deadline = Instant::now() + EXIT_WAIT;
        while matches!(process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = process.kill();
                let _ = process.wait();
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn launch(&self) -> io::Result<Running> {
        let mut command = Command::new(&self.binary);
        command.args(&self.args).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        pre_exec::prepare(&mut command, Role::Guard, self.limits);
        let mut process = command.spawn()?;
        let orders = OwnedFd::from(process.stdin.take().expect("stdin is piped"));
        set_nonblocking(&orders)?;
        let trusted = write_all(&orders, format!("={}\n", self.mark.name()).as_bytes());
        Ok(Running { process, orders, trusted })
    }

    fn send(&mut self, orders: &str) {
        let Some(running) = &mut self.running else { return };
        // `check` collects the exit, and starts a new guard that gets all orders again.
        if running.trusted && !write_all(&running.orders, orders.as_bytes()) {
            running.trusted = false;
            let _ = running.process.kill();
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
    use super::*;

    #[test]
    fn the_guard_knows_the_groups_that_were_added_and_not_removed() {
        let known = |orders: &str| read_orders(orders.as_bytes()).0.into_iter().collect::<Vec<_>>();
        assert_eq!(known("+100\n+200\n-100\n+300\n-300\n+300\n"), [200, 300]);
        assert!(known("").is_empty());
    }

    #[test]
    fn the_guard_knows_the_mark_of_its_bus() {
        let known = read_orders(&b"=7-abc\n+100\n"[..]);
        assert_eq!(known, (BTreeSet::from([100]), Some("7-abc".to_owned())));
    }

    #[test]
    fn the_guard_never_kills_all_processes() {
        let known = read_orders(&b"+0\n+1\n+-1\n+-7\n+\n\n=\n+x\n400\n+99999999999\n\xff\n+1234"[..]);
        assert_eq!(known, (BTreeSet::new(), None));
    }
}
