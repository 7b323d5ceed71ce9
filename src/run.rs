//! `run`: talks to an agent.

use std::env;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clients::Signals;
use clients::run::{self, AgentCommand, AgentSource, AttachOptions, Input, Options, Policy, Reopen, View};
use clients::{Fault, run::Ended};

use crate::bus_args::BusArgs;
use crate::kept_sessions;
use crate::known_agents;
use crate::output::{self, report, stdout_has_colour};

/// The exit code when the agent does not answer in time.
const TIMEOUT: u8 = 3;
const USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  stdio-bus run echo \"hello\"                 the agent that comes with the bus, for trying this out
  stdio-bus run gemini \"explain this folder\"
  stdio-bus run gemini \"explain @src/main.rs\"    with a file; @\"a b.txt\" for a name with spaces
  git diff | stdio-bus run gemini \"review this\"  PROMPT and stdin are one prompt
  stdio-bus run gemini -p \"explain this\"        one prompt and its answer
  stdio-bus run --continue gemini                the newest session of this folder
  stdio-bus run gemini \"explain this folder\" -- --sandbox   with arguments of the agent's own
  stdio-bus run -- my-agent --flag           any command that speaks ACP
  stdio-bus run --pool claude                an agent of a running bus
  stdio-bus run --resume 3f9a01                  a kept session; `stdio-bus sessions --all` lists them
  stdio-bus run --attach s17                 watch a session of a running bus; `stdio-bus sessions` lists them
  stdio-bus run --attach s17 --control       and take part in it
  stdio-bus run --json --allow --once opencode \"fix the tests\" | jq .ev
  stdio-bus run --json --input json claude   for a program: prompts, cancels and permissions as JSON

On a terminal PROMPT goes first, then each line that you type is a prompt; Ctrl-D ends. A piped stdin is one \
prompt, or the rest of PROMPT. Tab completes. Ctrl-C cancels the turn; press it again to quit. On a terminal you \
are asked for permissions; elsewhere they are refused, unless --allow. Piped, stdout is the agent's text alone. \
The agent finds its keys and settings in your environment as usual.

A program writes to --input json, one object per line:
  {\"type\":\"prompt\",\"text\":\"...\"}          or \"content\":[...], content blocks of ACP
  {\"type\":\"cancel\"}
  {\"type\":\"permission\",\"id\":\"...\",\"optionId\":\"...\"}
  {\"type\":\"model\",\"model\":\"...\"}         and {\"type\":\"mode\",\"mode\":\"...\"}

Exit codes: 0 done, 1 the agent failed, 2 bad usage, 3 took too long, 5 a permission was refused without asking you, \
69 no bus answers, 130 ended by Ctrl-C.";

/// What only somebody can ask for who opens a session.
const NOT_ATTACHED: [&str; 12] = [
    "command",
    "pool",
    "model",
    "mode",
    "mcp",
    "add_dir",
    "client_tools",
    "cwd",
    "timeout",
    "stderr",
    "continue_newest",
    "session",
];

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// An agent by name (echo, openai, and all that `stdio-bus detect` lists), or a command
    agent: Option<String>,
    /// The first prompt
    prompt: Option<String>,
    /// The command of an agent, instead of a name; if the first begins with `-`: further arguments of the named agent
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    /// Talk to this pool of a running bus instead
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    pool: Option<String>,
    /// Join this session of a running bus, by its label or id, and watch it; a PROMPT needs --control
    #[arg(
        long,
        value_name = "LABEL",
        conflicts_with_all = NOT_ATTACHED
    )]
    attach: Option<String>,
    /// With --attach: take part. What you type are prompts, and you may answer the agent's questions
    #[arg(long, requires = "attach")]
    control: bool,
    /// Go on with the newest session that the agent has in this folder
    #[arg(long = "continue", conflicts_with = "session")]
    continue_newest: bool,
    /// Go on with a kept session, at the agent that it was with; `stdio-bus sessions --all` lists them
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["continue_newest", "session", "attach", "pool"])]
    resume: Option<String>,
    /// Go on with this session of the agent; `stdio-bus call --pool NAME session/list` lists those of a pool
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// What was said last in the session of `--resume`.
    #[arg(skip)]
    said_last: Option<String>,
    /// Print session envelopes, one JSON object per line
    #[arg(long)]
    json: bool,
    /// With --json: every piece of text as it comes, instead of whole paragraphs
    #[arg(long, requires = "json")]
    stream: bool,
    /// What a piped stdin is: one prompt (text), a prompt per line (lines), or a command of a program per line (json)
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "lines", "json"], default_value = "text")]
    input: String,
    /// The model of the session
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The mode of the session, as the agent calls it (ask, plan, ...)
    #[arg(long, value_name = "NAME")]
    mode: Option<String>,
    /// Give the agent the MCP servers of this file: `{"mcpServers": {...}}`, or a list as ACP spells it
    #[arg(long, value_name = "FILE")]
    mcp: Option<PathBuf>,
    /// A further folder that the agent may use; repeatable
    #[arg(long, value_name = "DIR")]
    add_dir: Vec<PathBuf>,
    /// Say TEXT and end after the answer: PROMPT and --once; a piped stdin is read as the rest of TEXT
    #[arg(short = 'p', value_name = "TEXT", conflicts_with_all = ["prompt", "once"])]
    print: Option<String>,
    /// End after PROMPT, and do not read stdin
    #[arg(long)]
    once: bool,
    /// Allow everything that the agent asks for
    #[arg(long, conflicts_with = "deny")]
    allow: bool,
    /// Refuse everything that the agent asks for
    #[arg(long)]
    deny: bool,
    /// Let the agent use files below the working folder and run commands here; asks you each time
    #[arg(long = "hands", visible_alias = "tools")]
    client_tools: bool,
    /// The folder that the agent works in [default: this one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Maximum seconds per turn [default: no limit]
    #[arg(long, value_name = "SEC", value_parser = crate::call::parse_seconds)]
    timeout: Option<Duration>,
    /// Maximum seconds for the agent to start, and again to open the session
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = crate::call::parse_seconds)]
    init_timeout: Duration,
    /// Show what the agent writes to stderr
    #[arg(long)]
    stderr: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(ArgsError::Usage(message)) => return report(format_args!("stdio-bus: {message}"), USAGE),
        Err(ArgsError::Fault(fault)) => return report_fault(&fault),
    };
    let ended = Signals::install().and_then(|signals| match plan {
        Plan::Talk(options) => run::run(*options, signals),
        Plan::Attach(options) => run::attach(options, signals),
    });
    match ended {
        Ok(Ended::NoPrompt) => report("stdio-bus: no prompt: give one, or write it to stdin", USAGE),
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

/// What the arguments ask for.
enum Plan {
    /// A session of its own.
    Talk(Box<Options>),
    /// The session of somebody else.
    Attach(AttachOptions),
}

impl Args {
    fn plan(mut self) -> Result<Plan, ArgsError> {
        self.take_print()?;
        if let Some(label) = self.resume.take() {
            let (kept, _, transcript) = kept_sessions::read(&self.bus, &label).map_err(ArgsError::Fault)?;
            self.said_last = Some(history::primer::primer(&transcript.entries));
            (self.pool, self.session) = (Some(kept.pool), Some(kept.agent_session));
            let folder = kept.folder.map(PathBuf::from).filter(|folder| folder.is_dir());
            self.cwd = self.cwd.or(folder);
        }
        match self.attach.take() {
            Some(session) => self.attach_options(session).map(Plan::Attach),
            None => self.options().map(|options| Plan::Talk(Box::new(options))),
        }
    }

    /// `-p TEXT`: the first prompt and the only one.
    fn take_print(&mut self) -> Result<(), ArgsError> {
        let Some(text) = self.print.take() else { return Ok(()) };
        self.once = io::stdin().is_terminal();
        // Where a flag or a command names the agent, the first argument is the prompt.
        let is_named = self.pool.is_some() || self.attach.is_some() || self.resume.is_some();
        if !is_named && self.command.first().is_none_or(|word| word.starts_with('-')) {
            self.prompt = Some(text);
        } else if self.agent.replace(text).is_some() {
            return Err(ArgsError::Usage("PROMPT and -p are two prompts: give one of them"));
        }
        Ok(())
    }

    fn attach_options(self, session: String) -> Result<AttachOptions, ArgsError> {
        if self.prompt.is_some() {
            return Err(ArgsError::Usage("--attach takes only a PROMPT, not an AGENT"));
        }
        if !self.control && (self.agent.is_some() || self.input == "json") {
            return Err(ArgsError::Usage(
                "without --control you only watch: a PROMPT and --input json need it",
            ));
        }
        Ok(AttachOptions {
            target: self.bus.target().map_err(ArgsError::Fault)?,
            session,
            control: self.control,
            input: self.input()?,
            once: self.once,
            policy: self.policy(),
            attended: self.is_attended(),
            view: self.view(),
            history: history(),
            prompt: self.agent,
        })
    }

    fn options(self) -> Result<Options, ArgsError> {
        let failed =
            |what: &str, error: io::Error| ArgsError::Fault(Fault::Failed(format!("{what}: {error}")));
        let (attended, view, policy) = (self.is_attended(), self.view(), self.policy());
        let real = |option: &str, path: &Path| {
            path.canonicalize().map_err(|error| failed(&format!("{option} {}", path.display()), error))
        };
        let cwd = real("--cwd", self.cwd.as_deref().unwrap_or(Path::new(".")))?;
        let additional_folders =
            self.add_dir.iter().map(|folder| real("--add-dir", folder)).collect::<Result<_, _>>()?;
        let mcp_servers = match &self.mcp {
            Some(file) => read_mcp_servers(file)?,
            None => Vec::new(),
        };
        let input = self.input()?;
        let this_binary = env::current_exe().and_then(path::absolute);
        let this_binary = this_binary.map_err(|error| failed("cannot find its own file", error))?;
        let (once, client_tools, show_stderr) = (self.once, self.client_tools, self.stderr);
        let (init_timeout, timeout) = (self.init_timeout, self.timeout);
        let (model, mode) = (self.model.clone(), self.mode.clone());
        let reopen = match &self.session {
            Some(id) => Some(Reopen::Id(id.clone())),
            None => self.continue_newest.then_some(Reopen::Newest),
        };
        let said_last = self.said_last.clone();
        let (agent, prompt) = self.agent_and_prompt()?;
        Ok(Options {
            agent,
            this_binary,
            cwd,
            additional_folders,
            mcp_servers,
            model,
            mode,
            reopen,
            said_last,
            prompt,
            input,
            once,
            policy,
            attended,
            client_tools,
            view,
            history: history(),
            show_stderr,
            init_timeout,
            timeout,
        })
    }

    /// Whether a user can be asked. Where stdout goes makes no difference: questions go to stderr.
    fn is_attended(&self) -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal() && self.input != "json"
    }

    fn policy(&self) -> Policy {
        match (self.allow, self.deny) {
            (true, _) => Policy::Allow,
            (_, true) => Policy::Deny,
            _ => Policy::Ask,
        }
    }

    fn input(&self) -> Result<Input, ArgsError> {
        match self.input.as_str() {
            "json" if !self.json => {
                Err(ArgsError::Usage("--input json needs --json: its questions are envelopes"))
            }
            "json" => Ok(Input::Json),
            "lines" => Ok(Input::Lines),
            _ => Ok(Input::Text),
        }
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
        // No command begins with a dash, so these are arguments of the agent that was named before.
        if self.command.first().is_some_and(|word| word.starts_with('-')) {
            let Some(agent) = self.agent else {
                return Err(ArgsError::Usage("name the agent that these arguments are for"));
            };
            return Ok((known(&agent, self.command)?, self.prompt));
        }
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
                return Ok((known(agent, Vec::new())?, self.prompt));
            }
        };
        match (self.agent, self.prompt) {
            (prompt, None) => Ok((source, prompt)),
            (_, Some(_)) => {
                Err(ArgsError::Usage("--pool and a command after `--` take only a PROMPT, not an AGENT"))
            }
        }
    }
}

/// The agent with this name and further arguments.
fn known(name: &str, args: Vec<String>) -> Result<AgentSource, ArgsError> {
    let agent = known_agents::find_installed(name, args);
    agent.map(AgentSource::Command).map_err(|why| ArgsError::Fault(Fault::Failed(why)))
}

/// The file with the prompts of earlier runs.
fn history() -> Option<PathBuf> {
    workers::folders::state().map(|folder| folder.join("run-history"))
}

fn read_mcp_servers(file: &Path) -> Result<Vec<serde_json::Value>, ArgsError> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string());
    let servers = text.and_then(|text| run::parse_mcp_servers(&text));
    servers.map_err(|why| ArgsError::Fault(Fault::Failed(format!("--mcp {}: {why}", file.display()))))
}
