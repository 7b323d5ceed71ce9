//! One connection to a bus that sends requests and waits for their answers until a deadline.
//!
//! Nothing that the peer sends makes it panic; what no bus would send is a fault.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::time::{Duration, Instant};

use serde_json::value::{RawValue, to_raw_value};

use crate::message::{Message, reason};
use crate::stream::{CONNECT_TIMEOUT, Stream};
use crate::{Fault, Target, TokenFile};

/// The longest line that a bus can be configured to carry, plus room for what it rewrites.
pub(crate) const MAX_LINE_BYTES: usize = (1 << 30) + (1 << 20);

pub(crate) struct Connection {
    peer: BufReader<Stream>,
    at: String,
    token: Option<String>,
    /// The file that `token` was read from.
    token_file: Option<TokenFile>,
    /// The user's timeout, and the time when it ends.
    deadline: Option<(Duration, Instant)>,
    /// The id of the last request.
    last_id: u32,
}

impl Connection {
    /// Connects to the first address at which something listens.
    pub(crate) fn connect(target: &Target, timeout: Option<Duration>) -> Result<Connection, Fault> {
        // A deadline too far away to compute is no deadline.
        let deadline = timeout.and_then(|timeout| Some((timeout, Instant::now().checked_add(timeout)?)));
        let timeout = timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT);
        let (stream, address) = Stream::connect(&target.addresses, timeout)?;
        let peer = BufReader::with_capacity(64 << 10, stream);
        let token = target.token.as_ref().map(|file| file.token_for(address)).transpose()?.flatten();
        let token_file = target.token.clone().filter(|_| token.is_some());
        Ok(Connection { peer, at: address.to_string(), token, token_file, deadline, last_id: 0 })
    }

    /// Sends the hello if there is a pool to name or a token to show.
    pub(crate) fn hello(&mut self, client: &str, pool: Option<&str>) -> Result<(), Fault> {
        if self.token.is_none() && pool.is_none() {
            return Ok(());
        }
        let mut hello = serde_json::json!({ "client": client });
        if let Some(pool) = pool {
            hello["pool"] = pool.into();
        }
        if let Some(token) = &self.token {
            hello["token"] = token.as_str().into();
        }
        let hello = to_raw_value(&hello).expect("plain JSON becomes text");
        self.request("_bus/hello", Some(&hello)).map(|_| ())
    }

    /// Restarts the timeout, as if the connection had just been made.
    pub(crate) fn restart_timeout(&mut self) {
        self.deadline = self.deadline.and_then(|(all, _)| Some((all, Instant::now().checked_add(all)?)));
    }

    /// Sends one request and returns its result. Notifications before the answer are skipped; requests are
    /// refused, since no user is here to answer them.
    pub(crate) fn request(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Box<RawValue>, Fault> {
        self.last_id += 1;
        let id = self.last_id.to_string();
        let method = serde_json::Value::from(method);
        let params = params.map_or_else(String::new, |params| format!(r#","params":{}"#, one_line(params)));
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method}{params}}}"#))?;
        loop {
            let line = self.next_line()?;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let Some(message) = Message::parse(&line) else {
                return Err(Fault::Unreachable(format!("what answers at {} is no bus", self.at)));
            };
            let is_ours = |answered_id: &RawValue| answered_id.get() == id;
            match message {
                Message { method: Some(_), id: Some(request_id), .. } => self.refuse(request_id)?,
                Message { id: Some(answered_id), result: Some(result), .. } if is_ours(answered_id) => {
                    return Ok(result.to_owned());
                }
                // An error without an id answers our only line: the bus could not read its id.
                Message { id, error: Some(error), method: None, .. }
                    if id.is_none_or(|answered_id| is_ours(answered_id) || answered_id.get() == "null") =>
                {
                    return Err(match reason(error).as_str() {
                        "unauthorized" => Fault::unauthorized(&self.at, self.token_file.as_ref()),
                        _ => Fault::Refused(error.to_owned()),
                    });
                }
                _ => {}
            }
        }
    }

    /// Splits the connection into reader and writer, without a deadline.
    pub(crate) fn into_halves(self) -> Result<(BufReader<Stream>, Stream), Fault> {
        let broken =
            |error: io::Error| Fault::Unreachable(format!("the connection to {} broke: {error}", self.at));
        let stream = self.peer.get_ref();
        let writer = stream.set_read_timeout(None).and_then(|()| stream.try_clone()).map_err(broken)?;
        Ok((self.peer, writer))
    }

    fn refuse(&mut self, request_id: &RawValue) -> Result<(), Fault> {
        let error = r#"{"code":-32601,"message":"this client answers no requests"}"#;
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, request_id.get()))
    }

    fn send(&mut self, line: &str) -> Result<(), Fault> {
        let remaining = self.remaining()?;
        let stream = self.peer.get_mut();
        let written = stream.write_with_timeout(format!("{line}\n").as_bytes(), remaining);
        written.map_err(|error| self.broken(&error))
    }

    /// Without its newline.
    fn next_line(&mut self) -> Result<Vec<u8>, Fault> {
        let mut line = Vec::new();
        loop {
            let remaining = self.remaining()?;
            let read = self.peer.get_mut().set_read_timeout(remaining).and_then(|()| self.peer.fill_buf());
            let chunk = match read {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broken(&error)),
            };
            if chunk.is_empty() {
                let message = format!("{} closed the connection before it answered", self.at);
                return Err(Fault::Unreachable(message));
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.peer.consume(taken);
            if end.is_some() {
                return Ok(line);
            }
            if line.len() > MAX_LINE_BYTES {
                return Err(Fault::Unreachable(format!("what answers at {} is no bus", self.at)));
            }
        }
    }

    /// Never zero, which the system would take for no timeout.
    fn remaining(&self) -> Result<Option<Duration>, Fault> {
        let Some((_, end)) = self.deadline else { return Ok(None) };
        match end.checked_duration_since(Instant::now()) {
            Some(Duration::ZERO) | None => Err(self.timed_out()),
            remaining => Ok(remaining),
        }
    }

    fn broken(&self, error: &io::Error) -> Fault {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.timed_out(),
            _ => Fault::Unreachable(format!("the connection to {} broke: {error}", self.at)),
        }
    }

    fn timed_out(&self) -> Fault {
        let waited = self.deadline.map_or(Duration::ZERO, |(timeout, _)| timeout);
        Fault::TimedOut { at: self.at.clone(), waited }
    }
}

/// A newline in JSON can only be white space.
fn one_line(json: &RawValue) -> String {
    json.get().replace(['\n', '\r'], " ")
}
