//! A connection to the bus: lines in both directions. An idle one holds no buffer.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clients::{Fault, Target};
use log::debug;
use memchr::memchr;
use rpc::Stream;
use serde_json::json;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::message::Message;

/// How long the bus may take to accept a connection and to answer its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A read takes at most this much.
const READ_BYTES: usize = 16 << 10;
/// The id of the door's own hello, which is answered before anything else is sent.
const HELLO_ID: &str = "web";

/// Why a connection to the bus could not be had.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// It cannot be reached, or takes no more clients.
    Unreachable(String),
    /// It refuses what the hello names, such as a pool that it does not have: the text of its error.
    Refused(String),
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Reading and writing need only a shared reference, each by one task at a time.
pub(crate) struct BusLink {
    socket: Socket,
}

/// What has been read of the next lines.
#[derive(Default)]
pub(crate) struct LineBuffer {
    held: BytesMut,
    /// This many bytes of `held` have no line break.
    searched: usize,
}

impl LineBuffer {
    /// The next whole line without its break.
    pub(crate) fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let Some(end) = memchr(b'\n', &self.held[self.searched..]) else {
                self.searched = self.held.len();
                if self.held.is_empty() {
                    self.held = BytesMut::new();
                }
                return None;
            };
            let mut line = self.held.split_to(self.searched + end + 1).freeze();
            self.searched = 0;
            line.truncate(line.trim_ascii_end().len());
            if !line.is_empty() {
                return Some(line);
            }
        }
    }
}

impl BusLink {
    /// Connects, and says hello if there is a token to show or a pool to name.
    pub(crate) async fn open(target: &Target, pool: Option<&str>) -> Result<BusLink, NoLink> {
        let target = target.clone();
        let dialled = spawn_blocking(move || clients::dial_for(&target, HELLO_TIMEOUT)).await;
        let (stream, token) = dialled
            .map_err(|error| NoLink::Unreachable(error.to_string()))?
            .map_err(|fault: Fault| NoLink::Unreachable(fault.to_string()))?;
        let link = BusLink::over(stream).map_err(unreachable)?;
        if token.is_some() || pool.is_some() {
            let greeted = timeout(HELLO_TIMEOUT, link.hello(token.as_deref(), pool)).await;
            greeted.map_err(|_| NoLink::Unreachable("the bus does not answer".to_owned()))??;
        }
        Ok(link)
    }

    /// A connection over this stream, on which nothing was said yet.
    pub(crate) fn over(stream: Stream) -> io::Result<BusLink> {
        Ok(BusLink { socket: socket(stream)? })
    }

    async fn hello(&self, token: Option<&str>, pool: Option<&str>) -> Result<(), NoLink> {
        let params = json!({ "token": token, "pool": pool });
        let hello = json!({ "jsonrpc": "2.0", "id": HELLO_ID, "method": "_bus/hello", "params": params });
        self.send(hello.to_string().as_bytes()).await.map_err(unreachable)?;
        let mut lines = LineBuffer::default();
        let line = self.read_line(&mut lines).await.map_err(unreachable)?;
        let line = line.ok_or_else(|| NoLink::Unreachable("the bus has closed the connection".to_owned()))?;
        let text = String::from_utf8_lossy(&line);
        match Message::parse(&text) {
            Some(answer) if answer.result.is_some() => Ok(()),
            _ => Err(NoLink::Refused(error_of(&text))),
        }
    }

    /// Asks once, on a connection of its own.
    pub(crate) async fn ask(target: &Target, method: &str) -> Result<String, NoLink> {
        let link = BusLink::open(target, None).await?;
        let request = json!({ "jsonrpc": "2.0", "id": HELLO_ID, "method": method });
        link.send(request.to_string().as_bytes()).await.map_err(unreachable)?;
        let answer = timeout(HELLO_TIMEOUT, link.read_line(&mut LineBuffer::default())).await;
        let answer = answer.map_err(|_| NoLink::Unreachable("the bus does not answer".to_owned()))?;
        let line = answer.map_err(unreachable)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&line);
        match Message::parse(&text).and_then(|answer| answer.result) {
            Some(result) => Ok(result.get().to_owned()),
            None => Err(NoLink::Refused(error_of(&text))),
        }
    }

    /// The next line. `None`: the bus has closed the connection.
    pub(crate) async fn read_line(&self, lines: &mut LineBuffer) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(line) = lines.next_line() {
                return Ok(Some(line));
            }
            match &self.socket {
                Socket::Tcp(socket) => socket.readable().await?,
                Socket::Unix(socket) => socket.readable().await?,
            }
            lines.held.reserve(READ_BYTES);
            let read = match &self.socket {
                Socket::Tcp(socket) => socket.try_read_buf(&mut lines.held),
                Socket::Unix(socket) => socket.try_read_buf(&mut lines.held),
            };
            match read {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends one line. It must not be abandoned half-way, unless the connection is closed then.
    pub(crate) async fn send(&self, line: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = match &self.socket {
                Socket::Tcp(socket) => socket.try_write(rest),
                Socket::Unix(socket) => socket.try_write(rest),
            };
            match written {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.socket {
                    Socket::Tcp(socket) => socket.writable().await?,
                    Socket::Unix(socket) => socket.writable().await?,
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn socket(stream: Stream) -> io::Result<Socket> {
    stream.set_nonblocking(true)?;
    match stream {
        Stream::Tcp(socket) => TcpStream::from_std(socket).map(Socket::Tcp),
        Stream::Unix(socket) => UnixStream::from_std(socket).map(Socket::Unix),
        Stream::Pipes { .. } => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn unreachable(error: io::Error) -> NoLink {
    NoLink::Unreachable(error.to_string())
}

/// The message of an error answer.
fn error_of(line: &str) -> String {
    let answer = serde_json::from_str::<serde_json::Value>(line).unwrap_or_default();
    debug!("the bus refuses: {answer}");
    answer["error"]["message"].as_str().unwrap_or("the bus does not take this connection").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_from_any_pieces() {
        let mut lines = LineBuffer::default();
        assert_eq!(lines.next_line(), None);
        for piece in ["{\"a", "\":1}", "\r\n\n{\"b\":2}\n{\"c", "\":3}\n"] {
            lines.held.extend_from_slice(piece.as_bytes());
        }
        let all: Vec<_> = std::iter::from_fn(|| lines.next_line()).collect();
        assert_eq!(all, ["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"]);
        lines.held.extend_from_slice(b"{\"d\"");
        assert_eq!(lines.next_line(), None);
        lines.held.extend_from_slice(b":4}\n");
        assert_eq!(lines.next_line().unwrap(), "{\"d\":4}");
        assert_eq!(lines.next_line(), None);
        assert_eq!(lines.held.capacity(), 0, "an idle connection holds nothing");
    }
}
