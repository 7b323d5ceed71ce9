//! How a user logs in to a CLI: with the CLI's own command, at a terminal or started by the agent.
//!
//! A client that has a terminal runs this agent once more with `--login`, or the CLI itself if it can be given a whole
//! command. A login that needs no terminal is run by the agent when the client asks for it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use rpc::RpcError;
use serde_json::{Map, Value, json};

use super::fault::Fault;
use super::models;
use super::runtimes::{Login, Runtime};
use super::shared::Shared;
use crate::acp::dispatch::invalid_params;
use crate::detect::probe;

/// The only way to log in of a CLI that has no list of them.
const ONLY_ID: &str = "terminal-login";
const FLAG: &str = "--login";
/// How long the user may take in the browser.
const LIMIT: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(20);

/// Becomes the CLI's command for a login, the usual one if none is named. Returns only if that fails, with the reason.
pub(super) fn run(row: &Runtime, program: Option<&Path>, id: &str) -> String {
    let named = row.logins.iter().find(|login| login.id == id && login.key_env.is_empty());
    let args = match (named, &row.log_in_args) {
        (Some(login), _) => &login.args,
        (None, Some(args)) if id.is_empty() => args,
        (None, None) => return format!("{} has no command to log in", row.name),
        (None, Some(_)) => {
            let known = row.logins.iter().filter(|login| login.key_env.is_empty());
            let known: Vec<&str> = known.map(|login| login.id.as_str()).collect();
            return format!("{} has no login {id} at a terminal; there are {}", row.name, known.join(", "));
        }
    };
    let Some(program) = program.map(ToOwned::to_owned).or_else(|| row.program()) else {
        return row.missing();
    };
    let error = Command::new(&program).args(args).exec();
    format!("{} did not start: {error}", program.display())
}

/// The ways to log in that this client can offer.
pub(super) fn methods(shared: &Shared, client: &Value) -> Vec<acp::AuthMethod> {
    let takes_flag = client["auth"]["terminal"] == true;
    let takes_command = client["_meta"]["terminal-auth"] == true;
    let row = &shared.row;
    let command = |args: &[String], label: &str| match shared.program() {
        Ok(program) if takes_command => {
            let command = json!({ "command": program, "args": args, "label": label });
            Some(Map::from_iter([("terminal-auth".to_owned(), command)]))
        }
        _ => None,
    };
    let has_terminal = takes_flag || takes_command;
    if let (Some(args), true, true) = (&row.log_in_args, row.logins.is_empty(), has_terminal) {
        let name = format!("Log in to {}", row.name);
        let how = row.log_in.as_deref().unwrap_or_default();
        let method = acp::AuthMethodTerminal::new(ONLY_ID, name.clone())
            .description(format!("Runs in a terminal: {how}"))
            .args(vec![FLAG.to_owned()])
            .meta(command(args, &name));
        return vec![acp::AuthMethod::Terminal(method)];
    }
    let has_browser = std::env::var_os("NO_BROWSER").is_none();
    let method = |login: &Login| {
        if has_terminal && login.key_env.is_empty() {
            let method = acp::AuthMethodTerminal::new(login.id.clone(), login.name.clone())
                .description(login.description.clone())
                .args(vec![format!("{FLAG}={}", login.id)])
                .meta(command(&login.args, &login.name));
            return Some(acp::AuthMethod::Terminal(method));
        }
        let is_possible = !login.key_env.is_empty() || (login.opens_browser && has_browser);
        let provider = login.key_provider.as_ref();
        let meta = provider.map(|name| Map::from_iter([(login.id.clone(), json!({ "provider": name }))]));
        let method = acp::AuthMethodAgent::new(login.id.clone(), login.name.clone())
            .description(login.description.clone())
            .meta(meta);
        is_possible.then_some(acp::AuthMethod::Agent(method))
    };
    row.logins.iter().filter_map(method).collect()
}

/// Logs in without a terminal, and returns when the user has done their part. A login at a terminal was run by the
/// client, so there is nothing to do.
pub(super) fn authenticate(shared: &Shared, request: &Value) -> Result<(), RpcError> {
    let id = request["methodId"].as_str().unwrap_or_default();
    let Some(login) = shared.row.logins.iter().find(|login| login.id == id) else { return Ok(()) };
    let key = match key(login, request) {
        Some(key) => format!("{key}\n"),
        None if !login.key_env.is_empty() => {
            let names = login.key_env.join(" or ");
            return Err(invalid_params(&format!("set {names} in the environment of the agent")));
        }
        None if !login.opens_browser => return Ok(()),
        None => String::new(),
    };
    // A bus asks every process of the agent that it starts later, and the user is to log in once.
    if models::ask_server(shared) && !shared.is_logged_out() {
        return Ok(());
    }
    let program = shared.program().map_err(|why| shared.error(Fault::Runtime, &why))?;
    let child = probe::start(&program, &login.args, None).map_err(|error| {
        shared.error(Fault::Runtime, &format!("{} did not start: {error}", program.display()))
    })?;
    // Its output may have the key, so nothing of it is told.
    match wait(shared, child, &key) {
        Some(0) => Ok(()),
        _ => Err(shared.error(Fault::Authentication, "the login did not succeed")),
    }
}

/// Gives the key to the CLI and waits for its exit. Ends it when the agent ends, or when the user takes too long.
fn wait(shared: &Shared, mut child: Child, key: &str) -> Option<i32> {
    shared.begin_login();
    let _output = (probe::read_pipe(child.stdout.take()), probe::read_pipe(child.stderr.take()));
    // A program that does not read it fails by itself. Dropping the pipe closes stdin.
    let _ = child.stdin.take().map(|mut pipe| pipe.write_all(key.as_bytes()));
    let until = Instant::now() + LIMIT;
    while matches!(child.try_wait(), Ok(None)) && !shared.is_stopping() && Instant::now() < until {
        thread::sleep(POLL);
    }
    let code = probe::end(child, Instant::now());
    shared.end_login();
    code
}

/// The key that the client gives or that stands in the environment.
fn key(login: &Login, request: &Value) -> Option<String> {
    if login.key_env.is_empty() {
        return None;
    }
    let given = request["_meta"][&login.id]["apiKey"].as_str().map(ToOwned::to_owned);
    let in_environment = || login.key_env.iter().find_map(|name| std::env::var(name).ok());
    given.or_else(in_environment).filter(|key| !key.trim().is_empty())
}
