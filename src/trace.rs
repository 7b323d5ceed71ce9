//! `trace`: follows the live traffic of a running bus.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clients::trace::{Filter, JsonLines, TraceFile, follow};
use clients::{Fault, Signals};

use crate::bus_args::BusArgs;
use crate::output::report_fault;

const EXAMPLES: &str = "\
Examples:
  stdio-bus trace                            every message, one line of JSON each, without what it says
  stdio-bus trace --pool claude | jq -c 'select(.latency_us > 1e6)'
  stdio-bus trace --payloads --out turn.jsons
  agent-client-protocol-trace-viewer turn.jsons

Ctrl-C ends it. The keys are in docs/GUIDE.md, \"Seeing the bus\".";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only what concerns this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Only what concerns this session: its label (s17), or the id that its client knows
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only what concerns this client: what it calls itself, or its number (#5)
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Show whole messages; bus.json must allow it with "trace": {"payloads": true}
    #[arg(long)]
    payloads: bool,
    /// Write a trace file for the viewer of ACP's conductor instead (.jsons)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match trace(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault),
    }
}

fn trace(args: Args) -> Result<(), Fault> {
    let Args { pool, session, client, payloads, out, bus } = args;
    let target = bus.target()?;
    let filter = Filter { pool, session, client, payloads };
    let signals = Signals::install_clean_exit()?;
    let Some(path) = out else {
        let stdout = io::stdout().as_fd().try_clone_to_owned();
        let stdout = stdout.map_err(|error| Fault::Failed(format!("stdout cannot be used: {error}")))?;
        let mut lines = JsonLines::new(stdout.is_terminal());
        return follow(&target, &filter, &mut lines, stdout.into(), &signals);
    };
    // The file may contain private messages.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let file = file.map_err(|error| Fault::Failed(format!("cannot write {}: {error}", path.display())))?;
    follow(&target, &filter, &mut TraceFile::default(), file, &signals)
}
