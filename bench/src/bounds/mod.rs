//! `bounds`: what the bus may cost at most, whatever its peers do. Each bound starts a bus of its own.

mod attack;
mod attacks;
mod clients;
mod greedy;
mod limits;
mod memory;
mod owners;
mod processes;
mod scene;
mod script;
mod tables;
mod transcripts;
mod waits;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde_json::Value;

use self::attacks::ATTACKS;
use crate::args::Measured;
use crate::bus::{Bus, PATIENCE, config, echo};
use crate::load::{Load, drive};
use crate::outcome::Outcome;
use crate::print::Progress;
use crate::report::Report;

struct Bound {
    name: &'static str,
    /// Whether it is cheap enough to be tried with each change.
    is_cheap: bool,
    /// The configuration of its bus. The path is that of the binary.
    config: fn(&Path) -> Value,
    /// How many workers must be up before anything is measured.
    workers: usize,
    measure: fn(&mut Trial<'_>) -> io::Result<()>,
}

const BOUNDS: [Bound; 29] = [
    bound("silent", true, |_| memory::flood(1, memory::CHUNKS), 2, memory::one_never_reads),
    bound("silents", false, |_| memory::flood(4, memory::MANY_CHUNKS), 5, memory::many_never_read),
    bound("idle", true, |_| crate::idle::config(), 0, memory::idle_connections),
    bound("comings", true, |_| memory::two_listeners(), 0, memory::connections_that_come_and_go),
    bound("restarts", true, |_| processes::quick_restarts(), processes::KILLED, processes::killed_when_up),
    bound("crashes", false, |_| processes::programs_that_fail(), 0, processes::exit_at_once),
    bound("sigterm", true, processes::with_children, processes::PARENTS, processes::stopped_by_sigterm),
    bound("sigkill", true, processes::with_children, processes::PARENTS, processes::stopped_by_sigkill),
    bound("rush", false, |_| clients::many_clients(), 0, clients::all_reconnect_at_once),
    bound("behind", false, |_| clients::pool_to_stall(), 4, clients::others_stall),
    bound("strangers", true, |_| config(&[echo("echo", 1, &[])]), 1, clients::connections_that_speak_no_json),
    bound("greedy", true, |_| greedy::small_limits(), 2, greedy::others_are_greedy),
    bound("kept", true, |_| greedy::small_limits(), 2, greedy::kept_beside_lines),
    bound("limits", true, |_| limits::small_lines(), 1, limits::of_clients),
    bound("agents", true, |_| limits::agents_that_say_much(), 4, limits::of_agents),
    bound("lines", true, |_| limits::long_lines_pass(), 1, limits::of_long_lines),
    bound("tables", true, |_| tables::full_tables(), 4, tables::are_full),
    bound("waits", false, |_| waits::pools_that_wait(), 3, waits::of_peers),
    bound("stops", false, |_| waits::stubborn(), 1, waits::of_a_stop),
    bound("tokens", false, |_| config(&[echo("echo", 1, &[])]), 0, waits::of_strangers),
    bound("probes", true, |_| clients::not_shared(), 2, clients::guessed_session_ids),
    bound("owners", true, |_| attack::with_puppets(), 1, owners::questions_reach_the_next_one),
    attacks("blocks"),
    attacks("questions"),
    attacks("names"),
    attacks("reads"),
    attacks("guests"),
    attacks("floods"),
    attacks("transcripts"),
];

/// The attacks of this name, each with a bus of its own.
const fn attacks(name: &'static str) -> Bound {
    bound(
        name,
        true,
        |_| attack::with_puppets(),
        1,
        |trial| {
            let named = ATTACKS.iter().filter(|(name, _)| *name == trial.bound.name);
            named.flat_map(|(_, attacks)| *attacks).try_for_each(|attack| attack::play(trial, attack))
        },
    )
}

const fn bound(
    name: &'static str,
    is_cheap: bool,
    config: fn(&Path) -> Value,
    workers: usize,
    measure: fn(&mut Trial<'_>) -> io::Result<()>,
) -> Bound {
    Bound { name, is_cheap, config, workers, measure }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(BOUNDS.map(|bound| bound.name)))]
    names: Vec<String>,
    /// The cheap ones, and less of each: for every change
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let mut report = Report::default();
    for bound in &BOUNDS {
        let is_named = args.names.iter().any(|wanted| wanted == bound.name);
        if !is_named && (!args.names.is_empty() || args.quick && !bound.is_cheap) {
            continue;
        }
        let progress = Progress::on_stderr(bound.name.to_owned());
        let mut trial =
            Trial { bound, stdio_bus: &stdio_bus, quick: args.quick, report: &mut report, progress };
        if let Err(error) = (bound.measure)(&mut trial) {
            report.check(bound.name, error, "it can be tried", false);
        }
    }
    report.finish(args.measured.json)
}

/// One bound while it is tried.
struct Trial<'a> {
    bound: &'a Bound,
    stdio_bus: &'a Path,
    /// Whether time matters more than certainty.
    quick: bool,
    report: &'a mut Report,
    progress: Progress,
}

impl Trial<'_> {
    /// The bus of this bound, with its workers up.
    fn start(&self) -> io::Result<Bus> {
        let bus = Bus::start(self.stdio_bus, &(self.bound.config)(self.stdio_bus))?;
        if self.bound.workers > 0 {
            bus.until_up(self.bound.workers, PATIENCE)?;
        }
        Ok(bus)
    }

    /// The whole number of something, or a tenth of it.
    fn count(&self, whole: usize) -> usize {
        if self.quick { whole / 10 } else { whole }
    }
}

/// Loads the bus: each client has one request in flight at a time, and every answer is judged.
fn load(bus: &Bus, clients: usize, length: Duration) -> io::Result<Outcome> {
    let streams = (0..clients).map(|_| bus.connect()).collect::<io::Result<Vec<_>>>()?;
    let load = Load::closed(1, 1024, length / 10, length);
    drive(streams, &load, None, Progress::on_stderr("load".to_owned()))
}

fn p99(outcome: &Outcome) -> Duration {
    Duration::from_nanos(outcome.latency_ns.value_at_quantile(0.99))
}
