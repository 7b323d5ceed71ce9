//! Everything that `run` reacts to, as one stream of events, and the writer to the agent.
//!
//! Each thread only reads, writes or waits for one thing. The driver alone decides what an event means.

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rpc::{LineReader, Stream};
use serde_json::Value;

use crate::Signals;

pub(super) enum Event {
    /// A message of the agent. Other lines are skipped.
    Message(Value),
    /// The agent has closed its output.
    Closed,
    /// A line that `UserInput` was asked for. `None`: the input has ended.
    UserLine(Option<String>),
    Signal(i32),
    /// A command of a client tool has exited.
    CommandExited,
}

/// Queues lines to the agent while it does not read.
pub(super) struct AgentWriter {
    lines: Sender<String>,
    written: Receiver<()>,
}

impl AgentWriter {
    pub(super) fn to_pipe(mut pipe: impl Write + Send + 'static) -> AgentWriter {
        AgentWriter::new(move |lines| {
            // A closed pipe ends the thread; the driver notices that the agent's output ends.
            lines.iter().all(|line: String| pipe.write_all(line.as_bytes()).is_ok());
        })
    }

    pub(super) fn to_bus(mut stream: Stream) -> AgentWriter {
        AgentWriter::new(move |lines| {
            lines.iter().all(|line: String| stream.write_all(line.as_bytes()).is_ok());
            let _ = stream.half_close();
        })
    }

    fn new(write_all: impl FnOnce(Receiver<String>) + Send + 'static) -> AgentWriter {
        let (lines, lines_rx) = channel();
        let (done, written) = channel();
        thread::spawn(move || {
            write_all(lines_rx);
            drop(done);
        });
        AgentWriter { lines, written }
    }

    pub(super) fn send(&self, message: &Value) {
        let _ = self.lines.send(format!("{message}\n"));
    }

    /// Waits until everything is written, but at most this long.
    pub(super) fn close(self, timeout: Duration) {
        drop(self.lines);
        let _ = self.written.recv_timeout(timeout);
    }
}

/// Sends every message of the agent as an event, and then `Closed`.
pub(super) fn read_messages(
    mut agent: impl Read + Send + 'static,
    mut lines: LineReader,
    events: Sender<Event>,
) {
    thread::spawn(move || {
        loop {
            while let Some(line) = lines.next_line() {
                // Agents also print banners, warnings and progress.
                let Ok(message @ Value::Object(_)) = serde_json::from_slice(line) else { continue };
                if events.send(Event::Message(message)).is_err() {
                    return;
                }
            }
            match lines.fill(&mut agent) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A last line without a newline still counts.
                Ok(0) if !lines.unread().is_empty() => lines.finish(),
                Ok(0) | Err(_) => break,
            }
        }
        let _ = events.send(Event::Closed);
    });
}

pub(super) fn forward_signals(signals: Signals, events: Sender<Event>) {
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            let _ = events.send(Event::Signal(signal));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_messages_are_skipped() {
        let (events, received) = channel();
        let printed = "Welcome!\n\n[1]\n7\n{\"id\":1}\n{broken\n{\"id\":2}";
        read_messages(printed.as_bytes(), LineReader::default(), events);
        let received: Vec<_> = received.iter().collect();
        let ids = received.iter().filter_map(|event| match event {
            Event::Message(message) => message["id"].as_u64(),
            _ => None,
        });
        assert!(matches!(received.last(), Some(Event::Closed)));
        assert_eq!((ids.collect::<Vec<_>>(), received.len()), (vec![1, 2], 3));
    }
}
