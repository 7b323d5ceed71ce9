//! `run`: a conversation with any ACP agent, from a command or through a bus.
//!
//! The agent is started as the user would start it: with the user's environment, no keys handled, nothing known of any
//! vendor. What it says is shown on a terminal, as plain text, or as session envelopes.

mod ask;
mod call;
mod converse;
mod envelope;
mod files;
mod hands;
mod id;
mod link;
mod mapper;
mod peer;
mod permission;
mod process;
mod screen;
mod show;
mod terminal;
mod usage;

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::connect::Bell;
use crate::{Fault, Way};

pub use permission::Policy;
pub use process::{AgentCommand, ITSELF};

use converse::Runner;
use hands::Hands;
use id::Ids;
use link::{Input, watch_signals};
use mapper::Mapper;
use peer::Peer;
use process::Guard;
use screen::Screen;
use show::{Json, Plain, Show};

pub struct Options {
    pub target: Target,
    /// An absolute path, to be started as the guard of what is started.
    pub this_binary: PathBuf,
    /// Where the agent works. Absolute.
    pub cwd: PathBuf,
    /// What is said first.
    pub prompt: Option<String>,
    /// Nothing more is read from stdin than answers to questions.
    pub once: bool,
    pub policy: Policy,
    /// The user sits at a terminal: can be asked, and may try again after a turn that was cancelled.
    pub attended: bool,
    /// Files and commands are offered to the agent.
    pub hands: bool,
    pub view: View,
    /// What the agent writes to stderr is passed on.
    pub mutters: bool,
    pub init_timeout: Duration,
    /// The most that a turn may take. None: as long as it takes.
    pub timeout: Option<Duration>,
}

pub enum Target {
    Agent(AgentCommand),
    /// None: the pool that the bus chooses.
    Pool {
        way: Way,
        pool: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Envelopes. `stream`: each piece of text by itself.
    Json {
        stream: bool,
    },
    /// A terminal that can move its cursor.
    Screen {
        colour: bool,
    },
    Plain,
}

/// How it ended, where nothing kept it from beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// A turn failed. The user was told.
    Failed,
    NoPrompt,
    TimedOut,
    /// Everything else went well, but a permission was refused without asking anybody.
    Refused,
    /// By Ctrl-C.
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

/// Returns when there are no more prompts, and when nothing that was started is left.
pub fn run(options: Options, bell: Bell) -> Result<Ended, Fault> {
    let failed = |what: &str, error: io::Error| Fault::Failed(format!("{what}: {error}"));
    let show = show(options.view).map_err(|error| failed("no random numbers", error))?;
    let guard =
        Guard::start(&options.this_binary).map_err(|error| failed("cannot start the guard", error))?;
    let (events, told) = channel();
    watch_signals(bell, events.clone());
    let hands = match options.hands {
        true => Some(Hands::new(&options.cwd, events.clone(), guard.clone())),
        false => None,
    };
    let hands = hands.transpose().map_err(|error| failed(&options.cwd.display().to_string(), error))?;
    let input = Input::new(events.clone());
    let peer = Peer::reach(&options, events, &guard);
    let ended = peer.and_then(|peer| Runner::new(options, peer, told, input, show, hands).run());
    guard.end();
    process::end_orphans();
    ended
}

fn show(view: View) -> io::Result<Box<dyn Show>> {
    let (out, err) = (io::stdout(), io::stderr());
    Ok(match view {
        View::Json { stream } => {
            let mut seed = [0; 32];
            File::open("/dev/urandom")?.read_exact(&mut seed)?;
            Box::new(Json { mapper: Mapper::new(Ids::new(seed), stream), out, err })
        }
        View::Screen { colour } => Box::new(Screen::new(out, colour, Box::new(size))),
        View::Plain => Box::new(Plain::new(out, err)),
    })
}

fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size_of(io::stdout());
    size.map_or((24, 80), |(columns, rows)| (usize::from(rows.0), usize::from(columns.0)))
}
