//! `stdio-bus nodes`: asks every node of the cluster who it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::{Client, Subject};
use futures_util::StreamExt;
use kernel_core::config::ClusterConfig;
use rpc::text::{rfc3339_of_millis, unix_ms};
use serde_json::{Value, json};
use tokio::runtime;
use tokio::time::timeout;

use crate::End;
use crate::asking::{Answer, ask};
use crate::carrier::{Carrier, Change};
use crate::subjects::{self, shown};
use crate::talk::{About, Event, Note, Reply, Request, to_bytes};

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

    /// The table of nodes as JSON, for programs.
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
    runtime.block_on(look(cluster, name.unwrap_or_else(subjects::host_name), wait))
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
    runtime.block_on(tell(cluster, name.unwrap_or_else(subjects::host_name), node, drain))
}

async fn tell(cluster: &ClusterConfig, name: String, node: &str, drain: bool) -> Result<(), End> {
    let mut carrier = Carrier::connect(cluster, &name, &format!("stdio-bus {name}: nodes")).await?;
    let client = carrier.client.clone();
    let is_told = if name == node {
        tell_itself(&client, node, drain).await?
    } else {
        let request = to_bytes(&Request::Drain { drain });
        let mut answers = ask(&client, &name, subjects::open(node), request).await?;
        match answers.next::<Reply>(ANSWER_WAIT).await {
            Some(Answer::Of(by, Reply { refused: Some(why), .. })) if by == node => {
                return Err(End::refused(format!("node {node}: {}", shown(&why))));
            }
            answer => matches!(answer, Some(Answer::Of(by, _)) if by == node),
        }
    };
    if is_told {
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

/// Tells the link of the own bus, with the permissions of a node: it may publish only notes about itself.
async fn tell_itself(client: &Client, node: &str, drain: bool) -> Result<bool, End> {
    let broken = |error: &dyn std::fmt::Display| End::unavailable(format!("NATS: {error}"));
    let (order, done) = if drain { (Event::Close, Event::Drain) } else { (Event::Reopen, Event::Up) };
    let mut notes = client.subscribe(subjects::note(node)).await.map_err(|error| broken(&error))?;
    let note = Note { event: order, addr: String::new(), started: 0, held_ms: 0 };
    let published = client.publish(subjects::note(node), to_bytes(&note)).await;
    published.map_err(|error| broken(&error))?;
    let heard = async {
        while let Some(message) = notes.next().await {
            if serde_json::from_slice::<Note>(&message.payload).is_ok_and(|note| note.event == done) {
                return true;
            }
        }
        false
    };
    Ok(timeout(ANSWER_WAIT, heard).await.unwrap_or_default())
}

async fn look(cluster: &ClusterConfig, name: String, wait: Duration) -> Result<Vec<NodeRow>, End> {
    let mut carrier = Carrier::connect(cluster, &name, &format!("stdio-bus {name}: nodes")).await?;
    let client = carrier.client.clone();
    let asked = Instant::now();
    let mut answers = ask(&client, &name, Subject::from_static(subjects::ALL_NODES), "{}".into()).await?;
    let mut nodes: BTreeMap<String, NodeRow> = BTreeMap::new();
    loop {
        let left = wait.saturating_sub(asked.elapsed());
        let left = if nodes.is_empty() { left } else { left.min(LAST_WAIT) };
        match answers.next::<About>(left).await {
            Some(Answer::Of(node, about)) => {
                nodes.entry(node).or_insert_with(|| NodeRow { about, round_trip: asked.elapsed() });
            }
            Some(Answer::Doubtful) => {}
            Some(Answer::NobodyThere) | None => break,
        }
    }
    while let Ok(change) = carrier.changes.try_recv() {
        if let Change::Refused(what) = change
            && nodes.is_empty()
        {
            return Err(End::refused(format!("NATS refuses: {what}")));
        }
    }
    Ok(nodes.into_values().collect())
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
