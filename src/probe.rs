//! `check --probe`: starts one worker of a pool as the bus would, and initializes it. `agents login` lets it log in
//! too. Leaves no process behind.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use kernel_core::config::PoolConfig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rpc::text::replace_control;
use rpc::{LineReader, Parts, write};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A worker that has printed more than this will not answer.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// How much of the worker's other output is shown.
const SHOWN_BYTES: usize = 300;

enum NoAnswer {
    Exited,
    TimedOut,
    Refused(Box<RawValue>),
}

/// Returns the result of initialize. `offers` are the capabilities of the client.
pub(crate) fn probe(
    pool: &PoolConfig,
    this_binary: &Path,
    offers: &Value,
    timeout: Duration,
) -> Result<Value, String> {
    ask_all(pool, this_binary, timeout, vec![("initialize", initialize_params(offers))])
}

/// Lets the agent log in by itself.
pub(crate) fn authenticate(
    pool: &PoolConfig,
    this_binary: &Path,
    offers: &Value,
    method: &Value,
    timeout: Duration,
) -> Result<Value, String> {
    let login = ("authenticate", json!({ "methodId": method }));
    ask_all(pool, this_binary, timeout, vec![("initialize", initialize_params(offers)), login])
}

fn initialize_params(offers: &Value) -> Value {
    let client = json!({ "name": "stdio-bus", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") });
    json!({ "protocolVersion": 1, "clientCapabilities": offers, "clientInfo": client })
}

/// Sends each request when the one before is answered. Returns the result of the last.
fn ask_all(
    pool: &PoolConfig,
    this_binary: &Path,
    timeout: Duration,
    requests: Vec<(&'static str, Value)>,
) -> Result<Value, String> {
    let mut child = kernel_shell::spawn_worker(pool, this_binary).map_err(|error| error.to_string())?;
    let mut output = Vec::new();
    let mut talk = Talk {
        stdin: child.stdin.take().expect("stdin is piped"),
        stdout: child.stdout.take().expect("stdout is piped"),
        lines: LineReader::with_limit(MAX_OUTPUT_BYTES),
        until: Instant::now() + timeout,
    };
    let mut answer = Ok(Value::Null);
    let mut asked = "";
    for (at, (method, params)) in requests.into_iter().enumerate() {
        asked = method;
        answer = talk.ask(at + 1, method, &params, &mut output);
        if answer.is_err() {
            break;
        }
    }
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let printed = if answer.is_ok() { String::new() } else { last_output(&mut child, &output) };
    let exit = child.wait();
    answer.map_err(|why| match (why, exit) {
        (NoAnswer::Exited, Ok(exit)) => format!("it ended ({exit}) without an answer{printed}"),
        (NoAnswer::Exited, Err(_)) => format!("it ended without an answer{printed}"),
        (NoAnswer::TimedOut, _) => format!("no answer to {asked} within {timeout:?}{printed}"),
        (NoAnswer::Refused(error), _) => format!("it answered {asked} with an error: {error}"),
    })
}

struct Talk {
    stdin: ChildStdin,
    stdout: ChildStdout,
    lines: LineReader,
    until: Instant,
}

impl Talk {
    /// Adds everything that the worker prints before its answer to `output`.
    fn ask(
        &mut self,
        id: usize,
        method: &str,
        params: &Value,
        output: &mut Vec<u8>,
    ) -> Result<Value, NoAnswer> {
        let _ = self.stdin.write_all(&write::request(id, method, params));
        let wire_id = id.to_string();
        while output.len() < MAX_OUTPUT_BYTES {
            let line = match self.lines.read_line(&mut self.stdout, Some(self.until)) {
                Ok(Some(line)) => line,
                Ok(None) => return Err(NoAnswer::Exited),
                Err(_) => break,
            };
            match Parts::parse(line) {
                Some(Parts { id: Some(id), method: None, result, error, .. }) if id.get() == wire_id => {
                    return match error {
                        Some(error) if error.get() != "null" => Err(NoAnswer::Refused(error.to_owned())),
                        _ => Ok(result
                            .and_then(|result| serde_json::from_str(result.get()).ok())
                            .unwrap_or_default()),
                    };
                }
                _ => output.extend([line, b"\n"].concat()),
            }
        }
        output.extend(self.lines.unread());
        Err(NoAnswer::TimedOut)
    }
}

/// The end of the worker's stderr, or else of its stdout.
fn last_output(child: &mut Child, stdout: &[u8]) -> String {
    let mut stderr = Vec::new();
    if let Some(pipe) = child.stderr.take() {
        let _ = pipe.take(1 << 20).read_to_end(&mut stderr);
    }
    let printed = if stderr.trim_ascii().is_empty() { stdout.trim_ascii() } else { stderr.trim_ascii() };
    if printed.is_empty() {
        return String::new();
    }
    let end = String::from_utf8_lossy(&printed[printed.len().saturating_sub(SHOWN_BYTES)..]);
    format!(", it printed: {}", replace_control(&end, ' '))
}
