//! A `codex app-server` that is asked questions, apart from those that run the sessions.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bridge::codex_params;
use crate::detect::{Model, probe};

const LIMIT: Duration = Duration::from_secs(20);
const EXIT_LIMIT: Duration = Duration::from_secs(2);
/// A whole thread comes in one line.
const LINE_BYTES: usize = 64 << 20;

/// What a client is to know before it opens a session.
pub(super) struct Welcome {
    pub(super) models: Vec<Model>,
    pub(super) is_logged_out: bool,
}

/// Returns `None` if the CLI does not answer.
pub(super) fn welcome(program: &Path) -> Option<Welcome> {
    let mut server = Server::start(program)?;
    let is_logged_out =
        server.ask("account/read", &json!({})).is_some_and(|account| codex_params::is_logged_out(&account));
    let models = server.ask("model/list", &json!({}))?;
    Some(Welcome { models: codex_params::models(&models["data"]), is_logged_out })
}

/// A process that answers questions and runs no thread.
pub(super) struct Server {
    process: Option<probe::Conversation>,
    until: Instant,
    last_id: u64,
}

impl Server {
    pub(super) fn start(program: &Path) -> Option<Server> {
        let process = probe::converse(program, &["app-server".to_owned()], LINE_BYTES)?;
        let mut server = Server { process: Some(process), until: Instant::now() + LIMIT, last_id: 0 };
        let client =
            json!({ "name": "stdio-bus", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") });
        server.ask("initialize", &json!({ "clientInfo": client }))?;
        server.send(&json!({ "method": "initialized" }))?;
        Some(server)
    }

    /// The result, or `None` if there is an error or no answer in time.
    pub(super) fn ask(&mut self, method: &str, params: &Value) -> Option<Value> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "id": id, "method": method, "params": params }))?;
        let process = self.process.as_mut()?;
        loop {
            let line = process.lines.read_line(&mut process.stdout, Some(self.until)).ok()??;
            let message: Value = serde_json::from_slice(line).unwrap_or_default();
            if message["id"] == id && message["method"].is_null() {
                return Some(message["result"].clone()).filter(|result| !result.is_null());
            }
        }
    }

    fn send(&mut self, message: &Value) -> Option<()> {
        self.process.as_mut()?.stdin.write_all(format!("{message}\n").as_bytes()).ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.end(Instant::now() + EXIT_LIMIT);
        }
    }
}
