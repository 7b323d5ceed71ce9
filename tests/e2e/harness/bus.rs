//! A bus of one test: started, spoken to, and gone without a trace when the test ends.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::PATIENCE;
use super::client::Client;
use super::log::Log;
use super::procs::{command_line, is_gone, marked};
use super::puppet::Puppet;
use super::wire::Wire;

pub(crate) const BUS: &str = env!("CARGO_BIN_EXE_stdio-bus");
/// Every process that a test starts carries this in its environment, with the folder of the test.
pub(super) const MARK: &str = "E2E_MARK";
/// Between two looks at something that the system does not tell about.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) struct Bus {
    child: Child,
    exited: Option<ExitStatus>,
    pub(crate) log: Log,
    /// Where it listens, as it says itself.
    pub(crate) addresses: Vec<String>,
    dir: TempDir,
    door: UnixListener,
    /// Puppets that came before they were asked for.
    lobby: RefCell<Vec<Puppet>>,
    /// Its own stdin and stdout, where those are a client.
    stdio: Option<Client>,
}

/// How a bus is to be started.
pub(crate) struct Plan {
    config: Value,
    envs: Vec<(&'static str, String)>,
    /// Said to a shell that then becomes the bus.
    prelude: Option<&'static str>,
    stdio: bool,
    deaf: bool,
    /// Stands in the file `token` in the folder of the test.
    token: Option<&'static str>,
    /// Another file than that in the folder of the test: `config` is written to it, or it is there already.
    file: Option<PathBuf>,
    writes_file: bool,
}

impl Bus {
    pub(crate) fn start(config: Value) -> Bus {
        Bus::plan(config).start()
    }

    pub(crate) fn plan(config: Value) -> Plan {
        Plan {
            config,
            envs: Vec::new(),
            prelude: None,
            stdio: false,
            deaf: false,
            token: None,
            file: None,
            writes_file: false,
        }
    }

    /// With this configuration, where it stands.
    pub(crate) fn plan_with_file(file: PathBuf) -> Plan {
        Plan { file: Some(file), ..Bus::plan(Value::Null) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.folder().join("bus.json")
    }

    /// Where it listens first, as HOST:PORT.
    pub(crate) fn tcp(&self) -> &str {
        self.addresses[0].strip_prefix("tcp://").expect("a TCP listener")
    }

    pub(crate) fn client(&self) -> Client {
        self.client_at(0)
    }

    /// Through the listener of this number.
    pub(crate) fn client_at(&self, listener: usize) -> Client {
        Client::new(self.wire_to(&self.addresses[listener]))
    }

    /// Its own stdin and stdout.
    pub(crate) fn stdio(&mut self) -> Client {
        self.stdio.take().expect("a bus with --stdio")
    }

    fn wire_to(&self, address: &str) -> Wire {
        if let Some(path) = address.strip_prefix("unix://") {
            return Wire::socket("client", UnixStream::connect(path).expect("the bus listens"), &self.log);
        }
        let place = address.strip_prefix("tcp://").expect("tcp:// or unix://");
        let socket = TcpStream::connect(place).expect("the bus listens");
        socket.set_nodelay(true).expect("a socket");
        Wire::socket("client", socket, &self.log)
    }

    /// The next worker that starts, whatever its pool.
    pub(crate) fn puppet(&self) -> Puppet {
        if let Some(puppet) = self.lobby.borrow_mut().pop() {
            return puppet;
        }
        self.meet()
    }

    pub(crate) fn puppets<const N: usize>(&self) -> [Puppet; N] {
        std::array::from_fn(|_| self.puppet())
    }

    /// The next worker of this pool.
    pub(crate) fn puppet_of(&self, pool: &str) -> Puppet {
        let waiting = self.lobby.borrow().iter().position(|puppet| puppet.pool() == pool);
        if let Some(at) = waiting {
            return self.lobby.borrow_mut().remove(at);
        }
        loop {
            let puppet = self.meet();
            if puppet.pool() == pool {
                return puppet;
            }
            self.lobby.borrow_mut().push(puppet);
        }
    }

    /// Whether a worker has started that nobody has met.
    pub(crate) fn has_another_puppet(&self) -> bool {
        !self.lobby.borrow().is_empty()
            || poll(&mut [PollFd::new(self.door(), PollFlags::POLLIN)], 0u8) == Ok(1)
    }

    fn meet(&self) -> Puppet {
        let patience = PollTimeout::try_from(PATIENCE).expect("it is short");
        if poll(&mut [PollFd::new(self.door(), PollFlags::POLLIN)], patience) != Ok(1) {
            panic!("waited {PATIENCE:?} for a worker to start\n--- log of the bus\n{}", self.log.text());
        }
        let (socket, _) = self.door.accept().expect("a puppet at the door");
        Puppet::meet(Wire::socket("puppet", socket, &self.log))
    }

    fn door(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("the bus runs");
    }

    /// Waits for it to leave.
    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.exited.or_else(|| self.child.try_wait().expect("it is our child")) {
                self.exited = Some(status);
                return status;
            }
            assert!(Instant::now() < deadline, "the bus does not leave\n{}", self.log.text());
            thread::sleep(LOOK_AGAIN);
        }
    }

    pub(crate) fn log_has(&self, words: &str) {
        self.log.has(words);
    }

    /// Another configuration in the place of the first one.
    pub(crate) fn rewrite(&self, config: &Value) {
        self.rewrite_text(&fill_in(config, self.folder()));
    }

    pub(crate) fn rewrite_text(&self, text: &str) {
        fs::write(self.config_path(), text).expect("the folder is ours");
    }

    /// Waits until this is so.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}\n{}", self.log.text());
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// What was started by this bus, or is it, and still lives.
    pub(crate) fn survivors(&self) -> Vec<u32> {
        let mut found = marked(&mark(self.folder()));
        // Whose environment only root may look into.
        let bus = Some(self.pid()).filter(|pid| self.exited.is_none() && !is_gone(*pid));
        found.extend(bus.filter(|pid| !found.contains(pid)));
        found
    }

    /// Waits until nothing of it is left, and fails if that takes too long.
    pub(crate) fn leaves_nothing_within(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let left = self.survivors();
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                let lines: Vec<_> = left.iter().map(|pid| format!("{pid}: {}", command_line(*pid))).collect();
                panic!("left behind after {patience:?}: {lines:#?}\n--- log of the bus\n{}", self.log.text());
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        if self.exited.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if !thread::panicking() {
            self.leaves_nothing_within(PATIENCE);
        }
    }
}

impl Plan {
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Plan {
        self.envs.push((name, value.to_owned()));
        self
    }

    /// Started by a shell that first does this: limits, ignored signals and open files are passed on.
    pub(crate) fn after(mut self, prelude: &'static str) -> Plan {
        self.prelude = Some(prelude);
        self
    }

    /// Its stdin and stdout are a client.
    pub(crate) fn stdio(mut self) -> Plan {
        self.stdio = true;
        self
    }

    /// Its configuration is written here, where another bus can find it after this one.
    pub(crate) fn at(mut self, file: &Path) -> Plan {
        self.file = Some(file.to_owned());
        self.writes_file = true;
        self
    }

    /// Who connects must show this token.
    pub(crate) fn token(mut self, token: &'static str) -> Plan {
        self.config["auth"] = json!({ "token_file": "@dir/token" });
        self.token = Some(token);
        self
    }

    /// Nobody reads its stderr.
    pub(crate) fn deaf(mut self) -> Plan {
        self.deaf = true;
        self
    }

    pub(crate) fn start(self) -> Bus {
        let dir = TempDir::with_prefix("bus").expect("a temporary folder");
        let door = UnixListener::bind(dir.path().join("puppets")).expect("a socket in a folder of ours");
        let own = dir.path().join("bus.json");
        let file = self.file.as_ref().filter(|_| self.writes_file).unwrap_or(&own);
        fs::write(file, fill_in(&self.config, dir.path())).expect("the folder is ours");
        if let Some(token) = self.token {
            write_token(&dir.path().join("token"), token);
        }
        let mut child = self.command(dir.path()).spawn().expect("the bus starts");
        // A pipe that nobody reads stays in the child, so that it is not closed.
        let log = match self.deaf {
            true => Log::default(),
            false => Log::of(child.stderr.take().expect("piped")),
        };
        let stdout = child.stdout.take().expect("piped");
        let (addresses, lobby) = (Vec::new(), RefCell::default());
        let mut bus = Bus { child, exited: None, log, addresses, dir, door, lobby, stdio: None };
        if self.stdio {
            let stdin = bus.child.stdin.take().expect("piped");
            bus.stdio = Some(Client::new(Wire::pipes("stdio", stdout, stdin, &bus.log)));
            return bus;
        }
        let mut lines = BufReader::new(stdout).lines();
        for _ in 0..self.config["listen"].as_array().map_or(1, Vec::len) {
            let Some(Ok(line)) = lines.next() else { panic!("the bus did not start: {}", bus.log.text()) };
            let said: Value = serde_json::from_str(&line).expect("one JSON line a listener");
            bus.addresses.push(said["listening"].as_str().expect("an address").to_owned());
        }
        bus
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(if self.prelude.is_some() { "sh" } else { BUS });
        if let Some(prelude) = self.prelude {
            command.args(["-c", &format!(r#"{prelude}; exec "$0" "$@""#), BUS]);
        }
        let written = dir.join("bus.json");
        command.arg("serve").arg("--config").arg(self.file.as_ref().unwrap_or(&written));
        match (self.stdio, self.config.get("listen")) {
            (true, _) => drop(command.arg("--stdio")),
            (false, None) => drop(command.args(["--tcp", "127.0.0.1:0"])),
            (false, Some(_)) => {}
        }
        command.current_dir(dir).env("RUST_LOG", "debug").env(MARK, dir).env("XDG_STATE_HOME", dir);
        command.envs(self.envs.iter().cloned());
        command.stdin(if self.stdio { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// One run of the binary to its end.
pub(crate) fn run(folder: &Path, args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(BUS);
    command.args(args).current_dir(folder).env_remove("STDIO_BUS_CONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // A program that does not want its stdin may be gone already.
    let _ = child.stdin.take().expect("piped").write_all(stdin.as_bytes());
    let pid = child.id();
    let deadline = Instant::now() + PATIENCE;
    let waiting = thread::spawn(move || child.wait_with_output().expect("it is our child"));
    while !waiting.is_finished() {
        if Instant::now() >= deadline {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        thread::sleep(LOOK_AGAIN);
    }
    waiting.join().expect("it was waited for")
}

/// Only its owner can read it.
pub(crate) fn write_token(path: &Path, token: &str) {
    fs::write(path, token).expect("the folder is ours");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("the file is ours");
}

/// The text of a configuration: `@sock` is where puppets report, `@dir` the folder of the test.
fn fill_in(config: &Value, dir: &Path) -> String {
    let text = serde_json::to_string_pretty(config).expect("JSON");
    let sock = dir.join("puppets");
    text.replace("@sock", sock.to_str().expect("UTF-8")).replace("@dir", dir.to_str().expect("UTF-8"))
}

fn mark(dir: &Path) -> String {
    format!("{MARK}={}", dir.display())
}
