//! The JSON-RPC answers that the bus itself gives: its errors with code and reason, and its results.

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::Exit;
use crate::config::PoolConfig;
use crate::limit::OPENING_BYTES;
use crate::wire::scan::{Fault, Malformed};

/// How much of a method or a name an error repeats, in bytes.
const QUOTED_BYTES: usize = 256;

/// An error that the bus answers in place of a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RpcError {
    code: i32,
    /// The machine-readable reason, which is sent as `data.reason`.
    reason: Cow<'static, str>,
    message: String,
    /// The other members of `data`.
    data: Vec<(Cow<'static, str>, Value)>,
}

impl RpcError {
    fn new(code: i32, reason: &'static str, message: impl Into<String>) -> RpcError {
        RpcError { code, reason: reason.into(), message: message.into(), data: Vec::new() }
    }

    /// Adds a member to `data`.
    fn with(mut self, key: &'static str, value: impl Into<Value>) -> RpcError {
        self.data.push((key.into(), value.into()));
        self
    }

    pub(crate) fn malformed(malformed: &Malformed) -> RpcError {
        match malformed.fault {
            Fault::Syntax { .. } | Fault::TooDeep => {
                RpcError::new(-32700, "parse", malformed.fault.to_string())
            }
            _ => RpcError::invalid(malformed.fault.to_string()),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> RpcError {
        RpcError::new(-32600, "invalid", message)
    }

    pub(crate) fn unknown_request() -> RpcError {
        RpcError::invalid("requestId names no request in flight, and more than one client may be meant")
    }

    pub(crate) fn too_large(limit: usize) -> RpcError {
        RpcError::new(
            -32600,
            "too_large",
            format!("the line is longer than max_input_buffer ({limit} bytes)"),
        )
        .with("max_input_buffer", limit)
    }

    /// This is longer than what the bus does so much for.
    pub(crate) fn too_long(what: &str, limit: usize) -> RpcError {
        RpcError::new(-32600, "too_large", format!("{what} is longer than {limit} bytes"))
            .with("limit", limit)
    }

    pub(crate) fn no_method(method: &[u8]) -> RpcError {
        let method = String::from_utf8_lossy(&method[..method.len().min(QUOTED_BYTES)]);
        RpcError::new(-32601, "no_method", format!("method not found: {method}"))
    }

    /// `node`: where it was, if that has a name.
    pub(crate) fn worker_lost(pool: &PoolConfig, worker: u32, node: Option<&str>, death: &Death) -> RpcError {
        let at = node.map(|node| format!("@{node}")).unwrap_or_default();
        let message = format!("the worker {}/{worker}{at} {death} before it answered", pool.id);
        let error = RpcError::new(-32050, "worker_lost", message)
            .with("pool", &*pool.id)
            .with("worker", worker)
            .with("exit", death.exit());
        match node {
            Some(node) => error.with("node", node),
            None => error,
        }
    }

    /// The node that has the session cannot be reached now.
    pub(crate) fn node_lost(pool: &PoolConfig, node: &str, why: &str) -> RpcError {
        let message = format!("the node {node} of the pool {} is away: {why}", pool.id);
        RpcError::new(-32059, "node_lost", message)
            .with("pool", &*pool.id)
            .with("node", node)
            .with("cause", why)
    }

    /// An error that another bus has answered, if it can be a different one the next time.
    pub(crate) fn passing(error: &[u8]) -> Option<RpcError> {
        let error: Value = small_tree(error)?;
        let reason = match error["code"].as_i64()? {
            -32050 => "worker_lost",
            -32053 => "pool_down",
            -32054 => "busy",
            -32055 => "stopping",
            -32058 => "no_start",
            -32059 => "node_lost",
            _ => return None,
        };
        let code = error["code"].as_i64()?.try_into().ok()?;
        let mut passed = RpcError::new(code, reason, error["message"].as_str().unwrap_or(reason));
        for key in ["pool", "node", "worker", "cause"] {
            if let Some(value) = error["data"].get(key) {
                passed = passed.with(key, value.clone());
            }
        }
        Some(passed)
    }

    /// The turn that was asked for goes on at another bus.
    pub(crate) fn with_running_turn(self) -> RpcError {
        self.with("turn", "running")
    }

    /// Adds the reason to the message. Empty: none is known.
    pub(crate) fn with_reason(mut self, reason: &str) -> RpcError {
        if !reason.is_empty() {
            self.message = format!("{} ({reason})", self.message);
        }
        self
    }

    /// Adds the last lines that the process wrote to its stderr.
    pub(crate) fn with_stderr(self, lines: String) -> RpcError {
        self.with("stderr", lines)
    }

    pub(crate) fn unknown_session() -> RpcError {
        RpcError::new(-32051, "unknown_session", "not a session of this client")
    }

    /// This error as ACP's second version spells it: it has a code of its own for a session that is not known.
    pub(crate) fn in_second_version(self, name: &[u8]) -> RpcError {
        match serde_json::from_slice::<Value>(&[b"\"", name, b"\""].concat()) {
            Ok(name) if self.reason == "unknown_session" => {
                RpcError { code: -32002, ..self }.with("sessionId", name)
            }
            _ => self,
        }
    }

    pub(crate) fn read_only() -> RpcError {
        RpcError::new(-32061, "read_only", "this client only observes the session")
    }

    pub(crate) fn not_owner() -> RpcError {
        RpcError::new(
            -32061,
            "read_only",
            "only the owner of the session can do this; _bus/take makes you the owner",
        )
    }

    pub(crate) fn lost_session() -> RpcError {
        RpcError::new(-32051, "unknown_session", "the session was lost with its worker").with("lost", true)
    }

    pub(crate) fn bad_configuration(errors: &str) -> RpcError {
        let errors: Vec<&str> = errors.lines().collect();
        RpcError::invalid("the configuration has errors, and the old one goes on").with("errors", errors)
    }

    pub(crate) fn closed_session() -> RpcError {
        RpcError::new(-32051, "unknown_session", "the session was closed by another client")
    }

    pub(crate) fn unknown_pool<'a>(named: Option<&str>, known: impl Iterator<Item = &'a str>) -> RpcError {
        let message = match named {
            Some(name) => format!("there is no pool {:?}", shortened(name, QUOTED_BYTES)),
            None => {
                "which pool? name one with --pool or _bus/hello, or set default_pool in bus.json".to_owned()
            }
        };
        RpcError::new(-32052, "unknown_pool", message)
            .with("pools", known.map(Value::from).collect::<Vec<_>>())
    }

    pub(crate) fn pool_down(pool: &PoolConfig, why: &str) -> RpcError {
        RpcError::new(-32053, "pool_down", format!("no worker of the pool {} can be started: {why}", pool.id))
            .with("pool", &*pool.id)
            .with("cause", why)
    }

    pub(crate) fn busy(message: impl Into<String>) -> RpcError {
        RpcError::new(-32054, "busy", message)
    }

    /// One of several clients has so many sessions in the pool that the last `free` places are for others.
    pub(crate) fn places_of_others(pool: &PoolConfig, processes: usize, free: usize, own: usize) -> RpcError {
        let (id, places) = (&pool.id, pool.places());
        RpcError::busy(format!(
            "the last {free} of {places} sessions of the pool {id} are left to other clients: this one has {own}; \
             raise max_sessions of the pool"
        ))
        .with("pool", &**id)
        .with("processes", processes)
        .with("raise", "max_sessions")
    }

    /// One of several clients has so many processes of the pool, by other capabilities, that the last `free` are for
    /// others.
    pub(crate) fn processes_of_others(
        pool: &PoolConfig,
        processes: usize,
        free: usize,
        own: usize,
    ) -> RpcError {
        let (id, most) = (&pool.id, pool.max_instances);
        RpcError::busy(format!(
            "the last {free} of {most} processes of the pool {id} are left to other clients: this one has {own} by \
             other capabilities; raise max_instances of the pool"
        ))
        .with("pool", &**id)
        .with("processes", processes)
        .with("raise", "max_instances")
    }

    /// The pool has no process for a client, and may start none. `raise`: the key that would allow it.
    pub(crate) fn no_place(pool: &PoolConfig, processes: usize, raise: &'static str) -> RpcError {
        let (id, most) = (&pool.id, pool.max_sessions);
        let count = if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
        RpcError::busy(format!(
            "every worker of the pool {id} is at max_sessions ({most}) or serves clients with other capabilities; \
             it has {count}: raise {raise} of the pool"
        ))
        .with("pool", &**id)
        .with("processes", processes)
        .with("raise", raise)
    }

    /// Every process of the pool that could take a session says that it takes none.
    pub(crate) fn no_room(pool: &PoolConfig) -> RpcError {
        let id = &pool.id;
        RpcError::busy(format!("every worker of the pool {id} drains or has no room: try again later"))
            .with("pool", &**id)
    }

    pub(crate) fn stopping() -> RpcError {
        RpcError::new(-32055, "stopping", "the bus is stopping")
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> RpcError {
        RpcError::new(-32056, "unauthorized", message)
    }

    /// The answer to a request that its sender has withdrawn by `$/cancel_request`.
    pub(crate) fn withdrawn() -> RpcError {
        RpcError::new(-32800, "cancelled", "the request was withdrawn before anybody was asked")
    }

    pub(crate) fn client_gone() -> RpcError {
        RpcError::new(-32057, "client_gone", "the client of this session has left")
    }

    pub(crate) fn no_start(pool: &PoolConfig, worker: u32, message: &str) -> RpcError {
        RpcError::new(-32058, "no_start", format!("the worker {}/{worker} {message}", pool.id))
            .with("pool", &*pool.id)
            .with("worker", worker)
    }

    /// Adds the agent's own error, which says more.
    pub(crate) fn with_error(self, error: &[u8]) -> RpcError {
        self.with("error", small_tree(error).unwrap_or_default())
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.reason == "busy"
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// The answer to the request with this id, without a line end. `None`: the id is not known.
    pub(crate) fn line(&self, id: Option<&[u8]>) -> Vec<u8> {
        answer(id, "error", &self.error())
    }

    /// The error object.
    pub(crate) fn error(&self) -> String {
        let mut error = format!(
            r#"{{"code":{},"message":{},"data":{{"reason":"{}""#,
            self.code,
            Value::from(self.message.as_str()),
            self.reason
        );
        for (key, value) in &self.data {
            let _ = write!(error, r#","{key}":{value}"#);
        }
        error.push_str("}}");
        error
    }
}

/// This value, unless it is so long that its tree would take much time and memory.
fn small_tree(value: &[u8]) -> Option<Value> {
    if value.len() > OPENING_BYTES { None } else { serde_json::from_slice(value).ok() }
}

/// The beginning of a text, cut at a character.
pub(crate) fn shortened(text: &str, at_most: usize) -> &str {
    let mut end = text.len().min(at_most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The same with a result as it was once spelled.
pub(crate) fn spelled_result_line(id: &[u8], result: &[u8]) -> Vec<u8> {
    [br#"{"jsonrpc":"2.0","id":"#, id, br#","result":"#, result, b"}"].concat()
}

fn answer(id: Option<&[u8]>, key: &str, value: &str) -> Vec<u8> {
    let mut line = br#"{"jsonrpc":"2.0","id":"#.to_vec();
    line.extend_from_slice(id.unwrap_or(b"null"));
    line.extend_from_slice(format!(r#","{key}":{value}}}"#).as_bytes());
    line
}

/// How a worker's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Death {
    /// The process exited.
    Exited(Exit),
    /// The process is alive but has closed its pipes.
    Hung,
    /// The bus stopped the process because it did not read, or did not write.
    Stuck,
    /// The bus stopped the process because somebody asked for a restart.
    Restarted,
}

impl Death {
    /// The member `exit` of a `worker_lost` error.
    fn exit(&self) -> Value {
        match self {
            Death::Exited(Exit::Code(code)) => serde_json::json!({ "code": code }),
            Death::Exited(Exit::Signal(signal)) => serde_json::json!({ "signal": signal }),
            Death::Hung | Death::Stuck | Death::Restarted => Value::Null,
        }
    }
}

impl std::fmt::Display for Death {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Death::Exited(Exit::Code(code)) => write!(out, "exited with code {code}"),
            Death::Exited(Exit::Signal(signal)) => write!(out, "was killed by signal {signal}"),
            Death::Hung => write!(out, "closed its pipes"),
            Death::Stuck => write!(out, "was stuck and is stopped"),
            Death::Restarted => write!(out, "was restarted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_its_reason_first() {
        let line = RpcError::busy("say \"please\"").with("n", 1).line(Some(b"\"x\""));
        let error = r#"{"code":-32054,"message":"say \"please\"","data":{"reason":"busy","n":1}}"#;
        let expected = format!(r#"{{"jsonrpc":"2.0","id":"x","error":{error}}}"#);
        assert_eq!(String::from_utf8(line).unwrap(), expected);
        assert!(RpcError::stopping().line(None).starts_with(br#"{"jsonrpc":"2.0","id":null,"#));
    }
}
