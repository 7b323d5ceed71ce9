//! Where the load goes: an address, and a non-blocking connection to it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use mio::event::Source;

use crate::talk::Socket;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// HOST:PORT.
    Tcp(String),
    Unix(PathBuf),
}

/// A connection that never blocks.
pub(crate) trait Stream: Read + Write + Source {}

impl<S: Read + Write + Source> Stream for S {}

pub(crate) type Wire = Box<dyn Stream>;

impl Target {
    pub(crate) fn connect(&self) -> io::Result<Wire> {
        match self {
            Target::Tcp(place) => tcp(TcpStream::connect(place)?),
            Target::Unix(path) => unix(UnixStream::connect(path)?),
        }
    }

    /// A connection that blocks.
    pub(crate) fn open(&self) -> io::Result<Socket> {
        Ok(match self {
            Target::Tcp(place) => {
                let socket = TcpStream::connect(place)?;
                socket.set_nodelay(true)?;
                Socket::Tcp(socket)
            }
            Target::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        })
    }
}

fn tcp(stream: TcpStream) -> io::Result<Wire> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Box::new(mio::net::TcpStream::from_std(stream)))
}

pub(crate) fn unix(stream: UnixStream) -> io::Result<Wire> {
    stream.set_nonblocking(true)?;
    Ok(Box::new(mio::net::UnixStream::from_std(stream)))
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        if let Some(place) = text.strip_prefix("tcp://").filter(|place| place.contains(':')) {
            return Ok(Target::Tcp(place.to_owned()));
        }
        match text.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(Target::Unix(path.into())),
            _ => Err("tcp://HOST:PORT or unix:///PATH is needed".to_owned()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(place) => write!(f, "tcp://{place}"),
            Target::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_reads_as_it_is_written() {
        for text in ["tcp://127.0.0.1:9000", "tcp://[::1]:9000", "unix:///run/bus.sock"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["127.0.0.1:9000", "tcp://host", "unix://bus.sock", "http://host:1", ""] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
