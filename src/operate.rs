//! `stop`, `reload`: what SIGTERM and SIGHUP do, for a bus that is found by its address; `restart`, `drain`.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clients::logs::{Whose, parse_whose};
use clients::operate::{self, Leaving, Reloaded};
use clients::{Ended, Fault, Signals, Target, exit};

use crate::bus_args::BusArgs;
use crate::output::{print, report, report_fault};

const STOP_EXAMPLES: &str = "\
Examples:
  stdio-bus stop                             finish the calls in flight, then end every worker
  stdio-bus stop --now                       do not wait for the calls
  stdio-bus stop --unix /tmp/bus.sock";

const RELOAD_EXAMPLES: &str = "\
Examples:
  stdio-bus reload                           reload bus.json and show what has changed

Sessions continue. A configuration with errors is not used: the command prints them and exits with code 78.";

/// How often who waits looks.
const EVERY: Duration = Duration::from_millis(200);

const RESTART_EXAMPLES: &str = "\
Examples:
  stdio-bus restart claude                   all processes of a pool, one after the other
  stdio-bus restart claude/0                 one of them

Sessions continue in the new process if the agent can load or resume them. Turns have drain_timeout_sec to end.";

const DRAIN_EXAMPLES: &str = "\
Examples:
  stdio-bus drain claude                     after an update of the agent: nobody is interrupted
  stdio-bus drain claude/0 --wait            and wait until the process has ended

A draining process gets no new sessions. It hands over idle sessions that the agent can load or resume, and exits when \
it has none left. New sessions go to a new process.";

#[derive(clap::Args)]
#[command(after_help = RESTART_EXAMPLES)]
pub(crate) struct RestartArgs {
    /// The pool, or one worker of it
    #[arg(value_name = "POOL[/N]", value_parser = parse_whose)]
    whose: Whose,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Args)]
#[command(after_help = DRAIN_EXAMPLES)]
pub(crate) struct DrainArgs {
    /// The pool, or one worker of it
    #[arg(value_name = "POOL[/N]", value_parser = parse_whose)]
    whose: Whose,
    /// Wait until the processes have ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(crate) struct StopArgs {
    /// Do not wait for the calls in flight
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn stop(args: &StopArgs) -> ExitCode {
    let stopping = match args.bus.target().and_then(|target| operate::stop(&target, args.now)) {
        Ok(stopping) => stopping,
        Err(fault) => return report_fault(&fault.in_words()),
    };
    let pid = stopping.pid().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let waits = stopping.calls() > 0 && !args.now;
    // A bus that stops takes no new connections, so this one must be able to say that it shall not wait.
    let signals = if waits { Signals::install() } else { Signals::none() };
    let signals = match signals {
        Ok(signals) => signals,
        Err(fault) => return report_fault(&fault),
    };
    if waits {
        let calls = plural(stopping.calls());
        report(format_args!("stdio-bus: waiting for {calls} in flight; Ctrl-C stops the bus at once"), 0);
    }
    match stopping.wait(&signals) {
        Ok(Ended::Done) => print(&format!("the bus{pid} has stopped\n")),
        Ok(Ended::Signalled(signal)) => ExitCode::from(128 + signal as u8),
        Err(fault) => report_fault(&fault.in_words()),
    }
}

fn plural(calls: u64) -> String {
    if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") }
}

pub(crate) fn reload(args: &ReloadArgs) -> ExitCode {
    match args.bus.target().and_then(|target| operate::reload(&target)) {
        Ok(Reloaded::Changed(changed)) if changed.is_empty() => print("nothing has changed\n"),
        Ok(Reloaded::Changed(changed)) => print(&(changed.join("\n") + "\n")),
        Ok(Reloaded::Refused(errors)) => {
            let errors = errors.join("\n");
            report(
                format_args!("{errors}\nstdio-bus: the old configuration stays in use"),
                exit::BAD_CONFIGURATION,
            )
        }
        Err(fault) => report_fault(&fault.in_words()),
    }
}

pub(crate) fn restart(args: &RestartArgs) -> ExitCode {
    let done = args.bus.target().and_then(|target| {
        let leaving = operate::replace(&target, "_bus/restart", &args.whose)?;
        wait_for(&target, &args.whose, leaving)
    });
    match done {
        Ok(0) => {
            print(&format!("{} has no process; the next one starts when it is needed\n", args.whose.pool))
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault.in_words()),
    }
}

pub(crate) fn drain(args: &DrainArgs) -> ExitCode {
    let done = args.bus.target().and_then(|target| {
        let leaving = operate::replace(&target, "_bus/drain", &args.whose)?;
        for Leaving { worker, sessions, .. } in &leaving {
            print(&format!("{}/{worker} gets no new sessions, and has {sessions}\n", args.whose.pool));
        }
        if args.wait { wait_for(&target, &args.whose, leaving) } else { Ok(leaving.len()) }
    });
    match done {
        Ok(0) => print(&format!("{} has no process\n", args.whose.pool)),
        Ok(_) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault.in_words()),
    }
}

/// Waits until these processes have ended, and tells of each. Returns how many they were.
fn wait_for(target: &Target, whose: &Whose, mut leaving: Vec<Leaving>) -> Result<usize, Fault> {
    let count = leaving.len();
    while !leaving.is_empty() {
        let running = operate::processes(target, &whose.pool)?;
        leaving.retain(|Leaving { worker, pid, .. }| {
            let runs = pid.is_some_and(|pid| running.contains(&pid));
            if !runs {
                let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                print(&format!("{}/{worker}{pid} has ended\n", whose.pool));
            }
            runs
        });
        if !leaving.is_empty() {
            thread::sleep(EVERY);
        }
    }
    Ok(count)
}
