//! `cluster`: what another machine costs: round trips and streams to an agent of this bus, of a bus behind it by
//! `connect`, and of a bus behind it over NATS, in turns.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::Measured;
use crate::bus::{self, Bus, PATIENCE, echo};
use crate::client::Client;
use crate::print::complain;
use crate::procfs;
use crate::report::{Report, time};
use crate::table::median;

const ROUND_TRIPS: usize = 2_000;
const ROUNDS: usize = 3;
/// A turn has so many updates of so many bytes: 200 MB.
const UPDATES: usize = 3_200;
const UPDATE_BYTES: usize = 64 << 10;
const ROUND_TRIP_MOST: Duration = Duration::from_micros(200);
const STREAM_LEAST: f64 = 200.0;
const MEMORY_MOST: u64 = 6 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The nats-server to use [default: $BUS_NATS_SERVER, else the one in PATH]
    #[arg(long, value_name = "PATH")]
    nats_server: Option<PathBuf>,
    #[command(flatten)]
    measured: Measured,
}

/// A bus and a session that it leads to.
struct Way {
    name: &'static str,
    bus: Bus,
    client: Client,
    session: String,
    round_trips: Vec<f64>,
    /// The best rate, in MB a second.
    stream: f64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let named = args.nats_server.clone().or_else(|| std::env::var_os("BUS_NATS_SERVER").map(PathBuf::from));
    match measure(&args.measured.stdio_bus(), &named.unwrap_or_else(|| "nats-server".into())) {
        Ok(report) => report.finish(args.measured.json),
        Err(error) => complain(format_args!("{error}"), 1),
    }
}

fn measure(stdio_bus: &Path, nats_server: &Path) -> io::Result<Report> {
    let nats = Nats::start(nats_server)?;
    let chunks = [&UPDATES.to_string(), &UPDATE_BYTES.to_string()].map(String::to_owned);
    let local = || echo("echo", 1, &["--chunks", &chunks[0], "--chunk-bytes", &chunks[1]]);
    let mut node_file = bus::config(&[local()]);
    node_file["name"] = json!("bench-node");
    node_file["cluster"] = json!({ "url": nats.url, "offer": ["echo"] });
    let node = Bus::start(stdio_bus, &node_file)?;
    let linked =
        node.until(PATIENCE, |node| node.status().is_ok_and(|status| status["link"]["state"] == "up"));
    if !linked {
        return Err(io::Error::other(format!("the node is not linked\n{}", node.log())));
    }
    let link = node.status()?["link"]["pid"].as_u64().unwrap_or_default() as u32;
    let idle_link = procfs::resident_bytes(link)?;
    let address = node.address().to_string();
    let args = ["connect", "--pool", "echo", "--tcp", address.trim_start_matches("tcp://")];
    let chain = json!({ "id": "echo", "command": "stdio-bus", "args": args });
    let args = ["agent", "nats", "--pool", "echo"];
    let mut over_nats = bus::config(&[json!({ "id": "echo", "command": "stdio-bus", "args": args })]);
    over_nats["name"] = json!("bench-edge");
    over_nats["cluster"] = json!({ "url": nats.url });
    let mut ways = [
        Way::open("direct", stdio_bus, &bus::config(&[local()]))?,
        Way::open("by connect", stdio_bus, &bus::config(&[chain]))?,
        Way::open("by NATS", stdio_bus, &over_nats)?,
    ];
    let request = rpc::write::request(7, "echo", "x".repeat(140));
    // In turns, so that what else the machine does slows all of them.
    for _ in 0..ROUND_TRIPS {
        for way in &mut ways {
            let began = Instant::now();
            way.client.send(&request)?;
            way.client.line()?;
            way.round_trips.push(began.elapsed().as_secs_f64());
        }
    }
    for _ in 0..ROUNDS {
        for way in &mut ways {
            way.stream = way.stream.max(way.streams()?);
        }
    }
    let mut report = Report::default();
    for way in &ways {
        let median = Duration::from_secs_f64(median(way.round_trips.clone()));
        let what = format!("{}: a round trip of 200 bytes, median", way.name);
        if way.name == "by NATS" {
            report.time_at_most(&what, median, ROUND_TRIP_MOST);
        } else {
            report.note(&what, time(median));
        }
        let (what, got) = (format!("{}: a stream", way.name), format!("{:.0} MB/s", way.stream));
        if way.name == "by NATS" {
            report.check(&what, got, format!(">= {STREAM_LEAST:.0} MB/s"), way.stream >= STREAM_LEAST);
        } else {
            report.note(&what, got);
        }
    }
    let worker = &ways[2].bus.status()?["pools"][0]["workers"][0]["pid"];
    let worker = procfs::resident_bytes(worker.as_u64().unwrap_or_default() as u32)?;
    report.note(
        "the process of a pipe at the edge, after the streams",
        format!("{:.1} MiB", worker as f64 / 1048576.0),
    );
    let grown = procfs::resident_bytes(link)?.saturating_sub(idle_link);
    report.bytes_at_most("what a pipe adds at the node, after the streams", grown, MEMORY_MOST);
    report.note(
        "the nats-server",
        format!("{:.1} MiB", procfs::resident_bytes(nats.child.id())? as f64 / 1048576.0),
    );
    Ok(report)
}

impl Way {
    fn open(name: &'static str, stdio_bus: &Path, config: &Value) -> io::Result<Way> {
        let bus = Bus::start(stdio_bus, config)?;
        let mut client = bus.client()?;
        client.initialize()?.map_err(|why| io::Error::other(format!("{name}: {why}\n{}", bus.log())))?;
        let session = client.open_session()?;
        Ok(Way { name, bus, client, session, round_trips: Vec::new(), stream: 0.0 })
    }

    /// One turn, in MB a second.
    fn streams(&mut self) -> io::Result<f64> {
        self.client.prompt(&self.session, "x")?;
        let (began, mut bytes) = (Instant::now(), 0);
        loop {
            let line = self.client.line()?;
            bytes += line.len();
            if line.len() < 1000 && memchr::memmem::find(line, b"stopReason").is_some() {
                return Ok(bytes as f64 / 1e6 / began.elapsed().as_secs_f64());
            }
        }
    }
}

/// A nats-server at a free port, killed when it is dropped.
struct Nats {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl Nats {
    fn start(program: &Path) -> io::Result<Nats> {
        let folder = TempDir::with_prefix("bus-bench-")?;
        let mut command = Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir"]).arg(folder.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| {
            io::Error::other(format!("{}: {error}; tests/cluster/run installs one", program.display()))
        })?;
        let file = folder.path().join(format!("nats-server_{}.ports", child.id()));
        let mut nats = Nats { child, url: String::new(), _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        while nats.url.is_empty() {
            let said = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            nats.url = said.and_then(|said| said["nats"][0].as_str().map(str::to_owned)).unwrap_or_default();
            if Instant::now() > deadline {
                return Err(io::Error::other("nats-server does not start"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(nats)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
