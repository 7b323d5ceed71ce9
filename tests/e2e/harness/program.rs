//! `stdio-bus run` or `top`, or a shell: started with pipes, or at a terminal that the test types at and reads.
//!
//! All processes that it starts carry a mark in their environment, and must be gone when the test ends.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::libc::O_NOCTTY;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::bus::{BUS, Bus, NO_FOLDER};
use super::connection::Connection;
use super::log::Log;
use super::procs::{MARK, command_line, expect_none, marked};
use super::puppet::Puppet;
use super::waiting::{LOOK_AGAIN, PATIENCE, looks_again};

const ROWS: u16 = 20;
const COLUMNS: u16 = 60;

pub(crate) struct Program {
    child: Child,
    io: Io,
    /// Its stderr, unless that is the terminal.
    pub(crate) log: Log,
    dir: TempDir,
    puppet_listener: UnixListener,
}

enum Io {
    Pipes(Connection),
    Terminal {
        master: File,
        tty: PathBuf,
        terminal: Arc<Terminal>,
    },
    /// The terminal was closed.
    Closed,
}

/// The terminal that a program writes to. A thread reads and answers all the time, as a real one does.
struct Terminal {
    parser: Mutex<vt100::Parser>,
    /// The last process at the terminal has exited.
    is_over: AtomicBool,
    /// The window is closed.
    closes: AtomicBool,
    changed: Condvar,
}

/// Programs ask so where the cursor is.
const WHERE_IS_THE_CURSOR: &[u8] = b"\x1b[6n";

impl Terminal {
    fn start(mut master: File) -> Arc<Terminal> {
        let (rows, columns) = (NonZero::new(ROWS).expect("some"), NonZero::new(COLUMNS).expect("some"));
        let terminal = Arc::new(Terminal {
            parser: Mutex::new(vt100::Parser::new(rows, columns, 0)),
            is_over: AtomicBool::new(false),
            closes: AtomicBool::new(false),
            changed: Condvar::new(),
        });
        let this = terminal.clone();
        thread::spawn(move || {
            let mut unread = Vec::new();
            let mut chunk = [0; 4096];
            let look_again = PollTimeout::try_from(LOOK_AGAIN).expect("it is short");
            while !this.closes.load(Ordering::SeqCst) {
                if poll(&mut [PollFd::new(master.as_fd(), PollFlags::POLLIN)], look_again) == Ok(0) {
                    continue;
                }
                match master.read(&mut chunk) {
                    Ok(count @ 1..) => unread.extend(&chunk[..count]),
                    Err(fault) if fault.kind() == ErrorKind::Interrupted => continue,
                    _ => break,
                }
                this.reads(&mut unread, &mut master);
            }
            drop(master);
            this.is_over.store(true, Ordering::SeqCst);
            let _parser = this.parser.lock();
            this.changed.notify_all();
        });
        terminal
    }

    /// Shows what was written, and answers questions at the place where they stand.
    fn reads(&self, unread: &mut Vec<u8>, master: &mut File) {
        let mut parser = self.parser.lock().expect("no panic");
        while let Some(at) = unread.windows(4).position(|bytes| bytes == WHERE_IS_THE_CURSOR) {
            parser.process(&unread[..at]);
            let (row, column) = parser.screen().cursor_position();
            let _ = master.write_all(format!("\x1b[{};{}R", row + 1, column + 1).as_bytes());
            unread.drain(..at + WHERE_IS_THE_CURSOR.len());
        }
        // The beginning of a question may be all that has come.
        let kept = (1..4).rev().find(|kept| unread.ends_with(&WHERE_IS_THE_CURSOR[..*kept])).unwrap_or(0);
        let whole = unread.len() - kept;
        parser.process(&unread[..whole]);
        unread.drain(..whole);
        self.changed.notify_all();
    }
}

/// How a program is started.
pub(crate) struct ProgramPlan {
    program: &'static str,
    /// The first argument.
    command: Option<&'static str>,
    args: Vec<String>,
    envs: Vec<(&'static str, String)>,
    dir: TempDir,
    puppet_listener: UnixListener,
}

impl Program {
    /// `@puppet` among the arguments becomes the command of a puppet, `@dir` the folder of the test.
    pub(crate) fn plan(args: &[&str]) -> ProgramPlan {
        let dir = TempDir::with_prefix("run").expect("a temporary folder");
        let puppet_listener =
            UnixListener::bind(dir.path().join("puppets")).expect("a socket in a folder of ours");
        let folder = dir.path().to_str().expect("UTF-8");
        let mut filled = Vec::new();
        for arg in args {
            match *arg {
                "@puppet" => {
                    filled.extend([env!("CARGO_BIN_EXE_puppet").to_owned(), format!("{folder}/puppets")]);
                }
                arg => filled.push(arg.replace("@dir", folder)),
            }
        }
        let command = Some("run");
        ProgramPlan { program: BUS, command, args: filled, envs: Vec::new(), dir, puppet_listener }
    }

    /// `top` of this bus, ten times a second.
    pub(crate) fn plan_top(bus: &Bus) -> ProgramPlan {
        let config = bus.config_path();
        let config = config.to_str().expect("UTF-8");
        Program::plan(&["--config", config, "--interval", "0.1"]).command_is("top")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// The agent, if it is a puppet.
    pub(crate) fn puppet(&self) -> Puppet {
        let patience = PollTimeout::try_from(PATIENCE).expect("it is short");
        if poll(&mut [PollFd::new(self.puppet_listener.as_fd(), PollFlags::POLLIN)], patience) != Ok(1) {
            panic!("waited {PATIENCE:?} for the agent to start\n{}", self.log.text());
        }
        let (socket, _) = self.puppet_listener.accept().expect("a puppet connects");
        Puppet::new(Connection::socket("puppet", socket, &self.log))
            .expect("the agent reports how it started")
    }

    /// The next envelope on stdout.
    pub(crate) fn envelope(&mut self) -> Value {
        let Io::Pipes(connection) = &mut self.io else { panic!("only with pipes") };
        serde_json::from_slice(&connection.line()).expect("an envelope is JSON")
    }

    /// The next line on stdout.
    pub(crate) fn line(&mut self) -> String {
        let Io::Pipes(connection) = &mut self.io else { panic!("only with pipes") };
        String::from_utf8_lossy(&connection.line()).trim_end().to_owned()
    }

    pub(crate) fn types(&mut self, text: &str) {
        match &mut self.io {
            Io::Pipes(connection) => connection.send(text.as_bytes()),
            Io::Terminal { master, .. } => {
                master.write_all(text.as_bytes()).expect("the terminal is there");
            }
            Io::Closed => panic!("the terminal is closed"),
        }
    }

    /// Waits until the terminal shows this.
    pub(crate) fn shows(&mut self, text: &str) {
        self.shows_so(&format!("{text:?}"), |screen| screen.contains(text));
    }

    pub(crate) fn shows_so(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        self.looks(what, |screen| is_so(&screen.contents()));
    }

    /// Waits until the screen is like this, with its attributes.
    pub(crate) fn looks(&mut self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let terminal = self.terminal();
        let mut parser = terminal.parser.lock().expect("no panic");
        while !is_so(parser.screen()) {
            let screen = parser.screen().contents();
            let is_over = terminal.is_over.load(Ordering::SeqCst);
            assert!(!is_over, "waited for {what} on the screen, but it is over:\n{screen}");
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {what} on the screen, not\n{screen}");
            parser = terminal.changed.wait_timeout(parser, left).expect("no panic").0;
        }
    }

    fn terminal(&self) -> &Terminal {
        let Io::Terminal { terminal, .. } = &self.io else { panic!("only at a terminal") };
        terminal
    }

    /// Forgets what the terminal has shown.
    pub(crate) fn clears(&mut self) {
        self.terminal().parser.lock().expect("no panic").process(b"\x1b[2J\x1b[H");
    }

    /// Its terminal as a program sees it, which keeps its state as long as this is open.
    pub(crate) fn tty(&self) -> File {
        let Io::Terminal { tty, .. } = &self.io else { panic!("only at a terminal") };
        File::options()
            .read(true)
            .write(true)
            .custom_flags(O_NOCTTY)
            .open(tty)
            .expect("the terminal is there")
    }

    /// Changes the size of the terminal.
    pub(crate) fn resizes(&mut self, rows: u16, columns: u16) {
        let Io::Terminal { tty, .. } = &self.io else { panic!("only at a terminal") };
        set_size(tty, rows, columns);
        let sides = (NonZero::new(rows).expect("some"), NonZero::new(columns).expect("some"));
        self.terminal().parser.lock().expect("no panic").screen_mut().set_size(sides.0, sides.1);
    }

    /// Whether the cell at this place of the screen is dimmed.
    pub(crate) fn is_dim(&self, row: u16, column: u16) -> bool {
        let parser = self.terminal().parser.lock().expect("no panic");
        parser.screen().cell(row, column).is_some_and(vt100::Cell::dim)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("it runs");
    }

    /// Waits until it has written this to stderr.
    pub(crate) fn log_has(&self, text: &str) {
        self.log.has(text);
    }

    /// Closes the window that its terminal is in.
    pub(crate) fn closes_terminal(&mut self) {
        self.terminal().closes.store(true, Ordering::SeqCst);
        self.io = Io::Closed;
    }

    /// Closes its stdin.
    pub(crate) fn hangs_up(&mut self) {
        let Io::Pipes(connection) = &mut self.io else { panic!("only with pipes") };
        connection.half_closes();
    }

    /// Waits until it exits, after which no process that it started may be left.
    pub(crate) fn ends(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                let left = marked(self.dir.path());
                let lines: Vec<_> = left.iter().map(|pid| command_line(*pid)).collect();
                assert!(left.is_empty(), "left behind: {lines:?}");
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "it does not end\n{}", self.log.text());
            looks_again();
        }
    }

    /// Waits until no process that it started is left.
    pub(crate) fn leaves_nothing(&self) {
        expect_none(|| marked(self.dir.path()), &self.log);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !thread::panicking() {
            self.leaves_nothing();
        }
    }
}

impl ProgramPlan {
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> ProgramPlan {
        self.envs.push((name, value.to_owned()));
        self
    }

    /// Another command than `run`.
    pub(crate) fn command_is(mut self, command: &'static str) -> ProgramPlan {
        self.command = Some(command);
        self
    }

    /// Another program than the bus.
    pub(crate) fn program_is(mut self, program: &'static str) -> ProgramPlan {
        (self.program, self.command) = (program, None);
        self
    }

    /// The folder that it is started in.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn with_pipes(self) -> Program {
        let mut command = self.command(self.program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let log = Log::of(child.stderr.take().expect("piped"));
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let io = Io::Pipes(Connection::pipes("run", stdout, stdin, &log));
        Program { child, io, log, dir: self.dir, puppet_listener: self.puppet_listener }
    }

    /// Starts it in a session of its own, at a terminal of its own.
    pub(crate) fn at_terminal(self) -> Program {
        let (master, tty) = pseudo_terminal();
        set_size(&tty, ROWS, COLUMNS);
        let slave =
            || File::options().read(true).write(true).custom_flags(O_NOCTTY).open(&tty).expect("a terminal");
        let mut command = self.command("setsid");
        command.stdin(slave()).stdout(slave()).stderr(slave()).env("TERM", "xterm");
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
            command.env_remove(name);
        }
        command.envs(self.envs.iter().cloned());
        let child = command.spawn().expect("setsid of util-linux is there");
        let terminal = Terminal::start(master.try_clone().expect("an fd more"));
        let io = Io::Terminal { master, tty, terminal };
        Program { child, io, log: Log::default(), dir: self.dir, puppet_listener: self.puppet_listener }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if program != self.program {
            command.args(["--ctty", self.program]);
        }
        command.args(self.command).args(&self.args).current_dir(self.dir.path()).env(MARK, self.dir.path());
        command
            .env_remove("STDIO_BUS_CONFIG")
            .env("XDG_CONFIG_HOME", NO_FOLDER)
            .env("XDG_STATE_HOME", self.dir.path().join("state"))
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .envs(self.envs.iter().cloned());
        command
    }
}

/// A terminal as its window sees it, and its name. No process inherits the window's end, so that the terminal is gone
/// once the test has closed it.
fn pseudo_terminal() -> (File, PathBuf) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags).expect("a pseudo-terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
    let tty = ptsname_r(&master).expect("a terminal has a name");
    let master = master.as_fd().try_clone_to_owned().expect("an fd more");
    (File::from(master), PathBuf::from(tty))
}

fn set_size(tty: &Path, rows: u16, columns: u16) {
    let (rows, columns) = (rows.to_string(), columns.to_string());
    let set = Command::new("stty").arg("-F").arg(tty).args(["rows", &rows, "cols", &columns]).status();
    assert!(set.expect("stty runs").success());
}
