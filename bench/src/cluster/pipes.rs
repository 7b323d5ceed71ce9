//! 1,000 pipes at one link: what each costs, whether all of them pass everything at once, what they cost idle.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rpc::{Stream, write};
use serde_json::{Value, json};

use super::nats::Nats;
use super::placement::{Process, worker};
use super::speed::{link_of, linked};
use crate::bus::{self, PATIENCE, echo};
use crate::client::Client;
use crate::procfs;
use crate::report::{Report, mebibytes, time};
use crate::table::median;

const PIPES: usize = 1_000;
/// So many are started before the first of them has its pipe.
const AT_ONCE: usize = 20;
const ROUND_TRIPS: usize = 500;
/// What every pipe sends at once: together more than a server keeps for a connection.
const BURST_BYTES: usize = 256 << 10;
const IDLE: Duration = Duration::from_secs(10);

struct Pipe {
    client: Client,
    _process: Process,
}

impl Pipe {
    fn round_trip(&mut self, text: &str) -> io::Result<Duration> {
        let began = Instant::now();
        self.client.send(&write::request(1, "echo", text))?;
        loop {
            let line = self.client.line()?;
            if memchr::memmem::find(line, text.as_bytes()).is_some() {
                return Ok(began.elapsed());
            }
            // The worker tells its bus how much room there is, whenever that changes.
            if memchr::memmem::find(line, b"_bus/worker").is_none() {
                return Err(io::Error::other("another answer came"));
            }
        }
    }
}

pub(super) fn measure(stdio_bus: &Path, nats_server: &Path, report: &mut Report) -> io::Result<()> {
    let mut nats = Nats::start(nats_server, "http: \"127.0.0.1:-1\"")?;
    let mut file = bus::config(&[echo("echo", 1, &[])]);
    file["name"] = json!("bench-node");
    file["limits"] = json!({ "max_clients": PIPES + 20, "max_held_bytes": 4_u64 << 30 });
    file["cluster"] = json!({ "url": nats.url(), "offer": ["echo"], "insecure": true });
    let node = linked(stdio_bus, &file)?;
    let link = link_of(&node)?;
    let first = open(stdio_bus, &nats, 1)?;
    let (link_before, fds) = (procfs::resident_bytes(link)?, procfs::open_fds(link)?);
    let began = Instant::now();
    let mut pipes = first;
    let alone = median_of(&mut pipes[0])?;
    while pipes.len() < PIPES {
        let more = open(stdio_bus, &nats, AT_ONCE.min(PIPES - pipes.len()))?;
        pipes.extend(more);
    }
    report.note("pipes: opened one after the other, each", time(began.elapsed() / PIPES as u32));
    let per_pipe = (procfs::resident_bytes(link)? - link_before) / PIPES as u64;
    report.note("pipes: memory of the link for each", format!("{:.1} KiB", per_pipe as f64 / 1024.0));
    let more_fds = procfs::open_fds(link)? - fds;
    report.check("pipes: open files of the link for them", more_fds, PIPES - 1, more_fds == PIPES - 1);
    report.note("pipes: nats-server", mebibytes(procfs::resident_bytes(nats.pid())?));
    let beside = median_of(&mut pipes[0])?;
    report.note("pipes: a round trip alone, median", time(alone));
    report.note("pipes: a round trip beside 999 idle ones, median", time(beside));
    let (spent, served) = (procfs::cpu_time(link)?, procfs::cpu_time(nats.pid())?);
    thread::sleep(IDLE);
    let share =
        |spent: Duration| format!("{:.1} % of a processor", 100.0 * spent.as_secs_f64() / IDLE.as_secs_f64());
    report.note("pipes: the link while all are idle", share(procfs::cpu_time(link)? - spent));
    report.note("pipes: nats-server while all are idle", share(procfs::cpu_time(nats.pid())? - served));
    burst(&mut pipes, report)?;
    report.at_most("pipes: connections that the server has cut as slow", nats.slow_consumers()?, 0);
    report.note("pipes: memory of the link at most", mebibytes(procfs::peak_bytes(link)?));
    drop(pipes);
    let is_free = |node: &bus::Bus| node.status().is_ok_and(|status| status["clients"] == 2);
    report.holds("pipes: all of them are gone afterwards", node.until(PATIENCE * 2, is_free));
    Ok(())
}

fn open(stdio_bus: &Path, nats: &Nats, count: usize) -> io::Result<Vec<Pipe>> {
    let mut processes =
        (0..count).map(|_| worker(stdio_bus, nats, "bench-edge")).collect::<io::Result<Vec<_>>>()?;
    processes
        .drain(..)
        .map(|mut process| {
            let (stdin, stdout) = (process.0.stdin.take(), process.0.stdout.take());
            let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            let mut client = Client::over(Stream::pipes(stdout, stdin));
            let said: Value = client.message()?;
            match said["method"].as_str() {
                Some("_bus/worker") => Ok(Pipe { client, _process: process }),
                _ => Err(io::Error::other(format!("a worker says {said}"))),
            }
        })
        .collect()
}

fn median_of(pipe: &mut Pipe) -> io::Result<Duration> {
    let times = (0..ROUND_TRIPS).map(|number| pipe.round_trip(&format!("alone {number}")));
    let times = times.map(|time| time.map(|time| time.as_secs_f64())).collect::<io::Result<Vec<_>>>()?;
    Ok(Duration::from_secs_f64(median(times)))
}

/// All pipes send a long line at once, and each gets its own back.
fn burst(pipes: &mut [Pipe], report: &mut Report) -> io::Result<()> {
    let began = Instant::now();
    let right = thread::scope(|scope| {
        let all: Vec<_> = pipes
            .iter_mut()
            .enumerate()
            .map(|(number, pipe)| {
                scope.spawn(move || {
                    let text = format!("{number:08} ").repeat(BURST_BYTES / 9);
                    let done = pipe.round_trip(&text);
                    if let Err(error) = &done {
                        let _ = writeln!(io::stderr(), "pipe {number}: {error}");
                    }
                    done.is_ok()
                })
            })
            .collect();
        all.into_iter().filter_map(|one| one.join().ok()).filter(|right| *right).count()
    });
    report.check(
        "pipes: that got a line of 256 KiB back, all at once",
        right,
        pipes.len(),
        right == pipes.len(),
    );
    let rate = 2.0 * (pipes.len() * BURST_BYTES) as f64 / 1e6 / began.elapsed().as_secs_f64();
    report.note("pipes: all together, both directions", format!("{rate:.0} MB/s"));
    Ok(())
}
