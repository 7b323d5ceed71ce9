//! The guests of a session: clients that joined it beside its owner.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::Link;
use crate::saved::counts_as;
use crate::state::session_id::{Token, token};

/// What a guest may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Guest {
    /// Its name for the session.
    pub(crate) token: Token,
    pub(crate) role: Role,
    /// It joined by `session/load` or `session/resume` and may not know that it is a guest: an editor that lost its
    /// connection does so before the bus has noticed the loss. It becomes the owner when the owner leaves.
    pub(crate) joined_by_load: bool,
    /// What others were asked before the request with this number is theirs to answer.
    pub(crate) asked_from: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Guests {
    guests: BTreeMap<Link, Guest>,
    /// What the guests make the bus keep.
    bytes: usize,
}

impl Guest {
    /// A guest with every right that one can have, and no name yet.
    pub(crate) fn controlling() -> Guest {
        Guest { token: token(b""), role: Role::Control, joined_by_load: false, asked_from: 0 }
    }

    fn bytes(&self) -> usize {
        counts_as::<(Link, Guest)>(40) + self.token.len()
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

    /// What the guests make the bus keep.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
