//! A connection that never blocks, for an event loop with edge-triggered events.
//!
//! Whole lines are not copied and buffers are reused, so a message costs no allocation.

use std::io::{self, ErrorKind};

use rpc::{LineReader, Outbox, Stream};

pub(crate) struct Connection {
    pub(crate) stream: Stream,
    lines: LineReader,
    output: Outbox,
    can_read: bool,
    can_write: bool,
    /// No edge will follow, so the connection is read until its end.
    hung_up: bool,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            lines: LineReader::default(),
            output: Outbox::default(),
            can_read: false,
            can_write: true,
            hung_up: false,
        })
    }

    pub(crate) fn note(&mut self, event: &mio::event::Event) {
        self.hung_up |= event.is_read_closed() || event.is_error();
        self.can_read |= event.is_readable() || self.hung_up;
        self.can_write |= event.is_writable();
    }

    /// Reads once, if there is something to read. The end of the stream is an error, because the load has not ended.
    pub(crate) fn read(&mut self) -> io::Result<()> {
        if !self.can_read {
            return Ok(());
        }
        match self.lines.fill(&mut self.stream) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed by the peer")),
            // A read that leaves room has found the end of what was there, and an edge follows.
            Ok(_) => self.can_read = !self.lines.has_room() || self.hung_up,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_read = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A line that has been read, without its newline, and where to append what is to be sent.
    pub(crate) fn next_line(&mut self) -> Option<(&[u8], &mut Vec<u8>)> {
        Some((self.lines.next_line()?, self.output.buffer()))
    }

    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        self.output.buffer()
    }

    pub(crate) fn write(&mut self) {
        while self.can_write && !self.output.is_empty() {
            match self.output.write_to(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // What the peer sent before it closed is still to be read.
                    self.can_write = false;
                    self.can_read = true;
                    self.hung_up = true;
                }
            }
        }
    }

    pub(crate) fn can_read(&self) -> bool {
        self.can_read
    }
}
