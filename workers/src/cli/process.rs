//! A process of a CLI: started, heard, and ended with everything that it started.
//!
//! It stays in the worker's own process group, so that whoever ends the worker ends it too. Its descendants are found
//! by their parents and by a mark in their environment, because tools run in sessions of their own and outlive their
//! parents; signals go to each of them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::format::without_escapes;
use super::session::News;
use crate::acp::line_reader::LineReader as Lines;

const MARK: &str = "STDIO_BUS_TURN";
/// Kept of stderr, for the words of a failure.
const TAIL_BYTES: usize = 2 << 10;
/// A line that is longer is no event of any CLI.
const LINE_BYTES: usize = 64 << 20;
/// How long what was killed may take to be gone.
const GONE: Duration = Duration::from_secs(2);
/// How long its last words may take to be read.
const SPOKEN: Duration = Duration::from_millis(500);

pub(super) struct Process {
    child: Child,
    mark: String,
    /// What is said to it, until it is hung up.
    stdin: Option<Sender<String>>,
    stderr: Arc<Mutex<Tail>>,
}

#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    heard: Option<Instant>,
    /// It will say no more.
    is_over: bool,
}

pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    pub(super) args: &'a [String],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) cwd: &'a str,
    /// No other process of any agent has it.
    pub(super) mark: String,
}

impl Process {
    /// What it says goes to `news`.
    pub(super) fn start(start: Start<'_>, news: SyncSender<News>) -> io::Result<Process> {
        let mut command = Command::new(start.program);
        command.args(start.args).envs(start.env).env(MARK, &start.mark).current_dir(start.cwd);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = Arc::new(Mutex::new(Tail::default()));
        let tail = stderr.clone();
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // A CLI that does not read its stdin must not hold up the turn, so each pipe has a thread.
        let (stdin, said) = mpsc::channel();
        thread::spawn(move || input.map(|input| pass_on(&said, input)));
        thread::spawn(move || output.map(|output| tell_lines(output, &news)));
        thread::spawn(move || errors.map(|errors| keep_tail(errors, &tail)));
        Ok(Process { child, mark: format!("{MARK}={}", start.mark), stdin: Some(stdin), stderr })
    }

    /// Never waits; one that does not listen does not hear it.
    pub(super) fn say(&self, text: String) {
        if let Some(stdin) = &self.stdin {
            let _ = stdin.send(text);
        }
    }

    /// Its stdin ends after what was said.
    pub(super) fn hang_up(&mut self) {
        self.stdin = None;
    }

    pub(super) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// When it last said something on stderr, which is a sign of life too.
    pub(super) fn muttered(&self) -> Option<Instant> {
        lock(&self.stderr).heard
    }

    /// Of one that is gone. What it has said may still be in the pipe.
    pub(super) fn last_words(&self) -> String {
        let until = Instant::now() + SPOKEN;
        while !lock(&self.stderr).is_over && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        without_escapes(String::from_utf8_lossy(&lock(&self.stderr).bytes).trim())
    }

    /// To the CLI and what it runs in its own group, as a terminal would. Its tools in groups of their own are the
    /// CLI's to end.
    pub(super) fn signal(&self, signal: Signal) {
        let group = nix::unistd::getpgrp();
        for member in self.family().into_iter().filter(|member| member.group == group) {
            let _ = kill(member.pid, signal);
        }
    }

    /// Ends all of it. What is started meanwhile is found by the next look.
    pub(super) fn kill_all(&mut self) {
        let until = Instant::now() + GONE;
        loop {
            let family = self.family();
            for member in &family {
                let _ = kill(member.pid, Signal::SIGKILL);
            }
            let is_gone = self.exited().is_some();
            if (is_gone && family.is_empty()) || Instant::now() > until {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn family(&self) -> Vec<Member> {
        let all = everybody(self.mark.as_bytes());
        let mut pids = vec![Pid::from_raw(self.child.id() as i32)];
        pids.extend(all.iter().filter(|one| one.is_marked).map(|one| one.pid));
        let mut at = 0;
        while at < pids.len() {
            let parent = pids[at];
            let children = all.iter().filter(|one| one.parent == parent).map(|one| one.pid);
            let new: Vec<Pid> = children.filter(|pid| !pids.contains(pid)).collect();
            pids.extend(new);
            at += 1;
        }
        all.into_iter().filter(|one| pids.contains(&one.pid)).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Collected already, unless the turn's thread has panicked.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Member {
    pid: Pid,
    parent: Pid,
    group: Pid,
    is_marked: bool,
}

/// All processes that live, as far as they can be seen.
#[cfg(target_os = "linux")]
fn everybody(mark: &[u8]) -> Vec<Member> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    let member = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // A name may have brackets and spaces in it, but nothing after it has.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, parent, group) =
            (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        if state == "Z" || state == "X" {
            return None;
        }
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_marked = environ.split(|byte| *byte == 0).any(|variable| variable == mark);
        let (pid, parent, group) = (Pid::from_raw(pid), Pid::from_raw(parent), Pid::from_raw(group));
        Some(Member { pid, parent, group, is_marked })
    };
    folder.flatten().filter_map(member).collect()
}

/// Marks cannot be seen there, so an orphan is only found while its parents live.
#[cfg(not(target_os = "linux"))]
fn everybody(_mark: &[u8]) -> Vec<Member> {
    let listed = Command::new("/bin/ps").args(["-A", "-o", "pid=,ppid=,pgid=,stat="]).output();
    let listed = listed.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let member = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        let (pid, parent, group) = (number()?, number()?, number()?);
        let is_dead = fields.next()?.starts_with('Z');
        (!is_dead).then_some(Member { pid, parent, group, is_marked: false })
    };
    listed.lines().filter_map(member).collect()
}

fn pass_on(said: &Receiver<String>, mut input: impl Write) {
    for text in said {
        if input.write_all(text.as_bytes()).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

fn tell_lines(mut output: impl Read, news: &SyncSender<News>) {
    let mut lines = Lines::default();
    while lines.unfinished().len() <= LINE_BYTES && lines.fill(&mut output).is_ok_and(|count| count > 0) {
        while let Some(line) = lines.next_line() {
            if news.send(News::Line(line.to_vec())).is_err() {
                return;
            }
        }
    }
    if !lines.unfinished().is_empty() {
        let _ = news.send(News::Line(lines.unfinished().to_vec()));
    }
    let _ = news.send(News::Silence);
}

fn keep_tail(mut errors: impl Read, tail: &Mutex<Tail>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = errors.read(&mut buffer) {
        let mut tail = lock(tail);
        tail.heard = Some(Instant::now());
        tail.bytes.extend_from_slice(&buffer[..count]);
        let excess = tail.bytes.len().saturating_sub(TAIL_BYTES);
        tail.bytes.drain(..excess);
    }
    lock(tail).is_over = true;
}

fn lock(tail: &Mutex<Tail>) -> MutexGuard<'_, Tail> {
    tail.lock().expect("nobody panics with it")
}
