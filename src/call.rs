//! `call`: sends one request through the bus.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clients::call::{self, Call};

use crate::bus_args::BusArgs;
use crate::output::{print, report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus call _bus/status
  stdio-bus call --pool claude session/list '{}'
  echo '{\"a\": 1}' | stdio-bus call --timeout 5 my/method -

The result goes to stdout (exit 0), an error to stderr (exit 1), each as JSON.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The method, such as session/list
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    method: String,
    /// The parameters, an object or a list; `-` reads them from stdin
    #[arg(value_name = "JSON")]
    params: Option<String>,
    /// The pool to talk to
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Maximum seconds to wait [default: no limit]
    #[arg(long, value_name = "SEC", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let params = match args.params.as_deref() {
        Some("-") => io::read_to_string(io::stdin()).map(Some),
        params => Ok(params.map(str::to_owned)),
    };
    let params = match params {
        Ok(params) => params,
        Err(error) => return report(format_args!("stdio-bus: cannot read stdin: {error}"), 1),
    };
    let params = match params.map(|params| call::parse_params(&params)).transpose() {
        Ok(params) => params,
        Err(message) => return report(format_args!("stdio-bus: {message}"), 2),
    };
    let call = Call { method: args.method, params, pool: args.pool, timeout: args.timeout };
    match args.bus.target().and_then(|target| call::run(&call, &target)) {
        Ok(result) => print(&format!("{result}\n")),
        Err(fault) => report_fault(&fault),
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|seconds| !seconds.is_zero()).ok_or_else(|| "not a number of seconds above 0".to_owned())
}
