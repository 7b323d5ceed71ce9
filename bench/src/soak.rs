//! `soak`: chaos for as long as one likes, in rounds: does the bus hold more after each than after the one before?

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::args::Measured;
use crate::chaos::{Round, Soaked};
use crate::goal::{Sheet, mebibytes};
use crate::print::complain;
use crate::run::parse_seconds;

/// Of one hour, once it is warm.
const SLOPE_BYTES: f64 = (1 << 20) as f64;
/// A slope over minutes says little of hours; what the allocator does then is not taken for a leak below this.
const NOISE_BYTES: f64 = (2 << 20) as f64;
/// The first part of the time is for warming up.
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
    let mut sheet = Sheet::default();
    match soak(&stdio_bus, args.seconds, args.seed, &mut sheet) {
        Ok(()) => sheet.finish(args.measured.json),
        Err(error) => complain(format_args!("soak: {error}"), 1),
    }
}

fn soak(stdio_bus: &Path, length: Duration, seed: u64, sheet: &mut Sheet) -> io::Result<()> {
    let begun = Instant::now();
    let mut soaked = Soaked::start(stdio_bus, seed)?;
    let mut rounds = Vec::new();
    while rounds.len() < 2 * WARM_PART || begun.elapsed() < length {
        rounds.push(soaked.round(begun)?);
    }
    soaked.tell(sheet);
    let warm = &rounds[rounds.len() / WARM_PART..];
    let (first, last) = (&warm[0], &warm[warm.len() - 1]);
    sheet.tell("soak: rounds", rounds.len());
    sheet.judge("soak: open files, from first to last", last.fds, first.fds, last.fds == first.fds);
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
    sheet.judge("soak: memory", got, "<= 1 MiB/h, or 2 MiB in all", met);
    Ok(())
}

/// Bytes an hour: the line that lies nearest to all of them.
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
