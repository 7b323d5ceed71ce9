//! What bus.json declares, as values. The shell reads the file; a `Config` that it gives out is valid.
//!
//! No `Debug` or `Display` of these types prints the value of an environment variable: it may be a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::token::TokenDigest;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listen: Vec<Listen>,
    /// What those who connect must show. None: nothing.
    pub auth: Option<Auth>,
    pub default_pool: Option<Box<str>>,
    pub pools: Vec<Arc<PoolConfig>>,
    pub limits: Limits,
    /// Those who follow the traffic may see what is said.
    pub trace_payloads: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    pub token_file: PathBuf,
    /// Of the token that stood there when the configuration was read.
    pub digest: TokenDigest,
}

/// One door of the bus, and the pool that its clients are bound to unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listen {
    pub at: Address,
    pub pool: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp { host: Box<str>, port: u16 },
    Unix(PathBuf),
    Stdio,
}

#[derive(Clone, PartialEq, Eq)]
pub struct PoolConfig {
    pub id: Box<str>,
    pub program: Program,
    pub args: Vec<String>,
    pub mode: Mode,
    /// Processes kept. `1 <= instances <= max_instances`.
    pub instances: u32,
    pub max_instances: u32,
    pub max_sessions: u32,
    /// Start at once, and initialize ahead of use; otherwise start when first needed.
    pub warm: bool,
    /// Processes above `instances` that have nothing to do for this long are stopped. None: never.
    pub idle: Option<Duration>,
    pub permission: Permission,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub inherit_env: InheritEnv,
}

/// Without the values of `env`: they may be secrets, and what can be printed ends up in a log.
impl fmt::Debug for PoolConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.env.keys().collect::<Vec<_>>();
        out.debug_struct("PoolConfig")
            .field("id", &self.id)
            .field("program", &self.program)
            .field("args", &self.args)
            .field("mode", &self.mode)
            .field("instances", &self.instances)
            .field("max_instances", &self.max_instances)
            .field("max_sessions", &self.max_sessions)
            .field("warm", &self.warm)
            .field("idle", &self.idle)
            .field("permission", &self.permission)
            .field("cwd", &self.cwd)
            .field("env", &names)
            .field("inherit_env", &self.inherit_env)
            .finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The bare name `stdio-bus`: this very binary.
    ThisBinary,
    /// A bare name, to be found in PATH.
    InPath(String),
    /// A path, made absolute from the folder of bus.json.
    At(PathBuf),
}

/// As bus.json names it, but for a path, which is absolute.
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
    /// A pool of which nothing but this is declared.
    pub fn new(id: &str, program: Program) -> PoolConfig {
        PoolConfig {
            id: id.into(),
            program,
            args: Vec::new(),
            mode: Mode::Shared,
            instances: 1,
            max_instances: 1,
            max_sessions: 64,
            warm: true,
            idle: None,
            permission: Permission::Ask,
            cwd: None,
            env: BTreeMap::new(),
            inherit_env: InheritEnv::All,
        }
    }
}

/// Who answers an agent that asks for a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The client.
    Ask,
    /// The bus, for clients that cannot.
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Dedicated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InheritEnv {
    All,
    Nothing,
    Only(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_input_buffer: usize,
    pub max_output_queue: usize,
    pub backpressure_timeout: Duration,
    pub max_restarts: u32,
    pub restart_window: Duration,
    /// The longest rest of a worker before it is started again.
    pub max_restart_delay: Duration,
    pub init_timeout: Duration,
    /// None: off.
    pub silence_timeout: Option<Duration>,
    pub drain_timeout: Duration,
    pub session_keep: Duration,
    pub max_clients: usize,
    pub max_calls: usize,
    pub max_held_bytes: usize,
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
            max_clients: 10_000,
            max_calls: 1 << 20,
            max_held_bytes: 1 << 30,
        }
    }
}

impl Address {
    /// True where two doors cannot be at this address. Port 0 is a free one each time.
    pub fn is_exclusive(&self) -> bool {
        !matches!(self, Address::Tcp { port: 0, .. })
    }

    /// True where nobody on another machine can be at the other end.
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
