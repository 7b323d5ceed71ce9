//! A worker that a test plays by hand.
//!
//! `puppet SOCKET [ANYTHING..]` connects to the test and reports in one JSON line how it was started. From then on it
//! forwards its stdin to the test, and writes to stdout or does what the test tells it. By itself it only exits, when
//! stdin ends or the test is gone. It knows nothing of JSON-RPC.
//!
//! A frame, in either direction, is one byte for its kind, four bytes for its length, and that many bytes.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{self, Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::{close, getpgrp, getppid, read, setsid};
use serde_json::{Value, json};

fn main() {
    let mut args = env::args_os().skip(1);
    let Some(first) = args.next() else { panic!("usage: puppet SOCKET") };
    if first == "--leave" {
        // It leaves even the session of its parent.
        setsid().expect("a child leads no group");
    }
    if first == "--linger" || first == "--leave" {
        // It is the child of a puppet, and never exits by itself.
        SigSet::from(Signal::SIGTERM).thread_block().expect("SIGTERM can be blocked");
        loop {
            std::thread::park();
        }
    }
    let about = about_itself();
    let mut test = UnixStream::connect(&first).expect("the test listens");
    writeln!(test, "{about}").expect("the test is there");
    Puppet { test, reads: true, leaves_at_eof: true, children: Vec::new() }.run();
}

/// How the bus has started this process. Called before it opens any fd.
fn about_itself() -> Value {
    let open = || -> io::Result<Vec<i32>> {
        let names =
            fs::read_dir("/dev/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(names.collect())
    };
    let mut fds = open().unwrap_or_default();
    // One of them was the directory itself.
    fds.retain(|fd| fs::symlink_metadata(format!("/dev/fd/{fd}")).is_ok());
    fds.sort_unstable();
    let args: Vec<_> = env::args().skip(1).collect();
    let env: BTreeMap<_, _> = env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect();
    json!({
        "pid": process::id(),
        "ppid": getppid().as_raw(),
        "group": getpgrp().as_raw(),
        "fds": fds,
        "args": args,
        "env": env,
        "cwd": env::current_dir().ok(),
        "core_bytes": getrlimit(Resource::RLIMIT_CORE).map(|(soft, _)| soft).ok(),
    })
}

fn lossy(text: std::ffi::OsString) -> String {
    text.to_string_lossy().into_owned()
}

struct Puppet {
    test: UnixStream,
    reads: bool,
    leaves_at_eof: bool,
    /// They outlive the puppet.
    children: Vec<Child>,
}

impl Puppet {
    fn run(&mut self) {
        let mut chunk = vec![0; 64 << 10];
        loop {
            let (from_test, from_stdin) = self.wait();
            if from_test {
                self.execute();
            }
            if from_stdin && self.reads {
                match read(io::stdin(), &mut chunk) {
                    Ok(0) | Err(_) => self.stdin_ended(),
                    Ok(count) => self.report(b'i', &chunk[..count]),
                }
            }
        }
    }

    /// Waits for input. Returns whether the test has sent some, and whether stdin has.
    fn wait(&self) -> (bool, bool) {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(self.test.as_fd(), PollFlags::POLLIN)];
        if self.reads {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            return (false, false);
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| fd.any() == Some(true));
        (ready(0), ready(1))
    }

    fn stdin_ended(&mut self) {
        self.reads = false;
        self.report(b'E', &[]);
        if self.leaves_at_eof {
            process::exit(0);
        }
    }

    /// Sends a frame to the test. Exits if the test is gone.
    fn report(&mut self, what: u8, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("a chunk is small").to_be_bytes();
        let sent =
            self.test.write_all(&[&[what], &length[..]].concat()).and_then(|()| self.test.write_all(bytes));
        if sent.is_err() {
            process::exit(0);
        }
    }

    fn execute(&mut self) {
        let mut head = [0; 5];
        if self.test.read_exact(&mut head).is_err() {
            process::exit(0);
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut bytes = vec![0; length];
        self.test.read_exact(&mut bytes).expect("the rest of the frame");
        let number = || String::from_utf8_lossy(&bytes).parse::<i32>().expect("a number");
        match head[0] {
            // Output after the exit of the bus is lost, as it should be.
            b'o' => drop(write_all_raw(&io::stdout(), &bytes)),
            b'e' => drop(write_all_raw(&io::stderr(), &bytes)),
            b'x' => process::exit(number()),
            b'k' => drop(raise(Signal::try_from(number()).expect("a signal"))),
            b'c' => drop(close(io::stdout().as_raw_fd())),
            b'z' => {
                self.reads = false;
                let _ = close(io::stdin().as_raw_fd());
            }
            b'p' => self.reads = false,
            b'r' => self.reads = true,
            b's' => self.leaves_at_eof = false,
            b'P' => shrink_pipes(),
            b't' => SigSet::from(Signal::SIGTERM).thread_block().expect("SIGTERM can be blocked"),
            b'g' | b'd' => {
                let me = env::current_exe().expect("its own file");
                let how = if head[0] == b'g' { "--linger" } else { "--leave" };
                let child = Command::new(me).arg(how).stdin(Stdio::null()).spawn();
                let child = child.expect("a grandchild");
                self.report(b'g', child.id().to_string().as_bytes());
                self.children.push(child);
            }
            other => panic!("no such command: {other}"),
        }
        // This tells the test that it is done.
        if matches!(head[0], b'c' | b'z' | b'p' | b'r' | b's' | b't' | b'P') {
            self.report(b'a', &[]);
        }
    }
}

/// Shrinks stdin and stdout to one page. Only Linux can do that.
fn shrink_pipes() {
    #[cfg(target_os = "linux")]
    for fd in [io::stdin().as_fd(), io::stdout().as_fd()] {
        use nix::fcntl::{FcntlArg, fcntl};
        fcntl(fd, FcntlArg::F_SETPIPE_SZ(4096)).expect("a pipe");
    }
}

/// Writes without the buffer of std, which flushes only at newlines.
fn write_all_raw(to: &impl AsFd, mut bytes: &[u8]) -> nix::Result<()> {
    while !bytes.is_empty() {
        let count = nix::unistd::write(to, bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}
