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
    /// Connected, and to what.
    Here(Stream, String),
    /// It may be worth to try again.
    NotYet(Fault),
    Never(Fault),
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
            let fault = match Stream::connect(&self.options.addresses, timeout) {
                Ok((stream, at)) => {
                    if let Some(starter) = &mut self.starter {
                        starter.has_arrived();
                    }
                    return match stream.set_nonblocking() {
                        Ok(()) => Attempt::Here(stream, at.to_string()),
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
