//! The stage: a real bus, clients on real sockets, and workers that the test plays by hand.
//!
//! Nothing here sleeps for luck. Every wait is for something to be seen, has a generous deadline, and fails with
//! what was seen instead and what the bus logged.

mod bus;
mod client;
mod log;
mod procs;
mod puppet;
mod strace;
mod talk;
mod wire;

use std::fmt::Display;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use bus::{BUS, Bus, run, write_token};
pub(crate) use client::{Client, initialize, prompt, session_of};
pub(crate) use log::Log;
pub(crate) use procs::{
    cpu_ticks, is_gone, is_stopped, marked, open_fds, peak_kib, started_with, zombies_of,
};
pub(crate) use puppet::{Puppet, whoever_hears};
pub(crate) use strace::Strace;
pub(crate) use talk::Talk;
pub(crate) use wire::Wire;

/// How long a test waits before it gives up. Long, because the machine may be busy with all the others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A pool of puppets. `@sock` becomes the test's socket.
pub(crate) fn puppets(id: &str, instances: u32) -> Value {
    json!({ "id": id, "command": env!("CARGO_BIN_EXE_puppet"), "args": ["@sock", id], "instances": instances })
}

/// The same, started by a shell that first does this.
pub(crate) fn puppets_after(prelude: &str, id: &str) -> Value {
    let script = format!(r#"{prelude}; exec "$0" "$@""#);
    json!({ "id": id, "command": "sh", "args": ["-c", script, env!("CARGO_BIN_EXE_puppet"), "@sock", id] })
}

/// A configuration with one pool of puppets, called `p`.
pub(crate) fn one_pool(instances: u32) -> Value {
    json!({ "pools": [puppets("p", instances)] })
}

/// `one_pool` with limits.
pub(crate) fn limited(instances: u32, limits: Value) -> Value {
    json!({ "pools": [puppets("p", instances)], "limits": limits })
}

/// A pool with more to say about it than `puppets`.
pub(crate) fn with(mut pool: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        pool[key] = value.clone();
    }
    pool
}

/// `id` as it is to be spelled.
pub(crate) fn request(id: impl Display, method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

pub(crate) fn notification(method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

pub(crate) fn result(id: impl Display, result: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// A session/update of this session that says this text.
pub(crate) fn update(session: &str, text: &str) -> String {
    update_of(session, json!({ "text": text }))
}

pub(crate) fn update_of(session: &str, update: Value) -> String {
    notification("session/update", json!({ "sessionId": session, "update": update }))
}

/// A script of that name in the folder. A shell writes it: were it open here, even for a moment, a process that another
/// test forks just then would hold it open too, and nobody could run it.
pub(crate) fn stands_in(folder: &Path, name: &str, script: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1.new" && chmod 755 "$1.new" && mv "$1.new" "$1""#;
    let path = folder.join(name);
    let done = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(done.is_ok_and(|status| status.success()), "{name} is not there");
}
