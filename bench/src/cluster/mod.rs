//! `cluster`: what another machine costs, how many pipes a link carries, how fast a node is found among many, and
//! whether every request is answered once while everything between client and agent is killed and stopped.

mod chaos;
mod nats;
mod pipes;
mod placement;
mod speed;
mod witness;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, io};

use clap::ValueEnum;
use rpc::text::unix_ms;

use crate::args::Measured;
use crate::report::Report;
use crate::run::parse_seconds;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum, value_name = "WHAT", default_values_t = [What::Speed, What::Placement])]
    what: Vec<What>,
    /// The nats-server to use [default: $BUS_NATS_SERVER, else the one in PATH]
    #[arg(long, value_name = "PATH")]
    nats_server: Option<PathBuf>,
    /// How long chaos takes
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = parse_seconds)]
    seconds: Duration,
    /// How long chaos stops a process at most
    #[arg(long, value_name = "SEC", default_value = "40", value_parser = parse_seconds)]
    stop_most: Duration,
    /// The seed of chaos [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    measured: Measured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Round trips, streams and long lines: direct, by `connect`, by NATS
    Speed,
    /// The time until a worker has a pipe, among 100 nodes
    Placement,
    /// 1,000 pipes at one link
    Pipes,
    /// Kills and stops of servers, links, workers, edges and nodes
    Chaos,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let named = args.nats_server.clone().or_else(|| env::var_os("BUS_NATS_SERVER").map(PathBuf::from));
    let nats_server = named.unwrap_or_else(|| "nats-server".into());
    let mut report = Report::default();
    for what in &args.what {
        if let Err(error) = measure(*what, args, &stdio_bus, &nats_server, &mut report) {
            let what = what.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
            report.check(&what, error, "it can be tried", false);
        }
    }
    report.finish(args.measured.json)
}

fn measure(
    what: What,
    args: &Args,
    stdio_bus: &Path,
    nats_server: &Path,
    report: &mut Report,
) -> io::Result<()> {
    match what {
        What::Speed => speed::measure(stdio_bus, nats_server, report),
        What::Placement => placement::measure(stdio_bus, nats_server, report),
        What::Pipes => pipes::measure(stdio_bus, nats_server, report),
        What::Chaos => {
            let seed = args.seed.unwrap_or_else(|| unix_ms() / 1000);
            report.note("chaos: seed", seed);
            chaos::play(
                stdio_bus,
                nats_server,
                chaos::Length { of: args.seconds, stop: args.stop_most },
                seed,
                report,
            )
        }
    }
}
