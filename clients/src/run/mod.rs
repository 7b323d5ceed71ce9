//! `run`: talks to any ACP agent, from a command or through a bus.
//!
//! The agent is started as the user would start it: in the user's environment, without handling keys or
//! knowing any vendor. Its output is rendered on a terminal, as plain text, or as session envelopes.

mod agent;
mod client_tools;
mod cuid;
mod driver;
mod envelope;
mod events;
mod files;
mod mapper;
mod permission;
mod process;
mod renderer;
mod requests;
mod screen;
mod terminal;
mod tool_call;
mod usage;

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::Signals;
use crate::{Fault, Target};

pub use permission::Policy;
pub use process::{AgentCommand, THIS_BINARY};

use agent::Agent;
use client_tools::ClientTools;
use cuid::Cuids;
use driver::Driver;
use events::{UserInput, forward_signals};
use mapper::Mapper;
use process::Guard;
use renderer::{Json, Plain, Renderer};
use screen::Screen;

pub struct Options {
    pub agent: AgentSource,
    /// An absolute path. It is also started as the guard of the agent's processes.
    pub this_binary: PathBuf,
    /// The agent's working folder, an absolute path.
    pub cwd: PathBuf,
    /// The first prompt.
    pub prompt: Option<String>,
    /// Stdin is only read for answers to permission questions.
    pub once: bool,
    pub policy: Policy,
    /// A user sits at the terminal, who can be asked and may go on after a cancelled turn.
    pub attended: bool,
    /// Offers files and commands to the agent.
    pub client_tools: bool,
    pub view: View,
    /// Passes the agent's stderr through.
    pub show_stderr: bool,
    pub init_timeout: Duration,
    /// The longest time for one turn. `None`: no limit.
    pub timeout: Option<Duration>,
}

pub enum AgentSource {
    Command(AgentCommand),
    /// Without a name, the bus chooses the pool.
    Pool {
        target: Target,
        pool: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Session envelopes. `stream`: one per chunk of text.
    Json {
        stream: bool,
    },
    /// A terminal with a movable cursor.
    Screen {
        colour: bool,
    },
    Plain,
}

/// How a conversation ended that could begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// A turn failed, and the reason was shown.
    Failed,
    NoPrompt,
    TimedOut,
    /// A permission was refused without asking the user; all else succeeded.
    Refused,
    /// Ended by Ctrl-C.
    Interrupted,
    Signalled(i32),
}

impl Ended {
    pub fn exit_code(self) -> u8 {
        match self {
            Ended::Done => 0,
            Ended::Failed => 1,
            Ended::NoPrompt => 2,
            Ended::TimedOut => 3,
            Ended::Refused => 5,
            Ended::Interrupted => 130,
            Ended::Signalled(signal) => 128 + signal as u8,
        }
    }
}

/// Returns when there are no more prompts and no started process is left.
pub fn run(options: Options, signals: Signals) -> Result<Ended, Fault> {
    let failed = |what: &str, error: io::Error| Fault::Failed(format!("{what}: {error}"));
    let renderer = renderer(options.view).map_err(|error| failed("no random numbers", error))?;
    let guard =
        Guard::start(&options.this_binary).map_err(|error| failed("cannot start the guard", error))?;
    let (events, received) = channel();
    forward_signals(signals, events.clone());
    let mut client_tools = None;
    if options.client_tools {
        let tools = ClientTools::new(&options.cwd, events.clone(), guard.clone());
        client_tools = Some(tools.map_err(|error| failed(&options.cwd.display().to_string(), error))?);
    }
    let input = UserInput::new(events.clone());
    let agent = Agent::connect(&options, events, &guard);
    let ended =
        agent.and_then(|agent| Driver::new(options, agent, received, input, renderer, client_tools).run());
    guard.end();
    process::end_orphans();
    ended
}

fn renderer(view: View) -> io::Result<Box<dyn Renderer>> {
    let out = io::stdout();
    let err = io::stderr();
    Ok(match view {
        View::Json { stream } => {
            let mut seed = [0; 32];
            File::open("/dev/urandom")?.read_exact(&mut seed)?;
            Box::new(Json { mapper: Mapper::new(Cuids::new(seed), stream), out, err })
        }
        View::Screen { colour } => Box::new(Screen::new(out, colour, Box::new(size))),
        View::Plain => Box::new(Plain::new(out, err)),
    })
}

fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size_of(io::stdout());
    size.map_or((24, 80), |(columns, rows)| (usize::from(rows.0), usize::from(columns.0)))
}
