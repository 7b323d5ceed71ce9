//! Round trips and streams to an agent of this bus, of a bus behind it by `connect`, and of a bus behind it over NATS,
//! in turns; and lines of 64 MiB.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nats::Nats;
use crate::bus::{self, Bus, PATIENCE, echo};
use crate::client::Client;
use crate::procfs;
use crate::report::{Report, mebibytes, time};
use crate::table::median;

const ROUND_TRIPS: usize = 2_000;
const ROUNDS: usize = 5;
/// A turn has so many updates of so many bytes: 200 MB.
const UPDATES: usize = 3_200;
const UPDATE_BYTES: usize = 64 << 10;
const LONG_LINE: usize = 64 << 20;
/// What NATS may add to a round trip.
const ROUND_TRIP_MOST: Duration = Duration::from_micros(200);
const STREAM_LEAST: f64 = 200.0;
const MEMORY_MOST: u64 = 6 << 20;

/// A bus and a session that it leads to.
struct Way {
    name: &'static str,
    bus: Bus,
    client: Client,
    session: String,
    round_trips: Vec<f64>,
    /// In MB a second.
    streams: Vec<f64>,
    /// The processes between client and agent, and the processor time that they took for the streams.
    processes: Vec<(&'static str, u32, Duration)>,
    streamed_bytes: usize,
}

pub(super) fn measure(stdio_bus: &Path, nats_server: &Path, report: &mut Report) -> io::Result<()> {
    let nats = Nats::start(nats_server, "")?;
    let chunks = [UPDATES, UPDATE_BYTES].map(|count| count.to_string());
    let local = || echo("echo", 1, &["--chunks", &chunks[0], "--chunk-bytes", &chunks[1]]);
    let mut node_file = with_long_lines(bus::config(&[local(), echo("long", 1, &["--chunks", "1"])]));
    node_file["name"] = json!("bench-node");
    node_file["cluster"] = json!({ "url": nats.url(), "offer": ["echo", "long"], "insecure": true });
    let node = linked(stdio_bus, &node_file)?;
    let link = link_of(&node)?;
    let idle_link = procfs::own_bytes(link)?;
    let address = node.address().to_string();
    let args = ["connect", "--pool", "echo", "--tcp", address.trim_start_matches("tcp://")];
    let chain = json!({ "id": "echo", "command": "stdio-bus", "args": args });
    let pool = |id: &str| json!({ "id": id, "from": "cluster" });
    let mut over_nats = with_long_lines(bus::config(&[pool("echo"), pool("long")]));
    over_nats["name"] = json!("bench-edge");
    over_nats["default_pool"] = json!("echo");
    over_nats["cluster"] = json!({ "url": nats.url() });
    let mut ways = [
        Way::open("direct", stdio_bus, &bus::config(&[local()]))?,
        Way::open("by connect", stdio_bus, &bus::config(&[chain]))?,
        Way::open("by NATS", stdio_bus, &over_nats)?,
    ];
    let worker = ways[2].bus.status()?["pools"][0]["workers"][0]["pid"].as_u64().unwrap_or_default() as u32;
    let idle_worker = procfs::own_bytes(worker)?;
    let shared = procfs::resident_bytes(worker)? - idle_worker;
    ways[0].passes("bus", ways[0].bus.pid());
    let nats_way =
        [("edge", ways[2].bus.pid()), ("worker", worker), ("nats-server", nats.pid()), ("link", link)];
    for (name, pid) in nats_way.into_iter().chain([("node", node.pid())]) {
        ways[2].passes(name, pid);
    }
    let text = "x".repeat(140);
    let request = rpc::write::request(7, "echo", &text);
    // In turns, so that what else the machine does slows all of them.
    for _ in 0..ROUND_TRIPS {
        for way in &mut ways {
            let began = Instant::now();
            way.client.send(&request)?;
            // Behind a session that was just opened, its agent says what it can do.
            while memchr::memmem::find(way.client.line()?, text.as_bytes()).is_none() {}
            way.round_trips.push(began.elapsed().as_secs_f64());
        }
    }
    for _ in 0..ROUNDS {
        for way in &mut ways {
            let rate = way.streams()?;
            way.streams.push(rate);
        }
    }
    let direct = median(ways[0].round_trips.clone());
    for way in &ways {
        let took = Duration::from_secs_f64(median(way.round_trips.clone()));
        report.note(&format!("{}: a round trip of 200 bytes, median", way.name), time(took));
        let best = way.streams.iter().copied().fold(0.0, f64::max);
        let got = format!("{:.0} MB/s, best {best:.0}", median(way.streams.clone()));
        let what = format!("{}: a stream, median of {ROUNDS}", way.name);
        if way.name == "by NATS" {
            let added = took.saturating_sub(Duration::from_secs_f64(direct));
            report.time_at_most("by NATS: what it adds to a round trip", added, ROUND_TRIP_MOST);
            report.check(&what, got, format!(">= {STREAM_LEAST:.0} MB/s"), best >= STREAM_LEAST);
        } else {
            report.note(&what, got);
        }
        if !way.processes.is_empty() {
            report.note(&format!("{}: processor time a MB of a stream", way.name), way.costs());
        }
    }
    report.note(
        "a pipe: its process at the edge, memory of its own before the streams",
        mebibytes(idle_worker),
    );
    report.note("a pipe: beside it the files that all processes share", mebibytes(shared));
    let after = procfs::own_bytes(worker)?;
    report.bytes_at_most("a pipe: its process at the edge, memory of its own after them", after, MEMORY_MOST);
    let grown = procfs::own_bytes(link)?.saturating_sub(idle_link);
    report.bytes_at_most("a pipe: what it adds to the link, after them", grown, MEMORY_MOST);
    report.note("nats-server, after them", mebibytes(procfs::resident_bytes(nats.pid())?));
    long_lines(&ways[2].bus, report)
}

/// A node whose link is up.
pub(super) fn linked(stdio_bus: &Path, config: &Value) -> io::Result<Bus> {
    let node = Bus::start(stdio_bus, config)?;
    let is_linked = |node: &Bus| node.status().is_ok_and(|status| status["link"]["state"] == "up");
    if node.until(PATIENCE, is_linked) {
        return Ok(node);
    }
    Err(io::Error::other(format!("the node is not linked\n{}", node.log())))
}

pub(super) fn link_of(node: &Bus) -> io::Result<u32> {
    let status = node.status()?;
    let pid = status["link"]["pid"].as_u64();
    pid.map(|pid| pid as u32).ok_or_else(|| io::Error::other(format!("no link: {}", status["link"])))
}

fn with_long_lines(mut config: Value) -> Value {
    let most = 2 * LONG_LINE;
    config["limits"] =
        json!({ "max_input_buffer": most, "max_output_queue": most, "max_held_bytes": 16 * LONG_LINE });
    config
}

/// A prompt of 64 MiB, which comes back as one line.
fn long_lines(edge: &Bus, report: &mut Report) -> io::Result<()> {
    let mut client = edge.client()?;
    client.join_pool("long")?;
    client.initialize()?.map_err(io::Error::other)?;
    let session = client.open_session()?;
    let text = "x".repeat(LONG_LINE);
    let began = Instant::now();
    client.prompt(&session, &text)?;
    let mut echoed = false;
    loop {
        let line = client.line()?;
        if line.len() > LONG_LINE {
            echoed = memchr::memmem::find(line, text.as_bytes()).is_some();
        } else if memchr::memmem::find(line, b"stopReason").is_some() {
            break;
        }
    }
    let rate = 2.0 * LONG_LINE as f64 / 1e6 / began.elapsed().as_secs_f64();
    report.holds("by NATS: a line of 64 MiB comes back as it was", echoed);
    report.note("by NATS: that line, there and back", format!("{rate:.0} MB/s"));
    Ok(())
}

impl Way {
    fn open(name: &'static str, stdio_bus: &Path, config: &Value) -> io::Result<Way> {
        let bus = Bus::start(stdio_bus, config)?;
        let mut client = bus.client()?;
        client.initialize()?.map_err(|why| io::Error::other(format!("{name}: {why}\n{}", bus.log())))?;
        let session = client.open_session()?;
        let (round_trips, streams, processes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Way { name, bus, client, session, round_trips, streams, processes, streamed_bytes: 0 })
    }

    fn passes(&mut self, name: &'static str, pid: u32) {
        self.processes.push((name, pid, Duration::ZERO));
    }

    /// The processor time of each process for a MB: that of the slowest says how fast the way can be at most.
    fn costs(&self) -> String {
        let a_megabyte = |spent: Duration| spent.as_secs_f64() * 1e3 / (self.streamed_bytes as f64 / 1e6);
        let each = self.processes.iter().map(|(name, _, spent)| format!("{name} {:.2}", a_megabyte(*spent)));
        let slowest = self.processes.iter().map(|(_, _, spent)| a_megabyte(*spent)).fold(0.0, f64::max);
        let each: Vec<String> = each.collect();
        format!("{} ms: at most {:.0} MB/s", each.join(", "), 1e3 / slowest)
    }

    /// One turn, in MB a second.
    fn streams(&mut self) -> io::Result<f64> {
        // A text as long as an update is not put together by the agent, which would be what is measured.
        self.client.prompt(&self.session, &"x".repeat(UPDATE_BYTES))?;
        let before: Vec<_> = self.processes.iter().map(|(_, pid, _)| procfs::cpu_time(*pid)).collect();
        let (began, mut bytes) = (Instant::now(), 0);
        loop {
            let line = self.client.line()?;
            bytes += line.len();
            if line.len() < 1000 && memchr::memmem::find(line, b"stopReason").is_some() {
                break;
            }
        }
        let rate = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
        for ((_, pid, spent), before) in self.processes.iter_mut().zip(before) {
            *spent += procfs::cpu_time(*pid)?.saturating_sub(before?);
        }
        self.streamed_bytes += bytes;
        Ok(rate)
    }
}
