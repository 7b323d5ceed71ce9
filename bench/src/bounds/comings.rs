//! Clients that come and go: none leaves a file open or memory taken.

use std::io;
use std::time::Instant;

use serde_json::json;

use super::{PATIENCE, Trial, unseen};
use crate::cost;
use crate::stage::echo;

const UNIX: usize = 100_000;
const TCP: usize = 20_000;
const GROWTH_BYTES: u64 = 1 << 20;
/// So many first, so that what is kept for reuse is there.
const FIRST: usize = 1000;

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start(&json!({
        "listen": ["unix://@dir/bus.sock", "tcp://127.0.0.1:0"],
        "pools": [echo("echo", 1, &[])],
    }))?;
    let mut watcher = bus.client()?;
    for door in bus.doors() {
        (0..FIRST).try_for_each(|_| door.open().map(drop))?;
    }
    let mut settled = || {
        bus.until(PATIENCE, |_| watcher.status().is_ok_and(|status| status["clients"] == 1));
        cost::open_fds(bus.pid()).zip(cost::resident_bytes(bus.pid())).ok_or_else(unseen)
    };
    let (fds, bytes) = settled()?;
    for (door, whole) in bus.doors().iter().zip([UNIX, TCP]) {
        for done in 0..trial.count(whole) {
            let _ = door.open()?;
            trial.progress.show(Instant::now(), || format!("{done} at {door}"));
        }
    }
    let (fds_after, bytes_after) = settled()?;
    let what = format!("comings: files open after {} + {}", trial.count(UNIX), trial.count(TCP));
    trial.sheet.judge(&what, fds_after, fds, fds_after == fds);
    let grown = Some(bytes_after.saturating_sub(bytes));
    trial.sheet.bytes_at_most("comings: growth", grown, GROWTH_BYTES);
    Ok(())
}
