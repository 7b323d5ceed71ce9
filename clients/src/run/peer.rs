//! The other side: an agent that the runner has started, or one behind a bus.

use std::io::{self, BufReader, ErrorKind};
use std::sync::mpsc::Sender;
use std::time::Duration;

use serde_json::json;

use super::link::{Event, Outlet, listen};
use super::process::{AgentProcess, Guard};
use super::{Options, Target};
use crate::Fault;
use crate::wire::Wire;

/// How long the last words may take to be written, and an agent may take to tell how it ended.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long an agent may take to leave by itself, and then to leave when it is told.
const LEAVE: Duration = Duration::from_secs(3);
/// The same where the user does not want to wait.
const LEAVE_NOW: Duration = Duration::from_millis(300);

pub(super) struct Peer {
    outlet: Outlet,
    /// None: it is behind a bus.
    process: Option<AgentProcess>,
    /// For the user.
    pub(super) name: String,
}

impl Peer {
    pub(super) fn reach(options: &Options, events: Sender<Event>, guard: &Guard) -> Result<Peer, Fault> {
        match &options.target {
            Target::Agent(agent) => {
                let started =
                    AgentProcess::start(agent, &options.this_binary, &options.cwd, options.mutters, guard);
                let (process, stdin, stdout) =
                    started.map_err(|error| cannot_start(&agent.program, &error))?;
                listen(BufReader::new(stdout), events);
                let outlet = Outlet::to_pipe(stdin);
                Ok(Peer { outlet, process: Some(process), name: agent.name.clone() })
            }
            Target::Pool { way, pool } => {
                let mut wire = Wire::connect(way, None)?;
                wire.greet("stdio-bus run", pool.as_deref())?;
                let (reader, writer) = wire.into_halves()?;
                listen(reader, events);
                let name = pool.as_ref().map_or("the bus".to_owned(), |pool| format!("pool {pool}"));
                Ok(Peer { outlet: Outlet::to_bus(writer), process: None, name })
            }
        }
    }

    pub(super) fn send(&self, message: &serde_json::Value) {
        self.outlet.send(message);
    }

    /// It has said its last.
    pub(super) fn why_closed(&mut self) -> String {
        let Some(process) = &mut self.process else {
            return "the bus closed the connection".to_owned();
        };
        let exit = process.exit_within(FAREWELL);
        let exit = exit.map_or("closed its output".to_owned(), |exit| format!("ended ({exit})"));
        let said = process.last_words(FAREWELL);
        let said = if said.is_empty() { said } else { format!(", saying: {said}") };
        format!("{} {exit}{said}", self.name)
    }

    pub(super) fn leave(self, at_once: bool) {
        if self.process.is_none() {
            self.outlet.send(&json!({ "jsonrpc": "2.0", "method": "_bus/bye" }));
        }
        let (farewell, leave) = if at_once { (LEAVE_NOW, LEAVE_NOW) } else { (FAREWELL, LEAVE) };
        self.outlet.close(farewell);
        if let Some(process) = self.process {
            process.end(leave);
        }
    }
}

fn cannot_start(program: &str, error: &io::Error) -> Fault {
    Fault::Failed(match error.kind() {
        ErrorKind::NotFound => format!("{program} is not found: install it, or name a command after `--`"),
        _ => format!("{program} cannot be started: {error}"),
    })
}
