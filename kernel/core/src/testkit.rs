//! Plays the shell of a bus, for the tests, the fuzzer and the benchmark. It is behind the feature `fuzzing`.

use memchr::memmem;

use crate::config::{Config, PoolConfig, Program};
use crate::id::{Link, WorkerId};
use crate::{Action, Bus, Event, Moment, Signal, SpawnFault, Usage, slow_start, upgrade};

/// A bus, and what its actions have done to the world outside.
pub struct TestShell {
    /// The bus.
    pub bus: Bus,
    /// The time.
    pub now: Moment,
    /// True: processes can be started. False: their program does not exist.
    pub can_spawn: bool,
    /// How long each process has waited for a processor.
    pub wait: Moment,
    /// All processes, in the order in which they were started. The pid of the first is 1.
    pub processes: Vec<Process>,
    /// All signals, in the order in which they were sent.
    pub signals: Vec<(WorkerId, Signal)>,
    /// The links that the bus has closed.
    pub closed: Vec<Link>,
    /// The bus has asked to exit.
    pub exited: bool,
}

/// One life of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// The worker.
    pub worker: WorkerId,
    /// The pipes of this process.
    pub link: Link,
    /// The bus has not closed its stdin.
    pub stdin_open: bool,
    /// The bus has sent it a signal.
    pub signalled: bool,
}

impl TestShell {
    /// A bus at the time zero, none of whose actions are carried out yet.
    pub fn new(config: &Config) -> TestShell {
        TestShell {
            bus: Bus::new(config, [7; 32], Moment::ZERO),
            now: Moment::ZERO,
            can_spawn: true,
            wait: Moment::ZERO,
            processes: Vec::new(),
            signals: Vec::new(),
            closed: Vec::new(),
            exited: false,
        }
    }

    /// Carries out the actions of the bus. `flush` decides what is written to a link.
    pub fn act(&mut self, mut flush: impl FnMut(&mut Bus, Link)) {
        while let Some(action) = self.bus.next_action() {
            match action {
                Action::Flush(link) => flush(&mut self.bus, link),
                Action::Resume(_) => {}
                Action::Close(link) => self.closed.push(link),
                Action::CloseStdin(link) => {
                    for process in self.processes.iter_mut().filter(|process| process.link == link) {
                        process.stdin_open = false;
                    }
                }
                Action::Signal(worker, signal) => {
                    self.signals.push((worker, signal));
                    if let Some(process) = self.processes.iter_mut().rfind(|process| process.worker == worker)
                    {
                        process.signalled = true;
                    }
                }
                Action::Spawn(worker, _) if !self.can_spawn => {
                    let fault = SpawnFault { errno: 2, cwd: false };
                    self.bus.handle(Event::SpawnFailed { worker, fault }, self.now);
                }
                Action::Spawn(worker, link) => {
                    self.processes.push(Process { worker, link, stdin_open: true, signalled: false });
                    let pid = self.processes.len() as u32;
                    self.bus.handle(Event::Spawned { worker, pid }, self.now);
                }
                Action::Measure => {
                    let usage = Usage { rss_bytes: 1 << 20, cpu_percent: 12.5 };
                    let processes = self.bus.process_ids();
                    self.bus.measured(processes.into_iter().map(|pid| (pid, usage)), self.now);
                }
                Action::LookAtWait(worker) => slow_start::waited(&mut self.bus, worker, self.wait, self.now),
                Action::Reload => self.bus.reloaded(Ok(&[]), self.now),
                Action::Upgrade => upgrade::refused(&mut self.bus, "not here", self.now),
                Action::Stop => self.bus.handle(Event::Stop, self.now),
                Action::Exit => self.exited = true,
            }
        }
    }
}

/// A bus with one client, one worker and one session. It sends bytes without allocating, so that the core can be
/// measured.
pub struct OneSession {
    shell: TestShell,
    /// The client.
    pub client: Link,
    /// The worker.
    pub worker: Link,
    /// The bytes that were last written to the client.
    pub to_client: Vec<u8>,
    /// The bytes that were last written to the worker.
    pub to_worker: Vec<u8>,
    /// The session's id for the client. For the worker it is `s`.
    pub session: String,
}

impl OneSession {
    /// Opens the session.
    pub fn open() -> OneSession {
        let config = Config::with_pools([PoolConfig::new("agents", Program::ThisBinary)]);
        let mut shell = TestShell::new(&config);
        shell.act(|_, _| {});
        let client = shell.bus.connect(None, shell.now).expect("there is room");
        let mut world = OneSession {
            client,
            worker: shell.processes[0].link,
            shell,
            to_client: Vec::with_capacity(1 << 16),
            to_worker: Vec::with_capacity(1 << 16),
            session: String::new(),
        };
        world.send(world.client, b"{\"id\":1,\"method\":\"session/new\",\"params\":{}}\n");
        let opened = format!("{{\"id\":{},\"result\":{{\"sessionId\":\"s\"}}}}\n", world.request_id());
        world.send(world.worker, opened.as_bytes());
        let answer: serde_json::Value = serde_json::from_slice(&world.to_client).expect("JSON");
        world.session = answer["result"]["sessionId"].as_str().expect("a session").to_owned();
        world
    }

    /// A peer sends these bytes, and the other one is sent what follows from them.
    pub fn send(&mut self, from: Link, bytes: &[u8]) {
        self.shell.bus.received(from, bytes, Moment::ZERO);
        self.shell.act(|bus, link| {
            let written = if link == self.client { &mut self.to_client } else { &mut self.to_worker };
            written.clear();
            written.extend_from_slice(&bus.to_send(link));
            bus.sent(link, written.len(), Moment::ZERO);
        });
    }

    /// The id of the first request that was last written to the worker.
    pub fn request_id(&self) -> u64 {
        const KEY: &[u8] = br#""id":"#;
        let start = memmem::find(&self.to_worker, KEY).expect("a request") + KEY.len();
        let digits = self.to_worker[start..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |id, digit| id * 10 + u64::from(digit - b'0'))
    }
}
