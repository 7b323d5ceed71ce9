//! Ctrl-Z in a command that reads keys one by one: there no key is a signal, so the command stops itself.

use nix::sys::signal::{Signal, raise};

/// Stops this process as Ctrl-Z does elsewhere, and returns when it goes on. The terminal must be in its usual mode.
pub(crate) fn stop_until_continued() {
    // It fails for no signal that there is. A process that no shell waits for goes on at once.
    let _ = raise(Signal::SIGTSTP);
}
