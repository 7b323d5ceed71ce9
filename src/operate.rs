//! `stop`, `reload`: what SIGTERM and SIGHUP do, for a bus that is found by its address; `restart`, `drain`.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clients::logs::{Whose, parse_whose};
use clients::operate::{self, Reloaded};
use clients::replace::{Leaving, Replacing, Waiting};
use clients::{Ended, Fault, Signals, exit};

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

/// Polling interval of `--wait`.
const EVERY: Duration = Duration::from_millis(200);
/// What most processes are waited for is over by then. Later it is told, and told again when it has changed.
const TELL_AFTER: Duration = Duration::from_secs(1);

const RESTART_EXAMPLES: &str = "\
Examples:
  stdio-bus restart claude                   all processes of a pool, one after the other
  stdio-bus restart claude/0                 one of them
  stdio-bus restart claude --now             wait for no turn

Sessions continue in the new process if the agent can load or resume them. Turns have drain_timeout_sec to end. While \
the command waits, it says for which sessions and how long; Ctrl-C ends only the command.";

const DRAIN_EXAMPLES: &str = "\
Examples:
  stdio-bus drain claude                     after an update of the agent: nobody is interrupted
  stdio-bus drain claude/0 --wait            and wait until the process has ended
  stdio-bus drain claude --now               also what drains already: do not wait for its sessions

A draining process gets no new sessions. It hands over idle sessions that the agent can load or resume, and exits when \
it has none left. New sessions go to a new process.";

#[derive(clap::Args)]
#[command(after_help = RESTART_EXAMPLES)]
pub(crate) struct RestartArgs {
    /// The pool, or one worker of it
    #[arg(value_name = "POOL[/N]", value_parser = parse_whose)]
    whose: Whose,
    /// Do not wait for turns and sessions: turns are answered worker_lost
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Args)]
#[command(after_help = DRAIN_EXAMPLES)]
pub(crate) struct DrainArgs {
    /// The pool, or one worker of it
    #[arg(value_name = "POOL[/N]", value_parser = parse_whose)]
    whose: Whose,
    /// Wait until the processes have ended, and say for which sessions
    #[arg(long)]
    wait: bool,
    /// Do not wait for turns and sessions: turns are answered worker_lost
    #[arg(long)]
    now: bool,
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
    let stopping = match args.bus.own_target().and_then(|target| operate::stop(&target, args.now)) {
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
    match args.bus.own_target().and_then(|target| operate::reload(&target)) {
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
        let replacing = Replacing::ask(&target, "_bus/restart", &args.whose, args.now)?;
        let count = replacing.leaving().len();
        wait_for("restart", &args.whose, replacing).map(|()| count)
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
        let replacing = Replacing::ask(&target, "_bus/drain", &args.whose, args.now)?;
        let count = replacing.leaving().len();
        let becomes = if args.now { "ends" } else { "gets no new sessions" };
        for Leaving { worker, sessions, .. } in replacing.leaving() {
            print(&format!("{}/{worker} {becomes}, and has {sessions}\n", args.whose.pool));
        }
        if args.wait {
            wait_for("drain", &args.whose, replacing)?;
        }
        Ok(count)
    });
    match done {
        Ok(0) => print(&format!("{} has no process\n", args.whose.pool)),
        Ok(_) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault.in_words()),
    }
}

/// Waits until these processes have ended, and tells of each and of what it is waited for.
fn wait_for(command: &str, whose: &Whose, mut replacing: Replacing) -> Result<(), Fault> {
    let pool = &whose.pool;
    let (mut tell_at, mut told) = (Instant::now() + TELL_AFTER, Vec::new());
    while !replacing.leaving().is_empty() {
        for Leaving { worker, pid, .. } in replacing.ended()? {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            print(&format!("{pool}/{worker}{pid} has ended\n"));
        }
        if Instant::now() >= tell_at {
            tell_at = Instant::now() + TELL_AFTER;
            let waiting = replacing.waiting()?;
            tell(command, pool, &waiting, &mut told);
        }
        if !replacing.leaving().is_empty() {
            thread::sleep(EVERY);
        }
    }
    Ok(())
}

/// Tells what processes are waited for, unless that was `told` before.
fn tell(command: &str, pool: &str, waiting: &[Waiting], told: &mut Vec<String>) {
    let lines: Vec<String> = waiting.iter().flat_map(|it| it.lines.iter().cloned()).collect();
    if lines.is_empty() || lines == *told {
        return;
    }
    for it in waiting {
        let (first, sessions) =
            it.lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let colon = if sessions.is_empty() { "" } else { ":" };
        report(format_args!("stdio-bus: {first}, {}{colon}", it.limit()), 0);
        for session in sessions {
            report(format_args!("{session}"), 0);
        }
    }
    if told.is_empty() {
        report(
            format_args!("`stdio-bus {command} {pool} --now` does not wait; Ctrl-C ends only this command"),
            0,
        );
    }
    *told = lines;
}
