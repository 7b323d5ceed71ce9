//! Runs in a child between fork and exec, so that it inherits nothing from the bus but its three pipes.
//!
//! The parent of the bus may have given it a signal mask, ignored signals and open fds, and the bus has signal handlers
//! and a raised limit of open files; std passes most of these on. The only unsafe code of the crate is here.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
#[cfg(target_os = "linux")]
use nix::sys::signal::Signal;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::setsid;
#[cfg(target_os = "linux")]
use nix::unistd::{Pid, getpid, getppid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A worker leads a process group of its own and dies with the bus.
    Worker,
    /// A companion of the bus leads a process group of its own, and is asked to end when the bus dies, because it has
    /// to tell others.
    Companion,
    /// The guard leads a session of its own and outlives the bus.
    Guard,
}

/// The limits, soft and hard, that the bus inherited and has changed for itself. Workers get them back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InheritedLimits {
    open_files: Option<(rlim_t, rlim_t)>,
    core_bytes: Option<(rlim_t, rlim_t)>,
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

#[allow(unsafe_code)]
pub(crate) fn prepare(command: &mut Command, role: Role, limits: InheritedLimits) {
    #[cfg(target_os = "linux")]
    let parent = getpid();
    if role != Role::Guard {
        command.process_group(0);
    }
    let in_child = move || {
        reset_signals();
        limits.restore()?;
        if role == Role::Guard {
            setsid()?;
        }
        #[cfg(target_os = "linux")]
        match role {
            Role::Worker => signalled_with(parent, Signal::SIGKILL)?,
            Role::Companion => signalled_with(parent, Signal::SIGTERM)?,
            Role::Guard => {}
        }
        close_inherited_on_exec();
        Ok(())
    };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed. It makes
    // system calls on values it has copied; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(in_child) };
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
#[allow(unsafe_code)]
fn close_inherited_on_exec() {
    // The system call is made by its number, because an old libc has no function for it.
    // SAFETY: a system call on integers. It closes nothing now, so the pipe by which std learns of a failed exec
    // goes on working.
    let refused =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if refused != 0 {
        close_each_on_exec();
    }
}

#[cfg(not(target_os = "linux"))]
fn close_inherited_on_exec() {
    close_each_on_exec();
}

/// The fds of the bus are close-on-exec anyway; those that it inherited have low numbers.
#[allow(unsafe_code)]
fn close_each_on_exec() {
    const MAX_FDS: rlim_t = 4096;
    let fds = getrlimit(Resource::RLIMIT_NOFILE).map_or(MAX_FDS, |(soft, _)| soft.min(MAX_FDS));
    for fd in 3..fds as libc::c_int {
        // SAFETY: sets a flag of an fd number; EBADF where it is not open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
