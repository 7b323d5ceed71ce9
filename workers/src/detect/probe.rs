//! Runs a program for its output, with limits on time and size, and leaves no process behind.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rpc::LineReader;

/// The most that is read of a program's output. A list of models takes a few hundred KiB.
pub(super) const OUTPUT_BYTES: u64 = 4 << 20;

#[derive(Default)]
pub(super) struct Output {
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// `None` if a signal or the time limit has ended the program.
    pub(super) exit_code: Option<i32>,
    /// Why the program did not start.
    pub(super) start_error: Option<String>,
}

impl Output {
    pub(super) fn all(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// Runs the program with at least one argument, since without any its effect is unknown.
pub(super) fn run(program: &Path, args: &[String], stdin: &str, limit: Duration) -> Output {
    let mut child = match start(program, args, None) {
        Ok(child) => child,
        Err(error) => return Output { start_error: Some(error.to_string()), ..Output::default() },
    };
    let until = Instant::now() + limit;
    let mut pipe = child.stdin.take();
    let text = stdin.to_owned();
    // A thread writes, because the program may never read. Dropping the pipe closes stdin.
    thread::spawn(move || pipe.take().map(|mut pipe| pipe.write_all(text.as_bytes())));
    let (stdout, stderr) = (read_pipe(child.stdout.take()), read_pipe(child.stderr.take()));
    let collect = |source: mpsc::Receiver<Vec<u8>>| {
        let mut bytes = Vec::new();
        while let Ok(more) = source.recv_timeout(until.saturating_duration_since(Instant::now())) {
            bytes.extend(more);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    let exit_code = end(child, until);
    Output { stdout, stderr, exit_code, start_error: None }
}

pub(crate) fn start(program: &Path, args: &[String], cwd: Option<&Path>) -> std::io::Result<Child> {
    assert!(cwd.is_some() || !args.is_empty(), "a command is never run bare");
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    if let Some(cwd) = cwd {
        command.current_dir(cwd);
    }
    command.spawn()
}

/// A running program that is spoken with. Its stderr is read and forgotten, so that it does not block.
pub(crate) struct Conversation {
    child: Child,
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) lines: LineReader,
    _stderr: mpsc::Receiver<Vec<u8>>,
}

/// Starts a program with at least one argument, to speak with it in lines of at most so many bytes.
pub(crate) fn converse(program: &Path, args: &[String], line_bytes: usize) -> Option<Conversation> {
    Conversation::new(start(program, args, None).ok()?, line_bytes)
}

impl Conversation {
    pub(super) fn new(mut child: Child, line_bytes: usize) -> Option<Conversation> {
        let (stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
        let stderr = read_pipe(child.stderr.take());
        let lines = LineReader::with_limit(line_bytes);
        Some(Conversation { child, stdin, stdout, lines, _stderr: stderr })
    }

    /// Closes its stdin, waits for its exit until then, and kills what is left.
    pub(crate) fn end(self, until: Instant) {
        drop(self.stdin);
        end(self.child, until);
    }
}

/// Waits for the exit until then, and kills the rest of the process group.
pub(crate) fn end(mut child: Child, until: Instant) -> Option<i32> {
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

/// Reads the pipe on a thread, up to `OUTPUT_BYTES`.
pub(crate) fn read_pipe(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let Some(pipe) = pipe else { return };
        let mut pipe = pipe.take(OUTPUT_BYTES);
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

    fn shell(script: &str, stdin: &str, limit: Duration) -> Output {
        run(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()], stdin, limit)
    }

    #[test]
    fn the_output_has_both_streams_and_the_exit_code() {
        let output = shell("cat; echo no >&2; exit 3", "yes", Duration::from_secs(60));
        assert_eq!((output.stdout.as_str(), output.exit_code), ("yes", Some(3)));
        assert_eq!(output.all(), "yes\nno\n");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        // A busy machine may not even have started the shell when the first limit is over.
        let limits = [300, 3_000, 30_000].map(Duration::from_millis);
        let mut outputs = limits.into_iter().map(|limit| shell("sleep 1000 & echo $!; wait", "", limit));
        let output = outputs.find(|output| output.stdout.ends_with('\n')).unwrap();
        assert_eq!(output.exit_code, None);
        let child = Pid::from_raw(output.stdout.trim().parse().unwrap());
        let until = Instant::now() + Duration::from_secs(30);
        while nix::sys::signal::kill(child, None).is_ok() && !is_zombie(child) {
            assert!(Instant::now() < until, "{child} lives on");
            thread::yield_now();
        }
    }

    /// Where no process reaps orphans, a killed one stays in the table.
    fn is_zombie(pid: Pid) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
