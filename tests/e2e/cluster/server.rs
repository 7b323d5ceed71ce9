//! A real nats-server for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::free_port;
use crate::harness::{PATIENCE, looks_again, skips};

/// The program, which tests/cluster/run installs.
const PROGRAM: &str = "BUS_NATS_SERVER";

pub(super) struct NatsServer {
    program: PathBuf,
    child: Child,
    dir: TempDir,
    /// What it is told beside its port.
    settings: String,
    place: Place,
    pub(super) port: u16,
}

/// Where a server runs, and the address that it listens at.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) host: &'static str,
    /// A network namespace.
    pub(super) inside: Option<String>,
}

impl Default for Place {
    fn default() -> Place {
        Place { host: "127.0.0.1", inside: None }
    }
}

impl NatsServer {
    /// `None`: there is no nats-server, and the test cannot be played.
    pub(super) fn start() -> Option<NatsServer> {
        NatsServer::start_with("")
    }

    /// With these settings of its configuration file.
    pub(super) fn start_with(settings: &str) -> Option<NatsServer> {
        NatsServer::start_at(settings, Place::default())
    }

    pub(super) fn start_at(settings: &str, place: Place) -> Option<NatsServer> {
        let Some(program) = std::env::var_os(PROGRAM) else {
            skips("nats-server; tests/cluster/run installs one and plays these tests");
            return None;
        };
        let dir = TempDir::with_prefix("nats").expect("a temporary folder");
        let program = PathBuf::from(program);
        let port = free_port().expect("a free port");
        let child = spawn(&program, dir.path(), port, settings, &place);
        let mut server = NatsServer { program, child, dir, settings: settings.to_owned(), place, port };
        server.has_started();
        Some(server)
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until it has written the file that names its ports, which it does when it listens.
    fn has_started(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let file = self.dir.path().join(format!("nats-server_{}.ports", self.child.id()));
        while !file.exists() {
            let has_ended = self.child.try_wait().expect("it is our child").is_some();
            assert!(!has_ended && Instant::now() < deadline, "nats-server does not start: {}", self.log());
            looks_again();
        }
    }

    /// Waits until it has ended by itself.
    pub(super) fn ends(&mut self) {
        let deadline = Instant::now() + PATIENCE * 2;
        while self.child.try_wait().expect("it is our child").is_none() {
            assert!(Instant::now() < deadline, "nats-server does not end: {}", self.log());
            looks_again();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the server runs");
    }

    /// Kills it and starts it again at the same port.
    pub(super) fn restart(&mut self) {
        self.dies();
        self.comes_back();
    }

    pub(super) fn dies(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Is told something else from its next life on.
    pub(super) fn is_told(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
    }

    pub(super) fn comes_back(&mut self) {
        self.child = spawn(&self.program, self.dir.path(), self.port, &self.settings, &self.place);
        self.has_started();
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.dies();
    }
}

fn spawn(program: &Path, dir: &Path, port: u16, settings: &str, place: &Place) -> Child {
    let (shown, host) = (dir.display(), place.host);
    let file = format!(
        "listen: \"{host}:{port}\"\nports_file_dir: \"{shown}\"\nlogfile: \"{shown}/log\"\n{settings}\n"
    );
    let path = dir.join("server.conf");
    fs::write(&path, file).expect("the folder is ours");
    let mut command = match &place.inside {
        None => Command::new(program),
        Some(namespace) => {
            let mut ip = Command::new("ip");
            ip.args(["netns", "exec", namespace]).arg(program);
            ip
        }
    };
    command.arg("-c").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("nats-server runs")
}
