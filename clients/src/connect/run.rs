//! The loop: one thread that waits for the IDE, the bus, a signal or the clock.
//!
//! Reading from one side pauses while too much waits for the other. Nothing here looks into a line.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::lines::Inbox;
use super::reach::{Arrival, Attempt, Reach};
use super::talk::{News, Talk};
use super::{Bell, Ended, Options};
use crate::Fault;
use crate::stream::{CONNECT_TIMEOUT, Stream};
use crate::wire::LINE_BYTES_MOST;

/// So much may wait for one side before the other is no longer read. One line may exceed it.
const WAITING_BYTES: usize = 1 << 20;
const CHUNK_BYTES: usize = 64 << 10;

/// How long a bus that was started may take until it answers, and how often we look.
const START_PATIENCE: Duration = Duration::from_secs(10);
const START_LOOK: Duration = Duration::from_millis(10);
/// A bus answers a hello at once or not at all.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// An agent that has to be started, or to tell a long session again, takes its time.
const STEP_PATIENCE: Duration = Duration::from_secs(60);
/// After a break.
const OUTAGE: Duration = Duration::from_secs(30);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// At the end, when there is nothing to wait for but the other's goodbye.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Loop<'a> {
    options: &'a Options,
    bell: &'a Bell,
    reach: Reach<'a>,
    talk: Talk,
    input: File,
    output: File,
    inbox: Inbox,
    /// The IDE has closed its side.
    input_ended: bool,
    bus: Option<Peer>,
    /// Since the bus was lost. Over when sessions are taken up.
    outage: Option<Outage>,
    /// Goodbye is said, and this is how long the rest may take.
    leaving: Option<Option<Instant>>,
    /// The bus does not want us. The IDE hears it as the answer to its next request.
    refusal: Option<Fault>,
    refusal_told: bool,
}

struct Peer {
    stream: Stream,
    at: String,
    inbox: Inbox,
    /// It takes nothing any more; what it still says is read.
    is_deaf: bool,
    half_closed: bool,
    /// What is awaited, and until when.
    step: (u64, Instant),
}

struct Outage {
    why: String,
    give_up: Instant,
    next_try: Instant,
    pause: Duration,
}

/// What poll found.
#[derive(Default)]
struct Ready {
    input: bool,
    /// Nobody reads it any more.
    output_gone: bool,
    bus: bool,
}

impl<'a> Loop<'a> {
    pub(super) fn new(options: &'a Options, input: File, output: File, bell: &'a Bell) -> Loop<'a> {
        Loop {
            options,
            bell,
            reach: Reach::new(options),
            talk: Talk::new(),
            input,
            output,
            inbox: Inbox::default(),
            input_ended: false,
            bus: None,
            outage: None,
            leaving: None,
            refusal: None,
            refusal_told: false,
        }
    }

    pub(super) fn run(mut self) -> Result<Ended, Fault> {
        let arrival = self.first_connection()?;
        self.connected(arrival);
        loop {
            self.carry();
            if self.flush_output() {
                return Ok(self.leave(Ended::Done));
            }
            self.flush_bus();
            if let Some(end) = self.end() {
                return end;
            }
            let ready = self.wait();
            if let Some(signal) = self.bell.heard() {
                return Ok(self.leave(Ended::Signalled(signal)));
            }
            if ready.output_gone {
                return Ok(self.leave(Ended::Done));
            }
            if ready.input {
                self.read_ide()?;
            }
            if ready.bus {
                self.read_bus()?;
            }
            self.look_at_the_clock()?;
        }
    }

    fn first_connection(&mut self) -> Result<Arrival, Fault> {
        let give_up = Instant::now() + START_PATIENCE;
        self.bell.while_away(|| {
            loop {
                match self.reach.attempt(CONNECT_TIMEOUT) {
                    Attempt::Here(arrival) => return Ok(arrival),
                    Attempt::Never(fault) => return Err(fault),
                    Attempt::NotYet(fault) if !self.reach.starts() => return Err(fault),
                    Attempt::NotYet(fault) if Instant::now() >= give_up => {
                        let waited = START_PATIENCE.as_secs();
                        return Err(Fault::Unreachable(format!("{fault}, even {waited} s after a start")));
                    }
                    Attempt::NotYet(_) => thread::sleep(START_LOOK),
                }
            }
        })
    }

    fn connected(&mut self, Arrival { stream, at, hello }: Arrival) {
        self.talk.connected(&hello);
        let step = (self.talk.turn(), Instant::now() + HELLO_PATIENCE);
        self.bus =
            Some(Peer { stream, at, inbox: Inbox::default(), is_deaf: false, half_closed: false, step });
    }

    /// Lines of the IDE, as many as the bus may take now.
    fn carry(&mut self) {
        // What is not passed on to one that no longer listens can be passed on to the next.
        let is_deaf = self.bus.as_ref().is_some_and(|peer| peer.is_deaf);
        while self.talk.takes_lines() && !is_deaf && self.talk.to_bus.waiting().len() < WAITING_BYTES {
            let Some(line) = self.inbox.take_line() else { break };
            self.talk.ide_says(line);
        }
        if self.talk.is_live() {
            self.outage = None;
        }
        self.refusal_told |= self.refusal.is_some() && !self.talk.to_ide.waiting().is_empty();
        if !self.ide_is_done() || !self.talk.is_live() || self.leaving.is_some() {
            return;
        }
        self.talk.ide_left();
        if self.talk.is_answered() {
            self.talk.say_bye();
            // Where an answer may still come, the bus knows when it was the last.
            self.leaving = Some((!self.talk.has_flights()).then(|| Instant::now() + LAST_PATIENCE));
        }
    }

    /// True: nobody reads it any more.
    fn flush_output(&mut self) -> bool {
        while !self.talk.to_ide.waiting().is_empty() {
            let ready = poll_one(&self.output, PollFlags::POLLOUT, Duration::ZERO);
            // Some systems cannot poll everything; then there is nothing for it but to try.
            if !ready.intersects(PollFlags::POLLOUT | PollFlags::POLLNVAL) {
                return is_broken(ready);
            }
            // The IDE's pipe blocks, and is shared with whoever gave it to us, so it is left as it is. One that is
            // ready takes this much without blocking.
            let waiting = self.talk.to_ide.waiting();
            match self.output.write(&waiting[..waiting.len().min(PIPE_BUF)]) {
                Ok(count) => self.talk.to_ide.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
        false
    }

    fn flush_bus(&mut self) {
        let Some(peer) = &mut self.bus else { return };
        while !peer.is_deaf && !self.talk.to_bus.waiting().is_empty() {
            match peer.stream.write(self.talk.to_bus.waiting()) {
                Ok(count) => self.talk.to_bus.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => peer.is_deaf = true,
            }
        }
        if self.leaving.is_some() && !peer.half_closed {
            // All is written, or cannot be.
            peer.half_closed = true;
            let _ = peer.stream.half_close();
        }
    }

    /// How it ends, if there is nothing left to do.
    fn end(&mut self) -> Option<Result<Ended, Fault>> {
        if !self.talk.to_ide.waiting().is_empty() {
            return None;
        }
        if self.refusal.is_some() && (self.refusal_told || self.ide_is_done()) {
            return self.refusal.take().map(Err);
        }
        // What the IDE has asked was answered when the bus was lost, so there is no use in waiting for its return.
        let away = self.bus.is_none() || self.outage.is_some();
        (away && self.refusal.is_none() && self.ide_is_done()).then_some(Ok(Ended::Done))
    }

    /// It has closed its side, and all that it said is passed on.
    fn ide_is_done(&self) -> bool {
        self.input_ended && self.inbox.len() == 0
    }

    fn wait(&mut self) -> Ready {
        let wants_input = !self.input_ended && (self.inbox.len() < WAITING_BYTES || !self.inbox.has_line());
        let output_events = match self.talk.to_ide.waiting().is_empty() {
            true => PollFlags::empty(),
            false => PollFlags::POLLOUT,
        };
        let mut bus_events = PollFlags::empty();
        if let Some(peer) = &self.bus {
            bus_events.set(PollFlags::POLLIN, self.talk.to_ide.waiting().len() < WAITING_BYTES);
            bus_events.set(PollFlags::POLLOUT, !peer.is_deaf && !self.talk.to_bus.waiting().is_empty());
        }
        let timeout = self.next_time();
        let mut fds = vec![
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.output.as_fd(), output_events),
        ];
        // What is not wanted is left out: that it has ended would be told again and again.
        if wants_input {
            fds.push(PollFd::new(self.input.as_fd(), PollFlags::POLLIN));
        }
        if let Some(peer) = self.bus.as_ref().filter(|_| !bus_events.is_empty()) {
            fds.push(PollFd::new(peer.stream.as_fd(), bus_events));
        }
        if poll(&mut fds, timeout).is_err() {
            // A signal; the bell tells which.
            return Ready::default();
        }
        let found = |at: usize| fds.get(at).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        let bus_at = 2 + usize::from(wants_input);
        Ready {
            input: wants_input && !found(2).is_empty(),
            output_gone: is_broken(found(1)),
            bus: !found(bus_at).is_empty(),
        }
    }

    fn next_time(&self) -> PollTimeout {
        let step = self.bus.as_ref().filter(|_| !self.talk.takes_lines()).map(|peer| peer.step.1);
        let outage = self.outage.as_ref().filter(|_| self.bus.is_none());
        let outage = outage.map(|outage| outage.next_try.min(outage.give_up));
        let times = [step, outage, self.leaving.flatten()];
        let Some(next) = times.into_iter().flatten().min() else { return PollTimeout::NONE };
        // Whole milliseconds, rounded up: too early would be in vain.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    fn read_ide(&mut self) -> Result<(), Fault> {
        let mut chunk = [0; CHUNK_BYTES];
        match self.input.read(&mut chunk) {
            Ok(0) => self.input_ended = true,
            Ok(count) => self.inbox.fill(&chunk[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            // As good as closed.
            Err(_) => self.input_ended = true,
        }
        if self.input_ended {
            self.inbox.end();
        }
        if self.inbox.len() > LINE_BYTES_MOST && !self.inbox.has_line() {
            return Err(Fault::Failed(format!(
                "the client sent a line of more than {LINE_BYTES_MOST} bytes"
            )));
        }
        Ok(())
    }

    fn read_bus(&mut self) -> Result<(), Fault> {
        let mut chunk = [0; CHUNK_BYTES];
        while self.talk.to_ide.waiting().len() < WAITING_BYTES {
            let Some(peer) = &mut self.bus else { return Ok(()) };
            let count = match peer.stream.read(&mut chunk) {
                Ok(0) => return self.lost("it closed the connection".to_owned()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return self.lost(error.to_string()),
            };
            peer.inbox.fill(&chunk[..count]);
            while let Some(line) = peer.inbox.take_line() {
                match self.talk.bus_says(line) {
                    News::None => {}
                    News::NotNow(why) => return self.lost(why),
                    News::Refused(why) => return self.refused(&why),
                    News::Unauthorized => return self.unauthorized(),
                }
            }
            if peer.inbox.len() > LINE_BYTES_MOST {
                return self.lost("it is no bus".to_owned());
            }
            if count < CHUNK_BYTES {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The connection is of no use any more.
    fn lost(&mut self, why: String) -> Result<(), Fault> {
        let Some(peer) = self.bus.take() else { return Ok(()) };
        self.talk.dropped();
        let why = format!("{}: {why}", peer.at);
        if !self.talk.is_settled() {
            return Err(Fault::Unreachable(format!("no bus answers at {why}")));
        }
        let now = Instant::now();
        match &mut self.outage {
            Some(outage) => outage.again(now, why),
            None => {
                self.outage = Some(Outage { why, give_up: now + OUTAGE, next_try: now, pause: PAUSE_FIRST });
            }
        }
        Ok(())
    }

    fn refused(&mut self, why: &str) -> Result<(), Fault> {
        self.leave_bus(|at| Fault::Failed(format!("the bus at {at} refuses: {why}")));
        Ok(())
    }

    fn unauthorized(&mut self) -> Result<(), Fault> {
        let token = self.options.way.token.as_ref();
        self.leave_bus(|at| Fault::unauthorized(at, token));
        Ok(())
    }

    fn leave_bus(&mut self, why: impl FnOnce(&str) -> Fault) {
        let at = self.bus.take().map_or_else(String::new, |peer| peer.at);
        self.outage = None;
        self.refusal = Some(why(&at));
    }

    fn look_at_the_clock(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        if self.leaving.flatten().is_some_and(|until| until <= now) {
            self.bus = None;
        }
        if self.bus.is_some() {
            return self.look_at_the_step(now);
        }
        if self.ide_is_done() {
            return Ok(());
        }
        let Some(outage) = &mut self.outage else { return Ok(()) };
        if outage.give_up <= now {
            let why = format!("the bus was lost for {} s: {}", OUTAGE.as_secs(), outage.why);
            return Err(self.give_up(why));
        }
        if now < outage.next_try {
            return Ok(());
        }
        let timeout = CONNECT_TIMEOUT.min(outage.give_up - now);
        match self.bell.while_away(|| self.reach.attempt(timeout)) {
            Attempt::Here(arrival) => self.connected(arrival),
            Attempt::NotYet(fault) => outage.again(Instant::now(), fault.to_string()),
            Attempt::Never(fault) => return Err(self.give_up(fault.to_string())),
        }
        Ok(())
    }

    /// What is awaited of a new connection may not take for ever.
    fn look_at_the_step(&mut self, now: Instant) -> Result<(), Fault> {
        let Some(peer) = &mut self.bus else { return Ok(()) };
        if peer.step.0 != self.talk.turn() {
            peer.step = (self.talk.turn(), now + STEP_PATIENCE);
        }
        if self.talk.takes_lines() || now < peer.step.1 {
            return Ok(());
        }
        if self.talk.skip() {
            return Ok(());
        }
        self.lost("no answer".to_owned())
    }

    /// Every request that the IDE has made by now is answered before the program ends.
    fn give_up(&mut self, why: String) -> Fault {
        while !self.input_ended
            && self.inbox.len() < WAITING_BYTES
            && !poll_one(&self.input, PollFlags::POLLIN, Duration::ZERO).is_empty()
        {
            if self.read_ide().is_err() {
                break;
            }
        }
        while let Some(line) = self.inbox.take_line() {
            self.talk.turn_away(line, &why);
        }
        let until = Instant::now() + LAST_PATIENCE;
        while !self.flush_output() && !self.talk.to_ide.waiting().is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            poll_one(&self.output, PollFlags::POLLOUT, left);
        }
        Fault::Unreachable(why)
    }

    /// There is no time for answers, but the bus need not keep the sessions.
    fn leave(&mut self, ended: Ended) -> Ended {
        if self.leaving.is_none() {
            self.talk.say_bye();
        }
        let until = Instant::now() + LAST_PATIENCE / 4;
        self.leaving = Some(Some(until));
        loop {
            self.flush_bus();
            let left = until.saturating_duration_since(Instant::now());
            let Some(peer) = self.bus.as_ref().filter(|peer| !peer.half_closed && !left.is_zero()) else {
                return ended;
            };
            poll_one(&peer.stream, PollFlags::POLLOUT, left);
        }
    }
}

impl Outage {
    fn again(&mut self, now: Instant, why: String) {
        self.why = why;
        self.next_try = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
    }
}

/// What one fd is ready for within this time. Nothing, if a signal comes first.
fn poll_one(fd: &impl AsFd, events: PollFlags, patience: Duration) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), events)];
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, patience) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::empty()),
        Err(_) => PollFlags::empty(),
    }
}

fn is_broken(found: PollFlags) -> bool {
    found.intersects(PollFlags::POLLERR | PollFlags::POLLHUP)
}
