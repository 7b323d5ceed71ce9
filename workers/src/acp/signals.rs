//! SIGTERM and SIGINT, for agents that must end their turns before they exit.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;

/// Calls `stop` on its own thread at the first signal: a client that does not read may block the main thread.
pub(crate) fn on_signal(stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (mut signal_rx, signal_tx) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        low_level::pipe::register(signal, signal_tx.try_clone()?)?;
    }
    let wait = move || {
        if signal_rx.read(&mut [0]).is_ok_and(|count| count > 0) {
            stop();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}
