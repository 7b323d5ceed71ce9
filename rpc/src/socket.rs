//! A byte stream to a peer: TCP, a Unix socket, or the pipes of a process.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection. `AsFd` gives the end that is read from.
pub enum Stream {
    /// A TCP socket without Nagle's delay.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// A pipe to read from and one to write to, e.g. the stdout and stdin of a child.
    Pipes {
        /// What the peer writes to.
        input: File,
        /// What the peer reads from. `None` once it is closed.
        output: Option<File>,
    },
}

impl Stream {
    /// Connects to the first address of the host that takes the connection.
    pub fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<Stream> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    return Ok(Stream::Tcp(socket));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to a Unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<Stream> {
        UnixStream::connect(path).map(Stream::Unix)
    }

    /// Reads from one pipe and writes to the other.
    pub fn pipes(input: impl Into<OwnedFd>, output: impl Into<OwnedFd>) -> Stream {
        Stream::Pipes { input: input.into().into(), output: Some(output.into().into()) }
    }

    /// Another handle of the same connection.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(socket) => Stream::Tcp(socket.try_clone()?),
            Stream::Unix(socket) => Stream::Unix(socket.try_clone()?),
            Stream::Pipes { input, output } => Stream::Pipes {
                input: input.try_clone()?,
                output: output.as_ref().map(File::try_clone).transpose()?,
            },
        })
    }

    /// Sends nothing more; what the peer sends can still be read.
    pub fn half_close(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Stream::Unix(socket) => socket.shutdown(Shutdown::Write),
            Stream::Pipes { output, .. } => {
                *output = None;
                Ok(())
            }
        }
    }

    /// Makes a socket non-blocking. Pipes stay as they are.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.set_nonblocking(nonblocking),
            Stream::Unix(socket) => socket.set_nonblocking(nonblocking),
            Stream::Pipes { .. } => Ok(()),
        }
    }

    /// Limits each read of a socket. Pipes have no such limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.set_read_timeout(timeout),
            Stream::Unix(socket) => socket.set_read_timeout(timeout),
            Stream::Pipes { .. } => Ok(()),
        }
    }

    /// Limits each write to a socket. Pipes have no such limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.set_write_timeout(timeout),
            Stream::Unix(socket) => socket.set_write_timeout(timeout),
            Stream::Pipes { .. } => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.read(buffer),
            Stream::Unix(socket) => socket.read(buffer),
            Stream::Pipes { input, .. } => input.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.write(bytes),
            Stream::Unix(socket) => socket.write(bytes),
            Stream::Pipes { output: Some(output), .. } => output.write(bytes),
            Stream::Pipes { output: None, .. } => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(socket) => socket.as_fd(),
            Stream::Unix(socket) => socket.as_fd(),
            Stream::Pipes { input, .. } => input.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_half_closed_stream_still_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let tcp = Stream::connect_tcp("localhost", port, Duration::from_secs(10)).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let (unix, other) = UnixStream::pair().unwrap();
        let ((input, far_output), (far_input, output)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let streams = [
            (tcp, Stream::Tcp(theirs)),
            (Stream::Unix(unix), Stream::Unix(other)),
            (Stream::pipes(input, output), Stream::pipes(far_input, far_output)),
        ];
        for (mut ours, mut theirs) in streams {
            ours.write_all(b"hello").unwrap();
            ours.half_close().unwrap();
            let mut read = String::new();
            theirs.read_to_string(&mut read).unwrap();
            theirs.write_all(b"good bye").unwrap();
            drop(theirs);
            ours.read_to_string(&mut read).unwrap();
            assert_eq!(read, "hellogood bye");
        }
    }
}
