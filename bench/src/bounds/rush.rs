//! Everybody comes back at once: nobody is turned away by the system for want of somebody who accepts.

use std::io;
use std::thread;
use std::time::Instant;

use serde_json::json;

use super::{PATIENCE, Trial, unseen};
use crate::cost;
use crate::goal::time;
use crate::stage::echo;
use crate::talk::Socket;

const CONNECTIONS: usize = 9_000;
const THREADS: usize = 4;

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start(&json!({
        "listen": ["tcp://127.0.0.1:0"],
        "pools": [echo("echo", 1, &[])],
        "limits": { "max_clients": 2 * CONNECTIONS },
    }))?;
    let here = come(&bus, CONNECTIONS)?;
    let before = cost::listen_overflows().ok_or_else(unseen)?;
    drop(here);
    let begun = Instant::now();
    let back = come(&bus, CONNECTIONS)?;
    let took = begun.elapsed();
    let overflows = cost::listen_overflows().ok_or_else(unseen)?.saturating_sub(before);
    trial.sheet.tell(&format!("rush: {} come back within", back.len()), time(took));
    trial.sheet.at_most("rush: ListenOverflows, of the whole machine", overflows, 0);
    let mut watcher = bus.client()?;
    let all = back.len() as u64 + 1;
    let here =
        bus.until(PATIENCE, |_| watcher.status().is_ok_and(|status| status["clients"].as_u64() == Some(all)));
    trial.sheet.judge("rush: all are let in", if here { "yes" } else { "no" }, "yes", here);
    Ok(())
}

fn come(bus: &crate::stage::Bus, count: usize) -> io::Result<Vec<Socket>> {
    thread::scope(|scope| {
        let some = || (0..count / THREADS).map(|_| bus.door().open()).collect::<io::Result<Vec<_>>>();
        let threads = (0..THREADS).map(|_| scope.spawn(some)).collect::<Vec<_>>();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().expect("to connect does not panic")?);
        }
        Ok(all)
    })
}
