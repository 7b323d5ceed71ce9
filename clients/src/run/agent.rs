//! The agent that `run` talks to: a process that it has started, or one behind a bus.

use std::io::{self, ErrorKind};
use std::sync::mpsc::Sender;
use std::time::Duration;

use rpc::LineReader;
use rpc::lines::LINE_BYTES_MAX;
use serde_json::{Value, json};

use super::bus_event::OWNER_NAME;
use super::events::{AgentWriter, Event, read_messages};
use super::options::{AgentSource, Ended, Options};
use super::process::{AgentCommand, AgentProcess, Guard};
use super::stop::Stop;
use crate::connection::Connection;
use crate::{Fault, Target};

/// How long the last lines may take to be written, and how long an agent whose output has ended may take to exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an agent may take to exit by itself, and then again after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Like `EXIT_TIMEOUT`, for a user who does not want to wait.
const EXIT_TIMEOUT_NOW: Duration = Duration::from_millis(300);

pub(super) struct Agent {
    writer: AgentWriter,
    /// `None`: the agent is behind a bus.
    process: Option<AgentProcess>,
    /// The name in messages for the user.
    pub(super) name: String,
    /// The id of the last request.
    last_id: u64,
}

impl Agent {
    pub(super) fn connect(options: &Options, events: Sender<Event>, guard: &Guard) -> Result<Agent, Fault> {
        match &options.agent {
            AgentSource::Command(command) => {
                let started = AgentProcess::start(
                    command,
                    &options.this_binary,
                    &options.cwd,
                    options.show_stderr,
                    guard,
                );
                let (process, stdin, stdout) = started.map_err(|error| cannot_start(command, &error))?;
                read_messages(stdout, LineReader::with_limit(LINE_BYTES_MAX), events);
                let writer = AgentWriter::to_pipe(stdin);
                Ok(Agent { writer, process: Some(process), name: command.name.clone(), last_id: 0 })
            }
            AgentSource::Pool { target, pool } => Agent::at_bus(target, pool.as_deref(), events),
        }
    }

    /// An agent of this pool of a bus.
    pub(super) fn at_bus(target: &Target, pool: Option<&str>, events: Sender<Event>) -> Result<Agent, Fault> {
        let mut connection = Connection::connect(target, None)?;
        // The bus then tells who has joined the session, and who has answered a question.
        let introduced = connection.introduce_listener(OWNER_NAME, pool);
        introduced.map_err(Fault::in_words)?;
        let name = pool.map_or("the bus".to_owned(), |pool| format!("pool {pool}"));
        Agent::behind(connection, name, events)
    }

    /// The bus itself, for a client of this name.
    pub(super) fn join(target: &Target, client: &str, events: Sender<Event>) -> Result<Agent, Fault> {
        let mut connection = Connection::connect(target, None)?;
        connection.introduce(client, None)?;
        Agent::behind(connection, "the bus".to_owned(), events)
    }

    fn behind(connection: Connection, name: String, events: Sender<Event>) -> Result<Agent, Fault> {
        let (stream, lines) = connection.into_parts()?;
        let writer = stream.try_clone().map_err(|error| Fault::Failed(format!("a socket fails: {error}")))?;
        read_messages(stream, lines, events);
        Ok(Agent { writer: AgentWriter::to_bus(writer), process: None, name, last_id: 0 })
    }

    pub(super) fn is_behind_bus(&self) -> bool {
        self.process.is_none()
    }

    pub(super) fn send(&self, message: &Value) {
        self.writer.send(message);
    }

    /// Returns the id that the answer will have.
    pub(super) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// What becomes of the command when no more turns are run.
    pub(super) fn outcome(&mut self, stop: Result<Ended, Stop>) -> Result<Ended, Fault> {
        match stop {
            Ok(ended) | Err(Stop::Ended(ended)) => Ok(ended),
            Err(Stop::Fault(fault)) => Err(fault),
            Err(Stop::Closed) => Err(Fault::Failed(self.why_closed())),
            Err(Stop::TimedOut) => Ok(Ended::TimedOut),
        }
    }

    /// Explains the end of the agent's output. Below it stand the last lines of its stderr.
    pub(super) fn why_closed(&mut self) -> String {
        let Some(process) = &mut self.process else {
            return "the bus closed the connection".to_owned();
        };
        let exit = process.exit_within(FLUSH_TIMEOUT);
        let exit = exit.map_or("closed its output".to_owned(), |exit| format!("ended ({exit})"));
        let lines = process.last_stderr_lines(FLUSH_TIMEOUT);
        let lines: String = lines.iter().map(|line| format!("\n| {line}")).collect();
        format!("{} {exit}{lines}", self.name)
    }

    pub(super) fn close(self, at_once: bool) {
        if self.process.is_none() {
            self.writer.send(&json!({ "jsonrpc": "2.0", "method": "_bus/bye" }));
        }
        let (flush, close) =
            if at_once { (EXIT_TIMEOUT_NOW, EXIT_TIMEOUT_NOW) } else { (FLUSH_TIMEOUT, EXIT_TIMEOUT) };
        self.writer.close(flush);
        if let Some(process) = self.process {
            process.end(close);
        }
    }
}

fn cannot_start(AgentCommand { program, similar, .. }: &AgentCommand, error: &io::Error) -> Fault {
    Fault::Failed(match (error.kind(), similar) {
        (ErrorKind::NotFound, Some(similar)) => format!("{program} is not found; did you mean {similar}?"),
        (ErrorKind::NotFound, None) => {
            format!("{program} is not found: install it, or name a command after `--`")
        }
        _ => format!("{program} cannot be started: {error}"),
    })
}
