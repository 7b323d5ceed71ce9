//! The loop: poll, read what is ready, tell the core, write what it has to say.
//!
//! A turn is one poll. In it each link is read at most once, and written at its end with all that the turn has
//! gathered for it, much of it before; who has more to read goes to the back of the run queue. Nothing here blocks
//! but poll.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use log::info;
use memchr::memrchr;
use mio::{Events, Poll};
use nix::errno::Errno;
use nix::unistd::{read, write};

use kernel_core::config::Config;
use kernel_core::id::{Arena, Key, Link, WorkerId};
use kernel_core::{Action, Bus, Event, Moment};

use crate::handshake_cache::Memory;
use crate::net::accept::{Complaint, Door, StdioModes};
use crate::peer_io::{Kind, Links, Peer, RunQueue, Stream, Task, key_and_stream};
use crate::process::orphan_guard::Guard;
use crate::process::pre_exec::{FoundLimits, fds_at_most};
use crate::process::spawn::Process;
use crate::sd_notify::Notify;
use crate::signals::{SIGNALS, Signals};
use crate::{Options, ServeError};

const EVENTS_A_TURN: usize = 1024;
/// The one buffer that everything is read into, and so also the most that a link is read a turn.
pub(crate) const SCRATCH_BYTES: usize = 64 << 10;

/// The part of what was read that the core gets first, which is at least so much.
const FIRST_PART: usize = 4;
const FIRST_BYTES: usize = 4 << 10;

pub(crate) struct Shell {
    pub(crate) bus: Bus,
    memory: Memory,
    pub(crate) poll: Poll,
    start: Instant,
    /// When this turn began.
    pub(crate) now: Moment,
    pub(crate) scratch: Box<[u8]>,
    pub(crate) links: Links,
    pub(crate) queue: RunQueue,
    /// Links with bytes waiting that can be written to again.
    writable: Vec<Link>,
    signals: Signals,
    signalled: bool,
    pub(crate) doors: Arena<Door>,
    /// When doors are tried again after the machine had no fd or memory for a connection.
    pub(crate) accept_again: Option<Moment>,
    pub(crate) shortage_told: bool,
    pub(crate) turned_away: Complaint,
    pub(crate) stdio: Option<StdioModes>,
    pub(crate) processes: Vec<Process>,
    /// Starting a process can take milliseconds, so there is at most one a turn.
    pub(crate) spawns: VecDeque<(WorkerId, Link)>,
    pub(crate) guard: Guard,
    pub(crate) limits: FoundLimits,
    pub(crate) fds_at_most: usize,
    notify: Notify,
    pub(crate) this_binary: PathBuf,
    reload: Box<dyn Fn() -> Result<Config, String>>,
    pub(crate) stopping: bool,
    done: bool,
}

impl Shell {
    pub(crate) fn open(options: Options) -> Result<Shell, ServeError> {
        let Options { config, reload, this_binary, memory, guard_args } = options;
        let system = |what| move |fault| ServeError::System { what, fault };
        let limits = FoundLimits::replace();
        let start = Instant::now();
        let now = Moment::ZERO;
        let poll = Poll::new().map_err(system("cannot create a poll"))?;
        let signals = Signals::listen(poll.registry()).map_err(system("cannot listen to signals"))?;
        let seed = seed().map_err(system("cannot get random bytes"))?;
        // Before the guard: a second bus at the same address is to fail without having started anything.
        let opened = Shell::open_doors(&config.listen, config.auth.is_some())?;
        let guard = Guard::start(this_binary.clone(), guard_args, limits, now).map_err(ServeError::Guard)?;
        let memory = Memory::new(memory);
        let mut bus = Bus::new(&config, seed, now);
        memory.recall(&mut bus);
        let mut shell = Shell {
            bus,
            memory,
            poll,
            start,
            now,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            links: Links::default(),
            queue: RunQueue::default(),
            writable: Vec::new(),
            signals,
            signalled: false,
            doors: Arena::default(),
            accept_again: None,
            shortage_told: false,
            turned_away: Complaint::default(),
            stdio: None,
            processes: Vec::new(),
            spawns: VecDeque::new(),
            guard,
            limits,
            fds_at_most: fds_at_most(),
            notify: Notify::of_this_process(),
            this_binary,
            reload,
            stopping: false,
            done: false,
        };
        shell.install(&config.listen, opened)?;
        Ok(shell)
    }

    pub(crate) fn run(mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(EVENTS_A_TURN);
        self.act();
        self.notify.ready();
        let end = loop {
            if self.done {
                break Ok(());
            }
            match self.poll.poll(&mut events, self.timeout()) {
                Ok(()) => {}
                // By a signal, whose bell may not have rung. What is ready comes first: an alarm that is due must not
                // blame those who were not looked at.
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => {
                    self.signalled = true;
                    continue;
                }
                Err(fault) => break Err(ServeError::Poll(fault)),
            }
            self.now = self.start.elapsed();
            for event in &events {
                self.note(event);
            }
            self.turn();
        };
        self.leave();
        end
    }

    /// None: until something happens.
    fn timeout(&self) -> Option<Duration> {
        let more = !self.queue.is_empty() || !self.writable.is_empty() || !self.spawns.is_empty();
        if more || self.signalled {
            return Some(Duration::ZERO);
        }
        let own = [
            self.accept_again,
            self.guard.next_retry(),
            self.turned_away.next_word(),
            self.notify.next_beat(),
        ];
        let next = own.into_iter().chain([self.bus.next_alarm()]).flatten().min()?;
        Some(next.saturating_sub(self.start.elapsed()))
    }

    /// Remembers what an event says. Events of closed fds carry an old key and find nothing.
    fn note(&mut self, event: &mio::event::Event) {
        let (key, stream) = key_and_stream(event.token());
        if stream == Stream::House {
            return self.note_house(key);
        }
        let link = Link(key);
        let Some(peer) = self.links.get_mut(link) else { return };
        let arrived = event.is_readable() || event.is_read_closed() || event.is_error();
        if stream == Stream::Mutter {
            if let Some(mutter) = &mut peer.mutter {
                mutter.hung_up |= event.is_read_closed();
                self.queue.push(Task::Mutter(link), &mut mutter.queued);
            }
            return;
        }
        if stream == Stream::Input && arrived {
            peer.can_read = !peer.ended;
            peer.hung_up |= event.is_read_closed();
            peer.dead |= peer.is_socket() && event.is_write_closed();
            self.queue.push(Task::Read(link), &mut peer.queued);
        }
        // A pipe whose reader has gone says so without being writable; the write will find out.
        let opened = event.is_writable() || event.is_write_closed() || event.is_error();
        if opened && (stream == Stream::Output || peer.is_socket()) && !peer.can_write && !peer.broken {
            peer.can_write = true;
            self.writable.push(link);
        }
    }

    fn note_house(&mut self, key: Key) {
        if key == SIGNALS {
            self.signalled = true;
        } else if let Some(door) = self.doors.get_mut(key) {
            self.queue.push(Task::Accept(key), &mut door.queued);
        }
    }

    fn turn(&mut self) {
        if std::mem::take(&mut self.signalled) || self.signals.wait() {
            self.hear();
        }
        self.notify.beat(self.now);
        self.guard.retry(self.now);
        self.retry_doors();
        // Those who come back for more during this turn wait for the next one.
        for _ in 0..self.queue.len() {
            match self.queue.pop() {
                Some(Task::Read(link)) => self.read(link),
                Some(Task::Mutter(link)) => self.read_mutter(link),
                Some(Task::Accept(door)) => self.accept(door),
                None => break,
            }
        }
        let waiting = self.writable.len();
        for at in 0..waiting {
            self.flush(self.writable[at]);
        }
        self.writable.drain(..waiting);
        // After all that could be read and written: a bus that was stopped for a while blames nobody for it.
        if self.bus.next_alarm().is_some_and(|alarm| alarm <= self.now) {
            self.bus.handle(Event::Alarm, self.now);
        }
        if let Some((worker, link)) = self.spawns.pop_front() {
            self.spawn(worker, link);
        }
        self.act();
        self.memory.keep(&mut self.bus);
    }

    fn hear(&mut self) {
        let heard = self.signals.heard();
        if heard.child {
            self.reap();
            self.guard.check(self.now);
        }
        for _ in 0..heard.stops {
            self.stop();
        }
        if heard.reload && !self.stopping {
            self.reload();
        }
    }

    fn reload(&mut self) {
        let fault = match (self.reload)() {
            Ok(config) => match self.change_doors(&config) {
                Ok(()) => {
                    self.bus.reload(&config, self.now);
                    info!("the configuration was read again");
                    return;
                }
                Err(fault) => fault.to_string(),
            },
            Err(faults) => faults,
        };
        for line in fault.lines() {
            log::error!("reload refused: {line}");
        }
    }

    /// The first time no more clients are let in; the second time the core gives up on those that are.
    pub(crate) fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.notify.stopping();
            self.close_doors();
        }
        self.bus.handle(Event::Stop, self.now);
    }

    /// Does what the core says until it has nothing more to say.
    fn act(&mut self) {
        while let Some(action) = self.bus.next_action() {
            match action {
                Action::Flush(link) => self.flush(link),
                Action::Resume(link) => {
                    if let Some(peer) = self.links.get_mut(link) {
                        self.queue.push(Task::Read(link), &mut peer.queued);
                    }
                }
                Action::CloseStdin(link) => self.close_stdin(link),
                Action::Close(link) => self.close(link),
                Action::Spawn(worker, link) => self.spawns.push_back((worker, link)),
                Action::Signal(worker, signal) => self.signal(worker, signal),
                Action::Exit => self.done = true,
            }
        }
    }

    /// One read, if there is something to read and the core wants it.
    pub(crate) fn read(&mut self, link: Link) {
        let Some(peer) = self.links.get_mut(link) else { return };
        peer.queued = false;
        if !peer.can_read || !self.bus.wants_read(link) {
            if peer.dead {
                self.hear_out(link);
                self.tell_broken(link);
            }
            return;
        }
        match read(peer.input(), &mut self.scratch) {
            Ok(0) => self.tell_ended(link),
            Ok(count) => {
                let dry = count < self.scratch.len() && peer.short_is_dry && !peer.hung_up;
                peer.can_read = !dry;
                if peer.can_read || peer.dead {
                    self.queue.push(Task::Read(link), &mut peer.queued);
                }
                self.take_in(link, count);
            }
            Err(Errno::EAGAIN) => {
                peer.can_read = false;
                if peer.dead {
                    self.tell_broken(link);
                }
            }
            Err(Errno::EINTR) => self.queue.push(Task::Read(link), &mut peer.queued),
            Err(_) if peer.is_socket() => self.tell_broken(link),
            Err(_) => self.tell_ended(link),
        }
    }

    /// Gives the core what was read: a first part, then the rest. Who is owed much after the first is written to at
    /// once, and so works on that while the bus works on the rest.
    fn take_in(&mut self, link: Link, count: usize) {
        let first = whole_lines(&self.scratch[..count], FIRST_BYTES.max(count / FIRST_PART));
        self.bus.received(link, &self.scratch[..first], self.now);
        if let Some(owed) = self.bus.take_bulk() {
            self.flush(owed);
        }
        if first < count {
            self.bus.received(link, &self.scratch[first..count], self.now);
        }
    }

    /// A client has gone while the core did not want to read it. What it said before is in the kernel's buffer, and
    /// there will be no other time.
    fn hear_out(&mut self, link: Link) {
        loop {
            let Some(peer) = self.links.get_mut(link).filter(|peer| !peer.ended) else { return };
            match read(peer.input(), &mut self.scratch) {
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => return,
                Ok(count) => self.bus.received(link, &self.scratch[..count], self.now),
            }
        }
    }

    /// The one place where bytes leave. One write; what does not fit waits for the edge.
    fn flush(&mut self, link: Link) {
        let Some(peer) = self.links.get_mut(link) else { return };
        if !peer.can_write || peer.broken {
            return;
        }
        let bytes = self.bus.to_send(link);
        let Some(output) = peer.output().filter(|_| !bytes.is_empty()) else { return };
        let outcome = loop {
            match write(output, bytes) {
                Err(Errno::EINTR) => {}
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(count) => {
                if count < bytes.len() {
                    peer.can_write = !peer.short_is_dry;
                    if peer.can_write {
                        self.writable.push(link);
                    }
                }
                self.bus.sent(link, count, self.now);
            }
            Err(Errno::EAGAIN) => peer.can_write = false,
            // What a client said before it left is still to be read.
            Err(_) if peer.is_socket() => {
                peer.can_write = false;
                peer.dead = true;
                self.queue.push(Task::Read(link), &mut peer.queued);
            }
            Err(_) => self.tell_broken(link),
        }
    }

    fn tell_ended(&mut self, link: Link) {
        let Some(peer) = self.links.get_mut(link) else { return };
        peer.can_read = false;
        if peer.dead {
            return self.tell_broken(link);
        }
        if !std::mem::replace(&mut peer.ended, true) {
            self.bus.handle(Event::Ended(link), self.now);
        }
    }

    fn tell_broken(&mut self, link: Link) {
        let Some(peer) = self.links.get_mut(link) else { return };
        peer.can_write = false;
        if !std::mem::replace(&mut peer.broken, true) {
            self.bus.handle(Event::Broken(link), self.now);
        }
    }

    /// The core may use the index of a link again in the turn in which it closes it, and then its word to close
    /// the old one is still on its way.
    pub(crate) fn add(&mut self, peer: Peer) {
        if let Some(old) = self.links.predecessor(peer.link) {
            self.close(old);
        }
        self.links.insert(peer);
    }

    fn close(&mut self, link: Link) {
        self.give_up_process(link);
        let Some(peer) = self.links.remove(link) else { return };
        let kind = peer.kind;
        peer.close(self.poll.registry());
        // The bus is there for the program that has started it, and ends with it.
        if kind == Kind::Stdio && !self.stopping {
            self.stop();
        }
    }

    /// Leaves nothing behind: no process, no socket file, no changed terminal.
    fn leave(mut self) {
        self.end_processes();
        self.guard.dismiss();
    }
}

/// How many bytes the lines are long that fit into `at_most`. All of them, if not even one does.
fn whole_lines(bytes: &[u8], at_most: usize) -> usize {
    let end = bytes.get(..at_most).and_then(|head| memrchr(b'\n', head));
    end.map_or(bytes.len(), |end| end + 1)
}

/// What session tags are drawn from.
fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_cut_behind_a_line() {
        assert_eq!(whole_lines(b"ab\ncd\nef", 100), 8);
        assert_eq!(whole_lines(b"ab\ncd\nef", 7), 6);
        assert_eq!(whole_lines(b"ab\ncd\nef", 5), 3);
        assert_eq!(whole_lines(b"abcdef\ngh", 4), 9);
        assert_eq!(whole_lines(b"", 4), 0);
    }
}
