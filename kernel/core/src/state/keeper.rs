//! The client that writes down what is said (`_bus/keep`), and what it could not be told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::id::{Link, SessionKey};
use crate::token::TokenDigest;
use crate::wire::message::Held;

/// A client that joins a session, and is told first what was said before the log of the session begins.
#[derive(Serialize, Deserialize)]
pub(crate) struct Joining {
    pub(crate) link: Link,
    pub(crate) key: SessionKey,
    pub(crate) request: Held,
    /// Where the keeper goes on reading, in its own words.
    pub(crate) cursor: Box<str>,
    /// How many lines of the session the client was told.
    pub(crate) upto: u64,
    /// Nothing is missing among them.
    pub(crate) is_whole: bool,
    /// The keeper has nothing more.
    pub(crate) is_end: bool,
    /// The keeper has told all that comes before what it was asked for.
    #[serde(default)]
    pub(crate) is_told: bool,
    /// The keeper was asked for more, and should answer by then.
    pub(crate) due: Option<Moment>,
}

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Keeper {
    /// What it must show: the shell has told it to the process that it has started for this, and to nobody else.
    pub(crate) secret: Option<TokenDigest>,
    link: Option<Link>,
    /// How many lines of each session did not fit into its queue since the last that did.
    missed: BTreeMap<SessionKey, u64>,
    /// How many lines it was never told.
    pub(crate) missed_lines: u64,
    /// The sessions whose log it is told, because it was not there when they were said: so many lines it was told.
    pub(crate) behind: BTreeMap<SessionKey, u64>,
    /// It was told of all sessions that were open when it came.
    #[serde(default)]
    pub(crate) knows_all: bool,
    /// The clients that wait for what it reads, by the number of the question.
    pub(crate) joining: BTreeMap<u64, Joining>,
    pub(crate) last_question: u64,
    /// Where the beginning of a line is written that it is told, so that none takes memory of its own.
    #[serde(skip)]
    pub(crate) start: Vec<u8>,
}

impl Keeper {
    #[inline]
    pub(crate) fn link(&self) -> Option<Link> {
        self.link
    }

    /// This client writes from now on. Who did so before is told nothing more.
    pub(crate) fn set(&mut self, link: Link) {
        (self.link, self.knows_all) = (Some(link), false);
        self.missed.clear();
        self.behind.clear();
    }

    /// This client has left.
    pub(crate) fn remove(&mut self, link: Link) {
        if self.link == Some(link) {
            self.link = None;
            self.missed.clear();
            self.behind.clear();
        }
        self.joining.retain(|_, joining| joining.link != link);
    }

    /// A line of this session does not fit.
    pub(crate) fn miss(&mut self, key: SessionKey) {
        *self.missed.entry(key).or_default() += 1;
        self.missed_lines += 1;
    }

    /// How many lines of this session did not fit. They are told now.
    #[inline]
    pub(crate) fn take_missed(&mut self, key: SessionKey) -> u64 {
        if self.missed.is_empty() { 0 } else { self.missed.remove(&key).unwrap_or_default() }
    }
}
