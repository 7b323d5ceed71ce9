//! Three servers, two edges, three nodes, and every second one of them or of the processes between them is killed,
//! stopped or told to go, while clients prompt without a pause and check every line.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::nats::Nats;
use super::speed::{link_of, linked};
use super::witness::{Loss, Seen, Witness};
use crate::bus::{Bus, PATIENCE, echo, up};
use crate::print::Progress;
use crate::procfs;
use crate::report::{Report, time};

const NODES: usize = 3;
const EDGES: usize = 2;
const CLIENTS_OF_AN_EDGE: usize = 4;
const EVERY: Duration = Duration::from_secs(1);
/// A server that is told to go is gone after this, or is killed.
const LAME_DUCK: Duration = Duration::from_secs(6);
/// From a kill to the error that reports it.
const KILL_REPORTED: Duration = Duration::from_millis(100);
/// Fewer errors have no median to speak of.
const ENOUGH_KILLS: usize = 20;
/// From the stop of a process to the error that reports it.
const STOP_REPORTED: Duration = Duration::from_secs(35);

#[derive(Clone, Copy)]
pub(super) struct Length {
    pub(super) of: Duration,
    /// How long a process is stopped at most.
    pub(super) stop: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Server(usize),
    Node(usize),
    Link(usize),
    Edge(usize),
    /// A worker of this edge, a pipe.
    Worker(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Kill,
    Stop,
    LameDuck,
}

/// What was done, and when.
struct Blow {
    at: Instant,
    target: Target,
    how: How,
    /// The node that is concerned.
    node: Option<String>,
}

/// What is to be undone.
struct Repair {
    at: Instant,
    target: Target,
    how: How,
    pid: u32,
}

struct Machine {
    config: Value,
    bus: Option<Bus>,
}

struct World {
    stdio_bus: PathBuf,
    servers: Vec<Nats>,
    nodes: Vec<Machine>,
    edges: Vec<Machine>,
    folder: TempDir,
    rng: Rng,
    repairs: Vec<Repair>,
    blows: Vec<Blow>,
}

pub(super) fn play(
    stdio_bus: &Path,
    nats_server: &Path,
    length: Length,
    seed: u64,
    report: &mut Report,
) -> io::Result<()> {
    let mut world = World::build(stdio_bus, nats_server, seed)?;
    let witnesses = world.witnesses()?;
    let over = AtomicBool::new(false);
    let (seen, done) = thread::scope(|scope| {
        let over = &over;
        let running: Vec<_> = witnesses
            .into_iter()
            .map(|witness| scope.spawn(move || witness.run(|| over.load(Ordering::Relaxed))))
            .collect();
        let done = world.disturb(length);
        over.store(true, Ordering::Relaxed);
        let mut seen = Seen::default();
        for witness in running {
            seen.add(witness.join().expect("a client does not panic"));
        }
        (seen, done)
    });
    done?;
    report_seen(report, &seen, &world.blows);
    world.ends(report)
}

impl World {
    fn build(stdio_bus: &Path, nats_server: &Path, seed: u64) -> io::Result<World> {
        let servers = Nats::three(nats_server)?;
        let urls: Vec<String> = servers.iter().map(Nats::url).collect();
        let folder = TempDir::with_prefix("bus-bench-")?;
        let limits =
            json!({ "max_restarts": 1_000_000, "max_restart_delay_sec": 0.1, "session_keep_sec": 5 });
        let node = |number: usize| {
            let state = folder.path().join(format!("n{number}"));
            let mut pool = echo("echo", 2, &["--chunks", "3", "--state", &state.to_string_lossy()]);
            pool["max_sessions"] = json!(1000);
            json!({
                "name": format!("n{number}"), "listen": ["tcp://127.0.0.1:0"], "pools": [pool],
                "cluster": { "url": urls, "offer": ["echo"], "insecure": true }, "limits": limits,
            })
        };
        let edge = |number: usize| {
            let socket = format!("unix://{}/e{number}.sock", folder.path().display());
            json!({
                "name": format!("e{number}"), "listen": [socket], "limits": limits,
                "pools": [{ "id": "echo", "from": "cluster", "instances": NODES, "max_instances": 8 }],
                "cluster": { "url": urls },
            })
        };
        let mut nodes = Vec::new();
        for config in (0..NODES).map(node) {
            nodes.push(Machine { bus: Some(linked(stdio_bus, &config)?), config });
        }
        let mut edges = Vec::new();
        for config in (0..EDGES).map(edge) {
            edges.push(Machine { bus: Some(Bus::start(stdio_bus, &config)?), config });
        }
        let (repairs, blows) = (Vec::new(), Vec::new());
        let rng = Rng::with_seed(seed);
        Ok(World { stdio_bus: stdio_bus.to_owned(), servers, nodes, edges, folder, rng, repairs, blows })
    }

    fn witnesses(&self) -> io::Result<Vec<Witness>> {
        let number = 0..EDGES * CLIENTS_OF_AN_EDGE;
        let one = |number: usize| {
            let edge = number % EDGES;
            let socket = self.folder.path().join(format!("e{edge}.sock"));
            Witness::start(&self.stdio_bus, &socket, number, edge)
        };
        number.map(one).collect()
    }

    fn disturb(&mut self, length: Length) -> io::Result<()> {
        let began = Instant::now();
        let mut progress = Progress::on_stderr("chaos in a cluster".to_owned());
        let mut next = began + EVERY;
        while began.elapsed() < length.of {
            let now = Instant::now();
            progress.show(now, || {
                format!("{:.0} of {:.0} s", began.elapsed().as_secs_f64(), length.of.as_secs_f64())
            });
            self.repair(now)?;
            if now >= next {
                next = now + EVERY;
                self.strike(length.stop)?;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // What is stopped goes on, and what is dead comes back.
        while !self.repairs.is_empty() {
            self.repair(Instant::now() + length.stop + LAME_DUCK)?;
        }
        Ok(())
    }

    fn is_disturbed(&self, target: Target) -> bool {
        self.repairs.iter().any(|repair| repair.target == target)
    }

    /// Chooses something that runs, and kills or stops it.
    fn strike(&mut self, stop_most: Duration) -> io::Result<()> {
        let number = self.rng.usize(..3);
        let target = match self.rng.u8(..10) {
            0..3 => Target::Server(number),
            3 => Target::Node(number),
            4..6 => Target::Link(number),
            6 => Target::Edge(number % EDGES),
            _ => Target::Worker(number % EDGES),
        };
        // Of three servers one is always there.
        let down = (0..3).filter(|server| self.is_disturbed(Target::Server(*server))).count();
        if self.is_disturbed(target) || matches!(target, Target::Server(_)) && down > 1 {
            return Ok(());
        }
        let how = match self.rng.u8(..5) {
            0 if matches!(target, Target::Server(_)) => How::LameDuck,
            0..3 => How::Kill,
            _ => How::Stop,
        };
        let Some((pid, node)) = self.found(target)? else { return Ok(()) };
        let now = Instant::now();
        let signal = match how {
            How::Kill => Signal::SIGKILL,
            How::Stop => Signal::SIGSTOP,
            How::LameDuck => Signal::SIGUSR2,
        };
        self.blows.push(Blow { at: now, target, how, node });
        let _ = kill(Pid::from_raw(pid as i32), signal);
        let after = match how {
            How::Kill => Duration::from_millis(self.rng.u64(..1000)),
            How::Stop => stop_most.min(Duration::from_millis(self.rng.u64(1000..40_000))),
            How::LameDuck => LAME_DUCK,
        };
        // A link and a worker that were killed are started again by their buses.
        if how != How::Kill || !matches!(target, Target::Link(_) | Target::Worker(_)) {
            self.repairs.push(Repair { at: now + after, target, how, pid });
        }
        Ok(())
    }

    /// The process that is meant, and the node that it is or leads to. `None`: it cannot be found now.
    fn found(&mut self, target: Target) -> io::Result<Option<(u32, Option<String>)>> {
        let name = |number: usize| Some(format!("n{number}"));
        Ok(match target {
            Target::Server(number) => Some((self.servers[number].pid(), None)),
            Target::Node(number) => self.nodes[number].bus.as_ref().map(|bus| (bus.pid(), name(number))),
            Target::Edge(number) => self.edges[number].bus.as_ref().map(|bus| (bus.pid(), None)),
            // A bus that is stopped does not say which processes it has.
            Target::Link(number) if self.is_disturbed(Target::Node(number)) => None,
            Target::Worker(number) if self.is_disturbed(Target::Edge(number)) => None,
            Target::Link(number) => {
                let link = self.nodes[number].bus.as_ref().map(link_of);
                link.and_then(Result::ok).map(|pid| (pid, name(number)))
            }
            Target::Worker(number) => {
                let Some(bus) = &self.edges[number].bus else { return Ok(None) };
                let status = bus.status()?;
                let workers = up(&status);
                if workers.is_empty() {
                    return Ok(None);
                }
                let (index, pid) = workers[self.rng.usize(..workers.len())];
                let of_pool = status["pools"][0]["workers"].as_array();
                let worker = of_pool.and_then(|all| all.iter().find(|worker| worker["worker"] == index));
                let node = worker.and_then(|worker| worker["node"].as_str()).map(str::to_owned);
                Some((pid as u32, node))
            }
        })
    }

    /// Undoes what is due by `now`.
    fn repair(&mut self, now: Instant) -> io::Result<()> {
        let (due, rest) = self.repairs.drain(..).partition::<Vec<_>, _>(|repair| repair.at <= now);
        self.repairs = rest;
        for Repair { target, how, pid, .. } in due {
            match (target, how) {
                (_, How::Stop) => {
                    let _ = kill(Pid::from_raw(pid as i32), Signal::SIGCONT);
                }
                (Target::Server(number), _) => {
                    let server = &mut self.servers[number];
                    if !server.has_ended() {
                        server.signal(Signal::SIGKILL);
                    }
                    server.dies();
                    server.comes_back()?;
                }
                (Target::Node(number), _) => self.nodes[number].comes_back(&self.stdio_bus)?,
                (Target::Edge(number), _) => self.edges[number].comes_back(&self.stdio_bus)?,
                (Target::Link(_) | Target::Worker(_), _) => {}
            }
        }
        Ok(())
    }

    /// Stops everything in order, and looks at what is left.
    fn ends(mut self, report: &mut Report) -> io::Result<()> {
        let mut left = Vec::new();
        for edge in &mut self.edges {
            left.extend(edge.stops()?);
        }
        for node in &self.nodes {
            let Some(bus) = &node.bus else { continue };
            let mut watcher = bus.client()?;
            // This client, and the link itself, which connects when an edge first asks for the node: one that was
            // started again after the edges had stopped is no client yet.
            let is_quiet = |status: &Value| {
                let zero = |key: &str| status[key] == 0;
                let clients = status["clients"].as_u64();
                clients.is_some_and(|count| count <= 2)
                    && zero("calls")
                    && zero("sessions")
                    && zero("held_bytes")
            };
            // A link that was killed again and again is started again after half a minute at most.
            bus.until(2 * PATIENCE, |_| watcher.status().is_ok_and(|status| is_quiet(&status)));
            let status = watcher.status()?;
            if !is_quiet(&status) {
                let shown = ["clients", "calls", "sessions", "held_bytes"]
                    .map(|key| format!("{key} {}", status[key]));
                left.push(format!("{}: {}", node.config["name"], shown.join(", ")));
            }
            // Its pipes are gone with their files: NATS, the bus, stdin, stdout, stderr and what the runtime needs.
            let fds = procfs::open_fds(link_of(bus)?)?;
            if fds > 20 {
                left.push(format!("{}: the link has {fds} open files", node.config["name"]));
            }
        }
        for node in &mut self.nodes {
            left.extend(node.stops()?);
        }
        report.check(
            "chaos: left behind",
            if left.is_empty() { "nothing".to_owned() } else { left.join("; ") },
            "nothing",
            left.is_empty(),
        );
        Ok(())
    }
}

impl Machine {
    fn comes_back(&mut self, stdio_bus: &Path) -> io::Result<()> {
        self.bus = None;
        self.bus = Some(Bus::start(stdio_bus, &self.config)?);
        Ok(())
    }

    /// Says which processes it leaves behind.
    fn stops(&mut self) -> io::Result<Vec<String>> {
        let Some(mut bus) = self.bus.take() else { return Ok(Vec::new()) };
        bus.signal(Signal::SIGTERM)?;
        let name = self.config["name"].to_string();
        if bus.exit_within(PATIENCE).is_none() {
            return Ok(vec![format!("{name} does not stop")]);
        }
        bus.until(Duration::from_secs(5), |bus| bus.survivors().is_empty());
        Ok(bus.kill_survivors().into_iter().map(|left| format!("{name}: {left}")).collect())
    }
}

fn report_seen(report: &mut Report, seen: &Seen, blows: &[Blow]) {
    for how in [How::Kill, How::Stop, How::LameDuck] {
        let all = blows.iter().filter(|blow| blow.how == how);
        let mut counts = std::collections::BTreeMap::<String, u32>::new();
        all.for_each(|blow| *counts.entry(kind(blow.target).to_owned()).or_default() += 1);
        let shown: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        report.note(&format!("chaos: {how:?}"), shown.join(", "));
    }
    let answered = seen.right + seen.refused();
    let share = 100.0 * answered as f64 / seen.asked.max(1) as f64;
    let exact = answered == seen.asked && seen.asked > 0 && seen.lost == 0;
    report.check(
        "chaos: requests answered once",
        format!("{share:.3} % of {}", seen.asked),
        "100.000 %",
        exact,
    );
    report.at_most("chaos: lines that are wrong", seen.wrong, 0);
    if let Some(first) = &seen.first_fault {
        report.note("chaos: first of these", first);
    }
    report.note("chaos: errors", format!("{:?}", seen.errors));
    report.note("chaos: sessions that went on after an error", seen.survived);
    report.note("chaos: the longest answer", time(seen.longest));
    let clients = (EDGES * CLIENTS_OF_AN_EDGE) as u64;
    report.check(
        "chaos: clients that are answered well in the end",
        seen.healed,
        clients,
        seen.healed == clients,
    );
    let mut after_kill = times_after(seen, blows, How::Kill);
    let after_stop = times_after(seen, blows, How::Stop);
    after_kill.sort();
    let at = |share: usize| after_kill.get(after_kill.len() * share / 100).copied().unwrap_or_default();
    report.note("chaos: errors after a kill", after_kill.len());
    let what = "chaos: from a kill to its error, median";
    // The few errors of a short run may all be of nodes, which are missed only when their link is silent.
    if after_kill.len() < ENOUGH_KILLS {
        report.note(what, time(at(50)));
    } else {
        report.time_at_most(what, at(50), KILL_REPORTED);
    }
    report.note("chaos: from a kill to its error, 9 of 10", time(at(90)));
    let longest = after_stop.iter().max().copied().unwrap_or_default();
    report.note("chaos: errors after a stop", after_stop.len());
    let met = longest <= STOP_REPORTED;
    report.check("chaos: from a stop to its error, the longest", time(longest), "<= 35 s", met);
}

/// How long after its cause each error came: the last blow of that kind that concerns it and came while it waited.
fn times_after(seen: &Seen, blows: &[Blow], how: How) -> Vec<Duration> {
    let concerns = |blow: &Blow, loss: &Loss| {
        let of_edge = matches!(blow.target, Target::Edge(edge) if edge == loss.edge);
        let of_node = loss.node.is_some() && blow.node == loss.node;
        blow.at >= loss.asked && blow.at <= loss.at && (of_edge || of_node)
    };
    let losses = seen.losses.iter().filter(|loss| loss.reason != "node_lost" && loss.reason != "pool_down");
    let times = losses.filter_map(|loss| {
        let cause = blows.iter().rev().find(|blow| concerns(blow, loss))?;
        (cause.how == how).then(|| loss.at - cause.at)
    });
    times.collect()
}

fn kind(target: Target) -> &'static str {
    match target {
        Target::Server(_) => "servers",
        Target::Node(_) => "nodes",
        Target::Link(_) => "links",
        Target::Edge(_) => "edges",
        Target::Worker(_) => "workers",
    }
}
