//! Bounds on what clients do to each other: many at once, stalled ones, ones that speak no JSON, and thieves.

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rpc::{Stream, write};
use serde_json::{Value, json};

use super::{Trial, load, p99};
use crate::bus::{Bus, PATIENCE, config, echo, up};
use crate::client::prompt;
use crate::procfs;
use crate::report::time;
use crate::request::Shape;

const RUSH_CONNECTIONS: usize = 9_000;
const RUSH_THREADS: usize = 4;

const LOAD_CLIENTS: usize = 16;
const LOAD_LENGTH: Duration = Duration::from_secs(5);
/// More than the queue of a worker and all pipes on the way hold.
const STUCK_BYTES: usize = 8 << 20;

/// How many random lines follow each first byte.
const TAILS: usize = 100;
const SILENT: usize = 1000;
/// What a browser sends when a web page posts a line to a port.
const BROWSER: &str =
    "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: 46\r\n\r\n";
const REQUEST: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"any/thing\"}\n";

const PROBES: usize = 100_000;
const PROBES_AT_ONCE: usize = 100;
const PROBE_METHODS: [&str; 4] = ["session/prompt", "session/close", "session/set_mode", "session/load"];
/// The tag that makes a session id unique, which comes first in it.
const TAG_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG_LENGTH: usize = 13;

pub(super) fn many_clients() -> Value {
    let mut config = config(&[echo("echo", 1, &[])]);
    config["limits"] = json!({ "max_clients": 2 * RUSH_CONNECTIONS });
    config
}

/// All clients reconnect at once, and the system must refuse none because the bus is slow to accept.
pub(super) fn all_reconnect_at_once(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let first = connect_from_threads(&bus)?;
    let overflows_before = procfs::listen_overflows()?;
    drop(first);
    let began = Instant::now();
    let second = connect_from_threads(&bus)?;
    let took = began.elapsed();
    let overflows = procfs::listen_overflows()?.saturating_sub(overflows_before);
    trial.report.note(&format!("rush: {} come back within", second.len()), time(took));
    trial.report.at_most("rush: ListenOverflows, of the whole machine", overflows, 0);
    let are_in = bus.until_clients(&mut bus.client()?, second.len() + 1);
    trial.report.holds("rush: all are let in", are_in);
    Ok(())
}

fn connect_from_threads(bus: &Bus) -> io::Result<Vec<Stream>> {
    thread::scope(|scope| {
        let part =
            || (0..RUSH_CONNECTIONS / RUSH_THREADS).map(|_| bus.connect()).collect::<io::Result<Vec<_>>>();
        let threads = (0..RUSH_THREADS).map(|_| scope.spawn(part)).collect::<Vec<_>>();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().expect("connecting does not panic")?);
        }
        Ok(all)
    })
}

pub(super) fn pool_to_stall() -> Value {
    let flood = ["--chunks", "4096", "--chunk-bytes", "65536"];
    let mut config = config(&[echo("good", 2, &[]), echo("stuck", 1, &[]), echo("flood", 1, &flood)]);
    config["default_pool"] = json!("good");
    config
}

/// No request waits behind a worker that does not read, nor behind a client that does not.
pub(super) fn others_stall(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let base = load(&bus, LOAD_CLIENTS, LOAD_LENGTH)?;

    let workers = up(&bus.status()?);
    let stuck = Pid::from_raw(workers[2].1);
    kill(stuck, Signal::SIGSTOP)?;
    let mut behind_worker = bus.client()?;
    behind_worker.join_pool("stuck")?;
    behind_worker.set_timeout(Duration::from_millis(200));
    let shape = Shape::new(64 << 10);
    let mut lines = Vec::new();
    for id in 1..=(STUCK_BYTES >> 16) as u64 {
        shape.write(&mut lines, 0, id);
    }
    // The bus does not take all of it.
    let _ = behind_worker.send(&lines);
    let mut never_reads = bus.client()?;
    never_reads.join_pool("flood")?;
    let session = never_reads.open_session()?;
    never_reads.prompt(&session, "x")?;

    let others = load(&bus, LOAD_CLIENTS, LOAD_LENGTH)?;
    kill(stuck, Signal::SIGCONT)?;
    let what = "behind: p99 of others, one worker and one client stalled";
    trial.report.times_at_most(what, p99(&others), p99(&base), 2.0);
    let faults = others.faults.lost + others.faults.wrong;
    trial.report.at_most("behind: requests of others lost or wrong", faults, 0);
    Ok(())
}

/// A connection whose first byte begins no JSON is no client: it gets no answer, and nothing of it reaches a worker.
pub(super) fn connections_that_speak_no_json(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut rng = Rng::with_seed(7);
    let mut answered = 0;
    let mut visits = 0;
    for first in (0..=u8::MAX).filter(|first| *first != b'{' && !first.is_ascii_whitespace()) {
        for _ in 0..trial.count(TAILS) {
            let tail = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect::<Vec<_>>();
            let bytes = [&[first][..], &tail, b"\n", REQUEST.as_bytes()].concat();
            answered += usize::from(is_answered(&bus, &bytes)?);
            visits += 1;
        }
    }
    answered += usize::from(is_answered(&bus, &format!("{BROWSER}{REQUEST}").into_bytes())?);
    trial.report.check(&format!("strangers: answered, of {}", visits + 1), answered, 0, answered == 0);
    let requests = bus.status()?["counters"]["requests"].as_u64().unwrap_or(u64::MAX);
    trial.report.at_most("strangers: requests that reached a worker", requests, 0);

    let silent = (0..trial.count(SILENT)).map(|_| bus.connect()).collect::<io::Result<Vec<_>>>()?;
    let began = Instant::now();
    bus.client()?.ask("_bus/hello", json!({}))?;
    let what = format!("strangers: hello beside {} that say nothing", silent.len());
    trial.report.time_at_most(&what, began.elapsed(), Duration::from_millis(100));
    Ok(())
}

/// Whether a byte comes back before the end.
fn is_answered(bus: &Bus, bytes: &[u8]) -> io::Result<bool> {
    let mut stream = bus.connect()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The bus may close the connection before all is sent.
    let _ = stream.write_all(bytes);
    match stream.read(&mut [0; 64]) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(false),
    }
}

/// A pool whose sessions belong to one client each.
pub(super) fn not_shared() -> Value {
    let mut config = config(&[echo("echo", 2, &[])]);
    config["pools"][0]["share"] = json!(false);
    config
}

/// A client that knows the id of another's session can neither use it nor tell it from one that does not exist.
pub(super) fn guessed_session_ids(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let (mut owner, mut thief) = (bus.client()?, bus.client()?);
    let session = owner.open_session()?;
    let mut rng = Rng::with_seed(3);
    let probes = trial.count(PROBES);
    let mut routed = 0;
    let mut told_apart = 0;
    for batch in 0..probes / PROBES_AT_ONCE {
        let method = PROBE_METHODS[batch % PROBE_METHODS.len()];
        let mut lines = Vec::new();
        for probe in 0..PROBES_AT_ONCE {
            // Every other id is the true one, the rest have another tag.
            let mut guess = session.clone();
            if probe % 2 == 1 {
                let tag = (0..TAG_LENGTH).map(|_| char::from(TAG_LETTERS[rng.usize(..32)]));
                guess = tag.chain(session.chars().skip(TAG_LENGTH)).collect();
            }
            let params =
                json!({ "sessionId": guess, "cwd": "/", "mcpServers": [], "modeId": "shout", "prompt": [] });
            lines.extend(write::request(1, method, params));
        }
        thief.send(&lines)?;
        let first = thief.line()?.to_vec();
        for answer in 0..PROBES_AT_ONCE {
            let line = if answer == 0 { &first } else { thief.line()? };
            let is_refused = memchr::memmem::find(line, b"\"unknown_session\"").is_some();
            routed += usize::from(!is_refused);
            told_apart += usize::from(*line != *first);
        }
        trial.progress.show(Instant::now(), || format!("{} of {probes}", batch * PROBES_AT_ONCE));
    }
    trial.report.check(&format!("probes: routed, of {probes}"), routed, 0, routed == 0);
    trial.report.check("probes: answers that tell the two apart", told_apart, 0, told_apart == 0);
    let result = owner.ask("session/prompt", prompt(&session, "still mine"))?;
    trial.report.holds("probes: the owner's session goes on", result["stopReason"] == "end_turn");
    Ok(())
}
