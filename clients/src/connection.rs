//! One connection to a bus: dials it, says hello and sends requests until a deadline.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use kernel_core::config::Address;
use rpc::{AskError, Client, LineReader, Stream};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::peer_check;
use crate::{Fault, Target, TokenFile};

/// A host that drops packets would otherwise block for minutes.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Connection {
    client: Client,
    at: String,
    token: Option<String>,
    /// The file that `token` was read from.
    token_file: Option<TokenFile>,
    timeout: Option<Duration>,
}

impl Connection {
    pub(crate) fn connect(target: &Target, timeout: Option<Duration>) -> Result<Connection, Fault> {
        let deadline = deadline(timeout);
        let connect_timeout = timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT);
        let (stream, address) = dial(&target.addresses, connect_timeout)?;
        let token = target.token_for(address, &stream, connect_timeout)?;
        let mut client = Client::new(stream);
        client.set_deadline(deadline);
        let token_file = if token.is_some() { target.token.clone() } else { None };
        Ok(Connection { client, at: address.to_string(), token, token_file, timeout })
    }

    /// Sends the hello if there is a pool to name or a token to show.
    pub(crate) fn hello(&mut self, client: &str, pool: Option<&str>) -> Result<(), Fault> {
        if self.token.is_none() && pool.is_none() {
            return Ok(());
        }
        self.introduce(client, pool)
    }

    /// Sends the hello, for a client whose name others see.
    pub(crate) fn introduce(&mut self, client: &str, pool: Option<&str>) -> Result<(), Fault> {
        let params = hello_params(client, pool, self.token.as_deref());
        self.request("_bus/hello", params).map(|_| ())
    }

    /// Like `introduce`, for a client that also wants to hear what becomes of its sessions.
    pub(crate) fn introduce_listener(&mut self, client: &str, pool: Option<&str>) -> Result<(), Fault> {
        let mut params = hello_params(client, pool, self.token.as_deref());
        params["events"] = true.into();
        self.request("_bus/hello", params).map(|_| ())
    }

    /// Restarts the timeout, as if the connection had just been made.
    pub(crate) fn restart_timeout(&mut self) {
        self.client.set_deadline(deadline(self.timeout));
    }

    /// Sends one request and returns its result. Notifications before the answer are skipped; requests are
    /// refused, since no user is here to answer them.
    pub(crate) fn request(&mut self, method: &str, params: impl Serialize) -> Result<Box<RawValue>, Fault> {
        self.client.ask(method, params).map_err(|error| match error {
            AskError::TimedOut => {
                Fault::TimedOut { at: self.at.clone(), waited: self.timeout.unwrap_or_default() }
            }
            AskError::Closed => {
                Fault::Unreachable(format!("{} closed the connection before it answered", self.at))
            }
            AskError::Broken(error) => broken(&self.at, &error),
            AskError::NotJsonRpc => Fault::Unreachable(format!("what answers at {} is not a bus", self.at)),
            AskError::Refused(error) if rpc::error::reason(&error) == "unauthorized" => {
                Fault::unauthorized(&self.at, self.token_file.as_ref())
            }
            AskError::Refused(error) => Fault::Refused(error),
        })
    }

    /// The stream, without a deadline, and the reader with what was already read.
    pub(crate) fn into_parts(self) -> Result<(Stream, LineReader), Fault> {
        let at = self.at;
        self.client.into_parts().map_err(|error| broken(&at, &error))
    }
}

/// Connects to a bus for a program that speaks the protocol itself. Also returns the token to show in its hello.
pub fn dial_for(target: &Target, timeout: Duration) -> Result<(Stream, Option<String>), Fault> {
    let (stream, address) = dial(&target.addresses, timeout)?;
    let token = target.token_for(address, &stream, timeout)?;
    Ok((stream, token))
}

/// Connects to the first address at which something listens, and returns that address too.
pub(crate) fn dial(addresses: &[Address], timeout: Duration) -> Result<(Stream, &Address), Fault> {
    let mut failures = Vec::new();
    for address in addresses {
        let connected = match address {
            Address::Unix(path) => Stream::connect_unix(path),
            Address::Tcp { host, port } => Stream::connect_tcp(host, *port, timeout),
            Address::Stdio => Err(io::Error::new(ErrorKind::Unsupported, "only its parent can reach it")),
        };
        match connected {
            Ok(stream) => {
                peer_check::check_unix_user(&stream, address)?;
                return Ok((stream, address));
            }
            Err(error) => failures.push(format!("{address} ({})", in_words(&error))),
        }
    }
    Err(Fault::Unreachable(format!("no bus answers at {}", failures.join(", nor at "))))
}

pub(crate) fn hello_params(client: &str, pool: Option<&str>, token: Option<&str>) -> Value {
    let mut params = json!({ "client": client });
    if let Some(pool) = pool {
        params["pool"] = pool.into();
    }
    if let Some(token) = token {
        params["token"] = token.into();
    }
    params
}

/// Without the number that the system has for it.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// A deadline too far away to compute is no deadline.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

fn broken(at: &str, error: &io::Error) -> Fault {
    Fault::Unreachable(format!("the connection to {at} broke: {error}"))
}
