//! The command line: one binary, one file per command.

#![forbid(unsafe_code)]

mod add;
mod agent;
mod agents;
mod bus_args;
mod call;
mod check;
#[cfg(feature = "cluster")]
mod cluster_args;
mod complete;
mod connect;
mod detect;
mod ide;
mod known_agents;
#[cfg(feature = "cluster")]
mod link;
mod logs;
mod manual;
mod metrics;
#[cfg(feature = "cluster")]
mod nodes;
mod operate;
mod output;
mod paths;
mod pools_file;
mod probe;
#[cfg(test)]
mod reference;
mod run;
mod serve;
mod sessions;
mod status;
mod terminal_login;
mod token;
mod top;
mod trace;
mod unexpanded;
#[cfg(feature = "web")]
mod web_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  stdio-bus                                  serve what ./bus.json declares
  stdio-bus --tcp 127.0.0.1:0                the same, on a free port of this machine
  stdio-bus check --config my.json           is the file good, and what would run?
  stdio-bus status                           the status of the running bus
  stdio-bus top                              and a live screen of it
  stdio-bus trace --pool claude              live message log
  stdio-bus run gemini \"explain this\"        talk to an agent, with no bus at all
  stdio-bus detect --write                   add the agent CLIs of this machine to bus.json
  stdio-bus add gemini                       install an agent of the ACP registry as a pool
  stdio-bus web url --open                   the console of the running bus, in the browser
  stdio-bus token                            create the token that clients must present
  stdio-bus ide zed --pool claude            the settings with which Zed talks to it
  stdio-bus call session/new '{\"cwd\":\"/tmp\",\"mcpServers\":[]}'

The configuration is --config PATH, else $STDIO_BUS_CONFIG, else ./bus.json, else
~/.config/stdio-bus/bus.json. The smallest one:
  {\"pools\": [{\"id\": \"echo\", \"command\": \"stdio-bus\", \"args\": [\"agent\", \"echo\"]}]}";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  stdio-bus schema > bus.schema.json         and in bus.json: \"$schema\": \"bus.schema.json\"";

/// Many clients, few agent processes: a bus for agents that speak JSON-RPC on stdio.
#[derive(Parser)]
#[command(name = "stdio-bus", version = env!("BUS_VERSION"), args_conflicts_with_subcommands = true)]
#[command(after_help = EXAMPLES, after_long_help = manual::appendix(EXAMPLES))]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Subcommand)]
enum Command {
    /// Run the bus (also when no command is given)
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Args),
    /// Check the configuration, and show what would run
    Check(check::Args),
    /// Show the status of a running bus: its pools and workers
    Status(status::Args),
    /// List the sessions of a running bus: owners, guests and open questions
    Sessions(sessions::Args),
    /// Show what workers wrote to stderr
    Logs(logs::Args),
    /// Stop a running bus, and wait until it has stopped
    Stop(operate::StopArgs),
    /// Reload the configuration of a running bus, and show what has changed
    Reload(operate::ReloadArgs),
    /// Replace the processes of a pool, one after the other
    Restart(operate::RestartArgs),
    /// Retire the processes of a pool: no new sessions, and each exits when its last one has ended
    Drain(operate::DrainArgs),
    /// Show a live screen of a running bus: traffic, latency, pools, workers, sessions
    Top(top::Args),
    /// Follow the live traffic of a running bus: one line per message, JSON in a pipe
    Trace(trace::Args),
    /// Print or serve the metrics of a running bus in Prometheus format
    Metrics(metrics::Args),
    /// Send one request through the bus and print the result
    Call(call::Args),
    /// Bridge the stdio of an IDE to the bus: what an IDE starts as its agent
    Connect(connect::Args),
    /// Talk to any ACP agent, from a command or through the bus
    Run(run::Args),
    /// Find the agent CLIs of this machine, and show how the bus would run them
    Detect(detect::Args),
    /// Install an agent of the ACP registry as a pool, after showing what will run
    Add(add::Args),
    /// List the agents of the ACP registry, or log in to one of bus.json
    Agents(agents::Args),
    /// Create the token that clients must present
    Token(token::Args),
    /// Open the web door, create links to the console, list and revoke tokens
    #[cfg(feature = "web")]
    Web(web_command::Args),
    /// Make a bus a node: offer its pools to other machines, over NATS
    #[cfg(feature = "cluster")]
    Link(link::Args),
    /// List the nodes of the cluster: their pools, room, sessions, load
    #[cfg(feature = "cluster")]
    Nodes(nodes::Args),
    /// Print the settings with which an IDE starts `connect`, or write them into its settings file
    Ide(ide::Args),
    /// Run a built-in agent on stdin and stdout, for a pool
    #[command(subcommand, after_help = agent::EXAMPLES)]
    Agent(agent::Agent),
    /// Print the JSON Schema of bus.json
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
    /// Generate shell completions: commands, options and names of the running bus
    #[command(after_help = complete::SCRIPT_EXAMPLES)]
    Completions(complete::ScriptArgs),
    /// Print a manual page, or write all of them
    Man(manual::ManArgs),
    /// Say what can follow these words, for the completions of a shell
    #[command(hide = true, name = "internal-complete")]
    Complete(complete::Args),
    /// End what the bus started when the bus itself is gone
    #[command(hide = true, name = "internal-guard")]
    Guard,
    /// Run the command behind it where no terminal can reach it
    #[command(hide = true, name = "internal-detached")]
    Detached(connect::DetachedArgs),
}

fn main() -> ExitCode {
    // A worker waits for this, so it comes before everything else.
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == kernel_shell::STARTER) {
        return kernel_shell::start_program(args);
    }
    let cli = Cli::parse();
    match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Stop(args) => operate::stop(&args),
        Command::Reload(args) => operate::reload(&args),
        Command::Restart(args) => operate::restart(&args),
        Command::Drain(args) => operate::drain(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Call(args) => call::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Run(args) => run::run(args),
        Command::Detect(args) => detect::run(&args),
        Command::Add(args) => add::run(&args),
        Command::Agents(args) => agents::run(&args),
        Command::Token(args) => token::run(&args),
        #[cfg(feature = "web")]
        Command::Web(args) => web_command::run(args),
        #[cfg(feature = "cluster")]
        Command::Link(args) => link::run(args),
        #[cfg(feature = "cluster")]
        Command::Nodes(args) => nodes::run(&args),
        Command::Ide(args) => ide::run(&args),
        Command::Agent(agent) => agent::run(agent),
        Command::Schema => output::print(&kernel_shell::config::schema()),
        Command::Completions(args) => complete::print_script(&args),
        Command::Man(args) => manual::man(&args),
        Command::Complete(args) => complete::run(args),
        Command::Guard => kernel_shell::guard(),
        Command::Detached(args) => connect::detached(args),
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

    #[test]
    fn serve_is_what_no_command_means() {
        let bare = Cli::try_parse_from(["stdio-bus", "--tcp", "localhost:0", "--stdio"]).ok().unwrap();
        assert!(bare.command.is_none());
        let named =
            Cli::try_parse_from(["stdio-bus", "serve", "--tcp", "localhost:0", "--stdio"]).ok().unwrap();
        let Some(Command::Serve(args)) = named.command else { panic!("serve was named") };
        assert_eq!(bare.serve.listeners(), args.listeners());
    }
}
