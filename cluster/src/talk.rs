//! What edges and nodes say to each other beside the frames of pipes: small JSON.

use serde::{Deserialize, Serialize};

use crate::asking::Signed;

/// An edge looks for a node that has room.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    pub(crate) pool: String,
    pub(crate) zone: Option<String>,
}

/// A node answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) node: String,
    pub(crate) addr: String,
    pub(crate) pool: String,
    /// How many more sessions it takes.
    pub(crate) room: u64,
    #[serde(default)]
    pub(crate) sessions: u64,
    /// How much of what the machine can do is used: 1 is all of it.
    #[serde(default)]
    pub(crate) load: f64,
    /// In bytes.
    #[serde(default)]
    pub(crate) mem_free: u64,
    #[serde(default)]
    pub(crate) zone: Option<String>,
    #[serde(default)]
    pub(crate) version: String,
    /// When the node was started, in milliseconds of the wall clock.
    #[serde(default)]
    pub(crate) started: u64,
    #[serde(default)]
    pub(crate) drain: bool,
}

/// What an edge wants of the link of a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum Request {
    /// A pipe.
    Open(Open),
    /// What an edge has no use for any more: pipes of processes that are gone, and those of its earlier lives. The
    /// proof is from the answer to its `open`, which only the edge of that name hears.
    Gone {
        proof: String,
        #[serde(default)]
        pids: Vec<u32>,
        #[serde(default)]
        earlier: bool,
    },
    /// From now on the node takes no new sessions, or takes them again.
    Drain { drain: bool },
    /// Who is there?
    Probe,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    pub(crate) pool: String,
    /// The bus at the edge, and its life: a new life of it has no use for the pipes of the last one.
    pub(crate) edge: String,
    pub(crate) boot: String,
    /// Tells edges of one name apart, and is the same in each life of one. Older edges send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// The process at the edge.
    pub(crate) pid: u32,
    pub(crate) addr: String,
    /// The number of the pipe, in hexadecimal digits: JSON has no such large numbers.
    pub(crate) pipe: String,
    pub(crate) window: usize,
    pub(crate) max_frame: usize,
    /// It is for new sessions. Without it, for those that the node has.
    #[serde(default)]
    pub(crate) is_new: bool,
    /// What the edge is: a node that cannot serve it says so.
    #[serde(default)]
    pub(crate) version: String,
}

/// What the link answers to a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reply {
    pub(crate) node: String,
    pub(crate) addr: String,
    pub(crate) started: u64,
    pub(crate) version: String,
    /// Why not. Then there is no pipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    pub(crate) window: usize,
    pub(crate) max_frame: usize,
    pub(crate) room: u64,
    pub(crate) drain: bool,
    /// Other processes of the same life of the same edge that have pipes here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) siblings: Vec<u32>,
    /// An earlier life of the same edge has pipes here.
    pub(crate) earlier: bool,
    /// Whoever says this is the edge that was answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) proof: String,
}

/// What a link tells everybody.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) event: Event,
    pub(crate) addr: String,
    /// When the node was started, in milliseconds of the wall clock.
    #[serde(default)]
    pub(crate) started: u64,
    /// How long it has had the name. A duration and no time, because the clocks of two machines differ.
    #[serde(default)]
    pub(crate) held_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    /// It has the name.
    Up,
    /// It wants the name. Who has it says so.
    Claim,
    Drain,
    Gone,
    /// Whoever has the key of the node tells it to take no new sessions.
    Close,
    /// Whoever has the key of the node tells it to take new sessions again.
    Reopen,
}

impl Signed for Offer {
    fn signature(&self) -> (&str, &str) {
        (&self.node, &self.addr)
    }
}

impl Signed for Reply {
    fn signature(&self) -> (&str, &str) {
        (&self.node, &self.addr)
    }
}

impl Signed for About {
    fn signature(&self) -> (&str, &str) {
        (&self.node, &self.addr)
    }
}

/// What the link of a node tells the edge of a pipe beside the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    pub(crate) room: u64,
    #[serde(default)]
    pub(crate) drain: bool,
}

/// What a node is, for `stdio-bus nodes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    pub(crate) node: String,
    pub(crate) addr: String,
    pub(crate) zone: Option<String>,
    pub(crate) pools: Vec<PoolAbout>,
    pub(crate) pipes: u64,
    pub(crate) load: f64,
    pub(crate) mem_free: u64,
    pub(crate) version: String,
    pub(crate) started: u64,
    pub(crate) drain: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolAbout {
    pub(crate) id: String,
    pub(crate) room: u64,
    pub(crate) sessions: u64,
}

pub(crate) fn to_bytes(value: &impl Serialize) -> bytes::Bytes {
    serde_json::to_vec(value).expect("these are plain values").into()
}
