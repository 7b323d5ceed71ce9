//! The line to the agent, and everything else that can happen to a runner, as one stream of events.
//!
//! Threads do nothing but read, write and wait, each for one thing; what is to be done about it is decided by the one
//! that takes the events.

use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::connect::Bell;
use crate::stream::Stream;
use crate::wire::LINE_BYTES_MOST;

pub(super) enum Event {
    /// A message of the agent. Lines that are none are not told.
    Message(Value),
    /// The agent will say nothing more.
    Closed,
    /// A line of the user, who was asked for one. None: there are no more.
    Typed(Option<String>),
    Signal(i32),
    /// A command that runs for the agent has ended.
    Ended,
}

/// Lines to the agent. They wait here while it reads nothing.
pub(super) struct Outlet {
    lines: Sender<String>,
    written: Receiver<()>,
}

impl Outlet {
    pub(super) fn to_pipe(mut pipe: impl Write + Send + 'static) -> Outlet {
        Outlet::new(move |lines| {
            // An agent that is gone is noticed by its silence.
            lines.iter().all(|line: String| pipe.write_all(line.as_bytes()).is_ok());
        })
    }

    pub(super) fn to_bus(mut stream: Stream) -> Outlet {
        Outlet::new(move |lines| {
            lines.iter().all(|line: String| stream.write_all(line.as_bytes()).is_ok());
            let _ = stream.half_close();
        })
    }

    fn new(write_all: impl FnOnce(Receiver<String>) + Send + 'static) -> Outlet {
        let (lines, waiting) = channel();
        let (done, written) = channel();
        thread::spawn(move || {
            write_all(waiting);
            drop(done);
        });
        Outlet { lines, written }
    }

    pub(super) fn send(&self, message: &Value) {
        let _ = self.lines.send(format!("{message}\n"));
    }

    /// Nothing more is to be said. Waits until the last word is written, but not longer than this.
    pub(super) fn close(self, patience: Duration) {
        drop(self.lines);
        let _ = self.written.recv_timeout(patience);
    }
}

/// Tells every message that comes, and then that no more will.
pub(super) fn listen(mut peer: impl BufRead + Send + 'static, events: Sender<Event>) {
    thread::spawn(move || {
        while let Some(line) = next_line(&mut peer) {
            // Agents print what is no message: banners, warnings, progress.
            let Ok(message @ Value::Object(_)) = serde_json::from_slice(&line) else { continue };
            if events.send(Event::Message(message)).is_err() {
                return;
            }
        }
        let _ = events.send(Event::Closed);
    });
}

fn next_line(peer: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let most = LINE_BYTES_MOST as u64;
    match peer.by_ref().take(most).read_until(b'\n', &mut line) {
        Ok(count @ 1..) if (count as u64) < most => Some(line),
        _ => None,
    }
}

pub(super) fn watch_signals(bell: Bell, events: Sender<Event>) {
    thread::spawn(move || {
        loop {
            match poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            if let Some(signal) = bell.heard()
                && events.send(Event::Signal(signal)).is_err()
            {
                return;
            }
        }
    });
}

/// Lines of the user, read only when they are wanted: what is not read stays in the terminal or the pipe.
pub(super) struct Input {
    wanted: Sender<()>,
    /// One is wanted and has not come.
    waits: bool,
    /// There are no more.
    over: bool,
}

impl Input {
    pub(super) fn new(events: Sender<Event>) -> Input {
        let (wanted, wants) = channel();
        thread::spawn(move || {
            for () in wants {
                let mut line = Vec::new();
                let read = io::stdin().lock().read_until(b'\n', &mut line);
                let line = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
                let typed = matches!(read, Ok(1..)).then_some(line);
                if events.send(Event::Typed(typed)).is_err() {
                    return;
                }
            }
        });
        Input { wanted, waits: false, over: false }
    }

    /// Asks for a line. False: there will be none.
    pub(super) fn wants_line(&mut self) -> bool {
        if !self.over && !self.waits {
            self.waits = self.wanted.send(()).is_ok();
        }
        !self.over && self.waits
    }

    /// A line has come.
    pub(super) fn has_line(&mut self, line: Option<&String>) {
        self.waits = false;
        self.over = line.is_none();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_message_are_passed_over() {
        let (events, told) = channel();
        let printed = "Welcome!\n\n[1]\n7\n{\"id\":1}\n{broken\n{\"id\":2}";
        listen(printed.as_bytes(), events);
        let told: Vec<_> = told.iter().collect();
        let ids = told.iter().filter_map(|event| match event {
            Event::Message(message) => message["id"].as_u64(),
            _ => None,
        });
        assert!(matches!(told.last(), Some(Event::Closed)));
        assert_eq!((ids.collect::<Vec<_>>(), told.len()), (vec![1, 2], 3));
    }
}
