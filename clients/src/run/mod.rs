//! `run`: talks to any ACP agent, from a command or through a bus.
//!
//! The agent is started as the user would start it: in the user's environment, without handling keys or
//! knowing any vendor. `--attach` joins a session that somebody else has with one. The output is rendered on a
//! terminal, as plain text, or as session envelopes.

mod agent;
mod asked_about;
mod asking;
mod block;
mod bus_event;
mod client_tools;
mod command_request;
mod company;
mod completion;
mod cuid;
mod driver;
mod envelope;
mod events;
mod files;
mod guest;
mod input;
mod line_editor;
mod mapper;
mod markdown;
mod mcp_file;
mod mentions;
mod open_questions;
mod options;
mod own_commands;
mod permission;
mod process;
mod questions;
mod reconnect;
mod renderer;
mod reopen;
mod requests;
mod said;
mod saying;
mod screen;
mod session;
mod settings;
mod starting;
mod stop;
mod terminal;
mod tool_call;
mod usage;
mod user_input;
mod waiting;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::Fault;
use crate::Signals;

pub use command_request::decides_what_runs;
pub use guest::{AttachOptions, attach};
pub use mcp_file::parse_mcp_servers;
pub use options::{AgentSource, Ended, Input, Options, Reopen, View};
pub use permission::Policy;
pub use process::{AgentCommand, THIS_BINARY};

use agent::Agent;
use client_tools::ClientTools;
use completion::{Commands, Completion};
use cuid::Cuids;
use driver::Driver;
use events::forward_signals;
use line_editor::LineEditor;
use mapper::Mapper;
use process::Guard;
use renderer::{Json, Plain, Renderer};
use screen::Screen;
use user_input::{Source, UserInput};

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
        let folders = [&options.cwd].into_iter().chain(&options.additional_folders);
        let tools = ClientTools::new(folders, events.clone(), guard.clone());
        client_tools = Some(tools.map_err(|error| failed("a folder", error))?);
    }
    let commands = Commands::default();
    let source = match (options.view, options.attended) {
        (View::Screen { colour }, true) => editor(colour, &options.history, &options.cwd, &commands),
        _ if options.reads_stdin_whole() => Source::Whole,
        _ => Source::Lines,
    };
    let input = UserInput::new(events.clone(), source);
    let agent = Agent::connect(&options, events.clone(), &guard);
    let ended = agent.and_then(|agent| {
        let events = (events, received);
        Driver::new(options, agent, events, (input, commands), renderer, client_tools).run()
    });
    guard.end();
    process::end_orphans();
    ended
}

/// The editor of a terminal, which completes commands and paths.
fn editor(colour: bool, history: &Option<PathBuf>, cwd: &Path, commands: &Commands) -> Source {
    let completion = Completion { commands: commands.clone(), cwd: cwd.to_owned() };
    Source::Editor(Box::new(LineEditor::new(colour, history.clone(), completion, Arc::default())))
}

fn renderer(view: View) -> io::Result<Box<dyn Renderer>> {
    let out = io::stdout();
    let err = io::stderr();
    let to_terminal = out.is_terminal();
    Ok(match view {
        View::Json { stream } => {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed)?;
            Box::new(Json { mapper: Mapper::new(Cuids::new(seed), stream), out, err, to_terminal })
        }
        View::Screen { colour } => Box::new(Screen::new(out, colour, Box::new(size))),
        View::Plain => Box::new(Plain::new(out, err, to_terminal)),
    })
}

fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size_of(io::stdout());
    size.map_or((24, 80), |(columns, rows)| (usize::from(rows.0), usize::from(columns.0)))
}
