//! The prompts of a session: whose turn it is, and the prompts of others that wait for its end.

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::id::{CallKey, Link};
use crate::saved::counts_as;
use crate::state::backlog::{Backlog, HeldBytes, Waiting};
use crate::wire::scan::Envelope;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Prompts {
    /// Whose turn it is, or was last.
    by: Option<Link>,
    /// Its prompts that the agent has not answered.
    running: Vec<CallKey>,
    /// A prompt has begun a turn whose end the bus does not know yet, or never will.
    #[serde(default)]
    may_run: bool,
    /// When the last of them came, until the agent says something.
    #[serde(skip_serializing_if = "Option::is_none")]
    unheard_since: Option<Moment>,
    waiting: Backlog<WaitingPrompt>,
    /// The error that the last turn ended with, as JSON, for clients that join later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<Box<str>>,
}

/// A prompt that waits for the end of another client's turn.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WaitingPrompt {
    pub(crate) from: Link,
    pub(crate) call: CallKey,
    /// The line with the worker's ids.
    #[serde(with = "serde_bytes")]
    pub(crate) line: Box<[u8]>,
    /// The envelope of the line. `None`: the bus was restored.
    #[serde(skip)]
    pub(crate) envelope: Option<Box<Envelope>>,
}

impl WaitingPrompt {
    pub(crate) fn envelope(&self) -> Option<Envelope> {
        match &self.envelope {
            Some(envelope) => Some(**envelope),
            None => Envelope::scan(&self.line).ok(),
        }
    }
}

impl Waiting for WaitingPrompt {
    const OWN_BYTES: usize = counts_as::<WaitingPrompt>(32);

    fn heap_bytes(&self) -> usize {
        self.line.len()
    }
}

impl Prompts {
    /// Whose turn it is, or was last.
    pub(crate) fn by(&self) -> Option<Link> {
        self.by
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// How many prompts wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A prompt of this client is given to the agent.
    #[inline]
    pub(crate) fn begin(&mut self, from: Link, call: CallKey, now: Moment) {
        (self.by, self.unheard_since) = (Some(from), Some(now));
        self.running.push(call);
        self.may_run = true;
    }

    /// A turn runs that no prompt has begun here.
    pub(crate) fn note_turn(&mut self) {
        self.may_run = true;
    }

    /// The agent has ended its turn, unless it has another prompt to answer.
    #[inline]
    pub(crate) fn note_turn_end(&mut self) {
        self.may_run &= self.is_running();
    }

    /// Whether the agent may be in a turn, as far as its answers to prompts tell.
    pub(crate) fn may_run(&self) -> bool {
        self.may_run || self.is_running()
    }

    /// The agent has answered this prompt, or never will. False: it was not given to the agent.
    #[inline]
    pub(crate) fn end(&mut self, call: CallKey) -> bool {
        let Some(index) = self.running.iter().position(|running| *running == call) else { return false };
        self.running.swap_remove(index);
        if self.running.is_empty() {
            self.unheard_since = None;
        }
        true
    }

    /// Whether the agent has said nothing since the last prompt.
    #[inline]
    pub(crate) fn is_unheard(&self) -> bool {
        self.unheard_since.is_some()
    }

    /// The agent says something in the session: when the prompt came, if these are its first words.
    #[inline]
    pub(crate) fn take_unheard(&mut self) -> Option<Moment> {
        self.unheard_since.take()
    }

    pub(crate) fn wait(&mut self, prompt: WaitingPrompt, held: &mut HeldBytes) {
        self.waiting.push(prompt, held);
    }

    /// The prompt that has waited longest.
    pub(crate) fn next(&mut self, held: &mut HeldBytes) -> Option<WaitingPrompt> {
        self.waiting.pop(held)
    }

    /// Takes this prompt out, if it waits.
    pub(crate) fn withdraw(&mut self, call: CallKey, held: &mut HeldBytes) -> bool {
        !self.waiting.take_where(|prompt| prompt.call == call, held).is_empty()
    }

    /// Takes out the prompts of this client that wait.
    pub(crate) fn withdraw_all(&mut self, from: Link, held: &mut HeldBytes) -> Vec<CallKey> {
        let taken = self.waiting.take_where(|prompt| prompt.from == from, held);
        taken.into_iter().map(|prompt| prompt.call).collect()
    }

    /// Takes out all prompts that wait.
    pub(crate) fn withdraw_every(&mut self, held: &mut HeldBytes) -> Vec<CallKey> {
        self.waiting.take(held).into_iter().map(|prompt| prompt.call).collect()
    }

    /// The agent is lost, and with it every turn. The calls that waited fail on their own.
    pub(crate) fn forget(&mut self, held: &mut HeldBytes) {
        self.running.clear();
        (self.unheard_since, self.may_run) = (None, false);
        self.waiting.take(held);
    }

    /// The bytes of what waits, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        self.waiting.count_bytes()
    }
}
