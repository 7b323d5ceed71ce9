//! A socket or a pair of pipes, as a test uses it: bytes out, lines and counted bytes in, each with a deadline.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::linger;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use rpc::LineReader;
use rpc::fd_wait::{self, PollFlags};

use super::log::Log;
use super::waiting::PATIENCE;

pub(crate) struct Connection {
    input: File,
    /// `None` once it is closed.
    output: Option<File>,
    lines: LineReader,
    ended: bool,
    /// The name of this end in failure messages.
    who: String,
    log: Log,
}

impl Connection {
    pub(crate) fn socket(who: &str, socket: impl Into<OwnedFd>, log: &Log) -> Connection {
        let input = socket.into();
        let output = input.try_clone().expect("an fd more");
        Connection::pipes(who, input, output, log)
    }

    pub(crate) fn pipes(
        who: &str,
        input: impl Into<OwnedFd>,
        output: impl Into<OwnedFd>,
        log: &Log,
    ) -> Connection {
        let (input, output) = (input.into(), output.into());
        for fd in [&input, &output] {
            let flags = fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).expect("flags");
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).expect("flags");
        }
        Connection {
            input: input.into(),
            output: Some(output.into()),
            lines: LineReader::default(),
            ended: false,
            who: who.to_owned(),
            log: log.clone(),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if let Err(error) = self.try_send(bytes) {
            self.fail(&format!("could not send: {error}"));
        }
    }

    /// Returns an error if the other side has closed.
    pub(crate) fn try_send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            bytes = &bytes[self.send_some(bytes)?..];
            if !bytes.is_empty() && !is_ready(self.output().as_fd(), PollFlags::POLLOUT, deadline) {
                self.fail(&format!("could not send {} bytes", bytes.len()));
            }
        }
        Ok(())
    }

    /// Sends as many bytes as the other side takes now.
    pub(crate) fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.output().write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            outcome => outcome,
        }
    }

    /// The next line, without its newline.
    pub(crate) fn line(&mut self) -> Vec<u8> {
        let line = self.line_or_end();
        line.unwrap_or_else(|| self.fail("waited for a line, but the connection was closed"))
    }

    /// `None`: the connection is closed.
    pub(crate) fn line_or_end(&mut self) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        while !self.lines.has_line() {
            if !self.fill("a line", deadline) {
                return None;
            }
        }
        self.lines.next_line().map(<[u8]>::to_vec)
    }

    /// So many bytes. `None`: the connection is closed before.
    pub(crate) fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        while self.lines.unread().len() < count {
            if !self.fill("bytes", deadline) {
                return None;
            }
        }
        let bytes = self.lines.unread()[..count].to_vec();
        self.lines.consume(count);
        Some(bytes)
    }

    /// Takes all that has come so far, and says how much it was.
    pub(crate) fn takes_all(&mut self) -> usize {
        while self.has_input() && self.fill("bytes", Instant::now()) {}
        let count = self.lines.unread().len();
        self.lines.consume(count);
        count
    }

    /// Waits until the other side has closed. Nothing else may come before.
    pub(crate) fn is_closed(&mut self) {
        if let Some(line) = self.line_or_end() {
            self.fail(&format!("should be closed, but received {}", short(&line)));
        }
        let rest = self.lines.unread();
        if !rest.is_empty() {
            self.fail(&format!("should be closed, but received {}", short(rest)));
        }
    }

    /// Sends nothing more; what comes can still be read.
    pub(crate) fn half_closes(&mut self) {
        if let Some(output) = self.output.take() {
            let _ = shutdown(output.as_raw_fd(), Shutdown::Write);
        }
    }

    /// Resets a socket.
    pub(crate) fn breaks(self) {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.input, sockopt::Linger, &at_once).expect("a socket");
    }

    /// Whether something can be read now.
    pub(crate) fn has_more(&self) -> bool {
        !self.lines.unread().is_empty() || self.has_input()
    }

    pub(crate) fn fail(&self, what: &str) -> ! {
        let unread = short(self.lines.unread());
        panic!("{} {what}; unread: {unread}\n--- log of the bus\n{}", self.who, self.log.text());
    }

    fn output(&mut self) -> &mut File {
        self.output.as_mut().expect("it is still open")
    }

    fn has_input(&self) -> bool {
        is_ready(self.input.as_fd(), PollFlags::POLLIN, Instant::now())
    }

    /// Reads once. False: the connection is closed.
    fn fill(&mut self, what: &str, deadline: Instant) -> bool {
        if self.ended {
            return false;
        }
        if !is_ready(self.input.as_fd(), PollFlags::POLLIN, deadline) {
            self.fail(&format!("waited {PATIENCE:?} for {what}"));
        }
        match self.lines.fill(&mut self.input) {
            Ok(count) => self.ended = count == 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The other side closed before it read all that was sent.
            Err(_) => self.ended = true,
        }
        !self.ended
    }
}

fn is_ready(fd: BorrowedFd<'_>, wanted: PollFlags, deadline: Instant) -> bool {
    fd_wait::wait(fd, wanted, Some(deadline)).is_ok()
}

/// Bytes for a failure message, which may be megabytes.
pub(crate) fn short(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    if bytes.len() > 2000 { format!("{text}.. ({} bytes)", bytes.len()) } else { format!("{text:?}") }
}
