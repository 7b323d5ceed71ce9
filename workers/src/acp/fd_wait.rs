//! Reads and writes that block, also on fds that the parent left non-blocking.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::line_reader::LineReader;

/// Calls `on_line` for every line until stdin ends. The last line needs no newline.
pub(crate) fn each_line(stdin: &mut File, mut on_line: impl FnMut(&[u8])) -> io::Result<()> {
    let mut lines = LineReader::default();
    loop {
        while let Some(line) = lines.next_line() {
            on_line(line);
        }
        match lines.fill(stdin) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_ready(stdin.as_fd(), PollFlags::POLLIN, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    on_line(lines.unfinished());
    Ok(())
}

pub(crate) fn write_all<W: Write + AsFd>(stdout: &mut W, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stdout.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_ready(stdout.as_fd(), PollFlags::POLLOUT, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the fd is ready (true) or the deadline passes (false).
pub(crate) fn wait_ready(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    let timeout = match deadline {
        None => PollTimeout::NONE,
        Some(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, because a wait that ends too early only starts again.
            let millis = left.as_nanos().div_ceil(Duration::from_millis(1).as_nanos());
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        }
    };
    match poll(&mut [PollFd::new(fd, events)], timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
