//! The errors of `serve`.

use std::error::Error;
use std::{fmt, io};

use kernel_core::config::Address;

use crate::net::socket::ListenError;

/// Why the bus could not start or had to give up.
#[derive(Debug)]
pub enum ServeError {
    /// The bus cannot listen at an address of `listen`.
    Listen {
        /// The address.
        at: Address,
        /// Why the bus cannot listen there.
        error: ListenError,
    },
    /// The process that ends the workers when the bus is killed could not be started.
    Guard(io::Error),
    /// The event loop could not go on. Every process that the bus had started has been ended.
    Poll(io::Error),
    /// The system refused something else that the bus needs.
    System {
        /// What the bus could not do, such as `cannot create a poll`.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl ServeError {
    /// Whether the configuration asks for something that no state of this machine can give.
    pub fn is_misconfigured(&self) -> bool {
        matches!(self, ServeError::Listen { error, .. } if error.is_misconfigured())
    }

    /// Whether another bus runs at the same address.
    pub fn is_locked(&self) -> bool {
        matches!(self, ServeError::Listen { error: ListenError::Locked(_), .. })
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Listen { at, error } => write!(out, "cannot listen at {at}: {error}"),
            ServeError::Guard(error) => write!(out, "cannot start the guard of the workers: {error}"),
            ServeError::Poll(error) => write!(out, "cannot poll: {error}"),
            ServeError::System { what, error } => write!(out, "{what}: {error}"),
        }
    }
}

impl Error for ServeError {}
