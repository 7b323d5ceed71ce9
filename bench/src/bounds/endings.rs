//! The bus is told to stop, or is killed, under load: nothing that it started is left, not even what has left its
//! worker's group and session.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{PATIENCE, Trial};
use crate::stage::Bus;
use crate::talk::Talk;

const BY_SIGTERM: usize = 100;
const BY_SIGKILL: usize = 50;
const WORKERS: usize = 3;
const CLIENTS: usize = 8;
/// With a second for the calls in flight, two for a worker to end by itself and three to end when it is told to.
const STOP: Duration = Duration::from_secs(7);
/// What a killed bus has left must be gone by then.
const GONE: Duration = Duration::from_secs(1);

pub(super) fn by_sigterm(trial: &mut Trial<'_>) -> io::Result<()> {
    end(trial, "sigterm", BY_SIGTERM, Signal::SIGTERM)
}

pub(super) fn by_sigkill(trial: &mut Trial<'_>) -> io::Result<()> {
    end(trial, "sigkill", BY_SIGKILL, Signal::SIGKILL)
}

fn end(trial: &mut Trial<'_>, name: &str, whole: usize, signal: Signal) -> io::Result<()> {
    let runs = trial.count(whole);
    let (mut left, mut late, mut slowest, mut unclean) = (Vec::new(), 0, Duration::ZERO, 0);
    for run in 0..runs {
        let mut bus = trial.start(&config(trial))?;
        bus.until_up(WORKERS, PATIENCE)?;
        let _busy = (0..CLIENTS).map(|_| asking(&bus)).collect::<io::Result<Vec<_>>>()?;
        let told = Instant::now();
        bus.signal(signal)?;
        match bus.exit_within(STOP + PATIENCE) {
            Some(status) => unclean += usize::from(signal == Signal::SIGTERM && !status.success()),
            None => unclean += 1,
        }
        slowest = slowest.max(told.elapsed());
        late += usize::from(told.elapsed() > STOP);
        let patience = if signal == Signal::SIGKILL { GONE } else { Duration::from_millis(100) };
        if !bus.until(patience, |bus| bus.survivors().is_empty()) {
            left.extend(bus.sweep());
        }
        trial.progress.show(Instant::now(), || format!("{run} of {runs}"));
    }
    trial.sheet.judge(&format!("{name}: processes left after {runs} runs"), left.len(), 0, left.is_empty());
    if let Some(first) = left.first() {
        trial.sheet.tell(&format!("{name}: first of these"), first);
    }
    if signal == Signal::SIGTERM {
        trial.sheet.judge(&format!("{name}: exits that are not clean"), unclean, 0, unclean == 0);
        trial.sheet.judge(&format!("{name}: later than {STOP:?}"), late, 0, late == 0);
        trial.sheet.time_at_most(&format!("{name}: the slowest"), slowest, STOP);
    }
    Ok(())
}

/// Each worker has a child in its group and one that has left it.
fn config(trial: &Trial<'_>) -> Value {
    let bus = trial.stdio_bus.display();
    let aside = "</dev/null >/dev/null 2>&1 &";
    let script =
        format!("sleep 1000 {aside} setsid sleep 1000 {aside} exec '{bus}' agent echo --delay-ms 20");
    json!({
        "listen": ["tcp://127.0.0.1:0"],
        "pools": [{ "id": "family", "command": "sh", "args": ["-c", script], "instances": WORKERS }],
        "limits": { "drain_timeout_sec": 1 },
    })
}

/// A client in the middle of a long turn.
fn asking(bus: &Bus) -> io::Result<Talk> {
    let mut talk = bus.client()?;
    let session = talk.open_session()?;
    let text = "word ".repeat(200);
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    talk.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params }))?;
    talk.message()?;
    Ok(talk)
}
