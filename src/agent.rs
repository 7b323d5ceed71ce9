//! `agent`: the agents that come with the bus, each on stdin and stdout.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clients::exit;
use workers::cli::{self, runtimes};
use workers::with_env;
use workers::{echo, openai};

use crate::output::report;

pub(crate) const EXAMPLES: &str = "\
Examples, in bus.json:
  { \"id\": \"echo\", \"command\": \"stdio-bus\", \"args\": [\"agent\", \"echo\"] }
  { \"id\": \"claude\", \"command\": \"stdio-bus\", \"args\": [\"agent\", \"cli\", \"--runtime\", \"claude\"] }
  { \"id\": \"llama\", \"command\": \"stdio-bus\", \"args\": [\"agent\", \"openai\"],
    \"env\": { \"OPENAI_BASE_URL\": \"http://localhost:11434/v1\", \"OPENAI_MODEL\": \"llama3.2\" } }";

const ECHO_EXAMPLES: &str = "\
Examples:
  stdio-bus run -- stdio-bus agent echo      talk to it
  stdio-bus agent echo --chunks 100 --delay-ms 20   a hundred pieces, as slow as a model

Prompts it understands: /ask /read PATH /think /tool /slow N /die. Everything else is echoed.";

const CLI_EXAMPLES: &str = "\
Examples:
  stdio-bus run -- stdio-bus agent cli --runtime claude
  stdio-bus agent cli --runtime codex --model gpt-5 --program ~/bin/codex";

const ENV_EXAMPLES: &str = "\
Examples, in bus.json and in the settings of an IDE:
  { \"id\": \"claude\", \"command\": \"stdio-bus\",
    \"args\": [\"agent\", \"env\", \"--allow\", \"ANTHROPIC_*\", \"--\", \"claude-agent-acp\"] }
  stdio-bus connect --pool claude --env ANTHROPIC_API_KEY";

#[cfg(feature = "cluster")]
const NATS_EXAMPLES: &str = "\
Examples:
  stdio-bus agent nats --pool claude         the servers are those of \"cluster\" in bus.json
  stdio-bus agent nats --pool claude --url nats://127.0.0.1:4222

One process is one connection to one node: to the one with the most room, or to $STDIO_BUS_NODE. It ends when the node \
has not answered for 30 s (exit 1), does not answer at all (69), or when no node has room (75).";

#[derive(clap::Subcommand)]
pub(crate) enum Agent {
    /// Echo every prompt, to try things out and for load tests
    #[command(after_help = ECHO_EXAMPLES)]
    Echo(EchoArgs),
    /// Run an agent in front of any endpoint that speaks OpenAI's Chat Completions
    #[command(name = "openai", after_help = openai::VARIABLES)]
    OpenAi(OpenAiArgs),
    /// Wrap a non-ACP agent CLI as an ACP agent
    #[command(after_help = CLI_EXAMPLES)]
    Cli(CliArgs),
    /// Start any agent with environment variables that its client sends (`connect --env`)
    #[command(after_help = ENV_EXAMPLES)]
    Env(EnvArgs),
    /// Use a pool of another machine over NATS: one connection to one node
    #[cfg(feature = "cluster")]
    #[command(after_help = NATS_EXAMPLES)]
    Nats(NatsArgs),
}

#[cfg(feature = "cluster")]
#[derive(clap::Args)]
pub(crate) struct NatsArgs {
    /// The pool, which has the same name at the nodes
    #[arg(long, value_name = "POOL")]
    pool: String,
    /// What tells the bus that has started it from others of its name
    #[arg(long, hide = true, value_name = "TEXT")]
    place: Option<String>,
    #[command(flatten)]
    cluster: crate::cluster_args::ClusterArgs,
}

#[derive(clap::Args)]
pub(crate) struct EchoArgs {
    /// Number of chunks per answer
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Cut or pad the text of each chunk to this many bytes
    #[arg(long, value_name = "N")]
    chunk_bytes: Option<usize>,
    /// Delay between the updates of a turn, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    delay_ms: u64,
    /// Write each message by itself, instead of all that are ready at once
    #[arg(long)]
    flush_each: bool,
    /// Keep sessions in this folder, so that another process can open them again
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct EnvArgs {
    /// A variable that clients may set, or PREFIX* (repeatable); all others are left out
    #[arg(long, value_name = "NAME")]
    allow: Vec<String>,
    /// The command of the agent
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
pub(crate) struct OpenAiArgs {
    /// How to answer a prompt that failed: as a message of the agent, or as a JSON-RPC error
    #[arg(long, value_name = "HOW", default_value = "text")]
    errors: Errors,
    /// Ask at this terminal for the endpoint and its API key, keep them for this user, and end
    #[arg(long)]
    login: bool,
    /// Keep sessions in this folder [default: stdio-bus/openai in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct CliArgs {
    /// Which one: claude, codex, gemini, ... (`stdio-bus detect` lists them)
    #[arg(long, value_name = "NAME")]
    runtime: String,
    /// The program, instead of the one in PATH
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The model of new sessions [default: the CLI's own]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What it may do without asking, in new sessions [default: the first mode of its row]
    #[arg(long, value_name = "NAME")]
    mode: Option<String>,
    /// A folder in which the CLI may work beside that of the session; repeatable
    #[arg(long, value_name = "DIR")]
    add_dir: Vec<PathBuf>,
    /// Log in to the CLI at this terminal, in the usual way or in one of those that `authMethods` name, and end
    #[arg(long, value_name = "WAY", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    login: Option<String>,
    /// Keep sessions in this folder [default: stdio-bus/cli in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Kill a CLI that prints nothing within this many seconds of its start; 0: never
    #[arg(long, value_name = "N", default_value_t = 120)]
    first_output_sec: u64,
    /// Kill a CLI that then prints nothing for this many seconds; 0: never
    #[arg(long, value_name = "N", default_value_t = 1800)]
    silence_sec: u64,
    /// End the process of a session after this many seconds without a prompt; 0: never
    #[arg(long, value_name = "N", default_value_t = 900)]
    idle_sec: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Errors {
    Text,
    Rpc,
}

pub(crate) fn run(agent: Agent) -> ExitCode {
    match agent {
        Agent::Echo(args) => echo::run(echo::Options {
            chunks: args.chunks,
            chunk_bytes: args.chunk_bytes,
            delay: Duration::from_millis(args.delay_ms),
            flush_each: args.flush_each,
            state: args.state,
        }),
        Agent::OpenAi(args) => openai::run(openai::Options {
            errors: match args.errors {
                Errors::Text => openai::Errors::Text,
                Errors::Rpc => openai::Errors::Rpc,
            },
            state: args.state,
            login: args.login,
        }),
        Agent::Env(args) => with_env::run(&with_env::Options { allow: args.allow, command: args.command }),
        #[cfg(feature = "cluster")]
        Agent::Nats(args) => nats(args),
        Agent::Cli(args) => match unknown(&args.runtime) {
            Some(refused) => refused,
            None => run_cli(args),
        },
    }
}

/// Carries a pool of another machine. The bus says with a variable which node it must be.
#[cfg(feature = "cluster")]
fn nats(args: NatsArgs) -> ExitCode {
    let (cluster, name) = match args.cluster.resolve() {
        Ok(found) => found,
        Err(fault) => return crate::output::report_fault(&fault),
    };
    let node = std::env::var("STDIO_BUS_NODE").ok().filter(|node| !node.is_empty());
    let options = cluster::agent::Options { cluster, pool: args.pool, name, node, place: args.place };
    match cluster::agent::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(end) => report(format_args!("stdio-bus: {end}"), end.code),
    }
}

/// An unknown name is bad usage; rows that cannot be read are a bad configuration.
fn unknown(runtime: &str) -> Option<ExitCode> {
    let why = runtimes::named(runtime).err()?;
    let code = if runtimes::all().is_ok() { 2 } else { exit::BAD_CONFIGURATION };
    Some(report(format_args!("stdio-bus: {why}"), code))
}

fn run_cli(args: CliArgs) -> ExitCode {
    cli::run(cli::Options {
        runtime: args.runtime,
        program: args.program,
        model: args.model,
        mode: args.mode,
        add_dirs: args.add_dir,
        login: args.login,
        state: args.state,
        first_output: Duration::from_secs(args.first_output_sec),
        silence: Duration::from_secs(args.silence_sec),
        idle: Duration::from_secs(args.idle_sec),
    })
}
