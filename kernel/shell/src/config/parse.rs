//! Parses the text of bus.json into a `Config`, or into the list of all its errors.
//!
//! The reader notes an error and goes on with a default, so that one pass finds every error; the `Config` is returned
//! only if there was none. The disk and the environment are reached only through the `Resolver`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::address;
use super::error::{ConfigError, quoted};
use super::json::{Json, is_remark, join};
use super::jsonc::{plain_json, without_mark};
use super::nodes;
use super::reader::{Fields, Node, Range, Reader};
use super::resolve::Resolver;
use kernel_core::config::{
    Address, Auth, ClusterConfig, Config, HistoryConfig, InheritEnv, Limits, Listen, Mode, Permission,
    PoolConfig, Program, WebConfig,
};
use kernel_core::token::TokenDigest;

pub(super) const TOP_KEYS: [&str; 12] = [
    "$schema",
    "name",
    "listen",
    "auth",
    "default_pool",
    "pools",
    "limits",
    "trace",
    "web",
    "cluster",
    "history",
    "notify",
];

pub(super) const AUTH_KEYS: [&str; 1] = ["token_file"];

pub(super) const TRACE_KEYS: [&str; 1] = ["payloads"];

pub(super) const POOL_KEYS: [&str; 19] = [
    "id",
    "command",
    "args",
    "nodes",
    "from",
    "mode",
    "instances",
    "max_instances",
    "max_sessions",
    "warm",
    "idle_sec",
    "session_keep_sec",
    "permission",
    "store",
    "share",
    "history",
    "cwd",
    "env",
    "inherit_env",
];

pub(super) const LIMIT_KEYS: [&str; 15] = [
    "max_input_buffer",
    "max_output_queue",
    "backpressure_timeout_sec",
    "max_restarts",
    "restart_window_sec",
    "max_restart_delay_sec",
    "init_timeout_sec",
    "silence_timeout_sec",
    "drain_timeout_sec",
    "session_keep_sec",
    "session_log_bytes",
    "max_log_bytes",
    "max_clients",
    "max_calls",
    "max_held_bytes",
];

/// What to do about an address that others can reach.
pub(crate) const OFF_LOOPBACK: &str = "without a token whoever reaches it could run commands here; create one with \
    `stdio-bus token` and name its file in auth.token_file";

/// A file without pools, and what to write.
pub(super) const NO_POOLS: &str = "missing; the smallest is \"pools\": [{\"id\": \"echo\", \"command\": \"stdio-bus\", \
    \"args\": [\"agent\", \"echo\"]}]";

const MODES: [(&str, Mode); 2] = [("shared", Mode::Shared), ("dedicated", Mode::Dedicated)];
const PERMISSIONS: [(&str, Permission); 3] =
    [("ask", Permission::Ask), ("allow", Permission::Allow), ("deny", Permission::Deny)];

const INSTANCES: Range = 1..=65_536;
const SESSIONS: Range = 1..=1 << 20;
const BUFFER_BYTES: Range = 1 << 10..=1 << 30;

/// What a client needs to know: where the bus listens, and which file holds its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The addresses at which the bus listens.
    pub listen: Vec<Listen>,
    /// The file that holds the token. `None`: no token is needed.
    pub token_file: Option<PathBuf>,
    /// The web door. `None`: there is none.
    pub web: Option<WebConfig>,
    /// The name of the bus, if it has one.
    pub name: Option<Box<str>>,
    /// The cluster. `None`: there is none.
    pub cluster: Option<ClusterConfig>,
    /// Where what was said is kept. `None`: nothing is.
    pub history: Option<HistoryConfig>,
}

pub(super) fn config(text: &str, resolver: Resolver<'_>) -> Result<Config, Vec<ConfigError>> {
    let json = read_json(text)?;
    let mut reader = Reader { resolver, errors: Vec::new() };
    reader.refuse_repeated_keys(&json);
    match reader.config(&json) {
        Some(config) if reader.errors.is_empty() => Ok(config),
        _ => Err(reader.errors),
    }
}

/// Reads only how the bus is reached: a client needs neither the pools nor the variables that they refer to.
pub(super) fn client_config(text: &str, resolver: Resolver<'_>) -> Result<ClientConfig, Vec<ConfigError>> {
    let json = read_json(text)?;
    let mut reader = Reader { resolver, errors: Vec::new() };
    let top = reader.object(&Node { path: String::new(), json: &json }, &TOP_KEYS);
    // `serve` and `check` report the other errors of the file.
    reader.errors.retain(|error| error.path == "$");
    let Some(top) = top else { return Err(reader.errors) };
    let listen = reader.listen(&top).into_iter().map(|(listen, _)| listen).collect();
    let token_file = reader.token_file(&top).map(|(path, _)| path);
    let web = reader.web(&top);
    let cluster = reader.cluster(&top);
    let name = reader.name_of_bus(&top, cluster.as_ref());
    let history = reader.history(&top);
    if !reader.errors.is_empty() {
        return Err(reader.errors);
    }
    Ok(ClientConfig { listen, token_file, web, name, cluster, history })
}

fn read_json(text: &str) -> Result<Json, Vec<ConfigError>> {
    serde_json::from_str(&plain_json(without_mark(text))).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let message = error.to_string();
        let message = message.trim_end_matches(&format!(" at line {line} column {column}"));
        if text.trim().is_empty() {
            return vec![ConfigError::of_file("the file is empty; `stdio-bus detect --write` fills it")];
        }
        if error.is_eof() {
            return vec![ConfigError::of_file(unfinished(text, message))];
        }
        let shown = shown_place(text, line, column);
        vec![ConfigError::of_file(format!("line {line}, column {column}: {message}{shown}"))]
    })
}

/// The message for a file that ends too early, with the place behind its last word.
fn unfinished(text: &str, message: &str) -> String {
    let rest = text.trim_end();
    let line = rest.lines().count().max(1);
    let column = rest.lines().last().unwrap_or_default().len() + 1;
    let closing = match message.rsplit(' ').next() {
        Some("object") => "a } is missing",
        Some("list") => "a ] is missing",
        Some("string") => "a \" is missing",
        _ => "a value is missing",
    };
    let shown = shown_place(text, line, column);
    format!("line {line}, column {column}: the file ends too early: {closing}{shown}")
}

/// The line of an error with a mark below its place, if the line is not too long for people.
fn shown_place(text: &str, line: usize, column: usize) -> String {
    let source = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    if source.len() > 120 || source.trim().is_empty() || source.chars().any(char::is_control) {
        return String::new();
    }
    // The column counts bytes.
    let before = source.get(..column.saturating_sub(1)).unwrap_or(source).chars().count();
    format!("\n  {source}\n  {:before$}^", "")
}

/// The objects of the file.
impl<'a> Reader<'a> {
    /// `None` if the file is not an object.
    fn config(&mut self, json: &'a Json) -> Option<Config> {
        let top = self.object(&Node { path: String::new(), json }, &TOP_KEYS)?;
        if let Some(schema) = top.find("$schema") {
            self.string(&schema);
        }
        let mut pools = self.pools(&top);
        let listen = self.listen(&top);
        let auth = self.auth(&top);
        if top.find("auth").is_none() {
            self.refuse_off_loopback(&listen);
        }
        let default_pool =
            top.find("default_pool").and_then(|node| Some((self.non_empty(&node)?, node.path)));
        // The reference may mean a pool whose id could not be read.
        if pools.iter().all(|pool| !pool.id.is_empty()) && !pools.is_empty() {
            let names = pools.iter().map(|pool| &*pool.id).collect::<Vec<_>>();
            for (listen, path) in &listen {
                self.refuse_unknown_pool(path, listen.pool.as_deref(), &names);
            }
            if let Some((pool, path)) = &default_pool {
                self.refuse_unknown_pool(path, Some(pool), &names);
            }
        }
        let limits = top.find("limits").map(|node| self.limits(&node)).unwrap_or_default();
        let cluster = self.cluster(&top);
        if let Some(cluster) = &cluster {
            self.check_offers(&top, cluster, &pools);
        }
        let notify = self.notify(&top, &pools);
        let name = self.name_of_bus(&top, cluster.as_ref());
        for (index, pool) in pools.iter_mut().enumerate().filter(|(_, pool)| pool.finds_nodes) {
            match &cluster {
                Some(cluster) => pool.args.extend(nodes::cluster_args(cluster, name.as_deref())),
                None if top.has("cluster") => {}
                None => self.error(&format!("pools[{index}].from"), "the file has no \"cluster\""),
            }
        }
        Some(Config {
            name,
            listen: listen.into_iter().map(|(listen, _)| listen).collect(),
            auth,
            default_pool: default_pool.map(|(pool, _)| pool.into()),
            pools: pools.into_iter().map(Arc::new).collect(),
            limits,
            trace_payloads: self.trace_payloads(&top).unwrap_or(false),
            web: self.web(&top),
            cluster,
            history: self.history(&top),
            notify,
        })
    }

    pub(super) fn refuse_unknown_pool(&mut self, path: &str, pool: Option<&str>, names: &[&str]) {
        if let Some(pool) = pool
            && !names.contains(&pool)
        {
            self.error(path, format!("there is no pool {pool:?}, the pools are {}", quoted(names)));
        }
    }

    /// Each address comes with its JSON path.
    fn listen(&mut self, top: &Fields<'a>) -> Vec<(Listen, String)> {
        let Some(node) = top.find("listen") else {
            let default = Address::Tcp { host: "127.0.0.1".into(), port: 9000 };
            return vec![(default.into(), join(&top.path, "listen"))];
        };
        let mut listens: Vec<(Listen, String)> = Vec::new();
        for item in self.non_empty_list(&node) {
            let Some(text) = self.string(&item) else { continue };
            let Some(listen) = self.ok_or_note(&item.path, address::listen(text, self.resolver)) else {
                continue;
            };
            let twin = listens.iter().find(|(other, _)| other.at == listen.at && listen.at.is_exclusive());
            if let Some((_, twin)) = twin {
                self.error(&item.path, format!("{twin} has the address {} already", listen.at));
            }
            listens.push((listen, item.path));
        }
        listens
    }

    fn refuse_off_loopback(&mut self, listen: &[(Listen, String)]) {
        for (listen, path) in listen.iter().filter(|(listen, _)| !listen.at.is_local()) {
            self.error(path, format!("{} is not on loopback: {OFF_LOOPBACK}", listen.at));
        }
    }

    fn auth(&mut self, top: &Fields<'a>) -> Option<Auth> {
        let (token_file, path) = self.token_file(top)?;
        let token = self.ok_or_note(&path, (self.resolver.token)(&token_file))?;
        Some(Auth { token_file, digest: TokenDigest::of(&token) })
    }

    /// The file, and the JSON path that names it.
    fn token_file(&mut self, top: &Fields<'a>) -> Option<(PathBuf, String)> {
        let fields = self.object(&top.find("auth")?, &AUTH_KEYS)?;
        let Some(node) = fields.find("token_file") else {
            // Any other key has been reported already, and is probably a misspelling of this one.
            if fields.pairs.iter().all(|(key, _)| is_remark(key)) {
                self.error(&join(&fields.path, "token_file"), "missing");
            }
            return None;
        };
        Some((self.path(&node)?, node.path))
    }

    fn trace_payloads(&mut self, top: &Fields<'a>) -> Option<bool> {
        let fields = self.object(&top.find("trace")?, &TRACE_KEYS)?;
        self.boolean(&fields.find("payloads")?)
    }

    fn pools(&mut self, top: &Fields<'a>) -> Vec<PoolConfig> {
        let Some(node) = top.find("pools") else {
            self.error("pools", NO_POOLS);
            return Vec::new();
        };
        let mut pools: Vec<PoolConfig> = Vec::new();
        for item in self.non_empty_list(&node) {
            let pool = self.pool(&item);
            let twin = pools.iter().position(|other| other.id == pool.id && !pool.id.is_empty());
            if let Some(twin) = twin {
                let message = format!("pools[{twin}] has the id {:?} already", pool.id);
                self.error(&join(&item.path, "id"), message);
            }
            pools.push(pool);
        }
        pools
    }

    /// The id is empty if it could not be read.
    fn pool(&mut self, node: &Node<'a>) -> PoolConfig {
        let Some(fields) = self.object(node, &POOL_KEYS) else {
            return PoolConfig::new("", Program::ThisBinary);
        };
        let is_missing =
            |key: &&str| fields.find(key).is_none() && !(*key == "command" && fields.has("from"));
        for key in ["id", "command"].into_iter().filter(is_missing) {
            let what = if key == "id" { "the name of the pool" } else { "the program that the pool runs" };
            self.error(&join(&node.path, key), format!("missing: {what}"));
        }
        let id = fields.find("id").and_then(|node| self.pool_id(&node)).unwrap_or_default();
        let program = fields.find("command").and_then(|node| self.program(&node));
        let mut pool = PoolConfig::new(id, program.unwrap_or(Program::ThisBinary));
        set(&mut pool.instances, self.integer(&fields, "instances", INSTANCES));
        pool.max_instances = pool.max_instances.max(pool.instances);
        set(&mut pool.max_instances, self.integer(&fields, "max_instances", INSTANCES));
        if pool.max_instances < pool.instances {
            let path = join(&fields.path, "max_instances");
            let (least, most) = (pool.instances, pool.max_instances);
            self.error(&path, format!("must be at least instances ({least}), not {most}"));
        }
        set(&mut pool.args, fields.find("args").map(|node| self.strings(&node)));
        set(&mut pool.mode, self.choice(&fields, "mode", &MODES));
        set(&mut pool.max_sessions, self.integer(&fields, "max_sessions", SESSIONS));
        set(&mut pool.warm, fields.find("warm").and_then(|node| self.boolean(&node)));
        if let Some(idle) = self.seconds(&fields, "idle_sec") {
            pool.idle = if idle.is_zero() { None } else { Some(idle) };
        }
        pool.session_keep = self.seconds(&fields, "session_keep_sec");
        set(&mut pool.permission, self.choice(&fields, "permission", &PERMISSIONS));
        pool.store = fields.find("store").and_then(|node| self.non_empty(&node)).map(Arc::from);
        set(&mut pool.share, fields.find("share").and_then(|node| self.boolean(&node)));
        // What others may not join is not written down either, unless the pool says so.
        pool.keep = pool.share;
        set(&mut pool.keep, fields.find("history").and_then(|node| self.boolean(&node)));
        pool.cwd = fields.find("cwd").and_then(|node| self.path(&node));
        set(&mut pool.env, fields.find("env").map(|node| self.env(&node)));
        set(&mut pool.inherit_env, fields.find("inherit_env").map(|node| self.inherit_env(&node)));
        self.nodes(&fields, &mut pool);
        self.from(&fields, &mut pool);
        pool
    }

    fn pool_id(&mut self, node: &Node<'a>) -> Option<&'a str> {
        let id = self.non_empty(node)?;
        if address::is_pool_id(id) {
            return Some(id);
        }
        let message = format!("{id:?} is not 1 to 64 letters, digits, dots, underscores and dashes");
        self.error(&node.path, message);
        None
    }

    fn program(&mut self, node: &Node<'a>) -> Option<Program> {
        let command = self.non_empty(node)?;
        if command.contains('/') {
            return self.ok_or_note(&node.path, self.resolver.path(command)).map(Program::At);
        }
        match command {
            "stdio-bus" => Some(Program::ThisBinary),
            // None of these can be a program, and a search of PATH would find the folder itself.
            "." | ".." | "~" => {
                self.error(&node.path, format!("{command:?} is a folder"));
                None
            }
            _ => Some(Program::InPath(command.to_owned())),
        }
    }

    fn env(&mut self, node: &Node<'a>) -> BTreeMap<String, String> {
        let Json::Object(pairs) = node.json else {
            return self.must_be(node, "an object").unwrap_or_default();
        };
        let fields = Fields { path: node.path.clone(), pairs };
        let mut env = BTreeMap::new();
        for (name, node) in fields.nodes() {
            self.env_name(&node.path, name);
            let Some(text) = self.string(&node) else { continue };
            if let Some(value) = self.ok_or_note(&node.path, self.resolver.expand(text)) {
                env.insert(name.to_owned(), value);
            }
        }
        env
    }

    fn inherit_env(&mut self, node: &Node<'a>) -> InheritEnv {
        match node.json {
            Json::Bool(true) => InheritEnv::All,
            Json::Bool(false) => InheritEnv::Nothing,
            Json::List(_) => {
                let before = self.errors.len();
                let names = self.strings(node);
                if self.errors.len() == before {
                    for (index, name) in names.iter().enumerate() {
                        self.env_name(&format!("{}[{index}]", node.path), name);
                    }
                }
                InheritEnv::Only(names)
            }
            _ => self.must_be(node, "true, false or a list").unwrap_or(InheritEnv::All),
        }
    }

    fn env_name(&mut self, path: &str, name: &str) {
        if name.is_empty() || name.contains(['=', '\0']) {
            self.error(path, "the name of a variable must not be empty or hold \"=\" or NUL");
        }
    }

    fn limits(&mut self, node: &Node<'a>) -> Limits {
        let mut limits = Limits::default();
        let Some(fields) = self.object(node, &LIMIT_KEYS) else { return limits };
        let before = self.errors.len();
        set(&mut limits.max_input_buffer, self.integer(&fields, "max_input_buffer", BUFFER_BYTES));
        set(&mut limits.max_output_queue, self.integer(&fields, "max_output_queue", BUFFER_BYTES));
        set(&mut limits.backpressure_timeout, self.positive_seconds(&fields, "backpressure_timeout_sec"));
        set(&mut limits.max_restarts, self.integer(&fields, "max_restarts", 0..=1_000_000));
        set(&mut limits.restart_window, self.positive_seconds(&fields, "restart_window_sec"));
        set(&mut limits.max_restart_delay, self.positive_seconds(&fields, "max_restart_delay_sec"));
        set(&mut limits.init_timeout, self.positive_seconds(&fields, "init_timeout_sec"));
        if let Some(timeout) = self.seconds(&fields, "silence_timeout_sec") {
            limits.silence_timeout = if timeout.is_zero() { None } else { Some(timeout) };
        }
        set(&mut limits.drain_timeout, self.seconds(&fields, "drain_timeout_sec"));
        set(&mut limits.session_keep, self.seconds(&fields, "session_keep_sec"));
        set(&mut limits.session_log_bytes, self.integer(&fields, "session_log_bytes", 0..=1 << 30));
        set(&mut limits.max_log_bytes, self.integer(&fields, "max_log_bytes", 0..=1 << 40));
        set(&mut limits.max_clients, self.integer(&fields, "max_clients", 1..=1 << 20));
        set(&mut limits.max_calls, self.integer(&fields, "max_calls", 1..=1 << 20));
        set(&mut limits.max_held_bytes, self.integer(&fields, "max_held_bytes", 1 << 10..=1 << 40));
        if self.errors.len() == before && limits.max_held_bytes < limits.max_input_buffer {
            let (held, line) = (limits.max_held_bytes, limits.max_input_buffer);
            let path = join(&fields.path, "max_held_bytes");
            self.error(&path, format!("must be at least max_input_buffer ({line}), not {held}"));
        }
        limits
    }
}

/// Replaces a default by a value that was read.
fn set<T>(slot: &mut T, read: Option<T>) {
    if let Some(value) = read {
        *slot = value;
    }
}
