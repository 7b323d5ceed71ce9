//! One client that waits for its answers: whole lines over a blocking socket.
//!
//! For what is about faults, where a thread for each client is easy to follow; loads are driven by `load`.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use crate::wire::Target;

/// Whoever waits longer for a line has not been answered.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Talk {
    socket: BufReader<Socket>,
    line: Vec<u8>,
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Talk {
    pub(crate) fn to(target: &Target) -> io::Result<Talk> {
        Talk::over(target.open()?)
    }

    pub(crate) fn over(socket: Socket) -> io::Result<Talk> {
        socket.set_patience(Some(PATIENCE))?;
        Ok(Talk { socket: BufReader::with_capacity(64 << 10, socket), line: Vec::new() })
    }

    pub(crate) fn socket(&mut self) -> &mut Socket {
        self.socket.get_mut()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.get_mut().write_all(bytes)
    }

    pub(crate) fn say(&mut self, message: &Value) -> io::Result<()> {
        self.send(format!("{message}\n").as_bytes())
    }

    /// The next line without its newline. None: the peer has closed.
    pub(crate) fn line(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        match self.socket.read_until(b'\n', &mut self.line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(self.line.trim_ascii_end())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(io::Error::new(ErrorKind::TimedOut, "no line came"))
            }
            Err(error) => Err(error),
        }
    }

    /// The next line, which has to come, as a message.
    pub(crate) fn message(&mut self) -> io::Result<Value> {
        let line = self.line()?.ok_or(ErrorKind::UnexpectedEof)?;
        Ok(serde_json::from_slice(line)?)
    }

    /// One request and its answer, past whatever else comes.
    pub(crate) fn ask(&mut self, id: &str, method: &str, params: Value) -> io::Result<Value> {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let message = self.message()?;
            if message["id"] == id {
                return Ok(message);
            }
        }
    }

    pub(crate) fn status(&mut self) -> io::Result<Value> {
        Ok(self.ask("status", "_bus/status", json!({}))?["result"].take())
    }

    /// As an ACP client that can do nothing special. Gives the reason if it is refused.
    pub(crate) fn initialize(&mut self) -> io::Result<Option<String>> {
        let params = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        let answer = self.ask("initialize", "initialize", params)?;
        let reason = || answer["error"]["data"]["reason"].as_str().unwrap_or("without a reason").to_owned();
        Ok(answer["result"].is_null().then(reason))
    }

    pub(crate) fn open_session(&mut self) -> io::Result<String> {
        let answer = self.ask("new", "session/new", json!({ "cwd": "/", "mcpServers": [] }))?;
        let session = answer["result"]["sessionId"].as_str();
        Ok(session.ok_or_else(|| io::Error::other(format!("no session: {answer}")))?.to_owned())
    }

    /// Ends the connection with a reset instead of a farewell.
    pub(crate) fn vanish(mut self) -> io::Result<()> {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        setsockopt(self.socket(), sockopt::Linger, &at_once)?;
        Ok(())
    }
}

impl Socket {
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(patience).and_then(|()| socket.set_write_timeout(patience))
            }
            Socket::Unix(socket) => {
                socket.set_read_timeout(patience).and_then(|()| socket.set_write_timeout(patience))
            }
        }
    }

    /// Nothing more will be sent.
    pub(crate) fn half_close(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(bytes),
            Socket::Unix(socket) => socket.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}
