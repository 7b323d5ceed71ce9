//! What is measured side by side: the echo agent alone, behind socat, and behind a bus.
//!
//! Each is started for one measurement and is gone when it ends.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::stage::{Bus, echo};
use crate::wire::{self, Target, Wire};

const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at whether socat listens, which it does not tell.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// An ordinary one would make many clients at once wait a second each for their connection.
const BACKLOG: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An agent a connection, over a socketpair.
    Direct,
    /// A byte pipe that parses nothing: a process and an agent a connection.
    Socat,
    /// One bus with one agent for all connections.
    Bus,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Direct => "direct",
            Peer::Socat => "socat",
            Peer::Bus => "bus",
        }
    }

    pub(crate) fn start(self, stdio_bus: &Path) -> io::Result<Running> {
        match self {
            Peer::Direct => Ok(Running::new(stdio_bus, None, Vec::new())),
            Peer::Socat => start_socat(stdio_bus),
            Peer::Bus => start_bus(stdio_bus),
        }
    }
}

pub(crate) fn has_socat() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join("socat").is_file())
}

/// A peer that runs. Its processes end with it.
pub(crate) struct Running {
    stdio_bus: PathBuf,
    /// None: each connection starts its own agent.
    door: Option<Target>,
    processes: Vec<Child>,
    bus: Option<Bus>,
}

impl Running {
    fn new(stdio_bus: &Path, door: Option<Target>, processes: Vec<Child>) -> Running {
        Running { stdio_bus: stdio_bus.into(), door, processes, bus: None }
    }

    pub(crate) fn connect(&mut self) -> io::Result<Wire> {
        if let Some(door) = &self.door {
            return door.connect();
        }
        let (ours, theirs) = UnixStream::pair()?;
        let (stdin, stdout) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        let mut agent = Command::new(&self.stdio_bus);
        self.processes.push(agent.args(["agent", "echo"]).stdin(stdin).stdout(stdout).spawn()?);
        wire::unix(ours)
    }

    /// The bus, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.bus.as_ref().map(Bus::pid)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
        }
        for process in &mut self.processes {
            let _ = process.wait();
        }
    }
}

fn start_socat(stdio_bus: &Path) -> io::Result<Running> {
    // Nobody holds the port until socat does; whoever takes it meanwhile makes socat fail, and us with it.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog={BACKLOG}");
    let agent = format!("EXEC:\"{} agent echo\"", stdio_bus.display());
    let socat = Command::new("socat").args([listen, agent]).stdin(Stdio::null()).spawn()?;
    let door = Target::Tcp(format!("127.0.0.1:{port}"));
    let mut running = Running::new(stdio_bus, Some(door), vec![socat]);
    let deadline = Instant::now() + START_TIMEOUT;
    while let Err(error) = running.connect() {
        if let Some(status) = running.processes[0].try_wait()? {
            return Err(io::Error::other(format!("socat left: {status}")));
        }
        if Instant::now() > deadline {
            return Err(error);
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(running)
}

fn start_bus(stdio_bus: &Path) -> io::Result<Running> {
    let config = json!({ "listen": ["tcp://127.0.0.1:0"], "pools": [echo("echo", 1, &[])] });
    let bus = Bus::start(stdio_bus, &config)?;
    let door = Some(bus.door().clone());
    let mut running = Running::new(stdio_bus, door, Vec::new());
    running.bus = Some(bus);
    Ok(running)
}
