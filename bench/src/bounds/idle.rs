//! Connections that say hello and then nothing: what each costs, and what waiting costs.

use std::io;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::{Trial, unseen};
use crate::cost;
use crate::stage::echo;

const CONNECTIONS: usize = 10_000;
const BYTES_EACH: u64 = 4 << 10;

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start(&json!({
        "listen": ["tcp://127.0.0.1:0"],
        "pools": [echo("echo", 1, &[])],
        "limits": { "max_clients": CONNECTIONS + 10 },
    }))?;
    let mut watcher = bus.client()?;
    watcher.status()?;
    let before = cost::resident_bytes(bus.pid()).ok_or_else(unseen)?;
    let count = trial.count(CONNECTIONS);
    let mut idle = Vec::with_capacity(count);
    for _ in 0..count {
        // Without a reader's buffer: there may be ten thousand of them.
        idle.push(bus.door().open()?);
    }
    let all = bus.until(super::PATIENCE, |_| {
        watcher.status().is_ok_and(|status| status["clients"].as_u64() == Some(count as u64 + 1))
    });
    trial.sheet.judge("idle: connections held", if all { count } else { 0 }, count, all);
    let grown = cost::resident_bytes(bus.pid()).ok_or_else(unseen)?.saturating_sub(before);
    let each = grown / count as u64;
    trial.sheet.judge(
        "idle: memory of each",
        format!("{each} B"),
        format!("<= {BYTES_EACH} B"),
        each <= BYTES_EACH,
    );
    let length = Duration::from_secs(if trial.quick { 2 } else { 10 });
    let spent = cost::cpu_time(bus.pid()).ok_or_else(unseen)?;
    thread::sleep(length);
    let spent = cost::cpu_time(bus.pid()).ok_or_else(unseen)?.saturating_sub(spent);
    let share = spent.as_secs_f64() / length.as_secs_f64();
    trial.sheet.share_at_most("idle: processor time", share, 0.5);
    Ok(())
}
