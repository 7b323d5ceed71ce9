//! The local end of a pipe: a connection to the bus, or the stdin and stdout of this process. Nothing of it blocks.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::thread;

use nix::sys::stat::{SFlag, fstat};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};

/// A byte stream in both directions.
pub(crate) enum Local {
    Tcp(TcpStream),
    Unix(UnixStream),
    Pipes { from: pipe::Receiver, to: pipe::Sender },
}

impl Local {
    /// The stdin and stdout of this process.
    pub(crate) fn stdio() -> io::Result<Local> {
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let is_pipe = |fd: &dyn AsFd| {
            fstat(fd.as_fd())
                .is_ok_and(|about| SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO)
        };
        if is_pipe(&stdin) && is_pipe(&stdout) {
            return Ok(Local::Pipes {
                from: pipe::Receiver::from_owned_fd(stdin.as_fd().try_clone_to_owned()?)?,
                to: pipe::Sender::from_owned_fd(stdout.as_fd().try_clone_to_owned()?)?,
            });
        }
        bridged()
    }

    /// A connection that was made by blocking code.
    pub(crate) fn of_stream(stream: rpc::Stream) -> io::Result<Local> {
        stream.set_nonblocking(true)?;
        match stream {
            rpc::Stream::Tcp(socket) => TcpStream::from_std(socket).map(Local::Tcp),
            rpc::Stream::Unix(socket) => UnixStream::from_std(socket).map(Local::Unix),
            rpc::Stream::Pipes { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Local::Tcp(socket) => socket.readable().await,
            Local::Unix(socket) => socket.readable().await,
            Local::Pipes { from, .. } => from.readable().await,
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Local::Tcp(socket) => socket.writable().await,
            Local::Unix(socket) => socket.writable().await,
            Local::Pipes { to, .. } => to.writable().await,
        }
    }

    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Local::Tcp(socket) => socket.try_read(into),
            Local::Unix(socket) => socket.try_read(into),
            Local::Pipes { from, .. } => from.try_read(into),
        }
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Local::Tcp(socket) => socket.try_write(bytes),
            Local::Unix(socket) => socket.try_write(bytes),
            Local::Pipes { to, .. } => to.try_write(bytes),
        }
    }

    /// Ends what is written. What comes back can still be read.
    pub(crate) fn shut_down_write(&self) {
        let socket = match self {
            Local::Tcp(socket) => socket.as_raw_fd(),
            Local::Unix(socket) => socket.as_raw_fd(),
            // The process ends soon, and with it its stdout.
            Local::Pipes { .. } => return,
        };
        let _ = nix::sys::socket::shutdown(socket, nix::sys::socket::Shutdown::Write);
    }
}

/// A terminal or a file cannot be waited for like a pipe, or not without changing it for others, so threads copy it.
fn bridged() -> io::Result<Local> {
    let (ours, theirs) = StdUnixStream::pair()?;
    let mut to_pipe = theirs.try_clone()?;
    thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let _ = copy(&mut io::stdin(), &mut to_pipe);
        let _ = to_pipe.shutdown(std::net::Shutdown::Write);
    })?;
    let mut from_pipe = theirs;
    thread::Builder::new()
        .name("stdout".to_owned())
        .spawn(move || copy(&mut from_pipe, &mut io::stdout()))?;
    ours.set_nonblocking(true)?;
    UnixStream::from_std(ours).map(Local::Unix)
}

/// Each piece is passed on at once.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
        to.flush()?;
    }
}
