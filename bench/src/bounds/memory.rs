//! Bounds on memory: of clients that never read, of idle connections, and of connections that come and go.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Trial, load, p99};
use crate::address;
use crate::bus::{Bus, PATIENCE, echo};
use crate::client::Client;
use crate::idle::IdleCost;
use crate::procfs;

/// The agent floods a session with this many chunks of 64 KiB: one gigabyte for one prompt.
pub(super) const CHUNKS: usize = 16 << 10;
/// Four megabytes for each of many.
pub(super) const MANY_CHUNKS: usize = 64;
const CHUNK_BYTES: usize = 64 << 10;
const QUEUE_BYTES: u64 = 4 << 20;
/// `max_output_queue` times this may wait for one client, so that others need not wait for it.
const HARD_TIMES: u64 = 4;
/// What the logs of all sessions may take besides.
const LOG_BYTES: u64 = 1 << 20;
const MANY: usize = 1000;
const HELD_BYTES: u64 = 256 << 20;
const OVERHEAD_BYTES: u64 = 64 << 20;

const IDLE_CONNECTIONS: usize = 10_000;
const IDLE_BYTES: u64 = 4 << 10;

const UNIX_CONNECTIONS: usize = 100_000;
const TCP_CONNECTIONS: usize = 20_000;
const GROWTH_BYTES: u64 = 1 << 20;
/// So many connections come first, so that what the bus keeps for reuse is there.
const FIRST_CONNECTIONS: usize = 1000;

/// A pool whose agents send much more than a client reads, and another pool. The system itself keeps megabytes for a
/// TCP connection, but little for one over a Unix socket.
pub(super) fn flood(instances: usize, chunks: usize) -> Value {
    let args = ["--chunks", &chunks.to_string(), "--chunk-bytes", &CHUNK_BYTES.to_string()];
    json!({
        "listen": ["unix://@dir/bus.sock"],
        "default_pool": "echo",
        "pools": [echo("echo", 1, &[]), echo("flood", instances, &args)],
        "limits": { "max_output_queue": QUEUE_BYTES, "max_held_bytes": HELD_BYTES, "max_log_bytes": LOG_BYTES },
    })
}

/// A client that never reads has a neighbour on the same worker, and other clients on another.
pub(super) fn one_never_reads(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let base = load(&bus, 4, Duration::from_secs(1))?;
    let before = procfs::resident_bytes(bus.pid())?;
    let (mut silent, session) = with_session(&bus)?;
    let mut neighbour = bus.client()?;
    neighbour.join_pool("flood")?;
    neighbour.ask("any/thing", json!({}))?;
    silent.prompt(&session, "x")?;
    let others = load(&bus, 4, Duration::from_secs(if trial.quick { 2 } else { 6 }))?;
    let grown = procfs::peak_bytes(bus.pid())?.saturating_sub(before);
    let report = &mut trial.report;
    // What is allocated is a little more than what is counted, and code comes into memory when it is first used.
    let limit = (HARD_TIMES * QUEUE_BYTES + LOG_BYTES) * 12 / 10;
    report.bytes_at_most("silent: 1 GB for one that never reads, growth", grown, limit);
    let faults = others.faults.lost + others.faults.wrong;
    report.at_most("silent: requests of others lost or wrong", faults, 0);
    report.times_at_most("silent: p99 of others", p99(&others), p99(&base), 2.0);
    let is_closed = bus
        .until(PATIENCE, |bus| bus.status().is_ok_and(|status| status["counters"]["stalled_clients"] == 1));
    report.holds("silent: it is let go", is_closed);
    let is_served = neighbour.ask("any/thing", json!({}))?.is_object();
    report.holds("silent: its neighbour is served", is_served);
    Ok(())
}

/// A thousand clients never read: what waits for all of them together has a limit too.
pub(super) fn many_never_read(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let before = procfs::resident_bytes(bus.pid())?;
    let mut silent = (0..MANY).map(|_| with_session(&bus)).collect::<io::Result<Vec<_>>>()?;
    for (client, session) in &mut silent {
        client.prompt(session, "x")?;
    }
    let mut held = 0;
    let mut watcher = bus.client()?;
    for _ in 0..100 {
        held = held.max(watcher.status()?["held_bytes"].as_u64().unwrap_or(0));
        thread::sleep(Duration::from_millis(100));
    }
    let grown = procfs::peak_bytes(bus.pid())?.saturating_sub(before);
    let limit = HELD_BYTES + OVERHEAD_BYTES;
    trial.report.bytes_at_most("silents: 4 GB for 1,000 that never read, growth", grown, limit);
    trial.report.bytes_at_most("silents: held at most", held, limit);
    let others = load(&bus, 4, Duration::from_secs(2))?;
    trial.report.check("silents: others are served", others.answered, "> 0", others.answered > 0);
    Ok(())
}

fn with_session(bus: &Bus) -> io::Result<(Client, String)> {
    let mut client = bus.client()?;
    client.join_pool("flood")?;
    let session = client.open_session()?;
    Ok((client, session))
}

pub(super) fn idle_connections(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let count = trial.count(IDLE_CONNECTIONS);
    let length = Duration::from_secs(if trial.quick { 2 } else { 10 });
    let cost = IdleCost::measure(&bus, count, length)?;
    trial.report.check("idle: connections held", cost.held, count, cost.held == count);
    let each = cost.bytes_each;
    let goal = format!("<= {IDLE_BYTES} B");
    trial.report.check("idle: memory of each", format!("{each} B"), goal, each <= IDLE_BYTES);
    trial.report.share_at_most("idle: processor time", cost.cpu_share, 0.5);
    Ok(())
}

pub(super) fn two_listeners() -> Value {
    json!({ "listen": ["unix://@dir/bus.sock", "tcp://127.0.0.1:0"], "pools": [echo("echo", 1, &[])] })
}

/// Connections that come and go leave no file open and no memory taken.
pub(super) fn connections_that_come_and_go(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut watcher = bus.client()?;
    for address in bus.addresses() {
        for _ in 0..FIRST_CONNECTIONS {
            address::connect(address)?;
        }
    }
    let mut settled = || {
        bus.until_clients(&mut watcher, 1);
        Ok::<_, io::Error>((procfs::open_fds(bus.pid())?, procfs::resident_bytes(bus.pid())?))
    };
    let (fds, bytes) = settled()?;
    for (address, whole) in bus.addresses().iter().zip([UNIX_CONNECTIONS, TCP_CONNECTIONS]) {
        for done in 0..trial.count(whole) {
            address::connect(address)?;
            trial.progress.show(Instant::now(), || format!("{done} at {address}"));
        }
    }
    let (_, bytes_after) = settled()?;
    // A connection is closed a moment after the bus has forgotten its client.
    bus.until(PATIENCE, |bus| procfs::open_fds(bus.pid()).is_ok_and(|now| now <= fds));
    let fds_after = procfs::open_fds(bus.pid())?;
    let (unix, tcp) = (trial.count(UNIX_CONNECTIONS), trial.count(TCP_CONNECTIONS));
    let what = format!("comings: files open after {unix} + {tcp}");
    trial.report.check(&what, fds_after, format!("<= {fds}"), fds_after <= fds);
    trial.report.bytes_at_most("comings: growth", bytes_after.saturating_sub(bytes), GROWTH_BYTES);
    Ok(())
}
