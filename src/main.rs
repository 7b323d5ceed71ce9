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
mod doctor;
mod history_command;
mod ide;
mod kept_sessions;
mod known_agents;
#[cfg(feature = "cluster")]
mod link;
mod log_filter;
mod logs;
mod machine;
mod manual;
mod metrics;
#[cfg(feature = "cluster")]
mod nodes;
mod notify_command;
mod operate;
mod otel;
mod output;
mod paths;
mod pools_file;
mod probe;
#[cfg(feature = "web")]
mod reach;
#[cfg(test)]
mod reference;
mod run;
mod serve;
mod sessions;
mod start;
mod status;
mod terminal_login;
mod token;
mod top;
mod trace;
mod unexpanded;
mod upgrade;
mod usage;
mod watch;
#[cfg(feature = "web")]
mod web_command;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

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

const VERSION_EXAMPLES: &str = "\
Examples:
  stdio-bus version                          the same as --version; `stdio-bus status` has that of the running bus";

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
    /// Run the bus in the background, and wait until it serves
    Start(start::Args),
    /// Stop a running bus, and wait until it has stopped
    Stop(operate::StopArgs),
    /// Reload the configuration of a running bus, and show what has changed
    Reload(operate::ReloadArgs),
    /// Replace the processes of a pool, one after the other
    Restart(operate::RestartArgs),
    /// Retire the processes of a pool: no new sessions, and each exits when its last one has ended
    Drain(operate::DrainArgs),
    /// Replace the program of a running bus: same process, same clients, same agents, nothing is interrupted
    Upgrade(upgrade::Args),
    /// Show a live screen of a running bus: traffic, latency, pools, workers, sessions
    Top(top::Args),
    /// Follow the live traffic of a running bus: one line per message, JSON in a pipe
    Trace(trace::Args),
    /// Print or serve the metrics of a running bus in Prometheus format
    Metrics(metrics::Args),
    /// Send the turns, tool calls and questions of a running bus to a collector of OpenTelemetry, as spans
    Otel(otel::Args),
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
    /// Show the tokens and the cost that agents have reported, by day and pool
    Usage(usage::Args),
    /// Write down what is said through a running bus: what `serve` starts by itself
    History(history_command::Args),
    /// Tell people who are away what waits for them: what `serve` starts by itself
    Notify(notify_command::Args),
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
    /// Look at this set-up as a whole: what is wrong with it, and what to do
    Doctor(doctor::Args),
    /// Print the version of this program
    #[command(after_help = VERSION_EXAMPLES)]
    Version,
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

/// The commands by what they are for. Any other command stands in the last group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Begin", &["detect", "add", "agents", "start", "stop", "doctor"]),
    ("Talk to agents", &["run", "ide", "connect", "call"]),
    ("Look at the bus", &["status", "top", "sessions", "logs", "trace", "metrics", "otel", "usage"]),
    (
        "Run the bus",
        &["serve", "check", "reload", "restart", "drain", "upgrade", "token", "web", "link", "nodes"],
    ),
    ("And", &["agent", "schema", "completions", "man", "version"]),
];

/// The help of the program, with its commands in groups.
fn grouped_help() -> String {
    let program = Cli::command();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let others: Vec<&str> = manual::visible_subcommands(&program)
        .map(clap::Command::get_name)
        .filter(|name| !is_grouped(name))
        .collect();
    for (index, (title, names)) in GROUPS.iter().enumerate() {
        let _ = write!(text, "\n{title}:\n");
        let rest: &[&str] = if index + 1 == GROUPS.len() { &others } else { &[] };
        for name in names.iter().chain(rest) {
            let Some(about) = program.find_subcommand(name).and_then(clap::Command::get_about) else {
                continue;
            };
            let _ = writeln!(text, "  {name:12} {about}");
        }
    }
    text + "\nOptions of serve, which runs when no command is given:\n{options}{after-help}"
}

fn main() -> ExitCode {
    // A worker waits for this, so it comes before everything else.
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    if first.as_ref().is_some_and(|first| first == kernel_shell::STARTER) {
        return kernel_shell::start_program(args);
    }
    if first.is_some_and(|first| first == kernel_shell::ASKED_TO_SUCCEED) {
        return upgrade::answer(args);
    }
    let cli = Cli::from_arg_matches(&Cli::command().help_template(grouped_help()).get_matches());
    let cli = cli.unwrap_or_else(|error| error.exit());
    match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Start(args) => start::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Version => output::print(concat!("stdio-bus ", env!("BUS_VERSION"), "\n")),
        Command::Stop(args) => operate::stop(&args),
        Command::Reload(args) => operate::reload(&args),
        Command::Restart(args) => operate::restart(&args),
        Command::Drain(args) => operate::drain(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Otel(args) => otel::run(args),
        Command::Call(args) => call::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Run(args) => run::run(args),
        Command::Detect(args) => detect::run(&args),
        Command::Add(args) => add::run(&args),
        Command::Agents(args) => agents::run(&args),
        Command::Token(args) => token::run(&args),
        #[cfg(feature = "web")]
        Command::Web(args) => web_command::run(args),
        Command::Usage(args) => usage::run(&args),
        Command::History(args) => history_command::run(&args),
        Command::Notify(args) => notify_command::run(&args),
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
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_is_once_in_the_help() {
        let program = Cli::command();
        let help = Cli::command().help_template(grouped_help()).render_help().to_string();
        for command in manual::visible_subcommands(&program) {
            let line = format!("\n  {:12} {}\n", command.get_name(), command.get_about().unwrap());
            assert_eq!(help.matches(&line).count(), 1, "{line}{help}");
        }
        assert!(help.contains("\nTalk to agents:\n  run  "), "{help}");
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
