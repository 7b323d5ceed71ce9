//! Asks the user at the terminal, and stops when the question is withdrawn.

use std::io;
use std::time::Instant;

use nix::sys::termios::{FlushArg, tcflush};
use rpc::RpcError;
use rpc::error::CANCELLED;
use serde_json::Value;
use signal_hook::consts::SIGINT;

use super::driver::Driver;
use super::events::Event;
use super::guest::DECIDED_TIMEOUT;
use super::permission::{Choice, asks_for_choice, list_of, parse_choice};
use super::stop::Stop;
use crate::status::word;

/// What the user has chosen, if anything. The error answers a question that is withdrawn.
pub(super) type Chosen = Result<Option<Choice>, RpcError>;

pub(super) struct Question<'a> {
    /// What it is about, in a few words.
    pub(super) title: &'a str,
    pub(super) text: String,
    pub(super) offered: &'a [Choice],
    /// The id of the agent's request.
    pub(super) request_id: &'a Value,
}

impl Driver {
    /// Asks the user. Events of the agent wait meanwhile.
    pub(super) fn ask_user(&mut self, question: &Question<'_>) -> Result<Chosen, Stop> {
        let began = Instant::now();
        let mut deferred = Vec::new();
        let chosen = self.ask_until_answered(question, &mut deferred);
        // They go before events that were deferred earlier, in their order.
        for event in deferred.into_iter().rev() {
            self.deferred.push_front(event);
        }
        self.user_wait += began.elapsed();
        chosen
    }

    fn ask_until_answered(
        &mut self,
        Question { title, text, offered, request_id }: &Question<'_>,
        deferred: &mut Vec<Event>,
    ) -> Result<Chosen, Stop> {
        // What was typed before the question appeared cannot be its answer.
        let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH);
        let (list, ask) = (list_of(offered), asks_for_choice(offered, false));
        self.renderer.ask(&format!("{text}\n{list}{ask}"))?;
        loop {
            if !self.input.request_line() {
                return Ok(Ok(None));
            }
            match self.next_event(None)? {
                Event::UserLine(line) => {
                    self.input.on_line(line.as_ref());
                    let Some(line) = line else {
                        self.renderer.ask("\n")?;
                        return Ok(Ok(None));
                    };
                    if let Some(chosen) = parse_choice(&line, offered) {
                        return Ok(Ok(Some(chosen.clone())));
                    }
                    self.renderer.ask(&asks_for_choice(offered, true))?;
                }
                Event::Message(message) if withdraws(&message, request_id) => {
                    self.withdraw_from_user(title, deferred)?;
                    return Ok(Err(RpcError::new(CANCELLED, "withdrawn")));
                }
                Event::Signal(SIGINT) => {
                    self.interrupt()?;
                    return Ok(Ok(None));
                }
                event @ (Event::Closed | Event::Signal(_)) => {
                    deferred.push(event);
                    return Ok(Ok(None));
                }
                event => deferred.push(event),
            }
        }
    }

    /// Somebody else has answered, or the agent does not want the answer any more.
    fn withdraw_from_user(&mut self, title: &str, deferred: &mut Vec<Event>) -> Result<(), Stop> {
        self.input.withdraw();
        // A line that has just come was meant for the question, and so was what is half typed.
        while self.input.is_line_due() {
            match self.next_event(None)? {
                Event::UserLine(line) => self.input.on_line(line.as_ref()),
                event => deferred.push(event),
            }
        }
        let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH);
        match self.input.has_editor() {
            true => self.renderer.take_back()?,
            false => self.renderer.ask("\n")?,
        }
        let text = match self.who_decided(deferred)? {
            Some(by) => format!("{by} has answered: {title}"),
            None => format!("the agent no longer asks: {title}"),
        };
        Ok(self.renderer.note(&text)?)
    }

    /// Who has answered a question that was withdrawn, if the bus says it.
    fn who_decided(&mut self, deferred: &mut Vec<Event>) -> Result<Option<String>, Stop> {
        if !self.agent.is_behind_bus() {
            return Ok(None);
        }
        let until = Instant::now() + DECIDED_TIMEOUT;
        loop {
            match self.next_event(Some(until)) {
                Ok(Event::Message(message)) if self.is_decided(&message) => {
                    return Ok(Some(word(&message["params"]["by"])));
                }
                Ok(event) => deferred.push(event),
                Err(Stop::TimedOut) => return Ok(None),
                Err(stop) => return Err(stop),
            }
        }
    }

    fn is_decided(&self, message: &Value) -> bool {
        let params = &message["params"];
        let is_event = message["method"] == "_bus/session" && params["event"] == "decided";
        is_event && params["session"] == self.session.as_str()
    }
}

fn withdraws(message: &Value, request_id: &Value) -> bool {
    message["method"] == "$/cancel_request" && message["params"]["requestId"] == *request_id
}
