//! Workers that are killed as soon as they are up: each end is collected.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{PATIENCE, Trial, unseen};
use crate::cost;
use crate::stage::{echo, up};

const RESTARTS: usize = 1000;
const WORKERS: usize = 8;
const SAMPLES_APART: Duration = Duration::from_millis(100);

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let limits = json!({ "max_restarts": 1_000_000, "max_restart_delay_sec": 0.01 });
    let pools = json!([echo("echo", WORKERS, &[])]);
    let bus = trial.start(&json!({ "listen": ["tcp://127.0.0.1:0"], "pools": pools, "limits": limits }))?;
    bus.until_up(WORKERS, PATIENCE)?;
    let mut watcher = bus.client()?;
    let fds = cost::open_fds(bus.pid()).ok_or_else(unseen)?;
    let (wanted, mut killed) = (trial.count(RESTARTS), BTreeSet::new());
    let (mut next, mut samples, mut last, mut left) = (Instant::now(), 0, BTreeSet::new(), 0);
    while killed.len() < wanted {
        for (_, pid) in up(&watcher.status()?) {
            if killed.insert(pid) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if Instant::now() >= next {
            // One that is seen once has just ended; one that is seen again is not collected.
            let zombies = cost::zombies_of(bus.pid()).into_iter().collect::<BTreeSet<_>>();
            left += zombies.intersection(&last).count();
            (last, samples, next) = (zombies, samples + 1, Instant::now() + SAMPLES_APART);
        }
        trial.progress.show(Instant::now(), || format!("{} of {wanted}", killed.len()));
        thread::sleep(Duration::from_millis(2));
    }
    bus.until_up(WORKERS, PATIENCE)?;
    trial.sheet.tell("restarts: workers killed", killed.len());
    trial.sheet.judge(&format!("restarts: zombies in {samples} looks"), left, 0, left == 0);
    let settled = bus.until(PATIENCE, |bus| cost::open_fds(bus.pid()) == Some(fds));
    let fds_after = cost::open_fds(bus.pid()).unwrap_or(0);
    trial.sheet.judge("restarts: files open after them", fds_after, fds, settled);
    Ok(())
}
