//! The waits that bus.json does not set: each ends when it should, and not before.

use std::io::{self, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use kernel_core::limit::{
    AUTH_LINE_BYTES, AUTH_TIMEOUT, BACKOFF_FIRST, CLOSE_TIMEOUT, EXIT_AFTER_EOF, FLUSH_ON_CLOSE,
    PENDING_AUTH_MAX, STOP_AT_ONCE, STOP_BY_EOF, STOP_BY_TERM, UNFINISHED_LINE_TIMEOUT,
};
use nix::sys::signal::Signal;
use rpc::{Stream, write};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Trial;
use super::limits::{in_pool, shell_agent};
use crate::bus::{Bus, PATIENCE, config, echo};
use crate::procfs;
use crate::report::time;

/// More than the buffers of a socket take.
const UNREAD_BYTES: usize = 8 << 20;
/// What a machine that is busy may add to a wait.
const SLACK: Duration = Duration::from_secs(2);

pub(super) fn pools_that_wait() -> Value {
    let closes = r#"case $line in
        *'"initialize"'*) answer "$init";;
        *session/new*) answer '{"sessionId":"s"}';;
        *session/load*) answer '{}';;
        esac"#;
    config(&[
        shell_agent("closes", closes),
        shell_agent("shuts", "exec 1>&-; sleep 1000"),
        shell_agent("dies", "exit 1"),
    ])
}

/// Waits of clients and agents.
pub(super) fn of_peers(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut unfinished = bus.connect()?;
    unfinished.write_all(b"{\"half\":")?;
    let began = Instant::now();

    let mut client = bus.client()?;
    client.join_pool("shuts")?;
    let asked = Instant::now();
    let reason = client.ask_or_reason("any/thing", json!({}))?.err().unwrap_or_default();
    trial.report.check("waits: stdout is closed", &reason, "worker_lost", reason == "worker_lost");
    lasts(trial, "waits: a process that has closed its stdout", asked.elapsed(), EXIT_AFTER_EOF);

    let mut client = bus.client()?;
    client.join_pool("dies")?;
    client.ask_or_reason("any/thing", json!({}))?.err();
    let asked = Instant::now();
    client.ask_or_reason("any/thing", json!({}))?.err();
    // The process had ended a moment before its callers heard of it.
    lasts(trial, "waits: the next start after a crash", asked.elapsed(), BACKOFF_FIRST / 2);

    let mut client = in_pool(&bus, "closes")?;
    let session = client.open_session()?;
    drop(client);
    let mut client = in_pool(&bus, "closes")?;
    let asked = Instant::now();
    client.ask("session/load", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] }))?;
    lasts(trial, "waits: a load behind a close that is not answered", asked.elapsed(), CLOSE_TIMEOUT);

    is_closed_after(&mut unfinished)?;
    lasts(trial, "waits: a line that is not finished", began.elapsed(), UNFINISHED_LINE_TIMEOUT);
    Ok(())
}

pub(super) fn stubborn() -> Value {
    let ignores = "trap '' TERM; while :; do sleep 1000; done";
    config(&[json!({ "id": "stays", "command": "sh", "args": ["-c", ignores], "max_instances": 1 })])
}

/// A process that ends neither by the end of its stdin nor by SIGTERM.
pub(super) fn of_a_stop(trial: &mut Trial<'_>) -> io::Result<()> {
    for (signals, limit) in [(1, STOP_BY_EOF + STOP_BY_TERM), (2, STOP_AT_ONCE)] {
        let mut bus = trial.start()?;
        let began = Instant::now();
        for _ in 0..signals {
            bus.signal(Signal::SIGTERM)?;
            bus.until(PATIENCE, |bus| bus.log().contains("stop"));
        }
        bus.exit_within(PATIENCE);
        let what = format!("waits: a stop with {signals} signals and a process that stays");
        lasts(trial, &what, began.elapsed(), limit);
    }
    of_a_last_answer(trial)
}

/// A client that does not read what it is still owed.
fn of_a_last_answer(trial: &mut Trial<'_>) -> io::Result<()> {
    let mut bus = Bus::start(trial.stdio_bus, &config(&[echo("echo", 1, &[])]))?;
    let mut client = bus.client()?;
    let text = "x".repeat(UNREAD_BYTES);
    client.send(&write::request(1, "any/thing", json!({ "text": text })))?;
    bus.until(PATIENCE, |bus| bus.status().is_ok_and(|status| status["held_bytes"].as_u64() > Some(0)));
    let began = Instant::now();
    bus.signal(Signal::SIGTERM)?;
    bus.exit_within(PATIENCE);
    lasts(trial, "waits: a stop with a client that does not read", began.elapsed(), FLUSH_ON_CLOSE);
    Ok(())
}

/// Connections that do not show the token.
pub(super) fn of_strangers(trial: &mut Trial<'_>) -> io::Result<()> {
    let folder = TempDir::with_prefix("bus-bench-")?;
    let token = folder.path().join("token");
    let made = Command::new(trial.stdio_bus).arg("token").arg(&token).output()?;
    if !made.status.success() {
        return Err(io::Error::other("no token can be made"));
    }
    let mut config = (trial.bound.config)(trial.stdio_bus);
    config["auth"] = json!({ "token_file": token });
    let bus = Bus::start(trial.stdio_bus, &config)?;
    let mut silent = bus.connect()?;
    let began = Instant::now();
    is_closed_after(&mut silent)?;
    lasts(trial, "waits: a connection that does not show the token", began.elapsed(), AUTH_TIMEOUT);

    let mut long = bus.connect()?;
    let began = Instant::now();
    long.write_all(&vec![b'x'; AUTH_LINE_BYTES + 2])?;
    is_closed_after(&mut long)?;
    trial.report.time_at_most(
        "tokens: a first line that is too long ends after",
        began.elapsed(),
        AUTH_TIMEOUT / 2,
    );

    let before = procfs::open_fds(bus.pid())?;
    let _crowd = (0..4 * PENDING_AUTH_MAX).map(|_| bus.connect()).collect::<io::Result<Vec<_>>>()?;
    let mut most = 0;
    // Whoever comes when it is full makes room, so that the number settles while they are still silent.
    let began = Instant::now();
    while began.elapsed() < AUTH_TIMEOUT / 2 {
        most = most.max(procfs::open_fds(bus.pid())?.saturating_sub(before));
    }
    trial.report.at_most(
        "tokens: connections that have yet to show it",
        most as u64,
        2 * PENDING_AUTH_MAX as u64,
    );
    Ok(())
}

/// Reads until the end of a connection.
fn is_closed_after(stream: &mut Stream) -> io::Result<()> {
    stream.set_read_timeout(Some(2 * UNFINISHED_LINE_TIMEOUT))?;
    while stream.read(&mut [0; 512])? > 0 {}
    Ok(())
}

fn lasts(trial: &mut Trial<'_>, what: &str, got: Duration, limit: Duration) {
    // The clocks of two processes are compared, and the bus counts from when it has read something.
    let least = limit.mul_f64(0.9);
    let goal = format!("{} to {}", time(least), time(limit + SLACK));
    trial.report.check(what, time(got), goal, got >= least && got <= limit + SLACK);
}
