//! `nodes`: lists the nodes of the cluster.

use std::process::ExitCode;
use std::time::Duration;

use clients::table::{self, Cell};
use serde_json::json;

use crate::cluster_args::ClusterArgs;
use crate::output::{print, report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus nodes                            the nodes of \"cluster\" in bus.json
  stdio-bus nodes --url nats://127.0.0.1:4222
  stdio-bus nodes --json | jq -r '.[] | select(.room > 0).name'

ROOM is how many more sessions the node takes, LOAD how much of its processors is used (1.00 is all), ROUND TRIP how \
long its answer took. No node: exit 69.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    /// Wait so long for answers
    #[arg(long, value_name = "SEC", default_value_t = 1.0)]
    wait: f64,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (cluster, name) = match args.cluster.resolve() {
        Ok(found) => found,
        Err(fault) => return report_fault(&fault),
    };
    let wait = Duration::try_from_secs_f64(args.wait).unwrap_or_default();
    let nodes = match cluster::nodes::find(&cluster, name, wait) {
        Ok(nodes) => nodes,
        Err(end) => return report(format_args!("stdio-bus: {end}"), end.code),
    };
    if args.json {
        let all: Vec<_> = nodes.iter().map(cluster::nodes::NodeRow::json).collect();
        return print(&format!("{}\n", json!(all)));
    }
    if nodes.is_empty() {
        let at = cluster.url.join(", ");
        return report(
            format_args!(
                "stdio-bus: NATS answers at {at}, and no node does: on a node, bus.json needs \"cluster\": \
                 {{\"url\": .., \"offer\": [\"POOL\"]}}, with the same account here and there"
            ),
            69,
        );
    }
    let headers = ["NODE", "ZONE", "POOLS", "ROOM", "SESSIONS", "LOAD", "ROUND TRIP", "VERSION", "SINCE"];
    let mut rows = vec![Vec::from(headers.map(Cell::new))];
    rows.extend(nodes.iter().map(|node| Vec::from(node.cells().map(Cell::new))));
    print(&table::lines(&rows).iter().map(|line| format!("{line}\n")).collect::<String>())
}
