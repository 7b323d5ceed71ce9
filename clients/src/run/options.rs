//! What `run` is asked to do, and how it ends.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::permission::Policy;
use super::process::AgentCommand;
use crate::Target;

pub struct Options {
    pub agent: AgentSource,
    /// An absolute path. It is also started as the guard of the agent's processes.
    pub this_binary: PathBuf,
    /// The agent's working folder, an absolute path.
    pub cwd: PathBuf,
    /// Further folders that the agent may use, absolute paths.
    pub additional_folders: Vec<PathBuf>,
    /// MCP servers as session/new takes them.
    pub mcp_servers: Vec<Value>,
    pub model: Option<String>,
    pub mode: Option<String>,
    /// Goes on with a session that was there before, instead of a new one.
    pub reopen: Option<Reopen>,
    /// What was said last in the session that is opened again. Where its agent cannot open it, a new session is offered
    /// whose first prompt is filled in with this.
    pub said_last: Option<String>,
    /// The first prompt.
    pub prompt: Option<String>,
    pub input: Input,
    /// Ends after the first turn. Stdin is only read for answers to permission questions.
    pub once: bool,
    pub policy: Policy,
    /// A user sits at the terminal, who can be asked and may go on after a cancelled turn.
    pub attended: bool,
    /// Offers files and commands to the agent.
    pub client_tools: bool,
    pub view: View,
    /// The file that keeps what was typed at the prompt.
    pub history: Option<PathBuf>,
    /// Passes the agent's stderr through.
    pub show_stderr: bool,
    /// The longest time for each of initialize and session/new.
    pub init_timeout: Duration,
    /// The longest time for one turn. `None`: no limit.
    pub timeout: Option<Duration>,
}

impl Options {
    /// Whether all of stdin is one prompt. A terminal has no end to wait for.
    pub(super) fn reads_stdin_whole(&self) -> bool {
        self.input == Input::Text && !self.attended
    }
}

/// A session that the agent knows from before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reopen {
    /// The newest one of the working folder.
    Newest,
    /// The one with this id.
    Id(String),
}

/// What stdin brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// One prompt, or a prompt a line at a terminal.
    Text,
    /// Each line is a prompt.
    Lines,
    /// Each line is a command of a program. It must be read all the time, because a cancel may come.
    Json,
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
