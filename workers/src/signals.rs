//! SIGTERM and SIGINT, heard once, for agents that must end their turns before they go.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;

/// On a thread of its own: the main one may be held up by a client that does not read.
pub(crate) fn on_signal(leave: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (mut bell, rope) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        low_level::pipe::register(signal, rope.try_clone()?)?;
    }
    let heed = move || {
        if bell.read(&mut [0]).is_ok_and(|count| count > 0) {
            leave();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(heed)?;
    Ok(())
}
