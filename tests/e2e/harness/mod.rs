//! A real bus, clients on real sockets, and workers that the test plays by hand.
//!
//! No test sleeps and hopes. Every wait is for something that can be observed, has a generous deadline, and fails with
//! what was observed instead and with the log of the bus.

mod bus;
mod client;
mod configs;
mod connection;
mod log;
mod messages;
mod procs;
mod program;
mod puppet;
mod strace;
mod waiting;
mod web;
mod web_http;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

pub(crate) use bus::{BUS, Bus, run, write_token};
pub(crate) use client::Client;
pub(crate) use configs::{limited, one_pool, puppets, puppets_after, unshared, with};
pub(crate) use connection::Connection;
pub(crate) use log::Log;
pub(crate) use messages::{initialize, notification, prompt, request, result, session_of, update, update_of};
pub(crate) use procs::{
    MARK, children_of, command_line, cpu_ticks, is_gone, is_stopped, marked, open_fds, peak_kib,
    started_with, zombies_of,
};
pub(crate) use program::{Program, ProgramPlan};
pub(crate) use puppet::{Puppet, first_asked};
pub(crate) use strace::Strace;
pub(crate) use waiting::{PATIENCE, looks_again, time_passes};
pub(crate) use web::{Web, WebSocket};
pub(crate) use web_http::{Events, HttpClient};

/// The machine lacks what a test needs, so that the test is skipped. Where CI=true it fails instead.
pub(crate) fn skips(what: impl Display) {
    assert_ne!(
        std::env::var("CI").as_deref(),
        Ok("true"),
        "nothing is skipped where CI=true, and here is missing: {what}"
    );
    eprintln!("SKIPPED: {what}");
    // The gate names it at its end: what a test that passes says is not shown.
    if let Some(notes) = std::env::var_os("BUS_GATE_NOTES") {
        let file = OpenOptions::new().append(true).open(Path::new(&notes).join("skipped"));
        writeln!(file.expect("the gate has made it"), "{what}").expect("the gate's notes take a line");
    }
}

/// A bus with one puppet and one client: what most tests begin with.
pub(crate) fn bus_puppet_client() -> (Bus, Puppet, Client) {
    let bus = Bus::start(one_pool(1));
    let puppet = bus.puppet();
    let client = bus.client();
    (bus, puppet, client)
}

/// Writes a script of that name into the folder. A shell writes it: if it were open in this process, even for a moment,
/// a process that another test forks just then would hold it open too, and it could not be executed.
pub(crate) fn write_script(folder: &Path, name: &str, script: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1.new" && chmod 755 "$1.new" && mv "$1.new" "$1""#;
    let path = folder.join(name);
    let done = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(done.is_ok_and(|status| status.success()), "{name} is not there");
}
