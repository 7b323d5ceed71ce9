//! `ide`: prints the settings with which an IDE starts `stdio-bus connect`, or writes them into its settings file.

use std::env;
use std::fs;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clients::Fault;
use clients::ide::{self, Change, Command, Ide};
use clients::in_home;
use kernel_shell::config;
use serde_json::Value;

use crate::bus_args::BusArgs;
use crate::output::{print, report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus ide                              list the IDEs
  stdio-bus ide zed --pool claude            print the settings, and the file they belong in
  stdio-bus ide zed --pool claude --write    add them to the settings file of Zed
  stdio-bus ide vscode --write=~/.config/VSCodium/User/settings.json
  stdio-bus ide jetbrains --start            the IDE starts a bus if none runs

--write keeps comments and other agents, leaves a copy of the old file beside it, and changes nothing if the settings \
are already there. The settings of neovim and Emacs are code, those of Qt Creator a dialog: add what is printed by \
hand. For toad and Marimo it is a command to run; that of Marimo has no token, see docs/IDES.md.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The IDE; omit it to list them
    #[arg(value_parser = PossibleValuesParser::new(ide::IDES.map(|ide| ide.name)))]
    name: Option<String>,
    /// The pool that the IDE talks to
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Let the IDE start a bus if none is running
    #[arg(long)]
    start: bool,
    /// Write the settings into the settings file of the IDE, or into this FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, requires = "name")]
    write: Option<Option<String>>,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(ide) = args.name.as_deref().and_then(ide::by_name) else { return print(&ide::list()) };
    match command(args) {
        Ok(command) => {
            if let Some(file) = &args.write {
                return match write(ide, file.as_deref(), &command) {
                    Ok(done) => print(&done),
                    Err(why) => report(format_args!("stdio-bus: {why}"), 1),
                };
            }
            // Goes to stderr, so that stdout can be redirected into the settings file.
            report(format_args!("For {}, into {}:", ide.title, ide.location), 0);
            print(&ide.snippet(&command))
        }
        Err(fault) => report_fault(&fault),
    }
}

/// Says what has changed.
fn write(ide: &Ide, file: Option<&str>, command: &Command) -> Result<String, String> {
    // No shell expands what follows `--write=`.
    let path = file.map_or_else(|| ide.settings_file(), |file| Ok(in_home(file)))?;
    let (snippet, file) = (ide.snippet(command), path.display());
    let change = ide::write(&path, &snippet).map_err(|why| format!("{file}: {why}; nothing was changed"))?;
    let (done, entry, backup) = match change {
        Change::None { entry } => return Ok(format!("{file} has {entry} already; nothing was changed\n")),
        Change::Added { entry, backup } => ("added", entry, backup),
        Change::Replaced { entry, backup } => ("replaced", entry, backup),
    };
    let before = match backup {
        Some(backup) => format!("the file as it was before stdio Bus is {}", backup.display()),
        None => "the file is new".to_owned(),
    };
    Ok(format!("{file}: {done} {entry}; {before}\n"))
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
            Err(Fault::Failed(format!("{file} has no pool {pool:?}; the pools are {names}")))
        }
        None if pools.len() > 1 && config["default_pool"].is_null() => Err(Fault::Failed(format!(
            "which pool? {file} has {names}: name one with --pool, or set \"default_pool\" there"
        ))),
        _ => Ok(()),
    }
}

fn command(args: &Args) -> Result<Command, Fault> {
    check_pool(args)?;
    // Nor are settings for a bus that no client can find.
    args.bus.target()?;
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
    Ok(Command { program, args: connect, title, pool: args.pool.clone() })
}
