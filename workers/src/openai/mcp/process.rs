//! The process of an MCP server, and its end.
//!
//! The server has a process group of its own, so that everything it starts (npx starts node) ends with it. It does not
//! get the keys of the model's endpoint, which are in the environment of the agent. What it writes to stderr is logged.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rmcp::RoleClient;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::http::MESSAGE_BYTES_MAX;
use super::secrets::Secrets;
use crate::lock::lock;
use crate::openai::config::SECRET_VARIABLES;
use crate::openai::log::log;

/// A server ends itself at the end of its stdin. After this time it is asked to, and after it again it is killed.
const END_GRACE: Duration = Duration::from_millis(700);
const LAST_LINE_TIMEOUT: Duration = Duration::from_millis(200);
/// A longer line of stderr is cut.
const LINE_BYTES_MAX: usize = 500;
/// Later lines of stderr are not logged.
const LINES_MAX: usize = 200;

pub(super) type StdioTransport = AsyncRwTransport<RoleClient, ChildStdout, ChildStdin>;

pub(super) struct Process {
    child: Child,
    group: Pid,
    stderr: JoinHandle<()>,
    last_line: Arc<Mutex<String>>,
}

impl Process {
    pub(super) fn start(
        spec: &acp::McpServerStdio,
        cwd: &Path,
        secrets: &Secrets,
    ) -> Result<(StdioTransport, Process), String> {
        let mut command = Command::new(&spec.command);
        command.args(&spec.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.envs(spec.env.iter().map(|variable| (&variable.name, &variable.value)));
        if cwd.is_dir() {
            command.current_dir(cwd);
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", spec.command.display()))?;
        let group = Pid::from_raw(child.id().unwrap_or_default() as i32);
        let last_line = Arc::<Mutex<String>>::default();
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three are pipes");
        };
        let lines = log_lines(stderr, spec.name.clone(), secrets.clone(), last_line.clone());
        let stderr = tokio::spawn(lines);
        let transport = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(MESSAGE_BYTES_MAX);
        Ok((transport, Process { child, group, stderr, last_line }))
    }

    /// The last line of stderr, which may say why the server does not work.
    pub(super) async fn last_line(&mut self) -> String {
        // It may come a little later than the end.
        let _ = timeout(LAST_LINE_TIMEOUT, &mut self.stderr).await;
        lock(&self.last_line).clone()
    }

    /// Waits for the end, after stdin was closed. What remains is killed when this is dropped.
    pub(super) async fn end(mut self) {
        if timeout(END_GRACE, self.child.wait()).await.is_err() {
            let _ = killpg(self.group, Signal::SIGTERM);
            let _ = timeout(END_GRACE, self.child.wait()).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group may be empty.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

async fn log_lines(
    mut stderr: impl AsyncRead + Unpin,
    name: String,
    secrets: Secrets,
    last_line: Arc<Mutex<String>>,
) {
    let mut buffer = [0; 4096];
    let mut line = Vec::new();
    let mut lines = 0;
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for &byte in &buffer[..count] {
            if byte != b'\n' {
                if line.len() < LINE_BYTES_MAX {
                    line.push(byte);
                }
                continue;
            }
            let text = secrets.redact(String::from_utf8_lossy(&line).trim());
            line.clear();
            if text.is_empty() {
                continue;
            }
            if lines < LINES_MAX {
                log(format_args!("MCP server {name}: {text}"));
            }
            lines += 1;
            *lock(&last_line) = text;
        }
    }
}
