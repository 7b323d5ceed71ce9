//! The processes that `run` starts. None of them outlives it.
//!
//! Each one leads its own process group, so that Ctrl-C in the terminal reaches only `run`, which then
//! decides. A guard process knows the groups and kills them if `run` itself is killed. Tools of an agent may
//! leave its group; on Linux `run` inherits them when the agent is gone, and kills them too.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kernel_shell::{GUARD_NAME, guard_environment};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rpc::text::strip_control;

/// How much of the end of stderr is kept.
const STDERR_TAIL_BYTES: usize = 4 << 10;
/// How many lines of it are told.
const STDERR_TAIL_LINES: usize = 20;
/// The interval for polling what the system does not report.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A guard process that kills the groups it knows when `run` is gone, for whatever reason.
#[derive(Clone)]
pub(super) struct Guard(Arc<Mutex<Child>>);

impl Guard {
    /// `stdio-bus guard` reads `+GROUP` and `-GROUP` lines and kills at the end of its input.
    pub(super) fn start(this_binary: &Path) -> io::Result<Guard> {
        let mut command = Command::new(this_binary);
        command.arg0(GUARD_NAME).arg("internal-guard").process_group(0);
        command.env_clear().envs(guard_environment());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Guard(Arc::new(Mutex::new(command.spawn()?))))
    }

    pub(super) fn watch(&self, group: u32) {
        self.send('+', group);
    }

    pub(super) fn forget(&self, group: u32) {
        self.send('-', group);
    }

    /// Ends the guard once there is nothing left to kill.
    pub(super) fn end(&self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let _ = child.wait();
    }

    /// A guard that has died is no reason to stop.
    fn send(&self, order: char, group: u32) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stdin) = &mut child.stdin {
            let _ = stdin.write_all(format!("{order}{group}\n").as_bytes());
        }
    }
}

/// How an agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCommand {
    /// The name that the user gave.
    pub name: String,
    pub program: String,
    pub args: Vec<String>,
    /// The known agent that was probably meant, if there is no such program.
    pub similar: Option<String>,
    /// How a user logs in, if that is known.
    pub log_in: Option<String>,
}

impl AgentCommand {
    /// An agent without a name of its own.
    pub fn new(program: String, args: Vec<String>) -> AgentCommand {
        AgentCommand { name: program.clone(), program, args, similar: None, log_in: None }
    }
}

/// As a program, this name stands for the running binary.
pub const THIS_BINARY: &str = "stdio-bus";

pub(super) struct AgentProcess {
    child: Child,
    guard: Guard,
    stderr_tail: Arc<Mutex<VecDeque<u8>>>,
    /// Disconnects at the end of stderr. Children of the agent may hold stderr open longer than the agent runs.
    stderr_closed: Receiver<()>,
    exited: Option<ExitStatus>,
}

impl AgentProcess {
    /// Starts the agent in the unchanged environment of the user. Keeps its stderr back unless `show_stderr`.
    pub(super) fn start(
        agent: &AgentCommand,
        this_binary: &Path,
        cwd: &Path,
        show_stderr: bool,
        guard: &Guard,
    ) -> io::Result<(AgentProcess, ChildStdin, ChildStdout)> {
        adopt_orphans();
        let program =
            if agent.program == THIS_BINARY { this_binary.as_os_str() } else { OsStr::new(&agent.program) };
        let program = resolve_program(program, cwd)?;
        let mut command = Command::new(program);
        command.args(&agent.args).current_dir(cwd).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(if show_stderr { Stdio::inherit() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        guard.watch(child.id());
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        let stderr_tail = Arc::<Mutex<VecDeque<u8>>>::default();
        let (closed_tx, stderr_closed) = mpsc::channel();
        if let Some(mut stderr) = child.stderr.take() {
            let tail = stderr_tail.clone();
            thread::spawn(move || {
                keep_tail(&mut stderr, &tail);
                drop(closed_tx);
            });
        }
        let process = AgentProcess { child, guard: guard.clone(), stderr_tail, stderr_closed, exited: None };
        Ok((process, stdin, stdout))
    }

    /// The last lines on stderr, without control characters. Waits for the end of stderr, but at most this long.
    pub(super) fn last_stderr_lines(&self, timeout: Duration) -> Vec<String> {
        let _ = self.stderr_closed.recv_timeout(timeout);
        let mut tail = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        last_lines(tail.make_contiguous())
    }

    /// The exit status, if the agent exits within this time.
    pub(super) fn exit_within(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + timeout;
        loop {
            self.exited = self.exited.or_else(|| self.child.try_wait().ok().flatten());
            if self.exited.is_some() || Instant::now() >= until {
                return self.exited;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Call it when stdin is closed. Waits for the exit, then sends SIGTERM, then SIGKILL.
    pub(super) fn end(mut self, timeout: Duration) {
        let group = Pid::from_raw(self.child.id() as i32);
        if self.exit_within(timeout).is_none() {
            let _ = killpg(group, Signal::SIGTERM);
            // A stopped process would not handle SIGTERM.
            let _ = killpg(group, Signal::SIGCONT);
            self.exit_within(timeout);
        }
        let _ = killpg(group, Signal::SIGKILL);
        // Once the exit is collected, the system may give the number to another group.
        self.guard.forget(self.child.id());
        let _ = self.child.wait();
    }
}

/// A relative path starts at the user's folder, not at the agent's working folder.
fn resolve_program(program: &OsStr, cwd: &Path) -> io::Result<PathBuf> {
    let path = Path::new(program);
    let bare = path.components().count() == 1 && !program.as_encoded_bytes().contains(&b'/');
    if bare || path.is_absolute() || cwd.as_os_str().is_empty() {
        return Ok(path.to_owned());
    }
    std::path::absolute(path)
}

/// The last lines of a tail that say something.
fn last_lines(tail: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(tail);
    // Only the end is left of the line where a full tail begins. If it is the only one, it is better than nothing.
    let text = match text.trim_end().split_once('\n') {
        Some((_, rest)) if tail.len() >= STDERR_TAIL_BYTES => rest,
        _ => &text,
    };
    let lines = text.lines().map(|line| strip_control(&line.replace('\t', "    ")));
    let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(STDERR_TAIL_LINES)..].to_vec()
}

fn keep_tail(stderr: &mut impl Read, tail: &Mutex<VecDeque<u8>>) {
    let mut chunk = [0; 4 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut chunk) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(&chunk[..count]);
        let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
        tail.drain(..excess);
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() {
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() {}

/// Kills and collects all orphans that `run` has inherited.
#[cfg(target_os = "linux")]
pub(super) fn end_orphans() {
    use nix::sys::signal::kill;
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

    const TIMEOUT: Duration = Duration::from_secs(2);
    let until = Instant::now() + TIMEOUT;
    loop {
        for pid in children_of(nix::unistd::getpid()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        // Killing a child may have passed its own children on to us, so this repeats until none is left.
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < until => thread::sleep(POLL_INTERVAL),
            Ok(WaitStatus::StillAlive) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn end_orphans() {}

#[cfg(target_os = "linux")]
fn children_of(parent: Pid) -> Vec<Pid> {
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in brackets may contain anything; the state and the parent follow it.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        fields.nth(1) == Some(&parent.to_string())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(is_child).map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_few_whole_and_free_of_controls() {
        assert!(last_lines(b"").is_empty() && last_lines(b"\n \n").is_empty());
        assert_eq!(last_lines(b"Error:\x1b[2J no key\n\n\tat main\n"), ["Error:[2J no key", "    at main"]);
        let many: String = (1..=30).map(|line| format!("line {line}\n")).collect();
        let lines = last_lines(many.as_bytes());
        assert_eq!((lines.len(), &*lines[0], &*lines[19]), (20, "line 11", "line 30"));
        // A full tail begins within a line.
        let cut = format!("{}\nlast\n", "x".repeat(STDERR_TAIL_BYTES - 6));
        assert_eq!(last_lines(cut.as_bytes()), ["last"]);
        let long = "x".repeat(STDERR_TAIL_BYTES);
        assert_eq!(last_lines(long.as_bytes()), [long]);
    }
}
