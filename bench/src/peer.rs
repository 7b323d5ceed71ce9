//! What is measured side by side: the echo agent alone, behind socat, and behind a bus.
//!
//! Each is started for one measurement and is gone when it ends.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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
            Peer::Direct => Ok(Running { stdio_bus: stdio_bus.into(), door: None, processes: Vec::new() }),
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
}

impl Running {
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

    /// The one process that stands between clients and agents, if there is just one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.door.as_ref().and(self.processes.first()).map(Child::id)
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
    let mut running = Running { stdio_bus: stdio_bus.into(), door: Some(door), processes: vec![socat] };
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
    let config = json!({
        "listen": ["tcp://127.0.0.1:0"],
        "pools": [{ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"], "instances": 1 }],
    });
    let path = env::temp_dir().join(format!("bus-bench-{}.json", process::id()));
    File::create_new(&path)?.write_all(config.to_string().as_bytes())?;
    let started = serve(stdio_bus, &path);
    // Whoever says that it listens has read it.
    fs::remove_file(&path)?;
    started
}

fn serve(stdio_bus: &Path, config: &Path) -> io::Result<Running> {
    let mut command = Command::new(stdio_bus);
    command.args(["serve", "--config"]).arg(config).env("RUST_LOG", "warn");
    let bus = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut running = Running { stdio_bus: stdio_bus.into(), door: None, processes: vec![bus] };
    let mut announcement = String::new();
    if let Some(stdout) = running.processes[0].stdout.take() {
        BufReader::new(stdout).read_line(&mut announcement)?;
    }
    let listening = serde_json::from_str::<Value>(&announcement).unwrap_or_default();
    let door = listening["listening"].as_str().and_then(|url| url.parse().ok());
    let silent = || io::Error::other(format!("{} does not say where it listens", stdio_bus.display()));
    running.door = Some(door.ok_or_else(silent)?);
    Ok(running)
}
