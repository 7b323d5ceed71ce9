//! What is measured side by side: the agent alone, behind socat, and behind a bus.
//!
//! Each peer is started for one measurement and killed when it ends.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rpc::Stream;
use serde_json::json;

use crate::address::{self, Address};
use crate::bus::{Bus, config};
use crate::port::free_port;

const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at whether a peer listens, which it does not announce.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// With the usual backlog, many clients at once would wait a second each for their connection.
const BACKLOG: u32 = 4096;
/// What socat reads at once. By default it reads 8 KiB, and would lose by its calls of the system.
const SOCAT_BYTES: &str = "65536";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// One agent per connection, over a socketpair.
    Direct,
    /// A byte pipe that parses nothing: one process and one agent per connection.
    Socat,
    /// One bus with one agent for all connections.
    Bus,
    /// A command from the command line, which listens at {port} and starts {agent}.
    Other { name: String, command: String },
}

impl Peer {
    pub(crate) fn name(&self) -> &str {
        match self {
            Peer::Direct => "direct",
            Peer::Socat => "socat",
            Peer::Bus => "bus",
            Peer::Other { name, .. } => name,
        }
    }

    /// Starts the peer with an agent behind it, which is this program with these arguments.
    pub(crate) fn start(&self, stdio_bus: &Path, agent: &[&str]) -> io::Result<Running> {
        let agent = agent.iter().map(|arg| (*arg).to_owned()).collect();
        let (program, stdio_bus) = (env::current_exe()?, stdio_bus.into());
        let processes = Started::default();
        let running = Running { program, stdio_bus, agent, address: None, processes, bus: None };
        match self {
            Peer::Direct => Ok(running),
            Peer::Socat => start_socat(running),
            Peer::Bus => start_bus(running),
            Peer::Other { command, .. } => start_other(running, command),
        }
    }
}

/// NAME=CMD.
pub(crate) fn parse_other(text: &str) -> Result<Peer, String> {
    let (name, command) = text.split_once('=').ok_or("NAME=CMD is needed")?;
    if !command.contains("{port}") {
        return Err("the command must say where {port} goes".to_owned());
    }
    Ok(Peer::Other { name: name.to_owned(), command: command.to_owned() })
}

pub(crate) fn has_socat() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join("socat").is_file())
}

/// Processes that are killed when it is dropped.
#[derive(Default)]
pub(crate) struct Started(Vec<Child>);

impl Started {
    /// A connection to the stdin and stdout of a new process.
    pub(crate) fn connect(&mut self, command: &mut Command) -> io::Result<Stream> {
        let (ours, theirs) = UnixStream::pair()?;
        let (stdin, stdout) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        self.0.push(command.stdin(stdin).stdout(stdout).spawn()?);
        Ok(Stream::Unix(ours))
    }
}

/// A peer that runs, until it is dropped.
pub(crate) struct Running {
    /// The agent and its arguments.
    program: PathBuf,
    agent: Vec<String>,
    stdio_bus: PathBuf,
    /// None: each connection starts its own agent.
    address: Option<Address>,
    processes: Started,
    bus: Option<Bus>,
}

impl Running {
    pub(crate) fn connect(&mut self) -> io::Result<Stream> {
        if let Some(address) = &self.address {
            return address::connect(address);
        }
        self.processes.connect(Command::new(&self.program).args(&self.agent))
    }

    fn agent_command(&self) -> String {
        format!("{} {}", self.program.display(), self.agent.join(" "))
    }

    /// The process whose cost is measured, if it is only one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.bus.as_ref().map(Bus::pid)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
        }
        for process in &mut self.0 {
            let _ = process.wait();
        }
    }
}

fn start_socat(running: Running) -> io::Result<Running> {
    let port = free_port()?;
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog={BACKLOG}");
    let agent = format!("EXEC:\"{}\"", running.agent_command());
    start_at(running, Command::new("socat").args(["-b", SOCAT_BYTES, &listen, &agent]), port)
}

fn start_other(running: Running, command: &str) -> io::Result<Running> {
    let port = free_port()?;
    let command = command.replace("{port}", &port.to_string()).replace("{agent}", &running.agent_command());
    start_at(running, Command::new("sh").args(["-c", &format!("exec {command}")]), port)
}

/// Starts the peer and waits until it listens.
fn start_at(mut running: Running, command: &mut Command, port: u16) -> io::Result<Running> {
    running.processes.0.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    running.address = Some(Address::Tcp { host: "127.0.0.1".into(), port });
    let deadline = Instant::now() + START_TIMEOUT;
    while let Err(error) = running.connect() {
        if let Some(status) = running.processes.0[0].try_wait()? {
            return Err(io::Error::other(format!("it left: {status}")));
        }
        if Instant::now() > deadline {
            return Err(error);
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(running)
}

fn start_bus(mut running: Running) -> io::Result<Running> {
    let pool = json!({ "id": "echo", "command": running.program, "args": running.agent, "instances": 1,
        "max_instances": 1, "max_sessions": 100_000 });
    let bus = Bus::start(&running.stdio_bus, &config(&[pool]))?;
    running.address = Some(bus.address().clone());
    running.bus = Some(bus);
    Ok(running)
}
