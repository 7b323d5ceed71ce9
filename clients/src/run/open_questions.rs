//! The questions that a program was asked and has not answered.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::client_tools::{Permission, Request, ToolKind};
use super::permission::Choice;

#[derive(Default)]
pub(super) struct Questions {
    pub(super) open: Vec<Question>,
    last_id: u64,
    /// Since when at least one is open.
    since: Option<Instant>,
}

pub(super) struct Question {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) options: Vec<Choice>,
    /// The id of the agent's request.
    pub(super) request_id: Value,
    /// `None`: the agent asks for permission itself.
    pub(super) tool: Option<Tool>,
}

/// What the agent wants `run` to do for it.
pub(super) struct Tool {
    pub(super) request: Request,
    pub(super) kind: ToolKind,
    /// Asked when this question is answered with yes.
    pub(super) next: Option<Permission>,
}

impl Questions {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn open(
        &mut self,
        title: String,
        options: Vec<Choice>,
        request_id: Value,
        tool: Option<Tool>,
    ) -> String {
        self.last_id += 1;
        let id = format!("p{}", self.last_id);
        self.since.get_or_insert_with(Instant::now);
        self.open.push(Question { id: id.clone(), title, options, request_id, tool });
        id
    }

    /// Removes a question. If it was the last one, also returns how long the agent has waited.
    pub(super) fn close(&mut self, is_it: impl Fn(&Question) -> bool) -> Option<(Question, Duration)> {
        let at = self.open.iter().position(is_it)?;
        let question = self.open.remove(at);
        let since = if self.open.is_empty() { self.since.take() } else { None };
        Some((question, since.map_or(Duration::ZERO, |since| since.elapsed())))
    }
}
