//! One attempt to reach a bus, which may start one.

use std::time::Duration;

use super::Options;
use super::start::{Starter, Turn};
use crate::Fault;
use crate::stream::Stream;

pub(super) struct Reach<'a> {
    options: &'a Options,
    starter: Option<Starter<'a>>,
}

pub(super) enum Attempt {
    /// Connected.
    Here(Arrival),
    /// It may be worth to try again.
    NotYet(Fault),
    Never(Fault),
}

pub(super) struct Arrival {
    pub(super) stream: Stream,
    /// Where.
    pub(super) at: String,
    /// The params of the `_bus/hello` to say there.
    pub(super) hello: String,
}

impl<'a> Reach<'a> {
    pub(super) fn new(options: &'a Options) -> Reach<'a> {
        Reach { options, starter: options.start.as_ref().map(Starter::new) }
    }

    pub(super) fn starts(&self) -> bool {
        self.starter.is_some()
    }

    pub(super) fn attempt(&mut self, timeout: Duration) -> Attempt {
        loop {
            let fault = match Stream::connect(&self.options.way.addresses, timeout) {
                Ok((stream, at)) => {
                    if let Some(starter) = &mut self.starter {
                        starter.has_arrived();
                    }
                    let hello = match self.options.hello(at) {
                        Ok(hello) => hello,
                        Err(fault) => return Attempt::Never(fault),
                    };
                    return match stream.set_nonblocking() {
                        Ok(()) => Attempt::Here(Arrival { stream, at: at.to_string(), hello }),
                        Err(error) => Attempt::Never(Fault::Failed(format!("a socket fails: {error}"))),
                    };
                }
                Err(fault) => fault,
            };
            let Some(starter) = &mut self.starter else { return Attempt::NotYet(fault) };
            match starter.nudge(&fault) {
                Ok(Turn::LookAgain) => {}
                Ok(Turn::Wait) => return Attempt::NotYet(fault),
                Err(fault) => return Attempt::Never(fault),
            }
        }
    }
}
