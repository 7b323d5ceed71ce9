//! A real bus, clients on real sockets, and workers that the test plays by hand.
//!
//! No test sleeps and hopes. Every wait is for something that can be observed, has a generous deadline, and fails with
//! what was observed instead and with the log of the bus.

mod bus;
mod client;
mod connection;
mod log;
mod procs;
mod program;
mod puppet;
mod strace;

use std::fmt::Display;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use bus::{BUS, Bus, run, write_token};
pub(crate) use client::{Client, initialize, prompt, session_of};
pub(crate) use connection::Connection;
pub(crate) use log::Log;
pub(crate) use procs::{
    cpu_ticks, is_gone, is_stopped, marked, open_fds, peak_kib, started_with, zombies_of,
};
pub(crate) use program::Program;
pub(crate) use puppet::{Puppet, first_asked};
pub(crate) use strace::Strace;

/// How long a test waits before it fails. Long, because the machine may be busy with all other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A pool of puppets. `@sock` becomes the test's socket.
pub(crate) fn puppets(id: &str, instances: u32) -> Value {
    json!({ "id": id, "command": env!("CARGO_BIN_EXE_puppet"), "args": ["@sock", id], "instances": instances })
}

/// The same, started by a shell that first runs this.
pub(crate) fn puppets_after(prelude: &str, id: &str) -> Value {
    let script = format!(r#"{prelude}; exec "$0" "$@""#);
    json!({ "id": id, "command": "sh", "args": ["-c", script, env!("CARGO_BIN_EXE_puppet"), "@sock", id] })
}

/// A configuration with one pool of puppets, called `p`.
pub(crate) fn one_pool(instances: u32) -> Value {
    json!({ "pools": [puppets("p", instances)] })
}

/// A bus with one puppet and one client: what most tests begin with.
pub(crate) fn bus_puppet_client() -> (Bus, Puppet, Client) {
    let bus = Bus::start(one_pool(1));
    let puppet = bus.puppet();
    let client = bus.client();
    (bus, puppet, client)
}

/// `one_pool` with limits.
pub(crate) fn limited(instances: u32, limits: Value) -> Value {
    json!({ "pools": [puppets("p", instances)], "limits": limits })
}

/// A pool with further settings.
pub(crate) fn with(mut pool: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        pool[key] = value.clone();
    }
    pool
}

/// A request line. The id is given as it is spelled in JSON.
pub(crate) fn request(id: impl Display, method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

pub(crate) fn notification(method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

pub(crate) fn result(id: impl Display, result: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// A session/update of this session with this text.
pub(crate) fn update(session: &str, text: &str) -> String {
    update_of(session, json!({ "text": text }))
}

pub(crate) fn update_of(session: &str, update: Value) -> String {
    notification("session/update", json!({ "sessionId": session, "update": update }))
}

/// Writes a script of that name into the folder. A shell writes it: if it were open in this process, even for a moment,
/// a process that another test forks just then would hold it open too, and it could not be executed.
pub(crate) fn stands_in(folder: &Path, name: &str, script: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1.new" && chmod 755 "$1.new" && mv "$1.new" "$1""#;
    let path = folder.join(name);
    let done = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(done.is_ok_and(|status| status.success()), "{name} is not there");
}
