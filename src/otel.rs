//! `otel`: the turns, tool calls and questions of a running bus as spans of OpenTelemetry.

use std::process::ExitCode;

use clients::{Fault, Signals};

use crate::bus_args::BusArgs;
use crate::output::{report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus otel                                          to the collector at http://localhost:4318
  stdio-bus otel --endpoint http://collector:4318         to another one
  OTEL_EXPORTER_OTLP_HEADERS=api-key=SECRET stdio-bus otel --endpoint https://otlp.example.com

Runs until Ctrl-C, and waits for a bus that restarts. A turn is a span invoke_agent, a tool call in it execute_tool, \
and what the agent asks is a span until it is answered. The traceparent in the _meta of a prompt is the parent. What \
is said is not sent. The standard variables hold: OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL (http/protobuf, http/json), \
_HEADERS, _TIMEOUT, _COMPRESSION (gzip), _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY, each also as \
OTEL_EXPORTER_OTLP_TRACES_..., OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The collector that speaks OTLP over HTTP [default: $OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Only what concerns this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match export(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault.in_words()),
    }
}

fn export(args: Args) -> Result<(), Fault> {
    let Args { endpoint, pool, bus } = args;
    let target = bus.target()?;
    let signals = Signals::install_clean_exit()?;
    let options = ::otel::Options { endpoint, pool };
    ::otel::run(&target, options, &signals, |line| {
        report(format_args!("stdio-bus otel: {line}"), 0);
    })
}
