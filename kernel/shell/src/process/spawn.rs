//! The processes of workers: started, listened to, signalled, and buried.
//!
//! A process is in `processes` from its start until its exit is collected, and only in between is its group
//! signalled: the number belongs to somebody else afterwards. It may outlive its link, when the core has given
//! it up, and its link may outlive it, when another process still holds its stdout.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, log_enabled, warn};
use nix::errno::Errno;
use nix::sys::signal::{self, killpg};
use nix::unistd::{Pid, read};

use kernel_core::id::{Link, WorkerId};
use kernel_core::{Event, Exit, Signal, SpawnFault};

use crate::event_loop::Shell;
use crate::peer_io::{Kind, Mutter, Peer, Task, set_nonblocking};
use crate::process::command::{command, errno_of};
use crate::process::pre_exec::{self, Role};

/// What a process that has exited may have left in a pipe: Linux lets it make the pipe this large.
const PIPE_BYTES_AT_MOST: usize = 1 << 20;
/// How much of a line of stderr is logged.
const LOGGED_BYTES: usize = 1024;
/// How long the bus waits for processes that it has killed, when it leaves.
const LAST_EXITS: Duration = Duration::from_secs(1);

pub(crate) struct Process {
    worker: WorkerId,
    link: Link,
    child: Child,
    /// Its process group, which it leads.
    group: Pid,
    standing: Standing,
}

/// What the core knows of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has an open link.
    Open,
    /// The core has closed its link before it exited.
    GivenUp,
    /// It could not be connected to the loop, so to the core it was never started.
    Unknown,
}

impl Process {
    /// The exit is looked at but not collected, so that the number of the group stays taken.
    #[cfg(target_os = "linux")]
    fn has_exited(&mut self) -> bool {
        use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            match waitid(Id::Pid(self.group), flags) {
                Ok(WaitStatus::StillAlive) => return false,
                Err(Errno::EINTR) => {}
                // An error is an exit too: by a real-time signal, which nix has no name for.
                _ => return true,
            }
        }
    }

    /// Here the exit is collected at once. The number of the group stays taken only while others are in it,
    /// and is signalled within microseconds.
    #[cfg(not(target_os = "linux"))]
    fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn exit(&mut self) -> Exit {
        let Ok(Some(status)) = self.child.try_wait() else { return Exit::Code(-1) };
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(0)),
        }
    }
}

impl Shell {
    pub(crate) fn spawn(&mut self, worker: WorkerId, link: Link) {
        let event = match self.start(worker, link) {
            Ok(pid) => Event::Spawned { worker, pid },
            Err(fault) => Event::SpawnFailed { worker, fault },
        };
        self.bus.handle(event, self.now);
    }

    fn start(&mut self, worker: WorkerId, link: Link) -> Result<u32, SpawnFault> {
        let fault = |errno: Errno| SpawnFault { errno: errno as i32, cwd: false };
        let pool = self.bus.command(worker).ok_or(fault(Errno::ESRCH))?;
        let mut command = command(pool, &self.this_binary)?;
        let (name, value) = self.guard.mark();
        command.env(name, value);
        pre_exec::prepare(&mut command, Role::Worker, self.limits);
        let mut child = command.spawn().map_err(|refused| fault(errno_of(refused)))?;
        let pid = child.id();
        let group = Pid::from_raw(pid as i32);
        debug!("pool {}: process {pid} started", pool.id);
        self.guard.watch(group);
        prefer_to_bus(pid);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.processes.push(Process { worker, link, child, group, standing: Standing::Unknown });
        let (Some(input), Some(output), Some(mutter)) = pipes else { unreachable!("all three are piped") };
        match self.attach(worker, link, pid, output.into(), input.into(), mutter.into()) {
            Ok(peer) => self.add(peer),
            Err(errno) => {
                let _ = killpg(group, signal::Signal::SIGKILL);
                return Err(fault(errno));
            }
        }
        if let Some(process) = self.processes.last_mut() {
            process.standing = Standing::Open;
        }
        Ok(pid)
    }

    fn attach(
        &self,
        worker: WorkerId,
        link: Link,
        pid: u32,
        input: OwnedFd,
        output: OwnedFd,
        mutter: OwnedFd,
    ) -> nix::Result<Peer> {
        for fd in [&input, &output, &mutter] {
            set_nonblocking(fd)?;
        }
        let mut peer = Peer::pipes(link, Kind::Worker(worker), input, output);
        peer.mutter = Some(Box::new(Mutter::new(mutter, pid)));
        peer.register(self.poll.registry()).map_err(errno_of)?;
        Ok(peer)
    }

    /// To the whole group, if the process has not been collected yet.
    pub(crate) fn signal(&mut self, worker: WorkerId, signal: Signal) {
        self.cancel_spawns(|queued, _| queued == worker);
        let Some(process) = self.processes.iter().rev().find(|process| process.worker == worker) else {
            return;
        };
        let group = process.group;
        let sent = match signal {
            Signal::Kill => killpg(group, signal::Signal::SIGKILL),
            // A stopped process hears SIGTERM only once it goes on.
            Signal::Term => {
                killpg(group, signal::Signal::SIGTERM).and_then(|()| killpg(group, signal::Signal::SIGCONT))
            }
        };
        // ESRCH: it is gone. EPERM: macOS says this of a group with nobody but the dead in it.
        if let Err(errno) = sent
            && errno != Errno::ESRCH
            && errno != Errno::EPERM
        {
            warn!("cannot signal process group {group}: {}", errno.desc());
        }
    }

    /// The core has closed this link: its process, if it still runs, is only waited for.
    pub(crate) fn give_up_process(&mut self, link: Link) {
        self.cancel_spawns(|_, queued| queued == link);
        let open = |process: &&mut Process| process.link == link && process.standing == Standing::Open;
        if let Some(process) = self.processes.iter_mut().find(open) {
            process.standing = Standing::GivenUp;
        }
    }

    /// The core wants this worker to end: one that has not been started need not be.
    pub(crate) fn close_stdin(&mut self, link: Link) {
        self.cancel_spawns(|_, queued| queued == link);
        if let Some(peer) = self.links.get_mut(link) {
            peer.close_output(self.poll.registry());
        }
    }

    /// Every start is answered, also one that is no longer wanted.
    fn cancel_spawns(&mut self, is_unwanted: impl Fn(WorkerId, Link) -> bool) {
        let fault = SpawnFault { errno: Errno::ECANCELED as i32, cwd: false };
        for _ in 0..self.spawns.len() {
            let Some((worker, link)) = self.spawns.pop_front() else { return };
            match is_unwanted(worker, link) {
                true => self.bus.handle(Event::SpawnFailed { worker, fault }, self.now),
                false => self.spawns.push_back((worker, link)),
            }
        }
    }

    /// Looks at every process: several exits may have come as one signal.
    pub(crate) fn reap(&mut self) {
        let mut at = 0;
        while at < self.processes.len() {
            match self.processes[at].has_exited() {
                true => self.bury(at),
                false => at += 1,
            }
        }
    }

    /// What it said last is heard, what is left of its group is killed, and only then is it collected.
    fn bury(&mut self, at: usize) {
        let Process { worker, link, group, standing, .. } = self.processes[at];
        if standing == Standing::Open {
            self.drain(link);
        }
        let _ = killpg(group, signal::Signal::SIGKILL);
        self.guard.forget(group);
        let exit = self.processes.remove(at).exit();
        // A process that was given up says nothing about the one that has taken its place.
        let is_replaced = self.processes.iter().any(|process| process.worker == worker)
            || self.spawns.iter().any(|(queued, _)| *queued == worker);
        if standing == Standing::Open || (standing == Standing::GivenUp && !is_replaced) {
            self.bus.handle(Event::Exited { worker, exit }, self.now);
        }
    }

    /// Reads what an exited process has left, whether or not the core wants to read.
    fn drain(&mut self, link: Link) {
        let Some(peer) = self.links.get_mut(link) else { return };
        let mut left = PIPE_BYTES_AT_MOST;
        while left > 0 && !peer.ended {
            match read(peer.input(), &mut self.scratch) {
                // Not told: the exit says more.
                Ok(0) => peer.ended = true,
                Ok(count) => {
                    left = left.saturating_sub(count);
                    self.bus.received(link, &self.scratch[..count], self.now);
                }
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        for _ in 0..PIPE_BYTES_AT_MOST / self.scratch.len() {
            if !self.hear_mutter(link) {
                break;
            }
        }
        if let Some(peer) = self.links.get_mut(link) {
            peer.can_read &= !peer.ended;
            peer.close_mutter(self.poll.registry());
        }
    }

    pub(crate) fn read_mutter(&mut self, link: Link) {
        if let Some(mutter) = self.links.get_mut(link).and_then(|peer| peer.mutter.as_mut()) {
            mutter.queued = false;
        }
        if self.hear_mutter(link)
            && let Some(mutter) = self.links.get_mut(link).and_then(|peer| peer.mutter.as_mut())
        {
            self.queue.push(Task::Mutter(link), &mut mutter.queued);
        }
    }

    /// One read of stderr. True: there may be more.
    fn hear_mutter(&mut self, link: Link) -> bool {
        let Some(peer) = self.links.get_mut(link) else { return false };
        let (Kind::Worker(worker), Some(mutter)) = (peer.kind, peer.mutter.as_mut()) else { return false };
        match read(mutter.fd.as_fd(), &mut self.scratch) {
            Ok(0) => {
                peer.close_mutter(self.poll.registry());
                false
            }
            Ok(count) => {
                let heard = &self.scratch[..count];
                self.bus.stderr_received(worker, heard);
                if log_enabled!(target: "worker", log::Level::Debug) {
                    let pool = self.bus.command(worker).map_or("?", |pool| &pool.id);
                    let pid = mutter.pid;
                    split_lines(&mut mutter.line, heard, |line| {
                        debug!(target: "worker", "{pool}[{pid}]: {}", String::from_utf8_lossy(line));
                    });
                }
                mutter.hung_up || count == self.scratch.len()
            }
            Err(Errno::EINTR) => true,
            Err(_) => false,
        }
    }

    /// The bus leaves. Nothing should be left by now; where something is, it is not left running.
    pub(crate) fn end_processes(&mut self) {
        for process in &self.processes {
            let _ = killpg(process.group, signal::Signal::SIGKILL);
        }
        let patience = Instant::now() + LAST_EXITS;
        while !self.processes.is_empty() && Instant::now() < patience {
            self.reap();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Where memory runs out, the system is to end an agent and not the bus, with which all of them would go. Not
/// in the child: one that may not dump core may not write to its own file there.
#[cfg(target_os = "linux")]
fn prefer_to_bus(pid: u32) {
    use std::fs;

    const ABOVE_US: i32 = 100;
    const HIGHEST: i32 = 1000;
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    let score = (own.unwrap_or(0) + ABOVE_US).min(HIGHEST);
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string());
}

#[cfg(not(target_os = "linux"))]
fn prefer_to_bus(_pid: u32) {}

/// Calls `each` with every line that ends in `heard`, cut where it is too long, and keeps the start of the next.
fn split_lines(line: &mut Vec<u8>, heard: &[u8], mut each: impl FnMut(&[u8])) {
    for part in heard.split_inclusive(|byte| *byte == b'\n') {
        let text = part.strip_suffix(b"\n").unwrap_or(part);
        let room = LOGGED_BYTES.saturating_sub(line.len()).min(text.len());
        line.extend_from_slice(&text[..room]);
        if part.len() > text.len() {
            each(line.strip_suffix(b"\r").unwrap_or(line));
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(chunks: &[&str]) -> (Vec<String>, Vec<u8>) {
        let (mut line, mut lines) = (Vec::new(), Vec::new());
        for chunk in chunks {
            split_lines(&mut line, chunk.as_bytes(), |text| {
                lines.push(String::from_utf8_lossy(text).into_owned());
            });
        }
        (lines, line)
    }

    #[test]
    fn lines_of_stderr_are_whole_in_any_chunking() {
        let text = "one\ntwo\r\n\nthree\nfour";
        for at in 0..text.len() {
            let (lines, rest) = lines_of(&[&text[..at], &text[at..]]);
            assert_eq!(lines, ["one", "two", "", "three"]);
            assert_eq!(rest, b"four");
        }
    }

    #[test]
    fn a_long_line_of_stderr_is_cut_and_the_next_is_whole() {
        let long = "x".repeat(3 * LOGGED_BYTES);
        let (lines, rest) = lines_of(&[&long, &long, "\nshort\n", &long]);
        assert_eq!(lines, [&long[..LOGGED_BYTES], "short"]);
        assert_eq!(rest.len(), LOGGED_BYTES);
    }
}
