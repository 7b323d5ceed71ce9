//! Starts processes at a cost that does not depend on how much memory the bus has.
//!
//! std starts a program without a copy of this process (posix_spawn) if nothing is to be done in the copy. So the bus
//! starts its own program, which does what is to be done and then becomes the one that is wanted. It is known by the
//! end of a pipe that it has, and by a number in the pipe that it could not.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::read;

use crate::peer::set_nonblocking;
use crate::process::pre_exec::{InheritedLimits, Orders, Role, STARTER};

/// A program as it is to be started.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) file: PathBuf,
    /// What it is told that it is called.
    pub(crate) name: OsString,
    pub(crate) args: Vec<OsString>,
    /// All of its environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: Option<PathBuf>,
}

pub(crate) struct Starter {
    binary: PathBuf,
    limits: InheritedLimits,
}

/// A process that is about to become its program.
pub(crate) struct Starting(OwnedFd);

impl Starter {
    pub(crate) fn new(this_binary: &Path, limits: InheritedLimits) -> Starter {
        Starter { binary: running_file(this_binary), limits }
    }

    pub(crate) fn limits(&self) -> InheritedLimits {
        self.limits
    }

    /// The command that starts this. Its stdin, stdout and stderr are still to be set.
    pub(crate) fn command(&self, launch: &Launch, role: Role) -> Command {
        self.reporting(launch, role, None)
    }

    /// Starts a process that reports whether it has become its program.
    pub(crate) fn start(
        &self,
        launch: &Launch,
        role: Role,
        set_stdio: impl FnOnce(&mut Command),
    ) -> io::Result<(Child, Starting)> {
        let (heard, told) = io::pipe()?;
        let (heard, told) = (OwnedFd::from(heard), OwnedFd::from(told));
        // It is passed on to this process alone: no other thread starts any.
        fcntl(&told, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = self.reporting(launch, role, Some(&told));
        set_stdio(&mut command);
        let child = command.spawn()?;
        Ok((child, Starting(heard)))
    }

    fn reporting(&self, launch: &Launch, role: Role, report: Option<&OwnedFd>) -> Command {
        let orders = Orders {
            role,
            limits: self.limits,
            parent: process::id() as i32,
            report: report.map(AsRawFd::as_raw_fd),
        };
        let mut command = Command::new(&self.binary);
        command.arg(STARTER).arg(orders.to_arg()).arg(&launch.name).arg(&launch.file).args(&launch.args);
        command.env_clear().envs(launch.env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = &launch.cwd {
            command.current_dir(cwd);
        }
        command.process_group(0);
        command
    }
}

/// The file of the running program, also if another one, or none, is at its path by now.
pub(crate) fn running_file(this_binary: &Path) -> PathBuf {
    let running = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() { running.to_owned() } else { this_binary.to_owned() }
}

impl From<OwnedFd> for Starting {
    fn from(heard: OwnedFd) -> Starting {
        Starting(heard)
    }
}

impl Starting {
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    pub(crate) fn set_nonblocking(&self) -> nix::Result<()> {
        set_nonblocking(&self.0).map(drop)
    }

    /// Whether it has become its program. `None`: that is not decided yet.
    pub(crate) fn outcome(&self) -> Option<Result<(), Errno>> {
        let mut number = [0; 4];
        loop {
            return match read(&self.0, &mut number) {
                // The end of the pipe: the exec has closed it, or the process was killed, which its exit will tell.
                Ok(0) => Some(Ok(())),
                Ok(_) => Some(Err(Errno::from_raw(i32::from_ne_bytes(number)))),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => None,
                Err(errno) => Some(Err(errno)),
            };
        }
    }

    /// Waits until it has become its program.
    pub(crate) fn wait(self, child: &mut Child) -> io::Result<()> {
        let outcome = self.outcome().unwrap_or(Ok(()));
        outcome.map_err(|errno| {
            let _ = child.wait();
            errno.into()
        })
    }
}
