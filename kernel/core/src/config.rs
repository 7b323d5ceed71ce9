//! The configuration of the bus. The shell reads it from bus.json and gives out only a valid `Config`.
//!
//! No `Debug` or `Display` of these types prints the value of an environment variable, since it may be a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::WORK_PIECE;
use crate::token::TokenDigest;

/// The longest name of a bus.
pub const BUS_NAME_CHARS: usize = 32;

/// Whether a bus may have this name.
pub fn is_bus_name(name: &str) -> bool {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'_');
    // A name that begins with a dash would be taken for a flag where a command is given one.
    (1..=BUS_NAME_CHARS).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('-')
}

/// Everything that is configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The name of the bus, which its session ids begin with. Only a restart changes it.
    pub name: Option<Box<str>>,
    /// Where the bus accepts connections.
    pub listen: Vec<Listen>,
    /// The token that every connection must show. `None`: none is needed.
    pub auth: Option<Auth>,
    /// The pool of clients that name none. `None`: they must name one if there are several.
    pub default_pool: Option<Box<str>>,
    /// The pools in the order of bus.json.
    pub pools: Vec<Arc<PoolConfig>>,
    /// Limits and timeouts of the whole bus.
    pub limits: Limits,
    /// Tracers may see whole messages.
    pub trace_payloads: bool,
    /// The web door, a process of its own that the bus starts. `None`: there is none.
    pub web: Option<WebConfig>,
    /// The cluster that pools of this bus are in, or that it offers pools to. `None`: this machine is all there is.
    pub cluster: Option<ClusterConfig>,
    /// Where and how long what was said is kept. `None`: nothing is.
    pub history: Option<HistoryConfig>,
    /// Who is told what waits for people while they are away. Empty: nobody.
    #[serde(default)]
    pub notify: Vec<NotifyConfig>,
}

impl Config {
    /// A configuration of these pools, without listeners and with default limits.
    pub fn with_pools(pools: impl IntoIterator<Item = PoolConfig>) -> Config {
        Config {
            name: None,
            listen: Vec::new(),
            auth: None,
            default_pool: None,
            pools: pools.into_iter().map(Arc::new).collect(),
            limits: Limits::default(),
            trace_payloads: false,
            web: None,
            cluster: None,
            history: None,
            notify: Vec::new(),
        }
    }
}

/// The token that every connection must show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Auth {
    /// The file that holds the token.
    pub token_file: PathBuf,
    /// The digest of the token in that file when the configuration was read.
    pub digest: TokenDigest,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Listen {
    /// The address that it is bound to.
    pub at: Address,
    /// The pool of its clients, unless they name another one.
    pub pool: Option<Box<str>>,
}

/// An address to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Address {
    /// A TCP address.
    Tcp {
        /// A host name or an IP address.
        host: Box<str>,
        /// The port. A listener with port 0 gets a free one.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// Stdin and stdout of the bus.
    Stdio,
}

/// The web door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebConfig {
    /// Whether it speaks https.
    pub https: bool,
    /// An IP address or `localhost`.
    pub host: Box<str>,
    /// The port; 0 is a free one.
    pub port: u16,
    /// The files of its certificate, if it speaks https.
    pub tls: Option<WebTls>,
    /// Names beside its own under which it may be reached, as `Host` has them.
    pub hosts: Vec<String>,
    /// Origins beside its own whose pages may use it, such as that of a proxy in front of it.
    pub origins: Vec<String>,
    /// What is told to people who are away. Left out by a bus that does not know it yet.
    #[serde(default)]
    pub push: PushText,
}

/// What a push to a browser says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushText {
    /// Which session asks.
    #[default]
    Plain,
    /// Also the titles of the session and of the question.
    Full,
}

impl WebConfig {
    /// What is before `://` in its address.
    pub fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }
}

/// Prints its address.
impl fmt::Display for WebConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, port) = (self.scheme(), self.port);
        match &*self.host {
            host if host.contains(':') => write!(out, "{scheme}://[{host}]:{port}"),
            host => write!(out, "{scheme}://{host}:{port}"),
        }
    }
}

/// The files of a certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebTls {
    /// The chain of certificates.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Where and how long what was said is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryConfig {
    /// The folder. `None`: the usual one of the user.
    pub folder: Option<PathBuf>,
    /// The bytes of all transcripts together. Above that the oldest of closed sessions go.
    pub max_bytes: u64,
    /// How many days a transcript is kept after the last word. `None`: for ever.
    pub keep_days: Option<u32>,
}

impl HistoryConfig {
    /// The default of `max_bytes`.
    pub const MAX_BYTES: u64 = 2 << 30;
}

impl Default for HistoryConfig {
    fn default() -> HistoryConfig {
        HistoryConfig { folder: None, max_bytes: HistoryConfig::MAX_BYTES, keep_days: None }
    }
}

/// A webhook that is told what waits for people while they are away.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyConfig {
    /// Where notices are posted. What is behind the host is often a secret.
    pub url: String,
    /// What is told.
    pub on: Vec<NoticeKind>,
    /// How long nobody has reacted before it is told.
    pub after: Duration,
    /// The pools whose sessions it is about. Empty: all.
    pub pools: Vec<Box<str>>,
    /// Headers of every request. Their values are secrets.
    pub headers: BTreeMap<String, String>,
    /// Further members of every body, which replace those of the notice.
    pub body: serde_json::Map<String, serde_json::Value>,
}

impl NotifyConfig {
    /// The default of `after`.
    pub const AFTER: Duration = Duration::from_secs(10);

    /// Where it is, as far as that may be shown.
    pub fn place(&self) -> &str {
        let host = self.url.find("://").map_or(0, |at| at + 3);
        let end = self.url[host..].find(['/', '?', '#']).map_or(self.url.len(), |at| host + at);
        &self.url[..end]
    }
}

/// Leaves out what may be a secret.
impl fmt::Debug for NotifyConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("NotifyConfig");
        shown.field("at", &self.place()).field("on", &self.on).field("after", &self.after);
        shown.field("pools", &self.pools).finish_non_exhaustive()
    }
}

/// What people who are away are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// An agent asks something, and nobody has answered.
    Asked,
    /// A turn has ended.
    Ended,
    /// A turn has failed, or its agent was lost.
    Failed,
}

impl NoticeKind {
    /// Its name in bus.json.
    pub fn name(self) -> &'static str {
        match self {
            NoticeKind::Asked => "asked",
            NoticeKind::Ended => "ended",
            NoticeKind::Failed => "failed",
        }
    }
}

/// How other machines are reached, and what this one does for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// The NATS servers, each as `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub url: Vec<String>,
    /// A file with a JWT and the key that goes with it.
    pub creds: Option<PathBuf>,
    /// A file with the seed of an nkey.
    pub nkey: Option<PathBuf>,
    /// Certificates of those who may vouch for the servers, in PEM. `None`: the system's.
    pub ca: Option<PathBuf>,
    /// Whoever reaches the servers may run commands here: they know no accounts, and that is meant.
    #[serde(default)]
    pub insecure: bool,
    /// Edges may tell this node to take no new sessions.
    #[serde(default)]
    pub edges_drain: bool,
    /// Nodes of the own zone come first.
    pub zone: Option<String>,
    /// The pools that others may use. Empty: none.
    pub offer: Vec<String>,
    /// Folders of clients, and what they are called here.
    pub map: BTreeMap<String, String>,
    /// The command that makes a folder that is not here, run with its path.
    pub prepare: Vec<String>,
}

impl ClusterConfig {
    /// Whether the servers are told who this is. If not, everybody who reaches them can pass for any bus.
    pub fn has_account(&self) -> bool {
        self.creds.is_some() || self.nkey.is_some()
    }

    /// A cluster that is reached there, and nothing else.
    pub fn at(url: impl Into<String>) -> ClusterConfig {
        ClusterConfig {
            url: vec![url.into()],
            creds: None,
            nkey: None,
            ca: None,
            insecure: false,
            edges_drain: false,
            zone: None,
            offer: Vec::new(),
            map: BTreeMap::new(),
            prepare: Vec::new(),
        }
    }
}

/// A pool of equal workers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// The name of the pool.
    pub id: Box<str>,
    /// The program of each worker.
    pub program: Program,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The nodes that its processes work at: one process a node and handshake. `{node}` in the command, its arguments,
    /// its folder and its variables stands for the name of the node. Empty: the pool has none.
    pub nodes: Vec<Arc<str>>,
    /// Its processes find their nodes themselves; one that is started for a node is told its name.
    pub finds_nodes: bool,
    /// Whether clients share workers.
    pub mode: Mode,
    /// How many processes are kept: `1 <= instances <= max_instances`.
    pub instances: u32,
    /// How many processes there are at most; in a pool with nodes, of each node.
    pub max_instances: u32,
    /// How many sessions one process has at most, without those of subagents.
    pub max_sessions: u32,
    /// True: processes start with the bus and are initialized before they are needed. False: they start when needed.
    pub warm: bool,
    /// A process above `instances` that has no session and nothing to do for this long is stopped. `None`: it is kept.
    pub idle: Option<Duration>,
    /// How long a session is kept whose client has left. `None`: as long as the limits say.
    #[serde(default)]
    pub session_keep: Option<Duration>,
    /// How an agent's permission requests are answered.
    pub permission: Permission,
    /// Where its agents keep their sessions: pools with the same name here have one set of sessions. `None`: the name
    /// that its agents give themselves in `initialize`.
    pub store: Option<Arc<str>>,
    /// Whether other clients may join a session that a client has open.
    pub share: bool,
    /// Whether what is said in its sessions is written down.
    pub keep: bool,
    /// The working directory of the processes. `None`: that of the bus.
    pub cwd: Option<PathBuf>,
    /// Environment variables that are set for the processes.
    pub env: BTreeMap<String, String>,
    /// The variables of the bus's own environment that the processes inherit.
    pub inherit_env: InheritEnv,
}

/// Leaves out the values of `env`: they may be secrets, and the output may end up in a log.
impl fmt::Debug for PoolConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.env.keys().collect::<Vec<_>>();
        out.debug_struct("PoolConfig")
            .field("id", &self.id)
            .field("program", &self.program)
            .field("args", &self.args)
            .field("nodes", &self.nodes)
            .field("finds_nodes", &self.finds_nodes)
            .field("mode", &self.mode)
            .field("instances", &self.instances)
            .field("max_instances", &self.max_instances)
            .field("max_sessions", &self.max_sessions)
            .field("warm", &self.warm)
            .field("idle", &self.idle)
            .field("session_keep", &self.session_keep)
            .field("permission", &self.permission)
            .field("store", &self.store)
            .field("share", &self.share)
            .field("keep", &self.keep)
            .field("cwd", &self.cwd)
            .field("env", &names)
            .field("inherit_env", &self.inherit_env)
            .finish()
    }
}

/// The program of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// The bare name `stdio-bus`, which is the running binary.
    ThisBinary,
    /// A bare name that is looked up in PATH.
    InPath(String),
    /// A path, made absolute relative to the folder of bus.json.
    At(PathBuf),
}

/// Prints the program as bus.json names it, except that a path is absolute.
impl fmt::Display for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::ThisBinary => out.write_str("stdio-bus"),
            Program::InPath(name) => out.write_str(name),
            Program::At(path) => write!(out, "{}", path.display()),
        }
    }
}

impl PoolConfig {
    /// The default of `max_instances`, unless `instances` is larger. Only clients with equal handshakes share a
    /// process, so this is how many kinds of clients can use a pool at the same time.
    pub const MAX_INSTANCES: u32 = 8;

    /// How many sessions all its processes have at most.
    pub(crate) fn places(&self) -> usize {
        self.max_instances as usize * self.nodes.len().max(1) * self.max_sessions as usize
    }

    /// The default of `idle`.
    pub const IDLE: Duration = Duration::from_secs(300);

    /// A pool with default settings.
    pub fn new(id: &str, program: Program) -> PoolConfig {
        PoolConfig {
            id: id.into(),
            program,
            args: Vec::new(),
            nodes: Vec::new(),
            finds_nodes: false,
            mode: Mode::Shared,
            instances: 1,
            max_instances: PoolConfig::MAX_INSTANCES,
            max_sessions: 64,
            warm: true,
            idle: Some(PoolConfig::IDLE),
            session_keep: None,
            permission: Permission::Ask,
            store: None,
            share: true,
            keep: true,
            cwd: None,
            env: BTreeMap::new(),
            inherit_env: InheritEnv::All,
        }
    }
}

/// How an agent's permission requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Permission {
    /// The client answers.
    Ask,
    /// The bus answers with an option that allows.
    Allow,
    /// The bus answers with an option that rejects.
    Deny,
}

/// Whether clients share workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// A worker serves any number of clients.
    Shared,
    /// Each client gets a worker of its own.
    Dedicated,
}

/// The environment variables that workers inherit from the bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InheritEnv {
    /// Workers inherit every variable.
    All,
    /// Workers inherit no variable.
    Nothing,
    /// Workers inherit the variables with these names.
    Only(Vec<String>),
}

/// Limits and timeouts of the whole bus, as bus.json can set them, but for `work_piece`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The longest line, in bytes. A longer one is skipped.
    pub max_input_buffer: usize,
    /// The number of bytes that may wait for one peer before the peers that feed it are no longer read.
    pub max_output_queue: usize,
    /// How long a peer may take nothing while its queue is full before it is closed.
    pub backpressure_timeout: Duration,
    /// The number of times that a worker may be restarted within `restart_window`.
    pub max_restarts: u32,
    /// The time over which restarts are counted.
    pub restart_window: Duration,
    /// The longest pause before a worker is restarted.
    pub max_restart_delay: Duration,
    /// How long a worker may take to answer `initialize`.
    pub init_timeout: Duration,
    /// How long a worker that owes an answer may write nothing. `None`: for ever.
    pub silence_timeout: Option<Duration>,
    /// How long calls in flight may take once the bus is stopping or their pool is removed.
    pub drain_timeout: Duration,
    /// How long the sessions of a client that left are kept.
    pub session_keep: Duration,
    /// How many bytes of what was said in a session are kept for those who join it. 0: none.
    pub session_log_bytes: usize,
    /// How many bytes of that are kept of all sessions together.
    pub max_log_bytes: usize,
    /// The number of clients that may be connected.
    pub max_clients: usize,
    /// The number of requests that may be in flight.
    pub max_calls: usize,
    /// The number of bytes that may be held for all peers before new requests are refused.
    pub max_held_bytes: usize,
    /// How many steps of work that one event causes are done before others are served.
    pub work_piece: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_input_buffer: 64 << 20,
            max_output_queue: 4 << 20,
            backpressure_timeout: Duration::from_secs(60),
            max_restarts: 5,
            restart_window: Duration::from_secs(60),
            max_restart_delay: Duration::from_secs(10),
            init_timeout: Duration::from_secs(30),
            silence_timeout: None,
            drain_timeout: Duration::from_secs(30),
            session_keep: Duration::from_secs(300),
            session_log_bytes: 1 << 20,
            max_log_bytes: 64 << 20,
            max_clients: 10_000,
            max_calls: 1 << 20,
            max_held_bytes: 1 << 30,
            work_piece: WORK_PIECE,
        }
    }
}

impl Address {
    /// Whether only one listener can use this address. Port 0 stands for a free port each time.
    pub fn is_exclusive(&self) -> bool {
        !matches!(self, Address::Tcp { port: 0, .. })
    }

    /// Whether only peers on this machine can connect to this address.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp { host, .. } => {
                &**host == "localhost"
                    || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
            }
            Address::Unix(_) | Address::Stdio => true,
        }
    }
}

impl From<Address> for Listen {
    fn from(at: Address) -> Listen {
        Listen { at, pool: None }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(out, "tcp://[{host}]:{port}"),
            Address::Tcp { host, port } => write!(out, "tcp://{host}:{port}"),
            Address::Unix(path) => write!(out, "unix://{}", path.display()),
            Address::Stdio => out.write_str("stdio:"),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.at)?;
        match &self.pool {
            Some(pool) => write!(out, "?pool={pool}"),
            None => Ok(()),
        }
    }
}
