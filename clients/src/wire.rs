//! One connection to a bus: lines out, lines in, until a deadline.
//!
//! Knows JSON-RPC as far as one question needs it. Nothing that the peer sends makes it panic; what no bus
//! would send is a fault.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::time::{Duration, Instant};

use serde_json::value::{RawValue, to_raw_value};

use crate::message::{Message, reason};
use crate::stream::{CONNECT_TIMEOUT, Stream};
use crate::{Fault, TokenFile, Way};

/// The longest line a bus can be told to carry, and room for what it rewrites in it.
pub(crate) const LINE_BYTES_MOST: usize = (1 << 30) + (1 << 20);

pub(crate) struct Wire {
    peer: BufReader<Stream>,
    at: String,
    token: Option<String>,
    /// Where that is from.
    token_file: Option<TokenFile>,
    /// How long the user wants to wait in all, and when that is over.
    patience: Option<(Duration, Instant)>,
    /// The id of the last question; each has its own.
    last_id: u32,
}

impl Wire {
    /// To the first of these addresses at which something listens.
    pub(crate) fn connect(way: &Way, timeout: Option<Duration>) -> Result<Wire, Fault> {
        // A time too far away to be told is as good as none.
        let patience = timeout.and_then(|timeout| Some((timeout, Instant::now().checked_add(timeout)?)));
        let timeout = timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT);
        let (stream, address) = Stream::connect(&way.addresses, timeout)?;
        let peer = BufReader::with_capacity(64 << 10, stream);
        let token = way.token.as_ref().map(|file| file.token_for(address)).transpose()?.flatten();
        let token_file = way.token.clone().filter(|_| token.is_some());
        Ok(Wire { peer, at: address.to_string(), token, token_file, patience, last_id: 0 })
    }

    /// Says who is there, for which pool, and shows the token, if there is anything of this to say.
    pub(crate) fn greet(&mut self, client: &str, pool: Option<&str>) -> Result<(), Fault> {
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
        self.ask("_bus/hello", Some(&hello)).map(|_| ())
    }

    /// The time that its user waits begins now, as if it had just connected.
    pub(crate) fn begin_to_wait(&mut self) {
        self.patience = self.patience.and_then(|(all, _)| Some((all, Instant::now().checked_add(all)?)));
    }

    /// One request and its answer. Notifications that come before it are passed over, and requests are
    /// refused: there is nobody here to grant them.
    pub(crate) fn ask(&mut self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, Fault> {
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
            let Some(message) = Message::scan(&line) else {
                return Err(Fault::Unreachable(format!("what answers at {} is no bus", self.at)));
            };
            let answers_us = |about: &RawValue| about.get() == id;
            match message {
                Message { method: Some(_), id: Some(asked), .. } => self.refuse(asked)?,
                Message { id: Some(about), result: Some(result), .. } if answers_us(about) => {
                    return Ok(result.to_owned());
                }
                // An error about no id is about our only line: the bus could not even read its id.
                Message { id, error: Some(error), method: None, .. }
                    if id.is_none_or(|about| answers_us(about) || about.get() == "null") =>
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

    /// For a conversation instead of questions: what comes, and where to write. No deadline holds any more.
    pub(crate) fn into_halves(self) -> Result<(BufReader<Stream>, Stream), Fault> {
        let broken =
            |error: io::Error| Fault::Unreachable(format!("the connection to {} broke: {error}", self.at));
        let stream = self.peer.get_ref();
        let writer = stream.set_read_timeout(None).and_then(|()| stream.try_clone()).map_err(broken)?;
        Ok((self.peer, writer))
    }

    fn refuse(&mut self, asked: &RawValue) -> Result<(), Fault> {
        let error = r#"{"code":-32601,"message":"this client answers no requests"}"#;
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, asked.get()))
    }

    fn send(&mut self, line: &str) -> Result<(), Fault> {
        let remaining = self.remaining()?;
        let stream = self.peer.get_mut();
        let written = stream.write_patiently(format!("{line}\n").as_bytes(), remaining);
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
            if line.len() > LINE_BYTES_MOST {
                return Err(Fault::Unreachable(format!("what answers at {} is no bus", self.at)));
            }
        }
    }

    /// Never zero, which would mean for ever.
    fn remaining(&self) -> Result<Option<Duration>, Fault> {
        let Some((_, end)) = self.patience else { return Ok(None) };
        match end.checked_duration_since(Instant::now()) {
            Some(Duration::ZERO) | None => Err(self.silent()),
            remaining => Ok(remaining),
        }
    }

    fn broken(&self, error: &io::Error) -> Fault {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.silent(),
            _ => Fault::Unreachable(format!("the connection to {} broke: {error}", self.at)),
        }
    }

    fn silent(&self) -> Fault {
        let waited = self.patience.map_or(Duration::ZERO, |(timeout, _)| timeout);
        Fault::Silent { at: self.at.clone(), waited }
    }
}

/// JSON may be written over many lines; a newline in it can only be white space.
fn one_line(json: &RawValue) -> String {
    json.get().replace(['\n', '\r'], " ")
}
