//! The processes beside the bus, the web door, the link to the cluster, the writer of transcripts and the notifier:
//! started, watched, started again and ended.
//!
//! HTTP, WebSockets, NATS and TLS are never spoken in the process of the bus. A companion is told what it needs in one
//! line of JSON on its stdin, and the end of its stdin ends it. It says on its stdout, in lines of JSON, where it
//! listens (`{"listening": URL}`), why it cannot (`{"failed": TEXT}`) or does not now (`{"waiting": TEXT}`), and what
//! it counts (`{"counted": {...}}`). Its log goes to the stderr of the bus.

mod replace;
pub(crate) mod state;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use log::{info, warn};
use mio::Interest;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, read};
use serde::Deserialize;
use serde_json::{Value, json};

use kernel_core::config::Config;
use kernel_core::id::Key;
use kernel_core::{Bus, Companion as Which, CompanionStatus, Exit, Moment};

use crate::io::Io;
use crate::peer::{Stream, set_nonblocking, token, unwatch, watch};
use crate::process::child::ChildProcess;
use crate::process::command::companion_environment;
use crate::process::env_mark::own_marks;
use crate::process::pre_exec::Role;
use crate::process::spawn::Processes;
use crate::process::starter::Launch;
use crate::stdio::announce;

/// Neither a listener nor the signals have these keys.
const WEB_DOOR: Key = Key { index: (1 << 30) - 2, generation: 0 };
const LINK: Key = Key { index: (1 << 30) - 3, generation: 0 };
const HISTORY: Key = Key { index: (1 << 30) - 5, generation: 0 };
const NOTIFY: Key = Key { index: (1 << 30) - 7, generation: 0 };

/// The pause before the next start doubles from the first of these to the second.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// The longest pause of one that others wait for, if the one before it was open.
const SHORT_DELAY: Duration = Duration::from_millis(50);
/// One that was up for this long is started again at once.
const WAS_FINE: Duration = Duration::from_secs(5);
/// How long one that is not wanted any more may take before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(3);
/// How long the bus waits for it when it leaves.
const EXIT_WAIT: Duration = Duration::from_secs(2);
/// What `status` and the log say of a companion that goes on with the orders of a bus.json that has changed.
const NEW_ORDERS_WAIT: &str =
    "bus.json has changed, which counts for it as soon as no pipe of another machine is open";
/// A longer line of it is dropped.
const LINE_BYTES_MAX: usize = 64 << 10;

/// All processes beside the bus.
pub(crate) struct Companions {
    all: [Companion; 4],
    /// When to look whether one can be replaced that another program has started.
    look_at: Option<Moment>,
}

impl Companions {
    /// `announces`: stdout is for addresses and not for a client. `secret`: what the writer of transcripts shows to the
    /// bus.
    pub(crate) fn new(args: CompanionArgs, announces: bool, secret: String) -> Companions {
        let mut history = Companion::new(&KEEPER, args.history, false);
        history.secret = Some(secret);
        let [web, link] =
            [Companion::new(&WEB, args.web, announces), Companion::new(&TO_CLUSTER, args.link, false)];
        let notify = Companion::new(&NOTIFIER, args.notify, false);
        Companions { all: [web, link, history, notify], look_at: None }
    }

    /// The configuration is new. One that was told something else ends, and another one is started. A link that others
    /// use goes on with its old orders until they do not.
    pub(crate) fn set_wanted(&mut self, config: &Config, addresses: &[String], io: &mut Io) {
        self.all.iter_mut().for_each(|companion| companion.set_wanted(config, addresses, io));
        self.look_again(io.now);
    }

    /// When `on_timer` has something to do.
    pub(crate) fn next_timer(&self) -> Option<Moment> {
        self.all.iter().filter_map(Companion::next_timer).chain(self.look_at).min()
    }

    pub(crate) fn on_timer(&mut self, processes: &mut Processes, io: &mut Io) {
        self.all.iter_mut().for_each(|companion| companion.on_timer(processes, io));
        self.replace_next(io);
    }

    /// Reads what the one with this key has said. Says whether there is one.
    pub(crate) fn read(&mut self, key: Key, io: &mut Io) -> bool {
        let found = self.all.iter_mut().find(|companion| companion.kind.key == key);
        found.map(|companion| companion.read(io)).is_some()
    }

    /// A child has exited. If it was one of these, it is started again.
    pub(crate) fn on_child_exit(&mut self, processes: &mut Processes, io: &mut Io) {
        self.all.iter_mut().for_each(|companion| companion.on_child_exit(processes, io));
    }

    /// The bus leaves. All their connections to the bus have been closed, and so they close those of their peers.
    pub(crate) fn end(mut self, processes: &mut Processes) {
        self.all
            .iter_mut()
            .for_each(|companion| drop(companion.running.as_mut().and_then(|it| it.stdin.take())));
        self.all.into_iter().for_each(|companion| companion.end(processes));
    }
}

/// With these arguments the binary is each of the companions: it reads one line of JSON from stdin, and ends when that
/// ends. Empty: the program was built without it.
#[derive(Default)]
pub struct CompanionArgs {
    /// The web door.
    pub web: Vec<OsString>,
    /// The link to the cluster.
    pub link: Vec<OsString>,
    /// The writer of transcripts.
    pub history: Vec<OsString>,
    /// The notifier.
    pub notify: Vec<OsString>,
}

/// What a companion is for.
struct Kind {
    /// What the log calls it.
    name: &'static str,
    key: Key,
    /// What it is told of the configuration. `None`: it is not wanted.
    orders: fn(&Config) -> Option<Value>,
    /// It has to tell others that the bus is gone, so nothing kills it when the bus dies: it is asked to end, and ends.
    says_goodbye: bool,
    /// What one is told beside its other arguments if the one before it was open: it is started again soon, because
    /// only it can tell others what has become of that one. It holds back with what makes work for this long.
    next_args: fn(Duration) -> Vec<OsString>,
    /// Under what it is shown in `_bus/status`.
    which: Which,
    /// Whether one that another program has started and that has waited for this long can be replaced now.
    may_be_replaced: fn(&Bus, &Running, Duration) -> bool,
}

static WEB: Kind = Kind {
    name: "the web door",
    key: WEB_DOOR,
    orders: |config| config.web.as_ref().map(|web| json!({ "web": web, "history": config.history })),
    says_goodbye: false,
    next_args: |_| Vec::new(),
    which: Which::Web,
    may_be_replaced: replace::door_may_go,
};

static TO_CLUSTER: Kind = Kind {
    name: "the link to the cluster",
    key: LINK,
    orders: |config| {
        let cluster = config.cluster.as_ref().filter(|cluster| !cluster.offer.is_empty())?;
        Some(json!({ "cluster": cluster, "name": config.name }))
    },
    says_goodbye: true,
    next_args: |back_off| {
        vec!["--next".into(), "--offers-after-ms".into(), back_off.as_millis().to_string().into()]
    },
    which: Which::Link,
    may_be_replaced: replace::link_may_go,
};

static KEEPER: Kind = Kind {
    name: "the history",
    key: HISTORY,
    orders: |config| {
        let history = config.history.as_ref()?;
        config.pools.iter().any(|pool| pool.keep).then(|| json!({ "history": history }))
    },
    says_goodbye: true,
    next_args: |_| Vec::new(),
    which: Which::History,
    may_be_replaced: replace::history_may_go,
};

static NOTIFIER: Kind = Kind {
    name: "the notifier",
    key: NOTIFY,
    orders: |config| {
        let origins = config.web.as_ref().map(|web| &web.origins);
        (!config.notify.is_empty()).then(|| json!({ "notify": config.notify, "origins": origins }))
    },
    says_goodbye: false,
    next_args: |_| Vec::new(),
    which: Which::Notify,
    may_be_replaced: replace::notifier_may_go,
};

struct Companion {
    kind: &'static Kind,
    args: Vec<OsString>,
    /// Whether stdout tells where it listens.
    announces: bool,
    /// The line that it is told. `None`: none is wanted.
    wanted: Option<String>,
    running: Option<Running>,
    start_at: Option<Moment>,
    delay: Duration,
    /// The last one was open when it ended, and the next one is told the same.
    was_open: bool,
    restarts: u32,
    last_exit: Option<String>,
    last_words: Option<String>,
    /// The address that stdout has told.
    announced: Option<String>,
    /// What it shows the bus.
    secret: Option<String>,
    /// Since when it is to be replaced, because another program has started it or its orders have changed.
    replace_since: Option<Moment>,
    /// It was asked to end for that.
    is_replaced: bool,
}

struct Running {
    child: ChildProcess,
    /// What it was told.
    told: String,
    /// Its end tells it to end.
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    /// What it has said of a line that has not ended.
    line: Vec<u8>,
    since: Moment,
    listening: Option<String>,
    /// It runs, but nobody can use it now.
    waits: bool,
    /// What it has counted, as it has told it.
    counted: Value,
    /// When it is killed, if it is to end.
    kill_at: Option<Moment>,
}

impl Running {
    fn group(&self) -> Pid {
        self.child.group()
    }

    /// Asks it to end, if it has not been asked yet.
    fn end(&mut self, now: Moment) {
        if self.stdin.take().is_some() {
            self.kill_at = Some(now + END_PATIENCE);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Listening(String),
    Failed(String),
    /// Nobody can use it now, and why. It goes on by itself.
    Waiting(String),
    /// For the status.
    Counted(Value),
}

impl Companion {
    fn new(kind: &'static Kind, args: Vec<OsString>, announces: bool) -> Companion {
        Companion {
            kind,
            args,
            announces,
            wanted: None,
            running: None,
            start_at: None,
            delay: Duration::ZERO,
            was_open: false,
            restarts: 0,
            last_exit: None,
            last_words: None,
            announced: None,
            secret: None,
            replace_since: None,
            is_replaced: false,
        }
    }

    fn set_wanted(&mut self, config: &Config, addresses: &[String], io: &mut Io) {
        self.wanted = self.orders(config, addresses);
        match &mut self.running {
            Some(running) if Some(&running.told) == self.wanted.as_ref() => {}
            Some(running) if self.wanted.is_some() && replace::is_in_use(self.kind, &io.bus, running) => {
                self.replace_since.get_or_insert(io.now);
                info!("{} is used: {NEW_ORDERS_WAIT}", self.kind.name);
            }
            Some(running) => running.end(io.now),
            None => {
                self.delay = Duration::ZERO;
                self.start_at = self.wanted.is_some().then_some(io.now);
            }
        }
        self.show(io);
    }

    fn orders(&self, config: &Config, addresses: &[String]) -> Option<String> {
        let mut orders = (self.kind.orders)(config)?;
        let name = self.kind.name;
        if self.args.is_empty() {
            warn!("bus.json wants {name}, and this program was built without it");
            return None;
        }
        if addresses.is_empty() && self.secret.is_some() {
            info!(
                "nothing is kept of what is said: the bus listens at no address at which {name} could reach it"
            );
            return None;
        }
        if addresses.is_empty() {
            warn!("{name} is not opened: it reaches the bus at an address, and the bus listens at none");
            return None;
        }
        orders["bus"] = addresses.into();
        if let Some(secret) = &self.secret {
            orders["secret"] = secret.as_str().into();
        }
        orders["token_file"] = json!(config.auth.as_ref().map(|auth| &auth.token_file));
        Some(orders.to_string() + "\n")
    }

    fn next_timer(&self) -> Option<Moment> {
        let kill_at = self.running.as_ref().and_then(|running| running.kill_at);
        [self.start_at, kill_at].into_iter().flatten().min()
    }

    fn on_timer(&mut self, processes: &mut Processes, io: &mut Io) {
        if let Some(running) = &mut self.running
            && running.kill_at.is_some_and(|kill_at| kill_at <= io.now)
        {
            running.kill_at = None;
            let _ = killpg(running.group(), Signal::SIGKILL);
        }
        if self.start_at.is_some_and(|start_at| start_at <= io.now) {
            self.start_at = None;
            self.start(processes, io);
        }
    }

    fn start(&mut self, processes: &mut Processes, io: &mut Io) {
        let Some(told) = self.wanted.clone() else { return };
        match self.spawn(told, processes, io) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                warn!("cannot start {}: {error}", self.kind.name);
                self.last_words = Some(error.to_string());
                self.rest(Duration::ZERO, io.now);
            }
        }
        self.show(io);
    }

    fn spawn(&self, told: String, processes: &mut Processes, io: &Io) -> io::Result<Running> {
        let file = processes.binary().to_owned();
        let mut env: Vec<_> = companion_environment().collect();
        let mark = if self.kind.says_goodbye {
            own_marks()
        } else {
            Some(processes.guard().mark()).map(|(name, value)| (name, value.into()))
        };
        env.extend(mark.map(|(name, value)| (name.into(), value)));
        let mut args = self.args.clone();
        if self.was_open {
            args.extend((self.kind.next_args)(self.delay));
        }
        let launch = Launch { name: file.clone().into(), file, args, env, cwd: None };
        let role = if self.kind.says_goodbye { Role::Companion } else { Role::Worker };
        let mut command = processes.starter().command(&launch, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map(ChildProcess::from)?;
        if !self.kind.says_goodbye {
            processes.guard().watch(child.group());
        }
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped")
        };
        let mut stdin = File::from(stdin);
        // An empty pipe has room for the line. Without it the process ends by itself.
        let connected = set_nonblocking(&stdin)
            .map_err(io::Error::from)
            .and_then(|_| stdin.write_all(told.as_bytes()))
            .and_then(|()| Ok(set_nonblocking(&stdout)?))
            .and_then(|_| {
                watch(io.poll.registry(), &stdout, token(self.kind.key, Stream::Internal), Interest::READABLE)
            });
        if let Err(error) = connected {
            warn!("{} cannot be heard: {error}", self.kind.name);
            child.kill();
        }
        Ok(Running {
            child,
            told,
            stdin: Some(stdin.into()),
            stdout,
            line: Vec::new(),
            since: io.now,
            listening: None,
            waits: false,
            counted: Value::Null,
            kill_at: None,
        })
    }

    fn read(&mut self, io: &mut Io) {
        let mut bytes = [0; 1024];
        while let Some(running) = &mut self.running {
            match read(running.stdout.as_fd(), &mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    running.line.extend_from_slice(&bytes[..count]);
                    self.hear(io);
                }
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
    }

    fn hear(&mut self, io: &mut Io) {
        let Some(running) = &mut self.running else { return };
        while let Some(end) = memchr::memchr(b'\n', &running.line) {
            let rest = running.line.split_off(end + 1);
            let line = mem::replace(&mut running.line, rest);
            match serde_json::from_slice(&line) {
                Ok(Said::Listening(at)) => {
                    info!("{} is open at {at}", self.kind.name);
                    // One that was started again is at the same address, unless that has port 0.
                    if self.announces && self.announced.as_ref() != Some(&at) {
                        announce(std::slice::from_ref(&at));
                        self.announced = Some(at.clone());
                    }
                    if running.listening.is_none() {
                        running.since = io.now;
                    }
                    (running.listening, running.waits) = (Some(at), false);
                    self.last_words = None;
                }
                Ok(Said::Failed(why)) => {
                    warn!("{} cannot open: {why}", self.kind.name);
                    self.last_words = Some(why);
                }
                Ok(Said::Waiting(why)) => {
                    warn!("{} is not open now: {why}", self.kind.name);
                    (running.listening, running.waits) = (None, true);
                    self.last_words = Some(why);
                }
                Ok(Said::Counted(counted)) => running.counted = counted,
                Err(_) => warn!("{} sent a message that is not understood", self.kind.name),
            }
        }
        if running.line.len() > LINE_BYTES_MAX {
            running.line = Vec::new();
        }
        self.show(io);
    }

    fn on_child_exit(&mut self, processes: &mut Processes, io: &mut Io) {
        if !self.running.as_mut().is_some_and(|running| running.child.has_exited()) {
            return;
        }
        self.read(io);
        let Some(mut running) = self.running.take() else { return };
        let _ = killpg(running.group(), Signal::SIGKILL);
        processes.guard().forget(running.group());
        unwatch(io.poll.registry(), &running.stdout);
        let exit = running.child.collect().unwrap_or(Exit::Code(-1));
        self.last_exit = Some(exit.to_string());
        let is_replaced = mem::take(&mut self.is_replaced);
        self.replace_since = None;
        self.was_open =
            running.listening.is_some() && (is_replaced || self.wanted.as_ref() == Some(&running.told));
        if running.stdin.is_none() {
            // It was asked to end, so that another one takes its place, or none.
            self.delay = Duration::ZERO;
            self.start_at = self.wanted.is_some().then_some(io.now);
        } else {
            let up = if running.listening.is_some() {
                io.now.saturating_sub(running.since)
            } else {
                Duration::ZERO
            };
            self.rest(up, io.now);
            let pause = self.start_at.unwrap_or_default().saturating_sub(io.now);
            warn!("{} has ended ({exit}), it is started again in {pause:?}", self.kind.name);
        }
        self.show(io);
    }

    /// Plans the next start after a life that was `up` for so long.
    fn rest(&mut self, up: Duration, now: Moment) {
        self.delay = next_delay(self.delay, up);
        self.restarts += 1;
        let is_awaited = self.was_open && !(self.kind.next_args)(Duration::ZERO).is_empty();
        self.start_at = Some(now + if is_awaited { self.delay.min(SHORT_DELAY) } else { self.delay });
    }

    /// It has been told something else than bus.json says now, and goes on until nobody uses it.
    fn has_old_orders(&self) -> bool {
        self.replace_since.is_some()
            && self.running.as_ref().is_some_and(|it| Some(&it.told) != self.wanted.as_ref())
    }

    fn show(&self, io: &mut Io) {
        let status = self.wanted.as_ref().map(|_| {
            let running = self.running.as_ref();
            let is_up = running.is_some_and(|running| running.listening.is_some());
            CompanionStatus {
                state: match running {
                    None => "resting",
                    Some(running) if running.stdin.is_none() => "ending",
                    Some(_) if is_up => "up",
                    Some(running) if running.waits => "waiting",
                    Some(_) => "starting",
                },
                listening: running.and_then(|running| running.listening.clone()),
                counted: running.map(|running| running.counted.clone()).unwrap_or_default(),
                pid: running.map(|running| running.child.id()),
                since: running.filter(|_| is_up).map(|running| running.since),
                restarts: self.restarts,
                last_exit: self.last_exit.clone(),
                last_words: match self.has_old_orders() {
                    true => Some(NEW_ORDERS_WAIT.to_owned()),
                    false => self.last_words.clone(),
                },
            }
        });
        io.bus.companion_is(self.kind.which, status);
    }

    fn end(mut self, processes: &mut Processes) {
        let Some(mut running) = self.running.take() else { return };
        drop(running.stdin.take());
        // Its group is killed before its exit is collected.
        running.child.wait_until_exited(EXIT_WAIT);
        let _ = killpg(running.group(), Signal::SIGKILL);
        processes.guard().forget(running.group());
        running.child.wait(EXIT_WAIT);
    }
}

/// The pause after a life that was `up` for so long, if the pause before it was `last`.
fn next_delay(last: Duration, up: Duration) -> Duration {
    if up >= WAS_FINE { Duration::ZERO } else { (last * 2).clamp(FIRST_DELAY, LONGEST_DELAY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_and_is_none_after_a_good_life() {
        let mut delay = Duration::ZERO;
        let delays: Vec<_> = (0..11)
            .map(|_| {
                delay = next_delay(delay, Duration::ZERO);
                delay.as_millis()
            })
            .collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(next_delay(delay, Duration::from_secs(4)).as_millis(), 30_000);
        assert_eq!(next_delay(delay, Duration::from_secs(5)), Duration::ZERO);
    }
}
