//! The guard: a small process that outlives the bus just long enough to kill what the bus has left behind.
//!
//! It learns each worker's process group over its stdin, which nobody but the bus can write to. When that ends,
//! for whatever reason, it kills every group it still knows, and whoever else is of the bus's family. Both ends of
//! that pipe are here.

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

use crate::peer_io::set_nonblocking;
use crate::process::env_mark::{self, Family};
use crate::process::pre_exec::{self, FoundLimits, Role};

/// A guard that ends at once is not started again at once.
const STARTS_APART: Duration = Duration::from_secs(1);
/// How long the bus waits for its guard when it leaves. It has nothing left to kill then.
const FAREWELL: Duration = Duration::from_secs(1);

/// The body of the guard process: returns when the bus has gone and its groups are killed.
///
/// Reads `=FAMILY`, `+GROUP` and `-GROUP` lines. Nothing but the end of stdin, or SIGKILL, ends it.
pub fn guard() -> ExitCode {
    // Blocked, not ignored: that needs no unsafe code, and in one thread comes to the same.
    let _ = SigSet::all().thread_block();
    let (known, family) = known_at_the_end_of(io::stdin().lock());
    let own = getpgrp();
    for group in known.into_iter().map(Pid::from_raw).filter(|group| *group != own) {
        let _ = killpg(group, Signal::SIGKILL);
    }
    // Last, because it takes a while to find them.
    if let Some(family) = family {
        env_mark::end(&family);
    }
    ExitCode::SUCCESS
}

fn known_at_the_end_of(mut orders: impl BufRead) -> (BTreeSet<i32>, Option<String>) {
    let (mut groups, mut family) = (BTreeSet::new(), None);
    let mut line = Vec::new();
    while orders.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let (order, group) = match line.as_slice() {
            [b'=', name @ .., b'\n'] if !name.is_empty() => {
                family = String::from_utf8(name.to_vec()).ok();
                (0, None)
            }
            [order, group @ .., b'\n'] => {
                (*order, str::from_utf8(group).ok().and_then(|text| text.parse().ok()))
            }
            // A line without an end may be half a number: the bus died while it wrote.
            _ => (0, None),
        };
        match (order, group) {
            // 0 would be our own group, and 1 everything there is.
            (b'+', Some(group)) if group > 1_i32 => groups.insert(group),
            (b'-', Some(group)) => groups.remove(&group),
            _ => false,
        };
        line.clear();
    }
    (groups, family)
}

/// The bus's side: the guard that runs now, and what it has to know.
pub(crate) struct Guard {
    binary: PathBuf,
    args: Vec<OsString>,
    limits: FoundLimits,
    running: Option<Running>,
    groups: BTreeSet<i32>,
    family: Family,
    started: Moment,
    /// When a new guard is to be started. `running` is None then.
    again: Option<Moment>,
}

struct Running {
    process: Child,
    orders: OwnedFd,
    /// False: it did not take an order and has been killed. Its pipe stays open until its exit is collected,
    /// because a guard that still lives takes the end of the pipe for the end of the bus.
    trusted: bool,
}

impl Guard {
    pub(crate) fn start(
        binary: PathBuf,
        args: Vec<OsString>,
        limits: FoundLimits,
        now: Moment,
    ) -> io::Result<Guard> {
        let (groups, family) = (BTreeSet::new(), Family::new()?);
        let mut guard =
            Guard { binary, args, limits, running: None, groups, family, started: now, again: None };
        guard.running = Some(guard.launch()?);
        Ok(guard)
    }

    /// A variable that every worker is started with.
    pub(crate) fn mark(&self) -> (&'static str, String) {
        self.family.mark()
    }

    /// A worker runs. Until this is written only its tie to the bus's thread protects it, which is enough:
    /// it has had no time for children.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.groups.insert(group.as_raw());
        self.tell(&format!("+{group}\n"));
    }

    /// The group has been killed. Said *before* its leader is reaped: until then the kernel gives the number to
    /// nobody else, so the guard never knows the number of a stranger.
    pub(crate) fn forget(&mut self, group: Pid) {
        self.groups.remove(&group.as_raw());
        self.tell(&format!("-{group}\n"));
    }

    /// Some child has exited: if it was the guard, there will be a new one.
    pub(crate) fn check(&mut self, now: Moment) {
        let Some(running) = &mut self.running else { return };
        if matches!(running.process.try_wait(), Ok(None)) {
            return;
        }
        warn!("the guard of the workers has ended, a new one takes its place");
        self.running = None;
        self.again = Some(now.max(self.started + STARTS_APART));
        self.retry(now);
    }

    /// When `retry` has something to do.
    pub(crate) fn next_retry(&self) -> Option<Moment> {
        self.again
    }

    pub(crate) fn retry(&mut self, now: Moment) {
        if self.again.is_none_or(|again| again > now) {
            return;
        }
        self.started = now;
        match self.launch() {
            Ok(running) => {
                self.again = None;
                self.running = Some(running);
                let all = self.groups.iter().map(|group| format!("+{group}\n")).collect::<String>();
                self.tell(&all);
                info!("a new guard knows all {} groups", self.groups.len());
            }
            Err(fault) => {
                self.again = Some(now + STARTS_APART);
                error!("cannot start the guard of the workers: {fault}");
            }
        }
    }

    /// The bus leaves: so does the guard, and its exit is collected.
    pub(crate) fn dismiss(self) {
        let Some(Running { mut process, orders, .. }) = self.running else { return };
        drop(orders);
        let patience = Instant::now() + FAREWELL;
        while matches!(process.try_wait(), Ok(None)) {
            if Instant::now() > patience {
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
        let trusted = write_whole(&orders, format!("={}\n", self.family.name()).as_bytes());
        Ok(Running { process, orders, trusted })
    }

    fn tell(&mut self, orders: &str) {
        let Some(running) = self.running.as_mut().filter(|running| running.trusted) else { return };
        // Its exit is collected by `check`, which then starts another that is told everything.
        if !write_whole(&running.orders, orders.as_bytes()) {
            running.trusted = false;
            let _ = running.process.kill();
        }
    }
}

/// A guard that does not empty its pipe is stuck: orders are short, and it has nothing else to do.
fn write_whole(orders: &OwnedFd, mut bytes: &[u8]) -> bool {
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
    fn the_guard_knows_the_groups_that_came_and_did_not_go() {
        let known = |orders: &str| known_at_the_end_of(orders.as_bytes()).0.into_iter().collect::<Vec<_>>();
        assert_eq!(known("+100\n+200\n-100\n+300\n-300\n+300\n"), [200, 300]);
        assert!(known("").is_empty());
    }

    #[test]
    fn the_guard_knows_whose_it_is() {
        let known = known_at_the_end_of(&b"=7-abc\n+100\n"[..]);
        assert_eq!(known, (BTreeSet::from([100]), Some("7-abc".to_owned())));
    }

    #[test]
    fn the_guard_never_aims_at_everybody() {
        let known = known_at_the_end_of(&b"+0\n+1\n+-1\n+-7\n+\n\n=\n+x\n400\n+99999999999\n\xff\n+1234"[..]);
        assert_eq!(known, (BTreeSet::new(), None));
    }
}
