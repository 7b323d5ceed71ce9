//! Dials the bus once, and starts one where that is allowed and none answers.

use std::time::Duration;

use kernel_core::config::Address;
use rpc::Stream;
use serde_json::Value;

use super::options::Options;
use super::start::{NextTry, Starter};
use crate::Fault;
use crate::connection::dial;

pub(super) struct Dialer<'a> {
    options: &'a Options,
    starter: Option<Starter<'a>>,
}

pub(super) enum Dial {
    Connected(Dialed),
    /// No bus answers yet; dialing again may help.
    Retry(Fault),
    Failed(Fault),
}

pub(super) struct Dialed {
    pub(super) stream: Stream,
    /// The address that answered.
    pub(super) at: String,
    /// The params of the `_bus/hello` to send.
    pub(super) hello: Value,
}

impl<'a> Dialer<'a> {
    pub(super) fn new(options: &'a Options) -> Dialer<'a> {
        Dialer { options, starter: options.start.as_ref().map(Starter::new) }
    }

    pub(super) fn can_start_bus(&self) -> bool {
        self.starter.is_some()
    }

    pub(super) fn dial(&mut self, timeout: Duration) -> Dial {
        loop {
            let fault = match dial(&self.options.target.addresses, timeout) {
                Ok((stream, at)) => {
                    return match self.connected(stream, at) {
                        Ok(dialed) => Dial::Connected(dialed),
                        Err(fault @ Fault::TimedOut { .. }) => Dial::Retry(fault),
                        Err(fault) => Dial::Failed(fault),
                    };
                }
                // No bus of ours can listen there, so none is started.
                Err(fault @ Fault::NotOurs(_)) => return Dial::Failed(fault),
                Err(fault) => fault,
            };
            let Some(starter) = &mut self.starter else { return Dial::Retry(fault) };
            match starter.on_no_answer(&fault) {
                Ok(NextTry::Now) => {}
                Ok(NextTry::Later) => return Dial::Retry(fault),
                Err(fault) => return Dial::Failed(fault),
            }
        }
    }

    fn connected(&mut self, stream: Stream, at: &Address) -> Result<Dialed, Fault> {
        if let Some(starter) = &mut self.starter {
            starter.on_connected();
        }
        let hello = self.options.hello(at, &stream)?;
        stream.set_nonblocking(true).map_err(|error| Fault::Failed(format!("a socket fails: {error}")))?;
        Ok(Dialed { stream, at: at.to_string(), hello })
    }
}
