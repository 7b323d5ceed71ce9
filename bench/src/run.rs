//! `run`: loads the server at an address, or a command that each connection starts anew.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::value_parser;

use crate::acp::Turns;
use crate::address::{self, Address};
use crate::load::{Load, drive};
use crate::peer::Started;
use crate::print::{Progress, answer, complain};
use crate::request::LINE_BYTES_LEAST;

/// EX_UNAVAILABLE of sysexits.h.
const UNREACHABLE: u8 = 69;
const SECONDS_MOST: u64 = 24 * 60 * 60;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to load: tcp://HOST:PORT or unix:///PATH
    #[arg(long, value_name = "URL", required_unless_present = "command", conflicts_with = "command",
        value_parser = address::parse)]
    target: Option<Address>,
    /// Connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u32).range(1..=60_000))]
    connections: u32,
    /// Speak ACP: prompts with streamed answers, instead of plain requests
    #[arg(long)]
    acp: bool,
    /// ACP sessions on each connection, each with one turn at a time
    #[arg(long, value_name = "N", requires = "acp", default_value = "1", value_parser = value_parser!(u32).range(1..))]
    sessions: u32,
    /// Updates that each turn must bring [default: as many as bring the whole prompt back]
    #[arg(long, value_name = "N", requires = "acp")]
    updates: Option<u64>,
    /// One turn in N makes the agent ask for a permission, which is answered (by the prompt /ask of the echo agent)
    #[arg(long, value_name = "N", requires = "acp", value_parser = value_parser!(u64).range(1..))]
    ask_every: Option<u64>,
    /// Requests, or turns, a second over all connections, answered or not; times then run from when each was due
    #[arg(long, value_name = "R", value_parser = parse_rate)]
    rate: Option<f64>,
    /// Requests, or turns, in flight on each connection at most
    #[arg(long, value_name = "W", default_value = "1", value_parser = value_parser!(u32).range(1..=1 << 20))]
    window: u32,
    /// Bytes of a request, with its newline
    #[arg(long, value_name = "B", default_value = "200", value_parser = parse_bytes)]
    bytes: usize,
    /// How long to measure
    #[arg(long, value_name = "SEC", default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// How long to load before that
    #[arg(long, value_name = "SEC", default_value = "1", value_parser = parse_seconds)]
    warmup: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A command to load, started once for each connection, on its stdin and stdout
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut started = Started::default();
    let place = match &args.target {
        Some(target) => target.to_string(),
        None => args.command[0].to_string_lossy().into_owned(),
    };
    let mut connect = || match &args.target {
        Some(target) => address::connect(target),
        None => started.connect(Command::new(&args.command[0]).args(&args.command[1..])),
    };
    let streams = match (0..args.connections).map(|_| connect()).collect::<io::Result<Vec<_>>>() {
        Ok(streams) => streams,
        Err(error) => return complain(format_args!("cannot connect to {place}: {error}"), UNREACHABLE),
    };
    let sessions = args.sessions as usize;
    let load = Load {
        turns: args.acp.then_some(Turns { sessions, updates: args.updates, ask_every: args.ask_every }),
        rate: args.rate,
        window: args.window as usize,
        line_bytes: args.bytes,
        warmup: args.warmup,
        measured: args.seconds,
    };
    let label = format!("{place}, {}x{} at {} B", args.connections, args.window, args.bytes);
    let outcome = match drive(streams, &load, None, Progress::on_stderr(label.clone())) {
        Ok(outcome) => outcome,
        Err(error) => return complain(format_args!("cannot drive the load: {error}"), 1),
    };
    let text = if args.json {
        format!("{}\n", outcome.to_json())
    } else {
        format!("{label}\n{}", outcome.describe())
    };
    let printed = answer(&text);
    if outcome.faults.any() { ExitCode::FAILURE } else { printed }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let known = seconds.filter(|seconds| seconds.as_secs() <= SECONDS_MOST);
    known.ok_or_else(|| format!("not a number of seconds up to {SECONDS_MOST}"))
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1e7).contains(rate));
    rate.ok_or_else(|| "not a number from 0.001 to 10000000".to_owned())
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (LINE_BYTES_LEAST..=1 << 30).contains(bytes));
    bytes.ok_or_else(|| format!("not a number of bytes from {LINE_BYTES_LEAST} to {}", 1 << 30))
}
