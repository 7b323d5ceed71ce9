//! Runs a process of a CLI, reads its pipes, and ends it with all its descendants.
//!
//! The process stays in the worker's process group, so that a signal to the worker's group ends it, too. Tools run in
//! groups of their own, so each descendant is signalled by its pid.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rpc::LineReader;

use super::descendants::{self, ProcessInfo};
use super::format::text::without_escapes;
use super::runtimes::DEFAULT_PATH;
use super::stop_sequence::{StopSequence, StopStep};
use crate::lock::lock;

const MARK: &str = "STDIO_BUS_TURN";
/// How much of stderr is kept for error messages.
const TAIL_BYTES: usize = 2 << 10;
/// No CLI prints longer events; reading stops there.
const LINE_BYTES: usize = 64 << 20;
/// Events that may wait in an inbox. A CLI that prints faster than the client reads is blocked.
const INBOX_EVENTS: usize = 256;
/// How long killed processes may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the rest of stderr may take to be read after the exit.
const STDERR_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two looks at a process that is being stopped.
const POLL: Duration = Duration::from_millis(5);
/// The longest wait for an event, so that an exit is noticed soon.
const TICK: Duration = Duration::from_millis(20);

/// What the thread of a turn or of a process receives.
pub(super) enum ProcessEvent {
    /// A line of stdout, without its newline.
    Line(Vec<u8>),
    StdoutClosed,
    /// Something has changed that the thread must look at.
    Wake,
}

pub(super) fn inbox() -> (SyncSender<ProcessEvent>, Receiver<ProcessEvent>) {
    mpsc::sync_channel(INBOX_EVENTS)
}

/// Waits for an event, or at most a tick.
pub(super) fn next_event(inbox: &Receiver<ProcessEvent>) -> Option<ProcessEvent> {
    match inbox.recv_timeout(TICK) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => unreachable!("the session holds a sender"),
    }
}

pub(super) struct Process {
    child: Child,
    mark: String,
    /// `None` once stdin is closed.
    stdin: Option<Sender<String>>,
    stderr: Arc<Stderr>,
}

#[derive(Default)]
struct Stderr {
    tail: Mutex<Tail>,
    closed: Condvar,
}

#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    last_read: Option<Instant>,
    is_closed: bool,
}

pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    pub(super) args: &'a [String],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) cwd: &'a str,
    /// Unique among all processes of all agents.
    pub(super) mark: String,
}

/// PATH with the folder of this program at its end: a script and the `node` that runs it are often installed together,
/// and PATH may be that of a service manager. `None`: PATH has the folder already, or cannot have it.
fn path_with_folder_of(program: &Path) -> Option<OsString> {
    let folder = program.parent().filter(|folder| folder.is_absolute())?;
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let is_known = env::split_paths(&path).any(|known| known == folder);
    if is_known {
        return None;
    }
    env::join_paths(env::split_paths(&path).chain([folder.to_owned()])).ok()
}

impl Process {
    /// The output of the process arrives at `inbox`.
    pub(super) fn start(start: Start<'_>, inbox: SyncSender<ProcessEvent>) -> io::Result<Process> {
        let mut command = Command::new(start.program);
        command.args(start.args).envs(start.env).env(MARK, &start.mark).current_dir(start.cwd);
        if let Some(path) = path_with_folder_of(start.program) {
            command.env("PATH", path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let errors = child.stderr.take();
        let stderr = Arc::new(Stderr::default());
        let read = stderr.clone();
        // Each pipe has a thread, because a CLI that does not read its stdin must not block the turn.
        let (stdin, messages) = mpsc::channel();
        thread::spawn(move || input.map(|input| write_stdin(&messages, input)));
        thread::spawn(move || output.map(|output| read_stdout(output, &inbox)));
        thread::spawn(move || errors.map(|errors| read_stderr(errors, &read)));
        Ok(Process { child, mark: format!("{MARK}={}", start.mark), stdin: Some(stdin), stderr })
    }

    /// Does not block. The text is dropped if stdin is closed.
    pub(super) fn send(&self, text: String) {
        if let Some(stdin) = &self.stdin {
            let _ = stdin.send(text);
        }
    }

    /// Closes stdin after everything that was sent.
    pub(super) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// When the process last printed to stderr.
    pub(super) fn last_stderr(&self) -> Option<Instant> {
        lock(&self.stderr.tail).last_read
    }

    /// The end of stderr of a process that has exited. Waits a moment for what is still in the pipe.
    pub(super) fn stderr_tail(&self) -> String {
        let tail = lock(&self.stderr.tail);
        let waited = self.stderr.closed.wait_timeout_while(tail, STDERR_TIMEOUT, |tail| !tail.is_closed);
        let (tail, _) = waited.expect("no thread panics while it holds the lock");
        without_escapes(String::from_utf8_lossy(&tail.bytes).trim())
    }

    /// Signals the CLI and its descendants in its own group, as a terminal would. The CLI itself ends the tools that
    /// it runs in other groups.
    pub(super) fn signal(&self, signal: Signal) {
        let group = nix::unistd::getpgrp();
        for process in self.tree().into_iter().filter(|process| process.group == group) {
            let _ = kill(process.pid, signal);
        }
    }

    /// Does what the stop sequence wants. `interrupt` asks the CLI to stop in its own way.
    pub(super) fn apply(&mut self, step: StopStep, interrupt: impl FnOnce(&mut Process)) {
        match step {
            StopStep::Wait => {}
            StopStep::Interrupt => interrupt(self),
            StopStep::Terminate => self.signal(Signal::SIGTERM),
            StopStep::Kill => self.kill_all(),
        }
    }

    /// Ends a process that works on nothing. For most CLIs the end of stdin is enough.
    pub(super) fn close(mut self, is_urgent: impl Fn() -> bool) {
        self.close_stdin();
        let mut sequence = StopSequence::default();
        while self.exit_status().is_none() {
            let step = sequence.step(Instant::now(), is_urgent());
            self.apply(step, |_| {});
            thread::sleep(POLL);
        }
        self.kill_all();
    }

    /// Kills the process and all descendants, until a scan of the process table finds none.
    pub(super) fn kill_all(&mut self) {
        let until = Instant::now() + KILL_TIMEOUT;
        loop {
            let processes = self.tree();
            for process in &processes {
                let _ = kill(process.pid, Signal::SIGKILL);
            }
            let is_gone = self.exit_status().is_some();
            if (is_gone && processes.is_empty()) || Instant::now() > until {
                return;
            }
            thread::sleep(POLL);
        }
    }

    fn tree(&self) -> Vec<ProcessInfo> {
        descendants::find(Pid::from_raw(self.child.id() as i32), self.mark.as_bytes())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only needed if the turn's thread has panicked: otherwise the process was reaped before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_stdin(messages: &Receiver<String>, mut input: impl Write) {
    for text in messages {
        if input.write_all(text.as_bytes()).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

fn read_stdout(mut output: ChildStdout, inbox: &SyncSender<ProcessEvent>) {
    let mut lines = LineReader::with_limit(LINE_BYTES);
    while let Ok(Some(line)) = lines.read_line(&mut output, None) {
        if inbox.send(ProcessEvent::Line(line.to_vec())).is_err() {
            return;
        }
    }
    let _ = inbox.send(ProcessEvent::StdoutClosed);
}

fn read_stderr(mut errors: impl Read, stderr: &Stderr) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = errors.read(&mut buffer) {
        let mut tail = lock(&stderr.tail);
        tail.last_read = Some(Instant::now());
        tail.bytes.extend_from_slice(&buffer[..count]);
        let excess = tail.bytes.len().saturating_sub(TAIL_BYTES);
        tail.bytes.drain(..excess);
    }
    lock(&stderr.tail).is_closed = true;
    stderr.closed.notify_all();
}
