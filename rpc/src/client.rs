//! A peer that asks and answers nothing: requests over a stream, one at a time, until a deadline.
//!
//! Nothing that the other side sends makes it panic.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::time::Instant;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::{METHOD_NOT_FOUND, RpcError};
use crate::lines::{LINE_BYTES_MAX, LineReader};
use crate::message::Parts;
use crate::socket::Stream;
use crate::write;

/// One end of a stream.
pub struct Client {
    stream: Stream,
    lines: LineReader,
    deadline: Option<Instant>,
    last_id: u64,
}

/// Why a request has no result.
#[derive(Debug)]
pub enum AskError {
    /// The deadline has passed.
    TimedOut,
    /// The peer closed the stream before it answered.
    Closed,
    /// The stream broke.
    Broken(io::Error),
    /// The peer does not speak JSON-RPC: a line is no JSON object, or too long.
    NotJsonRpc,
    /// The peer answered with this error.
    Refused(Box<RawValue>),
}

impl Client {
    /// A client without a deadline.
    pub fn new(stream: Stream) -> Client {
        let lines = LineReader::with_limit(LINE_BYTES_MAX);
        Client { stream, lines, deadline: None, last_id: 0 }
    }

    /// From now on nothing waits longer than until then.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// The stream itself.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Sends a request and waits for its result. Notifications that come before it are skipped, and requests of the
    /// other side are refused.
    pub fn ask(&mut self, method: &str, params: impl Serialize) -> Result<Box<RawValue>, AskError> {
        self.last_id += 1;
        let id = self.last_id.to_string();
        self.send(&write::request(self.last_id, method, params))?;
        loop {
            let line = self.next_line()?.ok_or(AskError::Closed)?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let parts = Parts::parse(line).ok_or(AskError::NotJsonRpc)?;
            let is_ours = |about: &RawValue| about.get() == id;
            match parts {
                Parts { method: Some(_), id: Some(asked), .. } => {
                    let error = RpcError::new(METHOD_NOT_FOUND, "this client answers no requests");
                    let refusal = write::error(asked.into(), error);
                    self.send(&refusal)?;
                }
                Parts { id: Some(about), result: Some(result), .. } if is_ours(about) => {
                    return Ok(result.to_owned());
                }
                // An error without an id is about our only line: its id could not be read.
                Parts { id, error: Some(error), method: None, .. }
                    if id.is_none_or(|about| is_ours(about) || about.get() == "null") =>
                {
                    return Err(AskError::Refused(error.to_owned()));
                }
                _ => {}
            }
        }
    }

    /// Sends bytes, which should be whole lines with their newlines, in one system call if the stream takes them.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), AskError> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            // Zero would mean without a limit.
            if left.is_zero() {
                return Err(AskError::TimedOut);
            }
            self.stream.set_write_timeout(Some(left)).map_err(AskError::Broken)?;
        }
        Ok(self.stream.write_all(bytes)?)
    }

    /// Waits for the next line, whatever it is. `None`: the peer has closed the stream, maybe in the middle of a line.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, AskError> {
        self.lines.wait_for_line(&mut self.stream, self.deadline)?;
        Ok(self.lines.next_line())
    }

    /// The stream, without a deadline, and what was read of it and not taken.
    pub fn into_parts(self) -> io::Result<(Stream, LineReader)> {
        self.stream.set_write_timeout(None)?;
        Ok((self.stream, self.lines))
    }
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> AskError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => AskError::TimedOut,
            ErrorKind::InvalidData => AskError::NotJsonRpc,
            _ => AskError::Broken(error),
        }
    }
}

impl From<AskError> for io::Error {
    fn from(error: AskError) -> io::Error {
        match error {
            AskError::Broken(error) => error,
            AskError::TimedOut => io::Error::new(ErrorKind::TimedOut, error),
            AskError::Closed => io::Error::new(ErrorKind::UnexpectedEof, error),
            error => io::Error::other(error),
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::TimedOut => out.write_str("no answer came in time"),
            AskError::Closed => out.write_str("the peer closed the connection before it answered"),
            AskError::Broken(error) => write!(out, "the connection broke: {error}"),
            AskError::NotJsonRpc => out.write_str("the peer does not speak JSON-RPC"),
            AskError::Refused(error) => write!(out, "the peer answered with an error: {error}"),
        }
    }
}

impl std::error::Error for AskError {}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The outcome of a request to a peer that sends this, and what the peer read. After a whole line it half-closes.
    fn asked(peer_says: &str, deadline: Option<Duration>) -> (Result<String, AskError>, String) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(peer_says.as_bytes()).unwrap();
        if peer_says.ends_with('\n') {
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let peer = thread::spawn(move || {
            let mut read = String::new();
            // A client that leaves something unread resets the connection.
            let _ = theirs.read_to_string(&mut read);
            read
        });
        let mut client = Client::new(Stream::Unix(ours));
        client.set_deadline(deadline.map(|left| Instant::now() + left));
        let result = client.ask("m", ()).map(|result| result.get().to_owned());
        drop(client);
        (result, peer.join().unwrap())
    }

    #[test]
    fn the_answer_is_found_among_other_messages_and_requests_are_refused() {
        let lines = [
            r#"{"method":"other"}"#,
            "",
            r#"{"id":"x","method":"may I?"}"#,
            r#"{"id":7,"result":"of another"}"#,
            r#"{"id":1,"result":null}"#,
        ];
        let (result, read) = asked(&(lines.join("\n") + "\n"), None);
        assert_eq!(result.unwrap(), "null");
        let refusal = r#"{"code":-32601,"message":"this client answers no requests"}"#;
        let expected = [
            r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#.to_owned(),
            format!(r#"{{"jsonrpc":"2.0","id":"x","error":{refusal}}}"#),
        ];
        assert_eq!(read.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_error_about_no_id_is_about_the_only_request() {
        for line in [r#"{"id":1,"error":{}}"#, r#"{"id":null,"error":{}}"#, r#"{"error":{}}"#] {
            let (result, _) = asked(&format!("{line}\n"), None);
            assert!(matches!(result, Err(AskError::Refused(error)) if error.get() == "{}"), "{line}");
        }
    }

    #[test]
    fn a_peer_that_closes_in_the_middle_of_its_answer_has_closed() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(br#"{"id":1,"result":"#).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(Client::new(Stream::Unix(ours)).ask("m", ()), Err(AskError::Closed)));
    }

    #[test]
    fn whatever_else_happens_is_an_error() {
        assert!(matches!(asked("Welcome!\n", None).0, Err(AskError::NotJsonRpc)));
        assert!(matches!(asked("\n", None).0, Err(AskError::Closed)));
        let soon = Duration::from_millis(5);
        assert!(matches!(asked("{", Some(soon)).0, Err(AskError::TimedOut)));
        assert!(matches!(asked("{", Some(Duration::ZERO)).0, Err(AskError::TimedOut)));
    }
}
