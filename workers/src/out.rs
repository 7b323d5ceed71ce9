//! Stdout: whole messages of many threads, one a line.
//!
//! A message is put together first and written under the lock, so that none is torn. When nobody reads any more
//! there is nobody to work for: the process ends.

use std::fs::File;
use std::io::ErrorKind;
use std::process;
use std::sync::Mutex;

use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::ready::write_all;
use crate::rpc::{Asker, Refusal};

pub(crate) struct Out {
    stdout: Mutex<File>,
}

/// Who waits for an answer, for longer than the line that asked is there.
#[derive(Clone)]
pub(crate) struct Waiter {
    pub(crate) id: Box<RawValue>,
    session: Option<Box<RawValue>>,
}

impl From<Asker<'_>> for Waiter {
    fn from(asker: Asker<'_>) -> Waiter {
        Waiter { id: asker.id.to_owned(), session: asker.session.map(ToOwned::to_owned) }
    }
}

impl Waiter {
    fn asker(&self) -> Asker<'_> {
        Asker { id: &self.id, session: self.session.as_deref() }
    }
}

#[derive(Serialize)]
struct Line<'a, T> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    /// Beside `params`, where clients of stdio_bus put it.
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

impl Out {
    pub(crate) fn new(stdout: File) -> Out {
        Out { stdout: Mutex::new(stdout) }
    }

    pub(crate) fn answer(&self, asker: Asker<'_>, result: &impl Serialize) {
        self.reply(Some(asker), Body::Result { result });
    }

    /// `None`: the line that is refused had no id that could be read.
    pub(crate) fn refuse(&self, asker: Option<Asker<'_>>, refusal: &Refusal) {
        let error = json!({ "code": refusal.code, "message": refusal.message });
        self.reply(asker, Body::Error { error: &error });
    }

    pub(crate) fn answer_waiter(&self, waiter: &Waiter, outcome: Result<&impl Serialize, &Value>) {
        match outcome {
            Ok(result) => self.answer(waiter.asker(), result),
            Err(error) => self.reply(Some(waiter.asker()), Body::Error { error }),
        }
    }

    pub(crate) fn update(&self, session: &str, update: acp::SessionUpdate) {
        let params = acp::SessionNotification::new(session.to_owned(), update);
        let body = Body::Call { method: "session/update", params: &params };
        self.write(&Line { jsonrpc: "2.0", id: None, session: None, body });
    }

    pub(crate) fn ask(&self, id: u64, method: &str, params: &impl Serialize) {
        let id = serde_json::value::to_raw_value(&id).expect("a number is JSON");
        let body = Body::Call { method, params };
        self.write(&Line { jsonrpc: "2.0", id: Some(&id), session: None, body });
    }

    fn reply<T: Serialize>(&self, asker: Option<Asker<'_>>, body: Body<'_, T>) {
        let id = asker.map_or(RawValue::NULL, |asker| asker.id);
        self.write(&Line {
            jsonrpc: "2.0",
            id: Some(id),
            session: asker.and_then(|asker| asker.session),
            body,
        });
    }

    fn write(&self, line: &impl Serialize) {
        let mut bytes = serde_json::to_vec(line).expect("memory takes every byte of a plain value");
        bytes.push(b'\n');
        let mut stdout = self.stdout.lock().expect("nobody panics with it");
        if let Err(error) = write_all(&mut *stdout, &bytes) {
            if error.kind() != ErrorKind::BrokenPipe {
                eprintln!("[agent] stdout: {error}");
                process::exit(1);
            }
            process::exit(0);
        }
    }
}
