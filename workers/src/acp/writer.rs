//! Messages to the client, written to stdout by many threads.
//!
//! A message is encoded first and written under the lock, so that no line is torn. When the client has closed its
//! end, the process exits.

use std::fs::File;
use std::io::ErrorKind;
use std::process;
use std::sync::Mutex;

use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::error::{Caller, RpcError};
use super::fd_wait::write_all;

pub(crate) struct Writer {
    stdout: Mutex<File>,
}

/// A `Caller` that outlives the line of its request.
#[derive(Clone)]
pub(crate) struct OwnedCaller {
    pub(crate) id: Box<RawValue>,
    session: Option<Box<RawValue>>,
}

impl From<Caller<'_>> for OwnedCaller {
    fn from(caller: Caller<'_>) -> OwnedCaller {
        OwnedCaller { id: caller.id.to_owned(), session: caller.session.map(ToOwned::to_owned) }
    }
}

impl OwnedCaller {
    fn borrow(&self) -> Caller<'_> {
        Caller { id: &self.id, session: self.session.as_deref() }
    }
}

#[derive(Serialize)]
struct Line<'a, T> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    /// Clients of stdio_bus put it beside `params`.
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session: Option<&'a RawValue>,
    #[serde(flatten)]
    body: Body<'a, T>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a, T> {
    Result { result: &'a T },
    Error { error: &'a T },
    Call { method: &'a str, params: &'a T },
}

impl Writer {
    pub(crate) fn new(stdout: File) -> Writer {
        Writer { stdout: Mutex::new(stdout) }
    }

    pub(crate) fn respond(&self, caller: Caller<'_>, result: &impl Serialize) {
        self.write_response(Some(caller), Body::Result { result });
    }

    /// `None`: the line had no valid id.
    pub(crate) fn respond_error(&self, caller: Option<Caller<'_>>, error: &RpcError) {
        let error = json!({ "code": error.code, "message": error.message });
        self.write_response(caller, Body::Error { error: &error });
    }

    pub(crate) fn respond_later(&self, caller: &OwnedCaller, outcome: Result<&impl Serialize, &Value>) {
        match outcome {
            Ok(result) => self.respond(caller.borrow(), result),
            Err(error) => self.write_response(Some(caller.borrow()), Body::Error { error }),
        }
    }

    pub(crate) fn update(&self, session_id: &str, update: acp::SessionUpdate) {
        let params = acp::SessionNotification::new(session_id.to_owned(), update);
        let body = Body::Call { method: "session/update", params: &params };
        self.write(&Line { jsonrpc: "2.0", id: None, session: None, body });
    }

    pub(crate) fn request(&self, id: u64, method: &str, params: &impl Serialize) {
        let id = serde_json::value::to_raw_value(&id).expect("a number is JSON");
        let body = Body::Call { method, params };
        self.write(&Line { jsonrpc: "2.0", id: Some(&id), session: None, body });
    }

    fn write_response<T: Serialize>(&self, caller: Option<Caller<'_>>, body: Body<'_, T>) {
        let id = caller.map_or(RawValue::NULL, |caller| caller.id);
        self.write(&Line {
            jsonrpc: "2.0",
            id: Some(id),
            session: caller.and_then(|caller| caller.session),
            body,
        });
    }

    fn write(&self, line: &impl Serialize) {
        let mut bytes = serde_json::to_vec(line).expect("a plain value is JSON");
        bytes.push(b'\n');
        let mut stdout = self.stdout.lock().expect("no thread panics while it holds the lock");
        if let Err(error) = write_all(&mut *stdout, &bytes) {
            if error.kind() != ErrorKind::BrokenPipe {
                eprintln!("[agent] stdout: {error}");
                process::exit(1);
            }
            process::exit(0);
        }
    }
}
