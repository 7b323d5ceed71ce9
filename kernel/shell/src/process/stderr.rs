//! Reads the stderr of workers: for the core, which keeps the last line, and for the log.

use std::os::fd::AsFd;

use log::{debug, log_enabled};
use nix::errno::Errno;
use nix::unistd::read;

use kernel_core::id::Link;

use crate::io::Io;
use crate::peer::Task;

/// A longer line is logged up to here.
const LOGGED_BYTES: usize = 1024;

/// Reads once, and queues the next read if there may be more.
pub(crate) fn read_queued(link: Link, io: &mut Io) {
    if let Some(stderr) = io.peers.get_mut(link).and_then(|peer| peer.stderr.as_mut()) {
        stderr.queued = false;
    }
    if read_once(link, io)
        && let Some(stderr) = io.peers.get_mut(link).and_then(|peer| peer.stderr.as_mut())
    {
        io.queue.push(Task::ReadStderr(link), &mut stderr.queued);
    }
}

/// Reads once. True: there may be more.
pub(crate) fn read_once(link: Link, io: &mut Io) -> bool {
    let Some(peer) = io.peers.get_mut(link) else { return false };
    let Some(stderr) = &mut peer.stderr else { return false };
    match read(stderr.fd.as_fd(), &mut io.scratch) {
        Ok(0) => {
            peer.close_stderr(io.poll.registry());
            false
        }
        Ok(count) => {
            let bytes = &io.scratch[..count];
            io.bus.stderr_received(stderr.worker, bytes);
            if log_enabled!(target: "worker", log::Level::Debug) {
                let pool = io.bus.command(stderr.worker).map_or("?", |pool| &pool.id);
                let pid = stderr.pid;
                split_lines(&mut stderr.line, bytes, |line| {
                    debug!(target: "worker", "{pool}[{pid}]: {}", String::from_utf8_lossy(line));
                });
            }
            stderr.hung_up || count == io.scratch.len()
        }
        Err(Errno::EINTR) => true,
        Err(_) => false,
    }
}

/// Calls `each` with every line that ends in `bytes`, shortened to `LOGGED_BYTES`, and keeps the start of the next.
fn split_lines(line: &mut Vec<u8>, bytes: &[u8], mut each: impl FnMut(&[u8])) {
    for part in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = part.strip_suffix(b"\n").unwrap_or(part);
        let room = LOGGED_BYTES.saturating_sub(line.len()).min(text.len());
        line.extend_from_slice(&text[..room]);
        if part.len() > text.len() {
            each(line.strip_suffix(b"\r").unwrap_or(line));
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(chunks: &[&str]) -> (Vec<String>, Vec<u8>) {
        let mut line = Vec::new();
        let mut lines = Vec::new();
        for chunk in chunks {
            split_lines(&mut line, chunk.as_bytes(), |text| {
                lines.push(String::from_utf8_lossy(text).into_owned());
            });
        }
        (lines, line)
    }

    #[test]
    fn lines_of_stderr_are_whole_in_any_chunking() {
        let text = "one\ntwo\r\n\nthree\nfour";
        for at in 0..text.len() {
            let (lines, rest) = lines_of(&[&text[..at], &text[at..]]);
            assert_eq!(lines, ["one", "two", "", "three"]);
            assert_eq!(rest, b"four");
        }
    }

    #[test]
    fn a_long_line_of_stderr_is_shortened_and_the_next_is_whole() {
        let long = "x".repeat(3 * LOGGED_BYTES);
        let (lines, rest) = lines_of(&[&long, &long, "\nshort\n", &long]);
        assert_eq!(lines, [&long[..LOGGED_BYTES], "short"]);
        assert_eq!(rest.len(), LOGGED_BYTES);
    }
}
