//! `compare`: measures a bus beside a plain byte pipe, beside no pipe at all, and beside further proxies.
//!
//! The peers are measured in turns, round after round, so that what else the machine does slows all of them. The output
//! has medians over the rounds. A ratio is the median of the ratios within each round.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::args::{Measured, Turns};
use crate::case::{CASES, Case, Goal};
use crate::docs;
use crate::load::drive;
use crate::outcome::{Faults, Outcome};
use crate::peer::{Peer, has_socat, parse_other};
use crate::print::{Progress, answer, complain};
use crate::table::{Row, Table};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    turns: Turns,
    /// Another proxy to measure: a command that listens on 127.0.0.1:{port} and runs {agent} behind it
    #[arg(long = "peer", value_name = "NAME=CMD", value_parser = parse_other)]
    others: Vec<Peer>,
    /// Only loads whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Write the table into PERFORMANCE.md of this folder, and plots beside it
    #[arg(long, value_name = "DIR", conflicts_with = "only")]
    docs: Option<PathBuf>,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let mut peers = vec![Peer::Direct, Peer::Socat];
    peers.retain(|peer| *peer != Peer::Socat || has_socat());
    peers.push(Peer::Bus);
    peers.extend(args.others.iter().cloned());
    let wanted = |case: &&Case| match &args.only {
        Some(only) => case.name().contains(only.as_str()),
        // Loads without a goal are only for the plot.
        None => args.docs.is_some() || case.goal != Goal::None,
    };
    let rows = CASES.iter().filter(wanted).map(|case| Row::new(*case, peers.len())).collect::<Vec<_>>();
    if rows.is_empty() {
        return complain("no load has such a name", 2);
    }
    let mut table = Table { peers, rows, seconds: args.turns.seconds };
    if let Err((there, error)) = measure_all(&mut table, args, &stdio_bus) {
        return complain(format_args!("{there}: {error}"), 1);
    }
    let mut faults = Faults::default();
    for row in &table.rows {
        for (peer, outcomes) in table.peers.iter().zip(&row.outcomes) {
            let there = format!("{} at {}", peer.name(), row.case.name());
            outcomes.iter().for_each(|outcome| faults.add(&outcome.faults, &there));
        }
    }
    let text =
        if args.measured.json { format!("{}\n", table.to_json()) } else { table.text() + &faults.describe() };
    let printed = answer(&text);
    if faults.any() {
        return ExitCode::FAILURE;
    }
    match args.docs.as_deref().map_or(Ok(()), |folder| write_docs(folder, &table)) {
        Ok(()) => printed,
        Err(error) => complain(format_args!("cannot write the documentation: {error}"), 1),
    }
}

fn measure_all(table: &mut Table, args: &Args, stdio_bus: &Path) -> Result<(), (String, io::Error)> {
    for round in 1..=args.turns.rounds {
        for row in &mut table.rows {
            for (peer, outcomes) in table.peers.iter().zip(&mut row.outcomes) {
                let there = format!("{}, {}", row.case.name(), peer.name());
                let progress =
                    Progress::on_stderr(format!("round {round} of {}, {there}", args.turns.rounds));
                let outcome = measure(peer, &row.case, args.turns.seconds, stdio_bus, progress);
                outcomes.push(outcome.map_err(|error| (there, error))?);
            }
        }
    }
    Ok(())
}

fn measure(
    peer: &Peer,
    case: &Case,
    measured: Duration,
    stdio_bus: &Path,
    progress: Progress,
) -> io::Result<Outcome> {
    let mut running = peer.start(stdio_bus, case.agent())?;
    let streams = (0..case.connections).map(|_| running.connect()).collect::<io::Result<Vec<_>>>()?;
    drive(streams, &case.load(measured), running.pid(), progress)
}

fn write_docs(folder: &Path, table: &Table) -> io::Result<()> {
    docs::write_between(folder, "compare", &table.markdown())?;
    for (name, plot) in table.plots() {
        std::fs::write(folder.join(name), plot)?;
    }
    Ok(())
}
