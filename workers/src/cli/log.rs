//! Logs to stderr, because stdout belongs to the protocol.

use std::fmt::Arguments;

pub(super) fn log(message: Arguments<'_>) {
    eprintln!("[cli-agent] {message}");
}
