//! The guests of a session: clients that joined it beside its owner, and what was asked of several of them at once.

use std::collections::BTreeMap;

use crate::id::{CallKey, Link};
use crate::state::session_id::Token;

/// What a guest may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything but what only the owner can: it prompts, answers questions, and cancels.
    Control,
    /// It only looks on.
    Observe,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Control => "control",
            Role::Observe => "observe",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// Its name for the session.
    pub(crate) token: Token,
    pub(crate) role: Role,
    /// It joined by `session/load` or `session/resume` and may not know that it is a guest: an editor that lost its
    /// connection does so before the bus has noticed the loss. It becomes the owner when the owner leaves.
    pub(crate) joined_by_load: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Guests {
    guests: BTreeMap<Link, Guest>,
    /// The requests of the agent that several clients were asked, by each of the calls: the order of the call under
    /// which the request is pending.
    questions: BTreeMap<u64, u64>,
    /// The calls of each such request.
    legs: BTreeMap<u64, Vec<(Link, CallKey)>>,
    /// What the guests make the bus keep.
    bytes: usize,
}

impl Guest {
    fn bytes(&self) -> usize {
        size_of::<(Link, Guest)>() + self.token.len()
    }
}

impl Guests {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.guests.len()
    }

    pub(crate) fn get(&self, link: Link) -> Option<&Guest> {
        self.guests.get(&link)
    }

    pub(crate) fn insert(&mut self, link: Link, guest: Guest) {
        self.remove(link);
        self.bytes += guest.bytes();
        self.guests.insert(link, guest);
    }

    pub(crate) fn remove(&mut self, link: Link) -> Option<Guest> {
        let guest = self.guests.remove(&link)?;
        self.bytes -= guest.bytes();
        Some(guest)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Link, &Guest)> {
        self.guests.iter().map(|(link, guest)| (*link, guest))
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        self.guests.keys().copied().collect()
    }

    /// One more client is asked the request that is pending under `order`.
    pub(crate) fn add_leg(&mut self, order: u64, client: Link, call: CallKey) {
        self.questions.insert(call.order(), order);
        self.legs.entry(order).or_default().push((client, call));
    }

    /// The order under which the request behind this call is pending, if several clients were asked it.
    pub(crate) fn question(&self, call: CallKey) -> Option<u64> {
        self.questions.get(&call.order()).copied()
    }

    /// The calls of this request that are not answered.
    pub(crate) fn legs(&self, order: u64) -> &[(Link, CallKey)] {
        self.legs.get(&order).map_or(&[], |legs| legs)
    }

    /// This call is over. Returns how many others of its request are left.
    pub(crate) fn end_leg(&mut self, order: u64, call: CallKey) -> usize {
        self.questions.remove(&call.order());
        let Some(legs) = self.legs.get_mut(&order) else { return 0 };
        legs.retain(|(_, leg)| *leg != call);
        let left = legs.len();
        if left == 0 {
            self.legs.remove(&order);
        }
        left
    }

    /// The request is answered. Returns the calls that are left of it.
    pub(crate) fn end_question(&mut self, order: u64) -> Vec<(Link, CallKey)> {
        let legs = self.legs.remove(&order).unwrap_or_default();
        for (_, call) in &legs {
            self.questions.remove(&call.order());
        }
        legs
    }

    /// What of these requests this client was asked.
    pub(crate) fn asked_of(&self, client: Link) -> Vec<(u64, CallKey)> {
        let all = self.legs.iter().flat_map(|(order, legs)| legs.iter().map(|leg| (*order, *leg)));
        all.filter(|(_, (link, _))| *link == client).map(|(order, (_, call))| (order, call)).collect()
    }

    /// The orders of all such requests.
    pub(crate) fn all_questions(&self) -> impl Iterator<Item = u64> {
        self.legs.keys().copied()
    }

    /// Ends all such requests. Returns their calls.
    pub(crate) fn every_leg(&mut self) -> Vec<(Link, CallKey)> {
        self.questions.clear();
        std::mem::take(&mut self.legs).into_values().flatten().collect()
    }

    /// The agent is gone, and with it all that it asked.
    pub(crate) fn forget_questions(&mut self) {
        self.questions.clear();
        self.legs.clear();
    }

    /// What the guests make the bus keep.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
