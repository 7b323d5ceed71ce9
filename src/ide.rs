//! `ide`: prints the settings with which an IDE starts `stdio-bus connect`.

use std::env;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clients::Fault;
use clients::ide::{self, Command};

use crate::bus_args::BusArgs;
use crate::output::{print, report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus ide                              which IDEs there are
  stdio-bus ide zed --pool claude            its settings on stdout, where they go on stderr
  stdio-bus ide jetbrains --start > ~/.jetbrains/acp.json";

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

fn command(args: &Args) -> Result<Command, Fault> {
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
