//! Child sessions: the session of a subagent belongs to the owner of the session that announced it, and goes with it.
//!
//! While the owner is away, everything that is said in the whole tree waits in one backlog, in order.

use std::collections::VecDeque;

use crate::bus::Bus;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::{CHILDREN_TIMES, NAME_BYTES};
use crate::state::offline::Numbered;
use crate::state::session_id::token;
use crate::state::session_index::SessionIndex;
use crate::wire::message::Message;

impl Bus {
    /// Binds the session that this message of `parent` announces, if it is not bound yet. Returns its agent name.
    pub(in crate::bus) fn adopt_child(
        &mut self,
        id: WorkerId,
        parent: SessionKey,
        message: Message<'_>,
    ) -> Option<Box<[u8]>> {
        let name = message.name(message.envelope.child?);
        let worker = self.workers.get(id)?;
        let max_children = worker.config.max_sessions as usize * CHILDREN_TIMES;
        let (owner, keep_until) =
            self.sessions.get(parent).map(|session| (session.owner, session.keep_until))?;
        let owner = owner.filter(|owner| self.clients.get(*owner).is_some());
        if let Some(known) = worker.sessions.get(&name).copied() {
            return self.adopt_orphan(id, known, parent);
        }
        if worker.sessions.len() >= max_children || name.len() > NAME_BYTES {
            self.workers.get_mut(id)?.has_unknown_children = true;
            return None;
        }
        // What the agent still says of a session that it is told to close is for nobody else.
        if worker.is_closing(&name) || self.is_taken(id, &name) {
            return None;
        }
        let bus_token = self.tags.token(&name);
        let key = self.bind(owner, id, bus_token, token(&name));
        self.sessions.set_parent(key, parent);
        if let Some(child) = self.sessions.get_mut(key) {
            child.keep_until = keep_until;
        }
        self.add_guests_of_parent(key, parent);
        Some(name.into())
    }

    /// A child without an owner, whose parent is gone, joins the session that speaks of it. What was missed of it is
    /// delivered right after, as if it had come too early.
    fn adopt_orphan(&mut self, id: WorkerId, key: SessionKey, parent: SessionKey) -> Option<Box<[u8]>> {
        let owner = self.sessions.get(parent)?.owner.filter(|owner| self.clients.get(*owner).is_some());
        let is_free = self.sessions.get(key)?.owner.is_none() && self.sessions.is_orphan(key);
        // A session that speaks of its own root, or of itself, does not become its own ancestor.
        if !is_free || self.sessions.root(parent) == key {
            return None;
        }
        self.sessions.set_parent(key, parent);
        let (child, worker) = (self.sessions.get_mut(key)?, self.workers.get_mut(id)?);
        child.offline_overflow = false;
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.sessions.insert(child.bus_token.clone(), key);
        }
        let name: Box<[u8]> = child.agent_name().into();
        for missed in child.offline.take(&mut self.held) {
            worker.early.push(name.clone(), missed.held, &mut self.held);
        }
        self.sessions.set_owner(key, owner);
        self.add_guests_of_parent(key, parent);
        Some(name)
    }

    /// Attaches the children of a session to the client that takes up the session.
    pub(in crate::bus) fn attach_children(&mut self, key: SessionKey, owner: Link) {
        for child in self.sessions.descendants(key) {
            self.detach(child);
            self.sessions.set_owner(child, Some(owner));
            let Some(session) = self.sessions.get(child) else { continue };
            if let Some(client) = self.clients.get_mut(owner) {
                client.sessions.insert(session.bus_token.clone(), child);
            }
        }
    }

    /// Takes what was missed of a session and its children. A child that is taken up alone leaves its parent.
    pub(in crate::bus) fn take_offline(&mut self, key: SessionKey) -> VecDeque<Numbered> {
        let root = self.sessions.root(key);
        let mut offline = match self.sessions.get_mut(root) {
            Some(session) => std::mem::take(&mut session.offline),
            None => return VecDeque::new(),
        };
        let taken = if root == key {
            offline.take(&mut self.held)
        } else {
            let index = SessionIndex { workers: &self.workers, sessions: &self.sessions, pools: &self.pools };
            offline.take_where(|held| index.is_about(held.message(), key), &mut self.held)
        };
        if let Some(session) = self.sessions.get_mut(root) {
            session.offline = offline;
        }
        self.sessions.leave_parent(key);
        taken
    }
}
