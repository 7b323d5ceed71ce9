//! What the client is told of a turn, and what is kept of it.

use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::house::House;
use super::process::Process;
use super::record::{Entry, Record, condensed};
use super::session::{Orders, Session};
use super::told::{End, Told};
use super::{argv, format, log};

pub(super) struct Telling<'a> {
    pub(super) house: &'a House,
    pub(super) session: &'a Arc<Session>,
    pub(super) told: Told,
    /// All that the client was told, to be kept.
    said: Vec<acp::SessionUpdate>,
}

impl<'a> Telling<'a> {
    pub(super) fn new(house: &'a House, session: &'a Arc<Session>) -> Telling<'a> {
        let told = new_told(&session.lock().record);
        Telling { house, session, told, said: Vec::new() }
    }

    pub(super) fn tell(&mut self) {
        for update in self.told.updates.drain(..) {
            self.house.out.update(&self.session.name, update.clone());
            self.said.push(update);
        }
    }

    /// How a turn ends whose process is gone.
    pub(super) fn conclude(
        &mut self,
        orders: &Orders,
        silence: Option<String>,
        process: &Process,
        status: &str,
    ) -> End {
        if orders.is_cancelled() {
            return End::Stop(acp::StopReason::Cancelled);
        }
        if let Some(message) = silence {
            return End::Fault { is_auth: false, message };
        }
        if let Some(end) = self.told.end.take() {
            return end;
        }
        let words = process.last_words();
        let message = match words.is_empty() {
            true => format!("it ended without a result ({status})"),
            false => format!("it ended without a result ({status}): {words}"),
        };
        End::Fault { is_auth: format::is_auth(&words), message }
    }

    /// Answers the prompt, after all that is to be told of it. What comes then is of the next turn.
    pub(super) fn finish(&mut self, orders: &Orders, end: End) {
        self.told.close_open_calls();
        self.tell();
        if self.told.unknown > 0 {
            let (name, unknown) = (&self.session.name, self.told.unknown);
            log(format_args!("session {name}: {unknown} lines or events were not understood"));
        }
        let mut state = self.session.lock();
        self.remember(&mut state.record);
        if matches!(end, End::Stop(_)) && !state.record.is_answered {
            self.house.keep(&self.session.name, &mut state.record, Entry::Answered);
        }
        let tokens = self.told.tokens;
        self.told = new_told(&state.record);
        let Some(running) = state.turn.take() else { return };
        let ordered = orders.error.lock().expect("nobody panics with it").take();
        match (ordered, end) {
            (Some(error), _) => self.house.out.respond_later(&running.waiter, Err::<&Value, _>(&error)),
            (None, End::Stop(reason)) => {
                let usage = tokens.map(|tokens| tokens.usage());
                let mut answer = json!(acp::PromptResponse::new(reason).usage(usage));
                if let Some(id) = &state.record.cli {
                    answer["_meta"] = json!({ "cliSessionId": id });
                }
                self.house.out.respond_later(&running.waiter, Ok(&answer));
            }
            (None, End::Fault { is_auth, message }) => {
                let error = self.house.error(is_auth, &message);
                self.house.out.respond_later(&running.waiter, Err::<&Value, _>(&error));
            }
        }
    }

    /// Keeps what is new, in memory and on disk.
    pub(super) fn remember(&mut self, record: &mut Record) {
        let name = &self.session.name;
        if let Some(id) = self.told.session.as_ref().filter(|id| argv::is_session(id))
            && record.cli.as_ref() != Some(id)
        {
            self.house.keep(name, record, Entry::Cli(id.clone()));
        }
        if record.total != self.told.total {
            self.house.keep(name, record, Entry::Total(self.told.total));
        }
        for update in condensed(std::mem::take(&mut self.said)) {
            self.house.keep(name, record, Entry::Update(Box::new(update)));
        }
    }
}

fn new_told(record: &Record) -> Told {
    let mut told = Told::new(record.cwd.as_ref(), record.total);
    told.turn = record.updates.len();
    told
}
