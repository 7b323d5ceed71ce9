//! A client: what a connection has said about itself, and the sessions that it owns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{Link, PoolId, SecondaryMap, SessionKey, WorkerId};
use crate::limit::CLIENT_NAME_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::backlog::{HeldBytes, Kept};
use crate::state::calls::EndpointId;
use crate::state::handshake::Handshake;
use crate::state::session_names::SessionNames;
use crate::state::sessions::Session;
use crate::wire::error::{RpcError, shortened};

#[derive(Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) endpoint: EndpointId,
    /// The pool that it is bound to. None: the default pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<PoolId>,
    /// Its name in `initialize`, else the one in `_bus/hello`.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Box<str>>,
    /// It has told its name in `initialize`, which a program that only passes messages on cannot know in its hello.
    is_introduced: bool,
    pub(crate) handshake: Arc<Handshake>,
    /// The handshake that a worker has answered last. An `initialize` that is refused leaves it at that.
    pub(crate) agreed: Arc<Handshake>,
    /// The worker whose init result it was given, and the life of the worker that gave it.
    pub(crate) affinity: Option<(WorkerId, Link)>,
    /// Its sessions by the names that it uses.
    pub(crate) sessions: SessionNames,
    /// Sessions that it names beside the method of its messages.
    pub(crate) labels: SessionNames,
    /// The workers that serve or have served it. They may be gone.
    pub(crate) workers: BTreeSet<WorkerId>,
    /// The bytes of all its labels.
    label_bytes: usize,
    /// The bytes of its filters, if it follows the traffic.
    filter_bytes: usize,
    kept: Kept,
    pub(crate) auth: AuthState,
    /// It has said goodbye, or that its end is one: when it leaves, its sessions end.
    pub(crate) bye: bool,
    /// The number under which it stands among those that will send nothing more.
    #[serde(skip_serializing_if = "Option::is_none")]
    half_closed: Option<u64>,
    /// It carries the messages of another bus, for its pool alone.
    pub(crate) is_pipe: bool,
    /// It hears what becomes of its sessions: it has asked for that, or joined one by a method of the bus.
    hears_events: bool,
    /// It writes down what is said, and counts for nothing else.
    keeps: bool,
    /// The session that it spoke of last. It may be gone, or another's.
    pub(crate) latest_session: Option<SessionKey>,
}

/// What the bus accepts from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AuthState {
    /// Only the token.
    AwaitingToken,
    /// The first line, which may be anything, for instance the request of a browser.
    AwaitingFirstLine,
    /// Everything: the first line was a JSON object.
    Accepted,
    /// Nothing. The connection closes when the error that says why is flushed.
    Rejected,
}

impl Client {
    pub(crate) fn new(
        endpoint: EndpointId,
        pool: Option<PoolId>,
        handshake: Arc<Handshake>,
        auth: AuthState,
    ) -> Client {
        Client {
            endpoint,
            pool,
            name: None,
            is_introduced: false,
            agreed: handshake.clone(),
            handshake,
            affinity: None,
            sessions: SessionNames::default(),
            labels: SessionNames::default(),
            workers: BTreeSet::new(),
            label_bytes: 0,
            filter_bytes: 0,
            kept: Kept::default(),
            auth,
            bye: false,
            half_closed: None,
            is_pipe: false,
            hears_events: false,
            keeps: false,
            latest_session: None,
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// It calls itself this in `_bus/hello`.
    pub(crate) fn greets_as(&mut self, name: Option<&str>, held: &mut HeldBytes) {
        if !self.is_introduced {
            self.set_name(name, held);
        }
    }

    /// It calls itself this in `initialize`.
    pub(crate) fn introduces_itself(&mut self, name: &str, held: &mut HeldBytes) {
        self.is_introduced = true;
        self.set_name(Some(name), held);
    }

    /// A name that is too long is cut: it is only shown.
    fn set_name(&mut self, name: Option<&str>, held: &mut HeldBytes) {
        let bytes = if enabled(Check::NameBound) { CLIENT_NAME_BYTES } else { usize::MAX };
        self.name = name.map(|name| shortened(name, bytes).into());
        self.count(held);
    }

    pub(crate) fn set_handshake(&mut self, handshake: Arc<Handshake>, held: &mut HeldBytes) {
        self.handshake = handshake;
        self.affinity = None;
        self.count(held);
    }

    /// No worker is there for its newest handshake: it keeps the one that was answered, if there is one.
    pub(crate) fn keep_agreed(&mut self, held: &mut HeldBytes) {
        if !self.agreed.is_plain() && enabled(Check::RefusedHandshake) {
            self.set_handshake(self.agreed.clone(), held);
        }
    }

    pub(crate) fn set_filter_bytes(&mut self, bytes: usize, held: &mut HeldBytes) {
        self.filter_bytes = bytes;
        self.count(held);
    }

    pub(crate) fn add_label(&mut self, label: &Session, key: SessionKey, held: &mut HeldBytes) {
        self.labels.insert(label.bus_token.clone(), key);
        self.label_bytes += label.table_bytes();
        self.count(held);
    }

    pub(crate) fn remove_label(&mut self, label: &Session, key: SessionKey, held: &mut HeldBytes) {
        if self.labels.remove(label.bus_name(), key) {
            self.label_bytes -= label.table_bytes();
            self.count(held);
        }
    }

    /// What it makes the bus keep beside its sessions.
    pub(crate) fn kept_bytes(&self) -> usize {
        let name = self.name.as_deref().map_or(0, str::len);
        name + self.handshake.bytes() + self.filter_bytes + self.label_bytes
    }

    /// The bytes of it that count as held.
    pub(crate) fn check_kept(&self) -> usize {
        self.kept.check(self.kept_bytes())
    }

    /// Panics if its labels take another number of bytes than it has counted.
    pub(crate) fn check_labels(&self, bytes: usize) {
        assert_eq!(self.label_bytes, bytes, "labels are counted");
    }

    /// It has left.
    pub(crate) fn forget_kept(&mut self, held: &mut HeldBytes) {
        self.kept.set(0, held);
    }

    fn count(&mut self, held: &mut HeldBytes) {
        self.kept.set(self.kept_bytes(), held);
    }

    /// All sessions that it owns, labels included.
    pub(crate) fn owned_sessions(&self) -> impl Iterator<Item = SessionKey> {
        self.sessions.keys().chain(self.labels.keys())
    }
}

/// The clients by their links.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Clients {
    clients: SecondaryMap<Link, Client>,
    /// Those that will send nothing more and wait for answers, in the order in which they ended.
    half_closed: BTreeMap<u64, Link>,
    ended: u64,
    /// How many hear what becomes of their sessions.
    hearing: usize,
    /// How many write down what is said.
    keeping: usize,
}

impl Clients {
    pub(crate) fn insert(&mut self, link: Link, client: Client) {
        self.clients.insert(link, client);
    }

    #[inline]
    pub(crate) fn get(&self, link: Link) -> Option<&Client> {
        self.clients.get(link)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, link: Link) -> Option<&mut Client> {
        self.clients.get_mut(link)
    }

    /// The client, or the error that it is gone.
    #[inline]
    pub(crate) fn find(&self, link: Link) -> Result<&Client, RpcError> {
        self.get(link).ok_or_else(RpcError::client_gone)
    }

    /// This client hears from now on what becomes of its sessions.
    pub(crate) fn set_hears_events(&mut self, link: Link) {
        if let Some(client) = self.clients.get_mut(link) {
            self.hearing += usize::from(!client.hears_events);
            client.hears_events = true;
        }
    }

    /// This client writes down what is said.
    pub(crate) fn set_keeps(&mut self, link: Link) {
        if let Some(client) = self.clients.get_mut(link) {
            self.keeping += usize::from(!client.keeps);
            client.keeps = true;
        }
    }

    /// Whether this client hears what becomes of its sessions.
    #[inline]
    pub(crate) fn hears_events(&self, link: Link) -> bool {
        self.hearing > 0 && self.get(link).is_some_and(|client| client.hears_events)
    }

    pub(crate) fn remove(&mut self, link: Link) -> Option<Client> {
        let client = self.clients.remove(link)?;
        client.half_closed.map(|number| self.half_closed.remove(&number));
        self.hearing -= usize::from(client.hears_events);
        self.keeping -= usize::from(client.keeps);
        Some(client)
    }

    /// This client will send nothing more.
    pub(crate) fn half_close(&mut self, link: Link) {
        let Some(client) = self.clients.get_mut(link) else { return };
        let has_place = matches!(client.auth, AuthState::AwaitingFirstLine | AuthState::Accepted);
        if has_place && client.half_closed.is_none() {
            client.half_closed = Some(self.ended);
            self.half_closed.insert(self.ended, link);
            self.ended += 1;
        }
    }

    /// The client that has sent nothing more for the longest time. It makes room for others, if there is too little.
    pub(crate) fn first_half_closed(&self) -> Option<Link> {
        self.half_closed.values().next().copied().filter(|_| enabled(Check::MakesRoom))
    }

    /// How many there are, without those that only write down what is said.
    pub(crate) fn len(&self) -> usize {
        self.clients.len() - self.keeping
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Link, &Client)> {
        self.clients.iter()
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        self.iter().map(|(link, _)| link).collect()
    }

    pub(crate) fn auth_of(&self, link: Link) -> Option<AuthState> {
        self.get(link).map(|client| client.auth)
    }

    /// The name of a client for the log.
    pub(crate) fn name_of(&self, link: Link) -> &str {
        self.get(link).and_then(Client::name).unwrap_or("unnamed")
    }
}
