//! `link`: makes a bus a node of the cluster.

use std::process::ExitCode;
use std::time::Duration;

use clients::Fault;
use cluster::link::{self, Options, Orders};
use kernel_shell::config;

use crate::bus_args::BusArgs;
use crate::cluster_args::WhoArgs;
use crate::output::{report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus link                             as \"cluster\" in bus.json says
  stdio-bus link nats://127.0.0.1:4222 --name n17 --offer claude --nkey n17.nk
  stdio-bus link --map /home/me=/srv/me      folders of clients, and what they are called here

`serve` does this by itself where \"cluster\" in bus.json has \"offer\": [\"claude\"]. Whoever may open a pipe to a \
node runs commands there: docs/SECURITY.md has the permissions to set.

It ends with SIGTERM, and every edge hears it at once. Of two links with one name the one that was first keeps it; \
the other one says so, offers nothing, and takes the name when the first is gone.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The NATS servers, nats://HOST:PORT or tls://HOST:PORT [default: cluster.url of bus.json]
    #[arg(value_name = "URL", value_parser = config::parse_server)]
    url: Vec<String>,
    /// A pool that others may use; repeatable [default: cluster.offer of bus.json]
    #[arg(long, value_name = "POOL")]
    offer: Vec<String>,
    /// A folder of clients and what it is called here; repeatable [default: cluster.map of bus.json]
    #[arg(long, value_name = "FROM=TO", value_parser = config::parse_map)]
    map: Vec<(String, String)>,
    /// Offer pools without an account: everybody who reaches the server can run commands here as your user
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    who: WhoArgs,
    #[command(flatten)]
    bus: BusArgs,
    /// A bus has started it, and tells it the rest on stdin
    #[arg(long, hide = true)]
    supervised: bool,
    /// When the node was started, in milliseconds since 1970
    #[arg(long, hide = true, value_name = "MS")]
    since: Option<u64>,
    /// The link of the same bus before this one had the name
    #[arg(long, hide = true)]
    next: bool,
    /// Nothing is offered for so long
    #[arg(long, hide = true, value_name = "MS", default_value_t = 0)]
    offers_after_ms: u64,
}

pub(crate) fn run(args: Args) -> ExitCode {
    kernel_shell::keep_memory_private();
    kernel_shell::start_logging(kernel_shell::LogFormat::Text, None);
    let options = match options(args) {
        Ok(options) => options,
        Err(fault) => {
            kernel_shell::flush_logs();
            return report_fault(&fault);
        }
    };
    let outcome = link::run(options);
    kernel_shell::flush_logs();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(end) => report(format_args!("stdio-bus: {end}"), end.code),
    }
}

fn options(args: Args) -> Result<Options, Fault> {
    let (cluster, name, target) = if args.supervised {
        let (Orders { cluster, name }, target) = clients::read_orders().map_err(Fault::Failed)?;
        (cluster, name, target)
    } else {
        let (mut cluster, name) = args.who.resolve(&args.url, || args.bus.config_path())?;
        if !args.offer.is_empty() {
            cluster.offer = args.offer;
        }
        cluster.map.extend(args.map);
        cluster.insecure |= args.insecure;
        (cluster, name, args.bus.target()?)
    };
    let name = name.unwrap_or_else(link::default_name);
    Ok(Options {
        cluster,
        name,
        target,
        since: args.since,
        ends_with_stdin: args.supervised,
        is_next: args.next,
        offers_after: Duration::from_millis(args.offers_after_ms),
    })
}
