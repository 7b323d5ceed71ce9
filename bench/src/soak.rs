//! `soak`: chaos for a long time, in rounds: does the bus hold more after each round than after the one before?

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::args::Measured;
use crate::chaos::{Round, Soaked};
use crate::print::complain;
use crate::report::{Report, mebibytes};
use crate::run::parse_seconds;

/// Growth per hour, after the warm-up.
const SLOPE_BYTES: f64 = (1 << 20) as f64;
/// A slope over minutes says little about hours: growth below this is the allocator's, not a leak.
const NOISE_BYTES: f64 = (2 << 20) as f64;
/// One part in so many of the time is for warming up.
const WARM_PART: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long, more or less
    #[arg(long, value_name = "SEC", default_value = "300", value_parser = parse_seconds)]
    seconds: Duration,
    /// What is killed and which trick is played follows from this
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let mut report = Report::default();
    match soak(&stdio_bus, args.seconds, args.seed, &mut report) {
        Ok(()) => report.finish(args.measured.json),
        Err(error) => complain(format_args!("soak: {error}"), 1),
    }
}

fn soak(stdio_bus: &Path, length: Duration, seed: u64, report: &mut Report) -> io::Result<()> {
    let began = Instant::now();
    let mut soaked = Soaked::start(stdio_bus, seed)?;
    let mut rounds = Vec::new();
    while rounds.len() < 2 * WARM_PART || began.elapsed() < length {
        rounds.push(soaked.round(began)?);
    }
    soaked.report(report);
    let warm = &rounds[rounds.len() / WARM_PART..];
    let (first, last) = (&warm[0], &warm[warm.len() - 1]);
    report.note("soak: rounds", rounds.len());
    report.check("soak: open files, from first to last", last.fds, first.fds, last.fds == first.fds);
    let hours = (last.at - first.at).as_secs_f64() / 3600.0;
    let slope = slope(warm);
    let grown = slope * hours;
    let got = format!(
        "{:+.2} MiB/h ({} to {})",
        slope / SLOPE_BYTES,
        mebibytes(first.bytes),
        mebibytes(last.bytes)
    );
    let met = slope <= SLOPE_BYTES || grown <= NOISE_BYTES;
    report.check("soak: memory", got, "<= 1 MiB/h, or 2 MiB in all", met);
    Ok(())
}

/// Bytes per hour, by linear regression.
fn slope(rounds: &[Round]) -> f64 {
    let count = rounds.len() as f64;
    let hours = rounds.iter().map(|round| round.at.as_secs_f64() / 3600.0).collect::<Vec<_>>();
    let bytes = rounds.iter().map(|round| round.bytes as f64).collect::<Vec<_>>();
    let (mid_hour, mid_byte) = (hours.iter().sum::<f64>() / count, bytes.iter().sum::<f64>() / count);
    let rise =
        hours.iter().zip(&bytes).map(|(hour, byte)| (hour - mid_hour) * (byte - mid_byte)).sum::<f64>();
    let run = hours.iter().map(|hour| (hour - mid_hour).powi(2)).sum::<f64>();
    rise / run.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_what_is_gained_in_an_hour() {
        let round = |minutes: u64, bytes| Round { at: Duration::from_secs(60 * minutes), bytes, fds: 9 };
        let rising = [round(0, 1000), round(30, 1500), round(60, 2000)];
        assert!((slope(&rising) - 1000.0).abs() < 1.0);
        let level = [round(0, 1000), round(30, 1100), round(60, 1000)];
        assert!(slope(&level).abs() < 1.0);
    }
}
