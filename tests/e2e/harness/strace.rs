//! System calls of a running bus that strace makes fail.
//!
//! A call that strace fails is not made, so the bus does what it does when the kernel refuses. Only the thread of the
//! event loop is traced, not the log writer and not the workers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::bus::Bus;

pub(crate) struct Strace {
    child: Child,
    file: PathBuf,
}

impl Strace {
    /// Traces these calls, and fails them as strace's `inject` says: `error=EMFILE:when=1..3`. Prints why and returns
    /// `None` if strace is not installed or not allowed.
    pub(crate) fn on(bus: &Bus, calls: &str, fault: Option<&str>) -> Option<Strace> {
        let file = bus.folder().join("strace");
        let mut command = Command::new("strace");
        command.arg("-p").arg(bus.pid().to_string()).arg("-o").arg(&file);
        command.args(["-e", &format!("trace={calls}")]);
        if let Some(fault) = fault {
            command.args(["-e", &format!("inject={calls}:{fault}")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(fault) => {
                super::skips(format_args!("strace, which cannot be started: {fault}"));
                return None;
            }
        };
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let mut strace = Strace { child, file };
        if first.contains("attached") {
            return Some(strace);
        }
        strace.stop();
        super::skips(format_args!("strace, which cannot watch the bus: {first}"));
        None
    }

    /// The calls that it has traced so far, one per line.
    pub(crate) fn seen(&self) -> String {
        fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// How many calls it has failed.
    pub(crate) fn failed(&self) -> usize {
        self.seen().matches("(INJECTED)").count()
    }

    fn stop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        self.stop();
    }
}
