//! Why a program got no good answer: its words for the user, and its exit code.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use kernel::config::ConfigFaults;
use serde_json::value::RawValue;

use crate::token::TokenFile;

#[derive(Debug)]
pub enum Fault {
    /// bus.json does not say where the bus is.
    Config(ConfigFaults),
    /// As `Config`, where the file is well but of no use.
    NoAddress(String),
    /// Nothing listens there, or what listens does not speak as a bus does.
    Unreachable(String),
    /// There is a bus, but no answer came in time.
    Silent { at: String, waited: Duration },
    /// The bus asks for a token that was not shown, or was not the right one.
    Unauthorized(String),
    /// The token cannot be read, or should not be.
    Token(String),
    /// The answer is an error: that of the agent, or that of the bus.
    Refused(Box<RawValue>),
    /// Something else that the user can do something about.
    Failed(String),
}

impl Fault {
    /// As in sysexits.h: EX_UNAVAILABLE, EX_NOPERM and EX_CONFIG.
    pub fn exit_code(&self) -> u8 {
        match self {
            Fault::Unreachable(_) => 69,
            Fault::Unauthorized(_) => 77,
            Fault::Config(_) | Fault::NoAddress(_) | Fault::Token(_) => 78,
            Fault::Silent { .. } | Fault::Refused(_) | Fault::Failed(_) => 1,
        }
    }
}

/// One line, except for the faults of a file. A refusal is the JSON of the error as it came.
impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Config(faults) => write!(out, "{faults}"),
            Fault::NoAddress(message)
            | Fault::Unreachable(message)
            | Fault::Unauthorized(message)
            | Fault::Token(message)
            | Fault::Failed(message) => out.write_str(message),
            Fault::Silent { at, waited } => write!(out, "no answer from {at} within {waited:?}"),
            Fault::Refused(error) => out.write_str(error.get()),
        }
    }
}

impl Fault {
    /// The bus at this address does not let us in.
    pub(crate) fn unauthorized(at: &str, token: Option<&TokenFile>) -> Fault {
        Fault::Unauthorized(match token {
            Some(token) => format!("the bus at {at} refuses the token of {}", token.path.display()),
            None => format!("the bus at {at} asks for a token: name its file with --token-file"),
        })
    }
}

impl Error for Fault {}
