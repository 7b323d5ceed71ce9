//! Processes that the runner starts, and their end: nothing is left behind.
//!
//! Each leads a process group of its own, so that Ctrl-C in the terminal reaches only the runner, which then decides. A
//! guard knows the groups and kills them if the runner itself is killed. Tools of an agent may leave its group; on
//! Linux they come back to the runner when the agent is gone, and are ended too.

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

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How much of what it said last on stderr is remembered.
const LAST_WORDS_BYTES: usize = 4 << 10;
/// Between two looks at something that the system does not tell about.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Kills the groups it knows when the runner is gone, however that came.
#[derive(Clone)]
pub(super) struct Guard(Arc<Mutex<Child>>);

impl Guard {
    /// `stdio-bus guard` reads `+GROUP` and `-GROUP` and acts at the end of its input.
    pub(super) fn start(this_binary: &Path) -> io::Result<Guard> {
        let mut command = Command::new(this_binary);
        command.arg("guard").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Guard(Arc::new(Mutex::new(command.spawn()?))))
    }

    pub(super) fn watch(&self, group: u32) {
        self.tell('+', group);
    }

    pub(super) fn forget(&self, group: u32) {
        self.tell('-', group);
    }

    /// It has nothing left to do.
    pub(super) fn end(&self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let _ = child.wait();
    }

    /// One that is gone is no reason to stop.
    fn tell(&self, order: char, group: u32) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stdin) = &mut child.stdin {
            let _ = stdin.write_all(format!("{order}{group}\n").as_bytes());
        }
    }
}

/// How an agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCommand {
    /// What the user calls it.
    pub name: String,
    pub program: String,
    pub args: Vec<String>,
}

impl AgentCommand {
    /// One without a name of its own.
    pub fn new(program: String, args: Vec<String>) -> AgentCommand {
        AgentCommand { name: program.clone(), program, args }
    }
}

/// The program of the agents that come with this binary.
pub const ITSELF: &str = "stdio-bus";

pub(super) struct AgentProcess {
    child: Child,
    guard: Guard,
    last_words: Arc<Mutex<VecDeque<u8>>>,
    /// Hangs up at the end of its stderr, which what it has started may hold open after it.
    stderr_end: Receiver<()>,
    exited: Option<ExitStatus>,
}

impl AgentProcess {
    /// With the environment of the user as it is. Its stderr is kept back unless it `may_mutter`.
    pub(super) fn start(
        agent: &AgentCommand,
        this_binary: &Path,
        cwd: &Path,
        may_mutter: bool,
        guard: &Guard,
    ) -> io::Result<(AgentProcess, ChildStdin, ChildStdout)> {
        adopt_orphans();
        let program =
            if agent.program == ITSELF { this_binary.as_os_str() } else { OsStr::new(&agent.program) };
        let program = from_here(program, cwd)?;
        let mut command = Command::new(program);
        command.args(&agent.args).current_dir(cwd).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(if may_mutter { Stdio::inherit() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        guard.watch(child.id());
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let last_words = Arc::<Mutex<VecDeque<u8>>>::default();
        let (at_end, stderr_end) = mpsc::channel();
        if let Some(mut stderr) = child.stderr.take() {
            let kept = last_words.clone();
            thread::spawn(move || {
                keep_the_end(&mut stderr, &kept);
                drop(at_end);
            });
        }
        let guard = guard.clone();
        Ok((AgentProcess { child, guard, last_words, stderr_end, exited: None }, stdin, stdout))
    }

    /// What it said last on stderr before it ended, or within this time, in one line that steers no terminal.
    pub(super) fn last_words(&self, patience: Duration) -> String {
        let _ = self.stderr_end.recv_timeout(patience);
        let kept: Vec<u8> =
            self.last_words.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let text = String::from_utf8_lossy(&kept);
        let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        line.chars().filter(|letter| !letter.is_control()).collect()
    }

    /// How it ended, if it does so within this time.
    pub(super) fn exit_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            self.exited = self.exited.or_else(|| self.child.try_wait().ok().flatten());
            if self.exited.is_some() || Instant::now() >= until {
                return self.exited;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Its stdin is closed already: it has so long to leave, then it is told to, then it is made to.
    pub(super) fn end(mut self, patience: Duration) {
        let group = Pid::from_raw(self.child.id() as i32);
        if self.exit_within(patience).is_none() {
            let _ = killpg(group, Signal::SIGTERM);
            // One that is stopped could not hear it.
            let _ = killpg(group, Signal::SIGCONT);
            self.exit_within(patience);
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
        self.guard.forget(self.child.id());
    }
}

/// A relative path is meant from where the user stands, not from the folder that the agent works in.
fn from_here(program: &OsStr, cwd: &Path) -> io::Result<PathBuf> {
    let path = Path::new(program);
    let bare = path.components().count() == 1 && !program.as_encoded_bytes().contains(&b'/');
    if bare || path.is_absolute() || cwd.as_os_str().is_empty() {
        return Ok(path.to_owned());
    }
    std::path::absolute(path)
}

fn keep_the_end(stderr: &mut impl Read, kept: &Mutex<VecDeque<u8>>) {
    let mut chunk = [0; 4 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut chunk) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&chunk[..count]);
        let excess = kept.len().saturating_sub(LAST_WORDS_BYTES);
        kept.drain(..excess);
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() {
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() {}

/// Ends whatever was started by what the runner has started and has ended, and collects it.
#[cfg(target_os = "linux")]
pub(super) fn end_orphans() {
    use nix::sys::signal::kill;
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

    const MOST: Duration = Duration::from_secs(2);
    let until = Instant::now() + MOST;
    loop {
        for pid in children_of(nix::unistd::getpid()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        // Those of a child that is gone have become ours meanwhile, so look again until there is none.
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < until => thread::sleep(LOOK_AGAIN),
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
        // The name in brackets may hold anything; the state and the parent follow it.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        fields.nth(1) == Some(&parent.to_string())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(is_child).map(Pid::from_raw).collect()
}
