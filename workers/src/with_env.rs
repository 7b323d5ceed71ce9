//! Starts an agent with variables that its client wants for it.
//!
//! A worker's process is older than its client. So this process waits for `initialize`, starts the agent then, with
//! the variables that stand in its `_meta` and that are allowed, and passes stdin on. The agent has this process's
//! stdout and stderr. Only clients that want the same variables share a process: they are part of the handshake.
//!
//! At a terminal there is no client but a user, who logs in: the agent takes this process's place, terminal and all.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;

use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The member of `_meta` that holds the variables.
const ENV_KEY: &str = "bus/env";
/// Bounds the first line. The bus allows much less.
const FIRST_LINE_BYTES: u64 = 16 << 20;
/// The program of this name is this binary, as in bus.json.
const THIS_BINARY: &str = "stdio-bus";

pub struct Options {
    /// Names, or `PREFIX*`.
    pub allow: Vec<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs until the agent exits, and exits like it.
pub fn run(options: &Options) -> ExitCode {
    match serve(options) {
        Ok(code) => code,
        Err(error) => {
            let program = options.command.first().map(|program| program.to_string_lossy().into_owned());
            eprintln!("stdio-bus: {} cannot be started: {error}", program.unwrap_or_default());
            ExitCode::from(127)
        }
    }
}

fn serve(options: &Options) -> io::Result<ExitCode> {
    let Some(mut command) = command(options) else { return Ok(ExitCode::SUCCESS) };
    if io::stdin().is_terminal() {
        return Err(command.exec());
    }
    // Signals reach the whole process group. The agent decides what they mean, and this process waits for it.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        flag::register(signal, Arc::default())?;
    }
    let mut stdin = BufReader::new(io::stdin());
    let mut first = Vec::new();
    stdin.by_ref().take(FIRST_LINE_BYTES).read_until(b'\n', &mut first)?;
    if first.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let Wanted { allowed, refused } = wanted(&first, &options.allow);
    if !refused.is_empty() {
        eprintln!("stdio-bus: the client wants variables that --allow does not name: {}", refused.join(", "));
    }
    let mut child = command.envs(allowed).stdin(Stdio::piped()).spawn()?;
    let mut to_agent = child.stdin.take().expect("piped");
    thread::spawn(move || {
        // An agent that does not read any more is about to exit.
        let _ = to_agent.write_all(&first).and_then(|()| io::copy(&mut stdin, &mut to_agent));
    });
    let status = child.wait()?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// The agent's command without the variables.
fn command(options: &Options) -> Option<Command> {
    let (program, args) = options.command.split_first()?;
    let program = match env::current_exe() {
        Ok(path) if program == OsStr::new(THIS_BINARY) => path.into_os_string(),
        _ => program.clone(),
    };
    let mut command = Command::new(program);
    command.args(args);
    Some(command)
}

#[derive(Debug, Default, PartialEq)]
struct Wanted {
    allowed: Vec<(String, String)>,
    /// Names.
    refused: Vec<String>,
}

/// The variables that the line asks for, if it is an `initialize`.
fn wanted(line: &[u8], allow: &[String]) -> Wanted {
    let message: Value = serde_json::from_slice(line).unwrap_or_default();
    let mut wanted = Wanted::default();
    if message["method"] != "initialize" {
        return wanted;
    }
    for (name, value) in message["params"]["_meta"][ENV_KEY].as_object().into_iter().flatten() {
        let is_allowed = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        match value.as_str().filter(|value| is_name && !value.contains('\0')) {
            Some(value) if allow.iter().any(is_allowed) => {
                wanted.allowed.push((name.clone(), value.to_owned()));
            }
            _ => wanted.refused.push(name.escape_debug().to_string()),
        }
    }
    wanted.refused.sort();
    wanted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_allowed_variables_with_values_are_taken() {
        let env = json!({ "KEY": "1", "MY_A": "2", "PATH": "/x", "A=B": "3", "MY_N": 7, "MY_Z": "a\u{0}b" });
        let line = json!({ "method": "initialize", "params": { "_meta": { ENV_KEY: env } } }).to_string();
        let allow = ["KEY".to_owned(), "MY_*".to_owned(), "A=B".to_owned()];
        let mut found = wanted(line.as_bytes(), &allow);
        found.allowed.sort();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(found.allowed, [pair("KEY", "1"), pair("MY_A", "2")]);
        assert_eq!(found.refused, ["A=B", "MY_N", "MY_Z", "PATH"]);
        for other in ["", "{", r#"{"method":"session/new","params":{"_meta":{"bus/env":{"KEY":"1"}}}}"#] {
            assert_eq!(wanted(other.as_bytes(), &allow), Wanted::default());
        }
    }
}
