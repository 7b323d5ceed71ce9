//! How long a worker takes to find one of 100 nodes and to open a pipe to it: 100 real links in front of one bus.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rpc::LineReader;
use serde_json::Value;

use super::nats::Nats;
use crate::bus::{self, Bus, PATIENCE, echo};
use crate::procfs;
use crate::report::{Report, mebibytes, time};
use crate::table::median;

const NODES: usize = 100;
const WORKERS: usize = 30;
/// Offers of nodes that are idle come within milliseconds, and nobody waits longer than 30 ms for a better one.
const PLACED_MOST: Duration = Duration::from_millis(100);

/// A process that is killed when it is dropped.
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// The first line that it says.
    pub(super) fn first_line(&mut self) -> io::Result<Value> {
        let stdout = self.0.stdout.as_mut().ok_or_else(|| io::Error::other("its stdout is taken"))?;
        let mut lines = LineReader::default();
        let line = lines.read_line(stdout, Some(Instant::now() + PATIENCE))?;
        Ok(serde_json::from_slice(line.unwrap_or_default())?)
    }
}

pub(super) fn worker(stdio_bus: &Path, nats: &Nats, name: &str) -> io::Result<Process> {
    let mut command = Command::new(stdio_bus);
    command.args(["agent", "nats", "--pool", "echo", "--name", name, "--url", &nats.url()]);
    // They are processes of one life of one bus, else each would end the pipes of the one before it.
    command.env("BUS_FAMILY", "bench");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    Ok(Process(child))
}

pub(super) fn measure(stdio_bus: &Path, nats_server: &Path, report: &mut Report) -> io::Result<()> {
    let nats = Nats::start(nats_server, "")?;
    let bus = Bus::start(stdio_bus, &bus::config(&[echo("echo", 1, &[])]))?;
    let address = bus.address().to_string();
    let tcp = address.trim_start_matches("tcp://").to_owned();
    let mut links = Vec::new();
    for number in 0..NODES {
        let mut command = Command::new(stdio_bus);
        command.args([
            "link",
            &nats.url(),
            "--name",
            &format!("n{number}"),
            "--insecure",
            "--offer",
            "echo",
            "--tcp",
            &tcp,
        ]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        links.push(Process(child));
    }
    for link in &mut links {
        link.first_line()?;
    }
    let memory = links.iter().map(|link| procfs::resident_bytes(link.0.id())).sum::<io::Result<u64>>()?;
    report.note("placement: a link that has no pipes", mebibytes(memory / NODES as u64));
    let mut listed = Vec::new();
    let mut found = 0;
    for _ in 0..5 {
        let began = Instant::now();
        let all = Command::new(stdio_bus).args(["nodes", "--json", "--url", &nats.url()]).output()?;
        listed.push(began.elapsed().as_secs_f64());
        found = serde_json::from_slice::<Value>(&all.stdout)?.as_array().map_or(0, Vec::len);
    }
    report.check("placement: nodes that `stdio-bus nodes` finds", found, NODES, found == NODES);
    report.note("placement: `stdio-bus nodes`, median", time(Duration::from_secs_f64(median(listed))));
    let (mut times, mut nodes) = (Vec::new(), std::collections::BTreeSet::new());
    let mut placed = Vec::new();
    for _ in 0..WORKERS {
        let began = Instant::now();
        let mut one = worker(stdio_bus, &nats, "bench-edge")?;
        let said = one.first_line()?;
        times.push(began.elapsed().as_secs_f64());
        nodes.insert(said["params"]["node"].to_string());
        placed.push(one);
    }
    let most = times.iter().copied().fold(0.0, f64::max);
    let took = Duration::from_secs_f64(median(times));
    let what =
        format!("placement: from the start of a worker to its pipe, {NODES} nodes, median of {WORKERS}");
    report.time_at_most(&what, took, PLACED_MOST);
    report.note("placement: the longest of them", time(Duration::from_secs_f64(most)));
    report.note("placement: nodes that they went to", nodes.len());
    report.note("placement: nats-server", mebibytes(procfs::resident_bytes(nats.pid())?));
    Ok(())
}
