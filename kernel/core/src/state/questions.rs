//! What the agent asks in a session. A request of the agent has one home, from when it comes until it is answered.
//!
//! Each client that is asked has a call of its own for it. A request with no such call waits for somebody who can
//! answer it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{CallKey, Link};
use crate::saved::counts_as;
use crate::state::backlog::HeldBytes;
use crate::wire::message::Held;

/// One request of the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    /// The request as the agent sent it.
    pub(crate) held: Arc<Held>,
    /// Who is asked and has not answered.
    asked: BTreeMap<Link, CallKey>,
    /// Who was asked and leaves the answer to the others.
    declined: BTreeSet<Link>,
    /// The agent has withdrawn it: nobody else is asked.
    is_withdrawn: bool,
    /// Those who look on were told of it.
    pub(crate) is_told: bool,
}

impl Question {
    fn bytes(&self) -> usize {
        counts_as::<Question>(64) + self.held.len()
    }

    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// Whether this client is asked, or has left the answer to the others.
    pub(crate) fn knows(&self, client: Link) -> bool {
        self.asked.contains_key(&client) || self.declined.contains(&client)
    }

    pub(crate) fn asked(&self) -> impl Iterator<Item = (Link, CallKey)> {
        self.asked.iter().map(|(link, call)| (*link, *call))
    }
}

/// The requests of an agent in one session that are not answered, by the order in which they came.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Questions {
    list: BTreeMap<u64, Question>,
    /// The request behind each call, by the order of the call.
    by_call: BTreeMap<u64, u64>,
    bytes: usize,
}

/// What the answer of a client means.
#[derive(Debug)]
pub(crate) enum Answered {
    /// The call is about no request that is kept here.
    Unknown,
    /// Others are asked, and the answer is left to them.
    LeftToOthers,
    /// The answer is the agent's. The others who are asked need not answer any more.
    Decides(u64, Box<Question>),
}

impl Questions {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        self.list.values().map(Question::bytes).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Question)> {
        self.list.iter().map(|(order, question)| (*order, question))
    }

    pub(crate) fn get(&self, order: u64) -> Option<&Question> {
        self.list.get(&order)
    }

    /// Those that nobody is asked.
    pub(crate) fn unasked(&self) -> impl Iterator<Item = (u64, &Question)> {
        self.iter().filter(|(_, question)| !question.is_asked())
    }

    pub(crate) fn has_unasked(&self) -> bool {
        self.unasked().next().is_some()
    }

    /// The agent asks something.
    pub(crate) fn add(&mut self, order: u64, held: Held, bytes: &mut HeldBytes) {
        let question = Question {
            held: Arc::new(held),
            asked: BTreeMap::new(),
            declined: BTreeSet::new(),
            is_withdrawn: false,
            is_told: false,
        };
        self.bytes += question.bytes();
        bytes.add(question.bytes());
        self.list.insert(order, question);
    }

    /// A client is asked by this call.
    pub(crate) fn ask(&mut self, order: u64, client: Link, call: CallKey) {
        if let Some(question) = self.list.get_mut(&order) {
            question.asked.insert(client, call);
            self.by_call.insert(call.order(), order);
        }
    }

    /// Those who look on are told of it from now on. False: they were.
    pub(crate) fn tell(&mut self, order: u64) -> bool {
        self.list.get_mut(&order).is_some_and(|question| !std::mem::replace(&mut question.is_told, true))
    }

    /// The request behind this call.
    pub(crate) fn of_call(&self, call: CallKey) -> Option<(u64, &Question)> {
        let order = self.by_call.get(&call.order())?;
        Some((*order, self.list.get(order)?))
    }

    /// A client has answered. `counts`: whatever the others may say.
    pub(crate) fn answered(
        &mut self,
        (client, call): (Link, CallKey),
        counts: bool,
        bytes: &mut HeldBytes,
    ) -> Answered {
        let Some(order) = self.by_call.remove(&call.order()) else { return Answered::Unknown };
        let Some(question) = self.list.get_mut(&order) else { return Answered::Unknown };
        question.asked.remove(&client);
        if question.is_asked() && !counts {
            question.declined.insert(client);
            return Answered::LeftToOthers;
        }
        self.remove(order, bytes)
            .map_or(Answered::Unknown, |question| Answered::Decides(order, Box::new(question)))
    }

    /// A client cannot or need not answer any more. Returns the call by which it was asked. If it was the last, those
    /// who have left the answer to it can be asked again.
    pub(crate) fn release(&mut self, order: u64, client: Link) -> Option<CallKey> {
        let question = self.list.get_mut(&order)?;
        question.declined.remove(&client);
        let call = question.asked.remove(&client)?;
        if question.asked.is_empty() {
            question.declined.clear();
        }
        self.by_call.remove(&call.order());
        Some(call)
    }

    /// The agent withdraws what it asked by this call. Returns whom it concerns.
    pub(crate) fn withdraw(&mut self, call: CallKey) -> Option<Vec<(Link, CallKey)>> {
        let question = self.list.get_mut(self.by_call.get(&call.order())?)?;
        question.is_withdrawn = true;
        Some(question.asked().collect())
    }

    /// Takes out a request, answered or not.
    pub(crate) fn remove(&mut self, order: u64, bytes: &mut HeldBytes) -> Option<Question> {
        let question = self.list.remove(&order)?;
        for call in question.asked.values() {
            self.by_call.remove(&call.order());
        }
        self.bytes -= question.bytes();
        bytes.give_back(question.bytes());
        Some(question)
    }

    /// Takes out everything.
    pub(crate) fn take(&mut self, bytes: &mut HeldBytes) -> Vec<Question> {
        self.by_call.clear();
        bytes.give_back(std::mem::take(&mut self.bytes));
        std::mem::take(&mut self.list).into_values().collect()
    }

    /// Takes out what nobody is asked.
    pub(crate) fn take_unasked(&mut self, bytes: &mut HeldBytes) -> Vec<Arc<Held>> {
        let orders: Vec<u64> = self.unasked().map(|(order, _)| order).collect();
        let taken = orders.into_iter().filter_map(|order| self.remove(order, bytes));
        taken.map(|question| question.held).collect()
    }

    /// Takes out the request under this id that nobody is asked.
    pub(crate) fn take_unasked_under(&mut self, id: &[u8], bytes: &mut HeldBytes) -> Option<Arc<Held>> {
        let is_it = |question: &Question| question.held.message().id() == Some(id);
        let order = self.unasked().find(|(_, question)| is_it(question)).map(|(order, _)| order)?;
        self.remove(order, bytes).map(|question| question.held)
    }

    /// Panics if the tables contradict each other. For tests.
    pub(crate) fn check(&self) {
        let calls = self.iter().flat_map(|(order, question)| {
            question.asked().map(move |(_, call)| (call.order(), order)).collect::<Vec<_>>()
        });
        assert_eq!(self.by_call, calls.collect(), "every call that asks is known");
        for question in self.list.values() {
            assert!(
                question.declined.iter().all(|it| !question.asked.contains_key(it)),
                "asked and declined"
            );
        }
    }
}

#[cfg(test)]
mod tests;
