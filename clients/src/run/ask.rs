//! What the agent asks of the user: permissions, files, commands. Everything gets one answer.

use std::io;
use std::time::Instant;

use nix::sys::termios::{FlushArg, tcflush};
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::Policy;
use super::call::ToolCall;
use super::converse::{Runner, Stop};
use super::hands::{Deed, Hands, fault};
use super::link::Event;
use super::permission::{Choice, choices, mildest, outcome, understand};

impl Runner {
    pub(super) fn is_asked(&mut self, message: &Value) -> Result<(), Stop> {
        let (id, params) = (&message["id"], &message["params"]);
        let method = message["method"].as_str().unwrap_or_default();
        if method == "session/request_permission" {
            let result = self.permit(params)?;
            self.peer.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
            return Ok(());
        }
        let made_out = self.hands.as_ref().and_then(|hands| hands.make_out(method, params));
        let answer = match made_out {
            None => Some(Err(fault(-32601, &format!("{method} is not offered here")))),
            Some(Err(error)) => Some(Err(error)),
            Some(Ok(request)) => match request.deed {
                Some(deed) if !self.may(deed, &request.words)? => {
                    Some(Err(fault(-32603, "the user does not allow it")))
                }
                _ => self.hands.as_mut().and_then(|hands| hands.perform(&request, id)),
            },
        };
        match answer {
            Some(Ok(result)) => self.peer.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result })),
            Some(Err(error)) => self.peer.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error })),
            // It may be time already.
            None => self.answer_late(),
        }
        Ok(())
    }

    /// Answers those who wait for the end of a command that has ended.
    pub(super) fn answer_late(&mut self) {
        for (id, result) in self.hands.as_mut().map(Hands::late_answers).unwrap_or_default() {
            self.peer.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        }
    }

    /// The answer to a session/request_permission.
    fn permit(&mut self, params: &Value) -> Result<Value, Stop> {
        let offered = choices(params);
        self.show.permission(&params["toolCall"])?;
        if self.is_over() {
            return Ok(outcome(None));
        }
        let what = self.titles.learn(&ToolCall(&params["toolCall"])).text.to_owned();
        let chosen = match self.decides() {
            Policy::Allow => mildest(&offered, true).cloned(),
            Policy::Deny => mildest(&offered, false).cloned(),
            Policy::Ask => self.put(&format!("The agent asks: {what}"), &offered)?,
        };
        if self.decides() != Policy::Ask && chosen.as_ref().is_none_or(|choice| !choice.allows) {
            self.refuses(&what)?;
        }
        Ok(outcome(chosen.as_ref()))
    }

    /// Whether the runner may do this for the agent.
    fn may(&mut self, deed: Deed, words: &str) -> Result<bool, Stop> {
        if self.allowed.contains(&deed) {
            return Ok(true);
        }
        match self.decides() {
            Policy::Allow => return Ok(true),
            Policy::Deny => {
                self.refuses(words)?;
                return Ok(false);
            }
            Policy::Ask if self.is_over() => return Ok(false),
            Policy::Ask => {}
        }
        let choice = |id: &str, name: &str, allows, always| Choice {
            id: id.to_owned(),
            name: name.to_owned(),
            allows,
            always,
        };
        let kind = match deed {
            Deed::Read => "Yes, and any file here",
            Deed::Write => "Yes, and any file here from now on",
            Deed::Run => "Yes, and any command",
        };
        let offered = [
            choice("once", "Yes", true, false),
            choice("always", kind, true, true),
            choice("no", "No", false, false),
        ];
        let chosen = self.put(&format!("The agent wants to {words}"), &offered)?;
        if chosen.as_ref().is_some_and(|choice| choice.allows && choice.always) {
            self.allowed.insert(deed);
        }
        Ok(chosen.is_some_and(|choice| choice.allows))
    }

    /// Who decides: the user is asked only where there is one.
    fn decides(&self) -> Policy {
        match self.options.policy {
            Policy::Ask if !self.options.attended => Policy::Deny,
            policy => policy,
        }
    }

    fn refuses(&mut self, what: &str) -> Result<(), Stop> {
        self.refused = true;
        let why = match self.options.policy {
            Policy::Ask => "nobody can be asked, --allow would allow it",
            Policy::Allow => "the agent offers no way to allow it",
            Policy::Deny => "by --deny",
        };
        Ok(self.show.service(&format!("refused: {what} ({why})"))?)
    }

    /// Puts it to the user. What the agent says meanwhile waits. None: the question is taken back.
    fn put(&mut self, question: &str, offered: &[Choice]) -> Result<Option<Choice>, Stop> {
        let began = Instant::now();
        let chosen = self.put_patiently(question, offered);
        self.asked_for += began.elapsed();
        chosen
    }

    fn put_patiently(&mut self, question: &str, offered: &[Choice]) -> Result<Option<Choice>, Stop> {
        let list: String = offered
            .iter()
            .enumerate()
            .map(|(at, choice)| format!("  {}) {}\n", at + 1, choice.name))
            .collect();
        let ask = format!("1-{}? ", offered.len());
        // What was typed before the question was seen cannot be its answer.
        let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH);
        self.show.asks(&format!("{question}\n{list}{ask}"))?;
        let mut later = Vec::new();
        let chosen = loop {
            if !self.input.wants_line() {
                break None;
            }
            match self.next_event(None)? {
                Event::Typed(line) => {
                    self.input.has_line(line.as_ref());
                    let chosen = line.as_deref().and_then(|line| understand(line, offered));
                    if line.is_none() || chosen.is_some() {
                        break chosen.cloned();
                    }
                    self.show.asks(&ask)?;
                }
                Event::Signal(SIGINT) => {
                    self.cancel();
                    break None;
                }
                event @ (Event::Closed | Event::Signal(_)) => {
                    later.push(event);
                    break None;
                }
                event => later.push(event),
            }
        };
        // In front of those that were set aside before, in their order.
        for event in later.into_iter().rev() {
            self.set_aside.push_front(event);
        }
        Ok(chosen)
    }
}
