//! `start`: what a user feels. The time from the start of an editor's command until its session can be used, and the
//! memory of three editors, with each agent started by its editor and with all of them behind one bus.
//!
//! An editor is played as plainly as possible: its command is started, `initialize` and `session/new` are sent, and the
//! time stops with their answers. Rounds go in turns, so that what else the machine does slows both.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::Measured;
use crate::bus::{self, Bus};
use crate::client::Client;
use crate::docs;
use crate::print::{Progress, answer, complain};
use crate::procfs;
use crate::table::median;

/// The editors whose memory is measured.
const EDITORS: usize = 3;
/// How long an agent may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The agents: a JSON array of pools with id, command, args, cwd and env, as in bus.json
    #[arg(long, value_name = "FILE")]
    agents: PathBuf,
    /// How often each is started
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write the table into PERFORMANCE.md of this folder
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    #[command(flatten)]
    measured: Measured,
}

/// An agent, as a pool of bus.json names it.
#[derive(Deserialize)]
struct Agent {
    id: String,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    cwd: PathBuf,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// Milliseconds from the start of a command until an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    initialized: f64,
    usable: f64,
}

/// What was measured of one agent. Each list has one entry for each round.
struct Row {
    id: String,
    alone: Vec<Times>,
    /// Through a bus that has been started just before.
    first: Vec<Times>,
    /// Through a bus that another editor has used before.
    warm: Vec<Times>,
    /// Bytes of three editors' agents.
    memory_alone: u64,
    memory_shared: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.measured.stdio_bus();
    let agents = fs::read(&args.agents)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_slice::<Vec<Agent>>(&text).map_err(|error| error.to_string()));
    let agents = match agents {
        Ok(agents) => agents,
        Err(error) => return complain(format_args!("{}: {error}", args.agents.display()), 2),
    };
    let mut rows = Vec::new();
    let mut failed = false;
    for agent in &agents {
        match measure(&stdio_bus, agent, args.rounds) {
            Ok(row) => rows.push(row),
            Err(error) => {
                complain(format_args!("{}: {error}", agent.id), 1);
                failed = true;
            }
        }
    }
    let text = if args.measured.json { format!("{}\n", to_json(&rows)) } else { table(&rows) };
    let printed = answer(&text);
    let written =
        args.docs.as_deref().map_or(Ok(()), |folder| docs::write_between(folder, "start", &table(&rows)));
    match written {
        Err(error) => complain(format_args!("cannot write the documentation: {error}"), 1),
        Ok(()) if failed => ExitCode::FAILURE,
        Ok(()) => printed,
    }
}

fn measure(stdio_bus: &Path, agent: &Agent, rounds: u32) -> io::Result<Row> {
    let mut progress = Progress::on_stderr(agent.id.clone());
    let mut row = Row {
        id: agent.id.clone(),
        alone: Vec::new(),
        first: Vec::new(),
        warm: Vec::new(),
        memory_alone: 0,
        memory_shared: 0,
    };
    let mut bus = None;
    for round in 1..=rounds {
        progress.show(Instant::now(), || format!("round {round} of {rounds}"));
        row.alone.push(Editor::start(agent.command(), agent)?.times);
        // Each round has a bus of its own; the last one is kept for the memory.
        let fresh = Bus::start(stdio_bus, &bus::config(&[agent.pool()]))?;
        row.first.push(Editor::start(connect(stdio_bus, &fresh), agent)?.times);
        row.warm.push(Editor::start(connect(stdio_bus, &fresh), agent)?.times);
        bus = Some(fresh);
    }
    progress.show(Instant::now(), || "memory".to_owned());
    let Some(bus) = bus else { return Ok(row) };
    let editors = |command: &dyn Fn() -> Command| {
        (0..EDITORS).map(|_| Editor::start(command(), agent)).collect::<io::Result<Vec<_>>>()
    };
    let alone = editors(&|| agent.command())?;
    row.memory_alone = alone.iter().map(Editor::bytes).sum();
    drop(alone);
    let shared = editors(&|| connect(stdio_bus, &bus))?;
    row.memory_shared = procfs::tree_bytes(bus.pid()) + shared.iter().map(Editor::bytes).sum::<u64>();
    Ok(row)
}

/// What an editor is told to start: a connection to the bus.
fn connect(stdio_bus: &Path, bus: &Bus) -> Command {
    let mut command = Command::new(stdio_bus);
    let address = bus.address().to_string();
    command.args(["connect", "--tcp", address.trim_start_matches("tcp://")]);
    command
}

impl Agent {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.args(&self.args).current_dir(&self.cwd);
        if !self.env.is_empty() {
            command.env_clear().envs(&self.env);
        }
        command
    }

    fn pool(&self) -> Value {
        let Agent { id, command, args, cwd, env } = self;
        json!({ "id": id, "command": command, "args": args, "cwd": cwd, "env": env,
            "inherit_env": env.is_empty() })
    }
}

/// A process that an editor has started, with a session that can be used.
struct Editor {
    process: Child,
    /// Its end would be the end of the agent.
    client: Client,
    times: Times,
}

impl Editor {
    fn start(mut command: Command, agent: &Agent) -> io::Result<Editor> {
        let began = Instant::now();
        let elapsed = || began.elapsed().as_secs_f64() * 1e3;
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut client = Client::of_child(&mut process);
        client.set_timeout(START_TIMEOUT);
        let mut editor = Editor { process, client, times: Times { initialized: 0.0, usable: 0.0 } };
        let capabilities = json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true });
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": capabilities,
            "clientInfo": { "name": "editor", "version": "1" } });
        editor.client.ask("initialize", hello)?;
        editor.times.initialized = elapsed();
        editor.client.ask("session/new", json!({ "cwd": agent.cwd, "mcpServers": [] }))?;
        editor.times.usable = elapsed();
        Ok(editor)
    }

    fn bytes(&self) -> u64 {
        procfs::tree_bytes(self.process.id())
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        for pid in procfs::tree(self.process.id()).into_iter().rev() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::SIGKILL);
        }
        let _ = self.process.wait();
    }
}

fn medians(times: &[Times]) -> Times {
    let of = |part: fn(&Times) -> f64| median(times.iter().map(part).collect());
    Times { initialized: of(|times| times.initialized), usable: of(|times| times.usable) }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "| agent | started by the editor | first through a bus | through a warm bus \
         | memory of {EDITORS} editors | behind one bus |\n\
         |---|---|---|---|---|---|\n"
    );
    for row in rows {
        let shown = |times: &[Times]| {
            let Times { initialized, usable } = medians(times);
            format!("{initialized:.0} / {usable:.0} ms")
        };
        let (alone, first, warm) = (shown(&row.alone), shown(&row.first), shown(&row.warm));
        let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
        let (own, shared) = (megabytes(row.memory_alone), megabytes(row.memory_shared));
        text += &format!("| {} | {alone} | {first} | {warm} | {own} | {shared} |\n", row.id);
    }
    text
}

fn to_json(rows: &[Row]) -> Value {
    let list = |times: &[Times]| -> Vec<Value> {
        times.iter().map(|it| json!({ "initialized_ms": it.initialized, "usable_ms": it.usable })).collect()
    };
    let row = |row: &Row| {
        json!({ "agent": row.id, "alone": list(&row.alone), "first": list(&row.first), "warm": list(&row.warm),
            "memory_alone": row.memory_alone, "memory_shared": row.memory_shared })
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_medians_of_each_way() {
        let times = |usable| Times { initialized: 1.0, usable };
        let row = Row {
            id: "echo".to_owned(),
            alone: vec![times(30.0), times(10.0), times(20.0)],
            first: vec![times(40.0)],
            warm: vec![times(2.0)],
            memory_alone: 3_000_000,
            memory_shared: 1_000_000,
        };
        let shown = table(&[row]);
        assert!(shown.ends_with("| echo | 1 / 20 ms | 1 / 40 ms | 1 / 2 ms | 3 MB | 1 MB |\n"), "{shown}");
    }
}
