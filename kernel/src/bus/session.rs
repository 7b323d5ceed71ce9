//! A session: the bus's name for it, the agent's, and who owns it.
//!
//! The id that a client sees is `TAG.AGENTID`. The tag cannot be guessed and makes the id unique over all
//! workers; the agent's own id behind the dot still names the session after the bus was restarted.

use std::collections::VecDeque;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Moment;
use super::call::CallKey;
use super::handshake::Reopens;
use super::pool::PoolId;
use super::work::Work;
use super::worker::Wait;
use crate::key::{Link, SessionKey, WorkerId};
use crate::limit::SETTINGS;

pub(super) const TAG_BYTES: usize = 13;
const TAG_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

#[derive(Debug)]
pub(super) struct Session {
    /// What the owner calls it: a JSON string with its quotes.
    pub(super) bus_token: Box<[u8]>,
    /// What the worker calls it, likewise.
    pub(super) agent_token: Box<[u8]>,
    /// Whose it is, as long as the worker lives.
    pub(super) worker: Option<WorkerId>,
    /// None: the owner has left and may come back until `keep_until`.
    pub(super) owner: Option<Link>,
    pub(super) keep_until: Moment,
    pub(super) opened: Moment,
    /// When something was last said about it.
    pub(super) touched: Moment,
    /// The session that announced it, if it is a subagent's.
    pub(super) parent: Option<SessionKey>,
    /// Named by the client at the top of its messages; the agent knows no such session.
    pub(super) is_label: bool,
    /// The result that opened it, if it was not too large to keep.
    pub(super) opening: Option<Box<[u8]>>,
    /// How it can be opened again should its worker die, if it can.
    pub(super) again: Option<Again>,
    /// What its agent does for it, where agents tell.
    pub(super) work: Option<Work>,
    /// Its new worker has not opened it yet: what the owner says meanwhile waits here, under the worker's ids.
    pub(super) recovering: Option<VecDeque<Wait>>,
    pub(super) recovering_bytes: usize,
    /// Requests of the agent that the owner has not answered: to be asked again of whoever takes it up.
    pub(super) pending: Vec<Pending>,
    /// What the worker said while the owner was away, as it said it.
    pub(super) missed: VecDeque<Box<[u8]>>,
    pub(super) missed_bytes: usize,
    /// More was missed than is kept.
    pub(super) missed_too_much: bool,
}

/// What opens a session in another process, and what the owner had set in it.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) by: Reopens,
    pub(super) pool: PoolId,
    /// The params that opened it, with the agent's session id.
    pub(super) params: Box<[u8]>,
    pub(super) settings: Vec<Setting>,
}

/// A mode or an option that the owner has set last.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) method: Box<[u8]>,
    /// Which option, if there are several.
    pub(super) option: Option<String>,
    pub(super) params: Box<[u8]>,
}

impl Again {
    pub(super) fn set(&mut self, setting: Setting) {
        self.settings.retain(|old| old.method != setting.method || old.option != setting.option);
        if self.settings.len() < SETTINGS {
            self.settings.push(setting);
        }
    }
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) call: CallKey,
    /// As the worker sent it.
    pub(super) line: Box<[u8]>,
}

impl Session {
    pub(super) fn new(
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
            again: None,
            work: None,
            recovering: None,
            recovering_bytes: 0,
            pending: Vec::new(),
            missed: VecDeque::new(),
            missed_bytes: 0,
            missed_too_much: false,
        }
    }

    /// The name without its quotes: how the owner's and the worker's tables know it.
    pub(super) fn bus_name(&self) -> &[u8] {
        body(&self.bus_token)
    }

    pub(super) fn agent_name(&self) -> &[u8] {
        body(&self.agent_token)
    }
}

pub(super) fn token(body: &[u8]) -> Box<[u8]> {
    [b"\"", body, b"\""].concat().into()
}

fn body(token: &[u8]) -> &[u8] {
    &token[1..token.len() - 1]
}

/// The agent's name in a bus name, if it has the form of one.
pub(super) fn behind_tag(name: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = name.split_at_checked(TAG_BYTES)?;
    let agent = rest.strip_prefix(b".")?;
    (!agent.is_empty() && tag.iter().all(|letter| TAG_LETTERS.contains(letter))).then_some(agent)
}

/// Where tags come from: a stream that nobody outside can continue.
pub(super) struct Tags(ChaCha20Rng);

impl Tags {
    pub(super) fn new(seed: [u8; 32]) -> Tags {
        Tags(ChaCha20Rng::from_seed(seed))
    }

    /// `TAG.name`, with quotes.
    pub(super) fn token(&mut self, name: &[u8]) -> Box<[u8]> {
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
