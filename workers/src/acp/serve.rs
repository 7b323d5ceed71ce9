//! The process of an agent: lines of stdin, signals, and the exit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{process, thread};

use rpc::LineReader;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;

use super::dispatch::{Agent, dispatch};

/// Serves the client until stdin ends or SIGTERM or SIGINT comes. Then calls `stop`, which may end turns, and exits
/// when it returns, or after `grace` if it hangs.
pub(crate) fn serve(
    mut agent: impl Agent,
    grace: Duration,
    stop: impl Fn() + Clone + Send + 'static,
) -> io::Result<()> {
    let exit = move || -> ! {
        let limit = move || {
            thread::sleep(grace);
            process::exit(0)
        };
        // Without the thread only the parent limits the time.
        let _ = thread::Builder::new().spawn(limit);
        stop();
        process::exit(0)
    };
    let exit_at_signal = exit.clone();
    on_signal(move || exit_at_signal())?;
    let mut stdin = stdin()?;
    let mut lines = LineReader::default();
    while let Some(line) = lines.read_line(&mut stdin, None)? {
        dispatch(&mut agent, line);
    }
    exit()
}

/// Stdin as a file, because std's own handle buffers.
pub(crate) fn stdin() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Stdout as a file, because std's own handle buffers.
pub(crate) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Calls `exit` on its own thread at the first signal: a client that does not read may block the main thread.
fn on_signal(exit: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (mut signal_rx, signal_tx) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        low_level::pipe::register(signal, signal_tx.try_clone()?)?;
    }
    let wait = move || {
        if signal_rx.read(&mut [0]).is_ok_and(|count| count > 0) {
            exit();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}
