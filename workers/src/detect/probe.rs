//! One program, run for its answer: limited in time and in what it may say, and gone afterwards.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The most that is kept of what a program says. A list of models with its texts takes a few hundred KiB.
const SAID_BYTES: u64 = 4 << 20;

#[derive(Default)]
pub(super) struct Answer {
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// `None`: it was ended, by us or by a signal.
    pub(super) exit_code: Option<i32>,
    pub(super) not_started: Option<String>,
}

impl Answer {
    pub(super) fn all(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// Runs it with these arguments, of which there are some: bare, nobody knows what it does.
pub(super) fn ask(program: &Path, args: &[String], stdin: &str, limit: Duration) -> Answer {
    let mut child = match start(program, args, None) {
        Ok(child) => child,
        Err(error) => return Answer { not_started: Some(error.to_string()), ..Answer::default() },
    };
    let until = Instant::now() + limit;
    let mut pipe = child.stdin.take();
    let text = stdin.to_owned();
    // On a thread, since it may never read; dropping the pipe is the end of its stdin.
    thread::spawn(move || pipe.take().map(|mut pipe| pipe.write_all(text.as_bytes())));
    let (stdout, stderr) = (reads(child.stdout.take()), reads(child.stderr.take()));
    let said = |source: mpsc::Receiver<Vec<u8>>| {
        let mut bytes = Vec::new();
        while let Ok(more) = source.recv_timeout(until.saturating_duration_since(Instant::now())) {
            bytes.extend(more);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (said(stdout), said(stderr));
    let exit_code = end(child, until);
    Answer { stdout, stderr, exit_code, not_started: None }
}

pub(super) fn start(program: &Path, args: &[String], cwd: Option<&Path>) -> std::io::Result<Child> {
    assert!(cwd.is_some() || !args.is_empty(), "a command is never run bare");
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    if let Some(cwd) = cwd {
        command.current_dir(cwd);
    }
    command.spawn()
}

/// Waits until then, and ends what is left of its group.
pub(super) fn end(mut child: Child, until: Instant) -> Option<i32> {
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            _ => break None,
        }
    };
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
    status?.code()
}

/// What comes, as it comes; ends with the pipe or when it was too much.
pub(super) fn reads(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let Some(pipe) = pipe else { return };
        let mut pipe = pipe.take(SAID_BYTES);
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, stdin: &str, limit: Duration) -> Answer {
        ask(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()], stdin, limit)
    }

    #[test]
    fn an_answer_is_what_was_said_and_the_exit_code() {
        let answer = shell("cat; echo no >&2; exit 3", "yes", Duration::from_secs(60));
        assert_eq!((answer.stdout.as_str(), answer.exit_code), ("yes", Some(3)));
        assert_eq!(answer.all(), "yes\nno\n");
    }

    #[test]
    fn one_that_does_not_end_is_ended_with_its_children() {
        let answer = shell("sleep 1000 & echo $!; wait", "", Duration::from_millis(300));
        assert_eq!(answer.exit_code, None);
        let child = Pid::from_raw(answer.stdout.trim().parse().unwrap());
        let until = Instant::now() + Duration::from_secs(30);
        while nix::sys::signal::kill(child, None).is_ok() && !is_zombie(child) {
            assert!(Instant::now() < until, "{child} lives on");
            thread::yield_now();
        }
    }

    /// Its parent is gone, and where nobody collects orphans it stays in the table.
    fn is_zombie(pid: Pid) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
