//! `trace`: follows the live traffic of a running bus.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clients::trace::{Filter, Format, JsonLines, ReadableLines, TraceFile, follow};
use clients::{Fault, Signals};

use crate::bus_args::BusArgs;
use crate::output::{report_fault, stdout_has_colour};

const EXAMPLES: &str = "\
Examples:
  stdio-bus trace                            one line per message, without its content
  stdio-bus trace --pool claude | jq -c 'select(.latency_us > 1e6)'
  stdio-bus trace --payloads --out turn.jsons
  agent-client-protocol-trace-viewer turn.jsons

Prints lines for people on a terminal, and JSON in a pipe or with --json, until Ctrl-C. \
The keys of the JSON are in docs/GUIDE.md, \"Seeing the bus\".";

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
    /// Print JSON on a terminal too
    #[arg(long)]
    json: bool,
    /// Write a trace file for the viewer of ACP's conductor instead (.jsons)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match trace(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault.in_words()),
    }
}

fn trace(args: Args) -> Result<(), Fault> {
    let Args { pool, session, client, payloads, json, out, bus } = args;
    let target = bus.target()?;
    let filter = Filter { pool, session, client, payloads };
    let signals = Signals::install_clean_exit()?;
    let Some(path) = out else {
        let stdout = io::stdout().as_fd().try_clone_to_owned();
        let stdout = stdout.map_err(|error| Fault::Failed(format!("stdout cannot be used: {error}")))?;
        let is_terminal = stdout.is_terminal();
        let mut readable = ReadableLines::new(stdout_has_colour());
        let mut lines = JsonLines::new(is_terminal);
        let format: &mut dyn Format = if is_terminal && !json { &mut readable } else { &mut lines };
        return follow(&target, &filter, format, stdout.into(), &signals);
    };
    // The file may contain private messages.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let file = file.map_err(|error| Fault::Failed(format!("cannot write {}: {error}", path.display())))?;
    follow(&target, &filter, &mut TraceFile::default(), file, &signals)
}
