//! One conversation over fds: bytes out, lines and counted bytes in, each with a deadline.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::linger;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};

use super::PATIENCE;
use super::log::Log;

pub(crate) struct Wire {
    input: File,
    /// None: closed, or the same as `input`.
    output: Option<File>,
    /// Read but not taken. What lies before `searched` holds no newline.
    inbox: Vec<u8>,
    searched: usize,
    ended: bool,
    /// For messages.
    who: String,
    log: Log,
}

impl Wire {
    pub(crate) fn socket(who: &str, socket: impl Into<OwnedFd>, log: &Log) -> Wire {
        let input = socket.into();
        let output = input.try_clone().expect("an fd more");
        Wire::pipes(who, input, output, log)
    }

    pub(crate) fn pipes(who: &str, input: impl Into<OwnedFd>, output: impl Into<OwnedFd>, log: &Log) -> Wire {
        let (input, output) = (input.into(), output.into());
        for fd in [&input, &output] {
            let flags = fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).expect("flags");
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).expect("flags");
        }
        let output = Some(output.into());
        let who = who.to_owned();
        Wire {
            input: input.into(),
            output,
            inbox: Vec::new(),
            searched: 0,
            ended: false,
            who,
            log: log.clone(),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if let Err(fault) = self.try_send(bytes) {
            self.fail(&format!("could not send: {fault}"));
        }
    }

    /// Fails where the other side has gone.
    pub(crate) fn try_send(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            bytes = &bytes[self.send_some(bytes)?..];
            if !bytes.is_empty() && !self.is_ready(PollFlags::POLLOUT, deadline) {
                self.fail(&format!("could not get rid of {} bytes", bytes.len()));
            }
        }
        Ok(())
    }

    /// As many as can be sent without waiting.
    pub(crate) fn send_some(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let output = self.output.as_mut().expect("it is still open");
        match output.write(bytes) {
            Err(fault) if fault.kind() == ErrorKind::WouldBlock => Ok(0),
            outcome => outcome,
        }
    }

    /// The next line, without its newline.
    pub(crate) fn line(&mut self) -> Vec<u8> {
        let line = self.line_or_end();
        line.unwrap_or_else(|| self.fail("waited for a line, but it was closed"))
    }

    /// None: there will be no more.
    pub(crate) fn line_or_end(&mut self) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(end) = self.inbox[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                self.searched = 0;
                let mut line: Vec<u8> = self.inbox.drain(..=end).collect();
                line.pop();
                return Some(line);
            }
            self.searched = self.inbox.len();
            if !self.fill("a line", deadline) {
                return None;
            }
        }
    }

    /// Exactly so many bytes.
    pub(crate) fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        while self.inbox.len() < count {
            if !self.fill("bytes", deadline) {
                return None;
            }
        }
        self.searched = 0;
        Some(self.inbox.drain(..count).collect())
    }

    /// Takes what is there now. How much it was.
    pub(crate) fn takes_all(&mut self) -> usize {
        while self.is_ready(PollFlags::POLLIN, Instant::now()) && self.fill("bytes", Instant::now()) {}
        self.searched = 0;
        std::mem::take(&mut self.inbox).len()
    }

    /// Waits for the end of it. What else came is an error.
    pub(crate) fn is_closed(&mut self) {
        if let Some(line) = self.line_or_end() {
            self.fail(&format!("was to be closed, but saw {}", short(&line)));
        }
        if !self.inbox.is_empty() {
            self.fail(&format!("was to be closed, but saw {}", short(&self.inbox)));
        }
    }

    /// Nothing more will be sent; what comes is still read.
    pub(crate) fn half_closes(&mut self) {
        if let Some(output) = self.output.take() {
            let _ = shutdown(output.as_raw_fd(), Shutdown::Write);
        }
    }

    /// A socket is reset.
    pub(crate) fn breaks(self) {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.input, sockopt::Linger, &at_once).expect("a socket");
    }

    /// Whether something is there to be taken, now.
    pub(crate) fn has_more(&self) -> bool {
        !self.inbox.is_empty() || self.is_ready(PollFlags::POLLIN, Instant::now())
    }

    pub(crate) fn fail(&self, what: &str) -> ! {
        let inbox = short(&self.inbox);
        panic!("{} {what}; not taken yet: {inbox}\n--- log of the bus\n{}", self.who, self.log.text());
    }

    /// False: it has ended.
    fn fill(&mut self, what: &str, deadline: Instant) -> bool {
        if self.ended {
            return false;
        }
        if !self.is_ready(PollFlags::POLLIN, deadline) {
            self.fail(&format!("waited {PATIENCE:?} for {what}"));
        }
        let mut chunk = vec![0; 256 << 10];
        match self.input.read(&mut chunk) {
            Ok(count) => {
                self.ended = count == 0;
                self.inbox.extend_from_slice(&chunk[..count]);
            }
            Err(fault) if fault.kind() == ErrorKind::WouldBlock => {}
            // Closed while something that we sent was not read.
            Err(_) => self.ended = true,
        }
        !self.ended
    }

    fn is_ready(&self, flags: PollFlags, deadline: Instant) -> bool {
        let fd = match flags == PollFlags::POLLOUT {
            true => self.output.as_ref().expect("it is still open").as_fd(),
            false => self.input.as_fd(),
        };
        loop {
            // Whole milliseconds, rounded up.
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            let left = PollTimeout::try_from(left).expect("it is short");
            match poll(&mut [PollFd::new(fd, flags)], left) {
                Ok(0) if Instant::now() >= deadline => return false,
                Ok(0) | Err(_) => {}
                Ok(_) => return true,
            }
        }
    }
}

/// For messages: a line may be megabytes.
pub(crate) fn short(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    if bytes.len() > 2000 { format!("{text}.. ({} bytes)", bytes.len()) } else { format!("{text:?}") }
}
