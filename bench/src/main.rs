//! The load harness: how fast is a bus, is every request answered correctly and exactly once whatever happens, and what
//! does it cost at most?

#![forbid(unsafe_code)]

mod acp;
mod address;
mod agent;
mod args;
mod bounds;
mod bus;
mod case;
mod chaos;
mod client;
mod cluster;
mod compare;
mod connection;
mod docs;
mod fan;
mod guests;
mod history;
mod idle;
mod ledger;
mod load;
mod outcome;
mod peer;
mod plot;
mod port;
mod print;
mod procfs;
mod puppet;
mod report;
mod request;
mod run;
mod sealed;
mod soak;
mod start;
mod table;
mod transcript;
mod ttft;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  bus-bench run --target tcp://127.0.0.1:9000 --connections 16 --window 16
  bus-bench run --target unix:///run/user/1000/stdio-bus.sock --bytes 65536 --json
  bus-bench run --target tcp://127.0.0.1:9000 --acp --connections 16 --sessions 4 --window 4 --rate 2000
  bus-bench run --acp --updates 100 -- stdio-bus agent echo --chunks 100
  bus-bench compare --rounds 5 --seconds 2 --peer 'mine=my-proxy --listen 127.0.0.1:{port} -- {agent}'
  bus-bench chaos --seconds 120 --seed 1
  bus-bench chaos --hostile --seconds 1200
  bus-bench chaos --upgrade target/debug/stdio-bus --bus target/release/stdio-bus --seconds 20
  bus-bench bounds silent restarts
  bus-bench soak --seconds 3600

Exit codes: 0 all was answered rightly and every goal met, 1 not, or it failed, 2 bad usage, 69 nothing answers.";

/// Loads a bus with requests and checks every answer.
#[derive(Parser)]
#[command(name = "bus-bench", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load whatever echoes at an address: a bus with an echo agent, or a server that sends lines back
    Run(run::Args),
    /// Measure a bus beside a plain byte pipe (socat) and beside no pipe at all, in turns
    Compare(compare::Args),
    /// Measure what a message costs while more and more is open: connections, sessions, calls
    Fan(fan::Args),
    /// Measure what a line costs in a session that several clients have joined
    Guests(guests::Args),
    /// Measure what it costs that what is said is kept, and how fast it is found again
    History(history::Args),
    /// Measure start, memory, idle CPU time and calls of the system, against their goals
    Idle(idle::Args),
    /// Kill workers, play tricks and reload under load, and hold every answer against what it should be
    Chaos(chaos::Args),
    /// Try what the bus may cost at most, whatever its peers do
    Bounds(bounds::Args),
    /// Chaos for a long time: does the bus hold more and more?
    Soak(soak::Args),
    /// The agent of `compare`, which does as little as an agent can
    #[command(hide = true)]
    Agent(agent::Args),
    /// An agent that does what its clients tell it, for `bounds` and `chaos`
    #[command(hide = true)]
    Puppet(puppet::Args),
    /// Measure what a user feels: the time until a session can be used, and memory, with and without a bus
    Start(start::Args),
    /// Measure what the OpenAI agent adds to the time until the first token
    Ttft(ttft::Args),
    /// Measure the web door: round trips, idle WebSockets, streams to many pages
    Web(web::Args),
    /// Measure what another machine costs: round trips and streams direct, by `connect`, by NATS
    Cluster(cluster::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Fan(args) => fan::run(&args),
        Command::Guests(args) => guests::run(&args),
        Command::History(args) => history::run(&args),
        Command::Idle(args) => idle::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Bounds(args) => bounds::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Puppet(args) => puppet::run(&args),
        Command::Start(args) => start::run(&args),
        Command::Ttft(args) => ttft::run(&args),
        Command::Web(args) => web::run(&args),
        Command::Cluster(args) => cluster::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
