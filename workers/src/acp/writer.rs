//! Messages to the client, written to stdout by many threads.
//!
//! A message is encoded first and written under the lock, so that no line is torn. When the client has closed its
//! end, the process exits.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::process;
use std::sync::Mutex;

use agent_client_protocol_schema::v1 as acp;
use rpc::{ReplyTo, RpcError, fd_wait, write};
use serde::Serialize;
use serde_json::json;

use super::serve::stdout;
use crate::lock::lock;

pub(crate) struct Writer {
    stdout: Mutex<File>,
}

impl Writer {
    pub(crate) fn stdout() -> io::Result<Writer> {
        Ok(Writer { stdout: Mutex::new(stdout()?) })
    }

    pub(crate) fn respond(&self, to: ReplyTo<'_>, outcome: Result<&impl Serialize, &RpcError>) {
        self.write(&match outcome {
            Ok(result) => write::result(to, result),
            Err(error) => write::error(to, error),
        });
    }

    pub(crate) fn update(&self, session_id: &str, update: acp::SessionUpdate) {
        let pending = acp::ToolCallStatus::Pending;
        let is_pending = matches!(&update, acp::SessionUpdate::ToolCall(call) if call.status == pending);
        let params = acp::SessionNotification::new(session_id.to_owned(), update);
        if is_pending {
            // The schema's types leave out a status that is the default, but some clients take none for a running call.
            let mut params = json!(params);
            params["update"]["status"] = json!(pending);
            return self.write(&write::notification("session/update", params));
        }
        self.write(&write::notification("session/update", params));
    }

    pub(crate) fn request(&self, id: u64, method: &str, params: &impl Serialize) {
        self.write(&write::request(id, method, params));
    }

    pub(crate) fn notify(&self, method: &str, params: &impl Serialize) {
        self.write(&write::notification(method, params));
    }

    fn write(&self, line: &[u8]) {
        let mut stdout = lock(&self.stdout);
        if let Err(error) = fd_wait::write_all(&mut *stdout, line) {
            if error.kind() != ErrorKind::BrokenPipe {
                eprintln!("[agent] stdout: {error}");
                process::exit(1);
            }
            process::exit(0);
        }
    }
}
