//! A client that waits for its answers.
//!
//! Commands about faults use it, where a thread for each client is easy to follow; `load` drives many connections at
//! once.

use std::io::{self, ErrorKind};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use rpc::{AskError, Stream, write};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::address::{self, Address};

/// A line that takes longer has not come.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    peer: rpc::Client,
    timeout: Duration,
}

impl Client {
    pub(crate) fn connect(address: &Address) -> io::Result<Client> {
        Ok(Client::over(address::connect(address)?))
    }

    pub(crate) fn over(stream: Stream) -> Client {
        Client { peer: rpc::Client::new(stream), timeout: TIMEOUT }
    }

    /// Over the stdin and stdout of a process, which must be piped.
    pub(crate) fn of_child(child: &mut Child) -> Client {
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Client::over(Stream::pipes(stdout.expect("it is piped"), stdin.expect("it is piped")))
    }

    /// The connection, without what was read of it and not taken.
    pub(crate) fn into_stream(self) -> io::Result<Stream> {
        Ok(self.peer.into_parts()?.0)
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub(crate) fn half_close(&mut self) -> io::Result<()> {
        self.peer.stream().half_close()
    }

    /// Ends the connection with a reset, so that nothing more is delivered in either direction.
    pub(crate) fn reset(mut self) -> io::Result<()> {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        Ok(setsockopt(self.peer.stream(), sockopt::Linger, &at_once)?)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        Ok(self.before_timeout().send(bytes)?)
    }

    /// The next line without its newline. None: the peer has closed.
    pub(crate) fn line_or_end(&mut self) -> io::Result<Option<&[u8]>> {
        Ok(self.before_timeout().next_line()?)
    }

    /// The next line, which has to come.
    pub(crate) fn line(&mut self) -> io::Result<&[u8]> {
        Ok(self.line_or_end()?.ok_or(ErrorKind::UnexpectedEof)?)
    }

    pub(crate) fn message(&mut self) -> io::Result<Value> {
        Ok(serde_json::from_slice(self.line()?)?)
    }

    /// The result of a request, which must have one.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> io::Result<Value> {
        Ok(serde_json::from_str(self.before_timeout().ask(method, params)?.get())?)
    }

    /// The result of a request, or the reason of its error.
    pub(crate) fn ask_or_reason(&mut self, method: &str, params: Value) -> io::Result<Result<Value, String>> {
        match self.before_timeout().ask(method, params) {
            Ok(result) => Ok(Ok(serde_json::from_str(result.get())?)),
            Err(AskError::Refused(error)) => Ok(Err(rpc::error::reason(&error))),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn status(&mut self) -> io::Result<Value> {
        self.ask("_bus/status", json!({}))
    }

    /// From now on the client belongs to this pool.
    pub(crate) fn join_pool(&mut self, pool: &str) -> io::Result<()> {
        self.ask("_bus/hello", json!({ "pool": pool })).map(drop)
    }

    /// As an ACP client that can do nothing special. Gives the reason if it is refused.
    pub(crate) fn initialize(&mut self) -> io::Result<Result<Value, String>> {
        self.ask_or_reason("initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }))
    }

    pub(crate) fn open_session(&mut self) -> io::Result<String> {
        let result = self.ask("session/new", json!({ "cwd": "/", "mcpServers": [] }))?;
        let session = result["sessionId"].as_str();
        Ok(session.ok_or_else(|| io::Error::other(format!("no session: {result}")))?.to_owned())
    }

    /// Sends a prompt and does not wait for its answer.
    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> io::Result<()> {
        self.send(&write::request("prompt", "session/prompt", prompt(session, text)))
    }

    fn before_timeout(&mut self) -> &mut rpc::Client {
        self.peer.set_deadline(Some(Instant::now() + self.timeout));
        &mut self.peer
    }
}

/// The line that grants a permission.
pub(crate) fn grant(request_id: &Value, option: &Value) -> Vec<u8> {
    let id = to_raw_value(request_id).expect("JSON stays JSON");
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    write::result((&*id).into(), outcome)
}

/// The params of a prompt.
pub(crate) fn prompt(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}
