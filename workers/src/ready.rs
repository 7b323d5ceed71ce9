//! Waiting for an fd, also one that was handed over non-blocking.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::lines::Lines;

/// Tells every line until stdin ends; what no newline has ended then is the last one.
pub(crate) fn each_line(stdin: &mut File, mut tell: impl FnMut(&[u8])) -> io::Result<()> {
    let mut lines = Lines::default();
    loop {
        while let Some(line) = lines.next_line() {
            tell(line);
        }
        match lines.fill(stdin) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                is_ready(stdin.as_fd(), PollFlags::POLLIN, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    tell(lines.rest());
    Ok(())
}

/// Waits for room where stdout was handed over non-blocking, as some parents do.
pub(crate) fn write_all<W: Write + AsFd>(stdout: &mut W, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stdout.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                is_ready(stdout.as_fd(), PollFlags::POLLOUT, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the fd is ready (true) or the moment has come (false).
pub(crate) fn is_ready(fd: BorrowedFd<'_>, wanted: PollFlags, until: Option<Instant>) -> io::Result<bool> {
    let timeout = match until {
        None => PollTimeout::NONE,
        Some(until) => {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: a wait that ends before its moment would only be begun again.
            let millis = left.as_nanos().div_ceil(Duration::from_millis(1).as_nanos());
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        }
    };
    match poll(&mut [PollFd::new(fd, wanted)], timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
