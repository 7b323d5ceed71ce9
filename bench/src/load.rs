//! The load: a closed loop on every connection, driven by one thread.
//!
//! Each connection keeps `window` requests in flight: an answer makes room for the next request, and all that
//! one read has made room for leaves in one write. Every line that comes back is judged, also before and after
//! the time that is measured. A request's time runs from the moment it is put up for writing until its answer
//! has been read; since a slow answer also delays the next request, these times say nothing of an open load.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::process;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use crate::connection::Connection;
use crate::cost;
use crate::ledger::{Ledger, Verdict};
use crate::outcome::Outcome;
use crate::print::Progress;
use crate::request::Shape;
use crate::wire::Wire;

/// How long the first answer may take: agents have to start.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last answers may take. What has not come by then is lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const EXCERPT_BYTES: usize = 200;

#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// In flight on each connection.
    pub(crate) window: usize,
    pub(crate) line_bytes: usize,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

/// Loads what is at the other end of these wires. `watched` is a process whose cost is of interest.
pub(crate) fn drive(
    wires: Vec<Wire>,
    load: &Load,
    watched: Option<u32>,
    progress: Progress,
) -> io::Result<Outcome> {
    let askers = (0..).zip(wires).map(|(number, wire)| Asker::new(number, wire)).collect::<Vec<_>>();
    let now = Instant::now();
    let mut driver = Driver {
        load: *load,
        shape: Shape::new(load.line_bytes),
        silent: askers.len(),
        open: askers.len(),
        askers,
        ready: VecDeque::new(),
        phase: Phase::Joining,
        until: now + JOIN_TIMEOUT,
        began: now,
        watched,
        progress,
        outcome: Outcome::new(),
    };
    driver.run()?;
    let mut outcome = driver.outcome;
    outcome.faults.lost = driver.askers.iter().map(|asker| asker.ledger.in_flight() as u64).sum();
    if outcome.faults.lost > 0 {
        outcome.faults.note(|| "some answers never came".to_owned());
    }
    Ok(outcome)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until every connection has had an answer: agents are still starting.
    Joining,
    Warming,
    Measuring,
    /// Nothing more is asked.
    Draining,
    Done,
}

struct Driver {
    load: Load,
    shape: Shape,
    askers: Vec<Asker>,
    /// Those that have not had an answer yet.
    silent: usize,
    /// Those whose connection has not ended.
    open: usize,
    /// Those with something to read or to write. Each stands here at most once.
    ready: VecDeque<usize>,
    phase: Phase,
    /// When the phase ends by itself.
    until: Instant,
    /// When the measured time began.
    began: Instant,
    watched: Option<u32>,
    progress: Progress,
    outcome: Outcome,
}

struct Asker {
    connection: Connection,
    ledger: Ledger,
    open: bool,
    heard: bool,
    /// It stands in `ready`.
    queued: bool,
}

impl Driver {
    fn run(&mut self) -> io::Result<()> {
        let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
        for (index, asker) in self.askers.iter_mut().enumerate() {
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(asker.connection.source(), Token(index), interest)?;
            let now = Instant::now();
            for _ in 0..self.load.window {
                asker.ledger.ask(&self.shape, &mut asker.connection.output, now);
            }
            asker.connection.write();
        }
        loop {
            let now = Instant::now();
            self.pass_time(now);
            if self.phase == Phase::Done {
                return Ok(());
            }
            let patience = self.until.saturating_duration_since(now);
            let timeout = if self.ready.is_empty() { patience } else { Duration::ZERO };
            match poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                self.askers[event.token().0].connection.note(event);
                self.queue(event.token().0);
            }
            // Those with more to read wait for the next turn, so that nobody is served twice in one.
            for _ in 0..self.ready.len() {
                let Some(index) = self.ready.pop_front() else { break };
                self.serve(index);
            }
        }
    }

    fn pass_time(&mut self, now: Instant) {
        let due = now >= self.until;
        let next = match self.phase {
            _ if self.open == 0 => Phase::Done,
            Phase::Joining if self.silent == 0 => Phase::Warming,
            Phase::Joining if due => Phase::Draining,
            Phase::Warming if due => Phase::Measuring,
            Phase::Measuring if due => Phase::Draining,
            Phase::Draining if due || self.is_drained() => Phase::Done,
            phase => phase,
        };
        if next != self.phase {
            self.enter(next, now);
        }
        let so_far = || self.outcome.answered as f64 / (now - self.began).as_secs_f64();
        self.progress.show(now, || match self.phase {
            Phase::Joining | Phase::Warming => "warming up".to_owned(),
            Phase::Measuring => format!("{:.0} requests/s", so_far()),
            Phase::Draining | Phase::Done => "waiting for the last answers".to_owned(),
        });
    }

    fn enter(&mut self, next: Phase, now: Instant) {
        let own_cpu = || cost::cpu_time(process::id());
        let watched_cpu = || self.watched.and_then(cost::cpu_time);
        let outcome = &mut self.outcome;
        if self.phase == Phase::Measuring {
            let since = |before: Option<Duration>, after: Option<Duration>| after?.checked_sub(before?);
            outcome.elapsed = now - self.began;
            outcome.own_cpu = since(outcome.own_cpu, own_cpu());
            outcome.watched_cpu = since(outcome.watched_cpu, watched_cpu());
            outcome.watched_bytes = self.watched.and_then(cost::resident_bytes);
        }
        if next == Phase::Measuring {
            self.began = now;
            (outcome.own_cpu, outcome.watched_cpu) = (own_cpu(), watched_cpu());
        }
        self.phase = next;
        self.until = now
            + match next {
                Phase::Joining => JOIN_TIMEOUT,
                Phase::Warming => self.load.warmup,
                Phase::Measuring => self.load.measured,
                Phase::Draining => DRAIN_TIMEOUT,
                Phase::Done => Duration::ZERO,
            };
    }

    fn is_drained(&self) -> bool {
        self.askers.iter().all(|asker| !asker.open || asker.ledger.in_flight() == 0)
    }

    fn queue(&mut self, index: usize) {
        let asker = &mut self.askers[index];
        if asker.open && !std::mem::replace(&mut asker.queued, true) {
            self.ready.push_back(index);
        }
    }

    /// One read, a verdict on each line of it, and one write.
    fn serve(&mut self, index: usize) {
        let (asker, outcome) = (&mut self.askers[index], &mut self.outcome);
        asker.queued = false;
        if let Err(error) = asker.connection.read() {
            asker.open = false;
            self.open -= 1;
            return outcome.faults.note(|| format!("connection {index} has ended: {error}"));
        }
        let now = Instant::now();
        while let Some((line, output)) = asker.connection.next_line() {
            let verdict = asker.ledger.judge(&self.shape, line);
            match verdict {
                Verdict::Right(asked) if self.phase == Phase::Measuring => {
                    outcome.answered += 1;
                    outcome.latency_ns.saturating_record((now - asked).as_nanos() as u64);
                }
                Verdict::Right(_) => self.silent -= usize::from(!std::mem::replace(&mut asker.heard, true)),
                Verdict::Spoiled | Verdict::Unasked => outcome.faults.wrong += 1,
                Verdict::Repeated => outcome.faults.repeated += 1,
            }
            if !matches!(verdict, Verdict::Right(_)) {
                let excerpt = &line[..line.len().min(EXCERPT_BYTES)];
                outcome.faults.note(|| format!("{verdict:?}: {}", String::from_utf8_lossy(excerpt)));
            }
            if matches!(verdict, Verdict::Right(_) | Verdict::Spoiled) && self.phase != Phase::Draining {
                asker.ledger.ask(&self.shape, output, now);
            }
        }
        asker.connection.write();
        if asker.connection.can_read() {
            self.queue(index);
        }
    }
}

impl Asker {
    fn new(number: u32, wire: Wire) -> Asker {
        let (connection, ledger) = (Connection::new(wire), Ledger::new(number));
        Asker { connection, ledger, open: true, heard: false, queued: false }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::wire::Target;

    const SHORT: Duration = Duration::from_millis(20);

    /// A run against threads that make their answer to each line with `answer`, and hang up where it is None.
    fn run(connections: usize, measured: Duration, answer: fn(usize, &str) -> Option<String>) -> Outcome {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::Tcp(door.local_addr().unwrap().to_string());
        let mut wires = Vec::new();
        for _ in 0..connections {
            wires.push(target.connect().unwrap());
            let (theirs, _) = door.accept().unwrap();
            thread::spawn(move || {
                let mut lines = BufReader::new(&theirs).lines().map_while(Result::ok);
                let mut answers = (1..).map_while(|count| answer(count, &lines.next()?));
                answers.all(|answer| (&theirs).write_all(answer.as_bytes()).is_ok())
            });
        }
        let load = Load { window: 8, line_bytes: 200, warmup: Duration::ZERO, measured };
        drive(wires, &load, None, Progress::none()).unwrap()
    }

    fn counts(outcome: &Outcome) -> [u64; 3] {
        [outcome.faults.lost, outcome.faults.wrong, outcome.faults.repeated]
    }

    #[test]
    fn a_peer_that_echoes_has_no_faults() {
        let outcome = run(4, SHORT, |_, line| Some(format!("{line}\n")));
        assert!(!outcome.faults.any() && outcome.faults.first.is_none(), "{:?}", outcome.faults);
        assert!(outcome.elapsed >= SHORT);
        assert_eq!(outcome.answered, outcome.latency_ns.len());
    }

    #[test]
    fn each_fault_of_a_peer_is_counted_as_what_it_is() {
        let spoiled = run(1, SHORT, |count, line| {
            Some(if count == 1 { format!("{}\n", line.replace("0/1", "1/1")) } else { format!("{line}\n") })
        });
        assert_eq!(counts(&spoiled), [0, 1, 0]);
        assert!(spoiled.faults.first.is_some_and(|first| first.starts_with("Spoiled: {")));
        let twice =
            run(1, SHORT, |count, line| Some(format!("{line}\n").repeat(1 + usize::from(count == 3))));
        assert_eq!(counts(&twice), [0, 0, 1]);
    }

    #[test]
    fn what_a_peer_that_hangs_up_owed_is_lost() {
        // It is over when nobody is left, however long it was to take.
        let outcome =
            run(2, Duration::from_secs(3600), |count, line| (count <= 20).then(|| format!("{line}\n")));
        let [lost, wrong, repeated] = counts(&outcome);
        assert!(lost >= 16 && wrong == 0 && repeated == 0, "{:?}", outcome.faults);
        assert!(outcome.faults.first.is_some_and(|first| first.contains("has ended")));
    }
}
