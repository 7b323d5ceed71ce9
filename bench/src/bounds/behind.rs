//! Head of line: nobody waits behind a worker that does not read, nor behind a client that does not.

use std::io;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{PATIENCE, Trial, load, p99};
use crate::request::Shape;
use crate::stage::{echo, up};

const CLIENTS: usize = 16;
const LENGTH: Duration = Duration::from_secs(5);
/// More than the queue of a worker and all pipes on the way.
const STUCK_BYTES: usize = 8 << 20;

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let flood = ["--chunks", "4096", "--chunk-bytes", "65536"];
    let bus = trial.start(&json!({
        "listen": ["tcp://127.0.0.1:0"],
        "default_pool": "good",
        "pools": [echo("good", 2, &[]), echo("stuck", 1, &[]), echo("flood", 1, &flood)],
    }))?;
    bus.until_up(4, PATIENCE)?;
    let base = load(&bus, CLIENTS, LENGTH)?;

    let workers = up(&bus.status()?);
    let stuck = Pid::from_raw(workers[2].1);
    kill(stuck, Signal::SIGSTOP)?;
    let mut behind_worker = bus.client()?;
    behind_worker.ask("hello", "_bus/hello", json!({ "pool": "stuck" }))?;
    behind_worker.socket().set_patience(Some(Duration::from_millis(200)))?;
    let (shape, mut lines) = (Shape::new(64 << 10), Vec::new());
    (1..=(STUCK_BYTES >> 16) as u64).for_each(|id| shape.write(&mut lines, 0, id));
    // Not all of it is taken.
    let _ = behind_worker.send(&lines);
    let mut deaf = bus.client()?;
    deaf.ask("hello", "_bus/hello", json!({ "pool": "flood" }))?;
    let session = deaf.open_session()?;
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
    deaf.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params }))?;

    let others = load(&bus, CLIENTS, LENGTH)?;
    kill(stuck, Signal::SIGCONT)?;
    trial.sheet.times_at_most(
        "behind: p99 of others, one worker and one client stalled",
        p99(&others),
        p99(&base),
        2.0,
    );
    trial.sheet.at_most(
        "behind: requests of others lost or wrong",
        others.faults.lost + others.faults.wrong,
        0,
    );
    Ok(())
}
