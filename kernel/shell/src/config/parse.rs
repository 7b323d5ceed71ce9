//! From the text of bus.json to a `Config`, or to every fault in it.
//!
//! The reader notes a fault and goes on with a default in its place, so one reading finds them all; what it
//! has built is given out only if it noted none. It looks neither at the disk nor at the real environment.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::fault::{ConfigFault, quoted, unknown_key};
use super::json::{Json, join};
use super::place::Place;
use super::{Doors, address};
use kernel_core::config::{
    Address, Auth, Config, InheritEnv, Limits, Listen, Mode, Permission, PoolConfig, Program,
};
use kernel_core::token::TokenDigest;

pub(super) const TOP_KEYS: [&str; 7] =
    ["$schema", "listen", "auth", "default_pool", "pools", "limits", "trace"];

pub(super) const AUTH_KEYS: [&str; 1] = ["token_file"];

pub(super) const TRACE_KEYS: [&str; 1] = ["payloads"];

pub(super) const POOL_KEYS: [&str; 13] = [
    "id",
    "command",
    "args",
    "mode",
    "instances",
    "max_instances",
    "max_sessions",
    "warm",
    "idle_sec",
    "permission",
    "cwd",
    "env",
    "inherit_env",
];

pub(super) const LIMIT_KEYS: [&str; 13] = [
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
    "max_clients",
    "max_calls",
    "max_held_bytes",
];

/// What to do about a door that others can reach.
pub(crate) const OFF_LOOPBACK: &str = "without a token whoever reaches it could run commands here; make one with \
    `stdio-bus token` and name its file in auth.token_file";

/// Any number of seconds stays below this, so that a deadline never overflows: a year.
const SECONDS_MOST: u32 = 365 * 24 * 60 * 60;

const MODES: [(&str, Mode); 2] = [("shared", Mode::Shared), ("dedicated", Mode::Dedicated)];
const PERMISSIONS: [(&str, Permission); 3] =
    [("ask", Permission::Ask), ("allow", Permission::Allow), ("deny", Permission::Deny)];

const INSTANCES: RangeInclusive<u64> = 1..=65_536;
const SESSIONS: RangeInclusive<u64> = 1..=1 << 20;

pub(super) fn config(text: &str, place: Place<'_>) -> Result<Config, Vec<ConfigFault>> {
    let json = read_json(text)?;
    let mut reader = Reader { place, faults: Vec::new() };
    reader.refuse_repeated_keys(&json);
    let config = reader.config(&json);
    if reader.faults.is_empty() { Ok(config) } else { Err(reader.faults) }
}

/// Only how the bus is reached: a client needs neither the pools nor the environment they ask for.
pub(super) fn doors(text: &str, place: Place<'_>) -> Result<Doors, Vec<ConfigFault>> {
    let json = read_json(text)?;
    let mut reader = Reader { place, faults: Vec::new() };
    let top = reader.object(&Spot { path: String::new(), json: &json }, &TOP_KEYS);
    // What else is wrong with the file is for `serve` and `check` to tell.
    reader.faults.retain(|fault| fault.path == "$");
    let listen = top.as_ref().map(|top| reader.listen(top)).unwrap_or_default();
    let token_file = top.as_ref().and_then(|top| reader.token_file(top)).map(|(path, _)| path);
    let doors = Doors { listen: listen.into_iter().map(|(door, _)| door).collect(), token_file };
    if reader.faults.is_empty() { Ok(doors) } else { Err(reader.faults) }
}

fn read_json(text: &str) -> Result<Json, Vec<ConfigFault>> {
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let message = error.to_string();
        let message = message.trim_end_matches(&format!(" at line {line} column {column}"));
        vec![ConfigFault::of_file(format!("line {line}, column {column}: {message}"))]
    })
}

struct Reader<'a> {
    place: Place<'a>,
    faults: Vec<ConfigFault>,
}

/// A value and where it stands.
struct Spot<'a> {
    path: String,
    json: &'a Json,
}

/// The pairs of an object, and where it stands.
struct Fields<'a> {
    path: String,
    pairs: &'a [(String, Json)],
}

impl<'a> Fields<'a> {
    fn find(&self, key: &str) -> Option<Spot<'a>> {
        let (_, json) = self.pairs.iter().find(|(name, _)| name == key)?;
        Some(Spot { path: join(&self.path, key), json })
    }

    fn spots(&self) -> impl Iterator<Item = (&'a str, Spot<'a>)> {
        self.pairs.iter().map(|(key, json)| (key.as_str(), Spot { path: join(&self.path, key), json }))
    }
}

/// What the file declares.
impl<'a> Reader<'a> {
    fn config(&mut self, json: &'a Json) -> Config {
        let Some(top) = self.object(&Spot { path: String::new(), json }, &TOP_KEYS) else {
            return Config {
                listen: Vec::new(),
                auth: None,
                default_pool: None,
                pools: Vec::new(),
                limits: Limits::default(),
                trace_payloads: false,
            };
        };
        if let Some(schema) = top.find("$schema") {
            self.text(&schema);
        }
        let pools = self.pools(&top);
        let listen = self.listen(&top);
        let auth = self.auth(&top);
        if top.find("auth").is_none() {
            self.refuse_off_loopback(&listen);
        }
        let default_pool = top.find("default_pool").and_then(|spot| Some((self.filled(&spot)?, spot.path)));
        // A pool without a readable id may be the very one that is meant.
        if pools.iter().all(|pool| !pool.id.is_empty()) && !pools.is_empty() {
            let names = pools.iter().map(|pool| &*pool.id).collect::<Vec<_>>();
            for (door, path) in &listen {
                self.refuse_unknown_pool(path, door.pool.as_deref(), &names);
            }
            if let Some((pool, path)) = &default_pool {
                self.refuse_unknown_pool(path, Some(pool), &names);
            }
        }
        let limits = top.find("limits").map(|spot| self.limits(&spot)).unwrap_or_default();
        Config {
            listen: listen.into_iter().map(|(door, _)| door).collect(),
            auth,
            default_pool: default_pool.map(|(pool, _)| pool.into()),
            pools: pools.into_iter().map(Arc::new).collect(),
            limits,
            trace_payloads: self.trace_payloads(&top).unwrap_or(false),
        }
    }

    fn refuse_unknown_pool(&mut self, path: &str, pool: Option<&str>, names: &[&str]) {
        if let Some(pool) = pool.filter(|pool| !names.contains(pool)) {
            self.fault(path, format!("there is no pool {pool:?}, the pools are {}", quoted(names)));
        }
    }

    /// Each with its path.
    fn listen(&mut self, top: &Fields<'a>) -> Vec<(Listen, String)> {
        let Some(spot) = top.find("listen") else {
            let usual = Address::Tcp { host: "127.0.0.1".into(), port: 9000 };
            return vec![(usual.into(), join(&top.path, "listen"))];
        };
        let mut doors: Vec<(Listen, String)> = Vec::new();
        for item in self.filled_list(&spot) {
            let Some(text) = self.text(&item) else { continue };
            let door = match address::listen(text, self.place) {
                Ok(door) => door,
                Err(message) => {
                    self.fault(&item.path, message);
                    continue;
                }
            };
            let twin = doors.iter().find(|(other, _)| other.at == door.at && door.at.is_exclusive());
            if let Some((_, twin)) = twin {
                self.fault(&item.path, format!("{twin} has the address {} already", door.at));
            }
            doors.push((door, item.path));
        }
        doors
    }

    fn refuse_off_loopback(&mut self, listen: &[(Listen, String)]) {
        for (door, path) in listen.iter().filter(|(door, _)| !door.at.is_local()) {
            self.fault(path, format!("{} is not on loopback: {OFF_LOOPBACK}", door.at));
        }
    }

    fn auth(&mut self, top: &Fields<'a>) -> Option<Auth> {
        let (token_file, path) = self.token_file(top)?;
        let token = self.kept(&path, (self.place.token)(&token_file))?;
        Some(Auth { token_file, digest: TokenDigest::of(&token) })
    }

    /// With where it is named.
    fn token_file(&mut self, top: &Fields<'a>) -> Option<(PathBuf, String)> {
        let fields = self.object(&top.find("auth")?, &AUTH_KEYS)?;
        let Some(spot) = fields.find("token_file") else {
            // Another key that stands there is told already, and is probably the one that was meant.
            if fields.pairs.is_empty() {
                self.fault(&join(&fields.path, "token_file"), "missing");
            }
            return None;
        };
        let text = self.text(&spot)?;
        let path = self.kept(&spot.path, self.place.path(text))?;
        Some((path, spot.path))
    }

    fn trace_payloads(&mut self, top: &Fields<'a>) -> Option<bool> {
        let fields = self.object(&top.find("trace")?, &TRACE_KEYS)?;
        self.truth(&fields.find("payloads")?)
    }

    fn pools(&mut self, top: &Fields<'a>) -> Vec<PoolConfig> {
        let Some(spot) = top.find("pools") else {
            self.fault("pools", "missing");
            return Vec::new();
        };
        let mut pools: Vec<PoolConfig> = Vec::new();
        for item in self.filled_list(&spot) {
            let pool = self.pool(&item);
            let twin = pools.iter().position(|other| other.id == pool.id && !pool.id.is_empty());
            if let Some(twin) = twin {
                self.fault(
                    &join(&item.path, "id"),
                    format!("pools[{twin}] has the id {:?} already", pool.id),
                );
            }
            pools.push(pool);
        }
        pools
    }

    /// Its id is empty if it could not be read.
    fn pool(&mut self, spot: &Spot<'a>) -> PoolConfig {
        let empty = Fields { path: spot.path.clone(), pairs: &[] };
        let readable = self.object(spot, &POOL_KEYS);
        if let Some(fields) = &readable {
            for key in ["id", "command"].into_iter().filter(|key| fields.find(key).is_none()) {
                self.fault(&join(&spot.path, key), "missing");
            }
        }
        let fields = readable.unwrap_or(empty);
        let id = fields.find("id").and_then(|spot| self.pool_id(&spot)).unwrap_or_default();
        let program = fields.find("command").and_then(|spot| self.program(&spot));
        let instances = self.whole(&fields, "instances", INSTANCES).unwrap_or(1);
        let max_instances = self.whole(&fields, "max_instances", INSTANCES).unwrap_or(instances);
        if max_instances < instances {
            let path = join(&fields.path, "max_instances");
            self.fault(&path, format!("must be at least instances ({instances}), not {max_instances}"));
        }
        PoolConfig {
            id,
            program: program.unwrap_or(Program::ThisBinary),
            args: fields.find("args").map(|spot| self.texts(&spot)).unwrap_or_default(),
            mode: self.choice(&fields, "mode", &MODES).unwrap_or(Mode::Shared),
            instances,
            max_instances,
            max_sessions: self.whole(&fields, "max_sessions", SESSIONS).unwrap_or(64),
            warm: fields.find("warm").and_then(|spot| self.truth(&spot)).unwrap_or(true),
            idle: self.seconds(&fields, "idle_sec").filter(|idle| !idle.is_zero()),
            permission: self.choice(&fields, "permission", &PERMISSIONS).unwrap_or(Permission::Ask),
            cwd: fields.find("cwd").and_then(|spot| {
                let text = self.text(&spot)?;
                self.kept(&spot.path, self.place.path(text))
            }),
            env: fields.find("env").map(|spot| self.env(&spot)).unwrap_or_default(),
            inherit_env: fields.find("inherit_env").map_or(InheritEnv::All, |spot| self.inherit_env(&spot)),
        }
    }

    fn pool_id(&mut self, spot: &Spot<'a>) -> Option<Box<str>> {
        let id = self.filled(spot)?;
        if address::is_pool_id(id) {
            return Some(id.into());
        }
        self.fault(
            &spot.path,
            format!("{id:?} is not 1 to 64 letters, digits, dots, underscores and dashes"),
        );
        None
    }

    fn program(&mut self, spot: &Spot<'a>) -> Option<Program> {
        let command = self.filled(spot)?;
        if command.contains('/') {
            return self.kept(&spot.path, self.place.path(command)).map(Program::At);
        }
        match command {
            "stdio-bus" => Some(Program::ThisBinary),
            // Neither can be a program, and PATH would find the folder itself.
            "." | ".." | "~" => {
                self.fault(&spot.path, format!("{command:?} is a folder"));
                None
            }
            _ => Some(Program::InPath(command.to_owned())),
        }
    }

    /// One of a few words.
    fn choice<T: Copy>(&mut self, fields: &Fields<'a>, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let spot = fields.find(key)?;
        let words = choices.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        let Json::Text(text) = spot.json else { return self.must_be(&spot, words) };
        let chosen = choices.iter().find(|(word, _)| word == text).map(|(_, choice)| *choice);
        if chosen.is_none() {
            self.fault(&spot.path, format!("must be {words}, not {text:?}"));
        }
        chosen
    }

    fn truth(&mut self, spot: &Spot<'a>) -> Option<bool> {
        match spot.json {
            Json::Bool(truth) => Some(*truth),
            _ => self.must_be(spot, "true or false"),
        }
    }

    fn env(&mut self, spot: &Spot<'a>) -> BTreeMap<String, String> {
        let Json::Object(pairs) = spot.json else {
            return self.must_be(spot, "an object").unwrap_or_default();
        };
        let fields = Fields { path: spot.path.clone(), pairs };
        let mut env = BTreeMap::new();
        for (name, spot) in fields.spots() {
            self.env_name(&spot.path, name);
            let Some(text) = self.text(&spot) else { continue };
            if let Some(value) = self.kept(&spot.path, self.place.expand(text)) {
                env.insert(name.to_owned(), value);
            }
        }
        env
    }

    fn inherit_env(&mut self, spot: &Spot<'a>) -> InheritEnv {
        match spot.json {
            Json::Bool(true) => InheritEnv::All,
            Json::Bool(false) => InheritEnv::Nothing,
            Json::List(_) => {
                let before = self.faults.len();
                let names = self.texts(spot);
                if self.faults.len() == before {
                    for (index, name) in names.iter().enumerate() {
                        self.env_name(&format!("{}[{index}]", spot.path), name);
                    }
                }
                InheritEnv::Only(names)
            }
            _ => self.must_be(spot, "true, false or a list").unwrap_or(InheritEnv::All),
        }
    }

    fn env_name(&mut self, path: &str, name: &str) {
        if name.is_empty() || name.contains(['=', '\0']) {
            self.fault(path, "the name of a variable must not be empty or hold \"=\" or NUL");
        }
    }

    fn limits(&mut self, spot: &Spot<'a>) -> Limits {
        let usual = Limits::default();
        let Some(fields) = self.object(spot, &LIMIT_KEYS) else { return usual };
        let before = self.faults.len();
        let limits = Limits {
            max_input_buffer: self
                .whole(&fields, "max_input_buffer", 1 << 10..=1 << 30)
                .unwrap_or(usual.max_input_buffer),
            max_output_queue: self
                .whole(&fields, "max_output_queue", 1 << 10..=1 << 30)
                .unwrap_or(usual.max_output_queue),
            backpressure_timeout: self
                .some_seconds(&fields, "backpressure_timeout_sec")
                .unwrap_or(usual.backpressure_timeout),
            max_restarts: self.whole(&fields, "max_restarts", 0..=1_000_000).unwrap_or(usual.max_restarts),
            restart_window: self.some_seconds(&fields, "restart_window_sec").unwrap_or(usual.restart_window),
            max_restart_delay: self
                .some_seconds(&fields, "max_restart_delay_sec")
                .unwrap_or(usual.max_restart_delay),
            init_timeout: self.some_seconds(&fields, "init_timeout_sec").unwrap_or(usual.init_timeout),
            silence_timeout: match self.seconds(&fields, "silence_timeout_sec") {
                None => usual.silence_timeout,
                Some(Duration::ZERO) => None,
                some => some,
            },
            drain_timeout: self.seconds(&fields, "drain_timeout_sec").unwrap_or(usual.drain_timeout),
            session_keep: self.seconds(&fields, "session_keep_sec").unwrap_or(usual.session_keep),
            max_clients: self.whole(&fields, "max_clients", 1..=1 << 20).unwrap_or(usual.max_clients),
            max_calls: self.whole(&fields, "max_calls", 1..=1 << 20).unwrap_or(usual.max_calls),
            max_held_bytes: self
                .whole(&fields, "max_held_bytes", 1 << 10..=1 << 40)
                .unwrap_or(usual.max_held_bytes),
        };
        if self.faults.len() == before && limits.max_held_bytes < limits.max_input_buffer {
            let (held, line) = (limits.max_held_bytes, limits.max_input_buffer);
            let path = join(&fields.path, "max_held_bytes");
            self.fault(&path, format!("must be at least max_input_buffer ({line}), not {held}"));
        }
        limits
    }
}

/// The kinds of value. Each notes a fault and gives nothing where the value is of another kind.
impl<'a> Reader<'a> {
    fn object(&mut self, spot: &Spot<'a>, known: &[&str]) -> Option<Fields<'a>> {
        let Json::Object(pairs) = spot.json else {
            return self.must_be(spot, "an object");
        };
        let fields = Fields { path: spot.path.clone(), pairs };
        for (key, spot) in fields.spots().filter(|(key, _)| !known.contains(key)) {
            self.fault(&spot.path, unknown_key(key, known));
        }
        Some(fields)
    }

    fn list(&mut self, spot: &Spot<'a>) -> Option<Vec<Spot<'a>>> {
        let Json::List(items) = spot.json else {
            return self.must_be(spot, "a list");
        };
        let spot_of = |(index, json)| Spot { path: format!("{}[{index}]", spot.path), json };
        Some(items.iter().enumerate().map(spot_of).collect())
    }

    fn filled_list(&mut self, spot: &Spot<'a>) -> Vec<Spot<'a>> {
        let Some(items) = self.list(spot) else { return Vec::new() };
        if items.is_empty() {
            self.fault(&spot.path, "must not be empty");
        }
        items
    }

    fn texts(&mut self, spot: &Spot<'a>) -> Vec<String> {
        let items = self.list(spot).unwrap_or_default();
        items.iter().filter_map(|item| self.text(item)).map(str::to_owned).collect()
    }

    fn filled(&mut self, spot: &Spot<'a>) -> Option<&'a str> {
        let text = self.text(spot)?;
        if text.is_empty() {
            self.fault(&spot.path, "must not be empty");
            return None;
        }
        Some(text)
    }

    fn text(&mut self, spot: &Spot<'a>) -> Option<&'a str> {
        let Json::Text(text) = spot.json else {
            return self.must_be(spot, "a string");
        };
        if text.contains('\0') {
            self.fault(&spot.path, "must not hold a NUL character");
            return None;
        }
        Some(text)
    }

    fn whole<N: TryFrom<u64>>(
        &mut self,
        fields: &Fields<'a>,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Option<N> {
        let spot = fields.find(key)?;
        let number = match spot.json {
            Json::Whole(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let fitting =
            number.filter(|number| range.contains(number)).and_then(|number| number.try_into().ok());
        if fitting.is_none() {
            let (least, most) = (range.start(), range.end());
            return self.must_be(&spot, format_args!("a whole number from {least} to {most}"));
        }
        fitting
    }

    /// Above zero.
    fn some_seconds(&mut self, fields: &Fields<'a>, key: &str) -> Option<Duration> {
        let seconds = self.seconds(fields, key)?;
        if seconds.is_zero() {
            let what = format_args!("a number above 0 and up to {SECONDS_MOST}");
            return self.must_be(&fields.find(key)?, what);
        }
        Some(seconds)
    }

    fn seconds(&mut self, fields: &Fields<'a>, key: &str) -> Option<Duration> {
        let spot = fields.find(key)?;
        let number = match spot.json {
            Json::Whole(number) => *number as f64,
            Json::Fraction(number) => *number,
            _ => f64::NAN,
        };
        if !(0.0..=f64::from(SECONDS_MOST)).contains(&number) {
            return self.must_be(&spot, format_args!("a number from 0 to {SECONDS_MOST}"));
        }
        Some(Duration::from_secs_f64(number))
    }

    fn kept<T>(&mut self, path: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|message| self.fault(path, message)).ok()
    }

    fn must_be<T>(&mut self, spot: &Spot<'a>, what: impl Display) -> Option<T> {
        self.fault(&spot.path, format!("must be {what}, not {}", spot.json.kind()));
        None
    }

    fn refuse_repeated_keys(&mut self, json: &Json) {
        let mut repeated = Vec::new();
        json.repeated_keys("", &mut repeated);
        for path in repeated {
            self.fault(&path, "this key stands here more than once");
        }
    }

    fn fault(&mut self, path: &str, message: impl Into<String>) {
        let path = if path.is_empty() { "$" } else { path };
        self.faults.push(ConfigFault { path: path.to_owned(), message: message.into() });
    }
}
