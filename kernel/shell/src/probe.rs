//! Starts one process of a pool, as the bus would, and hears how it answers initialize.
//!
//! For `check --probe`. Blocks, unlike all else in the shell: there is no bus here. Leaves no process behind.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::process::command::command;
use crate::process::pre_exec::{self, FoundLimits, Role};
use kernel_core::config::PoolConfig;

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{},"#,
    r#""clientInfo":{"name":"stdio-bus","title":"stdio Bus","version":""#,
    env!("CARGO_PKG_VERSION"),
    "\"}}}\n"
);
/// An answer longer than this is none.
const ANSWER_BYTES: usize = 16 << 20;
/// Of what it printed instead, this much is shown.
const SHOWN_BYTES: usize = 300;

/// The result of its initialize, or what went wrong instead.
pub fn probe(pool: &PoolConfig, this_binary: &Path, patience: Duration) -> Result<Value, String> {
    let refused = |errno| std::io::Error::from_raw_os_error(errno).to_string();
    let mut command = command(pool, this_binary).map_err(|fault| refused(fault.errno))?;
    pre_exec::prepare(&mut command, Role::Worker, FoundLimits::default());
    let mut child = command.spawn().map_err(|fault| fault.to_string())?;
    let outcome = ask(&mut child, Instant::now() + patience);
    let group = Pid::from_raw(child.id() as i32);
    let _ = killpg(group, Signal::SIGKILL);
    let exit = child.wait();
    outcome.map_err(|fault| match (fault, exit) {
        (Silence::Ended(printed), Ok(exit)) => format!("it ended ({exit}) without an answer{printed}"),
        (Silence::Ended(printed), Err(_)) => format!("it ended without an answer{printed}"),
        (Silence::Late(printed), _) => format!("no answer to initialize within {patience:?}{printed}"),
        (Silence::Refused(error), _) => format!("it answered initialize with an error: {error}"),
    })
}

enum Silence {
    Ended(String),
    Late(String),
    Refused(Value),
}

fn ask(child: &mut Child, until: Instant) -> Result<Value, Silence> {
    let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("both are piped");
    };
    let _ = stdin.write_all(INITIALIZE.as_bytes());
    let mut heard = Vec::new();
    let mut handled = 0;
    loop {
        while let Some(end) = heard[handled..].iter().position(|byte| *byte == b'\n') {
            let line = &heard[handled..handled + end];
            handled += end + 1;
            let Ok(mut answer) = serde_json::from_slice::<Value>(line) else { continue };
            if answer["id"] == 1 && answer.get("method").is_none() {
                return match answer.get("error") {
                    Some(error) if !error.is_null() => Err(Silence::Refused(error.clone())),
                    _ => Ok(answer["result"].take()),
                };
            }
        }
        match read_some(&mut stdout, &mut heard, until) {
            Some(0) => return Err(Silence::Ended(printed(child, &heard))),
            Some(_) if heard.len() < ANSWER_BYTES => {}
            _ => return Err(Silence::Late(printed(child, &heard))),
        }
    }
}

/// None: not in time.
fn read_some(stdout: &mut ChildStdout, heard: &mut Vec<u8>, until: Instant) -> Option<usize> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let ready = poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout);
    if !matches!(ready, Ok(1..)) {
        return None;
    }
    let mut chunk = [0; 64 << 10];
    let count = stdout.read(&mut chunk).unwrap_or(0);
    heard.extend_from_slice(&chunk[..count]);
    Some(count)
}

/// What it said instead of an answer: the end of its stderr, else of its stdout.
fn printed(child: &mut Child, heard: &[u8]) -> String {
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(1 << 20).read_to_end(&mut said);
    }
    let said = if said.trim_ascii().is_empty() { heard } else { &said };
    let said = said.trim_ascii();
    if said.is_empty() {
        return String::new();
    }
    let end = &said[said.len().saturating_sub(SHOWN_BYTES)..];
    // A control character must not steer the terminal.
    let shown = String::from_utf8_lossy(end)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>();
    format!(", it printed: {shown}")
}
