//! The loop of `connect`: one thread waits for the IDE, the bus, a signal or a timer.
//!
//! It stops reading one side while too much is queued for the other. It never looks into a line.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rpc::lines::LINE_BYTES_MAX;
use rpc::{LineReader, Stream};

use super::dial::{Dial, Dialed, Dialer};
use super::options::Options;
use super::relay::{Outcome, Relay};
use crate::connection::CONNECT_TIMEOUT;
use crate::{Ended, Fault, Signals};

/// Most bytes queued for one side before the other is no longer read. A single line may exceed it.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// How long a bus that was just started may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(10);
/// A running bus answers a hello at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// An agent may have to start, or to replay a long session.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a lost bus is dialed again before `connect` gives up.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(30);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long closing may take once nothing else is left to do.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct EventLoop<'a> {
    options: &'a Options,
    signals: &'a Signals,
    dial: Dialer<'a>,
    relay: Relay,
    input: File,
    output: File,
    ide_lines: LineReader,
    /// The IDE has closed its side.
    input_ended: bool,
    bus: Option<BusConnection>,
    /// Set when the bus is lost, cleared when all sessions are reopened.
    outage: Option<Outage>,
    /// The bye is sent.
    is_closing: bool,
    close_deadline: Option<Instant>,
    /// Why the bus rejected the hello. The next request of the IDE is answered with it.
    refusal: Option<Fault>,
    refusal_sent: bool,
}

struct BusConnection {
    stream: Stream,
    at: String,
    lines: LineReader,
    /// Writing failed. Reading goes on until the bus closes.
    write_failed: bool,
    half_closed: bool,
    /// The step of the relay that `step_deadline` is for.
    step: u64,
    step_deadline: Instant,
}

struct Outage {
    why: String,
    give_up: Instant,
    next_try: Instant,
    backoff: Duration,
}

/// What poll(2) reported.
#[derive(Default)]
struct Ready {
    input: bool,
    /// The IDE has closed the reading end.
    output_gone: bool,
    bus: bool,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(
        options: &'a Options,
        input: File,
        output: File,
        signals: &'a Signals,
    ) -> EventLoop<'a> {
        EventLoop {
            options,
            signals,
            dial: Dialer::new(options),
            relay: Relay::new(&options.env, options.attach.clone()),
            input,
            output,
            ide_lines: LineReader::with_limit(LINE_BYTES_MAX),
            input_ended: false,
            bus: None,
            outage: None,
            is_closing: false,
            close_deadline: None,
            refusal: None,
            refusal_sent: false,
        }
    }

    pub(super) fn run(mut self) -> Result<Ended, Fault> {
        let dialed = self.connect_first()?;
        self.on_connected(dialed);
        loop {
            self.forward_ide_lines();
            if self.flush_output() {
                return Ok(self.close_and_end(Ended::Done));
            }
            self.flush_bus();
            if let Some(finished) = self.finished() {
                return finished;
            }
            let ready = self.wait_for_fds();
            if let Some(signal) = self.signals.take() {
                return Ok(self.close_and_end(Ended::Signalled(signal)));
            }
            if ready.output_gone {
                return Ok(self.close_and_end(Ended::Done));
            }
            if ready.input {
                self.read_ide()?;
            }
            if ready.bus {
                self.read_bus()?;
            }
            self.check_timers()?;
        }
    }

    fn connect_first(&mut self) -> Result<Dialed, Fault> {
        let give_up = Instant::now() + START_TIMEOUT;
        self.signals.with_default_action(|| {
            loop {
                match self.dial.dial(CONNECT_TIMEOUT) {
                    Dial::Connected(dialed) => return Ok(dialed),
                    Dial::Failed(fault) => return Err(fault),
                    Dial::Retry(fault) if !self.dial.can_start_bus() => return Err(fault),
                    Dial::Retry(fault) if Instant::now() >= give_up => {
                        let waited = START_TIMEOUT.as_secs();
                        return Err(Fault::Unreachable(format!("{fault}, even {waited} s after a start")));
                    }
                    Dial::Retry(_) => thread::sleep(START_POLL),
                }
            }
        })
    }

    fn on_connected(&mut self, Dialed { stream, at, hello }: Dialed) {
        self.relay.on_connected(&hello);
        self.bus = Some(BusConnection {
            stream,
            at,
            lines: LineReader::with_limit(LINE_BYTES_MAX),
            write_failed: false,
            half_closed: false,
            step: self.relay.step_number(),
            step_deadline: Instant::now() + HELLO_TIMEOUT,
        });
    }

    /// Passes lines of the IDE to the relay until `MAX_QUEUED_BYTES` are queued for the bus.
    fn forward_ide_lines(&mut self) {
        // Lines that are not taken from a connection that cannot write can still go over the next one.
        let write_failed = self.bus.as_ref().is_some_and(|bus| bus.write_failed);
        while self.relay.takes_lines()
            && !write_failed
            && self.relay.to_bus.waiting().len() < MAX_QUEUED_BYTES
        {
            let Some(line) = self.ide_lines.next_line() else { break };
            self.relay.on_ide_line(line);
        }
        if self.relay.is_live() {
            self.outage = None;
        }
        self.refusal_sent |= self.refusal.is_some() && !self.relay.to_ide.is_empty();
        if !self.ide_is_done() || !self.relay.is_live() || self.is_closing {
            return;
        }
        self.relay.on_ide_closed();
        if self.relay.is_all_answered() {
            self.relay.send_bye();
            self.is_closing = true;
            // If an answer may still come, only the bus knows when the last one was sent, so there is no deadline.
            if !self.relay.has_pending() {
                self.close_deadline = Some(Instant::now() + CLOSE_TIMEOUT);
            }
        }
    }

    /// Returns whether the IDE has closed the reading end.
    fn flush_output(&mut self) -> bool {
        while !self.relay.to_ide.is_empty() {
            let ready = poll_one(&self.output, PollFlags::POLLOUT, Duration::ZERO);
            // Some systems cannot poll every kind of file; then the write is simply tried.
            if !ready.intersects(PollFlags::POLLOUT | PollFlags::POLLNVAL) {
                return is_broken(ready);
            }
            // The IDE's pipe is blocking and shared with its parent, so its flags are left alone. A pipe that
            // is ready takes PIPE_BUF bytes without blocking.
            let waiting = self.relay.to_ide.waiting();
            match self.output.write(&waiting[..waiting.len().min(PIPE_BUF)]) {
                Ok(count) => self.relay.to_ide.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
        false
    }

    fn flush_bus(&mut self) {
        let Some(bus) = &mut self.bus else { return };
        while !bus.write_failed && !self.relay.to_bus.is_empty() {
            match bus.stream.write(self.relay.to_bus.waiting()) {
                Ok(count) => self.relay.to_bus.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => bus.write_failed = true,
            }
        }
        if self.is_closing && !bus.half_closed {
            // Everything is written, or cannot be written.
            bus.half_closed = true;
            let _ = bus.stream.half_close();
        }
    }

    /// Returns how the command ends once nothing is left to do.
    fn finished(&mut self) -> Option<Result<Ended, Fault>> {
        if !self.relay.to_ide.is_empty() {
            return None;
        }
        if self.refusal.is_some() && (self.refusal_sent || self.ide_is_done()) {
            return self.refusal.take().map(Err);
        }
        // Every request was answered when the bus was lost, so nothing would be gained by waiting for it.
        let is_lost = self.bus.is_none() || self.outage.is_some();
        (is_lost && self.refusal.is_none() && self.ide_is_done()).then_some(Ok(Ended::Done))
    }

    /// The IDE has closed its side and all its lines are forwarded.
    fn ide_is_done(&self) -> bool {
        self.input_ended && self.ide_lines.unread().is_empty()
    }

    fn wait_for_fds(&mut self) -> Ready {
        let wants_input = !self.input_ended
            && (self.ide_lines.unread().len() < MAX_QUEUED_BYTES || !self.ide_lines.has_line());
        let mut output_events = PollFlags::empty();
        output_events.set(PollFlags::POLLOUT, !self.relay.to_ide.is_empty());
        let mut bus_events = PollFlags::empty();
        if let Some(bus) = &self.bus {
            bus_events.set(PollFlags::POLLIN, self.relay.to_ide.waiting().len() < MAX_QUEUED_BYTES);
            bus_events.set(PollFlags::POLLOUT, !bus.write_failed && !self.relay.to_bus.is_empty());
        }
        let timeout = self.poll_timeout();
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.output.as_fd(), output_events),
        ];
        // An fd that is not wanted is left out: poll would report its end again and again.
        if wants_input {
            fds.push(PollFd::new(self.input.as_fd(), PollFlags::POLLIN));
        }
        if let Some(bus) = &self.bus
            && !bus_events.is_empty()
        {
            fds.push(PollFd::new(bus.stream.as_fd(), bus_events));
        }
        if poll(&mut fds, timeout).is_err() {
            // A signal interrupted poll; `signals` knows which.
            return Ready::default();
        }
        let ready_at = |at: usize| fds.get(at).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        let bus_at = 2 + usize::from(wants_input);
        Ready {
            input: wants_input && !ready_at(2).is_empty(),
            output_gone: is_broken(ready_at(1)),
            bus: !ready_at(bus_at).is_empty(),
        }
    }

    fn poll_timeout(&self) -> PollTimeout {
        let next_try = match (&self.bus, &self.outage) {
            (Some(bus), _) if !self.relay.takes_lines() => Some(bus.step_deadline),
            (None, Some(outage)) => Some(outage.next_try.min(outage.give_up)),
            _ => None,
        };
        let times = [next_try, self.close_deadline];
        let Some(next) = times.into_iter().flatten().min() else { return PollTimeout::NONE };
        // Rounds up to whole milliseconds: waking too early would only poll once more.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    fn read_ide(&mut self) -> Result<(), Fault> {
        match self.ide_lines.fill(&mut self.input) {
            Ok(1..) => return Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock => return Ok(()),
                ErrorKind::InvalidData => {
                    let why = format!("the client sent a line of more than {LINE_BYTES_MAX} bytes");
                    return Err(Fault::Failed(why));
                }
                // A broken input counts as closed.
                _ => {}
            },
            Ok(0) => {}
        }
        self.input_ended = true;
        self.ide_lines.finish();
        Ok(())
    }

    fn read_bus(&mut self) -> Result<(), Fault> {
        while self.relay.to_ide.waiting().len() < MAX_QUEUED_BYTES {
            let Some(bus) = &mut self.bus else { return Ok(()) };
            match bus.lines.fill(&mut bus.stream) {
                Ok(0) => return self.on_lost("it closed the connection".to_owned()),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::InvalidData => return self.on_lost("it is not a bus".to_owned()),
                    _ => return self.on_lost(error.to_string()),
                },
            }
            let is_drained = bus.lines.has_room();
            while let Some(line) = bus.lines.next_line() {
                match self.relay.on_bus_line(line) {
                    Outcome::None => {}
                    Outcome::RetryLater(why) => return self.on_lost(why),
                    Outcome::Refused(why) => {
                        self.on_rejected(|at| Fault::Failed(format!("the bus at {at} refuses: {why}")));
                        return Ok(());
                    }
                    Outcome::Unauthorized => {
                        let token = self.options.target.token.as_ref();
                        self.on_rejected(|at| Fault::unauthorized(at, token));
                        return Ok(());
                    }
                }
            }
            if is_drained {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Drops the connection and schedules the next attempt, if there is to be one.
    fn on_lost(&mut self, why: String) -> Result<(), Fault> {
        let Some(bus) = self.bus.take() else { return Ok(()) };
        self.relay.on_disconnected(self.options.node.as_deref());
        let why = format!("{}: {why}", bus.at);
        if !self.relay.was_admitted() {
            return Err(Fault::Unreachable(format!("no bus answers at {why}")));
        }
        if let Some(node) = &self.options.node
            && !self.ide_is_done()
        {
            self.flush_last_output();
            return Err(Fault::Unreachable(format!("the bus of node {node} is lost: {why}")));
        }
        let now = Instant::now();
        match &mut self.outage {
            Some(outage) => outage.schedule_retry(now, why),
            None => {
                self.outage = Some(Outage {
                    why,
                    give_up: now + OUTAGE_TIMEOUT,
                    next_try: now,
                    backoff: BACKOFF_FIRST,
                });
            }
        }
        Ok(())
    }

    fn on_rejected(&mut self, why: impl FnOnce(&str) -> Fault) {
        let at = self.bus.take().map_or_else(String::new, |bus| bus.at);
        self.outage = None;
        self.refusal = Some(why(&at));
    }

    fn check_timers(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        if self.close_deadline.is_some_and(|until| until <= now) {
            self.bus = None;
        }
        if self.bus.is_some() {
            return self.check_step_timeout(now);
        }
        if self.ide_is_done() {
            return Ok(());
        }
        let Some(outage) = &mut self.outage else { return Ok(()) };
        if outage.give_up <= now {
            let why = format!("the bus was lost for {} s: {}", OUTAGE_TIMEOUT.as_secs(), outage.why);
            return Err(self.give_up(why));
        }
        if now < outage.next_try {
            return Ok(());
        }
        let timeout = CONNECT_TIMEOUT.min(outage.give_up - now);
        match self.signals.with_default_action(|| self.dial.dial(timeout)) {
            Dial::Connected(dialed) => self.on_connected(dialed),
            Dial::Retry(fault) => outage.schedule_retry(Instant::now(), fault.to_string()),
            Dial::Failed(fault) => return Err(self.give_up(fault.to_string())),
        }
        Ok(())
    }

    /// Limits how long one step of a new connection may take.
    fn check_step_timeout(&mut self, now: Instant) -> Result<(), Fault> {
        let Some(bus) = &mut self.bus else { return Ok(()) };
        if bus.step != self.relay.step_number() {
            bus.step = self.relay.step_number();
            bus.step_deadline = now + STEP_TIMEOUT;
        }
        if self.relay.takes_lines() || now < bus.step_deadline || self.relay.skip_step() {
            return Ok(());
        }
        self.on_lost("no answer".to_owned())
    }

    /// Answers every request that the IDE has sent so far, then returns the fault.
    fn give_up(&mut self, why: String) -> Fault {
        while !self.input_ended
            && self.ide_lines.unread().len() < MAX_QUEUED_BYTES
            && !poll_one(&self.input, PollFlags::POLLIN, Duration::ZERO).is_empty()
        {
            if self.read_ide().is_err() {
                break;
            }
        }
        while let Some(line) = self.ide_lines.next_line() {
            self.relay.refuse_line(line, &why);
        }
        self.flush_last_output();
        Fault::Unreachable(why)
    }

    /// Gives the IDE a while to take what is left for it.
    fn flush_last_output(&mut self) {
        let until = Instant::now() + CLOSE_TIMEOUT;
        while !self.flush_output() && !self.relay.to_ide.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            poll_one(&self.output, PollFlags::POLLOUT, left);
        }
    }

    /// Sends the bye without waiting for answers, so that the bus does not keep the sessions.
    fn close_and_end(&mut self, ended: Ended) -> Ended {
        if !self.is_closing {
            self.relay.send_bye();
        }
        let until = Instant::now() + CLOSE_TIMEOUT / 4;
        self.is_closing = true;
        loop {
            self.flush_bus();
            let left = until.saturating_duration_since(Instant::now());
            let Some(bus) = self.bus.as_ref().filter(|bus| !bus.half_closed && !left.is_zero()) else {
                return ended;
            };
            poll_one(&bus.stream, PollFlags::POLLOUT, left);
        }
    }
}

impl Outage {
    fn schedule_retry(&mut self, now: Instant, why: String) {
        self.why = why;
        self.next_try = now + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }
}

/// Polls one fd. Returns nothing if a signal comes first.
fn poll_one(fd: &impl AsFd, events: PollFlags, timeout: Duration) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), events)];
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::empty()),
        Err(_) => PollFlags::empty(),
    }
}

fn is_broken(ready_at: PollFlags) -> bool {
    ready_at.intersects(PollFlags::POLLERR | PollFlags::POLLHUP)
}
