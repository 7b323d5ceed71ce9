//! A bus under test: started with a configuration in a folder of its own, and killed when it is dropped.
//!
//! Every process that it starts carries the folder's name in its environment, so that what it leaves behind is found,
//! whatever its parent is.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rpc::{LineReader, Stream};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::address::{self, Address};
use crate::client::Client;
use crate::procfs;

/// How long anything that the bus should do may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const MARK: &str = "BUS_BENCH_MARK";
/// Between two looks at something that is not announced.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) struct Bus {
    child: Child,
    addresses: Vec<Address>,
    folder: TempDir,
}

/// The binary of the bus: beside ours, else in PATH.
pub(crate) fn beside_us() -> PathBuf {
    let name = PathBuf::from("stdio-bus");
    let beside = env::current_exe().map(|exe| exe.with_file_name(&name)).ok();
    beside.filter(|path| path.is_file()).unwrap_or(name)
}

impl Bus {
    /// `@dir` in the configuration becomes the folder of this bus.
    pub(crate) fn start(stdio_bus: &Path, config: &Value) -> io::Result<Bus> {
        Bus::start_with_env(stdio_bus, config, &[])
    }

    /// A bus whose allocator gives back to the system what is free, so that its memory is what it still uses. That
    /// costs time: the allocator of glibc would keep tens of megabytes for later.
    pub(crate) fn start_lean(stdio_bus: &Path, config: &Value) -> io::Result<Bus> {
        Bus::start_with_env(stdio_bus, config, &[("MALLOC_TRIM_THRESHOLD_", "131072")])
    }

    fn start_with_env(stdio_bus: &Path, config: &Value, env: &[(&str, &str)]) -> io::Result<Bus> {
        let folder = TempDir::with_prefix("bus-bench-")?;
        let (file, log) = (folder.path().join("bus.json"), folder.path().join("log"));
        fs::write(&file, fill_in(config, folder.path()))?;
        let mut command = Command::new(stdio_bus);
        command.args(["serve", "--config"]).arg(&file).env("RUST_LOG", "info").env(MARK, folder.path());
        command
            .envs(env.iter().copied())
            .env("XDG_STATE_HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let child = command.stderr(File::create(log)?).spawn()?;
        let mut bus = Bus { child, addresses: Vec::new(), folder };
        let mut stdout = bus.child.stdout.take().expect("it is piped");
        let mut lines = LineReader::default();
        for _ in 0..config["listen"].as_array().map_or(1, Vec::len) {
            let line = lines.read_line(&mut stdout, Some(Instant::now() + PATIENCE))?.unwrap_or_default();
            let listening = serde_json::from_slice::<Value>(line).unwrap_or_default();
            let Some(address) = listening["listening"].as_str().and_then(|url| address::parse(url).ok())
            else {
                let program = stdio_bus.display();
                let message = format!("{program} does not say where it listens\n{}", bus.log());
                return Err(io::Error::other(message));
            };
            bus.addresses.push(address);
        }
        Ok(bus)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The first address that it listens at.
    pub(crate) fn address(&self) -> &Address {
        &self.addresses[0]
    }

    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// A connection without a buffer: there may be ten thousand of them.
    pub(crate) fn connect(&self) -> io::Result<Stream> {
        address::connect(self.address())
    }

    pub(crate) fn client(&self) -> io::Result<Client> {
        Client::connect(self.address())
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(Pid::from_raw(self.pid() as i32), signal)?)
    }

    /// Replaces the configuration file.
    pub(crate) fn rewrite(&self, config: &Value) -> io::Result<()> {
        self.rewrite_text(&fill_in(config, self.folder.path()))
    }

    pub(crate) fn rewrite_text(&self, text: &str) -> io::Result<()> {
        fs::write(self.folder.path().join("bus.json"), text)
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn status(&self) -> io::Result<Value> {
        self.client()?.status()
    }

    /// Waits until this holds. False: it took too long.
    pub(crate) fn until(&self, patience: Duration, mut is_so: impl FnMut(&Bus) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            if is_so(self) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until so many workers of all pools are up.
    pub(crate) fn until_up(&self, count: usize, patience: Duration) -> io::Result<()> {
        let mut watcher = self.client()?;
        if self.until(patience, |_| watcher.status().is_ok_and(|status| up(&status).len() == count)) {
            return Ok(());
        }
        Err(io::Error::other(format!("not all workers are up within {patience:?}\n{}", self.log())))
    }

    /// Waits until so many clients are connected, the watcher among them. False: it took too long.
    pub(crate) fn until_clients(&self, watcher: &mut Client, count: usize) -> bool {
        self.until(PATIENCE, |_| watcher.status().is_ok_and(|status| status["clients"] == count))
    }

    /// Waits for the process to exit.
    pub(crate) fn exit_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                _ if Instant::now() >= deadline => return None,
                _ => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// The bus and all processes that it started, as far as they live.
    pub(crate) fn survivors(&self) -> Vec<u32> {
        procfs::marked(&format!("{MARK}={}", self.folder.path().display()))
    }

    /// Kills the survivors and gives their command lines.
    pub(crate) fn kill_survivors(&self) -> Vec<String> {
        let left = self.survivors();
        let names = left.iter().map(|pid| procfs::command_line(*pid)).collect();
        for pid in left {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        names
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.until(Duration::from_secs(2), |bus| bus.survivors().is_empty()) {
            self.kill_survivors();
        }
    }
}

/// A configuration with one TCP listener and these pools.
pub(crate) fn config(pools: &[Value]) -> Value {
    json!({ "listen": ["tcp://127.0.0.1:0"], "pools": pools })
}

/// A pool of echo agents, each with these further arguments.
pub(crate) fn echo(id: &str, instances: usize, args: &[&str]) -> Value {
    let args = ["agent", "echo"].iter().chain(args).collect::<Vec<_>>();
    json!({ "id": id, "command": "stdio-bus", "args": args, "instances": instances,
        "max_instances": instances, "max_sessions": 100_000 })
}

/// Number and pid of every worker that is up, in the order of the pools.
pub(crate) fn up(status: &Value) -> Vec<(u64, i32)> {
    let pools = status["pools"].as_array().into_iter().flatten();
    let workers = pools.flat_map(|pool| pool["workers"].as_array().into_iter().flatten());
    let up = workers.filter(|worker| worker["state"] == "up");
    up.filter_map(|worker| Some((worker["worker"].as_u64()?, worker["pid"].as_i64()?.try_into().ok()?)))
        .collect()
}

fn fill_in(config: &Value, folder: &Path) -> String {
    config.to_string().replace("@dir", &folder.to_string_lossy())
}
