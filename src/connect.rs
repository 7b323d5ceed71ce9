//! `connect`: the agent that an IDE starts, with the bus behind it.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clients::connect::{self, Options, StartPlan};
use clients::{Ended, Fault, Signals, Target};
use workers::folders;

use crate::bus_args::BusArgs;
use crate::output::{report, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus connect --pool claude            for an IDE to start; `stdio-bus ide` prints its settings
  stdio-bus connect --config ~/bus.json --start
  stdio-bus connect --attach s17             an editor that joins a session of another one
  printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hi\"}' | stdio-bus connect

Exit codes: 0 when stdin ends, 69 when no bus answers, 77 when it refuses the token or is not yours.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool to talk to
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Pass this variable (or NAME=VALUE) to the agent, if its pool allows it: see `agent env`
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// Join this session instead of opening the first one, by its label: see `stdio-bus sessions`
    #[arg(long, value_name = "LABEL", conflicts_with = "start")]
    attach: Option<String>,
    /// Count every end of the connection as a goodbye, so that SIGKILL ends the turn as well: its sessions
    /// are closed at once
    #[arg(long)]
    bye: bool,
    /// Start a bus in the background if none is running
    #[arg(long)]
    start: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Args)]
pub(crate) struct DetachedArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let starts = args.start;
    match relay(args) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Signalled(signal)) => ExitCode::from(128 + signal as u8),
        Err(fault @ Fault::Unreachable(_)) if !starts => {
            let hint = "start one with `stdio-bus start`, or connect with --start";
            report(format_args!("stdio-bus: {fault}; {hint}"), fault.exit_code())
        }
        Err(fault @ Fault::Unreachable(_)) => report(format_args!("stdio-bus: {fault}"), fault.exit_code()),
        Err(fault) => report_fault(&fault),
    }
}

/// Becomes `stdio-bus ARGS..` in its own session, out of reach of the terminal and of its parent's exit.
pub(crate) fn detached(args: DetachedArgs) -> ExitCode {
    if let Err(errno) = nix::unistd::setsid() {
        return report(format_args!("stdio-bus: cannot have a session of its own: {errno}"), 1);
    }
    let error = match env::current_exe() {
        Ok(this_binary) => Command::new(this_binary).args(args.args).exec(),
        Err(error) => error,
    };
    report(format_args!("stdio-bus: cannot run itself: {error}"), 1)
}

fn relay(args: Args) -> Result<Ended, Fault> {
    // One that starts a bus means that of its configuration.
    let target = if args.start { args.bus.own_target()? } else { args.bus.target()? };
    let options = Options {
        pool: pool(&args, &target)?,
        target,
        start: if args.start { Some(plan_start(&args.bus)?) } else { None },
        attach: args.attach,
        bye: args.bye,
        node: env::var("STDIO_BUS_NODE").ok().filter(|node| !node.is_empty()),
        env: args.env.iter().filter_map(|name| variable(name)).collect(),
    };
    let own = |what: &str, fd: io::Result<_>| {
        fd.map(File::from).map_err(|error| Fault::Failed(format!("{what} cannot be used: {error}")))
    };
    let input = own("stdin", io::stdin().as_fd().try_clone_to_owned())?;
    let output = own("stdout", io::stdout().as_fd().try_clone_to_owned())?;
    let signals = Signals::install()?;
    connect::run(&options, input, output, &signals)
}

/// The pool to talk to: that of the session to join, if there is one.
fn pool(args: &Args, target: &Target) -> Result<Option<String>, Fault> {
    let Some(label) = &args.attach else { return Ok(args.pool.clone()) };
    let found = connect::pool_of(target, label)?;
    match (&args.pool, found) {
        (Some(named), Some(found)) if *named != found => {
            Err(Fault::Failed(format!("{label} is a session of pool {found}, not of {named}")))
        }
        (named, found) => Ok(found.or(named.clone())),
    }
}

/// A variable that is not set is left out.
fn variable(name: &str) -> Option<(String, String)> {
    match name.split_once('=') {
        Some((name, value)) => Some((name.to_owned(), value.to_owned())),
        None => Some((name.to_owned(), env::var(name).ok()?)),
    }
}

/// How `serve` is started in the background for the bus that these flags name.
pub(crate) fn plan_start(bus: &BusArgs) -> Result<StartPlan, Fault> {
    let (serve, folder) = bus.serve_args()?;
    let program = env::current_exe();
    let program = program.map_err(|error| Fault::Failed(format!("cannot find its own file: {error}")))?;
    let mut args = vec!["internal-detached".into(), "serve".into()];
    args.extend(serve);
    let state = folders::state();
    let state =
        state.ok_or_else(|| Fault::Failed("--start needs HOME or XDG_STATE_HOME, for its log".to_owned()))?;
    Ok(StartPlan { program, args, folder, state })
}
