//! `upgrade`: the running bus becomes another program, and everything goes on.

use std::ffi::OsString;
use std::path::{self, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clients::Fault;
use clients::upgrade::{Upgraded, upgrade};

use crate::bus_args::BusArgs;
use crate::output::{print, report_fault};
use crate::{Cli, Command};

const EXAMPLES: &str = "\
Examples:
  stdio-bus upgrade                          after an update: become the program that is at the same path now
  stdio-bus upgrade ./target/release/stdio-bus
  stdio-bus upgrade --check                  only ask whether it could

The process id, clients, agents, sessions, turns and open questions stay, and not a byte is lost. If the new program \
cannot go on with this bus, the old one does: the command says why and exits with code 1. The configuration stays as \
it is; `stdio-bus reload` reads bus.json.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The program to become [default: the path that the bus was started by]
    #[arg(value_name = "BINARY")]
    binary: Option<PathBuf>,
    /// Only ask whether the bus could become it
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let asked = args.bus.own_target().and_then(|target| {
        let binary = args.binary.as_ref().map(path::absolute).transpose();
        let binary = binary.map_err(|error| Fault::Failed(error.to_string()))?;
        upgrade(&target, binary.as_deref(), args.check)
    });
    match asked {
        Ok(upgraded) => print(&describe(&upgraded, args.check)),
        Err(fault) => report_fault(&fault.in_words()),
    }
}

fn describe(upgraded: &Upgraded, check: bool) -> String {
    let Upgraded { pid, version, clients, sessions, turns, pause_us } = upgraded;
    let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let counted = |count: &u64, what: &str| format!("{count} {what}{}", if *count == 1 { "" } else { "s" });
    let all = format!(
        "{}, {} and {}",
        counted(clients, "client"),
        counted(sessions, "session"),
        counted(turns, "turn")
    );
    if check {
        return format!("the bus{pid} could become {version}: {all} would go on\n");
    }
    let pause = pause_us.div_ceil(1000);
    format!("the bus{pid} is {version} now: {all} went on, nobody was served for {pause} ms\n")
}

/// Answers a running bus that asks whether this program could take its place with these arguments.
pub(crate) fn answer(args: impl Iterator<Item = OsString>) -> ExitCode {
    let parsed = Cli::try_parse_from([OsString::from("stdio-bus")].into_iter().chain(args));
    let fits = match parsed {
        Ok(Cli { command: None | Some(Command::Serve(_)), .. }) => Ok(()),
        Ok(_) => Err("its arguments are not those of a bus".to_owned()),
        Err(error) => Err(format!("its arguments are not understood: {}", error.kind())),
    };
    kernel_shell::answer_as_successor(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_what_went_on() {
        let upgraded = Upgraded {
            pid: Some(4200),
            version: "0.2.0".to_owned(),
            clients: 14,
            sessions: 9,
            turns: 3,
            pause_us: 11_200,
        };
        assert_eq!(
            describe(&upgraded, false),
            "the bus (pid 4200) is 0.2.0 now: 14 clients, 9 sessions and 3 turns went on, nobody was served for 12 ms\n"
        );
        let few = Upgraded { pid: None, clients: 1, sessions: 0, turns: 1, ..upgraded };
        assert_eq!(
            describe(&few, true),
            "the bus could become 0.2.0: 1 client, 0 sessions and 1 turn would go on\n"
        );
    }
}
