//! `agents login`: the login that the agent of a pool offers, in this terminal.
//!
//! An agent that wants a terminal is started as always, with the arguments and variables of its method added; any other
//! does it by itself when it is told to.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use kernel_core::config::{PoolConfig, Program};
use kernel_shell::config;
use rpc::text::{quoted, replace_control};
use serde_json::{Value, json};

use crate::output::report;
use crate::paths::config_path;
use crate::probe;

/// For a package that must be downloaded first.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// For a user who must find a browser and a password.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(600);

const EXAMPLES: &str = "\
Examples:
  stdio-bus agents login gemini
  stdio-bus agents login claude --method claude-login";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool of bus.json
    pool: String,
    /// Which login, if the agent offers several
    #[arg(long, value_name = "ID")]
    method: Option<String>,
    /// The configuration [default: $STDIO_BUS_CONFIG, else ./bus.json, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match login(args) {
        Ok(done) => report(done, 0),
        Err(why) => report(format_args!("stdio-bus: {why}"), 1),
    }
}

fn login(args: &Args) -> Result<String, String> {
    let path = config_path(args.config.as_deref())?;
    let config = config::load(&path).map_err(|faults| faults.to_string())?;
    let pool = config.pools.iter().find(|pool| *pool.id == *args.pool);
    let pool = pool.ok_or_else(|| format!("{} has no pool {:?}", path.display(), args.pool))?;
    let this_binary = env::current_exe().map_err(|error| format!("cannot find its own file: {error}"))?;
    let offers = json!({ "auth": { "terminal": true } });
    // An agent may take long to start.
    report(format_args!("asking the agent of the pool {} how to log in ...", args.pool), 0);
    let about = probe::probe(pool, &this_binary, &offers, START_TIMEOUT)?;
    let method = choose(&about["authMethods"], args.method.as_deref())?;
    let name = replace_control(method["name"].as_str().unwrap_or_default(), ' ');
    if method["type"] != "terminal" {
        let id = &method["id"];
        probe::authenticate(pool, &this_binary, &offers, id, LOGIN_TIMEOUT)?;
        return Ok(format!("{}: logged in ({name})", args.pool));
    }
    let mut command = command(pool, method, &this_binary);
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    report(format_args!("{name}: {}", words.join(" ")), 0);
    let ended = command.status().map_err(|error| format!("{}: {error}", words[0]))?;
    if !ended.success() {
        return Err(format!("{}: the login ended with {ended}", args.pool));
    }
    Ok(format!("{}: logged in. `stdio-bus restart {}` makes a running bus use it", args.pool, args.pool))
}

/// The method of this id, else the first that wants a terminal, else the first.
fn choose<'a>(methods: &'a Value, wanted: Option<&str>) -> Result<&'a Value, String> {
    let methods = methods.as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = match wanted {
        Some(id) => methods.iter().find(|method| method["id"] == id),
        None => methods.iter().find(|method| method["type"] == "terminal").or_else(|| methods.first()),
    };
    chosen.ok_or_else(|| {
        let ids: Vec<_> = methods.iter().filter_map(|method| method["id"].as_str()).collect();
        if ids.is_empty() {
            "the agent offers no login over ACP: log in with its own command".to_owned()
        } else {
            format!("the agent offers {}", replace_control(&ids.join(", "), ' '))
        }
    })
}

/// The agent's own command, in this terminal and with what the method adds.
fn command(pool: &PoolConfig, method: &Value, this_binary: &Path) -> Command {
    let mut command = match &pool.program {
        Program::ThisBinary => Command::new(this_binary),
        Program::InPath(name) => Command::new(name),
        Program::At(path) => Command::new(path),
    };
    command.args(&pool.args).envs(&pool.env);
    command.args(method["args"].as_array().into_iter().flatten().filter_map(Value::as_str));
    // An object in ACP, and a list of pairs in some agents.
    let pairs = method["env"].as_object().into_iter().flatten();
    command.envs(pairs.filter_map(|(name, value)| Some((name, value.as_str()?))));
    let list = method["env"].as_array().into_iter().flatten();
    command.envs(list.filter_map(|pair| Some((pair["name"].as_str()?, pair["value"].as_str()?))));
    if let Some(cwd) = &pool.cwd {
        command.current_dir(cwd);
    }
    command
}
