//! What a child does between fork and exec, so that it starts with nothing of ours but its three pipes.
//!
//! A launcher may have given us a signal mask, ignored signals and open fds, and the loop has handlers and a
//! raised limit of open files; std passes the most of these on. The only unsafe code of the crate is here.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::setsid;
#[cfg(target_os = "linux")]
use nix::unistd::{Pid, getpid, getppid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Leads a process group of its own and dies with the bus.
    Worker,
    /// Leads a session of its own and outlives the bus.
    Guard,
}

/// Limits as the bus found them, soft and hard, where it has others for itself. Workers have these.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoundLimits {
    open_files: Option<(rlim_t, rlim_t)>,
    core_bytes: Option<(rlim_t, rlim_t)>,
}

impl FoundLimits {
    /// Sets those that the bus is to have itself.
    pub(crate) fn replace() -> FoundLimits {
        FoundLimits { open_files: raise_open_files(), core_bytes: forbid_core_dumps() }
    }

    fn restore(self) -> nix::Result<()> {
        for (limit, found) in
            [(Resource::RLIMIT_NOFILE, self.open_files), (Resource::RLIMIT_CORE, self.core_bytes)]
        {
            if let Some((soft, hard)) = found {
                setrlimit(limit, soft, hard)?;
            }
        }
        Ok(())
    }
}

/// What clients say is nobody else's: no core dump of this process, and no other process of the same user can read its
/// memory or its environment. A program that it starts is not concerned.
pub fn keep_memory_private() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// Where the system has no other way to forbid them.
fn forbid_core_dumps() -> Option<(rlim_t, rlim_t)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_CORE).ok()?;
    setrlimit(Resource::RLIMIT_CORE, 0, hard).ok()?;
    Some((soft, hard))
}

/// How many fds the bus may have, as it is now.
pub(crate) fn fds_at_most() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE)
        .map_or(usize::MAX, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// As many as the bus may open. Programs that still use select(2) fail with fds above 1023.
fn raise_open_files() -> Option<(rlim_t, rlim_t)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // macOS says "unlimited" and then refuses more than OPEN_MAX.
    let most = if cfg!(target_os = "macos") { hard.min(10_240) } else { hard };
    if soft >= most {
        return None;
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, hard).ok()?;
    Some((soft, hard))
}

#[allow(unsafe_code)]
pub(crate) fn prepare(command: &mut Command, role: Role, limits: FoundLimits) {
    #[cfg(target_os = "linux")]
    let parent = getpid();
    if role == Role::Worker {
        command.process_group(0);
    }
    let settle = move || {
        reset_signals();
        limits.restore()?;
        if role == Role::Guard {
            setsid()?;
        }
        #[cfg(target_os = "linux")]
        if role == Role::Worker {
            die_with(parent)?;
        }
        close_inherited_on_exec();
        Ok(())
    };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed. It makes
    // system calls on values it has copied; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(settle) };
}

/// Dispositions first: with the mask open, a pending signal would run a handler of the bus in the child.
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

/// Two that glibc keeps for its threads and does not let be reset. Its own posix_spawn gives them to a child as
/// ignored, so that a bus started by one would hand that on for ever.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn reset_hidden_signals() {
    // The kernel's idea of a sigaction, at most this large: the default handler, no flags, an empty mask.
    let action = [0_u64; 8];
    for signal in [32, 33] {
        // SAFETY: a system call that reads `action`; without a handler there is no code to run.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), 0_usize, 8_usize) };
    }
}

/// The bus may have died before the wish was known to the kernel, so the parent is looked at again.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    match getppid() == parent {
        true => Ok(()),
        false => Err(nix::errno::Errno::ESRCH),
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn close_inherited_on_exec() {
    // By number, because a libc older than the kernel has no such function.
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

/// Our own fds are close-on-exec anyway; those of a launcher have low numbers.
#[allow(unsafe_code)]
fn close_each_on_exec() {
    const FDS_AT_MOST: rlim_t = 4096;
    let fds = getrlimit(Resource::RLIMIT_NOFILE).map_or(FDS_AT_MOST, |(soft, _)| soft.min(FDS_AT_MOST));
    for fd in 3..fds as libc::c_int {
        // SAFETY: sets a flag of an fd number; EBADF where it is not open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
