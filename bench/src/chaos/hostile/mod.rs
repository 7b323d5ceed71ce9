//! `chaos --hostile`: clients that do anything, with long lines, while everything around them goes wrong.
//!
//! Clients open sessions in pools whose sessions are shared and in one whose are not, join those of others, take them
//! over, leave, prompt, cancel, read slowly and break their connections. Their lines and those of the agents have up to
//! 2 MiB. Meanwhile processes are killed and stopped, and the configuration is read again.
//! Every line says by itself whose it is: nothing may be lost, come twice, be another's or reach somebody whom it does
//! not concern, and in the end the bus holds nothing.

mod actor;
mod hearing;
mod judge;
mod line;
mod world;

use std::env;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::libc::linger;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use serde_json::{Value, json};

use self::actor::{Actor, Does, POOLS};
use self::world::{Counts, Fault, Faults, World};
use crate::address;
use crate::bus::{Bus, PATIENCE, up};
use crate::client::Client;
use crate::connection::Connection;
use crate::print::{Progress, thousands};
use crate::report::Report;

const CLIENTS: u32 = 24;
const WORKERS_EACH: usize = 2;
/// What goes wrong next comes after a time up to this.
const TROUBLE_EVERY_MS: u64 = 300;
const STOPPED_MS: u64 = 400;
/// The longest that a request may take, whatever happens to it.
const ANSWERED: Duration = Duration::from_secs(30);
/// The run ends when so much has gone wrong: more would say no more.
const FAULTS_MAX: u64 = 100;
const KEEP_SEC: u64 = 2;
/// More than this cannot be held by a bus that counts rightly.
const HELD_MAX: u64 = 2 << 30;
/// How much of the log of a bus that has ended is shown.
const LOG_LINES: usize = 20;
/// How long a bus may take to let go what its clients have left behind.
const LET_GO: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(2);

/// How long it goes on at most, in requests and in time.
#[derive(Clone, Copy)]
pub(super) struct Length {
    pub(super) requests: u64,
    pub(super) time: Duration,
    /// The longest text of a line, in bytes.
    pub(super) longest: usize,
}

struct Player {
    actor: Actor,
    connection: Connection,
}

struct Run<'a> {
    bus: &'a Bus,
    watcher: Client,
    poll: Poll,
    players: Vec<Player>,
    world: World,
    rng: Rng,
    began: Instant,
    /// When the first fault was noticed.
    first_fault: Option<Duration>,
    trouble: Trouble,
    /// Whether it has come to its end, and all was waited for.
    is_over: bool,
}

#[derive(Default)]
struct Trouble {
    kills: u64,
    stops: u64,
    reloads: u64,
    next: Option<Instant>,
    /// Processes that are stopped, and until when.
    stopped: Vec<(Pid, Instant)>,
}

pub(super) fn play(stdio_bus: &Path, length: Length, seed: u64, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start_lean(stdio_bus, &config(0)?)?;
    bus.until_up(POOLS.len() * WORKERS_EACH, PATIENCE)?;
    let mut run = Run {
        bus: &bus,
        watcher: bus.client()?,
        poll: Poll::new()?,
        players: Vec::new(),
        world: World { longest: length.longest, ..World::default() },
        rng: Rng::with_seed(seed),
        began: Instant::now(),
        first_fault: None,
        trouble: Trouble::default(),
        is_over: false,
    };
    for number in 0..CLIENTS {
        let mut connection = run.connect(number)?;
        let mut actor = Actor::new(number, seed ^ u64::from(number) << 32);
        actor.begin(&mut run.world, connection.output());
        run.players.push(Player { actor, connection });
    }
    if let Err(error) = run.until_end(length) {
        // The bus is gone, or does not let anybody in.
        run.world.faults.add(Fault::Lost, || format!("the bus: {error}\n{}", last_of(&bus.log())));
        run.first_fault.get_or_insert(run.began.elapsed());
    }
    run.report(report)
}

/// The last lines of a log.
fn last_of(log: &str) -> String {
    let mut lines = log.lines().rev().take(LOG_LINES).collect::<Vec<_>>();
    lines.reverse();
    lines.join("\n")
}

fn config(extra: u64) -> io::Result<Value> {
    let program = env::current_exe()?;
    let pool = |(id, shared): (&str, bool)| {
        json!({ "id": id, "command": program, "args": ["puppet", "--name", id], "share": shared,
            "instances": WORKERS_EACH, "max_instances": 2 * WORKERS_EACH, "max_sessions": 1000 })
    };
    let mut pools = POOLS.map(pool).to_vec();
    if extra > 0 {
        let args = ["puppet".to_owned(), "--name".to_owned(), format!("extra-{extra}")];
        pools.push(json!({ "id": "extra", "command": program, "args": args, "max_instances": 1 }));
    }
    Ok(json!({
        "listen": ["tcp://127.0.0.1:0", "unix://@dir/bus.sock"],
        "default_pool": POOLS[0].0,
        "pools": pools,
        "limits": { "max_restarts": 1_000_000, "max_restart_delay_sec": 0.02, "session_keep_sec": KEEP_SEC },
    }))
}

impl Run<'_> {
    fn connect(&mut self, number: u32) -> io::Result<Connection> {
        let addresses = self.bus.addresses();
        let stream = address::connect(&addresses[self.rng.usize(..addresses.len())])?;
        let connection = Connection::new(stream)?;
        let fd = connection.stream.as_fd().as_raw_fd();
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&fd), Token(number as usize), both)?;
        Ok(connection)
    }

    /// Plays until enough was asked, too much went wrong, or the time is over; then until all is answered.
    fn until_end(&mut self, length: Length) -> io::Result<()> {
        let mut progress = Progress::on_stderr("hostile".to_owned());
        let mut events = Events::with_capacity(1024);
        let until = self.began + length.time;
        let mut ends: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let faults = self.world.faults.sum();
            if faults > 0 && self.first_fault.is_none() {
                self.first_fault = Some(self.began.elapsed());
            }
            progress.show(now, || {
                let Counts { asked, updates, .. } = &self.world.counts;
                format!("{asked} of {} requests, {updates} updates, {faults} faults", length.requests)
            });
            let enough = self.world.counts.asked >= length.requests || now >= until || faults >= FAULTS_MAX;
            if enough && ends.is_none() {
                self.end_trouble();
                ends = Some(now + ANSWERED);
            }
            if let Some(ends) = ends {
                let is_quiet = self.players.iter().all(|player| player.actor.waiting.is_empty());
                if is_quiet || now >= ends || faults >= FAULTS_MAX {
                    self.is_over = faults < FAULTS_MAX;
                    return Ok(());
                }
            } else {
                self.make_trouble(now)?;
                self.act(now)?;
            }
            self.poll.poll(&mut events, Some(LOOK))?;
            for event in &events {
                self.players[event.token().0].connection.note(event);
            }
            self.exchange(now, ends.is_some())?;
        }
    }

    /// Every client does something, and whoever waits too long has lost its answer.
    fn act(&mut self, now: Instant) -> io::Result<()> {
        for at in 0..self.players.len() {
            let Player { actor, connection } = &mut self.players[at];
            if let Some((id, _)) = actor.waiting.iter().find(|(_, (_, asked))| now - *asked > ANSWERED) {
                let (id, number) = (*id, actor.number);
                self.world.faults.add(Fault::Lost, || format!("client {number}: {id} was never answered"));
                self.come_back(at, false)?;
                continue;
            }
            if now < actor.reads_again {
                continue;
            }
            if actor.act(&mut self.world, connection.output()) == Does::Resets {
                let resets = self.rng.bool();
                self.come_back(at, resets)?;
            }
        }
        Ok(())
    }

    /// Reads and writes what can be read and written.
    fn exchange(&mut self, now: Instant, all_read: bool) -> io::Result<()> {
        for at in 0..self.players.len() {
            let Player { actor, connection } = &mut self.players[at];
            let mut is_open = true;
            while is_open && connection.can_read() && (all_read || now >= actor.reads_again) {
                is_open = connection.read().is_ok();
                let mut said = Vec::new();
                while let Some((line, _)) = connection.next_line() {
                    actor.receive(&mut self.world, line, &mut said);
                }
                connection.output().extend(said);
            }
            connection.write();
            if !is_open {
                // A client that read too slowly was closed.
                self.come_back(at, false)?;
            }
        }
        Ok(())
    }

    /// A client breaks its connection, or finds it closed, and comes on a new one.
    fn come_back(&mut self, at: usize, resets: bool) -> io::Result<()> {
        let new = self.connect(at as u32)?;
        let Player { actor, connection } = &mut self.players[at];
        let owned = actor.end(&mut self.world);
        if resets {
            setsockopt(&connection.stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
        }
        // The old one is closed, and with that it is not waited for any more.
        *connection = new;
        actor.begin(&mut self.world, connection.output());
        actor.resume(&mut self.world, connection.output(), owned);
        Ok(())
    }

    fn make_trouble(&mut self, now: Instant) -> io::Result<()> {
        self.trouble.stopped.retain(|(pid, until)| {
            let goes_on = now >= *until;
            if goes_on {
                let _ = kill(*pid, Signal::SIGCONT);
            }
            !goes_on
        });
        if self.trouble.next.is_some_and(|next| now < next) {
            return Ok(());
        }
        self.trouble.next = Some(now + Duration::from_millis(self.rng.u64(1..=TROUBLE_EVERY_MS)));
        let status = self.watcher.status()?;
        let held = status["held_bytes"].as_u64().unwrap_or(u64::MAX);
        if held > HELD_MAX {
            // It has begun to count below nothing, and refuses everybody from now on.
            (0..FAULTS_MAX).for_each(|_| {
                self.world.faults.add(Fault::Lost, || format!("the bus says that it holds {held} bytes"));
            });
        }
        let workers = up(&status);
        if workers.is_empty() {
            return Ok(());
        }
        let pid = Pid::from_raw(workers[self.rng.usize(..workers.len())].1);
        match self.rng.u32(..10) {
            0..4 => {
                self.trouble.kills += 1;
                let _ = kill(pid, Signal::SIGKILL);
            }
            4..7 => {
                self.trouble.stops += 1;
                let _ = kill(pid, Signal::SIGSTOP);
                let until = now + Duration::from_millis(self.rng.u64(10..STOPPED_MS));
                self.trouble.stopped.push((pid, until));
            }
            7..9 => {
                self.trouble.reloads += 1;
                match self.trouble.reloads % 3 {
                    0 => self.bus.rewrite_text("{\"pools\": [")?,
                    1 => self.bus.rewrite(&config(self.trouble.reloads)?)?,
                    _ => self.bus.rewrite(&config(0)?)?,
                }
                self.bus.signal(Signal::SIGHUP)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn end_trouble(&mut self) {
        for (pid, _) in self.trouble.stopped.drain(..) {
            let _ = kill(pid, Signal::SIGCONT);
        }
    }

    fn report(mut self, report: &mut Report) -> io::Result<()> {
        let took = self.began.elapsed();
        for player in &mut self.players {
            // If too much went wrong, they were not waited for.
            let is_waited_for = self.is_over;
            for id in player.actor.waiting.keys().filter(|_| is_waited_for) {
                let number = player.actor.number;
                self.world.faults.add(Fault::Lost, || format!("client {number}: {id} was never answered"));
            }
            player.actor.waiting.clear();
            player.actor.end(&mut self.world);
        }
        let (hearings, differences) = self.world.hearings.compare();
        for difference in differences {
            self.world.faults.add(Fault::Lost, || difference);
        }
        let first_fault = self.first_fault.or((self.world.faults.sum() > 0).then_some(took));
        // All have left, and what they leave behind is let go.
        self.players.clear();
        let watcher = &mut self.watcher;
        let mut held =
            || watcher.status().map_or(u64::MAX, |status| status["held_bytes"].as_u64().unwrap_or(0));
        self.bus.until(LET_GO, |_| held() == 0);
        let held = held();

        let World { counts, faults, .. } = &self.world;
        let per = |count: u64| {
            format!(
                "{count} of {} ({:.4} %)",
                counts.asked,
                100.0 * count as f64 / counts.asked.max(1) as f64
            )
        };
        for (what, count) in faults.each() {
            report.check(&format!("hostile: {what}"), per(count), "0", count == 0);
            if let Some(first) = faults.first.get(what) {
                report.note(&format!("hostile: the first that was {what}"), first);
            }
        }
        if let Some(first) = first_fault {
            report.note("hostile: the first fault came after", format!("{:.1} s", first.as_secs_f64()));
        }
        report.at_most("hostile: bytes held when all have left", held, 0);
        let answered = counts.right as f64 / counts.asked.saturating_sub(counts.left).max(1) as f64;
        let share = format!("{:.1} %", 100.0 * answered);
        report.check("hostile: answered with a result", share, "> 50 %", answered > 0.5);
        report.note("hostile: answered with an error", format!("{:?}", counts.refused));
        report.note("hostile: clients that read too slowly for a session", counts.behind);
        report.note("hostile: what was heard, compared", format!("{hearings} times"));
        let Trouble { kills, stops, reloads, .. } = self.trouble;
        let of = |number: u64| thousands(number as f64);
        report.note(
            "hostile",
            format!(
                "{} faults\n{} requests in {:.0} s, {} MB read: {} updates, {} questions, \
                 {} joins, {} take-overs, {} leaves; {kills} killed, {stops} stopped, {reloads} reloads; \
                 {} lost, {} doubled, {} foreign, {} leaked, {held} held",
                faults.sum(),
                of(counts.asked),
                took.as_secs_f64(),
                of(counts.bytes / 1_000_000),
                of(counts.updates),
                of(counts.questions),
                of(counts.joins),
                of(counts.takes),
                of(counts.resets),
                faults.lost,
                faults.doubled,
                faults.foreign,
                faults.leaked,
            ),
        );
        Ok(())
    }
}

impl Faults {
    fn each(&self) -> [(&'static str, u64); 4] {
        [("lost", self.lost), ("doubled", self.doubled), ("foreign", self.foreign), ("leaked", self.leaked)]
    }
}
