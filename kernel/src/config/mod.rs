//! bus.json: what the user declares. Text in, `Config` out; a `Config` that exists is valid.
//!
//! One reading finds every fault of the file, each with its JSON path. Nothing here looks whether a program
//! or a folder exists, and no message holds the value of an environment variable.

mod address;
mod fault;
mod file;
mod json;
mod parse;
mod place;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

pub use address::{parse_listen, parse_tcp, parse_unix};
pub use fault::{ConfigFault, ConfigFaults};
pub use file::read_token;
pub(crate) use parse::OFF_LOOPBACK;
pub use schema::schema;

use place::Place;

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

impl Config {
    /// Reads the file; relative paths in it are relative to its folder.
    pub fn load(path: &Path) -> Result<Config, ConfigFaults> {
        load_with(path, parse::config)
    }

    /// Reads the text of a bus.json that stands in `folder`.
    pub fn parse(text: &str, folder: &Path) -> Result<Config, ConfigFaults> {
        parse_with(text, folder, parse::config)
    }
}

/// Where the bus of a file listens, and where the token is that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doors {
    pub listen: Vec<Listen>,
    pub token_file: Option<PathBuf>,
}

impl Doors {
    /// The other faults of the file are not looked at, and no variable of the environment that its pools ask for is
    /// needed: this is for clients.
    pub fn load(path: &Path) -> Result<Doors, ConfigFaults> {
        load_with(path, parse::doors)
    }
}

type Parse<T> = fn(&str, Place<'_>) -> Result<T, Vec<ConfigFault>>;

fn load_with<T>(path: &Path, parse: Parse<T>) -> Result<T, ConfigFaults> {
    let in_file = |faults| ConfigFaults { file: path.display().to_string(), faults };
    let unreadable =
        |error: io::Error| in_file(vec![ConfigFault::of_file(format!("cannot be read: {error}"))]);
    let text = file::read_config(path).map_err(|message| in_file(vec![ConfigFault::of_file(message)]))?;
    let absolute = path::absolute(path).map_err(unreadable)?;
    let folder = absolute.parent().unwrap_or(&absolute);
    parse_with(&text, folder, parse).map_err(|faults| in_file(faults.faults))
}

fn parse_with<T>(text: &str, folder: &Path, parse: Parse<T>) -> Result<T, ConfigFaults> {
    let folder = path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    parse(text, Place::real(&folder)).map_err(ConfigFaults::of_text)
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
