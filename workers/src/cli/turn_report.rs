//! Sends a turn's updates to the client, saves them, and answers the prompt.

use std::process::ExitStatus;
use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use serde_json::json;

use super::argv;
use super::fault::Fault;
use super::log::log;
use super::process::Process;
use super::record::{Entry, Record, merge_chunks};
use super::session::{Cancellation, Session};
use super::shared::Shared;
use super::terminals::Terminals;
use super::turn_events::{End, TurnEvents};
use super::watch::{Observation, Watch};
use crate::lock::lock;

pub(super) struct TurnReport<'a> {
    pub(super) shared: &'a Shared,
    pub(super) session: &'a Arc<Session>,
    pub(super) events: TurnEvents,
    pub(super) terminals: Terminals,
    /// Updates that were sent and not yet saved.
    unsaved: Vec<acp::SessionUpdate>,
}

impl<'a> TurnReport<'a> {
    pub(super) fn new(shared: &'a Shared, session: &'a Arc<Session>) -> TurnReport<'a> {
        let events = new_events(&session.lock().record);
        let terminals = Terminals::new(shared.client.shows_terminals());
        TurnReport { shared, session, events, terminals, unsaved: Vec::new() }
    }

    pub(super) fn send_updates(&mut self) {
        for update in self.events.updates.drain(..) {
            let shown = self.terminals.show(update.clone(), &self.events.cwd);
            self.shared.writer.update(&self.session.id, shown);
            self.unsaved.push(update);
        }
    }

    /// What the watch needs to know at a tick.
    pub(super) fn observe(&self, cancellation: &Cancellation, process: &mut Process) -> Observation {
        Observation {
            is_cancelled: cancellation.is_cancelled(),
            is_urgent: cancellation.is_urgent(),
            has_result: self.events.end.is_some(),
            awaits_client: false,
            has_exited: process.exit_status().is_some(),
            last_stderr: process.last_stderr(),
        }
    }

    /// How the turn ends, if that is known. A cancel and a silence limit outrank what the CLI has said.
    pub(super) fn take_end(&mut self, cancellation: &Cancellation, watch: &Watch) -> Option<End> {
        let end = self.events.end.take();
        if cancellation.is_cancelled() {
            return Some(End::Stop(acp::StopReason::Cancelled));
        }
        match watch.fault() {
            Some(message) => Some(End::Fault { fault: Fault::Runtime, message }),
            None => end,
        }
    }

    /// How the turn ends whose process has exited. Without a result of the CLI it has failed.
    pub(super) fn end_after_exit(
        &mut self,
        cancellation: &Cancellation,
        watch: &Watch,
        process: &Process,
        status: ExitStatus,
    ) -> End {
        let end = self.take_end(cancellation, watch).unwrap_or_else(|| {
            let stderr = process.stderr_tail();
            let details = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
            let message = format!("it ended without a result ({status}){details}");
            End::Fault { fault: Fault::said(&stderr), message }
        });
        let is_logged_out = status.code().is_some_and(|code| self.shared.row.logged_out_exit == Some(code));
        match end {
            // The words of some of these exits are about something else.
            End::Fault { message, .. } if is_logged_out => {
                End::Fault { fault: Fault::Authentication, message }
            }
            end => end,
        }
    }

    /// Answers the prompt, after the last of its updates. Later events belong to the next turn.
    pub(super) fn finish(&mut self, cancellation: &Cancellation, end: End) {
        self.events.fail_open_calls();
        self.send_updates();
        if self.events.unknown > 0 {
            let (name, unknown) = (&self.session.id, self.events.unknown);
            log(format_args!("session {name}: {unknown} lines or events were not understood"));
        }
        let mut state = self.session.lock();
        self.save(&mut state.record);
        if matches!(end, End::Stop(_)) && !state.record.has_answer {
            self.shared.store.append(&self.session.id, &mut state.record, Entry::Answered);
        }
        let tokens = self.events.tokens;
        let model = self.events.model.take();
        self.events = new_events(&state.record);
        // A process that is kept open names it only once.
        self.events.model = model.clone();
        let Some(turn) = state.turn.take() else { return };
        let error = lock(&cancellation.error).take();
        let answer = match (error, end) {
            (Some(error), _) => Err(error),
            (None, End::Stop(reason)) => {
                let usage = tokens.map(|tokens| tokens.usage());
                let mut answer = json!(acp::PromptResponse::new(reason).usage(usage));
                if let Some(id) = &state.record.cli_session {
                    answer["_meta"]["cliSessionId"] = json!(id);
                }
                if let Some(model) = model {
                    answer["_meta"]["model"] = json!(model);
                }
                Ok(answer)
            }
            (None, End::Fault { fault, message }) => Err(self.shared.error(fault, &message)),
        };
        self.shared.writer.respond(turn.reply_to.as_ref(), answer.as_ref());
    }

    /// Saves what is new, in memory and on disk.
    pub(super) fn save(&mut self, record: &mut Record) {
        let name = &self.session.id;
        if let Some(id) = self.events.session.as_ref()
            && argv::is_session(id)
            && record.cli_session.as_ref() != Some(id)
        {
            self.shared.store.append(name, record, Entry::Cli(id.clone()));
        }
        if record.total != self.events.total {
            self.shared.store.append(name, record, Entry::Total(self.events.total));
        }
        for update in merge_chunks(std::mem::take(&mut self.unsaved)) {
            self.shared.store.append(name, record, Entry::Update(Box::new(update)));
        }
    }
}

fn new_events(record: &Record) -> TurnEvents {
    let mut events = TurnEvents::new(record.cwd.as_ref(), record.total);
    events.turn_number = record.updates.len();
    events
}
