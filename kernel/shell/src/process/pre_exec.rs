//! What a new process does before it becomes a worker, so that it inherits nothing from the bus but its three pipes.
//!
//! The parent of the bus may have given it a signal mask, ignored signals and open fds, and the bus has a raised limit
//! of open files; std passes most of these on. A copy of the bus could do this between fork and exec, but to copy the
//! bus takes the longer, the more memory it has. So the bus starts this program again, which takes the same time
//! always, and that becomes the worker. The only unsafe code of the crate is here, also what a bus needs that goes on
//! in the place of another one: its fds, its children, the memory that it is left, and the variable that tells it so.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};

use memmap2::{Mmap, MmapOptions};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
#[cfg(target_os = "linux")]
use nix::sys::signal::Signal;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
#[cfg(target_os = "linux")]
use nix::unistd::getppid;
use nix::unistd::{Pid, setsid, write};
use serde::{Deserialize, Serialize};

use crate::errno::errno_of;

/// The argument with which this program does nothing but call [`start_program`].
pub const STARTER: &str = "internal-start";

/// How a process exits that could not become the program.
const CANNOT_RUN: u8 = 127;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A worker leads a process group of its own and dies with the bus.
    Worker,
    /// A companion of the bus leads a process group of its own, and is asked to end when the bus dies, because it has
    /// to tell others.
    Companion,
}

/// Soft and hard.
type Limit = Option<(rlim_t, rlim_t)>;

/// The limits that the bus inherited and has changed for itself. Workers get them back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InheritedLimits {
    open_files: Limit,
    core_bytes: Limit,
}

impl InheritedLimits {
    /// Sets the limits of the bus itself.
    pub(crate) fn replace() -> InheritedLimits {
        InheritedLimits { open_files: raise_open_files().ok().flatten(), core_bytes: forbid_core_dumps() }
    }

    fn restore(self) -> nix::Result<()> {
        if let Some((soft, hard)) = self.open_files {
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
        }
        if let Some((soft, hard)) = self.core_bytes {
            setrlimit(Resource::RLIMIT_CORE, soft, hard)?;
        }
        Ok(())
    }
}

/// Keeps client data out of core dumps, and the memory and environment of this process from other processes of the same
/// user. Programs that it starts are not affected.
pub fn keep_memory_private() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// This is the only way to forbid core dumps on systems without `set_dumpable`.
fn forbid_core_dumps() -> Option<(rlim_t, rlim_t)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_CORE).ok()?;
    setrlimit(Resource::RLIMIT_CORE, 0, hard).ok()?;
    Some((soft, hard))
}

/// How many fds this process may have now.
pub fn max_fds() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE)
        .map_or(usize::MAX, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Raises the soft limit of open files to the hard one. Returns what both were, unless it was there already. Programs
/// that this process starts need the old limit, because those that still use select(2) fail with fds above 1023.
pub fn raise_open_files() -> nix::Result<Option<(rlim_t, rlim_t)>> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // macOS says "unlimited" and then refuses more than OPEN_MAX.
    let most = if cfg!(target_os = "macos") { hard.min(10_240) } else { hard };
    if soft >= most {
        return Ok(None);
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, hard)?;
    Ok(Some((soft, hard)))
}

/// What a program is told that is to become another one. It travels as one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) role: Role,
    pub(crate) limits: InheritedLimits,
    /// The process that starts it.
    pub(crate) parent: i32,
    /// The fd that takes the number of the error if the program cannot be run.
    pub(crate) report: Option<RawFd>,
}

impl Orders {
    pub(crate) fn to_arg(self) -> String {
        let limit = |limit: Limit| limit.map_or("-".to_owned(), |(soft, hard)| format!("{soft}:{hard}"));
        let role = match self.role {
            Role::Worker => "worker",
            Role::Companion => "companion",
        };
        let report = self.report.map_or("-".to_owned(), |fd| fd.to_string());
        let InheritedLimits { open_files, core_bytes } = self.limits;
        format!("{role},{},{report},{},{}", self.parent, limit(open_files), limit(core_bytes))
    }

    fn from_arg(arg: &str) -> Option<Orders> {
        let [role, parent, report, open_files, core_bytes] =
            arg.split(',').collect::<Vec<_>>().try_into().ok()?;
        let limit = |text: &str| -> Option<Limit> {
            if text == "-" {
                return Some(None);
            }
            let (soft, hard) = text.split_once(':')?;
            Some(Some((soft.parse().ok()?, hard.parse().ok()?)))
        };
        Some(Orders {
            role: match role {
                "worker" => Role::Worker,
                "companion" => Role::Companion,
                _ => return None,
            },
            parent: parent.parse().ok()?,
            report: if report == "-" { None } else { Some(report.parse().ok()?) },
            limits: InheritedLimits { open_files: limit(open_files)?, core_bytes: limit(core_bytes)? },
        })
    }
}

/// Makes this process the program that it is told, and returns only if that fails. The arguments are what
/// [`STARTER`] was followed by: the orders, the name of the program, its file, and its own arguments.
pub fn start_program(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let orders = args.next().and_then(|orders| Orders::from_arg(orders.to_str()?));
    let (Some(orders), Some(name), Some(file)) = (orders, args.next(), args.next()) else {
        return ExitCode::from(CANNOT_RUN);
    };
    let error = match orders.obey() {
        Ok(()) => errno_of(Command::new(file).arg0(name).args(args).exec()),
        Err(errno) => errno,
    };
    if let Some(fd) = orders.report {
        report(fd, error);
    }
    ExitCode::from(CANNOT_RUN)
}

impl Orders {
    fn obey(self) -> nix::Result<()> {
        reset_signals();
        self.limits.restore()?;
        #[cfg(target_os = "linux")]
        signalled_with(
            Pid::from_raw(self.parent),
            match self.role {
                Role::Worker => Signal::SIGKILL,
                Role::Companion => Signal::SIGTERM,
            },
        )?;
        close_inherited_on_exec();
        Ok(())
    }
}

/// Tells whoever has started this process why it has not become the program.
#[allow(unsafe_code)]
fn report(fd: RawFd, errno: Errno) {
    // SAFETY: the fd was opened for this process and is used for nothing else. If it is not open, the write fails.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = write(fd, &(errno as i32).to_ne_bytes());
}

/// Makes the guard independent of the bus: it outlives the bus and its session, and holds no file of its parent.
pub(super) fn detach() {
    // It is refused to a process that leads a group, which then is independent enough.
    let _ = setsid();
    close_inherited();
}

/// The handlers are reset before the mask, so that a pending signal does not run a handler of the bus in the child.
#[allow(unsafe_code)]
fn reset_signals() {
    const LAST: libc::c_int = if cfg!(target_os = "linux") { 64 } else { 31 };
    for signal in 1..=LAST {
        // SAFETY: SIG_DFL is no code of ours. Numbers that cannot be reset are refused with EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    #[cfg(target_os = "linux")]
    reset_hidden_signals();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

/// Resets two signals that glibc reserves for its threads. glibc's posix_spawn leaves them ignored in a child, and a
/// bus started that way would pass this on to all its workers.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn reset_hidden_signals() {
    // The sigaction of the kernel is at most this large. Zeros are the default handler, no flags and an empty mask.
    let action = [0_u64; 8];
    for signal in [32, 33] {
        // SAFETY: a system call that reads `action`; without a handler there is no code to run.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), 0_usize, 8_usize) };
    }
}

/// The bus may have died before the kernel knew of this request, so the parent is checked afterwards.
#[cfg(target_os = "linux")]
fn signalled_with(parent: Pid, signal: Signal) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(signal)?;
    if getppid() == parent { Ok(()) } else { Err(nix::errno::Errno::ESRCH) }
}

#[cfg(target_os = "linux")]
fn close_inherited_on_exec() {
    if !close_range(libc::CLOSE_RANGE_CLOEXEC) {
        each_inherited(set_close_on_exec);
    }
}

#[cfg(not(target_os = "linux"))]
fn close_inherited_on_exec() {
    each_inherited(set_close_on_exec);
}

#[cfg(target_os = "linux")]
fn close_inherited() {
    if !close_range(0) {
        each_inherited(close);
    }
}

#[cfg(not(target_os = "linux"))]
fn close_inherited() {
    each_inherited(close);
}

/// False: the system does not know this.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn close_range(flags: libc::c_uint) -> bool {
    // The system call is made by its number, because an old libc has no function for it.
    // SAFETY: a system call on integers. Nothing of this process has an fd from 3 on yet, but the one that it reports
    // to, which is only closed on exec.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags) == 0 }
}

/// The fds of the bus are close-on-exec anyway; those that it inherited have low numbers.
fn each_inherited(act: impl Fn(RawFd)) {
    const MAX_FDS: rlim_t = 4096;
    let fds = getrlimit(Resource::RLIMIT_NOFILE).map_or(MAX_FDS, |(soft, _)| soft.min(MAX_FDS));
    (3..fds as RawFd).for_each(act);
}

fn close(fd: RawFd) {
    let _ = nix::unistd::close(fd);
}

#[allow(unsafe_code)]
fn set_close_on_exec(fd: RawFd) {
    // SAFETY: sets a flag of an fd number; EBADF where it is not open.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// The exit of a child, which is collected: `Some(None)` if it still runs. `None`: it is no child of ours. std can only
/// wait for children that this program has started itself.
#[allow(unsafe_code)]
pub(super) fn collect_exit(pid: Pid) -> Option<Option<ExitStatus>> {
    let mut status = 0;
    loop {
        // SAFETY: a system call that writes one integer.
        return match unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::WNOHANG) } {
            0 => Some(None),
            -1 if Errno::last() == Errno::EINTR => continue,
            -1 => None,
            _ => Some(Some(ExitStatus::from_raw(status))),
        };
    }
}

/// The fds that this program was given by the one that it has replaced. Each is taken once.
pub(crate) struct HandedFds(BTreeSet<RawFd>);

impl HandedFds {
    /// Nothing else of this process may have these fds: they were open when the program began, and were told to it by
    /// the one before it.
    pub(crate) fn new(fds: impl IntoIterator<Item = RawFd>) -> HandedFds {
        HandedFds(fds.into_iter().filter(|fd| *fd > 2).collect())
    }

    /// The fd, which programs that this one starts do not get.
    #[allow(unsafe_code)]
    pub(crate) fn take(&mut self, fd: RawFd) -> nix::Result<OwnedFd> {
        if !self.0.remove(&fd) {
            return Err(Errno::EBADF);
        }
        // SAFETY: the number is used for nothing but this call, which fails if it is not open.
        fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        // SAFETY: it is open, was handed over to this program, and is taken for the first time.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Closes those that this program has no use for.
    pub(crate) fn close_rest(mut self) {
        for fd in self.0.clone() {
            drop(self.take(fd));
        }
    }
}

/// The bytes of a file that is only in memory, where they are.
#[allow(unsafe_code)]
pub(crate) fn map(memory: &File) -> io::Result<Mmap> {
    // SAFETY: the file has no name, so only this bus and the program that it asks have it. The bus seals it before the
    // next program maps it for good; the program that is asked reads it only while the bus waits for its answer.
    unsafe { MmapOptions::new().map_copy_read_only(memory) }
}

/// Takes a variable out of the environment. Call it while the program has no other thread.
#[allow(unsafe_code)]
pub(crate) fn take_variable(name: &str) -> Option<OsString> {
    let value = env::var_os(name)?;
    // SAFETY: there is no other thread that could read the environment meanwhile.
    unsafe { env::remove_var(name) };
    Some(value)
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn a_handed_fd_is_taken_once_and_is_closed_on_exec() {
        let fd = File::open("/dev/null").unwrap().into_raw_fd();
        let mut handed = HandedFds::new([0, fd]);
        assert_eq!(handed.take(0).err(), Some(Errno::EBADF));
        let taken = handed.take(fd).unwrap();
        let flags = fcntl(&taken, FcntlArg::F_GETFD).map(FdFlag::from_bits_retain).unwrap();
        assert_eq!(flags, FdFlag::FD_CLOEXEC);
        assert_eq!(handed.take(fd).err(), Some(Errno::EBADF));
        let (mut reader, writer) = std::io::pipe().unwrap();
        HandedFds::new([OwnedFd::from(writer).into_raw_fd()]).close_rest();
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0, "the other end is closed");
    }

    #[test]
    fn orders_arrive_as_they_were_given() {
        let limits = InheritedLimits { open_files: Some((1024, 4096)), core_bytes: Some((0, rlim_t::MAX)) };
        for orders in [
            Orders { role: Role::Worker, limits, parent: 7, report: Some(9) },
            Orders { role: Role::Companion, limits: InheritedLimits::default(), parent: 1, report: None },
        ] {
            assert_eq!(Orders::from_arg(&orders.to_arg()), Some(orders));
        }
        for arg in ["", "worker", "guard,1,-,-,-", "worker,x,-,-,-", "worker,1,-,1,-", "worker,1,-,-,-,-"] {
            assert_eq!(Orders::from_arg(arg), None, "{arg}");
        }
    }
}
