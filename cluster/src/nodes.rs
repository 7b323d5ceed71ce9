//! `stdio-bus nodes`: asks every node of the cluster who it is.

use std::time::{Duration, Instant};

use async_nats::{StatusCode, Subject};
use futures_util::StreamExt;
use kernel_core::config::ClusterConfig;
use rpc::text::{rfc3339_of_millis, unix_ms};
use serde_json::{Value, json};
use tokio::runtime;
use tokio::time::timeout;

use crate::End;
use crate::carrier::{Carrier, Change};
use crate::subjects::{self, shown};
use crate::talk::{About, Request, to_bytes};

/// Nodes answer at once; the last one is waited for this long after the one before it.
const LAST_WAIT: Duration = Duration::from_millis(250);
/// How long a node may take to do what it is told.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// A node that has answered.
#[derive(Clone, Debug)]
pub struct NodeRow {
    about: About,
    round_trip: Duration,
}

impl NodeRow {
    /// Its name, zone, pools, room, sessions, load, round trip, version and age, for people.
    pub fn cells(&self) -> [String; 9] {
        let about = &self.about;
        let pools: Vec<String> = about.pools.iter().map(|pool| shown(&pool.id)).collect();
        let state = if about.drain { " (drains)" } else { "" };
        [
            shown(&about.node),
            about.zone.as_deref().map_or("-".to_owned(), shown),
            pools.join(","),
            format!("{}{state}", self.room()),
            self.sessions().to_string(),
            format!("{:.2}", about.load),
            format!("{:.1} ms", self.round_trip.as_secs_f64() * 1000.0),
            shown(&about.version),
            age(unix_ms().saturating_sub(about.started) / 1000),
        ]
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let about = &self.about;
        json!({
            "name": about.node,
            "zone": about.zone,
            "pools": about.pools,
            "room": self.room(),
            "sessions": self.sessions(),
            "pipes": about.pipes,
            "load": about.load,
            "mem_free": about.mem_free,
            "round_trip_us": u64::try_from(self.round_trip.as_micros()).unwrap_or(u64::MAX),
            "version": about.version,
            "since": rfc3339_of_millis(about.started),
            "drain": about.drain,
        })
    }

    fn room(&self) -> u64 {
        self.about.pools.iter().map(|pool| pool.room).max().unwrap_or_default()
    }

    fn sessions(&self) -> u64 {
        self.about.pools.iter().map(|pool| pool.sessions).sum()
    }
}

/// The nodes that answer within `wait`, by name.
pub fn find(cluster: &ClusterConfig, name: Option<String>, wait: Duration) -> Result<Vec<NodeRow>, End> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| End::unavailable(format!("cannot start: {error}")))?;
    runtime.block_on(ask(cluster, name.unwrap_or_else(subjects::host_name), wait))
}

/// Tells a node to take no new sessions, or to take them again.
pub fn drain(cluster: &ClusterConfig, name: Option<String>, node: &str, drain: bool) -> Result<(), End> {
    if !subjects::is_name(node) {
        return Err(End::misconfigured(format!("{node:?} cannot be the name of a node")));
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| End::unavailable(format!("cannot start: {error}")))?;
    runtime.block_on(tell(cluster, name.unwrap_or_else(subjects::host_name), node, Request::Drain { drain }))
}

async fn tell(cluster: &ClusterConfig, name: String, node: &str, request: Request) -> Result<(), End> {
    let mut carrier = Carrier::connect(cluster, &name, &format!("stdio-bus {name}: nodes")).await?;
    let answered =
        timeout(ANSWER_WAIT, carrier.client.request(subjects::open(node), to_bytes(&request))).await;
    if let Ok(Ok(_)) = answered {
        return Ok(());
    }
    while let Ok(change) = carrier.changes.try_recv() {
        if let Change::Refused(what) = change {
            return Err(End::refused(format!("NATS refuses: {what}")));
        }
    }
    Err(End::unavailable(format!(
        "node {node} does not answer: `stdio-bus nodes` says which nodes there are"
    )))
}

async fn ask(cluster: &ClusterConfig, name: String, wait: Duration) -> Result<Vec<NodeRow>, End> {
    let broken = |error: &dyn std::fmt::Display| End::unavailable(format!("NATS: {error}"));
    let mut carrier = Carrier::connect(cluster, &name, &format!("stdio-bus {name}: nodes")).await?;
    let client = carrier.client.clone();
    let inbox = Subject::from(client.new_inbox());
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| broken(&error))?;
    client.flush().await.map_err(|error| broken(&error))?;
    let asked = Instant::now();
    let published = client.publish_with_reply(subjects::ALL_NODES, inbox, "{}".into()).await;
    published.map_err(|error| broken(&error))?;
    let mut nodes: Vec<NodeRow> = Vec::new();
    loop {
        let left = wait.saturating_sub(asked.elapsed());
        let left = if nodes.is_empty() { left } else { left.min(LAST_WAIT) };
        let Ok(Some(message)) = timeout(left, answers.next()).await else { break };
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            break;
        }
        if let Ok(about) = serde_json::from_slice(&message.payload) {
            nodes.push(NodeRow { about, round_trip: asked.elapsed() });
        }
    }
    while let Ok(change) = carrier.changes.try_recv() {
        if let Change::Refused(what) = change
            && nodes.is_empty()
        {
            return Err(End::refused(format!("NATS refuses: {what}")));
        }
    }
    nodes.sort_by(|one, other| one.about.node.cmp(&other.about.node));
    Ok(nodes)
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
