//! `metrics`: the figures of a running bus as Prometheus reads them, once or served.

use std::process::ExitCode;

use clients::{metrics, status};
#[cfg(feature = "web")]
use kernel_core::config::Address;

use crate::bus_args::BusArgs;
use crate::output::{print, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus metrics                              print them once
  stdio-bus metrics > /var/lib/node_exporter/stdio-bus.prom
  stdio-bus metrics --listen 127.0.0.1:9464      serve them at http://127.0.0.1:9464/metrics until Ctrl-C

The served page needs no token and contains only numbers and the names of pools and nodes. The web door has the same \
at /metrics, with a token.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Serve them on this address, for Prometheus
    #[cfg(feature = "web")]
    #[arg(long, value_name = "HOST:PORT", value_parser = kernel_shell::config::parse_tcp)]
    listen: Option<Address>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    #[cfg(feature = "web")]
    if let Some(Address::Tcp { host, port }) = &args.listen {
        let target = match args.bus.target() {
            Ok(target) => target,
            Err(fault) => return report_fault(&fault),
        };
        return match web::export(host, *port, target) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => report_fault(&clients::Fault::Failed(why)),
        };
    }
    match args.bus.target().and_then(|target| status::fetch(&target)) {
        Ok(status) => print(&metrics::describe(&serde_json::from_str(status.get()).unwrap_or_default())),
        Err(fault) => report_fault(&fault),
    }
}
