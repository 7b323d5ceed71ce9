//! The bus of one test, which must leave no process behind when the test ends.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rpc::LineReader;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::Client;
use super::connection::Connection;
use super::log::Log;
use super::procs::{MARK, cpu_ticks, expect_none, is_gone, marked};
use super::puppet::Puppet;
use super::waiting::{PATIENCE, looks_again, time_passes};

pub(crate) const BUS: &str = env!("CARGO_BIN_EXE_stdio-bus");

/// Where a program under test finds no configuration of the user who runs the tests.
pub(crate) const NO_FOLDER: &str = "/nonexistent";

pub(crate) struct Bus {
    child: Child,
    exited: Option<ExitStatus>,
    pub(crate) log: Log,
    /// Where it listens, as it prints itself.
    pub(crate) addresses: Vec<String>,
    dir: TempDir,
    puppet_listener: UnixListener,
    /// Puppets that have started before the test asked for them.
    waiting_puppets: RefCell<Vec<Puppet>>,
    /// Its own stdin and stdout, if those are a client.
    stdio: Option<Client>,
    /// Its stdout, if that tells addresses.
    announced: RefCell<Option<(LineReader, ChildStdout)>>,
}

/// How a bus is started.
pub(crate) struct Plan {
    config: Value,
    envs: Vec<(&'static str, String)>,
    /// Run by a shell that then executes the bus.
    prelude: Option<&'static str>,
    /// A network namespace.
    inside: Option<String>,
    stdio: bool,
    ignores_stderr: bool,
    /// The content of the file `token` in the folder of the test.
    token: Option<&'static str>,
    /// Another configuration file than that in the folder of the test.
    file: Option<PathBuf>,
    /// Whether `config` is written to that file, or it is there already.
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
            inside: None,
            stdio: false,
            ignores_stderr: false,
            token: None,
            file: None,
            writes_file: false,
        }
    }

    /// With this configuration file.
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

    /// The first address that it listens at, as HOST:PORT.
    pub(crate) fn tcp(&self) -> &str {
        self.addresses[0].strip_prefix("tcp://").expect("a TCP listener")
    }

    pub(crate) fn client(&self) -> Client {
        self.client_at(0)
    }

    /// A client at the listener of this number.
    pub(crate) fn client_at(&self, listener: usize) -> Client {
        Client::new(self.connect(&self.addresses[listener]))
    }

    /// The address of its web door, which it prints when that is open.
    pub(crate) fn web_door(&self) -> String {
        let mut announced = self.announced.borrow_mut();
        let (lines, stdout) = announced.as_mut().expect("a bus that listens");
        let line = lines.read_line(stdout, Some(Instant::now() + PATIENCE));
        let Ok(Some(line)) = line else { panic!("no web door opens\n{}", self.log.text()) };
        let printed: Value = serde_json::from_slice(line).expect("a line of JSON");
        printed["listening"].as_str().expect("an address").to_owned()
    }

    /// Its own stdin and stdout.
    pub(crate) fn stdio(&mut self) -> Client {
        self.stdio.take().expect("a bus with --stdio")
    }

    fn connect(&self, address: &str) -> Connection {
        if let Some(path) = address.strip_prefix("unix://") {
            return Connection::socket(
                "client",
                UnixStream::connect(path).expect("the bus listens"),
                &self.log,
            );
        }
        let place = address.strip_prefix("tcp://").expect("tcp:// or unix://");
        let socket = TcpStream::connect(place).expect("the bus listens");
        socket.set_nodelay(true).expect("a socket");
        Connection::socket("client", socket, &self.log)
    }

    /// The next worker that starts, whatever its pool.
    pub(crate) fn puppet(&self) -> Puppet {
        if let Some(puppet) = self.waiting_puppets.borrow_mut().pop() {
            return puppet;
        }
        self.accept_puppet()
    }

    pub(crate) fn puppets<const N: usize>(&self) -> [Puppet; N] {
        std::array::from_fn(|_| self.puppet())
    }

    /// The next worker of this pool.
    pub(crate) fn puppet_of(&self, pool: &str) -> Puppet {
        let waiting = self.waiting_puppets.borrow().iter().position(|puppet| puppet.pool() == pool);
        if let Some(at) = waiting {
            return self.waiting_puppets.borrow_mut().remove(at);
        }
        loop {
            let puppet = self.accept_puppet();
            if puppet.pool() == pool {
                return puppet;
            }
            self.waiting_puppets.borrow_mut().push(puppet);
        }
    }

    /// Whether a worker has started that the test has not asked for.
    pub(crate) fn has_another_puppet(&self) -> bool {
        !self.waiting_puppets.borrow().is_empty()
            || poll(&mut [PollFd::new(self.puppet_listener.as_fd(), PollFlags::POLLIN)], 0u8) == Ok(1)
    }

    fn accept_puppet(&self) -> Puppet {
        let patience = PollTimeout::try_from(PATIENCE).expect("it is short");
        loop {
            if poll(&mut [PollFd::new(self.puppet_listener.as_fd(), PollFlags::POLLIN)], patience) != Ok(1) {
                panic!("waited {PATIENCE:?} for a worker to start\n--- log of the bus\n{}", self.log.text());
            }
            let (socket, _) = self.puppet_listener.accept().expect("a puppet connects");
            // A reload may replace a worker that is still starting.
            if let Some(puppet) = Puppet::new(Connection::socket("puppet", socket, &self.log)) {
                return puppet;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("the bus runs");
    }

    /// Waits until it exits.
    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.exited.or_else(|| self.child.try_wait().expect("it is our child")) {
                self.exited = Some(status);
                return status;
            }
            assert!(Instant::now() < deadline, "the bus does not exit\n{}", self.log.text());
            looks_again();
        }
    }

    pub(crate) fn log_has(&self, text: &str) {
        self.log.has(text);
    }

    /// Replaces the configuration file.
    pub(crate) fn rewrite(&self, config: &Value) {
        self.rewrite_text(&fill_in(config, self.folder()));
    }

    pub(crate) fn rewrite_text(&self, text: &str) {
        fs::write(self.config_path(), text).expect("the folder is ours");
    }

    /// Waits until this holds.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}\n{}", self.log.text());
            looks_again();
        }
    }

    /// Waits until it uses hardly any processor time. A bus that spins never gets there.
    pub(crate) fn becomes_idle(&self) {
        self.until("the bus is idle", || {
            let before = cpu_ticks(self.pid());
            time_passes(Duration::from_millis(200));
            // Twenty ticks have passed.
            cpu_ticks(self.pid()) - before < 4
        });
    }

    /// The bus and all processes that it started, as far as they live.
    pub(crate) fn survivors(&self) -> Vec<u32> {
        let mut found = marked(self.folder());
        // Only root may read the environment of the bus, so its mark may not be found.
        if self.exited.is_none() && !is_gone(self.pid()) && !found.contains(&self.pid()) {
            found.push(self.pid());
        }
        found
    }

    /// Waits until no process of it is left, and fails if that takes too long.
    pub(crate) fn leaves_nothing(&self) {
        expect_none(|| self.survivors(), &self.log);
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        if self.exited.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if !thread::panicking() {
            self.leaves_nothing();
        }
    }
}

impl Plan {
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Plan {
        self.envs.push((name, value.to_owned()));
        self
    }

    /// Starts the bus from a shell that first runs this: limits, ignored signals and open files are inherited.
    pub(crate) fn after(mut self, prelude: &'static str) -> Plan {
        self.prelude = Some(prelude);
        self
    }

    /// Starts the bus in this network namespace. Clients reach it by a Unix socket.
    pub(crate) fn inside(mut self, namespace: &str) -> Plan {
        self.inside = Some(namespace.to_owned());
        self
    }

    /// Makes its stdin and stdout a client.
    pub(crate) fn stdio(mut self) -> Plan {
        self.stdio = true;
        self
    }

    /// Writes its configuration here, where another bus can find it after this one.
    pub(crate) fn at(mut self, file: &Path) -> Plan {
        self.file = Some(file.to_owned());
        self.writes_file = true;
        self
    }

    /// Clients must send this token.
    pub(crate) fn token(mut self, token: &'static str) -> Plan {
        self.config["auth"] = json!({ "token_file": "@dir/token" });
        self.token = Some(token);
        self
    }

    /// Does not read its stderr.
    pub(crate) fn ignores_stderr(mut self) -> Plan {
        self.ignores_stderr = true;
        self
    }

    pub(crate) fn start(self) -> Bus {
        let dir = TempDir::with_prefix("bus").expect("a temporary folder");
        let puppet_listener =
            UnixListener::bind(dir.path().join("puppets")).expect("a socket in a folder of ours");
        let file = match &self.file {
            Some(file) if self.writes_file => file.clone(),
            _ => dir.path().join("bus.json"),
        };
        fs::write(file, fill_in(&self.config, dir.path())).expect("the folder is ours");
        if let Some(token) = self.token {
            write_token(&dir.path().join("token"), token);
        }
        let mut child = self.command(dir.path()).spawn().expect("the bus starts");
        let log = if self.ignores_stderr {
            // The pipe stays in `child`, so that it is not closed.
            Log::default()
        } else {
            Log::of(child.stderr.take().expect("piped"))
        };
        let mut stdout = child.stdout.take().expect("piped");
        let mut bus = Bus {
            child,
            exited: None,
            log,
            addresses: Vec::new(),
            dir,
            puppet_listener,
            waiting_puppets: RefCell::default(),
            stdio: None,
            announced: RefCell::default(),
        };
        if self.stdio {
            let stdin = bus.child.stdin.take().expect("piped");
            bus.stdio = Some(Client::new(Connection::pipes("stdio", stdout, stdin, &bus.log)));
            return bus;
        }
        let mut lines = LineReader::default();
        for _ in 0..self.config["listen"].as_array().map_or(1, Vec::len) {
            let line = lines.read_line(&mut stdout, Some(Instant::now() + PATIENCE));
            let Ok(Some(line)) = line else { panic!("the bus did not start: {}", bus.log.text()) };
            let printed: Value = serde_json::from_slice(line).expect("one JSON line per listener");
            bus.addresses.push(printed["listening"].as_str().expect("an address").to_owned());
        }
        bus.announced = RefCell::new(Some((lines, stdout)));
        bus
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = match (self.prelude, &self.inside) {
            (Some(prelude), _) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!(r#"{prelude}; exec "$0" "$@""#), BUS]);
                shell
            }
            (None, Some(namespace)) => {
                // It becomes the bus, so that its pid is that of the bus.
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", namespace, BUS]);
                ip
            }
            (None, None) => Command::new(BUS),
        };
        let written = dir.join("bus.json");
        command.arg("serve").arg("--config").arg(self.file.as_ref().unwrap_or(&written));
        if self.file.is_some() && !self.writes_file {
            // A file that was there before has a fixed port.
            command.args(["--web", "http://127.0.0.1:0"]);
        }
        match (self.stdio, self.config.get("listen")) {
            (true, _) => drop(command.arg("--stdio")),
            (false, None) => drop(command.args(["--tcp", "127.0.0.1:0"])),
            (false, Some(_)) => {}
        }
        command.current_dir(dir).env("RUST_LOG", "debug").env(MARK, dir);
        command.env("XDG_STATE_HOME", dir).env("XDG_CONFIG_HOME", dir).env("XDG_RUNTIME_DIR", dir);
        command.envs(self.envs.iter().cloned());
        command.stdin(if self.stdio { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Runs the binary until it exits.
pub(crate) fn run(folder: &Path, args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(BUS);
    command.args(args).current_dir(folder).env_remove("STDIO_BUS_CONFIG").env("XDG_CONFIG_HOME", NO_FOLDER);
    command.env("XDG_STATE_HOME", folder.join("state")).env("XDG_DATA_HOME", folder.join("data"));
    command.env("XDG_RUNTIME_DIR", folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // A program that does not read its stdin may have exited already.
    let _ = child.stdin.take().expect("piped").write_all(stdin.as_bytes());
    let pid = child.id();
    let deadline = Instant::now() + PATIENCE;
    let waiting = thread::spawn(move || child.wait_with_output().expect("it is our child"));
    while !waiting.is_finished() {
        if Instant::now() >= deadline {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        looks_again();
    }
    waiting.join().expect("it was waited for")
}

/// Writes a token file that only its owner can read.
pub(crate) fn write_token(path: &Path, token: &str) {
    fs::write(path, token).expect("the folder is ours");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("the file is ours");
}

/// The text of a configuration: `@sock` becomes the socket of the puppets, `@dir` the folder of the test.
fn fill_in(config: &Value, dir: &Path) -> String {
    let mut config = config.clone();
    // A test that reads no transcripts has none written.
    if let Some(config) = config.as_object_mut() {
        config.entry("history").or_insert(false.into());
    }
    let text = serde_json::to_string_pretty(&config).expect("JSON");
    let sock = dir.join("puppets");
    text.replace("@sock", sock.to_str().expect("UTF-8")).replace("@dir", dir.to_str().expect("UTF-8"))
}
