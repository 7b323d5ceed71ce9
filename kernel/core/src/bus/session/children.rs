//! Child sessions: a subagent's session belongs to whoever owns the session that announced it, and goes with it.
//!
//! While the owner is away, what is said in the whole family is kept in one queue, in the order it was said.

use std::collections::VecDeque;

use crate::bus::Bus;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::{CHILDREN_TIMES, NAME_BYTES};
use crate::state::sessions::token;
use crate::state::workers::Early;
use crate::wire::scan::{Envelope, Span, canonical};

impl Bus {
    /// Binds the session that this line of `parent` announces, if it is not bound yet: its name at the agent.
    pub(in crate::bus) fn adopt_child(
        &mut self,
        id: WorkerId,
        parent: SessionKey,
        line: &[u8],
        child: Span,
    ) -> Option<Box<[u8]>> {
        let name = canonical(child.of(line));
        let worker = self.workers.get(id.0)?;
        let many = worker.config.max_sessions as usize * CHILDREN_TIMES;
        let (owner, keep_until) = self.session(parent).map(|session| (session.owner, session.keep_until))?;
        if let Some(known) = worker.sessions.get(&*name).copied() {
            return self.adopt_orphan(id, known, parent);
        }
        if name.len() > NAME_BYTES || worker.sessions.len() >= many {
            return None;
        }
        let bus = self.tags.token(&name);
        let key = self.bind(owner, id, bus, token(&name));
        if let Some(child) = self.session_mut(key) {
            child.parent = Some(parent);
            child.keep_until = keep_until;
        }
        Some(name.into())
    }

    /// A child whose family is gone, and which is nobody's, joins the one that speaks of it. What was missed of it is
    /// told right after, as if it had come too early.
    fn adopt_orphan(&mut self, id: WorkerId, key: SessionKey, parent: SessionKey) -> Option<Box<[u8]>> {
        let owner = self.session(parent)?.owner;
        let child = self.session(key).filter(|child| child.owner.is_none())?;
        child.parent.filter(|old| self.session(*old).is_none())?;
        let child = self.sessions.get_mut(key.0)?;
        (child.parent, child.owner) = (Some(parent), owner);
        child.offline_overflow = false;
        let (offline, bytes) = (std::mem::take(&mut child.offline), std::mem::take(&mut child.offline_bytes));
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner.0)) {
            client.sessions.insert(child.bus_name().into(), key);
        }
        let (name, worker): (Box<[u8]>, _) = (child.agent_name().into(), self.workers.get_mut(id.0)?);
        worker.early.extend(offline.into_iter().map(|line| Early { name: name.clone(), line }));
        worker.early_bytes += bytes;
        Some(name)
    }

    /// The session that announced this one, or announced the one that did; it itself if nobody announced it.
    pub(in crate::bus) fn root(&self, key: SessionKey) -> SessionKey {
        let mut root = key;
        while let Some(parent) = self.session(root).and_then(|session| session.parent)
            && self.session(parent).is_some()
        {
            root = parent;
        }
        root
    }

    /// Whoever takes up a session takes up those that it announced; their last owner no longer has them.
    pub(in crate::bus) fn attach_children(&mut self, key: SessionKey, owner: Link) {
        for child in self.children(key) {
            self.detach(child);
            let Some(session) = self.sessions.get_mut(child.0) else { continue };
            session.owner = Some(owner);
            if let Some(client) = self.clients.get_mut(owner.0) {
                client.sessions.insert(session.bus_name().into(), child);
            }
        }
    }

    /// Those that this session announced, and those that they did.
    pub(in crate::bus) fn children(&self, key: SessionKey) -> Vec<SessionKey> {
        let worker = self.session(key).and_then(|session| session.worker);
        let sessions =
            worker.and_then(|id| self.workers.get(id.0)).into_iter().flat_map(|w| w.sessions.values());
        let mut children: Vec<_> =
            sessions.copied().filter(|child| self.is_descendant(*child, key)).collect();
        children.sort();
        children
    }

    fn is_descendant(&self, key: SessionKey, from: SessionKey) -> bool {
        let parent = self.session(key).and_then(|session| session.parent);
        parent.is_some_and(|parent| parent == from || self.is_descendant(parent, from))
    }

    /// What was missed of a session, and of those that it announced. A child that is taken up alone leaves its family.
    pub(in crate::bus) fn take_offline(&mut self, key: SessionKey) -> VecDeque<Box<[u8]>> {
        let root = self.root(key);
        let Some(session) = self.sessions.get_mut(root.0) else { return VecDeque::new() };
        let all = std::mem::take(&mut session.offline);
        let (taken, left): (VecDeque<_>, VecDeque<_>) = match root == key {
            true => (all, VecDeque::new()),
            false => all.into_iter().partition(|line| self.is_about(line, key)),
        };
        let bytes = taken.iter().map(|line| line.len()).sum::<usize>();
        self.aside_bytes -= bytes;
        if let Some(session) = self.sessions.get_mut(root.0) {
            session.offline = left;
            session.offline_bytes -= bytes;
        }
        if let Some(session) = self.sessions.get_mut(key.0) {
            session.parent = None;
        }
        taken
    }

    /// The line is about this session, or one that it announced.
    fn is_about(&self, line: &[u8], key: SessionKey) -> bool {
        let worker = self.session(key).and_then(|session| session.worker);
        let worker = worker.and_then(|id| self.workers.get(id.0));
        let named = Envelope::scan(line).ok().and_then(|said| said.session.or(said.top_session));
        let known =
            named.zip(worker).and_then(|(span, worker)| worker.sessions.get(&*canonical(span.of(line))));
        known.is_some_and(|known| *known == key || self.is_descendant(*known, key))
    }
}
