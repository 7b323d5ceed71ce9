//! Clients that never read, with far more aimed at them than the bus may keep.

use std::io;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::{PATIENCE, Trial, load, p99, unseen};
use crate::cost;
use crate::stage::{Bus, echo};
use crate::talk::Talk;

const CHUNK_BYTES: usize = 64 << 10;
/// One gigabyte for one prompt.
const CHUNKS: usize = 16 << 10;
const QUEUE_BYTES: u64 = 4 << 20;
/// `max_output_queue` times this may wait for one client, so that others need not wait for it.
const HARD_TIMES: u64 = 4;

const MANY: usize = 1000;
/// Four megabytes for each of many.
const CHUNKS_FOR_MANY: usize = 64;
const HELD_BYTES: u64 = 256 << 20;
const OVERHEAD_BYTES: u64 = 64 << 20;

/// One of them, with a neighbour on the same worker and others on another.
pub(super) fn one(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = start(trial, 1, CHUNKS)?;
    let base = load(&bus, 4, Duration::from_secs(1))?;
    let before = cost::resident_bytes(bus.pid()).ok_or_else(unseen)?;
    let (mut silent, session) = with_session(&bus)?;
    let mut neighbour = bus.client()?;
    neighbour.ask("hello", "_bus/hello", json!({ "pool": "flood" }))?;
    neighbour.ask("ask", "any/thing", json!({}))?;
    prompt(&mut silent, &session)?;
    let length = if trial.quick { 2 } else { 6 };
    let others = load(&bus, 4, Duration::from_secs(length))?;
    let grown = cost::peak_bytes(bus.pid()).map(|peak| peak.saturating_sub(before));
    let most = HARD_TIMES * QUEUE_BYTES * 11 / 10;
    trial.sheet.bytes_at_most("silent: 1 GB for one that never reads, growth", grown, most);
    trial.sheet.at_most(
        "silent: requests of others lost or wrong",
        others.faults.lost + others.faults.wrong,
        0,
    );
    trial.sheet.times_at_most("silent: p99 of others", p99(&others), p99(&base), 2.0);
    let closed = bus
        .until(PATIENCE, |bus| bus.status().is_ok_and(|status| status["counters"]["stalled_clients"] == 1));
    trial.sheet.judge("silent: it is let go", if closed { "yes" } else { "no" }, "yes", closed);
    let served = neighbour.ask("ask", "any/thing", json!({}))?["result"].is_object();
    trial.sheet.judge("silent: its neighbour is served", if served { "yes" } else { "no" }, "yes", served);
    Ok(())
}

/// A thousand of them: all that waits for all of them has a limit too.
pub(super) fn many(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = start(trial, 4, CHUNKS_FOR_MANY)?;
    let before = cost::resident_bytes(bus.pid()).ok_or_else(unseen)?;
    let mut silent = (0..MANY).map(|_| with_session(&bus)).collect::<io::Result<Vec<_>>>()?;
    silent.iter_mut().try_for_each(|(talk, session)| prompt(talk, session))?;
    let mut most_held = 0;
    let mut watcher = bus.client()?;
    for _ in 0..100 {
        most_held = most_held.max(watcher.status()?["held_bytes"].as_u64().unwrap_or(0));
        thread::sleep(Duration::from_millis(100));
    }
    let grown = cost::peak_bytes(bus.pid()).map(|peak| peak.saturating_sub(before));
    let what = "silents: 4 GB for 1,000 that never read, growth";
    trial.sheet.bytes_at_most(what, grown, HELD_BYTES + OVERHEAD_BYTES);
    trial.sheet.bytes_at_most("silents: held at most", Some(most_held), HELD_BYTES + OVERHEAD_BYTES);
    let others = load(&bus, 4, Duration::from_secs(2))?;
    trial.sheet.judge("silents: others are served", others.answered, "> 0", others.answered > 0);
    drop(silent);
    Ok(())
}

fn start(trial: &Trial<'_>, instances: usize, chunks: usize) -> io::Result<Bus> {
    let args = ["--chunks", &chunks.to_string(), "--chunk-bytes", &CHUNK_BYTES.to_string()];
    // The system itself keeps megabytes for a TCP connection, but little for one over a socket file.
    let bus = trial.start(&json!({
        "listen": ["unix://@dir/bus.sock"],
        "default_pool": "echo",
        "pools": [echo("echo", 1, &[]), echo("flood", instances, &args)],
        "limits": { "max_output_queue": QUEUE_BYTES, "max_held_bytes": HELD_BYTES },
    }))?;
    bus.until_up(instances + 1, PATIENCE)?;
    Ok(bus)
}

fn with_session(bus: &Bus) -> io::Result<(Talk, String)> {
    let mut talk = bus.client()?;
    talk.ask("hello", "_bus/hello", json!({ "pool": "flood" }))?;
    let session = talk.open_session()?;
    Ok((talk, session))
}

/// It will read nothing of what this brings.
fn prompt(talk: &mut Talk, session: &str) -> io::Result<()> {
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
    talk.say(&json!({ "jsonrpc": "2.0", "id": "prompt", "method": "session/prompt", "params": params }))
}
