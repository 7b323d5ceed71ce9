//! Commands that run for the agent (ACP's terminals), and their output.
//!
//! Each command has its own process group, which is killed when the agent releases it or `run` ends.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::command_request::CommandRequest;
use super::events::Event;
use super::process::Guard;

/// Used if the agent sets no limit.
const DEFAULT_OUTPUT_BYTES: usize = 1 << 20;
/// Processes that a command leaves behind may hold its output open. Output is read for this long after the exit.
const LATE_OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) struct Terminals {
    running: BTreeMap<String, Terminal>,
    count: u32,
    events: Sender<Event>,
    guard: Guard,
}

struct Terminal {
    group: u32,
    shared: Arc<Mutex<Shared>>,
    /// Ids of the requests that wait for its exit.
    waiting_ids: Vec<Value>,
}

#[derive(Default)]
struct Shared {
    output: Vec<u8>,
    limit: usize,
    truncated: bool,
    exit: Option<ExitStatus>,
}

impl Terminals {
    pub(super) fn new(events: Sender<Event>, guard: Guard) -> Terminals {
        Terminals { running: BTreeMap::new(), count: 0, events, guard }
    }

    /// Returns the id of the new terminal.
    pub(super) fn create(&mut self, request: &CommandRequest) -> io::Result<String> {
        let mut command = request.command();
        let (mut output, writer) = io::pipe()?;
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        // `command` holds the writing end of the pipe, so the output would never end.
        drop(command);
        let group = child.id();
        self.guard.watch(group);
        let limit = request.output_limit.and_then(|limit| usize::try_from(limit).ok());
        let shared = Shared { limit: limit.unwrap_or(DEFAULT_OUTPUT_BYTES), ..Shared::default() };
        let shared = Arc::new(Mutex::new(shared));
        let (output_ended, output_end) = channel::<()>();
        let reader_shared = shared.clone();
        thread::spawn(move || {
            let mut chunk = [0; 8 << 10];
            while let Ok(count @ 1..) = output.read(&mut chunk) {
                lock(&reader_shared).append(&chunk[..count]);
            }
            drop(output_ended);
        });
        let waiter_shared = shared.clone();
        let events = self.events.clone();
        thread::spawn(move || {
            let exit = child.wait().unwrap_or(ExitStatus::from_raw(0));
            let _ = output_end.recv_timeout(LATE_OUTPUT_TIMEOUT);
            lock(&waiter_shared).exit = Some(exit);
            let _ = events.send(Event::CommandExited);
        });
        self.count += 1;
        let name = format!("terminal-{}", self.count);
        self.running.insert(name.clone(), Terminal { group, shared, waiting_ids: Vec::new() });
        Ok(name)
    }

    /// The result of `terminal/output`.
    pub(super) fn output(&self, name: &str) -> Option<Value> {
        let shared = lock(&self.running.get(name)?.shared);
        let mut result = json!({
            "output": String::from_utf8_lossy(&shared.output), "truncated": shared.truncated,
        });
        if let Some(exit) = shared.exit {
            result["exitStatus"] = exit_status(exit);
        }
        Some(result)
    }

    /// Notes that this request is to be answered at the exit. Returns false for an unknown terminal.
    pub(super) fn wait_for_exit(&mut self, name: &str, id: &Value) -> bool {
        let Some(terminal) = self.running.get_mut(name) else { return false };
        terminal.waiting_ids.push(id.clone());
        true
    }

    /// Requests whose terminal has exited, with their results.
    pub(super) fn finished_waits(&mut self) -> Vec<(Value, Value)> {
        let mut finished_waits = Vec::new();
        for terminal in self.running.values_mut() {
            if let Some(exit) = lock(&terminal.shared).exit {
                finished_waits.extend(terminal.waiting_ids.drain(..).map(|id| (id, exit_status(exit))));
            }
        }
        finished_waits
    }

    /// Returns false for an unknown terminal.
    pub(super) fn kill(&self, name: &str) -> bool {
        self.running.get(name).map(Terminal::kill).is_some()
    }

    pub(super) fn release(&mut self, name: &str) -> bool {
        let Some(terminal) = self.running.remove(name) else { return false };
        terminal.kill();
        self.guard.forget(terminal.group);
        true
    }

    pub(super) fn release_all(&mut self) {
        for name in self.running.keys().cloned().collect::<Vec<_>>() {
            self.release(&name);
        }
    }
}

impl Terminal {
    fn kill(&self) {
        let _ = killpg(Pid::from_raw(self.group as i32), Signal::SIGKILL);
    }
}

impl Shared {
    /// Keeps the last `limit` bytes.
    fn append(&mut self, chunk: &[u8]) {
        self.output.extend_from_slice(chunk);
        if self.output.len() > self.limit {
            self.truncated = true;
            let mut excess = self.output.len() - self.limit;
            // Cuts at a character boundary.
            while excess < self.output.len() && self.output[excess] & 0xc0 == 0x80 {
                excess += 1;
            }
            self.output.drain(..excess);
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exit_status(exit: ExitStatus) -> Value {
    let signal = exit.signal().and_then(|signal| Signal::try_from(signal).ok());
    json!({ "exitCode": exit.code(), "signal": signal.map(Signal::as_str) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_output_is_kept_in_whole_characters() {
        let mut shared = Shared { limit: 4, ..Shared::default() };
        shared.append("ab".as_bytes());
        assert!(!shared.truncated);
        shared.append("cäö".as_bytes());
        assert_eq!((shared.output.as_slice(), shared.truncated), ("äö".as_bytes(), true));
        shared.append("x".as_bytes());
        assert_eq!(shared.output, "öx".as_bytes());
    }
}
