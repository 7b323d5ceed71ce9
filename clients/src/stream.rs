//! A connected socket, TCP or Unix.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use kernel_core::config::Address;

use crate::Fault;

/// A host that drops packets would otherwise block for minutes.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to the first address at which something listens, and returns that address too.
    pub(crate) fn connect(addresses: &[Address], timeout: Duration) -> Result<(Stream, &Address), Fault> {
        let mut failures = Vec::new();
        for address in addresses {
            match Stream::connect_to(address, timeout) {
                Ok(stream) => return Ok((stream, address)),
                Err(error) => failures.push(format!("{address} ({error})")),
            }
        }
        Err(Fault::Unreachable(format!("no bus answers at {}", failures.join(", nor at "))))
    }

    fn connect_to(address: &Address, timeout: Duration) -> io::Result<Stream> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Address::Tcp { host, port } => {
                let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
                for ip in (&**host, *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&ip, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Stdio => Err(io::Error::new(ErrorKind::Unsupported, "only its parent can reach it")),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        match self {
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
        }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(timeout),
            Stream::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    pub(crate) fn write_with_timeout(&mut self, bytes: &[u8], timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(timeout)?,
            Stream::Unix(stream) => stream.set_write_timeout(timeout)?,
        }
        self.write_all(bytes)
    }

    /// Ends writing; reading goes on.
    pub(crate) fn half_close(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}
