//! `ide`: prints the settings with which an IDE starts `stdio-bus connect`.

use std::env;
use std::fs;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clients::Fault;
use clients::ide::{self, Command};
use kernel_shell::config;
use serde_json::Value;

use crate::bus_args::BusArgs;
use crate::output::{print, report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus ide                              which IDEs there are
  stdio-bus ide zed --pool claude            its settings on stdout, where they go on stderr
  stdio-bus ide jetbrains --start            the IDE starts a bus if none runs

Add what it prints to the file that it names: other agents may be in there too.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The IDE; without it they are listed
    #[arg(value_parser = PossibleValuesParser::new(ide::IDES.map(|ide| ide.name)))]
    name: Option<String>,
    /// The pool that the IDE is to talk to
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// The IDE is to start a bus if none answers
    #[arg(long)]
    start: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(ide) = args.name.as_deref().and_then(ide::by_name) else { return print(&ide::list()) };
    match command(args) {
        Ok(command) => {
            // Goes to stderr, so that stdout can be redirected into the settings file.
            report(format_args!("For {}, into {}:", ide.title, ide.location), 0);
            print(&ide.snippet(&command))
        }
        Err(fault) => report_fault(&fault),
    }
}

/// Settings that cannot work are not printed: the pool must be in the configuration, if that can be read.
fn check_pool(args: &Args) -> Result<(), Fault> {
    let Ok(path) = args.bus.config_path() else { return Ok(()) };
    let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
    let config = serde_json::from_str::<Value>(&config::plain_json(config::without_mark(&text)));
    let Ok(config) = config else { return Ok(()) };
    let pools = config["pools"].as_array().into_iter().flatten().filter_map(|pool| pool["id"].as_str());
    let pools: Vec<&str> = pools.collect();
    let (file, names) = (path.display(), pools.join(", "));
    match args.pool.as_deref() {
        Some(pool) if !pools.is_empty() && !pools.contains(&pool) => {
            Err(Fault::Failed(format!("{file} has no pool {pool:?}; there are {names}")))
        }
        None if pools.len() > 1 && config["default_pool"].is_null() => Err(Fault::Failed(format!(
            "which pool? {file} has {names}: name one with --pool, or set \"default_pool\" there"
        ))),
        _ => Ok(()),
    }
}

fn command(args: &Args) -> Result<Command, Fault> {
    check_pool(args)?;
    let program = env::current_exe();
    let program = program
        .map_err(|error| Fault::Failed(format!("cannot find its own file: {error}")))?
        .to_string_lossy()
        .into_owned();
    let mut connect = vec!["connect".to_owned()];
    connect.extend(args.bus.connect_args(args.start)?);
    let title = match &args.pool {
        Some(pool) => format!("stdio Bus ({pool})"),
        None => "stdio Bus".to_owned(),
    };
    if let Some(pool) = &args.pool {
        connect.extend(["--pool".to_owned(), pool.clone()]);
    }
    if args.start {
        connect.push("--start".to_owned());
    }
    Ok(Command { program, args: connect, title })
}
