//! The load: a closed or an open loop over all connections, driven by one thread.
//!
//! Closed loop: each connection keeps `window` requests (or turns) in flight. An answer makes room for the next
//! request, and all requests that one read has made room for leave in one write. A request's time runs from the moment
//! it is queued for writing until its answer has been read. A slow answer also delays the next request, so these times
//! do not show what users who do not wait for each other would see.
//!
//! Open loop: requests are due at a fixed rate, whatever has been answered, and a request's time runs from the moment
//! it was due. A request that finds no room waits for it, and its waiting counts, also if it still waits at the end.
//! The loop does not sleep between two requests that are near each other, because poll cannot wake in time.
//!
//! Every line that comes back is judged, also before and after the time that is measured.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::process;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rpc::Stream;

use crate::acp::{Acp, Turns};
use crate::connection::Connection;
use crate::ledger::{Ledger, Verdict};
use crate::outcome::Outcome;
use crate::print::Progress;
use crate::procfs;
use crate::request::Shape;

/// How long the first answer may take: agents have to start.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last answers may take. Those that have not come by then are lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const EXCERPT_BYTES: usize = 200;
/// The resolution of poll.
const POLL_STEP: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// None: plain requests.
    pub(crate) turns: Option<Turns>,
    /// Requests or turns a second over all connections. None: a closed loop.
    pub(crate) rate: Option<f64>,
    /// In flight on each connection.
    pub(crate) window: usize,
    pub(crate) line_bytes: usize,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

impl Load {
    /// Plain requests in a closed loop.
    pub(crate) fn closed(window: usize, line_bytes: usize, warmup: Duration, measured: Duration) -> Load {
        Load { turns: None, rate: None, window, line_bytes, warmup, measured }
    }
}

/// Loads the peers of these streams. `watched` is a process whose cost is measured.
pub(crate) fn drive(
    streams: Vec<Stream>,
    load: &Load,
    watched: Option<u32>,
    progress: Progress,
) -> io::Result<Outcome> {
    let mut clients = Vec::with_capacity(streams.len());
    for (number, stream) in (0..).zip(streams) {
        clients.push(Client::new(number, stream, load.turns)?);
    }
    let now = Instant::now();
    let mut driver = Driver {
        load: *load,
        shape: Shape::new(load.line_bytes),
        unanswered: clients.len(),
        open: clients.len(),
        clients,
        ready: VecDeque::new(),
        phase: Phase::Joining,
        until: now + JOIN_TIMEOUT,
        began: now,
        arrivals: 0,
        arrivals_began: now,
        watched,
        progress,
        outcome: Outcome::new(),
    };
    driver.run()?;
    let mut outcome = driver.outcome;
    outcome.faults.lost = driver.clients.iter().map(|client| client.protocol.in_flight() as u64).sum();
    if outcome.faults.lost > 0 {
        outcome.faults.note(|| "some answers never came".to_owned());
    }
    Ok(outcome)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until every connection has had an answer, because agents are still starting.
    Joining,
    Warming,
    Measuring,
    /// No more requests are sent.
    Draining,
    Done,
}

struct Driver {
    load: Load,
    shape: Shape,
    clients: Vec<Client>,
    /// How many have not had an answer yet.
    unanswered: usize,
    /// How many connections have not ended.
    open: usize,
    /// The clients with something to read or to write. Each is here at most once.
    ready: VecDeque<usize>,
    phase: Phase,
    /// When the phase ends by itself.
    until: Instant,
    /// When the measured time began.
    began: Instant,
    /// In an open loop: how many requests have been due since it began.
    arrivals: u64,
    arrivals_began: Instant,
    watched: Option<u32>,
    progress: Progress,
    outcome: Outcome,
}

struct Client {
    connection: Connection,
    protocol: Protocol,
    /// In an open loop: when the requests that wait for room were due.
    due: VecDeque<Instant>,
    is_open: bool,
    /// Whether a right answer has ever come.
    is_answered: bool,
    /// Whether it is in `ready`.
    is_queued: bool,
}

/// What a connection speaks.
enum Protocol {
    Plain(Ledger),
    Acp(Acp),
}

impl Driver {
    fn run(&mut self) -> io::Result<()> {
        let mut poll = Poll::new()?;
        let mut events = Events::with_capacity(1024);
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            let interest = Interest::READABLE | Interest::WRITABLE;
            let fd = client.connection.stream.as_fd().as_raw_fd();
            poll.registry().register(&mut SourceFd(&fd), Token(index), interest)?;
            if let Protocol::Acp(acp) = &mut client.protocol {
                acp.begin(client.connection.output());
            }
            self.queue(index);
        }
        loop {
            let now = Instant::now();
            self.pass_time(now);
            if self.phase == Phase::Done {
                return Ok(());
            }
            self.arrive(now);
            let timeout = if self.ready.is_empty() { self.patience(now) } else { Duration::ZERO };
            match poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                self.clients[event.token().0].connection.note(event);
                self.queue(event.token().0);
            }
            // Clients with more to read wait for the next turn, so that none is served twice in one.
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
            Phase::Joining if self.unanswered == 0 => Phase::Warming,
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

    /// How long nothing has to be done.
    fn patience(&self, now: Instant) -> Duration {
        let patience = self.until.saturating_duration_since(now);
        let Some(due) = self.next_due() else { return patience };
        let patience = patience.min(due.saturating_duration_since(now));
        patience.checked_sub(POLL_STEP).unwrap_or_default()
    }

    /// When the next request of an open loop is due.
    fn next_due(&self) -> Option<Instant> {
        if !matches!(self.phase, Phase::Warming | Phase::Measuring) {
            return None;
        }
        let rate = self.load.rate?;
        Some(self.arrivals_began + Duration::from_secs_f64(self.arrivals as f64 / rate))
    }

    /// Gives the requests that are due by now to connections.
    fn arrive(&mut self, now: Instant) {
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            let index = self.arrivals as usize % self.clients.len();
            self.arrivals += 1;
            self.clients[index].due.push_back(due);
            self.queue(index);
        }
    }

    fn enter(&mut self, next: Phase, now: Instant) {
        let own_cpu = || procfs::cpu_time(process::id()).ok();
        let watched_cpu = || self.watched.and_then(|pid| procfs::cpu_time(pid).ok());
        let watched_ticks = || self.watched.and_then(|pid| procfs::user_and_system(pid).ok());
        let outcome = &mut self.outcome;
        if self.phase == Phase::Measuring {
            let since = |before: Option<Duration>, after: Option<Duration>| after?.checked_sub(before?);
            outcome.elapsed = now - self.began;
            outcome.own_cpu = since(outcome.own_cpu, own_cpu());
            outcome.watched_cpu = since(outcome.watched_cpu, watched_cpu());
            if let (Some(before), Some(after)) = (outcome.watched_ticks, watched_ticks()) {
                outcome.watched_ticks = Some((after.0 - before.0, after.1 - before.1));
            }
            outcome.watched_bytes = self.watched.and_then(|pid| procfs::resident_bytes(pid).ok());
            for due in self.clients.iter_mut().flat_map(|client| client.due.drain(..)) {
                outcome.unsent += 1;
                outcome.latency_ns.saturating_record((now - due).as_nanos() as u64);
            }
        }
        if next == Phase::Warming {
            (self.arrivals, self.arrivals_began) = (0, now);
        }
        if next == Phase::Measuring {
            self.began = now;
            (outcome.own_cpu, outcome.watched_cpu) = (own_cpu(), watched_cpu());
            outcome.watched_ticks = watched_ticks();
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
        self.clients.iter().all(|client| !client.is_open || client.protocol.in_flight() == 0)
    }

    fn queue(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.is_open && !std::mem::replace(&mut client.is_queued, true) {
            self.ready.push_back(index);
        }
    }

    /// One read, a verdict on each line of it, and one write.
    fn serve(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let outcome = &mut self.outcome;
        client.is_queued = false;
        if let Err(error) = client.connection.read() {
            client.is_open = false;
            self.open -= 1;
            return outcome.faults.note(|| format!("connection {index} has ended: {error}"));
        }
        let now = Instant::now();
        while let Some((line, output)) = client.connection.next_line() {
            let verdict = match &mut client.protocol {
                Protocol::Plain(ledger) => ledger.judge(&self.shape, line),
                Protocol::Acp(acp) => acp.judge(line, output),
            };
            match verdict {
                Verdict::Passing => outcome.updates += u64::from(self.phase == Phase::Measuring),
                Verdict::Right(asked) if self.phase == Phase::Measuring => {
                    outcome.answered += 1;
                    outcome.latency_ns.saturating_record((now - asked).as_nanos() as u64);
                }
                Verdict::Right(_) => {
                    self.unanswered -= usize::from(!std::mem::replace(&mut client.is_answered, true));
                }
                Verdict::Spoiled | Verdict::Unasked => outcome.faults.wrong += 1,
                Verdict::Repeated => outcome.faults.repeated += 1,
            }
            if !matches!(verdict, Verdict::Right(_) | Verdict::Passing) {
                let excerpt = &line[..line.len().min(EXCERPT_BYTES)];
                outcome.faults.note(|| format!("{verdict:?}: {}", String::from_utf8_lossy(excerpt)));
            }
        }
        self.fill(index, now);
        let client = &mut self.clients[index];
        client.connection.write();
        if client.connection.can_read() {
            self.queue(index);
        }
    }

    /// Sends as many requests as there is room for and as are due.
    fn fill(&mut self, index: usize, now: Instant) {
        let client = &mut self.clients[index];
        let open_loop = self.load.rate.is_some() && self.phase != Phase::Joining;
        while self.phase != Phase::Draining && client.protocol.has_room(self.load.window) {
            let due = if open_loop { client.due.pop_front() } else { Some(now) };
            let Some(due) = due else { return };
            match &mut client.protocol {
                Protocol::Plain(ledger) => ledger.ask(&self.shape, client.connection.output(), due),
                Protocol::Acp(acp) => acp.ask(&self.shape, client.connection.output(), due),
            }
        }
    }
}

impl Protocol {
    fn in_flight(&self) -> usize {
        match self {
            Protocol::Plain(ledger) => ledger.in_flight(),
            Protocol::Acp(acp) => acp.in_flight(),
        }
    }

    fn has_room(&self, window: usize) -> bool {
        self.in_flight() < window && !matches!(self, Protocol::Acp(acp) if !acp.has_room())
    }
}

impl Client {
    fn new(number: u32, stream: Stream, turns: Option<Turns>) -> io::Result<Client> {
        let protocol = match turns {
            Some(turns) => Protocol::Acp(Acp::new(number, turns)),
            None => Protocol::Plain(Ledger::new(number)),
        };
        let connection = Connection::new(stream)?;
        Ok(Client {
            connection,
            protocol,
            due: VecDeque::new(),
            is_open: true,
            is_answered: false,
            is_queued: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// A run against threads that answer each line with `answer`, and hang up when that is None.
    fn run(connections: usize, measured: Duration, answer: fn(usize, &str) -> Option<String>) -> Outcome {
        run_at(None, connections, measured, answer)
    }

    fn run_at(
        rate: Option<f64>,
        connections: usize,
        measured: Duration,
        answer: fn(usize, &str) -> Option<String>,
    ) -> Outcome {
        let mut streams = Vec::new();
        for _ in 0..connections {
            let (ours, theirs) = UnixStream::pair().unwrap();
            streams.push(Stream::Unix(ours));
            thread::spawn(move || {
                let mut lines = BufReader::new(&theirs).lines().map_while(Result::ok);
                let mut answers = (1..).map_while(|count| answer(count, &lines.next()?));
                answers.all(|answer| (&theirs).write_all(answer.as_bytes()).is_ok())
            });
        }
        let warmup = Duration::ZERO;
        let load = Load { turns: None, rate, window: 8, line_bytes: 200, warmup, measured };
        drive(streams, &load, None, Progress::none()).unwrap()
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
    fn answers_that_a_peer_owed_when_it_hung_up_are_lost() {
        // The load ends when no connection is left, however long it was to take.
        let outcome =
            run(2, Duration::from_secs(3600), |count, line| (count <= 20).then(|| format!("{line}\n")));
        let [lost, wrong, repeated] = counts(&outcome);
        assert!(lost >= 16 && wrong == 0 && repeated == 0, "{:?}", outcome.faults);
        assert!(outcome.faults.first.is_some_and(|first| first.contains("has ended")));
    }

    #[test]
    fn an_open_loop_keeps_its_rate_and_counts_requests_that_wait_for_room() {
        let outcome =
            run_at(Some(1000.0), 2, Duration::from_millis(200), |_, line| Some(format!("{line}\n")));
        assert!(!outcome.faults.any(), "{:?}", outcome.faults);
        let most = 1000.0 * outcome.elapsed.as_secs_f64() + 20.0;
        assert!(
            (outcome.answered + outcome.unsent) as f64 <= most,
            "it asks no faster: {}",
            outcome.answered
        );
        // A peer that is slow to answer cannot keep up, and the requests that wait are seen in the times.
        let slow = |_: usize, line: &str| {
            thread::sleep(Duration::from_millis(5));
            Some(format!("{line}\n"))
        };
        let outcome = run_at(Some(2000.0), 1, Duration::from_millis(300), slow);
        assert!(outcome.unsent > 100, "{}", outcome.unsent);
        assert_eq!(outcome.latency_ns.len(), outcome.answered + outcome.unsent);
        assert!(
            outcome.latency_us(0.5) > 80_000.0,
            "more than eight answers take: {}",
            outcome.latency_us(0.5)
        );
    }
}
