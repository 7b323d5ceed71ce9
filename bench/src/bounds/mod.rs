//! `bounds`: what the bus may cost at most, whatever its peers do. One bound a file; each starts a bus of its own.

mod behind;
mod comings;
mod crashes;
mod endings;
mod idle;
mod probes;
mod restarts;
mod rush;
mod silent;
mod strangers;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::args::Measured;
use crate::goal::Sheet;
use crate::load::{Load, drive};
use crate::outcome::Outcome;
use crate::print::{Progress, complain};
use crate::stage::Bus;

/// Until a bus, or what it is asked for, must be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// How one bound is tried.
struct Trial<'a> {
    stdio_bus: &'a Path,
    /// A tenth of it, or less, where time matters more than certainty.
    quick: bool,
    sheet: &'a mut Sheet,
    progress: Progress,
}

type Bound = fn(&mut Trial<'_>) -> io::Result<()>;

/// By name, and whether it is cheap enough to be tried with each change.
const BOUNDS: [(&str, bool, Bound); 12] = [
    ("silent", true, silent::one),
    ("silents", false, silent::many),
    ("idle", true, idle::run),
    ("comings", true, comings::run),
    ("restarts", true, restarts::run),
    ("crashes", false, crashes::run),
    ("sigterm", true, endings::by_sigterm),
    ("sigkill", true, endings::by_sigkill),
    ("rush", false, rush::run),
    ("behind", false, behind::run),
    ("strangers", true, strangers::run),
    ("probes", true, probes::run),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(BOUNDS.map(|(name, _, _)| name)))]
    names: Vec<String>,
    /// The cheap ones, and less of each: for every change
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let mut sheet = Sheet::default();
    if let Err(error) = raise_open_files() {
        return complain(format_args!("cannot open as many files as are needed: {error}"), 1);
    }
    for (name, cheap, bound) in BOUNDS {
        let named = args.names.iter().any(|wanted| wanted == name);
        if !named && (!args.names.is_empty() || args.quick && !cheap) {
            continue;
        }
        let progress = Progress::on_stderr(name.to_owned());
        let mut trial = Trial { stdio_bus: &stdio_bus, quick: args.quick, sheet: &mut sheet, progress };
        if let Err(error) = bound(&mut trial) {
            sheet.judge(name, error, "it can be tried", false);
        }
    }
    sheet.finish(args.measured.json)
}

pub(crate) fn raise_open_files() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = if cfg!(target_os = "macos") { hard.min(10_240) } else { hard };
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, hard)?)
}

impl Trial<'_> {
    fn start(&self, config: &serde_json::Value) -> io::Result<Bus> {
        Bus::start(self.stdio_bus, config)
    }

    /// The whole number of something, or a tenth of it.
    fn count(&self, whole: usize) -> usize {
        if self.quick { whole / 10 } else { whole }
    }
}

/// So many clients ask, one request at a time each, and every answer is judged.
fn load(bus: &Bus, connections: usize, length: Duration) -> io::Result<Outcome> {
    let wires = (0..connections).map(|_| bus.door().connect()).collect::<io::Result<Vec<_>>>()?;
    let load = Load::closed(1, 1024, length / 10, length);
    drive(wires, &load, None, Progress::on_stderr("load".to_owned()))
}

fn p99(outcome: &Outcome) -> Duration {
    Duration::from_nanos(outcome.latency_ns.value_at_quantile(0.99))
}

/// What the bus cannot be seen to have is not known to be bounded.
fn unseen() -> io::Error {
    io::Error::other("the bus cannot be seen in /proc")
}
