//! `compare`: a bus beside a plain byte pipe and beside no pipe at all.
//!
//! The peers are measured in turns, round after round, so that what else the machine does meets all of them;
//! what is printed are medians over the rounds. A ratio is the median of the ratios within each round.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::{Load, drive};
use crate::outcome::{Faults, Outcome};
use crate::peer::{Peer, has_socat};
use crate::print::{Progress, answer, complain, micros, thousands};
use crate::run::parse_seconds;
use crate::stage::beside_us;

/// Connections, requests in flight on each, bytes of a request.
const LOADS: [(u32, usize, usize); 6] =
    [(1, 1, 200), (1, 64, 200), (16, 16, 200), (256, 4, 200), (1, 64, 4 << 10), (1, 64, 64 << 10)];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each load is measured on each peer
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each measurement takes, and half as long before it to warm up
    #[arg(long, value_name = "SEC", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
    /// The binary of the bus [default: beside this one, else in PATH]
    #[arg(long, value_name = "PATH")]
    bus: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The outcomes of one load: one a round for each peer, in the order of the peers.
struct Row {
    load: (u32, usize, usize),
    outcomes: Vec<Vec<Outcome>>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.bus.clone().unwrap_or_else(beside_us);
    let mut peers = vec![Peer::Direct, Peer::Socat, Peer::Bus];
    peers.retain(|peer| *peer != Peer::Socat || has_socat());
    let mut rows = LOADS.map(|load| Row { load, outcomes: peers.iter().map(|_| Vec::new()).collect() });
    for round in 1..=args.rounds {
        for row in &mut rows {
            for (index, peer) in peers.iter().enumerate() {
                let label = format!("round {round} of {}, {}, {}", args.rounds, row.name(), peer.name());
                match measure(*peer, row.load, args.seconds, &stdio_bus, Progress::on_stderr(label)) {
                    Ok(outcome) => row.outcomes[index].push(outcome),
                    Err(error) => {
                        return complain(format_args!("{} at {}: {error}", peer.name(), row.name()), 1);
                    }
                }
            }
        }
    }
    let mut faults = Faults::default();
    for row in &rows {
        for (peer, outcomes) in peers.iter().zip(&row.outcomes) {
            let there = format!("{} at {}", peer.name(), row.name());
            outcomes.iter().for_each(|outcome| faults.add(&outcome.faults, &there));
        }
    }
    let printed = match args.json {
        true => answer(&format!("{}\n", rows_json(&rows, &peers, args.seconds))),
        false => answer(&(table(&rows, &peers) + &faults.describe())),
    };
    if faults.any() { ExitCode::FAILURE } else { printed }
}

fn measure(
    peer: Peer,
    (connections, window, line_bytes): (u32, usize, usize),
    measured: Duration,
    stdio_bus: &Path,
    progress: Progress,
) -> io::Result<Outcome> {
    let mut running = peer.start(stdio_bus)?;
    let wires = (0..connections).map(|_| running.connect()).collect::<io::Result<Vec<_>>>()?;
    let watched = running.pid();
    drive(wires, &Load { window, line_bytes, warmup: measured / 2, measured }, watched, progress)
}

impl Row {
    fn name(&self) -> String {
        let (connections, window, bytes) = self.load;
        let size = if bytes < 1024 { format!("{bytes} B") } else { format!("{} KB", bytes >> 10) };
        format!("{connections}x{window} at {size}")
    }

    fn median(&self, peer: usize, of: impl Fn(&Outcome) -> f64) -> f64 {
        median(self.outcomes[peer].iter().map(of).collect())
    }

    /// How fast one peer is beside another.
    fn ratio(&self, peer: usize, beside: usize) -> f64 {
        let rounds = self.outcomes[peer].iter().zip(&self.outcomes[beside]);
        median(rounds.map(|(one, other)| one.rate() / other.rate()).collect())
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    (values[low] + values[high]) / 2.0
}

fn table(rows: &[Row], peers: &[Peer]) -> String {
    let (bus, beside) = (peers.len() - 1, peers.len() - 2);
    let mut text = format!("{:<16}", "load");
    for peer in peers {
        let _ = write!(text, "{:>11}{:>10}", peer.name(), "p50");
    }
    let ratio = format!("bus/{}", peers[beside].name());
    let _ = writeln!(text, "{ratio:>12}{:>10}{:>12}{:>10}", "bus p99", "bus CPU/rq", "bus RSS");
    for row in rows {
        let _ = write!(text, "{:<16}", row.name());
        for peer in 0..peers.len() {
            let rate = thousands(row.median(peer, Outcome::rate));
            let _ = write!(text, "{rate:>11}{:>10}", micros(row.median(peer, |one| one.latency_us(0.5))));
        }
        let cpu_us = row.median(bus, |one| one.watched_us_a_request().unwrap_or(f64::NAN));
        let resident = row.median(bus, |one| one.watched_bytes.map_or(f64::NAN, |bytes| bytes as f64));
        let _ = writeln!(
            text,
            "{:>12.2}{:>10}{:>12}{:>10}",
            row.ratio(bus, beside),
            micros(row.median(bus, |one| one.latency_us(0.99))),
            known(cpu_us, |us| format!("{us:.2} us")),
            known(resident, |bytes| format!("{:.1} MB", bytes / 1e6)),
        );
    }
    text += "Requests/s; medians of the rounds, also of their ratios. Alone and behind socat each connection has an\n\
             agent of its own, behind the bus all share one. CPU time and memory are those of the bus alone.\n";
    text
}

fn known(value: f64, write: impl Fn(f64) -> String) -> String {
    if value.is_finite() { write(value) } else { "-".to_owned() }
}

fn rows_json(rows: &[Row], peers: &[Peer], seconds: Duration) -> Value {
    let (bus, beside) = (peers.len() - 1, peers.len() - 2);
    let row = |row: &Row| {
        let (connections, window, bytes) = row.load;
        let rounds = |index: usize| row.outcomes[index].iter().map(Outcome::to_json).collect::<Vec<_>>();
        let peers = peers.iter().enumerate().map(|(index, peer)| {
            let rate = row.median(index, Outcome::rate);
            (peer.name().to_owned(), json!({ "rate": rate, "rounds": rounds(index) }))
        });
        json!({
            "connections": connections,
            "window": window,
            "bytes": bytes,
            "ratio": row.ratio(bus, beside),
            "peers": peers.collect::<serde_json::Map<_, _>>(),
        })
    };
    let loads = rows.iter().map(row).collect::<Vec<_>>();
    json!({ "seconds": seconds.as_secs_f64(), "beside": peers[beside].name(), "loads": loads })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_two_in_it() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![f64::NAN]).is_nan());
    }
}
