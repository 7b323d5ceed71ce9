//! Why a client command failed: its message for the user and its exit code.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use kernel_shell::config::ConfigErrors;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::exit;
use crate::token::TokenFile;

#[derive(Debug)]
pub enum Fault {
    /// bus.json is invalid.
    Config(ConfigErrors),
    /// bus.json is valid but names no address to connect to.
    NoAddress(String),
    /// Nothing listens there, or the server is not a bus.
    Unreachable(String),
    /// The bus did not answer in time.
    TimedOut { at: String, waited: Duration },
    /// The bus requires a token, and none or a wrong one was sent.
    Unauthorized(String),
    /// What listens there is not of this user, or may not be, so nothing that is secret was shown to it.
    NotOurs(String),
    /// The token file cannot be read, or has unsafe permissions.
    Token(String),
    /// The answer is this error, of the agent or of the bus.
    Refused(Box<RawValue>),
    /// Any other failure, with a message for the user.
    Failed(String),
}

impl Fault {
    /// An error of the bus as a sentence, for commands whose users do not read JSON.
    pub fn in_words(self) -> Fault {
        let Fault::Refused(error) = &self else { return self };
        let told: Value = serde_json::from_str(error.get()).unwrap_or_default();
        let Some(message) = told["message"].as_str() else { return self };
        let pools: Vec<&str> =
            told["data"]["pools"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let more =
            if pools.is_empty() { String::new() } else { format!("; the pools are {}", pools.join(", ")) };
        Fault::Failed(format!("{message}{more}"))
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Fault::Unreachable(_) => exit::UNAVAILABLE,
            Fault::Unauthorized(_) | Fault::NotOurs(_) => exit::NOT_ALLOWED,
            Fault::Config(_) | Fault::NoAddress(_) | Fault::Token(_) => exit::BAD_CONFIGURATION,
            Fault::TimedOut { .. } | Fault::Refused(_) | Fault::Failed(_) => 1,
        }
    }
}

/// One line, except for the faults of a file. An error answer is its JSON, verbatim.
impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Config(errors) => write!(out, "{errors}"),
            Fault::NoAddress(message)
            | Fault::Unreachable(message)
            | Fault::Unauthorized(message)
            | Fault::NotOurs(message)
            | Fault::Token(message)
            | Fault::Failed(message) => out.write_str(message),
            Fault::TimedOut { at, waited } => write!(out, "no answer from {at} within {waited:?}"),
            Fault::Refused(error) => out.write_str(error.get()),
        }
    }
}

impl Fault {
    /// For requests that a running bus answers at once.
    pub(crate) fn timeout_as_unreachable(self) -> Fault {
        match self {
            Fault::TimedOut { .. } => Fault::Unreachable(self.to_string()),
            fault => fault,
        }
    }

    /// The bus at this address rejects the token, or the lack of one.
    pub(crate) fn unauthorized(at: &str, token: Option<&TokenFile>) -> Fault {
        Fault::Unauthorized(match token {
            Some(token) => format!("the bus at {at} refuses the token of {}", token.path.display()),
            None => format!("the bus at {at} asks for a token: name its file with --token-file"),
        })
    }
}

impl Error for Fault {}
