//! `fan`: what a message costs the bus while more and more is open and idle. It must not grow.
//!
//! The cost is the CPU time of the bus for a message of a load that stays the same. All sizes of one thing are open at
//! once, each on a bus of its own, and are measured in turns. The result is the minimum of the rounds, because what
//! else the machine does can only add to it.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rpc::{Stream, write};
use serde_json::{Value, json};

use crate::args::{Measured, Turns};
use crate::bus::{Bus, echo};
use crate::client::Client;
use crate::docs;
use crate::load::{Load, drive};
use crate::plot::{Line, Plot};
use crate::print::{Progress, complain, thousands};
use crate::report::Report;

/// Requests of 200 bytes in flight.
const WINDOW: usize = 64;
const GROWTH_PERCENT_MOST: f64 = 10.0;
/// Calls are opened in groups of so many, so that their queue at the bus stays short.
const CALLS_AT_ONCE: usize = 1000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    turns: Turns,
    /// Write the table into PERFORMANCE.md of this folder, and a plot beside it
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    #[command(flatten)]
    measured: Measured,
}

/// A kind of thing of which more and more is open.
struct Axis {
    name: &'static str,
    sizes: &'static [usize],
    open: fn(&Bus, usize) -> io::Result<Vec<Idle>>,
}

/// What stays open until it is dropped.
#[expect(dead_code, reason = "they only keep connections open")]
enum Idle {
    Connection(Stream),
    Client(Client),
}

const AXES: [Axis; 3] = [
    Axis { name: "idle connections", sizes: &[1, 10, 100, 1_000, 10_000], open: connections },
    Axis { name: "open sessions", sizes: &[1, 10, 100, 1_000, 10_000], open: sessions },
    Axis { name: "calls in flight", sizes: &[1, 10, 100, 1_000, 10_000, 100_000], open: calls },
];

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let mut report = Report::default();
    let mut lines = Vec::new();
    for axis in &AXES {
        let points = match measure(axis, args, &stdio_bus) {
            Ok(points) => points,
            Err(error) => return complain(format_args!("{}: {error}", axis.name), 1),
        };
        for (size, us) in &points {
            report.note(&format!("{size} {}: CPU a message", axis.name), format!("{us:.3} us"));
        }
        let (first, last) = (points[0].1, points[points.len() - 1].1);
        report.share_at_most(&format!("{}: growth", axis.name), last / first - 1.0, GROWTH_PERCENT_MOST);
        lines.push(Line { name: axis.name.to_owned(), points });
    }
    let written = args.docs.as_deref().map_or(Ok(()), |folder| write_docs(folder, lines));
    match written {
        Ok(()) => report.finish(args.measured.json),
        Err(error) => complain(format_args!("cannot write the documentation: {error}"), 1),
    }
}

/// Each size, and the microseconds of CPU time that a message costs there.
fn measure(axis: &Axis, args: &Args, stdio_bus: &Path) -> io::Result<Vec<(f64, f64)>> {
    let mut buses = Vec::new();
    for size in axis.sizes {
        let bus = Bus::start(stdio_bus, &config())?;
        let idle = (axis.open)(&bus, *size)?;
        buses.push((bus, idle));
    }
    let mut least = vec![f64::INFINITY; buses.len()];
    for round in 1..=args.turns.rounds {
        for (index, (bus, _)) in buses.iter().enumerate() {
            let label =
                format!("round {round} of {}, {} {}", args.turns.rounds, axis.sizes[index], axis.name);
            let load = Load::closed(WINDOW, 200, args.turns.seconds / 2, args.turns.seconds);
            let outcome = drive(vec![bus.connect()?], &load, Some(bus.pid()), Progress::on_stderr(label))?;
            if outcome.faults.any() {
                return Err(io::Error::other(outcome.faults.describe()));
            }
            // A request and its answer are two messages.
            let us =
                outcome.watched_us_a_request().ok_or_else(|| io::Error::other("the bus cannot be seen"))?
                    / 2.0;
            least[index] = least[index].min(us);
        }
    }
    Ok(axis.sizes.iter().map(|size| *size as f64).zip(least).collect())
}

fn config() -> Value {
    // A worker that reads everything and never answers.
    let deaf = json!({ "id": "deaf", "command": "sh", "args": ["-c", "exec cat > /dev/null"] });
    json!({
        "listen": ["unix://@dir/bus.sock"],
        "default_pool": "echo",
        // A worker that an ACP client has initialized does not serve other clients, so sessions have their own pool.
        "pools": [echo("echo", 1, &[]), echo("sessions", 1, &[]), deaf],
        "limits": { "max_clients": 20_000 },
    })
}

fn connections(bus: &Bus, count: usize) -> io::Result<Vec<Idle>> {
    let idle = (0..count).map(|_| bus.connect().map(Idle::Connection)).collect::<io::Result<Vec<_>>>()?;
    if bus.until_clients(&mut bus.client()?, count + 1) {
        return Ok(idle);
    }
    Err(io::Error::other("not all connections are there"))
}

fn sessions(bus: &Bus, count: usize) -> io::Result<Vec<Idle>> {
    let mut client = bus.client()?;
    client.join_pool("sessions")?;
    client.initialize()?.map_err(io::Error::other)?;
    for _ in 0..count {
        client.open_session()?;
    }
    Ok(vec![Idle::Client(client)])
}

fn calls(bus: &Bus, count: usize) -> io::Result<Vec<Idle>> {
    let mut client = bus.client()?;
    client.join_pool("deaf")?;
    for first in (0..count).step_by(CALLS_AT_ONCE) {
        let mut lines = Vec::new();
        for id in first..count.min(first + CALLS_AT_ONCE) {
            lines.extend(write::request(format!("call {id}"), "park", json!({})));
        }
        client.send(&lines)?;
        // The bus answers this after it has read all of them.
        client.status()?;
    }
    Ok(vec![Idle::Client(client)])
}

fn write_docs(folder: &Path, lines: Vec<Line>) -> io::Result<()> {
    let sizes =
        lines.iter().map(|line| &line.points).max_by_key(|points| points.len()).cloned().unwrap_or_default();
    let mut table = format!(
        "| |{}\n",
        sizes.iter().map(|(size, _)| format!(" {} |", thousands(*size))).collect::<String>()
    );
    let _ = writeln!(table, "|---|{}", "---|".repeat(sizes.len()));
    for line in &lines {
        let cells = sizes.iter().map(|(size, _)| line.points.iter().find(|(other, _)| other == size));
        let cells = cells.map(|cell| cell.map_or(" - |".to_owned(), |(_, us)| format!(" {us:.2} us |")));
        let _ = writeln!(table, "| {} |{}", line.name, cells.collect::<String>());
    }
    docs::write_between(folder, "fan", &table)?;
    let plot = Plot {
        title: "CPU time of the bus for a message, by what else is open",
        x_title: "how many are open",
        x_marks: sizes.iter().map(|(size, _)| (*size, thousands(*size))).collect(),
        y_mark: |us| format!("{us:.1} us"),
        y_log: false,
        lines,
    };
    fs::write(folder.join("growth.svg"), plot.svg())
}
