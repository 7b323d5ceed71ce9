//! Waiting for a file descriptor, also one that another process has made non-blocking: a process shares the flags
//! of its stdin and stdout with its parent.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
pub use nix::poll::PollFlags;
use nix::poll::{PollFd, PollTimeout, poll};

/// Waits until `fd` is ready (true), or until the deadline has passed or a signal has come (false).
pub fn is_ready(fd: BorrowedFd<'_>, wanted: PollFlags, until: Option<Instant>) -> io::Result<bool> {
    let timeout = match until {
        None => PollTimeout::NONE,
        Some(until) => {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up, because a wait that ends before its deadline would only begin again.
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

/// Like `is_ready`, but signals do not end the wait, and a deadline that has passed is the error `TimedOut`.
pub fn wait(fd: BorrowedFd<'_>, wanted: PollFlags, until: Option<Instant>) -> io::Result<()> {
    while !is_ready(fd, wanted, until)? {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Writes all the bytes, in one system call if the sink takes them. Waits while a non-blocking sink is full.
pub fn write_all(sink: &mut (impl Write + AsFd), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match sink.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(sink.as_fd(), PollFlags::POLLOUT, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn a_deadline_ends_a_wait() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let soon = Instant::now() + Duration::from_millis(5);
        let error = wait(ours.as_fd(), PollFlags::POLLIN, Some(soon)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn a_full_non_blocking_sink_is_waited_for() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let bytes = vec![b'x'; 4 << 20];
        let reader = thread::spawn(move || {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).map(|_| read.len())
        });
        write_all(&mut ours, &bytes).unwrap();
        drop(ours);
        assert_eq!(reader.join().unwrap().unwrap(), bytes.len());
    }
}
