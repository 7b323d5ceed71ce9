//! `run`: loads what is at an address.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::value_parser;

use crate::load::{Load, drive};
use crate::print::{Progress, answer, complain};
use crate::request::LINE_BYTES_LEAST;
use crate::wire::Target;

/// EX_UNAVAILABLE of sysexits.h.
const UNREACHABLE: u8 = 69;
const SECONDS_MOST: u64 = 24 * 60 * 60;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to load: tcp://HOST:PORT or unix:///PATH
    #[arg(long, value_name = "URL")]
    target: Target,
    /// Connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u32).range(1..=60_000))]
    connections: u32,
    /// Requests in flight on each connection
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
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let &Args { ref target, connections, window, bytes, seconds, warmup, json } = args;
    let wires = match (0..connections).map(|_| target.connect()).collect::<io::Result<Vec<_>>>() {
        Ok(wires) => wires,
        Err(error) => return complain(format_args!("cannot connect to {target}: {error}"), UNREACHABLE),
    };
    let load = Load { window: window as usize, line_bytes: bytes, warmup, measured: seconds };
    let label = format!("{target}, {connections}x{window} at {bytes} B");
    let outcome = match drive(wires, &load, None, Progress::on_stderr(label.clone())) {
        Ok(outcome) => outcome,
        Err(error) => return complain(format_args!("cannot drive the load: {error}"), 1),
    };
    let printed = match json {
        true => answer(&format!("{}\n", outcome.to_json())),
        false => answer(&format!("{label}\n{}", outcome.describe())),
    };
    if outcome.faults.any() { ExitCode::FAILURE } else { printed }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let known = seconds.filter(|seconds| seconds.as_secs() <= SECONDS_MOST);
    known.ok_or_else(|| format!("not a number of seconds up to {SECONDS_MOST}"))
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (LINE_BYTES_LEAST..=1 << 30).contains(bytes));
    bytes.ok_or_else(|| format!("not a number of bytes from {LINE_BYTES_LEAST} to {}", 1 << 30))
}
