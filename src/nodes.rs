//! `nodes`: lists the nodes of the cluster, tells one to take no new sessions, and makes the keys by which they are
//! known.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clients::exit;
use clients::table::{self, Cell};
use cluster::End;
use cluster::keys::{self, Key, Role};
use cluster::nodes::NodeRow;
use kernel_core::config::ClusterConfig;
use serde_json::json;

use crate::cluster_args::ClusterArgs;
use crate::output::{print, report, report_fault};
use crate::token::write_secret;
use crate::watch::{WatchArgs, watch};

const EXAMPLES: &str = "\
Examples:
  stdio-bus nodes                            the nodes of \"cluster\" in bus.json
  stdio-bus nodes --url nats://127.0.0.1:4222
  stdio-bus nodes --json | jq -r '.[] | select(.room > 0).name'
  stdio-bus nodes --watch                    again every two seconds; --watch=10 less often
  stdio-bus nodes --drain n17                no new sessions there; existing ones continue
  stdio-bus nodes --undrain n17
  stdio-bus nodes --new-key n17.nk --name n17       make a key, and its user for nats-server
  stdio-bus nodes --new-key e3.nk --name e3 --edge  the same for an edge

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
    #[command(flatten)]
    again: WatchArgs,
    /// Stop new sessions on this node; existing ones continue
    #[arg(long, value_name = "NODE", conflicts_with_all = ["json", "watch"])]
    drain: Option<String>,
    /// Allow new sessions on this node again
    #[arg(long, value_name = "NODE", conflicts_with_all = ["json", "watch", "drain"])]
    undrain: Option<String>,
    /// Make a key for a bus in this file, and print what bus.json and nats-server need to know of it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch", "drain", "undrain"])]
    new_key: Option<PathBuf>,
    /// The key is for an edge: it uses the pools of nodes and offers none
    #[arg(long, requires = "new_key")]
    edge: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if let Some(file) = &args.new_key {
        return new_key(args, file);
    }
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
    let read = || list(args, &cluster, name.clone());
    let report_end = |end: &End| report(format_args!("stdio-bus: {end}"), end.code);
    match (read(), args.again.watch) {
        (Err(end), _) => report_end(&end),
        (Ok(first), None) => print(&first),
        (Ok(first), Some(every)) => watch(every, args.json, first, read, report_end),
    }
}

/// The nodes of now, as people or programs read them.
fn list(args: &Args, cluster: &ClusterConfig, name: Option<String>) -> Result<String, End> {
    let wait = Duration::try_from_secs_f64(args.wait).unwrap_or_default();
    let nodes = cluster::nodes::find(cluster, name, wait)?;
    if args.json {
        let all: Vec<_> = nodes.iter().map(NodeRow::json).collect();
        return Ok(format!("{}\n", json!(all)));
    }
    if nodes.is_empty() {
        let at = cluster.url.join(", ");
        let words = format!(
            "NATS answers at {at}, and no node does: on a node, bus.json needs \"cluster\": \
             {{\"url\": \"nats://HOST:4222\", \"offer\": [\"POOL\"]}}, with the same account here and there"
        );
        return Err(End { words, code: exit::UNAVAILABLE });
    }
    let headers = ["NODE", "ZONE", "POOLS", "ROOM", "SESSIONS", "LOAD", "ROUND TRIP", "VERSION", "SINCE"];
    let mut rows = vec![Vec::from(headers.map(Cell::new))];
    rows.extend(nodes.iter().map(|node| Vec::from(node.cells().map(Cell::new))));
    Ok(table::lines(&rows).iter().map(|line| format!("{line}\n")).collect())
}

/// Makes a key, and says where each of its parts belongs.
fn new_key(args: &Args, file: &Path) -> ExitCode {
    // Without a name the one of bus.json is meant, and without that nobody knows whose key it is.
    let name = args.cluster.who.name.clone().or_else(|| args.cluster.resolve().ok()?.1);
    let Some(name) = name else {
        return report(format_args!("stdio-bus: say whose key it is: --name NAME, as in its bus.json"), 2);
    };
    let (role, whose) = if args.edge { (Role::Edge, "edge") } else { (Role::Node, "node") };
    let Some(key) = Key::random() else {
        return report(format_args!("stdio-bus: the system's random bytes make no key"), exit::INTERNAL);
    };
    let user = match keys::user(&key.public, &name, role) {
        Ok(user) => user,
        Err(why) => return report(format_args!("stdio-bus: {why}"), 2),
    };
    if let Err(error) = write_secret(file, &key.seed) {
        let why = match error.kind() {
            ErrorKind::AlreadyExists => {
                "there is something already, and no key is ever written over".to_owned()
            }
            _ => error.to_string(),
        };
        return report(format_args!("stdio-bus: {}: {why}", file.display()), exit::CANNOT_CREATE);
    }
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    let in_json = json!(path.to_string_lossy());
    print(&format!(
        "The secret part is in {}, and only you can read it. In bus.json of this {whose}:\n  \
         \"name\": {}, \"cluster\": {{ \"nkey\": {in_json}, ... }}\n\
         In the configuration of nats-server, one of the users in authorization {{ users = [ ... ] }}:\n{user}",
        file.display(),
        json!(name)
    ))
}
