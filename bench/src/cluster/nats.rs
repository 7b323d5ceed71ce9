//! A nats-server at a free port, which can be killed and started again, and is killed when it is dropped.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::bus::PATIENCE;
use crate::port::free_port;

pub(super) struct Nats {
    program: PathBuf,
    child: Child,
    folder: TempDir,
    settings: String,
    port: u16,
}

impl Nats {
    /// With these settings in its configuration file.
    pub(super) fn start(program: &Path, settings: &str) -> io::Result<Nats> {
        let (folder, port) = (TempDir::with_prefix("bus-bench-")?, free_port()?);
        let child = spawn(program, folder.path(), port, settings)?;
        let settings = settings.to_owned();
        let mut nats = Nats { program: program.to_owned(), child, folder, settings, port };
        nats.ports()?;
        Ok(nats)
    }

    /// Three of one cluster.
    pub(super) fn three(program: &Path) -> io::Result<Vec<Nats>> {
        let ports = (0..3).map(|_| free_port()).collect::<io::Result<Vec<_>>>()?;
        let routes: Vec<String> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let routes = routes.join(", ");
        let settings = |port: &u16| {
            format!(
                "cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n\
                 lame_duck_duration: \"30s\"\nlame_duck_grace_period: \"1s\""
            )
        };
        ports.iter().map(|port| Nats::start(program, &settings(port))).collect()
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid() as i32), signal);
    }

    pub(super) fn dies(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// At the same port.
    pub(super) fn comes_back(&mut self) -> io::Result<()> {
        self.child = spawn(&self.program, self.folder.path(), self.port, &self.settings)?;
        self.ports().map(drop)
    }

    /// How many connections it has cut because they did not read.
    pub(super) fn slow_consumers(&mut self) -> io::Result<u64> {
        let mut socket = TcpStream::connect(("127.0.0.1", port_in(&self.ports()?["monitoring"])?))?;
        socket.write_all(b"GET /varz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let figures: Value = serde_json::from_str(body)?;
        figures["slow_consumers"].as_u64().ok_or_else(|| io::Error::other("the server does not say"))
    }

    /// The ports that it has taken, which it writes into a file.
    fn ports(&mut self) -> io::Result<Value> {
        let file = self.folder.path().join(format!("nats-server_{}.ports", self.child.id()));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            if let Some(said) = said {
                return Ok(said);
            }
            if self.has_ended() || Instant::now() > deadline {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it has logged nothing");
                return Err(io::Error::other(format!("nats-server does not start: {last}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.dies();
    }
}

fn port_in(urls: &Value) -> io::Result<u16> {
    let port = urls[0].as_str().and_then(|url| url.rsplit_once(':')).and_then(|(_, port)| port.parse().ok());
    port.ok_or_else(|| io::Error::other(format!("no port in {urls}")))
}

fn spawn(program: &Path, folder: &Path, port: u16, settings: &str) -> io::Result<Child> {
    let (shown, file) = (folder.display(), folder.join("server.conf"));
    let text =
        format!("listen: \"127.0.0.1:{port}\"\nports_file_dir: \"{shown}\"\nlogfile: \"{shown}/log\"\n");
    fs::write(&file, format!("{text}{settings}\n"))?;
    let mut command = Command::new(program);
    command.arg("-c").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| {
        io::Error::other(format!("{}: {error}; tests/cluster/run installs one", program.display()))
    })
}
