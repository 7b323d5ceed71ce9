//! A session: the bus's name for it, the agent's, and who owns it.
//!
//! The id that a client sees is `TAG.AGENTID`. The tag cannot be guessed and makes the id unique over all
//! workers; the agent's own id behind the dot still names the session after the bus was restarted.

use std::collections::VecDeque;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::api::Moment;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::SETTINGS;
use crate::state::calls::CallKey;
use crate::state::handshake::ReopenBy;
use crate::state::pools::PoolId;
use crate::state::workers::Queued;

pub(crate) const TAG_BYTES: usize = 13;
const TAG_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

#[derive(Debug)]
pub(crate) struct Session {
    /// What the owner calls it: a JSON string with its quotes.
    pub(crate) bus_token: Box<[u8]>,
    /// What the worker calls it, likewise.
    pub(crate) agent_token: Box<[u8]>,
    /// Whose it is, as long as the worker lives.
    pub(crate) worker: Option<WorkerId>,
    /// None: the owner has left and may come back until `keep_until`.
    pub(crate) owner: Option<Link>,
    pub(crate) keep_until: Moment,
    pub(crate) opened: Moment,
    /// When something was last said about it.
    pub(crate) touched: Moment,
    /// The session that announced it, if it is a subagent's.
    pub(crate) parent: Option<SessionKey>,
    /// Named by the client at the top of its messages; the agent knows no such session.
    pub(crate) is_label: bool,
    /// The result that opened it, if it was not too large to keep.
    pub(crate) opening: Option<Box<[u8]>>,
    /// How it can be opened again should its worker die, if it can.
    pub(crate) reopen: Option<Reopen>,
    /// What its agent does for it, where agents tell.
    pub(crate) turn_state: Option<TurnState>,
    /// Its new worker has not opened it yet: what the owner says meanwhile waits here, under the worker's ids.
    pub(crate) recovering: Option<VecDeque<Queued>>,
    pub(crate) recovering_bytes: usize,
    /// Requests of the agent that the owner has not answered: to be asked again of whoever takes it up.
    pub(crate) pending: Vec<Pending>,
    /// What the worker said while the owner was away, as it said it.
    pub(crate) offline: VecDeque<Box<[u8]>>,
    pub(crate) offline_bytes: usize,
    /// More was missed than is kept.
    pub(crate) offline_overflow: bool,
}

/// What opens a session in another process, and what the owner had set in it.
#[derive(Debug)]
pub(crate) struct Reopen {
    pub(crate) by: ReopenBy,
    pub(crate) pool: PoolId,
    /// The params that opened it, with the agent's session id.
    pub(crate) params: Box<[u8]>,
    pub(crate) settings: Vec<Setting>,
}

/// A mode or an option that the owner has set last.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) method: Box<[u8]>,
    /// Which option, if there are several.
    pub(crate) option: Option<String>,
    pub(crate) params: Box<[u8]>,
}

impl Reopen {
    pub(crate) fn set(&mut self, setting: Setting) {
        self.settings.retain(|old| old.method != setting.method || old.option != setting.option);
        if self.settings.len() < SETTINGS {
            self.settings.push(setting);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) call: CallKey,
    /// As the worker sent it.
    pub(crate) line: Box<[u8]>,
}

impl Session {
    pub(crate) fn new(
        bus_token: Box<[u8]>,
        agent_token: Box<[u8]>,
        worker: WorkerId,
        owner: Option<Link>,
        now: Moment,
    ) -> Session {
        Session {
            bus_token,
            agent_token,
            worker: Some(worker),
            owner,
            parent: None,
            keep_until: Moment::ZERO,
            opened: now,
            touched: now,
            is_label: false,
            opening: None,
            reopen: None,
            turn_state: None,
            recovering: None,
            recovering_bytes: 0,
            pending: Vec::new(),
            offline: VecDeque::new(),
            offline_bytes: 0,
            offline_overflow: false,
        }
    }

    /// The name without its quotes: how the owner's and the worker's tables know it.
    pub(crate) fn bus_name(&self) -> &[u8] {
        body(&self.bus_token)
    }

    pub(crate) fn agent_name(&self) -> &[u8] {
        body(&self.agent_token)
    }
}

pub(crate) fn token(body: &[u8]) -> Box<[u8]> {
    [b"\"", body, b"\""].concat().into()
}

fn body(token: &[u8]) -> &[u8] {
    &token[1..token.len() - 1]
}

/// The agent's name in a bus name, if it has the form of one.
pub(crate) fn behind_tag(name: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = name.split_at_checked(TAG_BYTES)?;
    let agent = rest.strip_prefix(b".")?;
    (!agent.is_empty() && tag.iter().all(|letter| TAG_LETTERS.contains(letter))).then_some(agent)
}

/// Where tags come from: a stream that nobody outside can continue.
pub(crate) struct Tags(ChaCha20Rng);

impl Tags {
    pub(crate) fn new(seed: [u8; 32]) -> Tags {
        Tags(ChaCha20Rng::from_seed(seed))
    }

    /// `TAG.name`, with quotes.
    pub(crate) fn token(&mut self, name: &[u8]) -> Box<[u8]> {
        let mut token = Vec::with_capacity(TAG_BYTES + name.len() + 3);
        token.push(b'"');
        let mut bits = u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64());
        for _ in 0..TAG_BYTES {
            token.push(TAG_LETTERS[(bits & 31) as usize]);
            bits >>= 5;
        }
        token.push(b'.');
        token.extend_from_slice(name);
        token.push(b'"');
        token.into()
    }
}

/// What an agent does for a session, as it said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnState {
    Running,
    /// It waits for the user.
    RequiresAction,
    Idle,
}

impl TurnState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TurnState::Running => "running",
            TurnState::RequiresAction => "requires_action",
            TurnState::Idle => "idle",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tagged_name_gives_the_agents_back() {
        let mut tags = Tags::new([7; 32]);
        let (one, two) = (tags.token(b"s1"), tags.token(b"s1"));
        assert_ne!(one, two);
        assert_eq!(behind_tag(body(&one)), Some(&b"s1"[..]));
        assert_eq!(Tags::new([7; 32]).token(b"s1"), one, "the same seed gives the same tags");
    }

    #[test]
    fn other_names_have_no_tag() {
        for name in ["", "s1", "abcdefghijklm", "abcdefghijklm.", "abcdefghijkl1.s", "ABCDEFGHIJKLM.s"] {
            assert_eq!(behind_tag(name.as_bytes()), None, "{name}");
        }
    }
}
