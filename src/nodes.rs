//! `nodes`: lists the nodes of the cluster, and tells one to take no new sessions.

use std::process::ExitCode;
use std::time::Duration;

use clients::exit;
use clients::table::{self, Cell};
use serde_json::json;

use crate::cluster_args::ClusterArgs;
use crate::output::{print, report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus nodes                            the nodes of \"cluster\" in bus.json
  stdio-bus nodes --url nats://127.0.0.1:4222
  stdio-bus nodes --json | jq -r '.[] | select(.room > 0).name'
  stdio-bus nodes --drain n17                no new sessions there; existing ones continue
  stdio-bus nodes --undrain n17

ROOM is how many more sessions the node takes, LOAD how much of its processors is used (1.00 is all; above \
that, work waits for a processor), ROUND TRIP how long its answer took. No node: exit 69. A node drains until \
--undrain or until its link restarts; an edge may drain it only if its bus.json \
says \"edges_drain\": true in cluster.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the nodes as JSON
    #[arg(long)]
    json: bool,
    /// Seconds to wait for answers
    #[arg(long, value_name = "SEC", default_value_t = 1.0)]
    wait: f64,
    /// Stop new sessions on this node; existing ones continue
    #[arg(long, value_name = "NODE", conflicts_with = "json")]
    drain: Option<String>,
    /// Allow new sessions on this node again
    #[arg(long, value_name = "NODE", conflicts_with_all = ["json", "drain"])]
    undrain: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (cluster, name) = match args.cluster.resolve() {
        Ok(found) => found,
        Err(fault) => return report_fault(&fault),
    };
    if let Some(node) = args.drain.as_ref().or(args.undrain.as_ref()) {
        let says = if args.drain.is_some() { "takes no new sessions" } else { "takes new sessions again" };
        return match cluster::nodes::drain(&cluster, name, node, args.drain.is_some()) {
            Ok(()) => print(&format!("{node} {says}\n")),
            Err(end) => report(format_args!("stdio-bus: {end}"), end.code),
        };
    }
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
                 {{\"url\": \"nats://HOST:4222\", \"offer\": [\"POOL\"]}}, with the same account here and there"
            ),
            exit::UNAVAILABLE,
        );
    }
    let headers = ["NODE", "ZONE", "POOLS", "ROOM", "SESSIONS", "LOAD", "ROUND TRIP", "VERSION", "SINCE"];
    let mut rows = vec![Vec::from(headers.map(Cell::new))];
    rows.extend(nodes.iter().map(|node| Vec::from(node.cells().map(Cell::new))));
    print(&table::lines(&rows).iter().map(|line| format!("{line}\n")).collect::<String>())
}
