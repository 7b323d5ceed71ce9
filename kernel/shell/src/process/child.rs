//! A child process that is known by its id alone, so that the program that takes the place of this one knows it too.
//!
//! `std::process::Child` cannot be made of an id. A process stays our child when this process becomes another program.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use kernel_core::Exit;

use crate::process::pre_exec::collect_exit;

/// Polling interval of a wait for an exit.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

pub(crate) struct ChildProcess {
    pid: Pid,
    /// How it has exited, once that was collected: from then on the number may belong to another process.
    collected: Option<Exit>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl From<Child> for ChildProcess {
    fn from(mut child: Child) -> ChildProcess {
        ChildProcess {
            stdin: child.stdin.take().map(OwnedFd::from),
            stdout: child.stdout.take().map(OwnedFd::from),
            stderr: child.stderr.take().map(OwnedFd::from),
            ..ChildProcess::with_id(child.id())
        }
    }
}

impl ChildProcess {
    /// A child of this process whose exit was not collected yet.
    pub(crate) fn with_id(pid: u32) -> ChildProcess {
        let pid = Pid::from_raw(pid as i32);
        ChildProcess { pid, collected: None, stdin: None, stdout: None, stderr: None }
    }

    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// The process group that it leads, if it was started to lead one.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Looks at the exit without collecting it, so that the number of the group stays reserved.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_exited(&mut self) -> bool {
        use nix::errno::Errno;
        use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while self.collected.is_none() {
            match waitid(Id::Pid(self.pid), flags) {
                Ok(WaitStatus::StillAlive) => return false,
                Err(Errno::EINTR) => {}
                // An error is an exit too: by a real-time signal, for which nix has no name.
                _ => return true,
            }
        }
        true
    }

    /// Other systems collect the exit at once. The number of the group stays reserved only while others are in the
    /// group, which is signalled within microseconds.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn has_exited(&mut self) -> bool {
        self.collect().is_some()
    }

    /// Collects the exit, if it has exited.
    pub(crate) fn collect(&mut self) -> Option<Exit> {
        if self.collected.is_none() {
            // What is no child of ours any more has exited too, and nobody knows how.
            self.collected = collect_exit(self.pid).map_or(Some(Exit::Code(-1)), |exit| exit.map(exit_of));
        }
        self.collected
    }

    pub(crate) fn kill(&self) {
        if self.collected.is_none() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }

    /// Waits for its exit, for no longer than this, and collects it. False: it still runs.
    pub(crate) fn wait(&mut self, most: Duration) -> bool {
        self.wait_until_exited(most) && self.collect().is_some()
    }

    /// The same, but the exit is still to be collected.
    pub(crate) fn wait_until_exited(&mut self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        while !self.has_exited() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(LOOK_AGAIN);
        }
        true
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_child_is_waited_for_by_its_id_and_its_exit_is_told_more_than_once() {
        let started = Command::new("sh").args(["-c", "exit 7"]).spawn().map(ChildProcess::from).unwrap();
        let mut child = ChildProcess::with_id(started.id());
        let deadline = Instant::now() + LONG;
        while !child.has_exited() {
            assert!(Instant::now() < deadline);
            thread::sleep(LOOK_AGAIN);
        }
        assert_eq!((child.collect(), child.collect()), (Some(Exit::Code(7)), Some(Exit::Code(7))));
        assert!(child.has_exited());
    }

    #[test]
    fn a_signal_is_told_also_one_that_has_no_name() {
        for signal in [9, 40] {
            let mut child = Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::piped())
                .spawn()
                .map(ChildProcess::from)
                .unwrap();
            assert!(child.stdin.is_some() && child.stdout.is_none() && !child.has_exited());
            let pid = child.id().to_string();
            assert!(Command::new("kill").args([format!("-{signal}"), pid]).status().unwrap().success());
            assert!(child.wait(LONG));
            assert_eq!(child.collect(), Some(Exit::Signal(signal)));
        }
    }

    #[test]
    fn what_is_no_child_has_exited() {
        let mut child = ChildProcess::with_id(std::process::id());
        assert!(child.has_exited());
        assert_eq!(child.collect(), Some(Exit::Code(-1)));
    }
}
