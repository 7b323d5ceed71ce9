//! `run`: talks to an agent.

use std::env;
use std::io::{self, IsTerminal};
use std::path::{self, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clients::Signals;
use clients::run::{self, AgentCommand, AgentSource, Options, Policy, View};
use clients::{Fault, run::Ended};

use crate::bus_args::BusArgs;
use crate::known_agents;
use crate::output::{self, report, stdout_has_colour};

/// The exit code when the agent does not answer in time.
const TIMEOUT: u8 = 3;
const USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  stdio-bus run echo \"hello\"                 the agent that comes with the bus, for trying this out
  stdio-bus run gemini \"explain this folder\"
  stdio-bus run -- my-agent --flag           any command that speaks ACP
  stdio-bus run --pool claude                an agent of a running bus
  stdio-bus run --json --allow --once opencode \"fix the tests\" | jq .ev

PROMPT is said first, then each line of stdin is a prompt, until it ends (Ctrl-D). Ctrl-C cancels the turn, and \
once more ends it all. On a terminal you are asked for permissions; elsewhere they are refused, unless --allow. \
Piped, stdout is the agent's text alone. The agent finds its keys and settings in your environment as always.

Exit codes: 0 done, 1 the agent failed, 2 bad usage, 3 took too long, 5 a permission was refused without asking you, \
69 no bus answers, 130 ended by Ctrl-C.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// An agent that is known by name (echo, openai, and all that `stdio-bus detect` lists), or a command
    agent: Option<String>,
    /// What to say first
    prompt: Option<String>,
    /// The command of an agent, instead of a name
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    /// Talk to this pool of a running bus instead
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    pool: Option<String>,
    /// Print session envelopes, one JSON object a line
    #[arg(long)]
    json: bool,
    /// With --json: every piece of text as it comes, instead of whole paragraphs
    #[arg(long, requires = "json")]
    stream: bool,
    /// End after PROMPT instead of reading more from stdin
    #[arg(long)]
    once: bool,
    /// Allow everything that the agent asks for
    #[arg(long, conflicts_with = "deny")]
    allow: bool,
    /// Refuse everything that the agent asks for
    #[arg(long)]
    deny: bool,
    /// Offer to read and write files below the working folder, and to run commands, each after permission
    #[arg(long = "hands")]
    client_tools: bool,
    /// The folder that the agent works in [default: this one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Give up when a turn takes longer than so many seconds [default: wait as long as it takes]
    #[arg(long, value_name = "SEC", value_parser = crate::call::parse_seconds)]
    timeout: Option<Duration>,
    /// How many seconds the agent may take to begin
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = crate::call::parse_seconds)]
    init_timeout: Duration,
    /// Show what the agent writes to stderr
    #[arg(long)]
    stderr: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let options = match args.options() {
        Ok(options) => options,
        Err(ArgsError::Usage(message)) => return report(format_args!("stdio-bus: {message}"), USAGE),
        Err(ArgsError::Fault(fault)) => return report_fault(&fault),
    };
    match Signals::install().and_then(|signals| run::run(options, signals)) {
        Ok(Ended::NoPrompt) => {
            report("stdio-bus: there is nothing to say: give a prompt, or write some to stdin", USAGE)
        }
        Ok(ended) => ExitCode::from(ended.exit_code()),
        Err(fault) => report_fault(&fault),
    }
}

fn report_fault(fault: &Fault) -> ExitCode {
    match fault {
        Fault::TimedOut { .. } => report(format_args!("stdio-bus: {fault}"), TIMEOUT),
        fault => output::report_fault(fault),
    }
}

enum ArgsError {
    Usage(&'static str),
    Fault(Fault),
}

impl Args {
    fn options(self) -> Result<Options, ArgsError> {
        let failed =
            |what: &str, error: io::Error| ArgsError::Fault(Fault::Failed(format!("{what}: {error}")));
        // Where stdout goes makes no difference: questions go to stderr.
        let attended = io::stdin().is_terminal() && io::stderr().is_terminal();
        let view = self.view();
        let policy = match (self.allow, self.deny) {
            (true, _) => Policy::Allow,
            (_, true) => Policy::Deny,
            _ => Policy::Ask,
        };
        let cwd = self.cwd.clone().unwrap_or_else(|| PathBuf::from("."));
        let cwd = cwd.canonicalize().map_err(|error| failed(&cwd.display().to_string(), error))?;
        let this_binary = env::current_exe().and_then(path::absolute);
        let this_binary = this_binary.map_err(|error| failed("cannot find its own file", error))?;
        let (once, client_tools, show_stderr) = (self.once, self.client_tools, self.stderr);
        let (init_timeout, timeout) = (self.init_timeout, self.timeout);
        let (agent, prompt) = self.agent_and_prompt()?;
        Ok(Options {
            agent,
            this_binary,
            cwd,
            prompt,
            once,
            policy,
            attended,
            client_tools,
            view,
            show_stderr,
            init_timeout,
            timeout,
        })
    }

    fn view(&self) -> View {
        // A screen needs a movable cursor.
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if self.json {
            View::Json { stream: self.stream }
        } else if io::stdout().is_terminal() && !dumb {
            View::Screen { colour: stdout_has_colour() }
        } else {
            View::Plain
        }
    }

    /// The agent and the first prompt. If a flag or a command names the agent, the first argument is the prompt.
    fn agent_and_prompt(self) -> Result<(AgentSource, Option<String>), ArgsError> {
        let mut command = self.command.into_iter();
        let source = match (command.next(), self.pool) {
            (Some(program), _) => AgentSource::Command(AgentCommand::new(program, command.collect())),
            (None, Some(pool)) => {
                let target = self.bus.target().map_err(ArgsError::Fault)?;
                AgentSource::Pool { target, pool: Some(pool) }
            }
            (None, None) => {
                let Some(agent) = &self.agent else {
                    return Err(ArgsError::Usage("name an agent, a command after `--`, or a --pool"));
                };
                let agent = known_agents::find(agent).map_err(|why| ArgsError::Fault(Fault::Failed(why)))?;
                return Ok((AgentSource::Command(agent), self.prompt));
            }
        };
        match (self.agent, self.prompt) {
            (prompt, None) => Ok((source, prompt)),
            (_, Some(_)) => {
                Err(ArgsError::Usage("with --pool or a command, only a PROMPT may stand before it"))
            }
        }
    }
}
